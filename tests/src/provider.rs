//! A real OpenID Connect provider for the tests: the certified one of npm, in Node.js, on loopback.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::artifacts;
use crate::process::HANG;

/// The version that is tested with.
const VERSION: &str = "8.8.1";
const SCRIPT: &str = include_str!("../assets/oidc-provider.mjs");

/// A running provider; it ends when this is dropped.
#[derive(Debug)]
pub struct Provider {
    /// Its address.
    pub issuer: String,
    _process: Child,
}

impl Provider {
    /// Starts a provider with one client.
    ///
    /// # Errors
    /// Where Node.js, npm or the package cannot be had.
    pub async fn start(redirect: &str, client_id: &str, client_secret: &str) -> Result<Self> {
        let folder = tokio::task::spawn_blocking(fetch).await??;
        let mut process = Command::new("node")
            .arg(folder.join("provider.mjs"))
            .args([redirect, client_id, client_secret])
            .current_dir(&folder)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .context("Node.js cannot be started")?;
        let output = process.stdout.take().context("no standard output")?;
        let mut lines = BufReader::new(output).lines();
        let issuer = loop {
            let line = tokio::time::timeout(HANG, lines.next_line()).await??;
            let line = line.context("the identity provider ended")?;
            if line.starts_with("http://") {
                break line;
            }
        };
        Ok(Self { issuer, _process: process })
    }
}

/// Fetches the package unless it is there; returns the folder with the script beside it.
fn fetch() -> Result<PathBuf> {
    let folder = artifacts::target_dir()?.join("npm").join(format!("oidc-provider-{VERSION}"));
    // Two tests may come here at once.
    std::fs::create_dir_all(&folder)?;
    let lock = std::fs::File::create(folder.join("lock"))?;
    lock.lock()?;
    if !folder.join("complete").is_file() {
        install(&folder)?;
        std::fs::write(folder.join("complete"), VERSION)?;
    }
    std::fs::write(folder.join("provider.mjs"), SCRIPT)?;
    Ok(folder)
}

fn install(folder: &Path) -> Result<()> {
    let mut command = std::process::Command::new("npm");
    // Without the scripts of packages: none is needed, and none is trusted.
    command.args(["install", "--no-save", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix"]);
    command.arg(folder).arg(format!("oidc-provider@{VERSION}")).stdin(Stdio::null());
    let output = command.output().context("npm cannot be started: install Node.js with npm")?;
    ensure!(output.status.success(), "npm: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}
