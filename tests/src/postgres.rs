//! A PostgreSQL server of Debian's package, for one test: in a folder of its own, on a socket in that folder or with TLS at
//! a port, gone when it is dropped.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use tempfile::TempDir;

/// Where Debian keeps the programs of each version.
const VERSIONS: &str = "/usr/lib/postgresql";
/// Made by the package. The server refuses to run as root.
const USER: &str = "postgres";
/// What the server says once it takes connections.
const READY: &str = "database system is ready to accept connections";

/// A running server.
#[derive(Debug)]
pub struct Postgres {
    folder: TempDir,
    programs: PathBuf,
    is_root: bool,
    /// Where it speaks TLS, and nothing else.
    port: Option<u16>,
    server: Option<(Child, std::thread::JoinHandle<()>)>,
}

impl Postgres {
    /// Makes a database cluster and starts a server on it.
    ///
    /// # Errors
    /// Why there can be none here.
    pub fn start() -> Result<Self> {
        let mut postgres = Self::made()?;
        postgres.resume()?;
        Ok(postgres)
    }

    /// The same, at a port, for those who speak TLS: with a certificate for `localhost` by an authority of its own.
    ///
    /// # Errors
    /// Why there can be none here.
    pub fn start_with_tls() -> Result<Self> {
        let mut postgres = Self::made()?;
        let (authority, certificate, key) = certified("localhost")?;
        std::fs::write(postgres.authority(), authority)?;
        let data = postgres.data();
        for (name, text) in [
            ("server.crt", certificate.as_str()),
            ("server.key", &key),
            ("pg_hba.conf", "hostssl all all 127.0.0.1/32 trust\n"),
        ] {
            let file = data.join(name);
            std::fs::write(&file, text)?;
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600))?;
            let owner = data.metadata()?;
            chown(&file, Some(owner.uid()), Some(owner.gid()))?;
        }
        postgres.port = Some(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port());
        postgres.resume()?;
        Ok(postgres)
    }

    /// A database cluster without a server.
    fn made() -> Result<Self> {
        let programs = programs().context("PostgreSQL is not installed")?;
        let folder = tempfile::Builder::new().prefix("barnraise-pg-").tempdir()?;
        let is_root = folder.path().metadata()?.uid() == 0;
        let postgres = Self { folder, programs, is_root, port: None, server: None };
        if is_root {
            let id = |which| -> Result<u32> {
                let output = Command::new("id").args([which, USER]).output()?;
                ensure!(output.status.success(), "there is no user {USER}");
                Ok(String::from_utf8(output.stdout)?.trim().parse()?)
            };
            chown(postgres.folder.path(), Some(id("-u")?), Some(id("-g")?))?;
        }
        let mut initdb = postgres.command("initdb");
        initdb.args([
            "--username",
            USER,
            "--auth",
            "trust",
            "--no-sync",
            "--encoding",
            "UTF8",
            "--locale",
            "C",
        ]);
        let made = initdb.arg("-D").arg(postgres.data()).output()?;
        ensure!(made.status.success(), "initdb: {}", String::from_utf8_lossy(&made.stderr));
        Ok(postgres)
    }

    /// Starts the server again after [`Self::crash`].
    ///
    /// # Errors
    /// Where it does not come up; the end of its log.
    pub fn resume(&mut self) -> Result<()> {
        let mut command = self.command("postgres");
        command.arg("-D").arg(self.data()).arg("-k").arg(self.folder.path());
        command.args(["-c", "shared_buffers=8MB", "-c", "max_connections=20"]);
        match self.port {
            None => command.args(["-c", "listen_addresses="]),
            Some(port) => {
                command.args(["-c", "ssl=on", "-c", "listen_addresses=127.0.0.1", "-p", &port.to_string()])
            }
        };
        let mut child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn()?;
        let log = child.stderr.take().context("the log is not piped")?;
        let mut log = BufReader::new(log);
        let ready = wait_for(&mut log, READY);
        if let Err(error) = ready {
            let _ = child.kill();
            let _ = child.wait();
            return Err(error);
        }
        // A log that nobody reads would stop the server.
        let drain = std::thread::spawn(move || log.lines().for_each(drop));
        self.server = Some((child, drain));
        Ok(())
    }

    /// Ends the server at once: connections are cut off, and nothing more is written.
    ///
    /// # Errors
    /// Where it is not running.
    pub fn crash(&mut self) -> Result<()> {
        let (mut child, drain) = self.server.take().context("the server is not running")?;
        // SIGQUIT, after which the next start recovers; SIGKILL would leave its children behind.
        let kill = Command::new("sh").args(["-c", &format!("kill -QUIT {}", child.id())]).status()?;
        ensure!(kill.success(), "kill: {kill}");
        child.wait()?;
        let _ = drain.join();
        Ok(())
    }

    /// Address of its database.
    #[must_use]
    pub fn url(&self) -> String {
        let socket = self.folder.path().display().to_string().replace('/', "%2F");
        format!("postgres://{USER}@{socket}/{USER}")
    }

    /// Address of its database at `host`, for those who speak TLS as `options` say.
    #[must_use]
    pub fn url_at(&self, host: &str, options: &str) -> String {
        format!("postgres://{USER}@{host}:{}/{USER}?{options}", self.port.unwrap_or_default())
    }

    /// The certificate of its authority.
    #[must_use]
    pub fn authority(&self) -> PathBuf {
        self.folder.path().join("authority.pem")
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// As somebody who is not root.
    fn command(&self, program: &str) -> Command {
        let program = self.programs.join(program);
        if !self.is_root {
            return Command::new(program);
        }
        let mut command = Command::new("setpriv");
        command.args(["--reuid", USER, "--regid", USER, "--clear-groups", "--"]).arg(program);
        command.current_dir(self.folder.path());
        command
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // Not running, then.
        let _ = self.crash();
    }
}

/// An authority's certificate, and one by it for `name` with its key.
///
/// # Errors
/// Where no key can be made.
pub fn certified(name: &str) -> Result<(String, String, String)> {
    let authority_key = KeyPair::generate()?;
    let mut authority = CertificateParams::default();
    authority.distinguished_name.push(DnType::CommonName, "an authority of the tests");
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority_certificate = authority.self_signed(&authority_key)?.pem();
    let issuer = Issuer::new(authority, authority_key);
    let key = KeyPair::generate()?;
    let certificate = CertificateParams::new([name.to_owned()])?.signed_by(&key, &issuer)?;
    Ok((authority_certificate, certificate.pem(), key.serialize_pem()))
}

fn wait_for(log: &mut BufReader<ChildStderr>, text: &str) -> Result<()> {
    let mut said = String::new();
    let mut line = String::new();
    while log.read_line(&mut line)? > 0 {
        if line.contains(text) {
            return Ok(());
        }
        said.push_str(&line);
        line.clear();
    }
    bail!("the server ended: {said}")
}

/// The programs of the newest version that is installed.
fn programs() -> Option<PathBuf> {
    let version = |path: &Path| path.file_name()?.to_str()?.parse::<u32>().ok();
    let installed = std::fs::read_dir(VERSIONS).ok()?.flatten().map(|entry| entry.path());
    let newest = installed.filter_map(|path| Some((version(&path)?, path.join("bin")))).max()?.1;
    newest.join("initdb").is_file().then_some(newest)
}
