//! Who sent the wrong bytes of a shard that came in pieces from several peers.
//!
//! Where one peer sent all of it the case is clear. Where several did, nobody is blamed before the right bytes are
//! here and each piece is compared with them, so that no peer gets another one banned by sending it a bad start.

use std::collections::VecDeque;

use barnraise_protocol::Sha256Hash;

use super::Source;
use crate::PeerKey;

/// Shards of which is remembered who sent what, the newest.
const SUSPICIONS_MAX: usize = 8;
/// Convictions that nobody has asked for.
const CONVICTED_MAX: usize = 64;

/// Who sent what of a shard so far, in order from its beginning.
#[derive(Debug, Default)]
pub(super) struct Evidence {
    pieces: Vec<Piece>,
}

#[derive(Debug)]
struct Piece {
    from: Source,
    end: usize,
    sha256: Sha256Hash,
}

/// A peer that sent wrong bytes of a shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Convicted {
    /// Who.
    pub peer: PeerKey,
    /// Of which shard.
    pub shard: u32,
}

/// Cases that are open, and verdicts.
#[derive(Debug, Default)]
pub(super) struct Suspicions {
    open: VecDeque<Suspicion>,
    convicted: VecDeque<Convicted>,
}

#[derive(Debug)]
struct Suspicion {
    shard: u32,
    evidence: Evidence,
    /// Who sent what came after the evidence.
    last: Source,
}

impl Evidence {
    /// Bytes that are here.
    pub(super) fn n_bytes(&self) -> u64 {
        self.end() as u64
    }

    fn end(&self) -> usize {
        self.pieces.last().map_or(0, |piece| piece.end)
    }

    /// What `here` has more than before is from `from`; returns how much that is.
    pub(super) fn add(&mut self, from: &Source, here: &[u8]) -> u64 {
        let Some(new) = here.get(self.end()..).filter(|new| !new.is_empty()) else { return 0 };
        self.pieces.push(Piece { from: from.clone(), end: here.len(), sha256: Sha256Hash::of(new) });
        new.len() as u64
    }
}

impl Suspicions {
    /// The bytes of a shard are wrong: those of the evidence, or those that `last` sent after them. Returns whether
    /// peers sent any.
    pub(super) fn on_wrong(&mut self, shard: u32, last: &Source, evidence: Evidence) -> bool {
        let senders = evidence.pieces.iter().map(|piece| &piece.from).chain([last]);
        let mut peers: Vec<&PeerKey> = senders.filter_map(peer_of).collect();
        peers.sort_unstable();
        peers.dedup();
        match peers[..] {
            [] => return false,
            // What came from the backbone is what the manifest was made from.
            [peer] => self.convict(peer.clone(), shard),
            _ => {
                if self.open.len() >= SUSPICIONS_MAX {
                    self.open.pop_front();
                }
                self.open.push_back(Suspicion { shard, evidence, last: last.clone() });
            }
        }
        true
    }

    /// These are the right bytes.
    pub(super) fn on_delivered(&mut self, shard: u32, bytes: &[u8]) {
        let (closed, open): (VecDeque<_>, _) =
            std::mem::take(&mut self.open).into_iter().partition(|case| case.shard == shard);
        self.open = open;
        for Suspicion { evidence, last, .. } in closed {
            let mut start = 0;
            let mut is_solved = false;
            for Piece { from, end, sha256 } in evidence.pieces {
                let is_right = bytes.get(start..end).is_some_and(|piece| Sha256Hash::of(piece) == sha256);
                start = end;
                is_solved |= !is_right;
                if let (false, Source::Peer(peer)) = (is_right, from) {
                    self.convict(peer, shard);
                }
            }
            // Of what came last nothing is kept: it is to blame for sure where all the rest was right.
            if let (false, Source::Peer(peer)) = (is_solved, last) {
                self.convict(peer, shard);
            }
        }
    }

    /// Verdicts that were not asked for yet.
    pub(super) fn convicted(&self) -> impl Iterator<Item = &PeerKey> {
        self.convicted.iter().map(|convicted| &convicted.peer)
    }

    pub(super) fn poll(&mut self) -> Option<Convicted> {
        self.convicted.pop_front()
    }

    fn convict(&mut self, peer: PeerKey, shard: u32) {
        if self.convicted.len() < CONVICTED_MAX {
            self.convicted.push_back(Convicted { peer, shard });
        }
    }
}

fn peer_of(source: &Source) -> Option<&PeerKey> {
    match source {
        Source::Backbone => None,
        Source::Peer(peer) => Some(peer),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(n: usize) -> Source {
        Source::Peer(PeerKey(n.to_le_bytes().to_vec()))
    }

    #[test]
    fn of_open_cases_the_newest_are_remembered_and_of_verdicts_the_first() {
        let mut suspicions = Suspicions::default();
        for shard in 0..=SUSPICIONS_MAX {
            let mut evidence = Evidence::default();
            assert_eq!(evidence.add(&from(1), &[1, 2]), 2);
            assert!(suspicions.on_wrong(shard as u32, &from(2), evidence));
            assert_eq!(suspicions.open.len(), (shard + 1).min(SUSPICIONS_MAX));
        }
        assert_eq!(suspicions.open[0].shard, 1, "the oldest gave way");
        assert_eq!(suspicions.poll(), None);
        for n in 0..=CONVICTED_MAX {
            assert!(suspicions.on_wrong(0, &from(n), Evidence::default()));
        }
        assert_eq!(suspicions.convicted().count(), CONVICTED_MAX);
        assert_eq!(suspicions.poll().map(|convicted| Source::Peer(convicted.peer)), Some(from(0)));
    }
}
