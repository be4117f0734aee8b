//! A fleet that trains a model: seconds of a step, with equal parts and with our plan.

use anyhow::Result;
use barnraise_planning::Updates;

use super::planned::{Job, plan};
use super::round::{Round, Sharing};
use crate::papers::fluid::Link;

/// Links and speeds of peers.
#[derive(Debug, Clone)]
pub(super) struct Fleet {
    pub(super) links: Vec<Link>,
    /// Samples per second; 0 without a GPU.
    pub(super) speeds: Vec<f64>,
}

/// Where the time of a step goes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Step {
    pub(super) compute_s: f64,
    pub(super) averaging_s: f64,
}

impl Step {
    /// Peers compute while they average (delayed parameter updates, section 3.2): the slower of both sets the pace.
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
        let links = each(&|group| group.1).into_iter().map(Link::symmetric).collect();
        Self { links, speeds: each(&|group| group.2) }
    }

    /// Everybody averages the same share.
    pub(super) fn equal_parts(&self, job: Job) -> Step {
        let averaging = Round::all_reduce(self.links.clone(), job.n_bytes());
        let compute_s = job.batch as f64 / self.speeds.iter().sum::<f64>();
        Step { compute_s, averaging_s: averaging.seconds(job.rules()) }
    }

    /// Everybody does what the plan says.
    pub(super) fn planned(&self, job: Job, updates: Updates) -> Result<Step> {
        let (plan, averaging_s) = plan(&self.links, &self.speeds, job, updates, Sharing::ByLength)?;
        Ok(Step { compute_s: plan.compute_s, averaging_s })
    }
}
