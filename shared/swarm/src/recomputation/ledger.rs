//! Ledger of contributed samples and gradients: the same work counts once, under any id and key.
//!
//! Work is identified by its parameters and its samples, in any order, and by the values of its gradient. A contribution
//! that takes a part of its samples from others is recognized by the size of the overlap: honest peers draw
//! independently, so their overlap is what chance gives.

use std::collections::{HashMap, VecDeque};

use barnraise_protocol::Sha256Hash;
use barnraise_protocol::commitment::SampleId;

use crate::AddressGroup;
use crate::PeerKey;

/// Parameters whose contributions are remembered: the current ones, and those of as many epochs before as stale work
/// may count.
const PARAMETERS_MAX: usize = 5;
/// Epochs whose gradients are remembered.
pub const EPOCHS_MAX: usize = 5;
/// One in so many of an address's samples for the same parameters may be duplicates beyond those that independent draws
/// give: shards and shuffle buffers make draws less than independent.
const OWN_REPEATS: u64 = 16;
/// One in so many may have been contributed by other addresses, likewise.
const OTHERS_REPEATS: u64 = 2;
/// This many more are allowed, where there are few samples.
const REPEATS_MORE: f64 = 8.0;

/// Identity of a contribution.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ContributionName {
    /// Its sender.
    pub peer: PeerKey,
    /// Its sender's number for it.
    pub contribution_id: u64,
}

/// Why a contribution is a duplicate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RepeatError {
    /// A contribution of the same peer and number is not settled yet.
    #[error("this contribution is under way already; offer it again")]
    UnderWay,
    /// The same list of samples.
    #[error("the gradient of these samples was contributed before, or is on its way: it counts once")]
    List,
    /// The same gradient values.
    #[error("this gradient was contributed before, or is on its way: it counts once")]
    Gradient,
    /// Samples that the same address has contributed.
    #[error(
        "{got} samples were contributed twice from this address in an epoch; at most {max} are there by chance"
    )]
    Own {
        /// Duplicates, with this contribution.
        got: u64,
        /// Most that honest peers have.
        max: u64,
    },
    /// Samples that other addresses have contributed.
    #[error("{got} samples were contributed by others before; at most {max} are there by chance")]
    Others {
        /// Shared samples of this address, with this contribution.
        got: u64,
        /// Most that honest peers have.
        max: u64,
    },
}

/// A claimed list of samples. The driver keeps it once the contribution counts, or gives it back ([`Ledger::give_back`]).
#[derive(Debug, PartialEq, Eq)]
pub struct SampleClaim {
    parameters: Sha256Hash,
    digest: Sha256Hash,
    group: AddressGroup,
    samples: Vec<SampleId>,
    n_own: u64,
    n_others: u64,
    n_by_chance: u64,
}

/// Contributions computed with one set of parameters.
#[derive(Debug, Default)]
struct Contributed {
    lists: HashMap<Sha256Hash, ContributionName>,
    times: HashMap<SampleId, u32>,
    of_groups: HashMap<AddressGroup, OfGroup>,
}

#[derive(Debug, Default)]
struct OfGroup {
    n_samples: u64,
    times: HashMap<SampleId, u32>,
    /// Samples that were contributed before, by the address itself and by others.
    n_own: u64,
    n_others: u64,
    /// Expected overlap with others by chance.
    n_by_chance: u64,
}

/// Recent contributions of a run; bounded by the number of epochs.
#[derive(Debug)]
pub struct Ledger {
    /// Samples of the data set.
    n_samples: u64,
    of_parameters: VecDeque<(Sha256Hash, Contributed)>,
    gradients: VecDeque<(u64, HashMap<Sha256Hash, ContributionName>)>,
}

impl Ledger {
    /// A ledger for a data set of `n_samples`.
    pub fn new(n_samples: u64) -> Self {
        Self { n_samples: n_samples.max(1), of_parameters: VecDeque::new(), gradients: VecDeque::new() }
    }

    /// Claims the samples of a contribution from `group`, computed with `parameters`. Contributions in flight count like
    /// those that have counted.
    ///
    /// # Errors
    /// They were contributed before.
    pub fn claim(
        &mut self,
        name: &ContributionName,
        group: AddressGroup,
        parameters: Sha256Hash,
        list: &[SampleId],
    ) -> Result<SampleClaim, RepeatError> {
        let mut samples = list.to_vec();
        samples.sort_unstable();
        let digest = digest(&samples);
        let n_data = self.n_samples;
        let contributed = self.contributed(parameters);
        match contributed.lists.get(&digest) {
            Some(first) if first == name => return Err(RepeatError::UnderWay),
            Some(_) => return Err(RepeatError::List),
            None => {}
        }
        let none = OfGroup::default();
        let of_group = contributed.of_groups.get(&group).unwrap_or(&none);
        let claim = claim(
            contributed,
            of_group,
            n_data,
            SampleClaim { parameters, digest, group, samples, n_own: 0, n_others: 0, n_by_chance: 0 },
        );
        check(of_group, &claim, n_data)?;
        contributed.lists.insert(digest, name.clone());
        let of_group = contributed.of_groups.entry(group).or_default();
        of_group.n_samples += claim.samples.len() as u64;
        of_group.n_own += claim.n_own;
        of_group.n_others += claim.n_others;
        of_group.n_by_chance += claim.n_by_chance;
        for sample in &claim.samples {
            *of_group.times.entry(*sample).or_default() += 1;
            *contributed.times.entry(*sample).or_default() += 1;
        }
        Ok(claim)
    }

