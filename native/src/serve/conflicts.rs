//! Conflicts between runs of one process: id, folder and ports must be different. Pure.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use libp2p::Multiaddr;
use libp2p::multiaddr::Protocol;

use crate::config::RunConfig;

/// Why two runs cannot be in one process.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RunConflict {
    /// They have the same id, which is their address on the page and in the DHT.
    #[error("two runs have the id `{id}`: each needs one of its own, see `id` in [run]")]
    Id {
        /// Id of both.
        id: String,
    },
    /// They have the same folder.
    #[error("the runs `{first}` and `{second}` both keep their state in {}: see `folder` in [storage]", folder.display())]
    Folder {
        /// The run that was named first.
        first: String,
        /// The other.
        second: String,
        /// Folder of both.
        folder: PathBuf,
    },
    /// They listen at the same port.
    #[error(
        "the runs `{first}` and `{second}` both want {transport} port {port}: see `listen` and `operator` in [network]"
    )]
    Port {
        /// The run that was named first.
        first: String,
        /// The other.
        second: String,
        /// Protocol of the port.
        transport: PortProtocol,
        /// Number of the port.
        port: u16,
    },
}

/// Protocol of a port: TCP and UDP ports with the same number do not conflict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortProtocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl std::fmt::Display for PortProtocol {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
        })
    }
}

/// Refuses runs of which two have the same id, folder or port. Only the first run's address of the page counts: the page
/// is served there.
///
/// # Errors
/// The first conflict.
pub fn check(configs: &[RunConfig]) -> Result<(), RunConflict> {
    for (idx, second) in configs.iter().enumerate() {
        for (first_idx, first) in configs[..idx].iter().enumerate() {
            pair(first, first_idx == 0, second)?;
        }
    }
    Ok(())
}

fn pair(first: &RunConfig, has_page: bool, second: &RunConfig) -> Result<(), RunConflict> {
    let ids = || (first.run.id.clone(), second.run.id.clone());
    if first.run.id == second.run.id {
        return Err(RunConflict::Id { id: first.run.id.clone() });
    }
    let folder = |config: &RunConfig| {
        let folder = &config.storage.folder;
        // A missing folder cannot be a link: its absolute path will do.
        folder.canonicalize().or_else(|_| std::path::absolute(folder)).unwrap_or_else(|_| folder.clone())
    };
    if folder(first) == folder(second) {
        let (first, second_id) = ids();
        return Err(RunConflict::Folder { first, second: second_id, folder: folder(second) });
    }
    let taken = ports(first, has_page);
    for (transport, address) in ports(second, false) {
        let is_same = |(other, at): &(PortProtocol, SocketAddr)| *other == transport && meets(*at, address);
        if taken.iter().any(is_same) {
            let (first, second) = ids();
            return Err(RunConflict::Port { first, second, transport, port: address.port() });
        }
    }
    Ok(())
}

fn meets(a: SocketAddr, b: SocketAddr) -> bool {
    let is_any = a.ip().is_unspecified() || b.ip().is_unspecified();
    a.port() == b.port() && (is_any || a.ip() == b.ip())
}

/// The fixed ports: not those of the system's choice (0).
fn ports(config: &RunConfig, has_page: bool) -> Vec<(PortProtocol, SocketAddr)> {
    let network = &config.network;
    let page = has_page.then_some(network.http);
    let http = page.into_iter().chain(network.operator).map(|address| (PortProtocol::Tcp, address));
    let listened = network.listen.iter().filter_map(listened);
    http.chain(listened).filter(|(_, address)| address.port() != 0).collect()
}

fn listened(address: &Multiaddr) -> Option<(PortProtocol, SocketAddr)> {
    let mut parts = address.iter();
    let ip: IpAddr = match parts.next()? {
        Protocol::Ip4(ip) => ip.into(),
        Protocol::Ip6(ip) => ip.into(),
        _ => return None,
    };
    match parts.next()? {
        Protocol::Tcp(port) => Some((PortProtocol::Tcp, SocketAddr::new(ip, port))),
        Protocol::Udp(port) => Some((PortProtocol::Udp, SocketAddr::new(ip, port))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn config(id: &str, listen: &[&str]) -> RunConfig {
        let mut config = RunConfig::default();
        config.run.id = id.into();
        config.storage.folder = format!("/runs/{id}").into();
        config.network.listen = listen.iter().map(|address| address.parse().unwrap()).collect();
        config
    }

    #[test]
    fn what_two_runs_share_is_named() {
        let a = config("a", &["/ip4/0.0.0.0/udp/4001/quic-v1", "/ip4/127.0.0.1/tcp/4001"]);
        let clash = |second: &RunConfig| check(&[config("z", &[]), a.clone(), second.clone()]);
        assert_eq!(clash(&config("b", &["/ip4/127.0.0.1/udp/4002/quic-v1"])), Ok(()));
        assert_eq!(clash(&a), Err(RunConflict::Id { id: "a".into() }));
        let mut same = config("b", &[]);
        same.storage.folder = "/runs/a".into();
        assert!(
            matches!(clash(&same), Err(RunConflict::Folder { first, second, .. }) if first == "a" && second == "b")
        );
        let port = |listen| clash(&config("b", &[listen]));
        let want =
            |transport| RunConflict::Port { first: "a".into(), second: "b".into(), transport, port: 4001 };
        assert_eq!(port("/ip4/192.0.2.1/udp/4001/quic-v1/webtransport"), Err(want(PortProtocol::Udp)));
        assert_eq!(port("/ip4/127.0.0.1/tcp/4001/ws"), Err(want(PortProtocol::Tcp)));
        assert_eq!(port("/ip4/192.0.2.1/tcp/4001"), Ok(()), "another address of this machine");
        assert_eq!(port("/ip4/127.0.0.1/tcp/0"), Ok(()), "of the system's choice");
        let mut operator = config("b", &[]);
        operator.network.operator = Some("127.0.0.1:4001".parse().unwrap());
        assert_eq!(clash(&operator), Err(want(PortProtocol::Tcp)));
    }

    #[test]
    fn only_the_first_run_takes_the_port_of_the_page() {
        let (mut first, second) = (config("a", &[]), config("b", &["/ip4/127.0.0.1/tcp/8080"]));
        first.network.http = "127.0.0.1:8080".parse().unwrap();
        assert!(matches!(check(&[first.clone(), second.clone()]), Err(RunConflict::Port { port: 8080, .. })));
        let mut second_page = config("b", &[]);
        second_page.network.http = first.network.http;
        assert_eq!(check(&[first, second_page]), Ok(()));
    }
}
