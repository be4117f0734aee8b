//! The plan that a fleet makes, with parts that are worth their chunks.
//!
//! The linear program knows rates and no chunks. Before the first average comes back, a chunk of each part has to
//! cross the slowest link, and where a link is shared equally a small part is done long before a large one: many small
//! parts cost time. How small a part may be is the operator's to say ([`RoundWorkload::part_values_min`]); here it is the best
//! of a few sizes in virtual time.

use anyhow::{Context, Result};
use barnraise_planning::{AveragingPlan, MeasuredPeer, PeerId, PlanningProblem, RoundWorkload, Updates};
use barnraise_protocol::average::CHUNK_VALUES;
use barnraise_simulation::NodeBandwidth;

use super::round::{Rules, Sharing, SimulatedRound};

/// The least size of a part, in chunks, that is tried; 0 is no limit.
const PART_CHUNKS_MIN: [u64; 4] = [0, 4, 16, 64];

/// What is trained.
#[derive(Debug, Clone, Copy)]
pub(super) struct Job {
    pub(super) n_values: u64,
    /// Of a value on its way.
    pub(super) value_bytes: f64,
    pub(super) batch: u64,
    /// Values of a chunk.
    pub(super) chunk_values: usize,
}

impl Job {
    pub(super) fn n_bytes(&self) -> f64 {
        self.n_values as f64 * self.value_bytes
    }

    pub(super) fn rules(&self) -> Rules {
        Rules { chunk_bytes: self.chunk_values as f64 * self.value_bytes, ..Rules::default() }
    }

    /// The same with chunks a quarter as long as the real ones.
    pub(super) fn finer(self) -> Self {
        Self { chunk_values: CHUNK_VALUES / 4, ..self }
    }
}

/// The plan for peers with these links and speeds (samples/s), in their order, that share links like that, and how many
/// seconds an averaging takes. A peer without speed helps, and neither trains nor keeps the model.
pub(super) fn plan(
    links: &[NodeBandwidth],
    speeds: &[f64],
    job: Job,
    updates: Updates,
    sharing: Sharing,
) -> Result<(AveragingPlan, f64)> {
    let peer = |(index, (link, speed)): (usize, (&NodeBandwidth, &f64))| MeasuredPeer {
        // In the order of the links.
        id: PeerId(index.to_be_bytes().to_vec()),
        samples_per_s: *speed,
        download_bytes_per_s: link.down,
        upload_bytes_per_s: link.up,
        is_reachable: true,
        receives: *speed > 0.0,
    };
    let peers: Vec<MeasuredPeer> = links.iter().zip(speeds).enumerate().map(peer).collect();
    let rules = Rules { sharing, ..job.rules() };
    let mut best: Option<(AveragingPlan, f64)> = None;
    for n_chunks in PART_CHUNKS_MIN {
        let work = RoundWorkload {
            vector_bytes: job.n_bytes() as u64,
            n_values: job.n_values,
            target_batch_size: job.batch,
            part_values_min: (n_chunks * job.chunk_values as u64).max(1),
            updates,
        };
        let plan = PlanningProblem::new(peers.clone(), &[], work)?.plan()?;
        let seconds = SimulatedRound::of_plan(&plan, links.to_vec(), job.n_bytes()).seconds(rules);
        if best.as_ref().is_none_or(|(_, least)| seconds < *least) {
            best = Some((plan, seconds));
        }
    }
    best.context("no size of parts was tried")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::papers::dedloc::round::VALUE_BYTES;

    #[test]
    fn fast_helpers_take_all_where_small_parts_only_cost_time() {
        let links =
            [vec![NodeBandwidth::symmetric(0.05); 12], vec![NodeBandwidth::symmetric(1.0); 4]].concat();
        let speeds = [vec![1.0; 12], vec![0.0; 4]].concat();
        let job =
            Job { n_values: 16 << 20, value_bytes: VALUE_BYTES, batch: 4096, chunk_values: CHUNK_VALUES };
        let (plan, seconds) = plan(&links, &speeds, job, Updates::Delayed, Sharing::ByLength).unwrap();
        assert!(plan.roles[..12].iter().all(|role| role.part.is_empty()), "{:?}", plan.roles);
        // The vector, and the first chunk of each of the four.
        let want = (job.n_bytes() + 4.0 * job.rules().chunk_bytes) / 6.25e6;
        assert!((seconds / want - 1.0).abs() < 0.01, "{seconds} {want}");
    }
}
