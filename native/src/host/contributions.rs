//! Credit for contributions: receipts for contributors, and the database behind the leaderboard.
//!
//! The journal makes an accepted contribution durable; the database follows it. The core puts accepted contributions
//! into a bounded queue without waiting, and they are written twice a second. Those that did not fit, or that a crash
//! left unwritten, are read from the journal, which deletes an epoch only after the database has it. A contribution is
//! one row by its peer and number, however often it is written.
//!
//! Refusals, the aggregator's work, bytes carried by relays and bytes reduced by native peers are counted in memory and
//! written with the rest: of these a crash loses the last half second.

mod answers;
mod crediting;
mod database;
#[cfg(test)]
mod full;
mod question;
mod receipts;
mod recorder;
mod reducers;
mod relays;
mod standing;
mod store;

pub use self::crediting::Crediting;
pub use self::database::StoreError;
pub use self::question::{BadQuery, Question};
pub use self::receipts::{Issuer, KnownReceipts};
pub use self::recorder::{CaughtUp, Recorder, Recording, RefusalCounts, WorkMeter};
pub use self::reducers::ReducerMeter;
pub use self::relays::{RelayMeter, Relayed};
pub use self::standing::NameRecorder;
pub use self::store::{AggregatorWork, Batch, Store};
