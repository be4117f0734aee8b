//! DHT records of experts: for each prefix of their uids a dictionary of the next indices (Learning@home §3.2, appendix B).
//!
//! ```text
//! prefix of d - 1 indices   (host, last index) -> addresses, load, steps     owned and signed by the host
//! each shorter prefix       next index         -> nothing                    owned by nobody: some expert is below
//! ```
//!
//! An entry of a shorter prefix is the same for all hosts, so that such a dictionary never has more honest entries than the
//! grid has places along a dimension. Anybody can write one; a false one costs a search one lookup, since what lies at the end
//! is signed by the host. A record is only a claim: a host may not answer, or no longer have the expert.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::record::{DhtRefusal, Record, RecordName, Subkey, UnixMillis, VALUE_BYTES_MAX};
use super::{ADDRESS_BYTES_MAX, ADDRESSES_MAX, RecordKey, SUBKEYS_MAX};
use crate::access::{KeyPair, PublicKey};
use crate::experts::{ExpertPrefix, ExpertUid, GRID_SIDE_MAX, LayerId};
use crate::framing;

/// A record expires so long after it was announced. Its host announces it again several times before.
pub const LIFETIME: Duration = Duration::from_secs(60);
/// Most addresses of a host: those of its experts with the same prefix share a dictionary.
pub const EXPERT_ADDRESSES_MAX: usize = ADDRESSES_MAX;

const _: () = assert!(GRID_SIDE_MAX as usize <= SUBKEYS_MAX);
const _: () = assert!(EXPERT_ADDRESSES_MAX * (ADDRESS_BYTES_MAX + 2) + 32 <= VALUE_BYTES_MAX);

/// An expert as its host announces it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnnouncedExpert {
    /// Its place.
    pub uid: ExpertUid,
    /// Requests that wait for it.
    pub n_waiting: u32,
    /// Optimizer steps that it has made.
    pub n_steps: u64,
}

/// A host of an expert, as it announces itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpertHost {
    /// The host.
    pub peer: PublicKey,
    /// Addresses where it listens: multiaddresses in their binary form. At most [`EXPERT_ADDRESSES_MAX`].
    pub addresses: Vec<Vec<u8>>,
    /// Requests that wait for the expert.
    pub n_waiting: u32,
    /// Optimizer steps that the expert has made there.
    pub n_steps: u64,
}

#[derive(Serialize, Deserialize)]
struct ExpertHostValue {
    addresses: Vec<Vec<u8>>,
    n_waiting: u32,
    n_steps: u64,
}

/// DHT key of the next indices after a prefix.
pub fn key(run_id: &str, layer: LayerId, prefix: &ExpertPrefix) -> RecordKey {
    name(run_id, layer, prefix).key()
}

fn name(run_id: &str, layer: LayerId, prefix: &ExpertPrefix) -> RecordName {
    let indices: Vec<u8> = prefix.indices().iter().flat_map(|index| index.to_le_bytes()).collect();
    let place = [&layer.0.to_le_bytes()[..], &indices].concat();
    RecordName::dictionary(&[b"barnraise experts of ", run_id.as_bytes(), b"\0", &place].concat())
}

/// The records of a host's `experts` of a layer, each prefix once. Addresses that are too long or too many are left out.
///
/// # Errors
/// Does not happen.
pub fn announce(
    key: &KeyPair,
    (run_id, layer): (&str, LayerId),
    experts: &[AnnouncedExpert],
    addresses: &[Vec<u8>],
    expires_at: UnixMillis,
) -> Result<Vec<Record>, DhtRefusal> {
    let short_enough = addresses.iter().filter(|address| address.len() <= ADDRESS_BYTES_MAX);
    let addresses: Vec<Vec<u8>> = short_enough.take(EXPERT_ADDRESSES_MAX).cloned().collect();
    let mut branches = BTreeSet::new();
    let mut records = Vec::with_capacity(experts.len());
    for AnnouncedExpert { uid, n_waiting, n_steps } in experts {
        let (prefix, last) = uid.leaf();
        for (n_before, &next) in prefix.indices().iter().enumerate() {
            branches.insert((uid.prefix(n_before), next));
        }
        let value =
            ExpertHostValue { addresses: addresses.clone(), n_waiting: *n_waiting, n_steps: *n_steps };
        let value = postcard::to_extend(&value, Vec::new()).map_err(|_| DhtRefusal::Kind)?;
        let place = Subkey { owner: Some(key.public()), label: last.to_le_bytes().to_vec() };
        records.push(Record::sign(key, name(run_id, layer, &prefix), Some(place), value, expires_at)?);
    }
    let branch = |(prefix, next): (ExpertPrefix, u16)| {
        let place = Some(Subkey::new(next.to_le_bytes()));
        Record::new(name(run_id, layer, &prefix), place, Vec::new(), expires_at)
    };
    records.extend(branches.into_iter().map(branch));
    Ok(records)
}

/// The next index of a record of a shorter prefix; `None` where it is malformed.
pub fn read_branch(record: &Record) -> Option<u16> {
    let place = record.subkey.as_ref().filter(|place| place.owner.is_none())?;
    record.value.is_empty().then(|| index(&place.label)).flatten()
}

/// The last index and the host of a record of a prefix of d - 1 indices whose signature was checked; `None` where it is
/// malformed.
pub fn read_host(record: &Record) -> Option<(u16, ExpertHost)> {
    let place = record.subkey.as_ref()?;
    let (peer, last) = (place.owner?, index(&place.label)?);
    let ExpertHostValue { addresses, n_waiting, n_steps } = framing::decode_payload(&record.value).ok()?;
    let is_bounded = addresses.len() <= EXPERT_ADDRESSES_MAX
        && addresses.iter().all(|address| address.len() <= ADDRESS_BYTES_MAX);
    is_bounded.then_some((last, ExpertHost { peer, addresses, n_waiting, n_steps }))
}

fn index(label: &[u8]) -> Option<u16> {
    let label: [u8; 2] = label.try_into().ok()?;
    Some(u16::from_le_bytes(label)).filter(|index| *index < GRID_SIDE_MAX)
}
