//! A bound of the bytes in buffers in the middle of a round, which a measurement of the link leaves out.

use barnraise_protocol::average::CHUNK_VALUES;
use barnraise_swarm::PeerKey;
use barnraise_swarm::averaging::{Group, n_chunks};
use barnraise_swarm::bandwidth::Bytes;

use crate::config::AveragingConfig;

/// Most bytes that cross the link of `me` at another time than [`Platform::on_moved`](crate::Platform::on_moved) reports
/// them. For each stream that sends, a window of chunks and the next one, which may all be in buffers; for each stream that
/// receives, one chunk that is not complete yet.
#[must_use]
pub fn in_flight(config: &AveragingConfig, group: &Group, me: &PeerKey) -> Bytes {
    let Some(position) = group.position(me) else { return Bytes::default() };
    let mut all = Bytes::default();
    for part in 0..group.members().len() {
        let n_values = group.part(part).len();
        let n_chunks = n_chunks(n_values).min(config.window_chunks.saturating_add(1));
        let chunk_bytes = group.codec().encoded_len(n_values.min(CHUNK_VALUES)) as u64;
        let (n_sent, n_received) = n_streams(group, position, part);
        all.sent = all.sent.saturating_add(n_sent * u64::from(n_chunks) * chunk_bytes);
        all.received = all.received.saturating_add(n_received * u64::from(n_chunks.min(1)) * chunk_bytes);
    }
    all
}

/// Streams of a part on which the member at `position` sends values or means, and on which it receives some.
fn n_streams(group: &Group, position: usize, part: usize) -> (u64, u64) {
    let (mut n_sent, mut n_received) = (0, 0);
    for (other, member) in group.members().iter().enumerate() {
        if part == position && other != position {
            n_sent += u64::from(member.receives);
            n_received += u64::from(member.n_samples > 0);
        } else if part != position && other == position {
            n_sent += u64::from(member.n_samples > 0);
            n_received += u64::from(member.receives);
        }
    }
    (n_sent, n_received)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use barnraise_protocol::TensorCodec;
    use barnraise_swarm::averaging::GroupMember;

    use super::*;

    const CHUNK_BYTES: u64 = 4 * CHUNK_VALUES as u64;

    fn key(peer: u8) -> PeerKey {
        PeerKey(vec![peer])
    }

    /// In a round of two members with values and one reducer without.
    fn of(peer: u8, n_reduced: [usize; 3]) -> Bytes {
        let member = |peer: u8| GroupMember {
            peer: key(peer),
            n_samples: u64::from(peer < 2),
            receives: peer < 2,
            n_reduced: n_reduced[usize::from(peer)] as u64,
        };
        let members = (0..3).map(member).collect();
        let group = Group::new(b"round", members, n_reduced.iter().sum(), TensorCodec::F32).unwrap();
        in_flight(&AveragingConfig { window_chunks: 4, ..AveragingConfig::default() }, &group, &key(peer))
    }

    #[test]
    fn a_window_of_each_stream_is_on_its_way() {
        let long = 100 * CHUNK_VALUES;
        // Means to the other member, and values to it and to the one that helps.
        assert_eq!(of(0, [long; 3]), Bytes { sent: 15 * CHUNK_BYTES, received: 3 * CHUNK_BYTES });
        assert_eq!(of(2, [long; 3]), Bytes { sent: 10 * CHUNK_BYTES, received: 2 * CHUNK_BYTES });
        assert_eq!(of(1, [long, 0, 0]), Bytes { sent: 5 * CHUNK_BYTES, received: CHUNK_BYTES });
        assert_eq!(of(9, [long; 3]), Bytes::default());
    }

    #[test]
    fn no_more_is_in_flight_than_the_part_has() {
        assert_eq!(of(1, [10, 0, 0]), Bytes { sent: 40, received: 40 });
        let sent = 2 * CHUNK_BYTES;
        assert_eq!(of(2, [10, 10, CHUNK_VALUES]), Bytes { sent, received: sent });
    }
}
