//! Arguments of `barnraise serve`, and the configurations that they ask for.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use libp2p::Multiaddr;

use crate::config::{ConfigError, Device, RunConfig, cache_folder};

/// `barnraise serve`
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// The run, as in run.example.toml; of several, the page is served where the first says
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
