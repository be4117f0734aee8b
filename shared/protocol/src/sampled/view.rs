//! What a peer knows of the others (MoDEST §3.5, algorithm 3), and a digest of it, so that only what the receiver lacks travels
//! (MoDEST §4.4 proposes to share entries selectively).

use serde::{Deserialize, Serialize};

use super::activity::{ActivityProof, PeerPrefix};
use super::membership::Membership;

/// Most peers that a peer knows.
pub const REGISTERED_MAX: usize = 8192;
/// Largest view, as it is encoded. The rest comes with the next one.
pub const VIEW_BYTES_MAX: usize = 64 * 1024;
/// Largest digest: of [`REGISTERED_MAX`] peers.
pub const DIGEST_BYTES_MAX: usize = 16 * 1024;

/// Bits of a digest for each item. With four hash functions one item in eighteen seems to be known and is not; the salt is
/// another one next time.
const BITS_PER_ITEM: usize = 6;
const N_HASHES: u64 = 4;
/// A small digest has room for so many peers: among few, each that seems to be known is missed.
const DIGEST_PEERS_MIN: usize = 32;
/// Each peer has an item for its membership and one for its activity.
const ITEMS_PER_PEER: usize = 2;
const _: () = assert!(REGISTERED_MAX * ITEMS_PER_PEER * BITS_PER_ITEM / 8 + 32 < DIGEST_BYTES_MAX);

/// Events and activity of peers, each proven by the peer that it is about.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct View {
    /// The newest events.
    pub memberships: Vec<Membership>,
    /// Rounds in which members were active, later than those in which they joined.
    pub activity: Vec<ActivityProof>,
}

/// A Bloom filter (Bloom 1970) of what a peer knows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ViewDigest {
    salt: u64,
    bits: Vec<u8>,
}

impl ViewDigest {
    /// A digest with room for at least this many peers, that contains nothing.
    pub fn new(salt: u64, n_peers: usize) -> Self {
        let n_bits = n_peers.clamp(DIGEST_PEERS_MIN, REGISTERED_MAX) * ITEMS_PER_PEER * BITS_PER_ITEM;
        Self { salt, bits: vec![0; n_bits.div_ceil(8)] }
    }

    /// As if all were known: its receiver sends nothing but itself.
    pub fn of_everything() -> Self {
        Self { salt: 0, bits: vec![u8::MAX] }
    }

    /// Adds a peer's membership.
    pub fn insert_membership(&mut self, peer: PeerPrefix, counter: u64) {
        self.insert(hash(self.salt, peer, counter, u64::MAX));
    }

    /// Adds a peer's activity.
    pub fn insert_activity(&mut self, peer: PeerPrefix, counter: u64, round: u64) {
        self.insert(hash(self.salt, peer, counter, round));
    }

    /// Whether the peer's membership seems to be known.
    #[must_use]
    pub fn has_membership(&self, peer: PeerPrefix, counter: u64) -> bool {
        self.contains(hash(self.salt, peer, counter, u64::MAX))
    }

    /// Whether the peer's activity seems to be known.
    #[must_use]
    pub fn has_activity(&self, peer: PeerPrefix, counter: u64, round: u64) -> bool {
        self.contains(hash(self.salt, peer, counter, round))
    }

    fn insert(&mut self, item: u64) {
        for place in places(item, self.bits.len()) {
            self.bits[place / 8] |= 1 << (place % 8);
        }
    }

    fn contains(&self, item: u64) -> bool {
        !self.bits.is_empty()
            && places(item, self.bits.len()).all(|place| self.bits[place / 8] >> (place % 8) & 1 == 1)
    }
}

/// The bits of an item (Kirsch and Mitzenmacher 2006: two hashes are enough).
fn places(item: u64, n_bytes: usize) -> impl Iterator<Item = usize> {
    let n_bits = n_bytes as u64 * 8;
    let (first, second) = (item, mix(item) | 1);
    (0..N_HASHES)
        .filter(move |_| n_bits > 0)
        .map(move |i| (first.wrapping_add(second.wrapping_mul(i)) % n_bits) as usize)
}

fn hash(salt: u64, peer: PeerPrefix, counter: u64, round: u64) -> u64 {
    let peer = u64::from(u32::from_le_bytes(peer.0));
    [peer, counter, round].into_iter().fold(mix(salt), |hash, word| mix(hash ^ mix(word)))
}

/// The mixer of splitmix64 (Steele, Lea and Flood 2014).
pub(super) fn mix(word: u64) -> u64 {
    let mut z = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(n: u64) -> PeerPrefix {
        PeerPrefix((n as u32).wrapping_mul(0x9e37_79b9).to_le_bytes())
    }

    #[test]
    fn a_digest_has_what_was_put_in_and_little_else() {
        let mut digest = ViewDigest::new(5, 500);
        for n in 0..500 {
            digest.insert_membership(peer(n), 1);
            digest.insert_activity(peer(n), 1, 10 + n);
        }
        assert!(
            (0..500).all(|n| digest.has_membership(peer(n), 1) && digest.has_activity(peer(n), 1, 10 + n))
        );
        let false_ones = (0..5000).filter(|n| digest.has_activity(peer(*n), 1, 2000)).count();
        assert!(false_ones < 5000 / 12, "{false_ones} of 5000 seem to be known and are not");
        assert!(!ViewDigest::default().has_membership(peer(1), 1), "of nothing, nothing is known");
        let all = ViewDigest::of_everything();
        assert!((0..500).all(|n| all.has_membership(peer(n), n) && all.has_activity(peer(n), n, n)));
    }

    /// Peers read the digests of each other.
    #[test]
    fn an_item_has_the_same_bits_everywhere() {
        for (round, bits) in [(300, [0x00, 0x81, 0x24]), (301, [0x24, 0x90, 0x00])] {
            let mut digest = ViewDigest { salt: 7, bits: vec![0; 3] };
            digest.insert_activity(PeerPrefix([1, 2, 3, 4]), 1, round);
            assert_eq!(digest.bits, bits, "{round}");
        }
    }

    /// Each of them counts.
    #[test]
    fn among_few_none_seems_to_be_known_and_is_not() {
        let is_mistaken = |salt: u64| {
            let mut digest = ViewDigest::new(salt, 4);
            (0..4).for_each(|n| digest.insert_activity(peer(n), 1, 7));
            (0..4).any(|n| digest.has_activity(peer(n), 1, 50))
        };
        let n_mistaken = (0..1000).filter(|salt| is_mistaken(*salt)).count();
        assert!(n_mistaken < 5, "{n_mistaken}");
    }

    #[test]
    fn a_digest_without_bits_has_nothing() {
        let mut digest = ViewDigest::default();
        digest.insert_membership(peer(1), 1);
        digest.insert_activity(peer(1), 1, 7);
        assert!(!digest.has_membership(peer(1), 1) && !digest.has_activity(peer(1), 1, 7));
    }

    #[test]
    fn another_salt_mistakes_other_items() {
        let with_salt = |salt: u64| {
            let mut digest = ViewDigest::new(salt, 100);
            (0..100).for_each(|n| digest.insert_membership(peer(n), 1));
            (0..2000).filter(|n| digest.has_activity(peer(*n), 1, 7)).collect::<Vec<u64>>()
        };
        let (a, b) = (with_salt(1), with_salt(2));
        assert!(!a.is_empty() && a.iter().filter(|n| b.contains(n)).count() < a.len() / 2);
    }
}
