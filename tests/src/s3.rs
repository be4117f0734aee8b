//! An S3 store for the tests: moto's server of PyPI, on loopback, and in front of it a proxy that throttles and cuts
//! connections, from a seed.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use barnraise_swarm::random::SplitMix64;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::postgres::certified;
use crate::process::HANG;
use crate::pypi;

const REQUIREMENTS: &str = include_str!("../moto/requirements.txt");
const AUTHORITY: &str = "authority.crt";
const CERTIFICATE: &str = "server.crt";
const KEY: &str = "server.key";
/// In the address of a part of a large object.
const PART: &[u8] = b"partNumber=";
/// Longest head of a request that is passed on.
const HEAD_BYTES_MAX: usize = 64 * 1024;
/// What S3 says to those who ask too often.
const SLOW_DOWN: &str = "<?xml version=\"1.0\" encoding=\"UTF-8\"?><Error><Code>SlowDown</Code>\
    <Message>Please reduce your request rate.</Message></Error>";

/// Makes a bucket over HTTPS: its address, and the file of the authority that is trusted.
const MAKE_BUCKET: &str = "import ssl, sys, urllib.request as request
context = ssl.create_default_context(cafile=sys.argv[2])
context.verify_flags &= ~ssl.VERIFY_X509_STRICT
request.urlopen(request.Request(sys.argv[1], method='PUT'), context=context)";

/// A running store; it ends when this is dropped.
#[derive(Debug)]
pub struct S3 {
    process: Child,
    port: u16,
    /// Its certificate, its key, and the authority's certificate, where it speaks HTTPS.
    certified: Option<TempDir>,
}

impl S3 {
    /// Starts a store with an empty bucket.
    ///
    /// # Errors
    /// Where Python or the packages cannot be had.
    pub async fn start(bucket: &str) -> Result<Self> {
        Self::started(bucket, None).await
    }

    /// The same, over HTTPS, with a certificate for `localhost` by an authority of its own.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub async fn start_with_tls(bucket: &str) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let (authority, certificate, key) = certified("localhost")?;
        for (name, text) in [(AUTHORITY, authority), (CERTIFICATE, certificate), (KEY, key)] {
            std::fs::write(folder.path().join(name), text)?;
        }
        Self::started(bucket, Some(folder)).await
    }

    async fn started(bucket: &str, certified: Option<TempDir>) -> Result<Self> {
        let venv = tokio::task::spawn_blocking(|| pypi::environment("moto", REQUIREMENTS)).await??;
        let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let program: PathBuf = venv.join("bin/moto_server");
        let mut command = Command::new(program);
        command.args(["-H", "127.0.0.1", "-p", &port.to_string()]);
        if let Some(folder) = &certified {
            command.arg("-c").arg(folder.path().join(CERTIFICATE)).arg("-k").arg(folder.path().join(KEY));
        }
        let process = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("moto_server cannot be started")?;
        let store = Self { process, port, certified };
        let made = tokio::time::timeout(HANG, async {
            loop {
                let made = match store.authority() {
                    None => store.make(bucket).await,
                    Some(authority) => store.make_by_https(&venv, bucket, &authority).await,
                };
                match made {
                    Ok(()) => return,
                    // Nothing tells that it listens.
                    Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
                }
            }
        });
        made.await.context("the S3 store does not answer")?;
        Ok(store)
    }

    /// The file with the certificate of the authority, where it speaks HTTPS.
    #[must_use]
    pub fn authority(&self) -> Option<PathBuf> {
        self.certified.as_ref().map(|folder| folder.path().join(AUTHORITY))
    }

    async fn make_by_https(&self, venv: &Path, bucket: &str, authority: &Path) -> Result<()> {
        let mut command = tokio::process::Command::new(venv.join("bin/python"));
        command.args(["-c", MAKE_BUCKET, &format!("https://localhost:{}/{bucket}", self.port)]);
        let output = command.arg(authority).kill_on_drop(true).output().await?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    }

    async fn make(&self, bucket: &str) -> Result<()> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).await?;
        let request = format!(
            "PUT /{bucket} HTTP/1.1\r\nhost: 127.0.0.1:{}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
            self.port
        );
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        ensure!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        Ok(())
    }

    /// Environment of a program that uses the store through `port`.
    #[must_use]
    pub fn environment(port: u16) -> Vec<(String, String)> {
        Self::environment_of(format!("http://127.0.0.1:{port}"))
    }

    /// Likewise, over HTTPS.
    #[must_use]
    pub fn environment_with_tls(&self) -> Vec<(String, String)> {
        Self::environment_of(format!("https://localhost:{}", self.port))
    }

    fn environment_of(url: String) -> Vec<(String, String)> {
        let variables = [
            ("AWS_ACCESS_KEY_ID", "test"),
            ("AWS_SECRET_ACCESS_KEY", "test"),
            ("AWS_REGION", "us-east-1"),
            ("AWS_ALLOW_HTTP", "true"),
        ];
        let endpoint = ("AWS_ENDPOINT_URL".to_owned(), url);
        variables
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into_iter()
            .chain([endpoint])
            .collect()
    }

    /// Its port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for S3 {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Counts of injected faults.
