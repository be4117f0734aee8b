//! The command line of `barnraise`.
//!
//! It says what was asked for and nothing more: no file is read before [`ServeArgs::configs`] is
//! called, and nothing is started here.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use axum::http::Uri;
use barnraise_protocol::DisplayName;
use barnraise_protocol::access::{ParseKeyError, PublicKey};
use barnraise_relay::LogFormat;
use barnraise_swarm::conduct::Duty;
use bytesize::ByteSize;
use clap::{Args, Parser, Subcommand};
use libp2p::Multiaddr;
use libp2p::multiaddr::Protocol;

use crate::access;
use crate::access::store::IdentityKind;
use crate::admin::command::{OperateArgs, PeersArgs};
use crate::config::command::ConfigArgs;
use crate::config::{ConfigError, Device, LinkSpeed, Precision, RunConfig, cache_folder};
use crate::top::TopArgs;

/// Raise a model the way a village raises a barn.
#[derive(Debug, Parser)]
#[command(name = "barnraise", version, about, max_term_width = 100)]
pub struct Cli {
    /// How log lines are written to standard error; RUST_LOG says which
    #[arg(long, global = true, env = "BARNRAISE_LOG_FORMAT", default_value = "text")]
    pub log_format: LogFormat,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Keep a run up: serve the page, take gradients, make the steps
    Serve(ServeArgs),
    /// Print example configurations, and check one before it is used
    Config(ConfigArgs),
    /// Print the peer id of a run's backbone, for the [aggregators] of the others
    Id(IdArgs),
    /// Lend this machine to a run
    Join(JoinArgs),
    /// Print how a run stands, as its backbones say in the DHT
    Progress(ProgressArgs),
    /// Operate a run while it trains: pause, resume, set, export, rollback
    Run(OperateArgs),
    /// See who takes part in a run, and keep peers out
    Peers(PeersArgs),
    /// Say who is on the list of a run
    Allow(AllowArgs),
    /// Make an invitation to a run, and print its link
    Invite(InviteArgs),
    /// Take access to a run back
    Revoke(RevokeArgs),
    /// Check receipts of contributions, and add them up
    Receipts(ReceiptsArgs),
    /// Recompute what a run has against the peers that it convicted
    Evidence(EvidenceArgs),
    /// Keep up a server that others meet at, and are reached through
    Relay(RelayArgs),
    /// Watch a run in the terminal
    Top(TopArgs),
}

/// `barnraise serve`
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// The run, as in run.example.toml; of several, the page is served where the first says
    #[arg(long, value_name = "FILE", required_unless_present = "dev", conflicts_with = "dev")]
    pub config: Vec<PathBuf>,
    /// A run on this machine with every default, kept in the user's cache folder
    #[arg(long)]
    pub dev: bool,
    /// The page, as `cargo xtask build` makes it, in place of the one that is in this program, if it has one
    #[arg(long, value_name = "DIR")]
    pub web_root: Option<PathBuf>,
    /// What to compute on, instead of the configuration's
    #[arg(long)]
    pub device: Option<Device>,
    /// Where to serve the page, instead of the configuration's address
    #[arg(long, value_name = "HOST:PORT")]
    pub http: Option<SocketAddr>,
    /// Where to listen for contributors, instead of the configuration's addresses; may be repeated. Several runs listen
    /// there too where each port is the system's choice (0)
    #[arg(long, value_name = "MULTIADDR")]
    pub listen: Vec<Multiaddr>,
    /// Where to keep the data set and the run, instead of the configuration's folders
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
}

/// `barnraise id`
#[derive(Debug, Args)]
pub struct IdArgs {
    /// The run, as in run.example.toml; its key is made if it is not there
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
}

