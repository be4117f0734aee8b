//! A real OpenID Connect provider for the tests: the certified one of npm, in Node.js, on loopback.

use std::net::TcpListener;
use std::process::Stdio;

use anyhow::{Context, Result};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::npm::NpmProgram;
use crate::process::{HANG, TestRun};

const PROGRAM: NpmProgram<'static> = NpmProgram {
    name: "oidc-provider",
    files: &[
        ("package.json", include_str!("../oidc-provider/package.json")),
        ("package-lock.json", include_str!("../oidc-provider/package-lock.json")),
        ("provider.mjs", include_str!("../oidc-provider/provider.mjs")),
    ],
};
/// How the provider knows the run.
const CLIENT: &str = "barn";
const SECRET: &str = "secret of the barn";

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
        let installed = tokio::task::spawn_blocking(|| PROGRAM.install()).await??;
        let mut process = Command::new("node")
            .args(["provider.mjs", redirect, client_id, client_secret])
            .current_dir(&installed.folder)
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

/// A run configured by `sections`, for those on its list, and its identity provider. The page has an
/// address from the start, because the provider has to know it.
///
/// # Errors
/// Where the provider cannot be had.
pub async fn listed(sections: &str) -> Result<(TestRun, Provider)> {
    listed_at(sections, "").await
}

/// The same at a path of the page: that of one of several runs.
///
/// # Errors
/// Where the provider cannot be had.
pub async fn listed_at(sections: &str, path: &str) -> Result<(TestRun, Provider)> {
    let free = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let page = format!("http://{free}{path}");
    let provider = Provider::start(&format!("{page}/login/callback"), CLIENT, SECRET).await?;
    let config = format!(
        "{sections}\n[access]\nmode = \"allowlist\"\npoll_interval = \"1s\"\npage = \"{page}\"\n\
        [access.oidc]\nissuer = \"{}\"\nclient_id = \"{CLIENT}\"\nclient_secret_file = \"client-secret\"\n",
        provider.issuer,
    );
    let test_run = TestRun::new(&config)?.at(&free.to_string());
    test_run.write("client-secret", &format!("{SECRET}\n"))?;
    Ok((test_run, provider))
}
