//! What was contributed, by what it is of: the same work counts once, under whichever id and key it comes.
//!
//! Work is known by the parameters and the samples that it is the gradient of, in any order, and by its values. One
//! that has its samples from others in part is told from honest work by how much it shares: honest peers draw
//! independently, so what they have in common is what chance gives.

use std::collections::{HashMap, VecDeque};

use barnraise_protocol::Sha256Hash;
use barnraise_protocol::account::SampleId;

use crate::PeerKey;
use crate::round::AddressGroup;

/// Parameters whose contributions are remembered: those of now, and of as many epochs before as work may count late.
const PARAMETERS_MAX: usize = 5;
/// Epochs whose gradients are remembered.
const EPOCHS_MAX: usize = 5;
/// Of the samples that an address contributed by some parameters, a part of one in so many may be there twice beyond
/// what independent draws from the data give: shards and shuffle buffers make draws less than independent.
const OWN_REPEATS: u64 = 16;
/// One in so many may be what other addresses contributed, likewise.
const OTHERS_REPEATS: u64 = 2;
/// As many more, where there are few samples.
const REPEATS_MORE: f64 = 8.0;

/// A contribution, as its peer names it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Name {
    /// Whose.
    pub peer: PeerKey,
    /// Its number.
    pub contribution_id: u64,
}

/// Why a contribution is one that was here before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Repeat {
    /// Under the same name, and what comes of it is not known yet.
    #[error("this contribution is under way already; offer it again")]
    UnderWay,
    /// Of the same samples.
    #[error("the gradient of these samples was contributed before, or is on its way: it counts once")]
    List,
    /// Of the same values.
    #[error("this gradient was contributed before, or is on its way: it counts once")]
    Gradient,
    /// Of samples that the same address contributed.
    #[error(
        "{got} samples were contributed twice from this address in an epoch; at most {max} are there by chance"
    )]
    Own {
        /// This contribution included.
        got: u64,
        /// Of honest peers.
        max: u64,
    },
    /// Of samples that others contributed.
    #[error("{got} samples were contributed by others before; at most {max} are there by chance")]
    Others {
        /// With the other contributions of this address.
        got: u64,
        /// Of honest peers.
        max: u64,
    },
}

/// A list of samples that is taken. Whoever has it keeps it, or gives it back.
#[derive(Debug, PartialEq, Eq)]
pub struct Claim {
    parameters: Sha256Hash,
    digest: Sha256Hash,
    group: AddressGroup,
    samples: Vec<SampleId>,
    n_own: u64,
    n_others: u64,
    n_by_chance: u64,
}

/// By one set of parameters.
#[derive(Debug, Default)]
struct Contributed {
    lists: HashMap<Sha256Hash, Name>,
    times: HashMap<SampleId, u32>,
    of_groups: HashMap<AddressGroup, OfGroup>,
}

#[derive(Debug, Default)]
struct OfGroup {
    n_samples: u64,
    times: HashMap<SampleId, u32>,
    /// That were there already, of the address itself and of others.
    n_own: u64,
    n_others: u64,
    /// That chance has in common with others.
    n_by_chance: u64,
}

/// What was contributed to a run lately. Bounded by what the newest epochs have.
#[derive(Debug)]
pub struct Ledger {
    /// Of the data set.
    n_samples: u64,
    of_parameters: VecDeque<(Sha256Hash, Contributed)>,
    gradients: VecDeque<(u64, HashMap<Sha256Hash, Name>)>,
}

impl Ledger {
    /// Of a data set with so many samples.
    pub fn new(n_samples: u64) -> Self {
        Self { n_samples: n_samples.max(1), of_parameters: VecDeque::new(), gradients: VecDeque::new() }
    }

    /// Takes the samples of a contribution by `parameters`, from `group`; in flight counts as much as counted.
    ///
    /// # Errors
    /// They were contributed before.
    pub fn claim(
        &mut self,
        name: &Name,
        group: AddressGroup,
        parameters: Sha256Hash,
        list: &[SampleId],
    ) -> Result<Claim, Repeat> {
        let mut samples = list.to_vec();
        samples.sort_unstable();
        let digest = digest(&samples);
        let n_data = self.n_samples;
        let contributed = self.contributed(parameters);
        match contributed.lists.get(&digest) {
            Some(first) if first == name => return Err(Repeat::UnderWay),
            Some(_) => return Err(Repeat::List),
            None => {}
        }
        let none = OfGroup::default();
        let of_group = contributed.of_groups.get(&group).unwrap_or(&none);
        let claim = claim(
            contributed,
            of_group,
            n_data,
            Claim { parameters, digest, group, samples, n_own: 0, n_others: 0, n_by_chance: 0 },
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
    pub fn give_back(&mut self, claim: &Claim) {
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

    /// Takes a gradient with these values ([`values_hash`]), for `epoch`.
    ///
    /// # Errors
    /// It was contributed before, to this epoch or to one of those before it.
    pub fn claim_gradient(&mut self, name: &Name, epoch: u64, values: Sha256Hash) -> Result<(), Repeat> {
        let mut known = self.gradients.iter().filter_map(|(_, gradients)| gradients.get(&values));
        match known.next() {
            Some(first) if first == name => return Err(Repeat::UnderWay),
            Some(_) => return Err(Repeat::Gradient),
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

/// Of the values of a gradient as it counts, whatever it was encoded as. The sign of a zero says nothing.
pub fn values_hash(values: &[f32]) -> Sha256Hash {
    let bytes: Vec<u8> = values.iter().flat_map(|value| (value + 0.0).to_bits().to_le_bytes()).collect();
    Sha256Hash::of(&bytes)
}

/// With what the samples of a claim have in common with what was contributed.
fn claim(contributed: &Contributed, of_group: &OfGroup, n_data: u64, claim: Claim) -> Claim {
    let (mut n_own, mut n_others) = (0, 0);
    let mut before = None;
    for sample in &claim.samples {
        let own = of_group.times.get(sample).copied().unwrap_or_default();
        let all = contributed.times.get(sample).copied().unwrap_or_default();
        // They are in order: the same ones stand together.
        n_own += u64::from(own > 0 || before == Some(sample));
        n_others += u64::from(all > own);
        before = Some(sample);
    }
    let n_distinct = contributed.times.len() as u64;
    let n_by_chance = claim.samples.len() as u64 * n_distinct.min(n_data) / n_data;
    Claim { n_own, n_others, n_by_chance, ..claim }
}

/// Whether an address with this claim has no more in common with what was contributed than honest peers have.
fn check(of_group: &OfGroup, claim: &Claim, n_data: u64) -> Result<(), Repeat> {
    let n_samples = of_group.n_samples + claim.samples.len() as u64;
    // So many of them are twice there where each is drawn from all of the data.
    let share = n_samples as f64 / n_data as f64;
    let by_chance = n_samples as f64 - n_data as f64 * (1.0 - (-share).exp());
    let max = (by_chance + (n_samples / OWN_REPEATS) as f64 + REPEATS_MORE) as u64;
    let got = of_group.n_own + claim.n_own;
    if got > max {
        return Err(Repeat::Own { got, max });
    }
    // Twice, since peers that begin at the same time may have begun with the same shards.
    let by_chance = 2 * (of_group.n_by_chance + claim.n_by_chance);
    let max = by_chance + n_samples / OTHERS_REPEATS + REPEATS_MORE as u64;
    let got = of_group.n_others + claim.n_others;
    if got > max { Err(Repeat::Others { got, max }) } else { Ok(()) }
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
