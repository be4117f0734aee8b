//! Identifies the sender of wrong bytes of a shard that came in pieces from several peers.
//!
//! If one peer sent the whole shard it is convicted. If several did, no peer is convicted until the right bytes have
//! arrived and each piece is compared with them. So a peer cannot get another one banned by a wrong first piece.

use std::collections::VecDeque;

use barnraise_protocol::Sha256Hash;

use super::ShardSource;
use crate::PeerKey;

/// Most open cases; the newest are kept.
const SUSPICIONS_MAX: usize = 8;
/// Most convictions that the driver has not polled.
const CONVICTED_MAX: usize = 64;

/// Senders of a shard's pieces, in order from its beginning.
#[derive(Debug, Default)]
pub(super) struct Evidence {
    pieces: Vec<Piece>,
}

#[derive(Debug)]
struct Piece {
    from: ShardSource,
    end: usize,
    sha256: Sha256Hash,
}

/// A peer that sent wrong bytes of a shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Convicted {
    /// The peer.
    pub peer: PeerKey,
    /// The shard.
    pub shard: u32,
}

/// Open cases and convictions.
#[derive(Debug, Default)]
pub(super) struct Suspicions {
    open: VecDeque<Suspicion>,
    convicted: VecDeque<Convicted>,
}

#[derive(Debug)]
struct Suspicion {
    shard: u32,
    evidence: Evidence,
    /// Sender of the last piece, which the evidence does not include.
    last: ShardSource,
}

impl Evidence {
    /// Bytes that have arrived.
    pub(super) fn n_bytes(&self) -> u64 {
        self.end() as u64
    }

    fn end(&self) -> usize {
        self.pieces.last().map_or(0, |piece| piece.end)
    }

    /// Adds the new bytes at the end of `here` as a piece of `from`; returns their number.
    pub(super) fn add(&mut self, from: &ShardSource, here: &[u8]) -> u64 {
        let Some(new) = here.get(self.end()..).filter(|new| !new.is_empty()) else { return 0 };
        self.pieces.push(Piece { from: from.clone(), end: here.len(), sha256: Sha256Hash::of(new) });
        new.len() as u64
    }
}

impl Suspicions {
    /// The bytes of a shard are wrong: in a piece of the evidence, or in the last piece, from `last`. Returns whether
    /// peers sent any.
    pub(super) fn on_wrong(&mut self, shard: u32, last: &ShardSource, evidence: Evidence) -> bool {
        let senders = evidence.pieces.iter().map(|piece| &piece.from).chain([last]);
        let mut peers: Vec<&PeerKey> = senders.filter_map(peer_of).collect();
        peers.sort_unstable();
        peers.dedup();
        match peers[..] {
            [] => return false,
            // The backbone's bytes are right: the manifest was made from them.
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

    /// The right bytes of a shard have arrived: closes its cases.
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
                if let (false, ShardSource::Peer(peer)) = (is_right, from) {
                    self.convict(peer, shard);
                }
            }
            // The last piece has no hash: it was wrong if all others were right.
            if let (false, ShardSource::Peer(peer)) = (is_solved, last) {
                self.convict(peer, shard);
            }
        }
    }

    /// Convictions that were not polled yet.
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

fn peer_of(source: &ShardSource) -> Option<&PeerKey> {
    match source {
        ShardSource::Backbone => None,
        ShardSource::Peer(peer) => Some(peer),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(n: usize) -> ShardSource {
        ShardSource::Peer(PeerKey(n.to_le_bytes().to_vec()))
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
        assert_eq!(suspicions.poll().map(|convicted| ShardSource::Peer(convicted.peer)), Some(from(0)));
    }
}
