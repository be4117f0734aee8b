//! A machine that has its system and nothing else, as far as programs can see: the packages that every Debian or Ubuntu
//! has, unpacked by debootstrap, and a `chroot` into them.
//!
//! Needs root and debootstrap; [`BareMachine::new`] says what is missing. The packages are of the system that the test runs
//! on, from where its apt gets them, once: they stay in the target folder. What a machine wrote is gone when it is
//! dropped.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use barnraise_native::data::sets::DEBIAN_FOLDER;
use tempfile::TempDir;

use crate::artifacts;
use crate::process::{BackboneProcess, PeerProcess, Process, cache};

/// Gives a machine its processes and the data of the other tests, in mounts that end with the command; goes there.
/// Its arguments: the machine's root, folders here and there, and the command.
const ENTER: &str = r#"
    mount -t proc proc "$0/proc" && mount --bind "$1" "$0$2" || exit
    if [ -d "$3" ]; then mount -o bind,ro "$3" "$0$3" || exit; fi
    root=$0; shift 3; exec chroot "$root" "$@"
"#;
/// Where the machine has what other tests downloaded, and the shards that they cut.
const DATA: &str = "/srv";
/// Of programs that the machine has.
const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

/// One of them, with a folder of its own.
#[derive(Debug)]
pub struct BareMachine {
    root: PathBuf,
    /// In its `/tmp`, the home of its user.
    folder: TempDir,
    n_processes: u32,
}

impl BareMachine {
    /// Fetches its packages where they are not there yet. Blocks.
    ///
    /// # Errors
    /// Why there can be none here.
    pub fn new() -> Result<Self> {
        let root = root()?;
        let folder = tempfile::Builder::new().prefix("test-").tempdir_in(root.join("tmp"))?;
        let machine = Self { root, folder, n_processes: 0 };
        let mut nothing = machine.command(&["true"])?.into_std();
        output(&mut nothing).context("it cannot be entered")?;
        Ok(machine)
    }

    /// The folder as this test sees it.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Likewise, as the machine's programs do: a path in it.
    ///
    /// # Errors
    /// Never: the folder lies in the root.
    pub fn path(&self, below: &str) -> Result<String> {
        let folder = Path::new("/").join(self.folder.path().strip_prefix(&self.root)?);
        Ok(folder.join(below).display().to_string())
    }

    /// Runs a command until it ends; what it printed.
    ///
    /// # Errors
    /// Where it fails; its log is in the error.
    pub async fn run(&mut self, command: &[&str]) -> Result<String> {
        let mut process = self.start(command)?;
        let (output, status) = process.end().await?;
        ensure!(status.success(), process.error(&format!("{command:?}: {status}")));
        Ok(output)
    }

    /// Starts a backbone, with the data of other tests, and waits until it listens.
    ///
    /// # Errors
    /// Where it does not come up; its log is in the error.
    pub async fn backbone(&mut self, command: &[&str]) -> Result<BackboneProcess> {
        let cache = format!("BARNRAISE__DATA__CACHE={DATA}");
        let process = self.start(&[&["env", cache.as_str()][..], command].concat())?;
        BackboneProcess::listening(process).await
    }

    /// Starts a native peer.
    ///
    /// # Errors
    /// Where it cannot be started.
    pub fn join(&mut self, command: &[&str]) -> Result<PeerProcess> {
        Ok(PeerProcess { process: self.start(command)? })
    }

    fn start(&mut self, command: &[&str]) -> Result<Process> {
        self.n_processes += 1;
        let log = self.folder.path().join(format!("{}.log", self.n_processes));
        Process::start(self.command(command)?, log)
    }

    fn command(&self, command: &[&str]) -> Result<tokio::process::Command> {
        let mut enter = tokio::process::Command::new("unshare");
        enter.args(["--mount", "sh", "-c", ENTER]).arg(&self.root).arg(cache()?).args([DATA, DEBIAN_FOLDER]);
        // Nothing of this machine's environment, where a compiler's libraries may be.
        enter.env_clear().env("PATH", PATH).env("HOME", self.path("")?);
        enter.args(command);
        Ok(enter)
    }
}

/// The root of all machines, which none of them writes to but in `/tmp`.
fn root() -> Result<PathBuf> {
    let folder = artifacts::target_dir()?.join("bare-root");
    std::fs::create_dir_all(&folder)?;
    ensure!(std::fs::File::create(folder.join("lock"))?.metadata()?.uid() == 0, "it takes root");
    // Two tests may come here at once.
    let lock = std::fs::File::open(folder.join("lock"))?;
    lock.lock()?;
    let (suite, mirror) = source()?;
    let root = folder.join(&suite);
    if root.is_dir() {
        return Ok(root);
    }
    let making = folder.join("making");
    if making.exists() {
        std::fs::remove_dir_all(&making)?;
    }
    // Unpacked is enough: to configure packages takes a minute more. What it mounts ends with it.
    let debootstrap = ["--mount", "debootstrap", "--foreign", "--variant=minbase"];
    let made = output(Command::new("unshare").args(debootstrap).arg(&suite).arg(&making).arg(&mirror));
    made.with_context(|| format!("debootstrap of {suite} from {mirror}"))?;
    // A link that the second stage would replace.
    let proc = making.join("proc");
    if proc.is_symlink() {
        std::fs::remove_file(&proc)?;
    }
    std::fs::create_dir_all(proc)?;
    // Made only where packages are configured, or not at all.
    for folder in [DATA, DEBIAN_FOLDER] {
        std::fs::create_dir_all(making.join(folder.trim_start_matches('/')))?;
    }
    std::fs::rename(making, &root)?;
    Ok(root)
}

/// The release of this system, and where its apt gets packages of it.
fn source() -> Result<(String, String)> {
    let release = std::fs::read_to_string("/etc/os-release").context("/etc/os-release")?;
    let suite = release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    let suite = suite.context("the release of this system has no name")?.trim_matches('"').to_owned();
    let mut apt = Command::new("apt-get");
    apt.args(["indextargets", "--format", "$(RELEASE) $(COMPONENT) $(REPO_URI)", "Created-By: Packages"]);
    let sources = output(&mut apt)?;
    let wanted = format!("{suite} main ");
    let mirror = sources.lines().find_map(|line| line.strip_prefix(&wanted));
    let mirror = mirror.with_context(|| format!("apt has no source of {suite}:\n{sources}"))?;
    Ok((suite, mirror.to_owned()))
}

fn output(command: &mut Command) -> Result<String> {
    let program = command.get_program().display().to_string();
    let output = command.output().with_context(|| format!("{program} cannot be started"))?;
    let said = [&output.stdout[..], &output.stderr[..]].concat();
    let said = String::from_utf8_lossy(&said);
    ensure!(output.status.success(), "{program}: {}\n{said}", output.status);
    Ok(String::from_utf8(output.stdout)?)
}
