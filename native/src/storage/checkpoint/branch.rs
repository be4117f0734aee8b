//! The first checkpoint of a branch, which a rollback begins: an extra object beside the other checkpoints.
//!
//! Until it is complete nothing has happened. From then on no earlier checkpoint is loaded by itself, even if all later
//! ones are damaged: a rollback stays. Its name says so even if its bytes are damaged. It is deleted once there are
//! several later checkpoints and no earlier one.

use object_store::path::Path as ObjectPath;

use super::{CORRUPT, Checkpoint, CheckpointError, Checkpoints, FOLDER};

const SUFFIX: &str = ".line";

impl Checkpoints {
    /// Begins a branch with `checkpoint`, which is of a later epoch than all others.
    ///
    /// # Errors
    /// The checkpoint is not stored, and nothing has changed.
    pub async fn begin_branch(&self, checkpoint: Checkpoint) -> Result<(), CheckpointError> {
        let begins = checkpoint.epoch;
        if let Err(error) = self.write(&line_path(begins), checkpoint).await {
            // It may be there all the same, where only the answer is lost.
            if let Err(left) = self.storage.delete(&line_path(begins)).await {
                tracing::warn!(epoch = begins, error = %left, "a branch that was not begun may be there");
            }
            return Err(error);
        }
        // The newest counts.
        if let Err(error) = self.forget_lines_before(begins).await {
            tracing::warn!(%error, "the beginning of an earlier branch is still there");
        }
        Ok(())
    }

    async fn forget_lines_before(&self, begins: u64) -> Result<(), CheckpointError> {
        for (epoch, path) in self.lines().await? {
            if epoch < begins {
                self.storage.delete(&path).await?;
            }
        }
        Ok(())
    }

    /// Epochs and objects of the checkpoints of the current branch, oldest first.
    pub(super) async fn of_line(&self) -> Result<Vec<(u64, ObjectPath)>, CheckpointError> {
        let begin = self.line().await?.map_or(0, |(epoch, _)| epoch);
        Ok(self.list().await?.into_iter().filter(|(epoch, _)| *epoch >= begin).collect())
    }

    /// The first checkpoint of the branch; `None` if the run was never rolled back, or it was deleted.
    ///
    /// # Errors
    /// It is damaged: no other checkpoint may take its place.
    pub(super) async fn load_begin(&self) -> Result<Option<(ObjectPath, Checkpoint)>, CheckpointError> {
        let Some((_, path)) = self.line().await? else { return Ok(None) };
        match self.read(&path).await? {
            Ok(checkpoint) => Ok(Some((path, checkpoint))),
            Err(reason) => Err(CheckpointError::Branch { path: path.to_string(), reason }),
        }
    }

    /// Deletes the branch's first checkpoint once all of `kept`, oldest first, are of the branch and there are several.
    pub(super) async fn forget_begin(&self, kept: &[(u64, ObjectPath)]) -> Result<(), CheckpointError> {
        let (Some((begin, path)), [(oldest, _), _, ..]) = (self.line().await?, kept) else { return Ok(()) };
        if *oldest >= begin {
            self.storage.delete(&path).await?;
        }
        Ok(())
    }

    /// Sets all checkpoints of `epoch` and later aside, because another branch is followed from there on. If this
    /// branch began later, the checkpoints that its rollback left behind are set aside as well.
    pub async fn abandon_branch(&self, epoch: u64, reason: &str) -> Result<(), CheckpointError> {
        let left: Vec<_> = self.lines().await?.into_iter().filter(|(begin, _)| *begin >= epoch).collect();
        let begin = left.iter().map(|(begin, _)| *begin).max().unwrap_or(0);
        let kept = self.list().await?.into_iter().filter(|(of, _)| *of < begin || *of >= epoch);
        for (_, path) in kept.chain(left) {
            let name = path.filename().unwrap_or_default();
            let moved_to = ObjectPath::from_iter([FOLDER, CORRUPT, name]);
            self.storage.set_aside(&path, &moved_to, reason.to_owned()).await?;
        }
        Ok(())
    }

    /// The newest.
    async fn line(&self) -> Result<Option<(u64, ObjectPath)>, CheckpointError> {
        Ok(self.lines().await?.into_iter().max_by_key(|(epoch, _)| *epoch))
    }

    /// More than one only after a crash between writing the newest and deleting the earlier ones.
    async fn lines(&self) -> Result<Vec<(u64, ObjectPath)>, CheckpointError> {
        let (objects, _) = self.storage.list_level(&ObjectPath::from(FOLDER)).await?;
        let begins = |path: &ObjectPath| path.filename()?.strip_suffix(SUFFIX)?.parse().ok();
        Ok(objects.into_iter().filter_map(|path| Some((begins(&path)?, path))).collect())
    }
}

