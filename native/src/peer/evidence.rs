//! `barnraise evidence`: recomputes on this machine the evidence that a backbone has against convicted peers.

use std::fmt::Write;

use anyhow::Context;
use barnraise_contributor::Platform;
use barnraise_learning::{ComputeDevice, DeviceChoice, FrozenWeights, open_device};
use barnraise_protocol::evidence::{
    self, AnswerEvidence, AnswerHeader, ContributionEvidence, Evidence, EvidenceEntry,
};
use barnraise_protocol::shard::{self, ShardId};
use libp2p::identity::Keypair;

use super::args::{CACHE_SIZE_DEFAULT, EvidenceArgs};
use super::cache::ShardCache;
use super::platform::NativePlatform;
use super::shard_folder;
use crate::host::expert_hosts::recomputed;
use crate::scheme::synchronous::recomputation::{Recomputer, ShardSourceError};

/// Largest piece of evidence that is fetched.
const EVIDENCE_BYTES_MAX: u64 = 1024 * 1024 * 1024;

/// Fetches all evidence of the backbone at an address and recomputes it. Returns the text to print.
///
/// # Errors
/// The backbone cannot be reached, or its evidence differs from its list.
pub async fn check(args: EvidenceArgs) -> anyhow::Result<String> {
    let device = open_device(DeviceChoice::from(args.device)).await?;
    let cache = ShardCache::new(shard_folder(), CACHE_SIZE_DEFAULT.as_u64());
    let platform = NativePlatform::new(args.address.address, args.run, Keypair::generate_ed25519(), cache);
    platform.connect().await?;
    let mut stream = platform.open(evidence::PROTOCOL).await?;
    let listed = evidence::list(&mut stream).await?;
    let mut said = String::new();
    if listed.is_empty() {
        said.push_str("No peer of this run was convicted.\n");
    }
    for piece in listed {
        let bytes = evidence::fetch(&mut stream, piece, EVIDENCE_BYTES_MAX).await?;
        let evidence = Evidence::decode(&bytes).context("not evidence")?;
        let verdict = match &evidence {
            _ if evidence.peer() != piece.peer => "the evidence is against another peer".to_owned(),
            Evidence::Contribution(evidence) => {
                verdict(&platform, evidence, device.clone(), args.tolerance).await
            }
            Evidence::Answer(evidence) => of_answer(evidence, &device).await,
        };
        writeln!(said, "{}: {verdict}", name(piece))?;
    }
    platform.disconnect().await;
    Ok(said)
}

async fn verdict(
    platform: &NativePlatform,
    evidence: &ContributionEvidence,
    device: ComputeDevice,
    tolerance: f32,
) -> String {
    let run = &evidence.header.run;
    let shard = async |id: ShardId| shard_of(platform, evidence, id).await;
    let numbered = async |number: u32| shard(ShardId::Numbered(number)).await;
    let frozen = match FrozenWeights::of_run(run, &numbered).await {
        Ok(frozen) => frozen,
        Err(error) => return format!("the frozen weights of its run cannot be had: {error}"),
    };
    let recomputed = match Recomputer::new(run, frozen.as_ref(), device, tolerance) {
        Ok(mut recomputer) => recomputer.recompute(evidence, shard).await,
        Err(error) => Err(error),
    };
    let offer = &evidence.header.offer;
    let what = format!(
        "its contribution {} to epoch {} of `{}`",
        offer.contribution_id, offer.epoch, run.identity.run_id
    );
    match recomputed {
        Ok(difference) => {
            let (distance, allowed) = (difference.distance, difference.allowed);
            let so = if difference.is_wrong() { "is not" } else { "is" };
            format!("{what} {so} the gradient of its samples (distance {distance:.4}, up to {allowed:.4} is)")
        }
        Err(error) => format!("{what} could not be recomputed: {error}"),
    }
}

async fn of_answer(evidence: &AnswerEvidence, device: &ComputeDevice) -> String {
    let AnswerHeader { run, answer, .. } = &evidence.header;
    let ((layer, uid), n_steps) = (answer.place, answer.version.n_steps);
    let what = format!(
        "the answer of its expert {uid} of layer {} at step {n_steps} of `{}`",
        layer.0, run.identity.run_id
    );
    match recomputed(evidence, device).await {
        Ok(difference) => {
            let (distance, allowed) = (difference.distance, difference.allowed);
            let so = if difference.is_wrong() { "is not" } else { "is" };
            format!("{what} {so} what its checkpoint gives (distance {distance:.4}, up to {allowed:.4} is)")
        }
        Err(error) => format!("{what} could not be recomputed: {error}"),
    }
}

/// A shard from the cache or from the backbone. The caller checks its hash.
async fn shard_of(
    platform: &NativePlatform,
    evidence: &ContributionEvidence,
    id: ShardId,
) -> Result<Vec<u8>, ShardSourceError> {
    let manifest = &evidence.header.run.data.manifest;
    let mut stream = platform.open(shard::PROTOCOL).await?;
    let entry = match (id, &manifest.stream) {
        (ShardId::Streamed(number), Some(data)) => {
            shard::fetch_window(&mut stream, data).await?.entry(number).copied()
        }
        _ => id.entry(manifest).copied(),
    };
    let entry = entry.ok_or(ShardSourceError::None)?;
    if let Some(bytes) = platform.cached(entry.sha256).await {
        return Ok(bytes);
    }
    let bytes = shard::fetch(&mut stream, id, entry.transfer(), &mut None, |_| ()).await?;
    platform.cache(entry.sha256, &bytes).await;
    Ok(bytes)
}

/// The peer id of the convicted peer.
fn name(listed: EvidenceEntry) -> String {
    crate::host::peer_id(listed.peer).map_or_else(|| listed.peer.to_string(), |id| id.to_string())
}
