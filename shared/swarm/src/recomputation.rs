//! Whose contributions are computed once more, and what comes of it.
//!
//! Each contribution is chosen with the same probability, by a secret: nobody can tell beforehand, and a contribution
//! that is offered again is chosen again. What a peer signed for it cannot change then; all that it can do is leave.
//! So whoever leaves when it is asked owes accounts: of many contributions to come, so that leaving is worth nothing. Who
//! does it time and again is taken for what it is.

use std::collections::{HashMap, VecDeque};

use barnraise_protocol::gradient::Offer;
use barnraise_protocol::{Sha256Hash, TensorCodec};

use crate::PeerKey;

/// Most peers that are remembered to have given no account; those that did so first are forgotten first.
pub const OWING_MAX: usize = 10_000;
/// Who was asked so often and gave no account is not listened to.
pub const EVASIONS_MAX: u32 = 4;
/// Accounts that are owed for one that was not given: so many times what is chosen of as many contributions, on average.
const DEBT: f64 = 20.0;
const DEBT_MAX: f64 = 10_000.0;
/// A codec may lose so many times what it loses of the gradient as it was recomputed: other roundings round other
/// values up.
const CODEC_LOSSES: f32 = 2.0;

/// Chooses contributions.
#[derive(Debug)]
pub struct Selection {
    share: f64,
    secret: [u8; 32],
    owing: HashMap<PeerKey, Debt>,
    order: VecDeque<PeerKey>,
}

#[derive(Debug, Default)]
struct Debt {
    n_owed: u32,
    n_evasions: u32,
}

impl Selection {
    /// Of all contributions `share` is chosen, 0 to 1; nobody else may know `secret`.
    pub fn new(share: f64, secret: [u8; 32]) -> Self {
        Self { share, secret, owing: HashMap::new(), order: VecDeque::new() }
    }

    /// Whether the peer is to be asked what this contribution is of, now that all of it is here.
    pub fn chooses(&self, peer: &PeerKey, offer: &Offer) -> bool {
        if self.owing.get(peer).is_some_and(|debt| debt.n_owed > 0) {
            return true;
        }
        let id = offer.contribution_id.to_le_bytes();
        let what: [&[u8]; 4] = [&self.secret, &peer.0, &id, &offer.transfer.sha256.0];
        let hash = Sha256Hash::of(&what.concat()).0;
        let (first, _) = hash.split_first_chunk().unwrap_or((&[0; 8], &[]));
        // 53 bits are what an f64 holds.
        let drawn = (u64::from_le_bytes(*first) >> 11) as f64 / (1u64 << 53) as f64;
        drawn < self.share
    }

    /// Whether nothing more is taken from the peer: it gave no account so often that it was no accident.
    pub fn is_evasive(&self, peer: &PeerKey) -> bool {
        self.owing.get(peer).is_some_and(|debt| debt.n_evasions >= EVASIONS_MAX)
    }

    /// It was asked, and gave no account that is one.
    pub fn on_no_account(&mut self, peer: &PeerKey) {
        if !self.owing.contains_key(peer) {
            self.order.push_back(peer.clone());
        }
        let debt = self.owing.entry(peer.clone()).or_default();
        debt.n_owed = (DEBT / self.share.max(DEBT / DEBT_MAX)).ceil() as u32;
        debt.n_evasions = debt.n_evasions.saturating_add(1);
        if self.order.len() > OWING_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.owing.remove(&oldest);
        }
    }

    /// It gave one.
    pub fn on_account(&mut self, peer: &PeerKey) {
        if let Some(debt) = self.owing.get_mut(peer) {
            debt.n_owed = debt.n_owed.saturating_sub(1);
        }
    }
}

/// How far a contribution is from what was recomputed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Difference {
    /// Euclidean, over the length of the recomputed gradient.
    pub distance: f32,
    /// Up to which it is the same gradient on another device.
    pub allowed: f32,
}

impl Difference {
    /// Between `claimed`, as it came in `codec`, and `recomputed`, both `[n_parameters]` and finite.
    ///
    /// `tolerance` is what devices may differ by, as a part of the gradient's length. `None` where nothing can be
    /// said: a gradient of no length, or one that the codec cannot carry.
    pub fn between(claimed: &[f32], recomputed: &[f32], codec: TensorCodec, tolerance: f32) -> Option<Self> {
        let length = norm(recomputed.iter().copied());
        let sent = codec.encode(recomputed).ok()?;
        let sent = codec.decode(&sent, recomputed.len()).ok()?;
        let lost = norm(sent.iter().zip(recomputed).map(|(sent, whole)| sent - whole));
        let distance = norm(claimed.iter().zip(recomputed).map(|(claimed, own)| claimed - own));
        let is_said = length.is_normal() && distance.is_finite() && claimed.len() == recomputed.len();
        is_said.then(|| Self {
            distance: (distance / length) as f32,
            allowed: tolerance + CODEC_LOSSES * (lost / length) as f32,
        })
    }

    /// Whether it is another gradient.
    pub fn is_wrong(&self) -> bool {
        self.distance > self.allowed
    }
}