/// `barnraise join`
#[derive(Debug, Args)]
pub struct JoinArgs {
    /// The run: the address of its page, an invitation's link, or a libp2p multiaddress with a peer id
    pub address: JoinLink,
    /// The run's id, where the address is of another peer of the DHT, such as a relay; with the key of its
    /// authority, nobody else is taken for it
    #[arg(long, value_name = "ID[@KEY]")]
    pub run: Option<RunName>,
    /// The code of an invitation, where the address is no link with it; or the short code of a room, such as K7M-4PQ
    #[arg(long, value_name = "CODE")]
    pub invitation: Option<String>,
    /// What to compute on
    #[arg(long, default_value = "cpu")]
    pub device: Device,
    /// In which numbers to compute; `mixed` is for devices with fast half precision
    #[arg(long, default_value = "f32")]
    pub precision: Precision,
    /// Share of the time in which to compute, 5 to 100; in between the machine is left alone
    #[arg(long, value_name = "PERCENT", default_value = "100", value_parser = throttle)]
    pub throttle: Duty,
    /// Key file, so that this machine is the same peer each time; made if it is not there
    #[arg(long, value_name = "FILE")]
    pub identity: Option<PathBuf>,
    /// Append the receipts of accepted contributions to this file, a line each
    #[arg(long, value_name = "FILE")]
    pub receipts: Option<PathBuf>,
    /// How to be called on the leaderboard: 1 to 32 characters
    #[arg(long, value_name = "NAME")]
    pub name: Option<DisplayName>,
    /// Leave after this many samples
    #[arg(long, value_name = "N")]
    pub samples: Option<u64>,
    /// Pass shards of the data on to other peers, at so many bytes a second at most, 64 KiB or more; 0 to pass
    /// none on
    #[arg(long, value_name = "SIZE", default_value_t = SHARE_DEFAULT, value_parser = share)]
    pub share: ByteSize,
    /// Average parts for the run's backbones, with so many bytes a second each way, 64 KiB or more, or as many as are
    /// measured; for a run that allows it ([aggregators] reducers), on a machine that the backbones can dial
    #[arg(long, value_name = "SIZE|auto", value_parser = speed)]
    pub reduce: Option<LinkSpeed>,
    /// Where to listen for peers that want shards and for backbones, instead of ports of the system's choice; may be repeated
    #[arg(long, value_name = "MULTIADDR")]
    pub listen: Vec<Multiaddr>,
    /// A relay to be met at by peers that want shards, where they cannot dial this machine; may be repeated
    #[arg(long, value_name = "MULTIADDR")]
    pub relay: Vec<Multiaddr>,
    /// Where to keep shards, instead of the user's cache folder
    #[arg(long, value_name = "DIR")]
    pub cache: Option<PathBuf>,
    /// How much of them to keep
    #[arg(long, value_name = "SIZE", default_value_t = CACHE_SIZE_DEFAULT)]
    pub cache_size: ByteSize,
}

/// `barnraise progress`
#[derive(Debug, Args)]
pub struct ProgressArgs {
    /// Any peer of the DHT, such as a relay: a libp2p multiaddress with a peer id
    pub address: Multiaddr,
    /// The run's id; with the key of its authority, nobody is shown but the authority and those that it names
    #[arg(long, value_name = "ID[@KEY]")]
    pub run: RunName,
}

/// Half of a slow home connection's uplink.
const SHARE_DEFAULT: ByteSize = ByteSize::kib(512);
/// Whoever gets less goes elsewhere.
const SHARE_MIN: ByteSize = ByteSize::kib(64);

fn throttle(text: &str) -> Result<Duty, String> {
    let percent: u8 = text.parse().map_err(|_| format!("want a whole number of percent, got {text}"))?;
    Duty::of_percent(percent).map_err(|error| error.to_string())
}

fn share(text: &str) -> Result<ByteSize, String> {
    let share: ByteSize = text.parse()?;
    match share.as_u64() == 0 || share >= SHARE_MIN {
        true => Ok(share),
        false => Err(format!("want 0 or {SHARE_MIN} at least, got {share}")),
    }
}

fn speed(text: &str) -> Result<LinkSpeed, String> {
    let speed: LinkSpeed = text.parse()?;
    match speed {
        LinkSpeed::Fixed(speed) if speed < SHARE_MIN => {
            Err(format!("want {SHARE_MIN} at least, got {speed}"))
        }
        speed => Ok(speed),
    }
}

/// Shards that a native peer keeps.
pub const CACHE_SIZE_DEFAULT: ByteSize = ByteSize::gib(2);

/// A run as it is looked for: by its id alone, or as the one whose authority has a certain key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunName {
    /// From its configuration.
    pub id: String,
    /// Who signs its tokens: `run.access.authority` of `/api/run`.
    pub authority: Option<PublicKey>,
}

impl FromStr for RunName {
    type Err = ParseKeyError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // No id has an @ in it.
        let (id, authority) = match text.rsplit_once('@') {
            Some((id, key)) => (id, Some(key.parse()?)),
            None => (text, None),
        };
        Ok(Self { id: id.to_owned(), authority })
    }
}

/// `barnraise relay`
#[derive(Debug, Args)]
pub struct RelayArgs {
    /// The relay, as in relay.example.toml
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
}

