//! Attacks by held streams, repeated requests and false identities.

use std::time::Duration;

use anyhow::Result;
use barnraise_protocol::access::{ContributorToBackbone as Ask, KeyPair};
use barnraise_protocol::bulk::{CHUNK_BYTES, Pull, packed};
use barnraise_protocol::gradient::{self, BackboneToContributor, ContributorToBackbone};
use barnraise_protocol::{evidence, framing, state};
use barnraise_swarm::random::SplitMix64;
use futures::AsyncWriteExt as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::JoinSet;

use super::key::AttackKey;
use super::offers::any_samples;
use crate::client::n_parameters;
use crate::source_proxy::connect_from;

/// Bytes of a trickling contribution, and how often so many come: twice the least that a stream has to move.
const TRICKLE_BYTES: usize = 512;
const TRICKLE_EVERY: Duration = Duration::from_millis(250);
/// Streams of a key; as many as a peer may have are fewer.
const STREAMS: usize = 64;
const EVERY: Duration = Duration::from_millis(100);
/// Largest piece of evidence that is fetched.
const EVIDENCE_BYTES_MAX: u64 = 64 * 1024 * 1024;
const PULL_BYTES_MAX: usize = 64;

/// Contributions that say they are a step's samples, and come as slowly as they may.
pub(super) async fn trickle(key: &mut AttackKey) -> Result<()> {
    let mut session = key.join().await?;
    let mut random = SplitMix64::new(key.number as u64);
    loop {
        tokio::time::sleep(EVERY).await;
        let state = key.shared.state().await?;
        let samples = any_samples(key, &mut random, key.n_samples_max());
        session.report(state.epoch, samples.len() as u32).await?;
        let values = vec![1e-3 + 1e-6 * key.number as f32; n_parameters(&key.shared.run)? as usize];
        let signer = key.keypair.clone();
        let prepared = key.prepare(&state, &samples, &values, &signer)?;
        let mut stream = key.client.open(gradient::PROTOCOL).await?;
        let bytes_max = gradient::offer_bytes_max(&key.shared.run);
        let offer = ContributorToBackbone::Offer(prepared.offer, prepared.commitment, prepared.samples);
        framing::write(&mut stream, &offer, bytes_max).await?;
        let answer: BackboneToContributor = framing::read(&mut stream, gradient::MESSAGE_BYTES_MAX).await?;
        if answer != BackboneToContributor::Wanted {
            continue;
        }
        let _: Pull = framing::read(&mut stream, PULL_BYTES_MAX).await?;
        let chunks = prepared.bytes.chunks(CHUNK_BYTES).zip(0..);
        let chunks: Vec<u8> = chunks.flat_map(|(chunk, index)| packed(index, chunk)).collect();
        for piece in chunks.chunks(TRICKLE_BYTES) {
            key.shared.counters.act();
            if stream.write_all(piece).await.is_err() || stream.flush().await.is_err() {
                break;
            }
            tokio::time::sleep(TRICKLE_EVERY).await;
        }
    }
}

/// Joins, and does nothing.
pub(super) async fn sit(key: &AttackKey) -> Result<()> {
    let session = key.join().await?;
    key.shared.counters.act();
    session.ended().await;
    Ok(())
}

/// Offers a forged gradient, once.
async fn cheat_once(key: &mut AttackKey) -> Result<()> {
    let _session = key.join().await?;
    let mut random = SplitMix64::new(key.number as u64);
    let state = key.shared.state().await?;
    let samples = any_samples(key, &mut random, key.shared.run.scheme.micro_batch_size());
    let values = vec![1e-3 + 1e-6 * key.number as f32; n_parameters(&key.shared.run)? as usize];
    key.offer(&state, &samples, &values).await.map(drop)
}

/// Cheats once, then fetches the evidence against all keys that cheated.
pub(super) async fn cheat_and_fetch_evidence(key: &mut AttackKey) -> Result<()> {
    if !key.shared.counters.is_convicted(key.client.peer_id()) {
        cheat_once(key).await?;
    }
    let mut stream = key.client.open(evidence::PROTOCOL).await?;
    loop {
        for listed in evidence::list(&mut stream).await? {
            key.shared.counters.act();
            evidence::fetch(&mut stream, listed, EVIDENCE_BYTES_MAX).await?;
        }
        tokio::time::sleep(EVERY).await;
    }
}

/// Asks for parameters and evidence on many streams; the machine's line is slow ([`SourceProxy::paced`]).
///
/// [`SourceProxy::paced`]: crate::source_proxy::SourceProxy::paced
pub(super) async fn read_slowly(key: &mut AttackKey) -> Result<()> {
    if key.number == 0 && !key.shared.counters.is_convicted(key.client.peer_id()) {
        let _ = cheat_once(key).await;
    }
    let n_values = n_parameters(&key.shared.run)?;
    let mut reading = JoinSet::new();
    for number in (0..STREAMS).cycle() {
        let shared = std::sync::Arc::clone(&key.shared);
        if number % 2 == 0 {
            let mut stream = key.client.open(state::PROTOCOL).await?;
            reading.spawn(async move {
                shared.counters.act();
                let codec = shared.run.scheme.state_codec();
                let _ = state::fetch(&mut stream, n_values, codec, &mut None, |_, _| {}).await;
            });
        } else {
            let mut stream = key.client.open(evidence::PROTOCOL).await?;
            reading.spawn(async move {
                let Ok(listed) = evidence::list(&mut stream).await else { return };
                for listed in listed {
                    shared.counters.act();
                    if evidence::fetch(&mut stream, listed, EVIDENCE_BYTES_MAX).await.is_err() {
                        return;
                    }
                }
                // Where there is none yet.
                tokio::time::sleep(EVERY).await;
            });
        }
        while reading.len() >= STREAMS {
            reading.join_next().await;
        }
    }
    Ok(())
}

/// Tries to pass as another peer: by guessed codes, by other peers' login links, and by other peers' signatures.
pub(super) async fn pretend(key: &mut AttackKey) -> Result<()> {
    let _session = key.join().await?;
    let mut random = SplitMix64::new(key.number as u64);
    let somebody_else = KeyPair::from_seed(&[key.number as u8; 32]);
    loop {
        key.shared.counters.act();
        // The answer may be any, but none that lets it in as another.
        let _ = key.client.ask(&Ask::Redeem { code: format!("{:x}", random.next_u64()) }).await?;
        let _ = key.client.ask(&Ask::Claim).await?;
        let state = key.shared.state().await?;
        let samples = any_samples(key, &mut random, key.shared.run.scheme.micro_batch_size());
        let values = vec![1e-3; n_parameters(&key.shared.run)? as usize];
        let prepared = key.prepare(&state, &samples, &values, &somebody_else)?;
        let answer = key.client.offer_prepared(&prepared).await?;
        anyhow::ensure!(answer.is_err(), "it was taken for somebody else");
        let honest = key.shared.target.honest;
        let ticket = random.next_u64();
        visit(key, &format!("/login?peer={honest}&ticket={ticket:032x}")).await?;
        visit(key, &format!("/login/callback?state={ticket:x}&code=1")).await?;
        tokio::time::sleep(EVERY).await;
    }
}

/// `GET path` of the page, from the machine's address.
async fn visit(key: &AttackKey, path: &str) -> Result<()> {
    let page = key.shared.target.page;
    let mut stream = connect_from(key.shared.from, page).await?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\nhost: {page}\r\n\r\n").as_bytes()).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    Ok(())
}
