//! Programs in JavaScript with packages of npm, for tests against code that is not ours. The versions are
//! those of the program's lock file; they are fetched once and kept in the target folder.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::artifacts;

const NODE_MISSING: &str = "install Node.js 18 or newer and npm (Debian: nodejs and npm)";
const LOCK: &str = "package-lock.json";

/// A program: its name and its files, `package.json` and `package-lock.json` among them.
#[derive(Debug, Clone, Copy)]
pub struct NpmProgram<'a> {
    /// Of its folder.
    pub name: &'a str,
    /// Names and contents.
    pub files: &'a [(&'a str, &'a str)],
}

/// A folder with a program and everything that it imports.
#[derive(Debug, Clone)]
pub struct Installed {
    /// In the target folder.
    pub folder: PathBuf,
}

impl NpmProgram<'_> {
    /// Writes the files and fetches the packages, unless those of the same lock file are there. Blocks.
    ///
    /// # Errors
    /// Where Node.js, npm or the packages cannot be had: what to install, or what npm said.
    pub fn install(&self) -> Result<Installed> {
        let folder = artifacts::target_dir()?.join("npm").join(self.name);
        std::fs::create_dir_all(&folder)?;
        // Two tests may come here at once.
        let lock = std::fs::File::create(folder.join("lock"))?;
        lock.lock()?;
        for (name, content) in self.files {
            let path = folder.join(name);
            // Another test may be reading it.
            if std::fs::read(&path).is_ok_and(|there| there == content.as_bytes()) {
                continue;
            }
            std::fs::write(path, content)?;
        }
        let installed = folder.join("installed.json");
        let wanted =
            std::fs::read(folder.join(LOCK)).with_context(|| format!("the program has no {LOCK}"))?;
        if std::fs::read(&installed).ok().as_ref() != Some(&wanted) {
            fetch(&folder)?;
            std::fs::write(installed, wanted)?;
        }
        Ok(Installed { folder })
    }
}

/// Without the scripts of packages: none is needed, and none is trusted.
fn fetch(folder: &Path) -> Result<()> {
    let mut npm = Command::new("npm");
    npm.args(["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline"]);
    output(npm.current_dir(folder)).context("the packages of package-lock.json could not be fetched")?;
    Ok(())
}

impl Installed {
    /// Runs a script with Node.js until it ends; what it printed. Blocks.
    ///
    /// # Errors
    /// Where it fails: what it said.
    pub fn node(&self, script: &str, args: &[&str]) -> Result<String> {
        output(Command::new("node").arg(script).args(args).current_dir(&self.folder))
    }

    /// Makes one module for browsers of `entry` and all that it imports. Blocks.
    ///
    /// # Errors
    /// Where esbuild is not among the packages, or refuses.
    pub fn bundle(&self, entry: &str) -> Result<String> {
        let options = ["--bundle", "--format=esm", "--platform=browser", "--log-level=error"];
        self.node("node_modules/esbuild/bin/esbuild", &[&[entry], &options[..]].concat())
    }
}

fn output(command: &mut Command) -> Result<String> {
    let program = command.get_program().display().to_string();
    let output = command.stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("{program} cannot be started: {NODE_MISSING}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program}: {}\n{said}", output.status);
    Ok(String::from_utf8(output.stdout)?)
}
