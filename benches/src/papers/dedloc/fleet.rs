//! A fleet that trains ALBERT-large: seconds of a step, with equal parts and with our plan.
//!
//! Peers compute while they average (delayed parameter updates, section 3.2): the slower of both sets the pace.

use anyhow::Result;
use barnraise_planning::{Situation, Updates, Work};

use super::round::Round;
use super::{ALBERT_BATCH, ALBERT_LARGE_VALUES, peer};
use crate::papers::fluid::Link;

/// As f32.
const VECTOR_BYTES: u64 = 4 * ALBERT_LARGE_VALUES;

/// Links and speeds of peers.
pub(crate) struct Fleet {
    links: Vec<Link>,
    /// Samples per second; 0 without a GPU.
    speeds: Vec<f64>,
}

impl Fleet {
    pub(crate) fn new(links: Vec<Link>, speeds: &[f64]) -> Self {
        Self { links, speeds: speeds.to_vec() }
    }

    /// The speed of each of equal GPUs, samples per second, with which `links` take `slowdown` times as long as
    /// links that cost nothing.
    pub(crate) fn speed_for_slowdown(links: &[Link], slowdown: f64) -> f64 {
        let averaging_s = Round::all_reduce(links.to_vec(), VECTOR_BYTES as f64).seconds();
        let compute_s = averaging_s / slowdown;
        ALBERT_BATCH as f64 / compute_s / links.len() as f64
    }

    /// Everybody averages the same share.
    pub(crate) fn equal_step_s(&self) -> f64 {
        let averaging = Round::all_reduce(self.links.clone(), VECTOR_BYTES as f64);
        averaging.seconds().max(ALBERT_BATCH as f64 / self.speeds.iter().sum::<f64>())
    }

    /// Everybody does what the plan says.
    pub(crate) fn planned_step_s(&self) -> Result<f64> {
        let work = Work {
            vector_bytes: VECTOR_BYTES,
            n_values: ALBERT_LARGE_VALUES,
            target_batch_size: ALBERT_BATCH,
            part_values_min: 1,
            updates: Updates::Delayed,
        };
        let peers = self.links.iter().zip(&self.speeds).enumerate();
        let mut peers: Vec<_> = peers.map(|(index, (link, speed))| peer(index, *link, *speed)).collect();
        // Helpers neither train nor keep the model.
        peers.iter_mut().for_each(|peer| peer.receives = peer.samples_per_s > 0.0);
        let plan = Situation::new(peers, &[], work)?.plan()?;
        let averaging = Round::of_plan(&plan, self.links.clone(), VECTOR_BYTES as f64);
        Ok(averaging.seconds().max(plan.compute_s))
    }
}
