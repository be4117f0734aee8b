//! Networks in namespaces of the kernel: a bit of internet with hosts behind routers that translate addresses.
//!
//! Needs root, iproute2 and nftables; [`Internet::new`] says what is missing. Everything it made is gone when
//! it is dropped.

use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tempfile::TempDir;

/// What a router makes of the ports of the hosts behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nat {
    /// The port stays (`snat to`): a peer that is dialled back at the same time gets through.
    KeepsPorts,
    /// Another, unpredictable port for each connection (`masquerade random,fully-random`).
    RandomPorts,
}

/// Of the public addresses: unassigned, and on no list of special ones, which gateways and peers do not believe.
const PUBLIC: &str = "192.0.1";
/// How the names of namespaces begin; the id of the process that made it follows in hexadecimal.
const NAMESPACE: &str = "barnraise-";
/// The same of the tests' ends of windows.
const WINDOW: &str = "bw";
/// Port at which a gateway takes UPnP requests.
const GATEWAY_PORT: u16 = 5000;
/// The daemon of `miniupnpd-nftables`.
const GATEWAY_PROGRAM: &str = "miniupnpd";

/// Public addresses on one wire, and routers on it.
#[derive(Debug)]
pub struct Internet {
    tag: String,
    n_routers: u8,
    namespaces: Vec<String>,
    windows: Vec<String>,
}

/// Whether [`Internet::gateway`] has its program.
#[must_use]
pub fn has_gateway_program() -> bool {
    run(GATEWAY_PROGRAM, &["--version"]).is_ok()
}

/// A network namespace: processes in it see its network and no other.
#[derive(Debug, Clone)]
pub struct LanHost {
    namespace: String,
    /// Of its one interface.
    pub address: String,
    /// The namespace of its router, where it has one, and that one's public address.
    router: Option<(String, String)>,
}

/// A router's daemon that passes ports on for those who ask (UPnP); ended when dropped.
#[derive(Debug)]
pub struct Gateway {
    /// What the outside sees.
    pub address: String,
    daemon: Child,
    _folder: TempDir,
}

impl Internet {
    /// An empty one.
    ///
    /// # Errors
    /// Why namespaces cannot be made here.
    pub fn new() -> Result<Self> {
        run("nft", &["--version"]).context("nftables is needed")?;
        remove_what_the_dead_left();
        let mut internet = Self {
            // Two tests of one process are in it at the same time.
            tag: format!("{:x}-{:x}", std::process::id(), next()),
            n_routers: 0,
            namespaces: Vec::new(),
            windows: Vec::new(),
        };
        let wire = internet.namespace("wire")?;
        ip(&["-n", &wire, "link", "add", "wan", "type", "bridge"])?;
        ip(&["-n", &wire, "link", "set", "wan", "up"])?;
        Ok(internet)
    }

    /// A host with a public address, `192.0.1.<last>`.
    ///
    /// # Errors
    /// What the kernel refused.
    pub fn public_host(&mut self, last: u8) -> Result<LanHost> {
        let namespace = self.namespace(&format!("p{last}"))?;
        let address = format!("{PUBLIC}.{last}");
        self.plug(&namespace, "eth0", &address)?;
        Ok(LanHost { namespace, address, router: None })
    }

    /// A public host sends and receives no faster than so many bits per second from now on (token buckets); a queue
    /// holds what is sent in `queued`, and what is more is lost.
    ///
    /// # Errors
    /// What the kernel refused.
    pub fn shape(&self, host: &LanHost, bits_per_s: u64, queued: Duration) -> Result<()> {
        let (rate, latency) = (format!("{bits_per_s}bit"), format!("{}ms", queued.as_millis()));
        let bucket = ["root", "tbf", "rate", &rate, "burst", "64kb", "latency", &latency];
        let limit = |namespace: &str, interface: &str| {
            within(namespace, &[&["tc", "qdisc", "add", "dev", interface], &bucket[..]].concat())
        };
        limit(&host.namespace, "eth0")?;
        limit(&self.namespaces[0], &port_to(&host.address))
    }