fn norm(values: impl Iterator<Item = f32>) -> f64 {
    values.map(|value| f64::from(value).powi(2)).sum::<f64>().sqrt()
}

#[cfg(test)]
mod tests {
    use barnraise_protocol::bulk::Transfer;

    use super::*;
    use crate::random::SplitMix64;

    fn offer(id: u64) -> Offer {
        let transfer = Transfer::of(&id.to_le_bytes());
        let codec = TensorCodec::F32;
        Offer { contribution_id: id, epoch: 0, n_samples: 8, loss: 1.0, n_values: 2, codec, transfer }
    }

    fn peer(name: u8) -> PeerKey {
        PeerKey(vec![name])
    }

    #[test]
    fn as_many_are_chosen_as_are_wanted_and_others_with_another_secret() {
        let chosen = |share, secret| {
            let selection = Selection::new(share, [secret; 32]);
            (0..4000).filter(|&id| selection.chooses(&peer(1), &offer(id))).collect::<Vec<u64>>()
        };
        assert_eq!(chosen(0.0, 1).len(), 0);
        assert_eq!(chosen(1.0, 1).len(), 4000);
        // 400 are expected; five standard deviations are 95.
        assert!((305..=495).contains(&chosen(0.1, 1).len()), "{}", chosen(0.1, 1).len());
        assert_eq!(chosen(0.1, 1), chosen(0.1, 1), "one that is offered again is chosen again");
        assert_ne!(chosen(0.1, 1), chosen(0.1, 2));
    }

    #[test]
    fn whoever_gives_no_account_owes_many() {
        let mut selection = Selection::new(0.5, [1; 32]);
        let is_asked = |selection: &Selection| (0..100).all(|id| selection.chooses(&peer(1), &offer(id)));
        assert!(!is_asked(&selection));
        selection.on_no_account(&peer(1));
        for _ in 0..39 {
            selection.on_account(&peer(1));
        }
        assert!(is_asked(&selection), "40 are twenty times what is chosen of two");
        selection.on_account(&peer(1));
        assert!(!is_asked(&selection));
        assert!(!(0..100).all(|id| selection.chooses(&peer(2), &offer(id))), "others owe nothing");
    }

    #[test]
    fn whoever_gives_none_time_and_again_is_not_listened_to() {
        let mut selection = Selection::new(0.5, [1; 32]);
        for _ in 0..EVASIONS_MAX {
            assert!(!selection.is_evasive(&peer(1)));
            selection.on_no_account(&peer(1));
            (0..100).for_each(|_| selection.on_account(&peer(1)));
        }
        assert!(selection.is_evasive(&peer(1)) && !selection.is_evasive(&peer(2)));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut selection = Selection::new(0.0, [1; 32]);
        let name = |n: usize| PeerKey(n.to_le_bytes().to_vec());
        (0..OWING_MAX + 5).for_each(|n| selection.on_no_account(&name(n)));
        assert_eq!((selection.owing.len(), selection.order.len()), (OWING_MAX, OWING_MAX));
        assert!(!selection.chooses(&name(0), &offer(0)) && selection.chooses(&name(5), &offer(0)));
    }

    fn gradient(seed: u64) -> Vec<f32> {
        let mut random = SplitMix64::new(seed);
        let mut next = || (random.below(2000) as f32 - 1000.0) / 1000.0;
        (0..500).map(|_| next() * next() * next()).collect()
    }

    fn distance(claimed: &[f32], codec: TensorCodec) -> Difference {
        Difference::between(claimed, &gradient(1), codec, 0.02).unwrap()
    }

    #[test]
    fn a_gradient_in_any_codec_is_itself() {
        for codec in [TensorCodec::F32, TensorCodec::F16, TensorCodec::Int8] {
            let other_device: Vec<f32> = gradient(1).iter().map(|value| value * 1.0001 + 1e-5).collect();
            let sent = codec.decode(&codec.encode(&other_device).unwrap(), 500).unwrap();
            let difference = distance(&sent, codec);
            assert!(!difference.is_wrong(), "{codec:?}: {difference:?}");
        }
    }

    #[test]
    fn one_that_is_turned_scaled_of_others_or_noise_is_not() {
        let own = gradient(1);
        let lies = [
            own.iter().map(|value| -value).collect(),
            own.iter().map(|value| value * 1.1).collect(),
            vec![0.0; 500],
            gradient(2),
            own.iter().zip(gradient(2)).map(|(own, other)| own + 0.1 * other).collect::<Vec<f32>>(),
        ];
        for lie in lies {
            for codec in [TensorCodec::F32, TensorCodec::F16, TensorCodec::Int8] {
                let sent = codec.decode(&codec.encode(&lie).unwrap(), 500).unwrap();
                assert!(distance(&sent, codec).is_wrong(), "{codec:?}: {:?}", distance(&sent, codec));
            }
        }
    }

    #[test]
    fn of_no_gradient_nothing_is_said() {
        assert_eq!(Difference::between(&[1.0, 0.0], &[0.0, 0.0], TensorCodec::F32, 0.02), None);
        assert_eq!(Difference::between(&[1.0], &[1.0, 2.0], TensorCodec::F32, 0.02), None);
    }
}
