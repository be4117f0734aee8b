//! Chooses the backbone of a run to join, where there are several: one that is up to date, and of those the one with the
//! fewest contributors for its speed. Pure.
//!
//! Each backbone's progress is its own record in the DHT. Only records of candidates count: a stranger's record that
//! claims a far epoch changes nothing.

use std::cmp::Ordering;

use barnraise_protocol::Sha256Hash;
use barnraise_protocol::access::PublicKey;
use barnraise_protocol::dht::progress::BackboneProgress;

/// Epochs that an up-to-date backbone may be behind the furthest one: their records are of different times.
const BEHIND_MAX: u64 = 16;
/// Likewise, one of so many of all epochs.
const BEHIND_SHARE_MAX: u64 = 10;

/// The rank of a backbone; the least is the best.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Rank {
    group: Group,
    /// Contributors, the new one included, for each byte per second.
    load: f64,
    /// Breaks ties in a different order for each contributor, so that not all join the same backbone.
    lot: [u8; 8],
}

/// In the order of preference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Group {
    UpToDate,
    /// It has no record.
    Unknown,
    Behind,
}

/// Puts the best of `backbones` first.
///
/// - `said`: progress records, of any peers
/// - `asking`: the contributor, in any bytes that identify it
pub(super) fn order(backbones: &mut [PublicKey], said: &[BackboneProgress], asking: &[u8]) {
    let of = |backbone: &PublicKey| said.iter().find(|said| said.peer == *backbone);
    let furthest = backbones.iter().filter_map(of).map(|said| said.progress.epoch).max().unwrap_or(0);
    let behind_max = BEHIND_MAX.max(furthest / BEHIND_SHARE_MAX);
    let rank = |backbone: &PublicKey| {
        let [a, b, c, d, e, f, g, h, ..] = Sha256Hash::of(&[asking, &backbone.0].concat()).0;
        let lot = [a, b, c, d, e, f, g, h];
        match of(backbone) {
            None => Rank { group: Group::Unknown, load: 0.0, lot },
            Some(said) => {
                let is_behind = said.progress.epoch.saturating_add(behind_max) < furthest;
                let group = if is_behind { Group::Behind } else { Group::UpToDate };
                let n_contributors = f64::from(said.progress.n_contributors) + 1.0;
                Rank { group, load: n_contributors / said.bytes_per_second.max(1) as f64, lot }
            }
        }
    };
    backbones.sort_by(|one, other| compare(&rank(one), &rank(other)));
}

fn compare(one: &Rank, other: &Rank) -> Ordering {
    let by_load = || one.load.total_cmp(&other.load);
    one.group.cmp(&other.group).then_with(by_load).then_with(|| one.lot.cmp(&other.lot))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use barnraise_protocol::dht::UnixMillis;
    use barnraise_protocol::dht::progress::LocalProgress;

    use super::*;

    const A: PublicKey = PublicKey([0xa0; 32]);
    const B: PublicKey = PublicKey([0xb0; 32]);
    const C: PublicKey = PublicKey([0xc0; 32]);

    fn said(peer: PublicKey, epoch: u64, n_contributors: u32, bytes_per_second: u64) -> BackboneProgress {
        let progress = LocalProgress {
            epoch,
            n_samples_total: 0,
            model: None,
            n_samples: 0,
            n_contributors,
            samples_per_second: 0.0,
        };
        BackboneProgress {
            peer,
            progress,
            bytes_per_second,
            aggregators: Vec::new(),
            reported_at: UnixMillis(1),
        }
    }

    fn ordered(said: &[BackboneProgress]) -> Vec<PublicKey> {
        let mut backbones = vec![A, B, C];
        order(&mut backbones, said, b"me");
        backbones
    }

    #[test]
    fn the_fewest_contributors_for_the_speed_come_first() {
        assert_eq!(ordered(&[said(A, 50, 9, 100), said(B, 49, 2, 100), said(C, 51, 5, 100)]), [B, C, A]);
        assert_eq!(ordered(&[said(A, 50, 9, 1000), said(B, 49, 2, 100), said(C, 51, 5, 100)]), [A, B, C]);
        // A speed of zero counts as one byte per second.
        assert_eq!(ordered(&[said(A, 50, 0, 0), said(B, 49, 2, 100), said(C, 51, 5, 100)]), [B, C, A]);
    }

    #[test]
    fn who_is_far_behind_comes_last_and_who_says_nothing_before() {
        assert_eq!(ordered(&[said(A, 0, 0, 100), said(C, 500, 99, 100)]), [C, B, A]);
        assert_eq!(ordered(&[said(A, 460, 0, 100), said(C, 500, 99, 100)])[0], A);
        assert_eq!(ordered(&[said(A, u64::MAX, 0, 1), said(B, u64::MAX, u32::MAX, u64::MAX)]).len(), 3);
    }

    #[test]
    fn a_stranger_that_says_it_is_ahead_changes_nothing() {
        let honest = [said(A, 50, 2, 100), said(B, 49, 1, 100), said(C, 48, 3, 100)];
        let stranger = said(PublicKey([9; 32]), u64::MAX, 0, u64::MAX);
        let with_stranger: Vec<_> = honest.iter().cloned().chain([stranger]).collect();
        assert_eq!(ordered(&honest), ordered(&with_stranger));
    }

    #[test]
    fn equals_are_in_another_order_for_each_that_asks() {
        let same = [said(A, 5, 1, 100), said(B, 5, 1, 100), said(C, 5, 1, 100)];
        let mut first = std::collections::BTreeSet::new();
        for asking in 0..32u8 {
            let mut backbones = vec![A, B, C];
            order(&mut backbones, &same, &[asking]);
            first.insert(backbones[0]);
        }
        assert_eq!(first.len(), 3);
    }
}
