//! Who gave what: receipts for contributors, and the database behind the leaderboard.
//!
//! The journal is what makes an acceptance last; the database follows it. What the core accepts goes into a
//! bounded queue that it never waits for, and is written twice a second; what did not fit, and what a crash
//! left unwritten, is read from the journal, which forgets an epoch only after the database has it. A
//! contribution is one row by its peer and number, however often it is written.
//!
//! Refusals, the aggregator's work, what relays carried and what native peers averaged are counted in memory and written
//! with the rest: of those a crash loses the last half second.

mod answers;
mod crediting;
mod database;
#[cfg(test)]
mod full;
mod receipts;
mod recorder;
mod reducers;
mod relays;
mod standing;
mod store;

pub use self::answers::{BadQuery, Question};
pub use self::crediting::Crediting;
pub use self::receipts::{Issuer, KnownReceipts};
pub use self::recorder::{CaughtUp, Recorder, Recording, Refused, WorkMeter};
pub use self::reducers::ReducerMeter;
pub use self::relays::{RelayMeter, Relayed};
pub use self::standing::Names;
pub use self::store::{Batch, Store, StoreError, Work};
