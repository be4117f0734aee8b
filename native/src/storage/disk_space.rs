//! Whether the disk takes writes: for the core, which accepts nothing otherwise, and for status pages and metrics.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use object_store::path::Path as ObjectPath;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::gauge::ConstGauge;

use super::{Storage, StorageError};

/// Space kept free beside that for checkpoints: for the journal of a few steps, the databases and the audit log.
const SPARE_BYTES: u64 = 8 * 1024 * 1024;

/// Name of the object that is written to test whether writes succeed.
const TRIAL: &str = "room";
const TRIAL_BYTES: usize = 64 * 1024;

/// Why the disk takes no writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskProblem {
    /// Too little free space.
    Full,
    /// Any other error.
    Failing,
}

impl DiskProblem {
    /// The problem that an error shows.
    pub fn of(error: &StorageError) -> Self {
        if error.is_full() { Self::Full } else { Self::Failing }
    }

    /// The message for contributors, visitors and the operator.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Full => "the backbone's disk is full: nothing is accepted until there is room again",
            Self::Failing => "the backbone cannot write to its disk: nothing is accepted until it can",
        }
    }
}

/// Free space and state of a run's disk. Cheap to clone; clones share the state.
#[derive(Debug, Clone)]
pub struct DiskSpace {
    storage: Storage,
    folder: Storage,
    wanted: u64,
    trouble: Arc<Mutex<Option<DiskProblem>>>,
}

impl DiskSpace {
    /// The disk of `folder`, which must have space for two checkpoints of `checkpoint_bytes`. Test writes go to
    /// `storage`, which is the same folder or in S3.
    pub fn new(storage: Storage, folder: Storage, checkpoint_bytes: u64) -> Self {
        let wanted = SPARE_BYTES.saturating_add(checkpoint_bytes.saturating_mul(2));
        Self { storage, folder, wanted, trouble: Arc::default() }
    }

    /// Why nothing is accepted; `None` while the disk takes writes.
    pub fn trouble(&self) -> Option<DiskProblem> {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets or clears the problem.
    pub fn set_trouble(&self, trouble: Option<DiskProblem>) {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
    }

    /// Free space in bytes, where that is known.
    pub fn n_bytes_free(&self) -> Option<u64> {
        self.folder.n_bytes_free()
    }

    /// Whether a test object can be written durably.
    pub async fn takes_writes(&self) -> bool {
        let path = ObjectPath::from(TRIAL);
        let written = self.storage.put(&path, vec![0; TRIAL_BYTES]).await;
        // Left behind, it does no harm.
        let _ = self.storage.delete(&path).await;
        written.is_ok()
    }

    /// Whether there is enough free space; to end a pause there must be half as much more.
    pub fn is_enough(&self) -> bool {
        let wanted = match self.trouble() {
            Some(_) => self.wanted.saturating_add(self.wanted / 2),
            None => self.wanted,
        };
        self.n_bytes_free().is_none_or(|n_bytes| n_bytes >= wanted)
    }
}

impl Collector for DiskSpace {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let is_refusing = f64::from(u8::from(self.trouble().is_some()));
        let gauges = [
            (
                "disk_free_bytes",
                "Room on the disk of the run's folder",
                self.n_bytes_free().map(|n| n as f64),
            ),
            ("disk_wanted_bytes", "Below that nothing is accepted", Some(self.wanted as f64)),
            ("disk_refuses", "1 while nothing is accepted because it could not be stored", Some(is_refusing)),
        ];
        for (name, help, value) in gauges {
            let Some(value) = value else { continue };
            let gauge = ConstGauge::new(value);
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use prometheus_client::encoding::text;
    use prometheus_client::registry::Registry;

    use super::*;
    use crate::storage::simulated::SimulatedDisk;

    /// A disk, and how its space is watched.
    fn watched(checkpoint_bytes: u64) -> (SimulatedDisk, DiskSpace) {
        let disk = SimulatedDisk::new(1);
        let storage = Storage::on(Arc::new(disk.clone()));
        (disk, DiskSpace::new(storage.clone(), storage, checkpoint_bytes))
    }

    #[test]
    fn a_pause_begins_below_what_is_wanted_and_ends_with_half_as_much_more() {
        let (disk, space) = watched(500);
        let wanted = SPARE_BYTES + 1000;
        for (trouble, enough) in [(None, wanted), (Some(DiskProblem::Full), wanted + wanted / 2)] {
            space.set_trouble(trouble);
            assert_eq!(space.trouble(), trouble);
            for (n_bytes, is_enough) in [(enough - 1, false), (enough, true), (enough + 1, true)] {
                disk.holds(n_bytes);
                assert_eq!(space.n_bytes_free(), Some(n_bytes));
                assert_eq!(space.is_enough(), is_enough, "{trouble:?}: {n_bytes}");
            }
        }
        let unknown = DiskSpace::new(Storage::in_memory(), Storage::in_memory(), u64::MAX);
        assert_eq!((unknown.n_bytes_free(), unknown.is_enough()), (None, true));
    }

    #[tokio::test]
    async fn a_write_is_tried_and_leaves_nothing() {
        let (disk, space) = watched(0);
        for (n_bytes, takes) in [(TRIAL_BYTES as u64 - 1, false), (TRIAL_BYTES as u64, true)] {
            disk.holds(n_bytes);
            assert_eq!(space.takes_writes().await, takes, "{n_bytes}");
            assert!(disk.names().is_empty(), "{:?}", disk.names());
        }
        disk.fails_one_in(1);
        assert!(!space.takes_writes().await);
    }

    #[test]
    fn the_problem_is_that_of_the_error() {
        let of = |kind: std::io::ErrorKind| {
            DiskProblem::of(&StorageError::File { path: "a".into(), what: "write it", source: kind.into() })
        };
        assert_eq!(of(std::io::ErrorKind::StorageFull), DiskProblem::Full);
        assert_eq!(of(std::io::ErrorKind::PermissionDenied), DiskProblem::Failing);
    }

    #[test]
    fn metrics_say_what_is_free_what_is_wanted_and_whether_anything_is_refused() {
        let (disk, space) = watched(500);
        disk.holds(123);
        let mut registry = Registry::default();
        registry.register_collector(Box::new(space.clone()));
        for (trouble, is_refusing) in [(None, 0.0), (Some(DiskProblem::Failing), 1.0)] {
            space.set_trouble(trouble);
            let mut said = String::new();
            text::encode(&mut said, &registry).unwrap();
            let value = |name: &str| -> f64 {
                let line = said.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
                line.unwrap().parse().unwrap()
            };
            let wanted = (SPARE_BYTES + 1000) as f64;
            let values = ["disk_free_bytes", "disk_wanted_bytes", "disk_refuses"].map(value);
            assert_eq!(values, [123.0, wanted, is_refusing], "{said}");
        }
    }
}
