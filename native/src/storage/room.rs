//! Whether what has to last can be written, for all who have to know it: the run's core, which accepts nothing
//! otherwise, and those who ask how the run stands.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use object_store::path::Path as ObjectPath;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::gauge::ConstGauge;

use super::{Storage, StorageError};

/// Beside checkpoints: for the journal of a few steps, the databases and the audit log.
const SPARE_BYTES: u64 = 8 * 1024 * 1024;

/// What is written to see whether anything can be.
const TRIAL: &str = "room";
const TRIAL_BYTES: usize = 64 * 1024;

/// Why nothing can be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// There is no room, or too little to begin something.
    Full,
    /// Something else.
    Failing,
}

impl Trouble {
    /// What an error says of the disk.
    pub fn of(error: &StorageError) -> Self {
        if error.is_full() { Self::Full } else { Self::Failing }
    }

    /// For contributors, visitors and whoever watches over the backbone.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Full => "the backbone's disk is full: nothing is accepted until there is room again",
            Self::Failing => "the backbone cannot write to its disk: nothing is accepted until it can",
        }
    }
}

/// The disk of a run. Cheap to clone; all clones are of the same.
#[derive(Debug, Clone)]
pub struct Room {
    storage: Storage,
    folder: Storage,
    wanted: u64,
    trouble: Arc<Mutex<Option<Trouble>>>,
}

impl Room {
    /// That of `folder`, with room for two checkpoints of so many bytes at least; what lasts is in `storage`, which is
    /// the same where it is not in S3.
    pub fn new(storage: Storage, folder: Storage, checkpoint_bytes: u64) -> Self {
        let wanted = SPARE_BYTES.saturating_add(checkpoint_bytes.saturating_mul(2));
        Self { storage, folder, wanted, trouble: Arc::default() }
    }

    /// Why nothing is accepted, while that is so.
    pub fn trouble(&self) -> Option<Trouble> {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on.
    pub fn set_trouble(&self, trouble: Option<Trouble>) {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
    }

    /// How much more can be written, where that is known.
    pub fn n_bytes_free(&self) -> Option<u64> {
        self.folder.n_bytes_free()
    }

    /// Whether something can be written that lasts.
    pub async fn takes_writes(&self) -> bool {
        let path = ObjectPath::from(TRIAL);
        let written = self.storage.put(&path, vec![0; TRIAL_BYTES]).await;
        // Where it cannot be deleted it is in nobody's way.
        let _ = self.storage.delete(&path).await;
        written.is_ok()
    }

    /// Whether there is enough to go on; to begin again there has to be half as much more.
    pub fn is_enough(&self) -> bool {
        let wanted = match self.trouble() {
            Some(_) => self.wanted.saturating_add(self.wanted / 2),
            None => self.wanted,
        };
        self.n_bytes_free().is_none_or(|n_bytes| n_bytes >= wanted)
    }
}

impl Collector for Room {
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
