//! Data usage of the day, over all visits and tabs of this browser. Pure: storage is the driver's.

use serde::{Deserialize, Serialize};

/// Data usage of one day.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct DataUsage {
    /// By the local date, as [`super::LocalTime`] counts days.
    day: i32,
    /// Bytes sent and received, by workers, for their program, and by the page itself.
    bytes: u64,
    /// The visitor waived the cap for this day.
    is_waived: bool,
}

impl DataUsage {
    /// The usage of `day`: zero if this one is of another day.
    pub(crate) fn on(self, day: i32) -> Self {
        if self.day == day { self } else { Self { day, ..Self::default() } }
    }

    /// With so many more bytes on `day`.
    pub(crate) fn with(self, day: i32, bytes: u64) -> Self {
        let today = self.on(day);
        Self { bytes: today.bytes.saturating_add(bytes), ..today }
    }

    /// Without a limit on `day`.
    pub(crate) fn waived(self, day: i32) -> Self {
        Self { is_waived: true, ..self.on(day) }
    }

    pub(crate) fn bytes(self) -> u64 {
        self.bytes
    }

    pub(crate) fn is_waived(self) -> bool {
        self.is_waived
    }
}

/// Counts the bytes that are not stored yet.
#[derive(Debug, Default)]
pub(crate) struct UsageCounter {
    /// The worker's last report.
    told: u64,
    /// Bytes not stored yet.
    unwritten: u64,
}

impl UsageCounter {
    /// A new worker counts from zero.
    pub(crate) fn on_worker(&mut self) {
        self.told = 0;
    }

    /// Takes the worker's total since its start.
    pub(crate) fn on_total(&mut self, bytes: u64) {
        self.unwritten = self.unwritten.saturating_add(bytes.saturating_sub(self.told));
        self.told = bytes;
    }

    /// Adds bytes that the worker does not count.
    pub(crate) fn add(&mut self, bytes: u64) {
        self.unwritten = self.unwritten.saturating_add(bytes);
    }

    pub(crate) fn unwritten(&self) -> u64 {
        self.unwritten
    }

    /// The bytes to store now.
    pub(crate) fn take(&mut self) -> u64 {
        std::mem::take(&mut self.unwritten)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_day_begins_with_nothing_and_without_leave() {
        let today = DataUsage::default().with(5, 100).with(5, 20).waived(5);
        assert_eq!((today.bytes(), today.is_waived()), (120, true));
        assert_eq!(today.on(5), today);
        let tomorrow = today.with(6, 3);
        assert_eq!((tomorrow.bytes(), tomorrow.is_waived()), (3, false));
        assert_eq!(tomorrow.with(6, u64::MAX).bytes(), u64::MAX);
    }

    #[test]
    fn a_reload_finds_what_was_written_and_nonsense_is_nothing() {
        let today = DataUsage::default().with(5, 100);
        let text = serde_json::to_string(&today).unwrap();
        assert_eq!(serde_json::from_str::<DataUsage>(&text).unwrap(), today);
        for text in ["{}", "7", r#"{"day":1,"bytes":-4,"is_waived":false}"#] {
            assert!(serde_json::from_str::<DataUsage>(text).is_err());
        }
    }

    #[test]
    fn workers_come_and_go_and_no_byte_counts_twice() {
        let mut meter = UsageCounter::default();
        meter.on_total(100);
        meter.on_total(100);
        meter.on_total(150);
        assert_eq!(meter.take(), 150);
        meter.on_total(160);
        meter.on_worker();
        meter.on_total(30);
        meter.add(5);
        assert_eq!((meter.unwritten(), meter.take(), meter.take()), (45, 45, 0));
    }
}