    /// A host behind a router of its own that lets nobody in.
    ///
    /// # Errors
    /// What the kernel refused.
    pub fn host_behind(&mut self, nat: Nat) -> Result<LanHost> {
        self.n_routers += 1;
        let n = self.n_routers;
        let router = self.namespace(&format!("r{n}"))?;
        let host = self.namespace(&format!("h{n}"))?;
        let (public, inside, address) =
            (format!("{PUBLIC}.{n}"), format!("10.{n}.0.1"), format!("10.{n}.0.2"));
        self.plug(&router, "wan", &public)?;
        ip(&[
            "link", "add", "lan", "netns", &router, "type", "veth", "peer", "name", "eth0", "netns", &host,
        ])?;
        up(&router, "lan", &inside)?;
        up(&host, "eth0", &address)?;
        ip(&["-n", &host, "route", "add", "default", "via", &inside])?;
        let translation = match nat {
            Nat::KeepsPorts => format!("snat to {public}"),
            Nat::RandomPorts => "masquerade random,fully-random".to_owned(),
        };
        within(&router, &["sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"])?;
        // What nobody asked for is dropped in silence: an answer would end the dial from the other side.
        let rules = format!(
            "table ip r {{
                chain out {{ type nat hook postrouting priority srcnat; oifname wan {translation}; }}
                chain through {{ type filter hook forward priority filter; policy drop;
                    ct state established,related accept; iifname lan accept;
                    ct status dnat accept; }}
                chain to {{ type filter hook input priority filter; policy drop;
                    ct state established,related accept; iifname lan accept; iifname lo accept; }}
            }}"
        );
        within(&router, &["nft", &rules])?;
        Ok(LanHost { namespace: host, address, router: Some((router, public)) })
    }

    /// Connects the test itself with a host, and with nothing behind it; returns the host's address on that link.
    ///
    /// # Errors
    /// What the kernel refused.
    pub fn window(&mut self, host: &LanHost) -> Result<String> {
        // Of 198.18.0.0/15, four addresses that no other test has at the same time, in this process or another.
        let n = next();
        let quarter = (std::process::id() % 2048) * 16 + u32::from(n % 16);
        let network = u32::from(Ipv4Addr::new(198, 18, 0, 0)) + quarter * 4;
        let address = |last: u32| Ipv4Addr::from(network + last).to_string();
        // Names of interfaces have fifteen letters at most.
        let link = format!("{WINDOW}{:x}-{n:x}", std::process::id());
        let (ours, theirs) = (format!("{}/30", address(1)), address(2));
        ip(&["link", "add", &link, "type", "veth", "peer", "name", "window", "netns", &host.namespace])?;
        self.windows.push(link.clone());
        ip(&["addr", "add", &ours, "dev", &link])?;
        ip(&["link", "set", &link, "up"])?;
        ip(&["-n", &host.namespace, "addr", "add", &format!("{theirs}/30"), "dev", "window"])?;
        ip(&["-n", &host.namespace, "link", "set", "window", "up"])?;
        Ok(theirs)
    }

    /// The router of a host passes ports on from now on, if it is asked.
    ///
    /// # Errors
    /// What keeps the daemon from starting.
    pub fn gateway(&self, host: &LanHost) -> Result<Gateway> {
        let (router, address) = host.router.clone().context("the host has no router")?;
        // The daemon only adds rules to chains that are there.
        let chains = "table inet upnp {
            chain through { }
            chain to_inside { }
            chain to_outside { }
            chain prerouting { type nat hook prerouting priority dstnat; jump to_inside; }
            chain postrouting { type nat hook postrouting priority srcnat; jump to_outside; }
        }";
        within(&router, &["nft", chains])?;
        let folder = tempfile::tempdir()?;
        let config = folder.path().join("gateway.conf");
        let settings = format!(
            "ext_ifname=wan\nlistening_ip=lan\nport={GATEWAY_PORT}\nenable_upnp=yes\nenable_natpmp=no\n\
             secure_mode=yes\nupnp_table_name=upnp\nupnp_nat_table_name=upnp\nupnp_forward_chain=through\n\
             upnp_nat_chain=to_inside\nupnp_nat_postrouting_chain=to_outside\n\
             uuid=00000000-0000-4000-8000-000000000001\n\
             allow 1024-65535 10.0.0.0/8 1024-65535\ndeny 0-65535 0.0.0.0/0 0-65535\n"
        );
        std::fs::write(&config, settings)?;
        let mut daemon = Command::new("ip");
        daemon.args(["netns", "exec", &router, GATEWAY_PROGRAM, "-d", "-f"]).arg(&config);
        daemon.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(Gateway { address, daemon: daemon.spawn()?, _folder: folder })
    }

    fn namespace(&mut self, name: &str) -> Result<String> {
        let namespace = format!("{NAMESPACE}{}-{name}", self.tag);
        ip(&["netns", "add", &namespace])?;
        self.namespaces.push(namespace.clone());
        ip(&["-n", &namespace, "link", "set", "lo", "up"])?;
        Ok(namespace)
    }

    /// Connects a namespace with the wire.
    fn plug(&self, namespace: &str, interface: &str, address: &str) -> Result<()> {
        let wire = &self.namespaces[0];
        let port = port_to(address);
        ip(&[
            "link", "add", &port, "netns", wire, "type", "veth", "peer", "name", interface, "netns",
            namespace,
        ])?;
        ip(&["-n", wire, "link", "set", &port, "master", "wan", "up"])?;
        up(namespace, interface, address)
    }
}