/// What is passed on when somebody is invited: an address, and perhaps the code of an invitation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinLink {
    /// Where.
    pub address: JoinAddress,
    /// From `#invitation=…`.
    pub invitation: Option<String>,
}

impl FromStr for JoinLink {
    type Err = JoinAddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (address, fragment) = text.split_once('#').unwrap_or((text, ""));
        let invitation = fragment.strip_prefix("invitation=").map(str::to_owned);
        Ok(Self { address: address.parse()?, invitation })
    }
}

/// `barnraise allow`
#[derive(Debug, Args)]
pub struct AllowArgs {
    /// What to do with the list.
    #[command(subcommand)]
    pub action: AllowAction,
}

/// What to do with the list.
#[derive(Debug, Subcommand)]
pub enum AllowAction {
    /// Put people on the list
    Add(WhoArgs),
    /// Take people off the list, and their access back
    Remove(WhoArgs),
    /// Show the list, and who has access now
    List(RunArgs),
}

/// A run on this machine.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// The run, as in run.example.toml
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
}

/// People of the run's identity provider.
#[derive(Debug, Args)]
pub struct WhoArgs {
    /// Of which run
    #[command(flatten)]
    pub run: RunArgs,
    /// What they are known by
    #[arg(long, default_value = "name")]
    pub by: IdentityKind,
    /// Who
    #[arg(required = true)]
    pub who: Vec<String>,
}

/// `barnraise invite`
#[derive(Debug, Args)]
pub struct InviteArgs {
    /// To which run
    #[command(flatten)]
    pub run: RunArgs,
    /// How many peers may come with it: 1, or 40 to a room, where this is not given
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub uses: Option<u32>,
    /// For how long: 7d, or 8h to a room, where this is not given
    #[arg(long, value_name = "DURATION", value_parser = access::command::duration)]
    pub expires: Option<Duration>,
    /// Print the short code of a room, to be typed on the page, in place of a link
    #[arg(long)]
    pub room: bool,
}

/// `barnraise revoke`
#[derive(Debug, Args)]
pub struct RevokeArgs {
    /// To which run
    #[command(flatten)]
    pub run: RunArgs,
    /// End the invitations that they came with, too
    #[arg(long)]
    pub with_invitation: bool,
    /// The peer id, or the user name
    pub who: String,
}

/// `barnraise receipts`
#[derive(Debug, Args)]
pub struct ReceiptsArgs {
    /// As `barnraise join --receipts` writes it
    pub file: PathBuf,
}

/// `barnraise evidence`
#[derive(Debug, Args)]
pub struct EvidenceArgs {
    /// The run: the address of its page, or a libp2p multiaddress with a peer id
    pub address: JoinLink,
    /// The run's id, where the address is of another peer of the DHT
    #[arg(long, value_name = "ID[@KEY]")]
    pub run: Option<RunName>,
    /// What to compute on
    #[arg(long, default_value = "cpu")]
    pub device: Device,
    /// How far a gradient may be from the recomputed one, as a part of its length
    #[arg(long, default_value_t = 0.05)]
    pub tolerance: f32,
}

/// How a run is found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JoinAddress {
    /// `http://` or `https://`: its `/api/run` lists the multiaddresses. Without a slash at its end.
    Page(String),
    /// A multiaddress, dialled as it is.
    Peer(Multiaddr),
}

/// Not an address that can be joined.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "an address like http://host:8080 or /ip4/192.0.2.1/tcp/4001/p2p/12D3… is wanted, got {got:?} ({why})"
)]
pub struct JoinAddressError {
    got: String,
    why: String,
}

impl FromStr for JoinAddress {
    type Err = JoinAddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = |why: String| JoinAddressError { got: text.chars().take(200).collect(), why };
        if text.starts_with('/') {
            let address: Multiaddr =
                text.parse().map_err(|why: libp2p::multiaddr::Error| error(why.to_string()))?;
            return match address.iter().last() {
                Some(Protocol::P2p(_)) => Ok(Self::Peer(address)),
                _ => Err(error("it does not end with /p2p/ and a peer id".into())),
            };
        }
        let uri: Uri = text.parse().map_err(|why: axum::http::uri::InvalidUri| error(why.to_string()))?;
        match (uri.scheme_str(), uri.host()) {
            (Some("http" | "https"), Some(host)) if !host.is_empty() => {
                Ok(Self::Page(text.trim_end_matches('/').to_owned()))
            }
            _ => Err(error("neither a multiaddress nor http:// or https:// with a host".into())),
        }
    }
}

