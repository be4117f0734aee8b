//! The participants that a backbone of a sampled run knows, in the run's folder: after a restart it finds them again, and goes on
//! with the counter of its own events. Each entry is proven by its peer, so that the file is not trusted.

use std::time::Duration;

use anyhow::Context;
use barnraise_protocol::access::PublicKey;
use barnraise_protocol::sampled::{VIEW_BYTES_MAX, View};
use barnraise_protocol::sealed::{self, ObjectKind};
use barnraise_swarm::sampled::SampledPeer;
use object_store::path::Path as ObjectPath;
use tokio::time::Instant;

use super::driver::SampledDriver;
use crate::storage::Storage;

const KNOWN: ObjectKind = ObjectKind { name: *b"smpl", what: "participants", version: 2 };
/// With the envelope.
const BYTES_MAX: u64 = 2 * VIEW_BYTES_MAX as u64;

/// Interval in which they are saved where nobody is new, and in which it is tried again where that failed.
const SAVE_EVERY: Duration = Duration::from_secs(60);

/// Loads and saves them.
pub(super) struct KnownPeers {
    storage: Storage,
    /// Events of the view that was saved last.
    saved: Vec<(PublicKey, u64)>,
    /// When they were saved, or could not be.
    tried_at: Option<Instant>,
    /// Whether that went well.
    is_saved: bool,
}

impl KnownPeers {
    pub(super) fn new(storage: Storage) -> Self {
        Self { storage, saved: Vec::new(), tried_at: None, is_saved: true }
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

    /// Saves them where this peer told of itself or another one has joined or left, and seldom where others told of themselves anew.
    ///
    /// # Errors
    /// The file cannot be written. It is tried again after a while.
    pub(super) async fn keep_changed(&mut self, driver: &SampledDriver) -> anyhow::Result<()> {
        let (own, events) = driver.look(|peer| (peer.peer(), events(peer)));
        if events == self.saved {
            return Ok(());
        }
        let is_recent = self.tried_at.is_some_and(|at| at.elapsed() < SAVE_EVERY);
        let own_of = |events: &[(PublicKey, u64)]| events.iter().find(|(peer, _)| *peer == own).copied();
        let keys = |events: &[(PublicKey, u64)]| events.iter().map(|(peer, _)| *peer).collect::<Vec<_>>();
        let is_news =
            self.is_saved && (own_of(&events) != own_of(&self.saved) || keys(&events) != keys(&self.saved));
        match is_recent && !is_news {
            true => Ok(()),
            false => self.keep(driver).await,
        }
    }

    /// Saves them.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) async fn keep(&mut self, driver: &SampledDriver) -> anyhow::Result<()> {
        (self.tried_at, self.is_saved) = (Some(Instant::now()), false);
        let events = driver.look(events);
        let view = driver.look(SampledPeer::view);
        let bytes = sealed::seal_parts(KNOWN, &view, &[])?;
        self.storage.put(&path(), bytes).await.context("the participants cannot be kept")?;
        (self.saved, self.is_saved) = (events, true);
        Ok(())
    }
}

fn events(peer: &SampledPeer) -> Vec<(PublicKey, u64)> {
    peer.registry().members().map(|member| (member.peer, member.counter)).collect()
}

fn path() -> ObjectPath {
    ObjectPath::from("sampled/participants")
}
