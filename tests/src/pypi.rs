//! Programs in Python with packages of PyPI, for tests against code that is not ours. The versions are those of a file
//! of requirements; they are fetched once, into a virtual environment in the target folder.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::artifacts;

/// A virtual environment with the packages of `requirements`, made unless the same ones are there. Blocks.
///
/// # Errors
/// Where Python 3 or the packages cannot be had: what was said.
pub fn environment(name: &str, requirements: &str) -> Result<PathBuf> {
    let folder = artifacts::target_dir()?.join("pypi").join(name);
    std::fs::create_dir_all(&folder)?;
    // Two tests may come here at once.
    let lock = std::fs::File::create(folder.join("lock"))?;
    lock.lock()?;
    let (installed, venv) = (folder.join("installed.txt"), folder.join("venv"));
    if std::fs::read_to_string(&installed).ok().as_deref() == Some(requirements) {
        return Ok(venv);
    }
    let wanted = folder.join("requirements.txt");
    std::fs::write(&wanted, requirements)?;
    output(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&venv))
        .context("install Python 3 with its venv (Debian: python3-venv)")?;
    let pip =
        ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary", ":all:", "-r"];
    output(Command::new(venv.join("bin/python")).args(pip).arg(&wanted))
        .context("the packages could not be fetched from PyPI")?;
    std::fs::write(installed, requirements)?;
    Ok(venv)
}

/// Runs a program of the environment in `folder` until it ends; what it printed, and whether it was content. Blocks.
///
/// # Errors
/// Where it cannot be started.
pub fn run(venv: &Path, program: &str, args: &[&str], folder: &Path) -> Result<(String, bool)> {
    let mut command = Command::new(venv.join("bin").join(program));
    command.args(args).current_dir(folder).env("NO_COLOR", "1").stdin(Stdio::null());
    let output = command.output().with_context(|| format!("{program} cannot be started"))?;
    let said = [output.stdout, output.stderr].concat();
    Ok((String::from_utf8_lossy(&said).into_owned(), output.status.success()))
}

fn output(command: &mut Command) -> Result<()> {
    let output = command.stdin(Stdio::null()).output().context("python3 cannot be started")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: {}\n{said}", command.get_program().display(), output.status);
    Ok(())
}