    /// The contribution does not count: its samples may be contributed again.
    pub fn give_back(&mut self, claim: &SampleClaim) {
        let found = self.of_parameters.iter_mut().find(|(parameters, _)| *parameters == claim.parameters);
        let Some((_, contributed)) = found else { return };
        if contributed.lists.remove(&claim.digest).is_none() {
            return;
        }
        for sample in &claim.samples {
            take_one(&mut contributed.times, sample);
        }
        let Some(of_group) = contributed.of_groups.get_mut(&claim.group) else { return };
        for sample in &claim.samples {
            take_one(&mut of_group.times, sample);
        }
        of_group.n_samples = of_group.n_samples.saturating_sub(claim.samples.len() as u64);
        of_group.n_own = of_group.n_own.saturating_sub(claim.n_own);
        of_group.n_others = of_group.n_others.saturating_sub(claim.n_others);
        of_group.n_by_chance = of_group.n_by_chance.saturating_sub(claim.n_by_chance);
        if of_group.times.is_empty() {
            contributed.of_groups.remove(&claim.group);
        }
    }

    /// Claims the gradient with these values ([`values_hash`]), for `epoch`.
    ///
    /// # Errors
    /// It was contributed before, to this epoch or to one of those before it.
    pub fn claim_gradient(
        &mut self,
        name: &ContributionName,
        epoch: u64,
        values: Sha256Hash,
    ) -> Result<(), RepeatError> {
        let mut known = self.gradients.iter().filter_map(|(_, gradients)| gradients.get(&values));
        match known.next() {
            Some(first) if first == name => return Err(RepeatError::UnderWay),
            Some(_) => return Err(RepeatError::Gradient),
            None => {}
        }
        let at = match self.gradients.iter().position(|(of, _)| *of == epoch) {
            Some(at) => at,
            None => {
                let at = self.gradients.partition_point(|(of, _)| *of < epoch);
                self.gradients.insert(at, (epoch, HashMap::new()));
                at
            }
        };
        if let Some((_, gradients)) = self.gradients.get_mut(at) {
            gradients.insert(values, name.clone());
        }
        if self.gradients.len() > EPOCHS_MAX {
            self.gradients.pop_front();
        }
        Ok(())
    }

    /// The contribution does not count: another may have these values.
    pub fn give_back_gradient(&mut self, epoch: u64, values: &Sha256Hash) {
        if let Some((_, gradients)) = self.gradients.iter_mut().find(|(of, _)| *of == epoch) {
            gradients.remove(values);
        }
    }

    fn contributed(&mut self, parameters: Sha256Hash) -> &mut Contributed {
        let at = self.of_parameters.iter().position(|(known, _)| *known == parameters);
        let at = at.unwrap_or_else(|| {
            self.of_parameters.push_back((parameters, Contributed::default()));
            if self.of_parameters.len() > PARAMETERS_MAX {
                self.of_parameters.pop_front();
            }
            self.of_parameters.len() - 1
        });
        &mut self.of_parameters[at].1
    }
}

/// Hash of the decoded values of a gradient, the same for every codec. The sign of a zero is ignored.
pub fn values_hash(values: &[f32]) -> Sha256Hash {
    let bytes: Vec<u8> = values.iter().flat_map(|value| (value + 0.0).to_bits().to_le_bytes()).collect();
    Sha256Hash::of(&bytes)
}

/// Adds to a claim its overlap with earlier contributions.
fn claim(contributed: &Contributed, of_group: &OfGroup, n_data: u64, claim: SampleClaim) -> SampleClaim {
    let (mut n_own, mut n_others) = (0, 0);
    let mut before = None;
    for sample in &claim.samples {
        let own = of_group.times.get(sample).copied().unwrap_or_default();
        let all = contributed.times.get(sample).copied().unwrap_or_default();
        // They are sorted: equal ones are neighbours.
        n_own += u64::from(own > 0 || before == Some(sample));
        n_others += u64::from(all > own);
        before = Some(sample);
    }
    let n_distinct = contributed.times.len() as u64;
    let n_by_chance = claim.samples.len() as u64 * n_distinct.min(n_data) / n_data;
    SampleClaim { n_own, n_others, n_by_chance, ..claim }
}

/// Checks that an address with this claim overlaps earlier contributions no more than an honest peer's.
fn check(of_group: &OfGroup, claim: &SampleClaim, n_data: u64) -> Result<(), RepeatError> {
    let n_samples = of_group.n_samples + claim.samples.len() as u64;
    // Expected duplicates if each sample is drawn from the whole data set.
    let share = n_samples as f64 / n_data as f64;
    let by_chance = n_samples as f64 - n_data as f64 * (1.0 - (-share).exp());
    let max = (by_chance + (n_samples / OWN_REPEATS) as f64 + REPEATS_MORE) as u64;
    let got = of_group.n_own + claim.n_own;
    if got > max {
        return Err(RepeatError::Own { got, max });
    }
    // Doubled, since peers that begin at the same time may begin with the same shards.
    let by_chance = 2 * (of_group.n_by_chance + claim.n_by_chance);
    let max = by_chance + n_samples / OTHERS_REPEATS + REPEATS_MORE as u64;
    let got = of_group.n_others + claim.n_others;
    if got > max { Err(RepeatError::Others { got, max }) } else { Ok(()) }
}

fn digest(sorted: &[SampleId]) -> Sha256Hash {
    let words = sorted.iter().flat_map(|sample| [sample.shard, sample.index]);
    Sha256Hash::of(&words.flat_map(u32::to_le_bytes).collect::<Vec<u8>>())
}

fn take_one(times: &mut HashMap<SampleId, u32>, sample: &SampleId) {
    if let Some(n) = times.get_mut(sample) {
        *n -= 1;
        if *n == 0 {
            times.remove(sample);
        }
    }
}

#[cfg(test)]
mod tests;
