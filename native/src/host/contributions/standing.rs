//! Ranks and display names of contributors.
//!
//! Names come with sessions. They are written one after the other behind a bounded queue, so that many that join at once
//! never wait for the database, and only for peers that have contributed, so that joining under many keys fills no table.
//! A name that does not fit is written when its peer joins the next time.

use std::collections::VecDeque;
use std::time::Duration;

use barnraise_protocol::DisplayName;
use barnraise_protocol::api::RANK_MAX;
use libp2p::PeerId;
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use super::database::StoreError;
use super::database::{SqlValue, on};
use super::store::{Store, int, unsigned};
use crate::host::clock::WallClock;

/// Names that wait to be written.
const QUEUE: usize = 1024;
/// Peers whose first contribution is waited for, and how often it is looked for.
const NEWCOMERS_MAX: usize = 1024;
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Hidden names that are listed.
const HIDDEN_MAX: i64 = 1000;

type NameUpdate = (PeerId, Option<DisplayName>);

/// Records the display names of contributors. Cheap to clone.
#[derive(Debug, Clone)]
pub struct NameRecorder(mpsc::Sender<NameUpdate>);

impl NameRecorder {
    /// Returns it with the task that writes into `store`, until the shutdown or until no clone lives.
    pub fn new(
        store: Store,
        clock: WallClock,
        shutdown: CancellationToken,
    ) -> (Self, impl Future<Output = ()> + Send) {
        let (sender, told) = mpsc::channel(QUEUE);
        (Self(sender), take_down(store, clock, told, shutdown))
    }

    /// `peer` joined under this name, or without one.
    pub fn on_join(&self, peer: PeerId, name: Option<DisplayName>) {
        if self.0.try_send((peer, name)).is_err() {
            tracing::debug!(%peer, "too many names at once, this one waits for the next session");
        }
    }
}

/// A name that is being written at the shutdown is written to its end.
async fn take_down(
    store: Store,
    clock: WallClock,
    mut told: mpsc::Receiver<NameUpdate>,
    shutdown: CancellationToken,
) {
    let mut newcomers: VecDeque<NameUpdate> = VecDeque::new();
    let mut ticks = tokio::time::interval(LOOK_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let due: Vec<NameUpdate> = tokio::select! {
            told = told.recv() => match told {
                Some(told) => {
                    newcomers.retain(|(peer, _)| *peer != told.0);
                    vec![told]
                }
                None => return,
            },
            _ = ticks.tick() => newcomers.drain(..).collect(),
            () = shutdown.cancelled() => return,
        };
        for (peer, name) in due {
            if shutdown.is_cancelled() {
                return;
            }
            match store.call(peer, name.as_ref(), clock().0).await {
                Ok(true) => {}
                Ok(false) => {
                    if newcomers.len() >= NEWCOMERS_MAX {
                        newcomers.pop_front();
                    }
                    newcomers.push_back((peer, name));
                }
                Err(error) => tracing::warn!(%peer, %error, "a name could not be kept"),
            }
        }
    }
}

impl Store {
    /// Sets or clears the display name of `peer`; the same name again changes nothing. Returns `false` where it is not
    /// stored, because the peer has contributed nothing.
    ///
    /// # Errors
    /// The database cannot be written.
    pub async fn call(&self, peer: PeerId, name: Option<&DisplayName>, now: u64) -> Result<bool, StoreError> {
        let (peer, wanted) = (peer.to_string(), name.map(DisplayName::as_str).unwrap_or_default());
        let select = "SELECT name FROM names WHERE run_id = $1 AND peer = $2";
        let known: Option<String> = on!(&self.database, pool => {
            sqlx::query_scalar(select).bind(&self.run_id).bind(&peer).fetch_optional(pool).await?
        });
        if known.unwrap_or_default() == wanted {
            return Ok(true);
        }
        // An empty name is none: the row stays, with what an operator decided about it.
        let upsert = "INSERT INTO names (run_id, peer, name, changed_at) SELECT $1, $2, $3, CAST($4 AS BIGINT) \
            WHERE EXISTS (SELECT 1 FROM contributors WHERE run_id = $1 AND peer = $2) \
            ON CONFLICT (run_id, peer) DO UPDATE SET name = excluded.name, changed_at = excluded.changed_at";
        let mut changes = self.database.begin().await?;
        let values = [SqlValue::Text(&self.run_id), SqlValue::Text(&peer), SqlValue::Text(wanted), int(now)];
        let n_changed = changes.execute(upsert, &values).await?;
        changes.commit().await?;
        Ok(n_changed > 0)
    }

