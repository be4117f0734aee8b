//! Arguments of the commands of a participant, and the addresses at which it finds a run.

mod hosting;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use axum::http::Uri;
use barnraise_protocol::DisplayName;
use barnraise_protocol::access::{ParseKeyError, PublicKey};
use barnraise_protocol::run::RunDescription;
use barnraise_swarm::pacing::{Duty, DutyError};
use bytesize::ByteSize;
use clap::Args;
use libp2p::Multiaddr;
use libp2p::multiaddr::Protocol;

pub use self::hosting::{ExpertsArgs, HostArgs, HostTarget, HostVerb, OPERATOR_DEFAULT};
use crate::config::{Device, LinkSpeed, LinkSpeedError, Precision};

/// `barnraise join`
#[derive(Debug, Args)]
pub struct JoinArgs {
    /// The run: the address of its page, an invitation's link, or a libp2p multiaddress with a peer id
    pub address: JoinLink,
    /// The run's id, where the address is of another peer of the DHT, such as a relay; with the key of its
    /// authority, no other run is accepted
    #[arg(long, value_name = "ID[@KEY]")]
    pub run: Option<RunName>,
    /// The code of an invitation, where the address is no link with it; or the short code of a room, such as K7M-4PQ
    #[arg(long, value_name = "CODE")]
    pub invitation: Option<String>,
    /// Device to compute on
    #[arg(long, default_value = "cpu")]
    pub device: Device,
    /// Precision to compute in; `f16` and `bf16` are for devices with fast half precision
    #[arg(long, default_value = "f32")]
    pub precision: Precision,
    /// Share of the time in which to compute, 5 to 100; the device is idle otherwise
    #[arg(long, value_name = "PERCENT", default_value = "100", value_parser = throttle)]
    pub throttle: Duty,
    /// Key file, so that this machine is the same peer each time; created if it is missing
    #[arg(long, value_name = "FILE")]
    pub identity: Option<PathBuf>,
    /// Append the receipts of accepted contributions to this file, a line each
    #[arg(long, value_name = "FILE")]
    pub receipts: Option<PathBuf>,
    /// Train on data of your own, which never leave this machine, in a run without a server ([scheme.sampled]): a folder with a
    /// folder of pictures for each class; a CSV or Parquet file with the columns of the run, such as ratings; a text; or a folder of such
    #[arg(long, value_name = "PATH")]
    pub data: Option<PathBuf>,
    /// Evaluate the newest model of a run without a server ([scheme.sampled]) on samples of your own that nobody trains on, in the forms
    /// of --data: pictures, a table or a text; the page of --page shows how good it is
    #[arg(long, value_name = "PATH")]
    pub test: Option<PathBuf>,
    /// Show the page of a run without a server ([scheme.sampled]) at this address, too, and keep all of its data: who comes later
    /// finds the run here, also where the one that began it is gone
    #[arg(long, value_name = "HOST:PORT")]
    pub page: Option<SocketAddr>,
    /// Name on the leaderboard: 1 to 32 characters
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
    /// Address to listen at for other peers and for backbones, instead of ports of the system's choice; may be repeated
    #[arg(long, value_name = "MULTIADDR")]
    pub listen: Vec<Multiaddr>,
    /// A relay at which peers that want shards meet this machine, to connect directly then; may be repeated
    #[arg(long, value_name = "MULTIADDR")]
    pub relay: Vec<Multiaddr>,
    /// Host so many experts of the run's model beside, as `barnraise experts` does: a peer of its own, with its key and its
    /// experts in a folder
    #[arg(long, value_name = "N")]
    pub host_experts: Option<usize>,
    /// Folder for shards, and below it for access tokens and experts, instead of the user's cache folder
    #[arg(long, value_name = "DIR")]
    pub cache: Option<PathBuf>,
    /// How much disk space they may take
    #[arg(long, value_name = "SIZE", default_value_t = CACHE_SIZE_DEFAULT)]
    pub cache_size: ByteSize,
}

/// `barnraise progress`
#[derive(Debug, Args)]
pub struct ProgressArgs {
    /// Any peer of the DHT, such as a relay: a libp2p multiaddress with a peer id
    pub address: Multiaddr,
    /// The run's id; with the key of its authority, only the authority and the backbones that it names are shown
    #[arg(long, value_name = "ID[@KEY]")]
    pub run: RunName,
}

/// Half of a slow home connection's uplink.
pub(crate) const SHARE_DEFAULT: ByteSize = ByteSize::kib(512);
/// Least upload rate: a peer that receives less asks another holder.
const SHARE_MIN: ByteSize = ByteSize::kib(64);

