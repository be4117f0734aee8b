//! Room codes: six characters that a teacher says aloud, in place of an invitation link.
//!
//! Six characters can be guessed by many attempts, so only the page takes them, and it limits the rate of attempts.
//! Behind each room code is an ordinary invitation, whose code is derived from the room code and a secret in the run's
//! folder. Peers redeem that invitation; its record in the database does not reveal the room code.

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use barnraise_protocol::Sha256Hash;
use barnraise_relay::load_or_create_keypair;

use super::store::{Store, StoreError};
use super::{AccessError, random};
use crate::host::clock::WallClock;
use crate::host::hex;

/// Default number of peers that may redeem a code: a class.
pub const USES_DEFAULT: u32 = 40;
/// Default lifetime: a day of school or of work.
pub const LASTS_DEFAULT: Duration = Duration::from_secs(8 * 3600);
/// Longest lifetime: the longer a code is valid, the longer it can be guessed.
pub const LASTS_MAX: Duration = Duration::from_secs(7 * 24 * 3600);
/// Name of the file with the secret.
const KEY_FILE: &str = "rooms.key";
/// Domain separation: the hash has no other use.
const DOMAIN: &[u8] = b"barnraise room 1";
/// Crockford's base 32: no two symbols look alike, and lookalikes are read as the symbol that they resemble.
const ALPHABET: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";
const N_SYMBOLS: usize = 6;
/// Length of any invitation's code.
const INVITATION_BYTES: usize = 16;

/// A room code, such as `K7M-4PQ`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RoomCode([u8; N_SYMBOLS]);

/// The text is no room code. The error does not repeat it: it may be a mistyped one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a code has {N_SYMBOLS} letters and digits, as K7M-4PQ")]
pub struct RoomCodeError;

impl RoomCode {
    /// A new random code.
    ///
    /// # Errors
    /// The system's random number generator failed.
    pub fn random() -> Result<Self, AccessError> {
        Ok(Self(random::<N_SYMBOLS>()?.map(|byte| ALPHABET[usize::from(byte) % ALPHABET.len()])))
    }
}

impl FromStr for RoomCode {
    type Err = RoomCodeError;

    fn from_str(text: &str) -> Result<Self, RoomCodeError> {
        let mut symbols = text.bytes().filter(|byte| !matches!(byte, b'-' | b' ')).map(symbol);
        let mut code = [0; N_SYMBOLS];
        for place in &mut code {
            *place = symbols.next().flatten().ok_or(RoomCodeError)?;
        }
        if symbols.next().is_some() { Err(RoomCodeError) } else { Ok(Self(code)) }
    }
}

fn symbol(byte: u8) -> Option<u8> {
    let symbol = match byte.to_ascii_uppercase() {
        b'O' => b'0',
        b'I' | b'L' => b'1',
        other => other,
    };
    ALPHABET.contains(&symbol).then_some(symbol)
}

impl fmt::Display for RoomCode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (idx, symbol) in self.0.iter().enumerate() {
            let dash = if idx == N_SYMBOLS / 2 { "-" } else { "" };
            write!(formatter, "{dash}{}", char::from(*symbol))?;
        }
        Ok(())
    }
}

/// Without the code, which must not be logged.
impl fmt::Debug for RoomCode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("RoomCode")
    }
}

/// The secret from which the invitations behind a run's room codes are derived.
#[derive(Clone)]
pub struct RoomKey([u8; 32]);

impl RoomKey {
    /// Reads the secret of a run's folder, or creates it, readable by its owner only.
    ///
    /// # Errors
    /// The file cannot be created or read.
    pub fn load_or_create(folder: &Path) -> anyhow::Result<Self> {
        let keypair = load_or_create_keypair(&folder.join(KEY_FILE))?;
        let ed25519 = keypair.try_into_ed25519().map_err(|_| AccessError::KeyKind)?;
        Ok(Self(ed25519.secret().as_ref().try_into().map_err(|_| AccessError::KeyKind)?))
    }