    /// Hides or shows the display name of `peer`, also if it changes its name later. Returns whether anything changed: a
    /// peer that has contributed nothing has no name, and a name that is not hidden cannot be shown again.
    ///
    /// # Errors
    /// The database cannot be written.
    pub async fn set_hidden(&self, peer: PeerId, is_hidden: bool) -> Result<bool, StoreError> {
        let peer = peer.to_string();
        let hide = "INSERT INTO names (run_id, peer, name, changed_at, is_hidden) SELECT $1, $2, '', 0, 1 \
            WHERE EXISTS (SELECT 1 FROM contributors WHERE run_id = $1 AND peer = $2) \
            ON CONFLICT (run_id, peer) DO UPDATE SET is_hidden = 1";
        let show = "UPDATE names SET is_hidden = 0 WHERE run_id = $1 AND peer = $2 AND is_hidden <> 0";
        let mut changes = self.database.begin().await?;
        let values = [SqlValue::Text(&self.run_id), SqlValue::Text(&peer)];
        let n_changed = changes.execute(if is_hidden { hide } else { show }, &values).await?;
        changes.commit().await?;
        // The cached answer is outdated.
        *self.shown.lock().await = None;
        Ok(n_changed > 0)
    }

    /// Peers whose names are hidden, with the names: the first thousand.
    ///
    /// # Errors
    /// The database cannot be read.
    pub async fn hidden_names(&self) -> Result<Vec<(String, String)>, StoreError> {
        let select =
            "SELECT peer, name FROM names WHERE run_id = $1 AND is_hidden <> 0 ORDER BY peer LIMIT $2";
        let names: Vec<(String, String)> = on!(&self.database, pool => {
            sqlx::query_as(select).bind(&self.run_id).bind(HIDDEN_MAX).fetch_all(pool).await?
        });
        Ok(names)
    }

    /// The rank of a peer with `n_samples`, from 1; `None` where it is beyond [`RANK_MAX`], or the peer was convicted.
    pub(super) async fn rank(&self, peer: &str, n_samples: u64) -> Result<Option<u64>, StoreError> {
        let select = "SELECT count(*) FROM convictions WHERE run_id = $1 AND peer = $2";
        let n_convictions: i64 = on!(&self.database, pool => {
            sqlx::query_scalar(select).bind(&self.run_id).bind(peer).fetch_one(pool).await?
        });
        if n_convictions > 0 {
            return Ok(None);
        }
        // Reads the index, and no further than the largest rank.
        let select = "SELECT count(*) FROM (SELECT 1 FROM contributors WHERE run_id = $1 \
            AND (n_samples > $2 OR (n_samples = $2 AND peer < $3)) \
            AND peer NOT IN (SELECT peer FROM convictions WHERE run_id = $1) LIMIT $4) AS better";
        let n_samples = i64::try_from(n_samples).unwrap_or(i64::MAX);
        let max = i64::try_from(RANK_MAX).unwrap_or(i64::MAX);
        let n_better: i64 = on!(&self.database, pool => {
            let query = sqlx::query_scalar(select).bind(&self.run_id).bind(n_samples).bind(peer).bind(max);
            query.fetch_one(pool).await?
        });
        Ok(Some(unsigned(n_better) + 1).filter(|rank| *rank <= RANK_MAX))
    }
}
