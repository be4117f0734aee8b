//! Counters of a DHT.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counted since the start, and read without stopping anything.
        #[derive(Debug, Default)]
        pub(super) struct Counters {
            $(pub(super) $name: AtomicU64,)*
        }

        /// What has happened in a DHT since its start, and what it holds now.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct DhtCounters {
            $($(#[$doc])* pub $name: u64,)*
            /// Records kept for others now.
            pub stored_records: u64,
            /// Their bytes.
            pub stored_bytes: u64,
            /// Records remembered of what was found.
            pub cached_records: u64,
        }

        impl Counters {
            pub(super) fn snapshot(
                &self,
                stored_records: u64,
                stored_bytes: u64,
                cached_records: u64,
            ) -> DhtCounters {
                DhtCounters {
                    $($name: self.$name.load(Ordering::Relaxed),)*
                    stored_records,
                    stored_bytes,
                    cached_records,
                }
            }
        }

        impl DhtCounters {
            /// Each counter with its name: what only grows.
            pub fn totals(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }
        }
    };
}

counters! {
    /// Keys searched for.
    searched_keys,
    /// Of which something was found.
    found_keys,
    /// Keys searched for again before what is remembered of them expires.
    refreshed,
    /// Requests sent.
    requests_sent,
    /// Of which no answer came.
    requests_failed,
    /// Requests answered.
    requests_served,
    /// Of which refused as a whole.
    requests_refused,
    /// Streams of others that were one too many.
    streams_refused,
    /// Records of others that were kept.
    records_accepted,
    /// Records of others that were not.
    records_refused,
    /// Records given to peers that came into view.
    records_handed_over,
}

pub(super) fn add(counter: &AtomicU64, n: usize) {
    counter.fetch_add(n as u64, Ordering::Relaxed);
}