impl Drop for Internet {
    fn drop(&mut self) {
        // What is left behind is in nobody's way.
        for link in &self.windows {
            let _ = ip(&["link", "del", link]);
        }
        for namespace in &self.namespaces {
            let _ = ip(&["netns", "del", namespace]);
        }
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

impl LanHost {
    /// What to put before a command so that it runs there.
    pub fn prefix(&self) -> [&str; 4] {
        ["ip", "netns", "exec", &self.namespace]
    }

    /// Lets nobody in who was not asked.
    ///
    /// # Errors
    /// What the kernel refused.
    pub fn accept_nothing(&self) -> Result<()> {
        let rules = "table ip closed { chain to { type filter hook input priority filter; policy drop;
            ct state established,related accept; iifname lo accept; }; }";
        within(&self.namespace, &["nft", rules])
    }
}

/// A process that was killed removed nothing, and its windows would be in the way of another's.
fn remove_what_the_dead_left() {
    let is_of_the_dead = |name: &str, start: &str| {
        let maker = name.strip_prefix(start).and_then(|rest| rest.split('-').next());
        let maker = maker.and_then(|maker| u32::from_str_radix(maker, 16).ok());
        maker.is_some_and(|maker| !Path::new(&format!("/proc/{maker}")).exists())
    };
    let names_in = |folder: &str| {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().into_string().ok())
    };
    // Another test may remove the same.
    for link in names_in("/sys/class/net").filter(|name| is_of_the_dead(name, WINDOW)) {
        let _ = ip(&["link", "del", &link]);
    }
    for namespace in names_in("/run/netns").filter(|name| is_of_the_dead(name, NAMESPACE)) {
        let _ = ip(&["netns", "del", &namespace]);
    }
}

fn next() -> u8 {
    static NEXT: AtomicU8 = AtomicU8::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The wire's end of a host's cable.
fn port_to(address: &str) -> String {
    format!("to{}", address.rsplit('.').next().unwrap_or_default())
}

fn up(namespace: &str, interface: &str, address: &str) -> Result<()> {
    ip(&["-n", namespace, "addr", "add", &format!("{address}/24"), "dev", interface])?;
    ip(&["-n", namespace, "link", "set", interface, "up"])
}

fn within(namespace: &str, command: &[&str]) -> Result<()> {
    let args: Vec<&str> = ["netns", "exec", namespace].into_iter().chain(command.iter().copied()).collect();
    ip(&args)
}

fn ip(args: &[&str]) -> Result<()> {
    run("ip", args)
}

fn run(program: &str, args: &[&str]) -> Result<()> {
    let output = match Command::new(program).args(args).output() {
        Ok(output) => output,
        Err(error) => bail!("{program} cannot be started: {error}"),
    };
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program} {}: {}", args.join(" "), said.trim());
    Ok(())
}
