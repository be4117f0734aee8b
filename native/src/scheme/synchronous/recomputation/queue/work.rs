//! The recomputation task: one contribution after the other, and a rest after each.

use std::time::{Duration, Instant};

use barnraise_protocol::access::ConvictedWork;
use barnraise_protocol::evidence::{ContributionEvidence, Evidence, EvidenceHeader};
use barnraise_protocol::run::RunDescription;
use barnraise_protocol::shard::ShardId;
use barnraise_swarm::recomputation::rest_after;
use barnraise_swarm::robust::norm;
use futures::future::OptionFuture;
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep_until;

use super::super::{RecomputationError, Recomputer, ShardSourceError};
use super::{Job, RecomputationContext, RecomputationVerdict, Recomputing};
use crate::host::evidence::EvidenceStoreError;

/// Delay between two attempts to open a device that failed.
const TRY_AGAIN: Duration = Duration::from_secs(10);
/// Standings are stored this long after the first verdict that is not stored yet.
const KEEP_AFTER: Duration = Duration::from_secs(60);

/// Recomputes one contribution after the other, and convicts the peers whose contributions are wrong.
pub(super) async fn work(
    recomputing: Recomputing,
    world: RecomputationContext,
    recomputer: Recomputer,
    anew: impl Fn(&RunDescription) -> Result<Recomputer, RecomputationError>,
    mut theirs: mpsc::Receiver<Box<ContributionEvidence>>,
) {
    let mut recomputer = recomputer;
    let mut keep_at: Option<tokio::time::Instant> = None;
    loop {
        // The senders live as long as the streams that fill them.
        let (evidence, own) = tokio::select! {
            biased;
            Some(()) = OptionFuture::from(keep_at.map(sleep_until)) => {
                keep_at = None;
                recomputing.keep().await;
                continue;
            }
            (group, job) = recomputing.queue.next() => {
                let (evidence, verdict) = evidence(job);
                (evidence, Some((group, verdict)))
            }
            Some(evidence) = theirs.recv() => (evidence, None),
        };
        world.metrics.on_waiting(recomputing.queue.jobs().len());
        if world.access.gate.is_convicted(evidence.header.peer) {
            if let Some((_, Some(verdict))) = own {
                let _ = verdict.send(RecomputationVerdict::Wrong);
            }
            continue;
        }
        let began = Instant::now();
        let (same, evidence, verdict) = recompute(&world, recomputer, evidence).await;
        let took = began.elapsed();
        recomputer = match same {
            Some(same) => same,
            None => another(&anew, &world.description).await,
        };
        if let Some(evidence) = evidence {
            let header = &evidence.header;
            // For evidence of other backbones the peer's address is not known.
            let is_kept = own.as_ref().is_none_or(|(group, waiting)| {
                let found = (&verdict, length(&evidence));
                recomputing.on_verdict(*group, header, took, found, waiting.is_none())
            });
            keep_at = keep_at.or_else(|| Some(tokio::time::Instant::now() + KEEP_AFTER));
            if verdict == RecomputationVerdict::Wrong {
                let peer = header.peer;
                if let Err(error) = convict(&world, evidence, is_kept).await {
                    tracing::error!(%peer, %error, "the evidence could not be kept");
                }
                // A suspicion must survive a crash.
                recomputing.keep().await;
            }
        }
        if let Some((_, Some(waiting))) = own {
            // A contributor that left offers it again.
            let _ = waiting.send(verdict);
        }
        tokio::time::sleep(rest_after(took)).await;
    }
}

/// Opens the device again after a failure; the queue waits.
async fn another(
    anew: &impl Fn(&RunDescription) -> Result<Recomputer, RecomputationError>,
    run: &RunDescription,
) -> Recomputer {
    loop {
        match anew(run) {
            Ok(recomputer) => return recomputer,
            Err(error) => tracing::error!(%error, "nothing is recomputed until the device is there again"),
        }
        tokio::time::sleep(TRY_AGAIN).await;
    }
}

/// Norm of the gradient as received; infinite where it does not decode, which the recomputation reports.
fn length(evidence: &ContributionEvidence) -> f64 {
    let offer = &evidence.header.offer;
    let values = offer.codec.decode(&evidence.gradient, usize::try_from(offer.n_values).unwrap_or(0));
    values.map_or(f64::INFINITY, |values| norm(&values))
}

fn evidence(job: Job) -> (Box<ContributionEvidence>, Option<oneshot::Sender<RecomputationVerdict>>) {
    let Job { header, list, gradient, state, verdict } = job;
    (
        Box::new(ContributionEvidence { header, samples: list, gradient, parameters: state.bytes.to_vec() }),
        verdict,
    )
}

/// The recomputer and the evidence, unless the task failed, and the verdict.
async fn recompute(
    world: &RecomputationContext,
    mut recomputer: Recomputer,
    evidence: Box<ContributionEvidence>,
) -> (Option<Recomputer>, Option<Box<ContributionEvidence>>, RecomputationVerdict) {
    let EvidenceHeader { peer, offer, .. } = &evidence.header;
    let (peer, epoch, id) = (*peer, offer.epoch, offer.contribution_id);
    let shards = world.shards.clone();
    let shard = async move |id: ShardId| {
        let bytes = shards.get(id).await;
        bytes.map(|bytes| bytes.to_vec()).map_err(ShardSourceError::from)
    };
    // The device may block: on a CPU a pass holds its thread.
    let handle = tokio::runtime::Handle::current();
    let computing = tokio::task::spawn_blocking(move || {
        let difference = handle.block_on(recomputer.recompute(&evidence, shard));
        (recomputer, evidence, difference)
    });
    let (recomputer, evidence, difference) = match computing.await {
        Ok(done) => done,
        Err(error) => {
            tracing::error!(%peer, epoch, id, %error, "the recomputation of a contribution failed");
            world.metrics.on_recomputed("unknown");
            return (None, None, RecomputationVerdict::Unknown("its recomputation failed".to_owned()));
        }
    };
    let verdict = match difference {
        Ok(difference) if difference.is_wrong() => {
            world.metrics.on_recomputed("wrong");
            tracing::warn!(
                %peer, epoch, id, distance = difference.distance, allowed = difference.allowed,
                "a contribution is not the gradient of its samples: its peer is convicted"
            );
            RecomputationVerdict::Wrong
        }
        Ok(difference) => {
            world.metrics.on_recomputed("same");
            tracing::debug!(%peer, epoch, id, distance = difference.distance, "recomputed");
            RecomputationVerdict::Right
        }
        Err(error) => {
            world.metrics.on_recomputed("unknown");
            tracing::warn!(%peer, epoch, id, %error, "a contribution could not be recomputed");
            RecomputationVerdict::Unknown(error.to_string())
        }
    };
    (Some(recomputer), Some(evidence), verdict)
}

async fn convict(
    world: &RecomputationContext,
    evidence: Box<ContributionEvidence>,
    is_kept: bool,
) -> Result<(), EvidenceStoreError> {
    let (peer, epoch) = (evidence.header.peer, evidence.header.offer.epoch);
    world.access.convict(peer, ConvictedWork::Contribution { epoch }).await;
    if let Err(error) = world.store.convict(peer, epoch).await {
        tracing::error!(%peer, %error, "a convicted peer stays on the leaderboard");
    }
    world.evidence.convict(&Evidence::Contribution(evidence), is_kept).await.map(|_| ())
}
