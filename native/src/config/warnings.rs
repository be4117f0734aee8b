//! Warnings about a valid configuration that is probably not intended.
//!
//! Pure: files and the network are not looked at.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use libp2p::Multiaddr;
use libp2p::multiaddr::Protocol;

use super::RunConfig;
use barnraise_relay::IpNetwork;

/// A value that is probably not intended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    /// Section and key.
    pub key: &'static str,
    /// Its possible consequence.
    pub text: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.key, self.text)
    }
}

/// All warnings about a configuration.
#[must_use]
pub fn warnings(config: &RunConfig) -> Vec<Warning> {
    let parts = [
        page_of_contributors(config),
        contributors_of_page(config),
        page_without_certificate(config),
        proxies(config),
        operator(config),
        one_address_twice(config),
        password_in_the_file(config),
        database_in_the_clear(config),
        no_authority(config),
        config.scheme.warning(config).map(|(key, text)| (key, text.to_owned())),
    ];
    parts.into_iter().flatten().map(|(key, text)| Warning { key, text }).collect()
}

type MaybeWarning = Option<(&'static str, String)>;

fn page_of_contributors(config: &RunConfig) -> MaybeWarning {
    let network = &config.network;
    let is_alone =
        network.http.ip().is_loopback() && network.announce.is_empty() && config.access.page.is_none();
    (is_alone && network.listen.iter().any(is_from_elsewhere)).then(|| {
        let text = "contributors from elsewhere may come, and the page is for this machine only: put a proxy with a \
                    certificate before it, and name it in access.page";
        ("network.http", text.to_owned())
    })
}

fn contributors_of_page(config: &RunConfig) -> MaybeWarning {
    let network = &config.network;
    let is_closed = !network.listen.iter().any(is_from_elsewhere)
        && network.announce.is_empty()
        && network.relays.is_empty();
    let has_visitors = !network.http.ip().is_loopback() || config.access.page.is_some();
    (is_closed && has_visitors).then(|| {
        let text = "the page is for others, and only this machine can contribute: listen at /ip4/0.0.0.0/…";
        ("network.listen", text.to_owned())
    })
}

fn page_without_certificate(config: &RunConfig) -> MaybeWarning {
    let has_https = config.access.page.as_ref().is_some_and(|page| page.starts_with("https://"));
    (!config.network.http.ip().is_loopback() && !has_https).then(|| {
        let text = "over plain http:// browsers elsewhere have neither WebGPU nor WebTransport: put a proxy with a \
                    certificate before it, and name it in access.page";
        ("network.http", text.to_owned())
    })
}

fn proxies(config: &RunConfig) -> MaybeWarning {
    let proxies = &config.network.trusted_proxies;
    let has_https = config.access.page.as_ref().is_some_and(|page| page.starts_with("https://"));
    let text = if proxies.iter().any(IpNetwork::is_everybody) {
        "any client can forge X-Forwarded-For then, and no limit for an address holds"
    } else if has_https && proxies.is_empty() {
        "access.page has a certificate, so visitors come through a proxy, and it is not named: the limits for an address \
         are for none of them, or for all of them together"
    } else {
        return None;
    };
    Some(("network.trusted_proxies", text.to_owned()))
}

fn operator(config: &RunConfig) -> MaybeWarning {
    let operator = config.network.operator?;
    if is_same_socket(operator, config.network.http) {
        let text = format!("{operator} is the address of the page: one of them cannot be served");
        return Some(("network.operator", text));
    }
    (!is_inside(operator.ip())).then(|| {
        let text = format!(
            "everybody who can reach {operator} reads it without a password, and the token of /admin comes as plain \
             HTTP: keep it inside"
        );
        ("network.operator", text)
    })
}

fn one_address_twice(config: &RunConfig) -> MaybeWarning {
    let mut sockets: BTreeMap<(bool, u16), &Multiaddr> = BTreeMap::new();
    config.network.listen.iter().find_map(|address| {
        let port = port(address).filter(|(_, port)| *port != 0)?;
        let other = sockets.insert(port, address)?;
        // Each IP address of this machine has its own ports.
        (other.iter().next() == address.iter().next())
            .then(|| ("network.listen", format!("{other} and {address} are one port")))
    })
}

fn password_in_the_file(config: &RunConfig) -> MaybeWarning {
    let database = config.contributions.database.as_ref()?;
    let user = database.split_once("://")?.1.split_once('@')?.0;
    user.contains(':').then(|| {
        let text = "it contains a password, which every reader of this file has then. Put the address into a file of \
                    its own, named by BARNRAISE__CONTRIBUTIONS__DATABASE_FILE";
        ("contributions.database", text.to_owned())
    })
}

/// Encryption alone is not enough: without `verify-full` a machine in between may answer as the server.
fn database_in_the_clear(config: &RunConfig) -> MaybeWarning {
    let database = config.contributions.database.as_ref()?;
    let place = database.split_once("://")?.1;
    let place = place.rsplit_once('@').map_or(place, |(_, place)| place);
    let is_here =
        ["localhost", "127.", "[::1]", "%2F", "%2f", "/"].iter().any(|here| place.starts_with(here));
    (!is_here && !place.contains("sslmode=verify-full")).then(|| {
        let text = "the server is on another machine, and a machine in between may read along or answer in its place: \
                    end the address with ?sslmode=verify-full, and &sslrootcert=FILE where its certificate is of an \
                    authority of your own";
        ("contributions.database", text.to_owned())
    })
}

/// The authority's own file cannot be told from those of the others: it may name itself.
fn no_authority(config: &RunConfig) -> MaybeWarning {
    let has_others = !config.aggregators.peers.is_empty();
    (has_others && config.access.authority.is_none()).then(|| {
        let text = "the run has several backbones, and this one is the authority, which the others have to name: where \
                    each is its own, `--run` finds several runs of one name, and a peer that one lets in is a stranger to \
                    the others";
        ("access.authority", text.to_owned())
    })
}

/// Whether it is an address that other machines may reach.
pub(super) fn is_from_elsewhere(address: &Multiaddr) -> bool {
    match address.iter().next() {
        Some(Protocol::Ip4(ip)) => !ip.is_loopback(),
        Some(Protocol::Ip6(ip)) => !ip.is_loopback(),
        _ => true,
    }
}

/// UDP or not, and the port.
fn port(address: &Multiaddr) -> Option<(bool, u16)> {
    address.iter().find_map(|part| match part {
        Protocol::Udp(port) => Some((true, port)),
        Protocol::Tcp(port) => Some((false, port)),
        _ => None,
    })
}

fn is_same_socket(one: SocketAddr, other: SocketAddr) -> bool {
    let is_same_host = one.ip() == other.ip() || one.ip().is_unspecified() || other.ip().is_unspecified();
    one.port() != 0 && one.port() == other.port() && is_same_host
}

fn is_inside(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_loopback() || ip.is_private() || ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_loopback() || ip.is_unique_local() || ip.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::config::AggregationKind;

    /// Address of another backbone.
    const OTHER: &str = "/ip4/192.0.2.1/tcp/4001/p2p/12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN";

    fn keys(change: impl FnOnce(&mut RunConfig)) -> Vec<&'static str> {
        let mut config = RunConfig::default();
        change(&mut config);
        warnings(&config).iter().map(|warning| warning.key).collect()
    }

    #[test]
    fn the_defaults_give_no_warnings() {
        assert_eq!(keys(|_| ()), [""; 0]);
    }

    #[test]
    fn a_complete_public_run_gives_no_warnings() {
        let warned = keys(|config| {
            config.network.listen = vec!["/ip4/0.0.0.0/udp/4001/quic-v1".parse().unwrap()];
            config.access.page = Some("https://barn.example".into());
            config.network.trusted_proxies = vec!["127.0.0.1".parse().unwrap()];
            config.network.operator = Some("10.0.0.1:8082".parse().unwrap());
        });
        assert_eq!(warned, [""; 0]);
    }

    #[test]
    fn an_authenticated_or_local_database_gives_no_warning() {
        for good in [
            "postgres://barn@db.example/runs?sslmode=verify-full",
            "postgres://barn@db.example/runs?sslrootcert=/ca.pem&sslmode=verify-full",
            "postgres://barn@localhost:5433/runs",
            "postgres://barn@%2Frun%2Fpostgresql/runs",
        ] {
            assert_eq!(keys(|c| c.contributions.database = Some(good.into())), [""; 0], "{good}");
        }
    }

    #[test]
    fn several_backbones_with_one_authority_give_no_warning() {
        let warned = keys(|config| {
            config.aggregators.peers = vec![OTHER.parse().unwrap()];
            config.access.authority = Some(OTHER.parse().unwrap());
        });
        assert_eq!(warned, [""; 0]);
    }

    #[test]
    fn what_is_half_public_gives_a_warning() {
        type WarningTrigger = fn(&mut RunConfig);
        let cases: [(&str, WarningTrigger); 12] = [
            ("network.http", |c| c.network.listen = vec!["/ip4/0.0.0.0/tcp/4001".parse().unwrap()]),
            ("network.listen", |c| {
                c.access.page = Some("https://barn.example".into());
                c.network.trusted_proxies = vec!["127.0.0.1".parse().unwrap()];
            }),
            ("network.trusted_proxies", |c| {
                c.network.listen = vec!["/ip4/0.0.0.0/tcp/4001".parse().unwrap()];
                c.access.page = Some("https://barn.example".into());
            }),
            ("network.trusted_proxies", |c| {
                c.network.trusted_proxies = vec!["10.0.0.0/8".parse().unwrap(), "::/0".parse().unwrap()];
            }),
            ("network.http", |c| {
                c.network.http = "0.0.0.0:8080".parse().unwrap();
                c.network.listen = vec!["/ip4/0.0.0.0/tcp/4001".parse().unwrap()];
            }),
            ("network.operator", |c| c.network.operator = Some("0.0.0.0:8082".parse().unwrap())),
            ("network.operator", |c| c.network.operator = Some("127.0.0.1:8080".parse().unwrap())),
            ("network.listen", |c| c.network.listen.push("/ip4/127.0.0.1/tcp/4001/ws".parse().unwrap())),
            ("contributions.database", |c| {
                c.contributions.database = Some("postgres://barn:secret@127.0.0.1/runs".into());
            }),
            ("contributions.database", |c| {
                c.contributions.database = Some("postgres://barn@db.example/runs?sslmode=require".into());
            }),
            ("access.authority", |c| c.aggregators.peers = vec![OTHER.parse().unwrap()]),
            ("scheme.synchronous.aggregation", |c| {
                c.synchronous_mut().unwrap().aggregation = AggregationKind::CenteredClip;
            }),
        ];
        for (key, change) in cases {
            assert_eq!(keys(change), [key]);
        }
    }
}
