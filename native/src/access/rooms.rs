//! Codes of rooms: six characters that a teacher says aloud, in place of the link of an invitation.
//!
//! Six characters can be guessed by whoever may try often, so nothing but the page takes them, which bounds how often
//! anybody tries. Behind each is an ordinary invitation whose code follows from the room's and from a secret in the
//! run's folder: peers redeem that one, and what the database keeps of it tells nobody the room's.

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use barnraise_protocol::Sha256Hash;
use barnraise_relay::load_or_create_keypair;

use super::store::{Store, StoreError};
use super::{AccessError, WallClock, hex, random};

/// How many peers may come with a code where nothing else is said: a class.
pub const USES_DEFAULT: u32 = 40;
/// For how long, where nothing else is said: a day of school or of work.
pub const LASTS_DEFAULT: Duration = Duration::from_secs(8 * 3600);
/// The longer a code is good, the longer it can be guessed.
pub const LASTS_MAX: Duration = Duration::from_secs(7 * 24 * 3600);
/// Name of the file with the secret.
const KEY_FILE: &str = "rooms.key";
/// So that the hash is of nothing else.
const DOMAIN: &[u8] = b"barnraise room 1";
/// No two of them look alike; what looks like one is read as it (Crockford's base 32).
const ALPHABET: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";
const N_SYMBOLS: usize = 6;
/// As many bytes as an invitation's code has anyway.
const INVITATION_BYTES: usize = 16;

/// A code: `K7M-4PQ`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RoomCode([u8; N_SYMBOLS]);

/// Not such a code. What came is not repeated: it may be a mistyped one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a code has {N_SYMBOLS} letters and digits, as K7M-4PQ")]
pub struct RoomCodeError;

impl RoomCode {
    /// One that nobody knows yet.
    ///
    /// # Errors
    /// No randomness to be had.
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

/// Never the code: it is not to be in a log.
impl fmt::Debug for RoomCode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("RoomCode")
    }
}

/// What the invitations behind a run's codes follow from.
#[derive(Clone)]
pub struct RoomKey([u8; 32]);

impl RoomKey {
    /// Of a run's folder, made if it is not there, for its owner only.
    ///
    /// # Errors
    /// A file that cannot be made or read.
    pub fn load_or_create(folder: &Path) -> anyhow::Result<Self> {
        let keypair = load_or_create_keypair(&folder.join(KEY_FILE))?;
        let ed25519 = keypair.try_into_ed25519().map_err(|_| AccessError::KeyKind)?;
        Ok(Self(ed25519.secret().as_ref().try_into().map_err(|_| AccessError::KeyKind)?))
    }

    /// The code of the invitation behind a room's.
    pub fn invitation(&self, code: &RoomCode) -> String {
        // Of one length each: no two rooms have one text.
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
    /// Those whose invitations are in `store`.
    pub fn new(key: RoomKey, store: Store, clock: WallClock) -> Self {
        Self { key, store, clock }
    }

    /// The invitation behind a code, while it is good. It takes as long where it is not.
    ///
    /// # Errors
    /// A database that cannot be asked.
    pub async fn invitation(&self, code: &RoomCode) -> Result<Option<String>, StoreError> {
        let invitation = self.key.invitation(code);
        let is_good = self.store.is_good(&invitation, (self.clock)()).await?;
        Ok(is_good.then_some(invitation))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Arc;

    use barnraise_protocol::access::UnixTime;

    use super::*;

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
    }

    #[tokio::test]
    async fn a_code_leads_to_its_invitation_while_that_is_good() {
        let folder = tempfile::tempdir().unwrap();
        let key = RoomKey::load_or_create(folder.path()).unwrap();
        let store = Store::open(folder.path()).await.unwrap();
        let (code, other): (RoomCode, RoomCode) = ("K7M-4PQ".parse().unwrap(), "K7M-4PR".parse().unwrap());
        let invitation = key.invitation(&code);
        assert_eq!(invitation.len(), 2 * INVITATION_BYTES);
        store.invite(&invitation, 1, UnixTime(200), UnixTime(100)).await.unwrap();
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
