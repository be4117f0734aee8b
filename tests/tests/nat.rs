//! Peers behind routers, for real: network namespaces, address translation and firewalls of the kernel.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use barnraise_tests::lan::{Internet, LanHost, Nat, has_gateway_program};
use barnraise_tests::process::{BackboneProcess, HANG, PeerProcess, RelayProcess, TestRun};

const RUN: &str = r#"
[run]
id = "test-run"

[model]
kind = { mlp = { hidden = [32] } }

[data]
shuffle_buffer_samples = 1000

[scheme.synchronous]
target_batch_size = 256
micro_batch_size = 32
schedule = { peak = 0.05, warmup_steps = 0, decay = { kind = "constant" } }
contribution_samples_max = 1024
"#;

/// `None` where the kernel or the rights for namespaces are missing, which is said.
fn internet() -> Option<Internet> {
    match Internet::new() {
        Ok(internet) => Some(internet),
        Err(error) => {
            println!("SKIPPED: network namespaces cannot be made here: {error:#}");
            None
        }
    }
}

fn run_behind(relay: &str) -> String {
    format!("{RUN}\n[network]\nupnp = false\nrelays = [{relay:?}]\n")
}

/// Steps that only this peer can have brought about, and then it leaves in order.
async fn trains(backbone: &BackboneProcess, joined: PeerProcess, path: &str) -> u64 {
    let epoch = backbone.wait_for_epoch(3).await.unwrap().epoch;
    backbone.wait_for_epoch(epoch + 5).await.unwrap();
    // A way through both routers may be found after the first steps.
    joined.wait_for_log(path).await.unwrap();
    joined.interrupt().unwrap();
    let given = joined.end().await.unwrap();
    assert!(given.status.success() && given.n_samples >= 8 * 256, "{given:?}");
    given.n_samples
}

/// A backbone and a peer, each behind a router, and a relay with a public address; the folders are kept until all processes have ended.
struct RunBehindNat {
    backbone: BackboneProcess,
    joined: PeerProcess,
    relay: RelayProcess,
    _test_runs: [TestRun; 2],
}

async fn behind_nat(internet: &mut Internet, nat: Nat) -> RunBehindNat {
    let relay_host = internet.public_host(10).unwrap();
    let (home, away) = (internet.host_behind(nat).unwrap(), internet.host_behind(nat).unwrap());
    let mut relay_run = TestRun::new(RUN).unwrap();
    let relay = relay_run.relay(&relay_host).await.unwrap();
    let window = internet.window(&home).unwrap();
    let sections = run_behind(&relay.quic().unwrap().to_string());
    let mut test_run = TestRun::new(&sections).unwrap().with_host(&home, &window);
    let backbone = test_run.backbone().await.unwrap();
    let circuit = backbone.circuit().await.unwrap();
    let joined = test_run.join_from(&away, &[&circuit]).unwrap();
    RunBehindNat { backbone, joined, relay, _test_runs: [relay_run, test_run] }
}

#[tokio::test]
async fn behind_routers_that_keep_ports_peers_talk_directly() {
    let Some(mut internet) = internet() else { return };
    let behind_nat = behind_nat(&mut internet, Nat::KeepsPorts).await;
    trains(&behind_nat.backbone, behind_nat.joined, "through both routers").await;
}

#[tokio::test]
async fn behind_routers_with_random_ports_peers_fall_back_to_the_relay() {
    let Some(mut internet) = internet() else { return };
    let behind_nat = behind_nat(&mut internet, Nat::RandomPorts).await;
    let n_samples = trains(&behind_nat.backbone, behind_nat.joined, "through the relay").await;
    // The relay has the credit for what came through it, by what the backbone saw.
    let crediting = async {
        loop {
            let given = behind_nat.backbone.contributions(n_samples).await.unwrap();
            let n_carried: u64 = given.relays.iter().map(|relay| relay.n_contributions).sum();
            // The last contribution may be recorded before who carried it.
            if n_carried >= given.totals.n_contributions {
                return given;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let given = tokio::time::timeout(HANG, crediting).await.expect("the relay has the credit");
    let [carried] = &given.relays[..] else { panic!("{:?}", given.relays) };
    let relay = behind_nat.relay.quic().unwrap().to_string();
    assert!(relay.ends_with(&carried.peer), "{relay}");
    assert_eq!(carried.n_contributions, given.totals.n_contributions);
    assert_eq!(carried.n_bytes, given.totals.n_bytes);
}

#[tokio::test]
async fn a_peer_that_accepts_nothing_trains_in_client_mode() {
    let Some(mut internet) = internet() else { return };
    let public: LanHost = internet.public_host(20).unwrap();
    let closed = internet.host_behind(Nat::RandomPorts).unwrap();
    closed.accept_nothing().unwrap();
    let window = internet.window(&public).unwrap();
    let sections = format!("{RUN}\n[network]\nupnp = false\n");
    let mut test_run = TestRun::new(&sections).unwrap().with_host(&public, &window);
    let backbone = test_run.backbone().await.unwrap();
    let joined = test_run.join_from(&closed, &[&backbone.tcp().unwrap().to_string()]).unwrap();
    trains(&backbone, joined, "connected directly to /ip4/192.0.1.20/").await;
}

/// UPnP: the router passes the port on because the backbone asked, so nobody has to carry anything.
#[tokio::test]
async fn a_backbone_behind_a_gateway_is_dialled_at_the_port_that_it_asked_for() {
    let Some(mut internet) = internet() else { return };
    if !has_gateway_program() {
        println!("SKIPPED: there is no gateway to ask: install miniupnpd-nftables");
        return;
    }
    let home = internet.host_behind(Nat::KeepsPorts).unwrap();
    let away = internet.host_behind(Nat::RandomPorts).unwrap();
    let gateway = internet.gateway(&home).unwrap();
    let window = internet.window(&home).unwrap();
    let mut test_run = TestRun::new(RUN).unwrap().with_host(&home, &window);
    let backbone = test_run.backbone().await.unwrap();
    let outside = format!("/ip4/{}/tcp/", gateway.address);
    let address = backbone.wait_for_address("that the gateway gave", |address| address.starts_with(&outside));
    let joined = test_run.join_from(&away, &[&address.await.unwrap()]).unwrap();
    trains(&backbone, joined, &format!("connected directly to {outside}")).await;
}

#[test]
fn a_window_that_a_killed_test_left_is_in_nobodys_way() {
    if internet().is_none() {
        return;
    }
    let mut killed = Command::new("true").spawn().unwrap();
    killed.wait().unwrap();
    let [left, end] = [format!("bw{:x}-0", killed.id()), format!("be{:x}", killed.id())];
    let link = ["link", "add", &left, "type", "veth", "peer", "name", &end];
    assert!(Command::new("ip").args(link).status().unwrap().success());
    let folder = Path::new("/sys/class/net").join(&left);
    assert!(folder.exists());
    drop(internet());
    assert!(!folder.exists());
}