impl ServeArgs {
    /// The configuration of each run: from its file or the defaults, then what the command line says.
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use std::path::Path;

    use clap::CommandFactory;

    use super::*;

    fn serve(args: &[&str]) -> Result<ServeArgs, clap::Error> {
        match Cli::try_parse_from([&["barnraise", "serve"], args].concat())?.command {
            Command::Serve(args) => Ok(args),
            _ => panic!("serve was asked for"),
        }
    }

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_run_is_operated_by_its_file_or_by_address_and_token() {
        let good = |args: &[&str]| Cli::try_parse_from([&["barnraise"][..], args].concat()).is_ok();
        assert!(good(&["run", "show", "--config", "run.toml"]));
        assert!(good(&["run", "pause", "--reason", "r", "--url", "http://h", "--token-file", "t"]));
        assert!(good(&["peers", "block", "12D3KooW", "--reason", "r", "--config", "run.toml", "--json"]));
        assert!(good(&["peers", "hide", "12D3KooW", "--config", "run.toml"]));
        assert!(!good(&["peers", "unhide", "--config", "run.toml"]), "without a peer");
        assert!(!good(&["run", "show"]));
        assert!(!good(&["run", "show", "--url", "http://h"]), "without a token");
        assert!(!good(&["run", "pause", "--config", "run.toml"]), "without a reason");
    }

    #[test]
    fn a_run_is_a_file_or_dev_and_not_both() {
        assert!(serve(&[]).is_err());
        assert!(serve(&["--dev", "--config", "x"]).is_err());
        assert!(serve(&["--config", "does-not-exist.toml"]).unwrap().configs().is_err());
    }

    #[test]
    fn several_runs_are_served_by_one_process() {
        let args = serve(&["--config", "a.toml", "--config", "b.toml"]).unwrap();
        assert_eq!(args.config, [Path::new("a.toml"), Path::new("b.toml")]);
        let folder = tempfile::tempdir().unwrap();
        let files: Vec<String> = ["a", "b"]
            .map(|id| {
                let path = folder.path().join(format!("{id}.toml"));
                std::fs::write(&path, format!("[run]\nid = \"{id}\"")).unwrap();
                path.display().to_string()
            })
            .into();
        let configs = serve(&["--config", &files[0], "--config", &files[1], "--data-dir", "/d"]);
        let configs = configs.unwrap().configs().unwrap();
        let folders = configs.iter().map(|config| config.storage.folder.clone());
        assert!(folders.eq([Path::new("/d/a"), Path::new("/d/b")]));
    }

    #[test]
    fn the_command_line_wins_over_the_configuration() {
        let args = ["--dev", "--device", "wgpu", "--http", "127.0.0.1:0", "--data-dir", "/d"];
        let listen = ["--listen", "/ip4/127.0.0.1/tcp/0", "--listen", "/ip4/127.0.0.1/tcp/1"];
        let config = serve(&[&args[..], &listen].concat()).unwrap().configs().unwrap().remove(0);
        assert_eq!(config.device.kind, Device::Wgpu);
        assert_eq!(config.network.http.port(), 0);
        assert_eq!(config.network.listen.len(), 2);
        assert_eq!(config.data_cache(), Path::new("/d"));
        assert_eq!(config.storage.folder, Path::new("/d/fashion-mnist"));
        assert_eq!(serve(&["--dev"]).unwrap().configs().unwrap(), [RunConfig::dev(&cache_folder())]);
    }

    #[test]
    fn a_run_is_named_by_its_id_and_perhaps_by_its_authority() {
        let key = PublicKey([0xab; 32]);
        let named = |authority| RunName { id: "a-run".into(), authority };
        assert_eq!("a-run".parse(), Ok(named(None)));
        assert_eq!(format!("a-run@{key}").parse(), Ok(named(Some(key))));
        let error = "a-run@abab".parse::<RunName>().unwrap_err().to_string();
        assert!(error.contains("64 hexadecimal digits"), "{error}");
    }

