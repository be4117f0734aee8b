//! The participants that a backbone of a sampled run knows, in the run's folder: after a restart it finds them again, and goes on
//! with the counter of its own events. Each entry is proven by its peer, so that the file is not trusted.

use anyhow::Context;
use barnraise_protocol::sampled::{VIEW_BYTES_MAX, View};
use object_store::path::Path as ObjectPath;

use super::driver::SampledDriver;
use crate::storage::Storage;
use crate::storage::sealed::{self, ObjectKind};

const KNOWN: ObjectKind = ObjectKind { name: *b"smpl", what: "participants", version: 1 };
/// With the envelope.
const BYTES_MAX: u64 = 2 * VIEW_BYTES_MAX as u64;

/// Loads and saves them.
pub(super) struct KnownPeers {
    storage: Storage,
    /// Events of the view that was saved last.
    saved: Vec<(barnraise_protocol::access::PublicKey, u64)>,
}

impl KnownPeers {
    pub(super) fn new(storage: Storage) -> Self {
        Self { storage, saved: Vec::new() }
    }

    /// Those of the last process; nobody where there was none.
    ///
    /// # Errors
    /// The file cannot be read, or another version of this program wrote it. A damaged one is left aside.
    pub(super) async fn load(&self) -> anyhow::Result<View> {
        let Some(bytes) = self.storage.get(&path(), BYTES_MAX).await? else { return Ok(View::default()) };
        match sealed::open_parts(KNOWN, &bytes) {
            Ok((view, _)) => Ok(view),
            Err(error) if error.is_version() => Err(error).context(path().to_string()),
            Err(error) => {
                tracing::warn!(%error, "the participants of before are not known any more");
                Ok(View::default())
            }
        }
    }

    /// Saves them where one has joined or left.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) async fn keep(&mut self, driver: &SampledDriver) -> anyhow::Result<()> {
        let events = driver.look(|peer| {
            peer.registry().members().map(|member| (member.peer, member.counter)).collect::<Vec<_>>()
        });
        if events == self.saved {
            return Ok(());
        }
        let view = driver.look(barnraise_swarm::sampled::SampledPeer::view);
        let bytes = sealed::seal_parts(KNOWN, &view, &[])?;
        self.storage.put(&path(), bytes).await.context("the participants cannot be kept")?;
        self.saved = events;
        Ok(())
    }
}

fn path() -> ObjectPath {
    ObjectPath::from("sampled/participants")
}
