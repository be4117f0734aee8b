//! Streams that are opened and left, frames that are too slow, too long, or none.

use std::time::Duration;

use barnraise_protocol::{access, bulk, contribute, framing, gradient, run, shard, state};
use barnraise_relay::libp2p::Stream;
use barnraise_tests::client::{TestClient, within};
use barnraise_tests::source_proxy::SourceProxy;
use futures::{AsyncReadExt as _, AsyncWriteExt as _};
use libp2p::Multiaddr;
use tokio::task::JoinSet;

use super::RUN;
use super::attacked_run::{AttackEnd, AttackedRun};

/// Each with the length of its longest message.
const CONVERSATIONS: [(&str, usize); 6] = [
    (run::PROTOCOL, run::REQUEST_BYTES_MAX),
    (access::PROTOCOL, access::MESSAGE_BYTES_MAX),
    (state::PROTOCOL, state::MESSAGE_BYTES_MAX),
    (shard::PROTOCOL, shard::MESSAGE_BYTES_MAX),
    (contribute::PROTOCOL, contribute::MESSAGE_BYTES_MAX),
    (gradient::PROTOCOL, gradient::MESSAGE_BYTES_MAX),
];
const BETWEEN_STREAMS: Duration = Duration::from_millis(10);
/// Longer than anybody waits for it.
const NEVER_READS: Duration = Duration::from_secs(4);
/// At a time, as many as a peer may have.
const SLOW_STREAMS: usize = 12;
const BETWEEN_DIALS: Duration = Duration::from_millis(200);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_open_and_slow_streams_cost_the_others_nothing() {
    let mut attacked = AttackedRun::of(RUN, false).await;
    let proxy = SourceProxy::open([127, 0, 0, 2].into(), &attacked.tcp()).await.unwrap();
    let address = proxy.address();
    let half_open = || open_and_say_nothing(address.clone());
    attacked.endures(&["silent_stream", "streams"], AttackEnd::Blocked, half_open).await;
    attacked.endures(&["slow_message"], AttackEnd::Blocked, || write_slowly(address.clone())).await;
    attacked.endures(&["stalled_transfer"], AttackEnd::Refused, || ask_and_never_read(address.clone())).await;
    attacked.has_trained().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frames_that_are_too_long_or_none_cost_the_others_nothing() {
    let mut attacked = AttackedRun::of(RUN, false).await;
    let proxy = SourceProxy::open([127, 0, 0, 2].into(), &attacked.tcp()).await.unwrap();
    let address = proxy.address();
    attacked.endures(&["oversized_frame"], AttackEnd::Blocked, || write_too_much(address.clone())).await;
    attacked
        .endures(&["malformed_message", "other_version"], AttackEnd::Blocked, || write_noise(address.clone()))
        .await;
    attacked.has_trained().await;
}

/// Opens as many as it can on each conversation, and keeps them; when it is blocked it comes under another name.
async fn open_and_say_nothing(backbone: Multiaddr) {
    loop {
        let Ok(client) = TestClient::connect(backbone.clone()).await else {
            tokio::time::sleep(BETWEEN_DIALS).await;
            continue;
        };
        let mut held = Vec::new();
        let mut protocols = CONVERSATIONS.iter().cycle();
        // One that is blocked is disconnected, and opens nothing more.
        while let Some((protocol, _)) = protocols.next()
            && let Ok(mut stream) = client.open(protocol).await
        {
            // The name of the conversation goes with the first bytes, and these are none.
            let _ = stream.flush().await;
            held.push(stream);
            if held.len() > 100 {
                held.remove(0);
            }
            tokio::time::sleep(BETWEEN_STREAMS).await;
        }
    }
}

/// A byte at a time, each well before anything idles. The stream is ended by the backbone.
async fn write_slowly(backbone: Multiaddr) {
    loop {
        let Some(client) = connected(&backbone).await else { continue };
        let mut slow = JoinSet::new();
        for (protocol, bytes_max) in CONVERSATIONS.into_iter().cycle() {
            let Ok(mut stream) = client.open(protocol).await else { break };
            slow.spawn(async move {
                let mut frame = vec![1];
                frame.extend(u32::try_from(bytes_max).unwrap().to_le_bytes());
                frame.resize(bytes_max, 0);
                for byte in frame {
                    if stream.write_all(&[byte]).await.is_err() || stream.flush().await.is_err() {
                        return;
                    }
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                panic!("{protocol}: a message of {bytes_max} bytes was taken in {} s", bytes_max / 10);
            });
            while slow.len() >= SLOW_STREAMS {
                slow.join_next().await.unwrap().unwrap();
            }
        }
    }
}

/// Asks for parameters and shards, and takes none of them.
async fn ask_and_never_read(backbone: Multiaddr) {
    loop {
        let Some(client) = connected(&backbone).await else { continue };
        let mut asked = JoinSet::new();
        for number in 0..SLOW_STREAMS {
            let protocol = if number % 2 == 0 { state::PROTOCOL } else { shard::PROTOCOL };
            let Ok(mut stream) = client.open(protocol).await else { break };
            asked.spawn(async move {
                let latest = state::ContributorToBackbone::GetLatest;
                let shard = shard::ContributorToBackbone::Get(shard::ShardId::Numbered(0));
                let written = match number % 2 {
                    0 => framing::write(&mut stream, &latest, state::MESSAGE_BYTES_MAX).await,
                    _ => framing::write(&mut stream, &shard, shard::MESSAGE_BYTES_MAX).await,
                };
                let all = bulk::Pull::Chunks { first: 0, count: 1 };
                if written.is_ok() && framing::write(&mut stream, &all, 64).await.is_ok() {
                    tokio::time::sleep(NEVER_READS).await;
                    ended_by_the_backbone(protocol, stream).await;
                }
            });
        }
        while let Some(ended) = asked.join_next().await {
            ended.unwrap();
        }
    }
}

/// Frames that say they are of 4 GiB, or of one byte more than they may be.
async fn write_too_much(backbone: Multiaddr) {
    loop {
        let Some(client) = connected(&backbone).await else { continue };
        let each_way = CONVERSATIONS.into_iter().flat_map(|of| [(of, true), (of, false)]);
        for ((protocol, bytes_max), is_huge) in each_way.cycle() {
            let length = if is_huge { u32::MAX } else { u32::try_from(bytes_max + 1).unwrap() };
            let mut frame = vec![1];
            frame.extend(length.to_le_bytes());
            frame.resize(64, 0);
            if !write_and_see_the_end(&client, protocol, &frame).await {
                break;
            }
        }
    }
}

/// First bytes that are of no message of the conversation.
async fn write_noise(backbone: Multiaddr) {
    let noise: Vec<u8> = (0..4096u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    loop {
        let Some(client) = connected(&backbone).await else { continue };
        for (protocol, _) in CONVERSATIONS.into_iter().cycle() {
            let no_message = [1, 3, 0, 0, 0, 0xff, 0xff, 0xff];
            let is_on = write_and_see_the_end(&client, protocol, &no_message).await
                && write_and_see_the_end(&client, protocol, &noise).await;
            if !is_on {
                break;
            }
        }
    }
}

/// Somebody new, as soon as the address may have another connection.
async fn connected(backbone: &Multiaddr) -> Option<TestClient> {
    let client = TestClient::connect(backbone.clone()).await.ok();
    if client.is_none() {
        tokio::time::sleep(BETWEEN_DIALS).await;
    }
    client
}

/// Whether the client could open a stream; it is ended by the backbone then.
async fn write_and_see_the_end(client: &TestClient, protocol: &'static str, bytes: &[u8]) -> bool {
    let Ok(mut stream) = client.open(protocol).await else { return false };
    // The other end may have ended it before all of it was written.
    let _ = stream.write_all(bytes).await;
    let _ = stream.flush().await;
    ended_by_the_backbone(protocol, stream).await;
    tokio::time::sleep(BETWEEN_STREAMS).await;
    true
}

/// Waits until the backbone ends the stream; its answers are skipped.
async fn ended_by_the_backbone(protocol: &str, mut stream: Stream) {
    let mut answer = Vec::new();
    let _ = within(protocol, stream.read_to_end(&mut answer)).await.unwrap();
}
