//! Rate limit on the uplink of a volunteer for serving shards, over all streams.

use std::time::Duration;

use crate::Moment;

/// Burst after a pause, as time at the full rate.
const BURST: Duration = Duration::from_millis(250);
/// Most bytes for one stream at a time, so that streams take turns.
const SLICE_BYTES: usize = 16 * 1024;

/// A leaky bucket over all streams.
#[derive(Debug)]
pub struct Uplink {
    bytes_per_second: u64,
    /// When all granted bytes have been sent at that rate.
    busy_until: Moment,
}

impl Uplink {
    /// A limit of `bytes_per_second`, at least one.
    pub fn new(bytes_per_second: u64) -> Self {
        Self { bytes_per_second: bytes_per_second.max(1), busy_until: Moment::ZERO }
    }

    /// How many of `n_bytes` may be sent at `now`, at least one where there are any.
    ///
    /// # Errors
    /// None may be sent yet: the moment to ask again.
    pub fn take(&mut self, now: Moment, n_bytes: usize) -> Result<usize, Moment> {
        if self.busy_until > now + BURST {
            return Err(self.busy_until - BURST);
        }
        let n_bytes = n_bytes.min(SLICE_BYTES);
        let nanos = u128::from(n_bytes as u64) * 1_000_000_000 / u128::from(self.bytes_per_second);
        let took = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        self.busy_until = self.busy_until.max(now).saturating_add(took);
        Ok(n_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_kept_over_all_streams_and_a_pause_saves_up_nothing() {
        let mut uplink = Uplink::new(100_000);
        let (mut now, mut n_sent) = (Moment::from_secs(50), 0);
        let end = now + Duration::from_secs(60);
        while now < end {
            match uplink.take(now, 1_000_000) {
                Ok(n_bytes) => n_sent += n_bytes,
                Err(at) => {
                    assert!(at > now);
                    now = at;
                }
            }
        }
        // A minute's worth, the burst, and one slice more; nothing was saved up before.
        let most = 6_000_000 + 25_000 + SLICE_BYTES;
        assert!((6_000_000..=most).contains(&n_sent), "{n_sent}");
    }

    #[test]
    fn a_burst_goes_at_once_and_what_follows_waits_for_it() {
        const MS: Duration = Duration::from_millis(1);
        let mut uplink = Uplink::new(1000);
        let now = Moment::from_secs(9);
        assert_eq!(uplink.take(now, 250), Ok(250));
        assert_eq!(uplink.take(now, 2), Ok(2), "a quarter of a second's worth is on its way");
        assert_eq!(uplink.take(now, 1), Err(now + 2 * MS));
        assert_eq!(uplink.take(now + MS, 1), Err(now + 2 * MS));
        assert_eq!(uplink.take(now + 2 * MS, 50), Ok(50));
        assert_eq!(uplink.take(now + 2 * MS, 1), Err(now + 52 * MS));
        let mut quick = Uplink::new(u64::MAX);
        assert_eq!(quick.take(now, SLICE_BYTES + 1), Ok(SLICE_BYTES), "streams take turns");
    }

    #[test]
    fn a_rate_near_nothing_is_no_division_by_nothing() {
        let mut uplink = Uplink::new(0);
        assert_eq!(uplink.take(Moment::ZERO, 10), Ok(10));
        assert_eq!(uplink.take(Moment::ZERO, 10), Err(Duration::from_secs(10) - BURST));
        assert_eq!(uplink.take(Moment::from_secs(10), 0), Ok(0));
    }
}