#[derive(Debug, Default)]
pub struct Faults {
    /// Requests that came.
    pub n_requests: AtomicU64,
    /// Answered with 503 SlowDown, without the store.
    pub n_throttled: AtomicU64,
    /// Cut before they reached the store.
    pub n_lost: AtomicU64,
    /// Received by the store, whose answer was cut.
    pub n_unanswered: AtomicU64,
    /// Of those that came, the parts of large objects.
    pub n_parts: AtomicU64,
}

/// An unreliable proxy to a store; it ends when dropped.
#[derive(Debug)]
pub struct UnreliableProxy {
    /// Where it begins.
    pub port: u16,
    /// What went wrong so far.
    pub faults: Arc<Faults>,
    task: JoinHandle<()>,
}

impl UnreliableProxy {
    /// Opens a proxy that fails one request in `one_in`; `seed` decides how.
    ///
    /// # Errors
    /// Where no port can be had.
    pub async fn to(store: &S3, one_in: usize, seed: u64) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let (port, to) = (listener.local_addr()?.port(), store.port);
        let faults = Arc::new(Faults::default());
        let (counted, random) = (Arc::clone(&faults), Arc::new(Mutex::new(SplitMix64::new(seed))));
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (counted, random) = (Arc::clone(&counted), Arc::clone(&random));
                // One that fails is one that was cut.
                tokio::spawn(async move { drop(carry(stream, to, one_in, &counted, &random).await) });
            }
        });
        Ok(Self { port, faults, task })
    }
}

impl Drop for UnreliableProxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// One request on a connection, which ends with its answer.
async fn carry(
    mut stream: TcpStream,
    to: u16,
    one_in: usize,
    faults: &Faults,
    random: &Mutex<SplitMix64>,
) -> Result<()> {
    let mut head = Vec::new();
    while !head.windows(4).any(|window| window == b"\r\n\r\n") {
        ensure!(head.len() < HEAD_BYTES_MAX, "a head without an end");
        ensure!(stream.read_buf(&mut head).await? > 0, "a head that was cut");
    }
    faults.n_requests.fetch_add(1, Ordering::Relaxed);
    if head.windows(PART.len()).any(|window| window == PART) {
        faults.n_parts.fetch_add(1, Ordering::Relaxed);
    }
    let fault = {
        let mut random = random.lock().unwrap_or_else(PoisonError::into_inner);
        let goes_wrong = random.below(one_in) == 0;
        goes_wrong.then(|| random.below(3))
    };
    let mut store = match fault {
        Some(0) => {
            faults.n_throttled.fetch_add(1, Ordering::Relaxed);
            let answer = format!(
                "HTTP/1.1 503 Slow Down\r\ncontent-type: application/xml\r\ncontent-length: {}\r\n\
                connection: close\r\n\r\n{SLOW_DOWN}",
                SLOW_DOWN.len()
            );
            // Read to its end first: an answer to a request that is under way would be lost with the connection.
            read_body(&mut stream, &head).await?;
            return Ok(stream.write_all(answer.as_bytes()).await?);
        }
        Some(1) => {
            faults.n_lost.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
        _ => TcpStream::connect(("127.0.0.1", to)).await?,
    };
    // The store ends the connection with its answer.
    let end = head.windows(2).position(|window| window == b"\r\n").context("a head without lines")?;
    store.write_all(&head[..end]).await?;
    store.write_all(b"\r\nconnection: close").await?;
    store.write_all(&head[end..]).await?;
    let body = read_body(&mut stream, &head).await?;
    store.write_all(&body).await?;
    let mut answer = Vec::new();
    store.read_to_end(&mut answer).await?;
    if fault.is_some() {
        faults.n_unanswered.fetch_add(1, Ordering::Relaxed);
        // As much as there may be of an answer that nobody can use.
        return Ok(stream.write_all(&answer[..answer.len() / 2]).await?);
    }
    stream.write_all(&answer).await?;
    Ok(stream.shutdown().await?)
}

/// What follows a head and what was read with it.
async fn read_body(stream: &mut TcpStream, head: &[u8]) -> Result<Vec<u8>> {
    let end = head.windows(4).position(|window| window == b"\r\n\r\n").context("a head without an end")? + 4;
    let text = String::from_utf8_lossy(&head[..end]).to_ascii_lowercase();
    let length = text.lines().find_map(|line| line.strip_prefix("content-length:"));
    let length: usize = length.map_or(Ok(0), |length| length.trim().parse())?;
    let mut rest = vec![0; length.saturating_sub(head.len() - end)];
    stream.read_exact(&mut rest).await?;
    Ok(rest)
}
