//! Retention of checkpoints: the newest ones, which the journal continues from, and some older ones, by their age, that
//! an operator can roll back to. On a full disk the oldest are deleted first.

use std::time::{Duration, SystemTime};

use barnraise_protocol::access::UnixTime;
use object_store::path::Path as ObjectPath;

use super::{CORRUPT, CheckpointError, Checkpoints, FOLDER, epoch_of, object_path};
use crate::storage::ObjectInfo;
use crate::storage::model_store::{ModelStore, StoredModel};

/// Approximate ages of the older checkpoints that are kept for a rollback: up to two for each.
pub const AGES: [Duration; 3] =
    [Duration::from_secs(10 * 60), Duration::from_secs(60 * 60), Duration::from_secs(6 * 60 * 60)];

impl Checkpoints {
    /// Also keeps checkpoints for these ages.
    #[must_use]
    pub fn aged(self, ages: &'static [Duration]) -> Self {
        Self { ages, ..self }
    }

    /// Deletes the checkpoints that are not kept. Returns the oldest epoch of the newest ones.
    pub(super) async fn thin(&self, newest: u64) -> Result<u64, CheckpointError> {
        let found = self.stored().await?;
        let gone = beyond(&found, self.n_kept, self.ages);
        for (_, object) in found.iter().filter(|(epoch, _)| gone.contains(epoch)) {
            self.storage.delete(&object.location).await?;
        }
        let kept: Vec<(u64, ObjectPath)> = found
            .into_iter()
            .filter(|(epoch, _)| !gone.contains(epoch))
            .map(|(epoch, object)| (epoch, object.location))
            .collect();
        self.forget_begin(&kept).await?;
        let first = kept.len().saturating_sub(self.n_kept);
        Ok(kept.get(first).map_or(newest, |(oldest, _)| (*oldest).min(newest)))
    }

    /// Deletes the objects that were set aside as damaged or of another branch.
    pub async fn forget_set_aside(&self) -> Result<(), CheckpointError> {
        Ok(self.storage.delete_all(&ObjectPath::from_iter([FOLDER, CORRUPT])).await?)
    }

    /// Deletes the oldest checkpoint if there are others and the newest is undamaged. Returns the epoch of the deleted
    /// one, and of the oldest that is left.
    pub async fn forget_oldest(&self) -> Result<Option<(u64, u64)>, CheckpointError> {
        let kept = self.list().await?;
        let [(oldest, path), (next, _), ..] = kept.as_slice() else { return Ok(None) };
        let Some((_, newest)) = kept.last() else { return Ok(None) };
        if self.read(newest).await?.is_err() {
            return Ok(None);
        }
        self.storage.delete(path).await?;
        Ok(Some((*oldest, *next)))
    }

    /// Epochs and objects, oldest first.
    async fn stored(&self) -> Result<Vec<(u64, ObjectInfo)>, CheckpointError> {
        let objects = self.storage.list(&ObjectPath::from(FOLDER)).await?;
        let of_epoch = |object: ObjectInfo| {
            let epoch = epoch_of(&object.location)?;
            (object.location == object_path(epoch)).then_some((epoch, object))
        };
        Ok(objects.into_iter().filter_map(of_epoch).collect())
    }
}

/// Epochs of the checkpoints to delete: neither among the newest nor kept for an age. `stored` is oldest first.
fn beyond(stored: &[(u64, ObjectInfo)], n_newest: usize, ages: &[Duration]) -> Vec<u64> {
    let Some((newest, last)) = stored.last() else { return Vec::new() };
    // The newest was written now, also if the clock was set back.
    let now = unix(last.modified);
    let of_age = |(epoch, object): &(u64, ObjectInfo)| {
        let made_at = UnixTime(unix(object.modified).0.min(now.0));
        StoredModel { epoch: *epoch, made_at, n_bytes: object.size }
    };
    let mut store = ModelStore::new(ages, stored.iter().map(of_age).collect());
    let n_older = stored.len().saturating_sub(n_newest);
    let gone = store.thin(now, *newest);
    let gone = stored[..n_older]
        .iter()
        .map(|(epoch, _)| *epoch)
        .filter(|epoch| gone.iter().any(|kept| kept.epoch == *epoch));
    gone.collect()
}

fn unix(time: SystemTime) -> UnixTime {
    UnixTime(time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::super::tests::{checkpoint, latest};
    use super::*;
    use crate::storage::Storage;

    fn stored(epoch: u64, seconds: u64) -> (u64, ObjectInfo) {
        let modified = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        (epoch, ObjectInfo { location: object_path(epoch), size: 1, modified })
    }

    #[test]
    fn a_run_can_always_go_back_by_hours_and_keeps_few() {
        let mut kept: Vec<(u64, ObjectInfo)> = Vec::new();
        for n in 0..24 * 60 * 6 {
            // Every ten seconds, as on a fast run.
            let now = n * 10;
            kept.push(stored(n * 10, now));
            let gone = beyond(&kept, 3, &AGES);
            kept.retain(|(epoch, _)| !gone.contains(epoch));
            assert!(kept.len() <= 3 + 2 * AGES.len(), "{kept:?}");
            assert!(
                kept.iter().rev().take(3).map(|(epoch, _)| *epoch).eq((0..=n).rev().take(3).map(|n| n * 10))
            );
            for age in AGES.iter().map(Duration::as_secs).filter(|age| now >= 3 * age) {
                let is_of_age = |(_, object): &(u64, ObjectInfo)| {
                    (age..=2 * age + 60).contains(&(now - unix(object.modified).0))
                };
                assert!(kept.iter().any(is_of_age), "{age} at {now}: {kept:?}");
            }
        }
    }

    #[tokio::test]
    async fn the_journal_need_not_reach_back_to_what_is_kept_for_its_age() {
        let checkpoints = Checkpoints::new(Storage::in_memory(), 2).aged(&AGES);
        for epoch in 1..=8 {
            assert_eq!(checkpoints.save(checkpoint(epoch)).await.unwrap(), epoch.saturating_sub(1).max(1));
        }
        let epochs: Vec<u64> =
            checkpoints.kept().await.unwrap().into_iter().map(|(epoch, _)| epoch).collect();
        assert_eq!(epochs, [1, 7, 8]);
    }

    #[tokio::test]
    async fn room_is_made_from_the_oldest_on_and_never_of_the_last_that_is_whole() {
        let storage = Storage::in_memory();
        let checkpoints = Checkpoints::new(storage.clone(), 9);
        for epoch in 1..=3 {
            checkpoints.save(checkpoint(epoch)).await.unwrap();
        }
        let broken = object_path(9);
        storage.put(&broken, b"torn".to_vec()).await.unwrap();
        assert_eq!(checkpoints.forget_oldest().await.unwrap(), None, "the newest is damaged");
        let moved_to = ObjectPath::from_iter([FOLDER, CORRUPT, "9"]);
        storage.set_aside(&broken, &moved_to, "torn".into()).await.unwrap();
        checkpoints.forget_set_aside().await.unwrap();
        assert_eq!(checkpoints.forget_oldest().await.unwrap(), Some((1, 2)));
        assert_eq!(checkpoints.forget_oldest().await.unwrap(), Some((2, 3)));
        assert_eq!(checkpoints.forget_oldest().await.unwrap(), None);
        assert_eq!(latest(&checkpoints).await.checkpoint, Some(checkpoint(3)));
        assert_eq!(storage.list(&ObjectPath::from(FOLDER)).await.unwrap().len(), 1);
    }
}
