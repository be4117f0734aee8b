//! A fleet that trains a model: seconds of a step, with equal parts and with our plan.

use anyhow::Result;
use barnraise_planning::Updates;
use barnraise_simulation::NodeBandwidth;

use super::planned::{Job, plan};
use super::round::{Sharing, SimulatedRound};

/// Links and speeds of peers.
#[derive(Debug, Clone)]
pub(super) struct Fleet {
    pub(super) links: Vec<NodeBandwidth>,
    /// Samples per second; 0 without a GPU.
    pub(super) speeds: Vec<f64>,
}

/// Computing and averaging time of a step.
#[derive(Debug, Clone, Copy)]
pub(super) struct StepTime {
    pub(super) compute_s: f64,
    pub(super) averaging_s: f64,
}

impl StepTime {
    /// Peers compute while they average (delayed parameter updates, DeDLOC §3.2): the slower of both sets the pace.
    pub(super) fn delayed_s(&self) -> f64 {
        self.compute_s.max(self.averaging_s)
    }

    /// One after the other.
    pub(super) fn immediate_s(&self) -> f64 {
        self.compute_s + self.averaging_s
    }
}

impl Fleet {
    /// Peers of equal links and speeds, `(how many, Gbit/s, samples/s)`.
    pub(super) fn new(groups: &[(usize, f64, f64)]) -> Self {
        let each = |of: &dyn Fn(&(usize, f64, f64)) -> f64| -> Vec<f64> {
            groups.iter().flat_map(|group| vec![of(group); group.0]).collect()
        };
        let links = each(&|group| group.1).into_iter().map(NodeBandwidth::symmetric).collect();
        Self { links, speeds: each(&|group| group.2) }
    }

    /// All peers average the same share.
    pub(super) fn equal_parts(&self, job: Job) -> StepTime {
        let averaging = SimulatedRound::all_reduce(self.links.clone(), job.n_bytes());
        let compute_s = job.batch as f64 / self.speeds.iter().sum::<f64>();
        StepTime { compute_s, averaging_s: averaging.seconds(job.rules()) }
    }

    /// All peers follow the plan.
    pub(super) fn planned(&self, job: Job, updates: Updates) -> Result<StepTime> {
        let (plan, averaging_s) = plan(&self.links, &self.speeds, job, updates, Sharing::ByLength)?;
        Ok(StepTime { compute_s: plan.compute_s, averaging_s })
    }
}
