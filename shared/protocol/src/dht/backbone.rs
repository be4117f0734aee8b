//! Where the backbones of a run are: a dictionary under the run's id, a place in it for each of them.
//!
//! Anybody may take a place of their own in it: that a peer says so does not make it a backbone. What it
//! serves does, once it is asked (`crate::run`).

use serde::{Deserialize, Serialize};

use super::record::{Name, Record, Refusal, Subkey, UnixMillis, VALUE_BYTES_MAX};
use super::{ADDRESS_BYTES_MAX, Key};
use crate::access::{KeyPair, PublicKey};
use crate::framing;

/// Most addresses of a backbone.
pub const BACKBONE_ADDRESSES_MAX: usize = 16;

const _: () = assert!(BACKBONE_ADDRESSES_MAX * (ADDRESS_BYTES_MAX + 2) + 16 <= VALUE_BYTES_MAX);

/// A peer that says it is a backbone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backbone {
    /// Who it is.
    pub peer: PublicKey,
    /// Where it listens: multiaddresses in their binary form.
    pub addresses: Vec<Vec<u8>>,
}

#[derive(Serialize, Deserialize)]
struct Value {
    addresses: Vec<Vec<u8>>,
}

/// Where to ask for the backbones of a run.
pub fn key(run_id: &str) -> Key {
    name(run_id).key()
}

fn name(run_id: &str) -> Name {
    Name::dictionary(&[b"barnraise backbones of ", run_id.as_bytes()].concat())
}

impl Backbone {
    /// What the backbone with this key has kept. Addresses that are too long or too many are left out.
    ///
    /// # Errors
    /// Does not happen.
    pub fn sign(
        key: &KeyPair,
        run_id: &str,
        addresses: impl IntoIterator<Item = Vec<u8>>,
        expires_at: UnixMillis,
    ) -> Result<Record, Refusal> {
        let addresses = addresses.into_iter().filter(|address| address.len() <= ADDRESS_BYTES_MAX);
        let value = Value { addresses: addresses.take(BACKBONE_ADDRESSES_MAX).collect() };
        let value = postcard::to_extend(&value, Vec::new()).map_err(|_| Refusal::Kind)?;
        Record::sign(key, name(run_id), Some(Subkey::of_owner(key.public())), value, expires_at)
    }

    /// What a record of [`key`] says, whose signature was checked; `None` where it says something else.
    pub fn read(record: &Record) -> Option<Self> {
        let peer = record.subkey.as_ref()?.owner?;
        let Value { addresses } = framing::decode_payload(&record.value).ok()?;
        let is_bounded = addresses.len() <= BACKBONE_ADDRESSES_MAX
            && addresses.iter().all(|address| address.len() <= ADDRESS_BYTES_MAX);
        is_bounded.then_some(Self { peer, addresses })
    }
}
