//! Two hundred tabs at one relay: nobody is dropped, each costs little, and their places are free again.
//! `cargo xtask bench load` does the same with two thousand.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::Duration;

use barnraise_tests::load::{ProcessUsage, RelayedTarget, SessionPool, TransportKind, relay_toml};
use barnraise_tests::process::{HANG, RelayProcess, TestRun, metric};

const N_SESSIONS: usize = 200;
const N_MOVING: usize = 4;
const MOVING_BYTES_PER_SECOND: u64 = 1024 * 1024;
const MOVING: Duration = Duration::from_secs(3);
const HEARTBEAT: Duration = Duration::from_millis(500);
/// Of the relay, for one session, its circuit included; 130 were seen, on both transports together.
const SESSION_KIB_MAX: u64 = 320;

#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_of_tabs_is_served_and_leaves_nothing_behind() {
    barnraise_relay::install_crypto_provider();
    let mut test_run = TestRun::new("").unwrap();
    let relay = test_run.relay_here(&relay_toml(N_SESSIONS as u32)).await.unwrap();
    let addresses = relay.addresses();
    let target =
        RelayedTarget::start(relay.tcp().unwrap().clone(), N_SESSIONS as u32, HEARTBEAT).await.unwrap();
    let before = ProcessUsage::of(relay.pid().unwrap()).unwrap();
    // The second pool finds room only where the first left some: there are few places more.
    for _ in 0..2 {
        let gather = |transport| SessionPool::gather(transport, N_SESSIONS / 2, addresses, target.circuit());
        let pool = gather(TransportKind::WebTransport)
            .await
            .unwrap()
            .joined_by(gather(TransportKind::WebSocket).await.unwrap());
        let usage = ProcessUsage::of(relay.pid().unwrap()).unwrap();
        let session_kib = usage.rss_kib.saturating_sub(before.rss_kib) / N_SESSIONS as u64;
        assert!(session_kib < SESSION_KIB_MAX, "{session_kib} KiB for each session");
        let heard = pool.heartbeats();
        let moved = pool.pull(N_MOVING, MOVING_BYTES_PER_SECOND, MOVING).await.unwrap();
        assert!(moved.len() == N_MOVING && moved.iter().all(|&n_bytes| n_bytes > 0), "{moved:?}");
        assert!(pool.dropped().is_empty(), "{:?}", pool.dropped());
        // Those who move nothing go on hearing all the same.
        until_all_heard_more(&pool, &heard).await;
        drop(pool);
        until_empty(&relay).await;
    }
}

async fn until_all_heard_more(pool: &SessionPool, before: &[u64]) {
    let heard = async {
        while !pool.heartbeats().iter().zip(before).all(|(now, before)| now > before) {
            tokio::time::sleep(HEARTBEAT / 5).await;
        }
    };
    tokio::time::timeout(HANG, heard).await.expect("somebody hears nothing any more");
}

/// Nothing tells when the last one is gone.
async fn until_empty(relay: &RelayProcess) {
    let empty = async {
        while metric(&relay.metrics().await.unwrap(), "barnraise_relay_circuits").unwrap() != 0.0 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(HANG, empty).await.expect("circuits of those who left are still carried");
}