    /// The code of the invitation behind a room code.
    pub fn invitation(&self, code: &RoomCode) -> String {
        // Each part has a fixed length, so that no two room codes give the same text.
        let text = [DOMAIN, &self.0, &code.0].concat();
        hex(&Sha256Hash::of(&text).0[..INVITATION_BYTES])
    }
}

/// The rooms of a run. Cheap to clone.
#[derive(Clone)]
pub struct Rooms {
    key: RoomKey,
    store: Store,
    clock: WallClock,
}

impl Rooms {
    /// Rooms whose invitations are in `store`.
    pub fn new(key: RoomKey, store: Store, clock: WallClock) -> Self {
        Self { key, store, clock }
    }

    /// The invitation behind a code, while it is valid. A wrong code takes as long as a right one.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn invitation(&self, code: &RoomCode) -> Result<Option<String>, StoreError> {
        let invitation = self.key.invitation(code);
        let is_good = self.store.is_good(&invitation, (self.clock)()).await?;
        Ok(is_good.then_some(invitation))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::collections::BTreeSet;
    use std::sync::Arc;

    use barnraise_protocol::access::UnixTime;

    use super::*;
    use crate::host::access::store::InvitationTerms;

    #[test]
    fn a_code_is_read_as_people_write_it() {
        let code: RoomCode = "K7M-4PQ".parse().unwrap();
        assert_eq!(code.to_string(), "K7M-4PQ");
        for same in ["k7m4pq", " K7M 4PQ ", "K-7-M-4-P-Q"] {
            assert_eq!(same.parse(), Ok(code), "{same}");
        }
        assert_eq!("oil-OIL".parse::<RoomCode>().unwrap().to_string(), "011-011");
        for wrong in ["", "K7M-4P", "K7M-4PQR", "K7M-4PU", "K7M-4P!", "K7M-4Pé", &"A".repeat(10_000)] {
            assert_eq!(wrong.parse::<RoomCode>(), Err(RoomCodeError), "{}", wrong.len());
        }
        assert_eq!(format!("{code:?}"), "RoomCode");
    }

    #[test]
    fn a_new_code_reads_back_and_is_another_one() {
        let codes: Vec<RoomCode> = (0..20).map(|_| RoomCode::random().unwrap()).collect();
        assert!(codes.iter().all(|code| code.to_string().parse() == Ok(*code)));
        assert!(codes.iter().any(|code| *code != codes[0]));
        let all: BTreeSet<u8> = (0..500).flat_map(|_| RoomCode::random().unwrap().0).collect();
        assert!(all.iter().eq(ALPHABET), "each symbol may come: {all:?}");
    }

    #[tokio::test]
    async fn a_code_leads_to_its_invitation_while_that_is_good() {
        let folder = tempfile::tempdir().unwrap();
        let key = RoomKey::load_or_create(folder.path()).unwrap();
        let store = Store::open(folder.path()).await.unwrap();
        let (code, other): (RoomCode, RoomCode) = ("K7M-4PQ".parse().unwrap(), "K7M-4PR".parse().unwrap());
        let invitation = key.invitation(&code);
        assert_eq!(invitation.len(), 2 * INVITATION_BYTES);
        let terms = InvitationTerms { uses: 1, expires_at: UnixTime(200), may_host: false };
        store.invite(&invitation, terms, UnixTime(100)).await.unwrap();
        let again = RoomKey::load_or_create(folder.path()).unwrap();
        let rooms = |now| Rooms::new(again.clone(), store.clone(), Arc::new(move || UnixTime(now)));
        assert_eq!(rooms(150).invitation(&code).await.unwrap(), Some(invitation));
        assert_eq!(rooms(150).invitation(&other).await.unwrap(), None);
        assert_eq!(rooms(200).invitation(&code).await.unwrap(), None, "too late");
        let elsewhere = RoomKey::load_or_create(&folder.path().join("elsewhere")).unwrap();
        let rooms = Rooms::new(elsewhere, store, Arc::new(|| UnixTime(150)));
        assert_eq!(rooms.invitation(&code).await.unwrap(), None, "the secret is another one");
    }
}
