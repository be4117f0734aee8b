//! Arguments of `barnraise serve`, and the configurations that they ask for.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::Args;
use libp2p::Multiaddr;

use crate::config::{ConfigError, Device, NetworkSection, RunConfig, cache_folder};

/// Which runs a process has.
#[derive(Debug)]
pub enum RunSource {
    /// Those that were named, until the process ends.
    Named(Vec<RunConfig>),
    /// Those of a folder, as its files come and go.
    Folder(RunFolder),
}

/// A folder with the file of a run in each `*.toml`.
#[derive(Debug, Clone)]
pub struct RunFolder {
    path: PathBuf,
    args: ServeArgs,
}

impl RunFolder {
    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The configuration of a file, overridden by the command line.
    pub(super) fn load(&self, file: &Path) -> Result<RunConfig, ConfigError> {
        Ok(self.args.over(RunConfig::load(file)?))
    }

    /// Where the page is served: what the first file without a mistake says.
    pub(super) fn network<'f>(&self, files: impl Iterator<Item = &'f PathBuf>) -> NetworkSection {
        let mut configs = files.filter_map(|file| self.load(file).ok());
        let first = configs.next().map(|config| config.network);
        first.unwrap_or_else(|| self.args.over(RunConfig::default()).network)
    }
}

/// `barnraise serve`
#[derive(Debug, Clone, Args)]
pub struct ServeArgs {
    /// The run, as in run.example.toml; of several, the page is served where the first says. A folder: each `*.toml` in
    /// it is a run, which starts when its file comes, ends when it goes, and is started again when it changes
    #[arg(long, value_name = "FILE", required_unless_present = "dev", conflicts_with = "dev")]
    pub config: Vec<PathBuf>,
    /// A run on this machine with every default, kept in the user's cache folder
    #[arg(long)]
    pub dev: bool,
    /// Folder with the page, as `cargo xtask build` makes it, in place of the page in this program, if it has one
    #[arg(long, value_name = "DIR")]
    pub web_root: Option<PathBuf>,
    /// Device to compute on, instead of the configuration's
    #[arg(long)]
    pub device: Option<Device>,
    /// Address of the page, instead of the configuration's
    #[arg(long, value_name = "HOST:PORT")]
    pub http: Option<SocketAddr>,
    /// Address to listen at for contributors, instead of the configuration's; may be repeated. Several runs listen
    /// there too where each port is the system's choice (0)
    #[arg(long, value_name = "MULTIADDR")]
    pub listen: Vec<Multiaddr>,
    /// Folder for the data set and the run, instead of the configuration's folders
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
}

impl ServeArgs {
    /// The runs that are asked for.
    ///
    /// # Errors
    /// The first mistake in the file of a run that is named.
    pub fn source(&self) -> Result<RunSource, ConfigError> {
        Ok(match &self.config[..] {
            [path] if path.is_dir() => {
                RunSource::Folder(RunFolder { path: path.clone(), args: self.clone() })
            }
            _ => RunSource::Named(self.configs()?),
        })
    }

    /// The configuration of each run: from its file or the defaults, overridden by the command line.
    ///
    /// # Errors
    /// The first mistake.
    pub fn configs(&self) -> Result<Vec<RunConfig>, ConfigError> {
        if !self.config.is_empty() {
            return self.config.iter().map(|path| Ok(self.over(RunConfig::load(path)?))).collect();
        }
        let cache = self.data_dir.clone().unwrap_or_else(cache_folder);
        Ok(vec![self.over(RunConfig::dev_in(&cache, &RunConfig::environment()?)?)])
    }

    fn over(&self, mut config: RunConfig) -> RunConfig {
        if let Some(folder) = &self.data_dir {
            config.data.cache = Some(folder.clone());
            config.storage.folder = folder.join(&config.run.id);
        }
        config.device.kind = self.device.unwrap_or(config.device.kind);
        config.network.http = self.http.unwrap_or(config.network.http);
        if !self.listen.is_empty() {
            config.network.listen.clone_from(&self.listen);
        }
        config
    }
}