    #[test]
    fn a_run_is_joined_by_page_or_by_multiaddress() {
        let parse = |text: &str| text.parse::<JoinAddress>();
        assert_eq!(parse("http://127.0.0.1:8080/"), Ok(JoinAddress::Page("http://127.0.0.1:8080".into())));
        let address = "/ip4/127.0.0.1/tcp/4001/p2p/12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN";
        assert_eq!(parse(address), Ok(JoinAddress::Peer(address.parse().unwrap())));
        for wrong in [
            "",
            "/ip4/127.0.0.1/tcp/4001",
            "127.0.0.1:8080",
            "ftp://host/",
            "http://",
            "/ip4/127.0.0.1/nonsense",
            "host",
        ] {
            let error = parse(wrong).unwrap_err().to_string();
            assert!(error.contains(&format!("{wrong:?}")), "{error}");
        }
        let cli =
            Cli::try_parse_from(["barnraise", "join", "https://h", "--device", "cuda", "--samples", "9"]);
        let Command::Join(args) = cli.unwrap().command else { panic!("join was asked for") };
        assert_eq!((args.device, args.samples), (Device::Cuda, Some(9)));
        assert_eq!((args.share, args.cache_size), (SHARE_DEFAULT, CACHE_SIZE_DEFAULT));
        let cli =
            Cli::try_parse_from(["barnraise", "join", "https://h", "--share", "0", "--cache-size", "5GiB"]);
        let Command::Join(args) = cli.unwrap().command else { panic!("join was asked for") };
        assert_eq!((args.share, args.cache_size), (ByteSize(0), ByteSize::gib(5)));
        assert!(Cli::try_parse_from(["barnraise", "join", "https://h", "--share", "63KiB"]).is_err());
        let cli = Cli::try_parse_from(["barnraise", "join", "https://h", "--reduce", "12MiB"]);
        let Command::Join(args) = cli.unwrap().command else { panic!("join was asked for") };
        assert_eq!(args.reduce, Some(LinkSpeed::Fixed(ByteSize::mib(12))));
        let cli = Cli::try_parse_from(["barnraise", "join", "https://h", "--reduce", "auto"]);
        let Command::Join(args) = cli.unwrap().command else { panic!("join was asked for") };
        assert_eq!(args.reduce, Some(LinkSpeed::Auto));
        for wrong in ["0", "fast"] {
            assert!(Cli::try_parse_from(["barnraise", "join", "https://h", "--reduce", wrong]).is_err());
        }

        let cli = Cli::try_parse_from(["barnraise", "join", "https://h", "--throttle", "20"]);
        let Command::Join(args) = cli.unwrap().command else { panic!("join was asked for") };
        assert_eq!(args.throttle.percent(), 20);
        for nonsense in ["4", "101", "half", "-5", "256"] {
            let throttle = format!("--throttle={nonsense}");
            assert!(
                Cli::try_parse_from(["barnraise", "join", "https://h", &throttle]).is_err(),
                "{nonsense}"
            );
        }
        assert_eq!(args.precision, Precision::F32);
        let cli = Cli::try_parse_from(["barnraise", "join", "https://h", "--precision", "mixed"]);
        let Command::Join(args) = cli.unwrap().command else { panic!("join was asked for") };
        assert_eq!(args.precision, Precision::Mixed);
    }

    #[test]
    fn the_link_of_an_invitation_is_an_address_with_its_code() {
        let link: JoinLink = "http://h:1/#invitation=abc".parse().unwrap();
        assert_eq!(link.address, JoinAddress::Page("http://h:1".into()));
        assert_eq!(link.invitation.as_deref(), Some("abc"));
        let link: JoinLink = "https://h/run/a-run/#invitation=abc".parse().unwrap();
        assert_eq!(link.address, JoinAddress::Page("https://h/run/a-run".into()), "one run of several");
        assert_eq!(link.invitation.as_deref(), Some("abc"));
        let plain: JoinLink =
            "/ip4/127.0.0.1/tcp/1/p2p/12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN".parse().unwrap();
        assert_eq!(plain.invitation, None);
        let run = ["--config", "run.toml"];
        for (args, is_good) in [
            (&["invite", "--uses", "0"][..], false),
            (&["invite", "--expires", "0s"], false),
            (&["invite", "--uses", "3", "--expires", "12h"], true),
            (&["invite", "--room"], true),
            (&["invite", "--room", "--uses", "3"], true),
            (&["allow", "add"], false),
            (&["allow", "add", "--by", "email", "a@b"], true),
            (&["allow", "list"], true),
            (&["revoke", "alice", "--with-invitation"], true),
        ] {
            let parsed = Cli::try_parse_from([&["barnraise"], args, &run].concat());
            assert_eq!(parsed.is_ok(), is_good, "{args:?}");
        }
    }
}
