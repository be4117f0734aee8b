//! Shards on disk, named by their SHA-256, so that the next process does not fetch them again.
//!
//! Bounded: `swarm::shards` decides which shard replaces which. Of other files in the folder, such as shards of
//! another run, the least recently used ones are removed first. One that the disk damaged is as if it were not there.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use barnraise_protocol::Sha256Hash;
use barnraise_protocol::dataset::{PREPROCESSING_BYTES_MAX, SHARD_BYTES_MAX};

use crate::part;

/// Most bytes that are read of a file: a tokenizer is kept as a shard is, and may have more.
const FILE_BYTES_MAX: u64 = PREPROCESSING_BYTES_MAX;
const _: () = assert!(FILE_BYTES_MAX >= SHARD_BYTES_MAX as u64);
/// Suffix of a file name.
const SUFFIX: &str = ".shard";

/// A folder of shards that several processes may share.
#[derive(Debug, Clone)]
pub(super) struct ShardCache {
    folder: PathBuf,
    bytes_max: u64,
}

impl ShardCache {
    /// A cache of at most `bytes_max` in `folder`, which is created with the first shard.
    pub(super) fn new(folder: PathBuf, bytes_max: u64) -> Self {
        Self { folder, bytes_max }
    }

    /// Most bytes of all cached shards.
    pub(super) fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// Hashes of all cached shards. Blocking.
    pub(super) fn names(&self) -> HashSet<Sha256Hash> {
        let Ok(entries) = fs::read_dir(&self.folder) else { return HashSet::new() };
        let name = |entry: fs::DirEntry| entry.file_name().to_str()?.strip_suffix(SUFFIX)?.parse().ok();
        entries.flatten().filter_map(name).collect()
    }

    /// Removes a shard, if it is cached. Blocking.
    pub(super) fn remove(&self, sha256: Sha256Hash) -> io::Result<()> {
        remove(&self.path(sha256))
    }

    /// The bytes of a shard, if it is cached as it was. Blocking.
    pub(super) fn get(&self, sha256: Sha256Hash) -> Option<Vec<u8>> {
        let file = File::open(self.path(sha256)).ok()?;
        let mut bytes = Vec::new();
        (&file).take(FILE_BYTES_MAX).read_to_end(&mut bytes).ok()?;
        // Marks it as recently used; a failure only affects the order of removal.
        let _ = file.set_modified(SystemTime::now());
        (Sha256Hash::of(&bytes) == sha256).then_some(bytes)
    }

    /// Stores a shard atomically, then removes the least recently used ones beyond the limit. Blocking.
    pub(super) fn put(&self, sha256: Sha256Hash, bytes: &[u8]) -> io::Result<()> {
        // The folder also holds access tokens.
        barnraise_relay::create_private_directory(&self.folder)?;
        part::write(&self.path(sha256), bytes)?;
        self.make_room()
    }

    /// Removes the oldest files until the rest fits, partial files of a crash included.
    fn make_room(&self) -> io::Result<()> {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            // Another process may have removed it meanwhile.
            let Ok(metadata) = entry.metadata() else { continue };
            if metadata.is_file() {
                files.push((metadata.modified()?, metadata.len(), entry.path()));
            }
        }
        let mut n_bytes: u64 = files.iter().map(|(_, n_bytes, _)| n_bytes).sum();
        if n_bytes <= self.bytes_max {
            return Ok(());
        }
        files.sort();
        for (_, freed, path) in files {
            if n_bytes <= self.bytes_max {
                break;
            }
            remove(&path)?;
            n_bytes -= freed;
        }
        Ok(())
    }

    fn path(&self, sha256: Sha256Hash) -> PathBuf {
        self.folder.join(format!("{sha256}{SUFFIX}"))
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::time::Duration;

    use super::*;

    #[test]
    fn what_is_kept_is_there_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("made");
        let sha256 = Sha256Hash::of(b"shard");
        let cache = || ShardCache::new(path.clone(), 1000);
        assert_eq!(cache().get(sha256), None);
        assert!(cache().names().is_empty());
        cache().put(sha256, b"shard").unwrap();
        assert_eq!(cache().get(sha256).as_deref(), Some(&b"shard"[..]));
        fs::write(cache().path(sha256), b"shart").unwrap();
        assert_eq!(cache().get(sha256), None, "the disk damaged it");
        fs::write(path.join("a-file-of-somebody-else"), b"").unwrap();
        assert!(cache().names().into_iter().eq([sha256]));
        fs::remove_file(path.join("a-file-of-somebody-else")).unwrap();
        let names: Vec<_> = fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, [format!("{sha256}.shard").as_str()]);
        cache().remove(sha256).unwrap();
        cache().remove(sha256).unwrap();
        assert_eq!(cache().get(sha256), None);
    }

    #[test]
    fn the_oldest_go_when_room_is_needed() {
        let folder = tempfile::tempdir().unwrap();
        let cache = ShardCache { folder: folder.path().to_owned(), bytes_max: 25 };
        let names: Vec<_> = (0..3u8).map(|n| Sha256Hash::of(&[n; 10])).collect();
        for (age, name) in names.iter().take(2).enumerate() {
            cache.put(*name, &[age as u8; 10]).unwrap();
            let file = File::options().append(true).open(cache.path(*name)).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(100 - age as u64)).unwrap();
        }
        // Reading the first makes the second the oldest.
        assert!(cache.get(names[0]).is_some());
        cache.put(names[2], &[2; 10]).unwrap();
        let there: Vec<_> = names.iter().map(|name| cache.get(*name).is_some()).collect();
        assert_eq!(there, [true, false, true]);
    }
}
