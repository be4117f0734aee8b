//! The input of planning: measurements of peers and links, and the workload of a round (DeDLOC §3.2).
//!
//! It never measures. It refuses impossible numbers and sorts the peers by id, so that peers with the same records make
//! the same plan.

use std::collections::BTreeMap;

use crate::error::PlanError;
use crate::peer::PeerId;

/// Most peers in one plan: with more, they are split into groups first ([`crate::groups`]).
pub const PEERS_MAX: usize = 512;

/// Multiple of the fastest averaging at which bandwidths are truncated; see [`PlanningProblem::unit_bytes_per_s`].
pub(crate) const ENOUGH: f64 = 1e4;
const _: () = assert!(ENOUGH > PEERS_MAX as f64 + 1.0);

/// The measurements of a peer (DeDLOC §3.2).
#[derive(Debug, Clone, PartialEq)]
pub struct MeasuredPeer {
    /// The peer.
    pub id: PeerId,
    /// `s_i`: samples per second that it computes gradients of; 0 for one that only averages.
    pub samples_per_s: f64,
    /// `d_i`: bytes per second down.
    pub download_bytes_per_s: f64,
    /// `u_i`: bytes per second up.
    pub upload_bytes_per_s: f64,
    /// Whether others can dial it. One that they cannot (client mode) sends its gradient and never reduces.
    pub is_reachable: bool,
    /// Whether it gets the whole average in each round, as all peers do in the paper. A helper that
    /// neither trains nor keeps the model does not need it.
    pub receives: bool,
}

/// `t_ij`: the bandwidth from one peer to another (DeDLOC §3.2).
#[derive(Debug, Clone, PartialEq)]
pub struct PairLimit {
    /// The sender, `i`.
    pub from: PeerId,
    /// The receiver, `j`.
    pub to: PeerId,
    /// Bytes per second.
    pub bytes_per_s: f64,
}

/// When the average is applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Updates {
    /// Delayed by one round: peers compute while they average, and the slower of both sets the pace. This is
    /// what DeDLOC's programs assume (§3.2).
    #[default]
    Delayed,
    /// At once: peers wait for the average, so a step takes both times.
    Immediate,
}

/// The size of a step.
#[derive(Debug, Clone, PartialEq)]
pub struct RoundWorkload {
    /// `P`: bytes of one gradient as it crosses the wire, encoded. Above zero.
    pub vector_bytes: u64,
    /// Values in the vector, which the parts divide. Above zero.
    pub n_values: u64,
    /// `B`: samples in a step. Above zero.
    pub target_batch_size: u64,
    /// Smallest part of a reducer, in values: smaller ones would cost more in messages than they save.
    pub part_values_min: u64,
    /// When the average is applied.
    pub updates: Updates,
}

/// Validated peers, sorted by id, with pair limits and workload.
#[derive(Debug, Clone)]
pub struct PlanningProblem {
    pub(crate) peers: Vec<MeasuredPeer>,
    /// Bytes per second, by the positions of sender and receiver.
    pub(crate) pair_limits: BTreeMap<(usize, usize), f64>,
    pub(crate) work: RoundWorkload,
}

impl PlanningProblem {
    /// Validates and sorts. The order of `peers` does not matter. Of two limits for one pair the smaller counts.
    ///
    /// # Errors
    /// A list that is empty, too long or has an id twice; a measurement that is negative or not finite;
    /// no reachable peer; no receiver; a limit for a peer that is not listed; a workload with a size of 0.
    pub fn new(
        mut peers: Vec<MeasuredPeer>,
        pair_limits: &[PairLimit],
        work: RoundWorkload,
    ) -> Result<Self, PlanError> {
        check_work(&work)?;
        let n_peers = peers.len();
        if n_peers == 0 {
            return Err(PlanError::NoPeers);
        }
        if n_peers > PEERS_MAX {
            return Err(PlanError::TooManyPeers { got: n_peers, max: PEERS_MAX });
        }
        peers.sort_by(|a, b| a.id.cmp(&b.id));
        if let Some(pair) = peers.windows(2).find(|pair| pair[0].id == pair[1].id) {
            return Err(PlanError::ListedTwice { peer: pair[0].id.clone() });
        }
        for peer in &peers {
            check("samples per second", &peer.id, peer.samples_per_s)?;
            check("download in bytes per second", &peer.id, peer.download_bytes_per_s)?;
            check("upload in bytes per second", &peer.id, peer.upload_bytes_per_s)?;
        }
        if !peers.iter().any(|peer| peer.is_reachable) {
            return Err(PlanError::NobodyReachable { n_peers });
        }
        if !peers.iter().any(|peer| peer.receives) {
            return Err(PlanError::NobodyReceives { n_peers });
        }
        let mut problem = Self { peers, pair_limits: BTreeMap::new(), work };
        for limit in pair_limits {
            check("limit in bytes per second", &limit.from, limit.bytes_per_s)?;
            let pair = (problem.position(&limit.from)?, problem.position(&limit.to)?);
            // Transfers within a node do not cross a network (DeDLOC §3.2).
            if pair.0 != pair.1 {
                let entry = problem.pair_limits.entry(pair).or_insert(limit.bytes_per_s);
                *entry = entry.min(limit.bytes_per_s);
            }
        }
        Ok(problem)
    }