/// Why the value of an option is refused.
#[derive(Debug, thiserror::Error)]
enum OptionError {
    #[error("want a whole number of percent, got {0}")]
    Percent(String),
    #[error(transparent)]
    Duty(#[from] DutyError),
    /// In the words of `bytesize`, which has no other error.
    #[error("{0}")]
    Size(String),
    #[error(transparent)]
    LinkSpeed(#[from] LinkSpeedError),
    #[error("want 0 or {SHARE_MIN} at least, got {0}")]
    Share(ByteSize),
    #[error("want {SHARE_MIN} at least, got {0}")]
    Speed(ByteSize),
    #[error("want 0 or more, and below 1, got {0}")]
    Tolerance(String),
}

fn throttle(text: &str) -> Result<Duty, OptionError> {
    let percent: u8 = text.parse().map_err(|_| OptionError::Percent(text.to_owned()))?;
    Ok(Duty::of_percent(percent)?)
}

fn share(text: &str) -> Result<ByteSize, OptionError> {
    let share: ByteSize = text.parse().map_err(OptionError::Size)?;
    match share.as_u64() == 0 || share >= SHARE_MIN {
        true => Ok(share),
        false => Err(OptionError::Share(share)),
    }
}

fn speed(text: &str) -> Result<LinkSpeed, OptionError> {
    let speed: LinkSpeed = text.parse()?;
    match speed {
        LinkSpeed::Fixed(speed) if speed < SHARE_MIN => Err(OptionError::Speed(speed)),
        speed => Ok(speed),
    }
}

/// As that of a backbone, `recomputation.tolerance`.
fn tolerance(text: &str) -> Result<f32, OptionError> {
    let tolerance = text.parse::<f32>().ok().filter(|tolerance| (0.0..1.0).contains(tolerance));
    tolerance.ok_or_else(|| OptionError::Tolerance(text.to_owned()))
}

/// Default size of a native peer's shard cache.
pub const CACHE_SIZE_DEFAULT: ByteSize = ByteSize::gib(2);

/// A run to search for: any with this id, or the one whose authority has this key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunName {
    /// Id of the run.
    pub id: String,
    /// Key of its authority: `run.access.authority` of `/api/run`.
    pub authority: Option<PublicKey>,
}

impl RunName {
    /// Whether a run says that it is this one: that of this authority, where one is named.
    pub(crate) fn is_of(&self, run: &RunDescription) -> bool {
        self.id == run.identity.run_id && self.authority.is_none_or(|key| key == run.access.authority)
    }
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

/// `barnraise receipts`
#[derive(Debug, Args)]
pub struct ReceiptsArgs {
    /// The file, as `barnraise join --receipts` writes it
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
    /// Device to compute on
    #[arg(long, default_value = "cpu")]
    pub device: Device,
    /// Largest distance of a gradient from the recomputed one, relative to its norm
    #[arg(long, default_value_t = 0.05, value_parser = tolerance)]
    pub tolerance: f32,
}

/// An address to join, with the code of an invitation where the link has one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinLink {
    /// Address of the run.
    pub address: JoinAddress,
    /// From `#invitation=…`.
    pub invitation: Option<String>,
}

impl FromStr for JoinLink {
    type Err = JoinAddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (address, fragment) = text.split_once('#').unwrap_or((text, ""));
        let address = address.parse()?;
        let invitation = match fragment.strip_prefix("invitation=") {
            Some(code) if !code.is_empty() => Some(code.to_owned()),
            None if fragment.is_empty() => None,
            _ => return Err(JoinAddressError::new(text, "after # only invitation=CODE is wanted".into())),
        };
        Ok(Self { address, invitation })
    }
}

/// The address of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JoinAddress {
    /// An `http://` or `https://` address, whose `/api/run` lists multiaddresses. Without a slash at its end.
    Page(String),
    /// A multiaddress, dialled directly.
    Peer(Multiaddr),
    /// The addresses of a backbone in this process.
    Here(Vec<Multiaddr>),
}

/// The text is no address that can be joined.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "an address like http://host:8080 or /ip4/192.0.2.1/tcp/4001/p2p/12D3… is wanted, got {got:?} ({why})"
)]
pub struct JoinAddressError {
    got: String,
    why: String,
}

impl JoinAddressError {
    fn new(text: &str, why: String) -> Self {
        Self { got: text.chars().take(200).collect(), why }
    }
}

impl FromStr for JoinAddress {
    type Err = JoinAddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = |why: String| JoinAddressError::new(text, why);
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
