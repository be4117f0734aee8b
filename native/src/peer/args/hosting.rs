//! Arguments of `barnraise experts`: those of a host that is started, and those of its operator.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use humantime_serde::re::humantime::parse_duration;
use libp2p::{Multiaddr, PeerId};

use super::{JoinLink, RunName};
use crate::config::Device;

/// Where a host serves its operator, if nobody says so: for commands on this machine.
pub const OPERATOR_DEFAULT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// `barnraise experts`
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct ExpertsArgs {
    /// The host to start.
    #[command(flatten)]
    pub host: Option<HostArgs>,
    /// What to do with one that runs.
    #[command(subcommand)]
    pub verb: Option<HostVerb>,
}

/// A host to start.
#[derive(Debug, Args)]
pub struct HostArgs {
    /// The run: the address of its page, an invitation's link, or a libp2p multiaddress with a peer id
    pub address: JoinLink,
    /// The run's id, where the address is of another peer of the DHT, such as a relay; with the key of its
    /// authority, no other run is accepted
    #[arg(long, value_name = "ID[@KEY]")]
    pub run: Option<RunName>,
    /// The code of an invitation that lets this machine host, where the address is no link with it
    #[arg(long, value_name = "CODE")]
    pub invitation: Option<String>,
    /// How many experts to host: those in the folder first, then ones that nobody hosts
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub experts: usize,
    /// Device to compute on
    #[arg(long, default_value = "cpu")]
    pub device: Device,
    /// Folder for the experts and the key of this host, instead of one in the user's cache folder
    #[arg(long, value_name = "DIR")]
    pub folder: Option<PathBuf>,
    /// Key file, instead of the one in the folder
    #[arg(long, value_name = "FILE")]
    pub identity: Option<PathBuf>,
    /// Address to listen at for trainers, instead of ports of the system's choice; may be repeated
    #[arg(long, value_name = "MULTIADDR")]
    pub listen: Vec<Multiaddr>,
    /// A relay through which trainers reach this machine, if they cannot dial it; may be repeated
    #[arg(long, value_name = "MULTIADDR")]
    pub relay: Vec<Multiaddr>,
    /// Address of `/experts`, `/metrics` and `/healthz`, and of the commands below, which need the token in the folder
    #[arg(long, value_name = "ADDRESS", default_value_t = OPERATOR_DEFAULT)]
    pub operator: SocketAddr,
}

/// What to do with a host on this machine.
#[derive(Debug, Subcommand)]
pub enum HostVerb {
    /// What a host on this machine serves
    Show(HostTarget),
    /// Hand the experts of a host over to others, a few at a time, and end it
    Drain {
        /// How long others may take: what nobody has by then stays on the disk, and with its keepers
        #[arg(long, value_name = "TIME", default_value = "5m", value_parser = parse_duration)]
        limit: Duration,
        /// The host.
        #[command(flatten)]
        target: HostTarget,
    },
    /// Hand one expert over to another host with room, and go on
    Move {
        /// Number of its layer
        layer: u16,
        /// Its place on the grid, such as 3.17
        uid: String,
        /// The host that is to have it, and has room; any host unless it is set, and where this one has not taken it after half a minute
        #[arg(long, value_name = "PEER")]
        to: Option<PeerId>,
        /// How long others may take: what nobody has by then stays here
        #[arg(long, value_name = "TIME", default_value = "5m", value_parser = parse_duration)]
        limit: Duration,
        /// The host.
        #[command(flatten)]
        target: HostTarget,
    },
    /// Let the experts of a layer make no more steps at this host, also after a restart: they answer, and pass gradients on
    Freeze {
        /// Number of the layer
        layer: u16,
        /// The host.
        #[command(flatten)]
        target: HostTarget,
    },
    /// Let them make steps again
    Unfreeze {
        /// Number of the layer
        layer: u16,
        /// The host.
        #[command(flatten)]
        target: HostTarget,
    },
}

/// The host, and the format of the output.
#[derive(Debug, Args)]
pub struct HostTarget {
    /// Folder of the host, instead of the one in the user's cache folder; that of a backbone is `hosting` in the run's folder
    #[arg(long, value_name = "DIR")]
    pub folder: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