    /// The peers, sorted by id.
    #[must_use]
    pub fn peers(&self) -> &[MeasuredPeer] {
        &self.peers
    }

    pub(crate) fn position(&self, id: &PeerId) -> Result<usize, PlanError> {
        let found = self.peers.binary_search_by(|peer| peer.id.cmp(id));
        found.map_err(|_| PlanError::Unknown { peer: id.clone() })
    }

    /// Samples per second of the contributors.
    pub(crate) fn samples_per_s(&self, contributes: &[bool]) -> f64 {
        self.peers
            .iter()
            .zip(contributes)
            .map(|(peer, &is_in)| if is_in { peer.samples_per_s } else { 0.0 })
            .sum()
    }

    /// Upper bound of the rate of averaging over the network: the second slowest download of a receiver, because the
    /// slowest may be that of the only contributor, which has its vector already.
    pub(crate) fn fastest_receivable_bytes_per_s(&self) -> f64 {
        let receivers = self.peers.iter().filter(|peer| peer.receives);
        let mut downloads: Vec<f64> = receivers.map(|peer| peer.download_bytes_per_s).collect();
        downloads.sort_by(f64::total_cmp);
        downloads.get(1).or(downloads.first()).copied().unwrap_or_default()
    }

    /// The unit of the linear programs: the greatest of all bandwidths, truncated at [`ENOUGH`] times the fastest
    /// averaging. No link carries more than `n + 1` times the fastest averaging, so nothing is lost, and one absurd
    /// measurement does not spoil the numbers of a program for the others.
    pub(crate) fn unit_bytes_per_s(&self) -> f64 {
        let bandwidths = self.peers.iter().map(|peer| peer.download_bytes_per_s.max(peer.upload_bytes_per_s));
        let enough = ENOUGH * self.fastest_receivable_bytes_per_s();
        bandwidths.fold(0.0, f64::max).min(enough).max(f64::MIN_POSITIVE)
    }

    /// Steps per second of peers that compute `samples_per_s` in total and average at `bytes_per_s`, which
    /// may be infinite (DeDLOC eq. 1 where updates are delayed).
    pub(crate) fn steps_per_s(&self, samples_per_s: f64, bytes_per_s: f64) -> f64 {
        let compute = samples_per_s / self.work.target_batch_size as f64;
        let average = bytes_per_s / self.work.vector_bytes as f64;
        match self.work.updates {
            Updates::Delayed => compute.min(average),
            Updates::Immediate if compute > 0.0 && average > 0.0 => {
                (compute.recip() + average.recip()).recip()
            }
            Updates::Immediate => 0.0,
        }
    }

    /// The inverse of [`Self::steps_per_s`]: the rate of averaging for `steps_per_s`.
    /// `None` where computing alone takes longer.
    pub(crate) fn bytes_per_s_for(&self, steps_per_s: f64, samples_per_s: f64) -> Option<f64> {
        let compute = samples_per_s / self.work.target_batch_size as f64;
        let average = match self.work.updates {
            Updates::Delayed => steps_per_s,
            Updates::Immediate => (steps_per_s.recip() - compute.recip()).recip(),
        };
        (compute >= steps_per_s && average > 0.0).then_some(average * self.work.vector_bytes as f64)
    }
}

fn check(what: &'static str, peer: &PeerId, value: f64) -> Result<(), PlanError> {
    if value.is_finite() && value >= 0.0 {
        Ok(())
    } else {
        Err(PlanError::BadMeasurement { peer: peer.clone(), what, value })
    }
}

fn check_work(work: &RoundWorkload) -> Result<(), PlanError> {
    let sizes = [
        ("the vector's length in bytes", work.vector_bytes),
        ("the number of values", work.n_values),
        ("the target batch size", work.target_batch_size),
    ];
    match sizes.into_iter().find(|&(_, size)| size == 0) {
        Some((what, _)) => Err(PlanError::EmptyWork { what }),
        None => Ok(()),
    }
}