fn line_path(epoch: u64) -> ObjectPath {
    ObjectPath::from_iter([FOLDER, &format!("{epoch:012}{SUFFIX}")])
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]

    use std::fs;
    use std::path::Path;

    use super::super::tests::{RUN, checkpoint, latest, model};
    use super::*;
    use crate::storage::Storage;

    fn damage(folder: &Path, name: &str) {
        fs::write(folder.join("checkpoints").join(name), b"damaged").unwrap();
    }

    async fn goes_on_from(checkpoints: &Checkpoints) -> Option<u64> {
        latest(checkpoints).await.checkpoint.map(|checkpoint| checkpoint.epoch)
    }

    /// Steps up to 30, and from 34 on the parameters of an earlier one.
    async fn rolled_back(folder: &Path) -> Checkpoints {
        let checkpoints = Checkpoints::new(Storage::open(folder).unwrap(), 4);
        for epoch in [10, 20, 30] {
            checkpoints.save(checkpoint(epoch)).await.unwrap();
        }
        checkpoints.begin_branch(checkpoint(34)).await.unwrap();
        checkpoints
    }

    #[tokio::test]
    async fn a_damaged_newest_checkpoint_never_brings_back_what_was_rolled_back() {
        let folder = tempfile::tempdir().unwrap();
        let checkpoints = rolled_back(folder.path()).await;
        assert_eq!(goes_on_from(&checkpoints).await, Some(34), "a crash before the checkpoint itself");
        checkpoints.save(checkpoint(34)).await.unwrap();
        checkpoints.save(checkpoint(40)).await.unwrap();
        assert_eq!(goes_on_from(&checkpoints).await, Some(40));
        assert_eq!(checkpoints.load_shared(10).await.unwrap().unwrap().epoch, 40);
        damage(folder.path(), "000000000040.ckpt");
        assert_eq!(goes_on_from(&checkpoints).await, Some(34), "as long as the line has one");
        assert_eq!(checkpoints.load_shared(10).await.unwrap().unwrap().epoch, 34, "others get none either");
        damage(folder.path(), "000000000034.ckpt");
        assert_eq!(goes_on_from(&checkpoints).await, Some(34), "where the line begins is whole");
        assert!(checkpoints.load(30).await.unwrap().is_some(), "an operator may still say so");

        damage(folder.path(), "000000000034.line");
        for _ in 0..2 {
            // Not the second time either.
            let error = checkpoints.load_latest(RUN, &model()).await.unwrap_err();
            assert!(matches!(error, CheckpointError::Branch { .. }), "{error}");
            let error = error.to_string();
            assert!(error.contains("000000000034.line") && error.contains("backup"), "{error}");
        }
    }

    #[tokio::test]
    async fn the_beginning_goes_once_nothing_is_left_from_before() {
        let folder = tempfile::tempdir().unwrap();
        let checkpoints = rolled_back(folder.path()).await;
        let line = folder.path().join("checkpoints/000000000034.line");
        for epoch in [34, 40, 50] {
            checkpoints.save(checkpoint(epoch)).await.unwrap();
            assert!(line.exists(), "30 is still there");
        }
        checkpoints.save(checkpoint(60)).await.unwrap();
        assert!(!line.exists());
        assert_eq!(goes_on_from(&checkpoints).await, Some(60));
        let kept = checkpoints.kept().await.unwrap();
        assert!(kept.iter().map(|(epoch, _)| *epoch).eq([34, 40, 50, 60]), "{kept:?}");
    }

    #[tokio::test]
    async fn the_last_rollback_counts() {
        let folder = tempfile::tempdir().unwrap();
        let checkpoints = rolled_back(folder.path()).await;
        checkpoints.save(checkpoint(34)).await.unwrap();
        checkpoints.begin_branch(checkpoint(36)).await.unwrap();
        assert_eq!(goes_on_from(&checkpoints).await, Some(36));
        assert!(!folder.path().join("checkpoints/000000000034.line").exists());
    }

    #[tokio::test]
    async fn a_line_of_others_from_before_ends_this_one_and_what_it_rolled_back() {
        let folder = tempfile::tempdir().unwrap();
        let checkpoints = rolled_back(folder.path()).await;
        checkpoints.save(checkpoint(34)).await.unwrap();
        checkpoints.abandon_branch(32, "another line is followed").await.unwrap();
        assert_eq!(goes_on_from(&checkpoints).await, None, "not what was rolled back");
        checkpoints.save(checkpoint(32)).await.unwrap();
        assert_eq!(goes_on_from(&checkpoints).await, Some(32));
        // It ends where it began, too.
        let folder = tempfile::tempdir().unwrap();
        let checkpoints = rolled_back(folder.path()).await;
        checkpoints.abandon_branch(34, "another line is followed").await.unwrap();
        assert_eq!(goes_on_from(&checkpoints).await, None);
        // One that was left later than it began goes on.
        let folder = tempfile::tempdir().unwrap();
        let checkpoints = rolled_back(folder.path()).await;
        checkpoints.save(checkpoint(40)).await.unwrap();
        checkpoints.abandon_branch(38, "another line is followed").await.unwrap();
        assert_eq!(goes_on_from(&checkpoints).await, Some(34));
    }

    #[tokio::test]
    async fn what_a_run_began_with_is_of_every_line() {
        let folder = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints::new(Storage::open(folder.path()).unwrap(), 4);
        for epoch in [0, 5] {
            checkpoints.save(checkpoint(epoch)).await.unwrap();
        }
        checkpoints.abandon_branch(5, "another line is followed").await.unwrap();
        assert_eq!(goes_on_from(&checkpoints).await, Some(0));
    }
}
