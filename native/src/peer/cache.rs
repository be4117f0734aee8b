//! Shards on disk, named by their SHA-256, so that the next process does not fetch them again; and in a folder of their own, where no
//! shard takes their place, access tokens.
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
/// Folder of the tokens, below that of the shards.
const TOKEN_FOLDER: &str = "tokens";
/// Most bytes of all tokens: those of some thousand runs, or of as many starts with a new key.
const TOKENS_BYTES_MAX: u64 = 1 << 20;

/// A folder of shards that several processes may share.
#[derive(Debug, Clone)]
pub(super) struct ShardCache {
    shards: Folder,
    tokens: Folder,
}

impl ShardCache {
    /// A cache of at most `bytes_max` in `folder`, which is created with the first shard.
    pub(super) fn new(folder: PathBuf, bytes_max: u64) -> Self {
        let tokens =
            Folder { path: folder.join(TOKEN_FOLDER), suffix: ".token", bytes_max: TOKENS_BYTES_MAX };
        Self { shards: Folder { path: folder, suffix: ".shard", bytes_max }, tokens }
    }

    /// Most bytes of all cached shards.
    pub(super) fn bytes_max(&self) -> u64 {
        self.shards.bytes_max
    }

    /// Hashes of all cached shards. Blocking.
    pub(super) fn names(&self) -> HashSet<Sha256Hash> {
        let Ok(entries) = fs::read_dir(&self.shards.path) else { return HashSet::new() };
        let suffix = self.shards.suffix;
        let name = |entry: fs::DirEntry| entry.file_name().to_str()?.strip_suffix(suffix)?.parse().ok();
        entries.flatten().filter_map(name).collect()
    }

    /// Removes a shard, if it is cached. Blocking.
    pub(super) fn remove(&self, sha256: Sha256Hash) -> io::Result<()> {
        remove(&self.shards.file(sha256))
    }

    /// The bytes of a shard, if it is cached as it was. Blocking.
    pub(super) fn get(&self, sha256: Sha256Hash) -> Option<Vec<u8>> {
        self.shards.read(sha256).filter(|bytes| Sha256Hash::of(bytes) == sha256)
    }

    /// Stores a shard, then removes the least recently used ones beyond the limit. Blocking.
    pub(super) fn put(&self, sha256: Sha256Hash, bytes: &[u8]) -> io::Result<()> {
        self.shards.write(sha256, bytes)
    }

    /// The access token stored under a name. It is not verified. Blocking.
    pub(super) fn token(&self, name: Sha256Hash) -> Option<Vec<u8>> {
        self.tokens.read(name)
    }

    /// Stores an access token, then removes the least recently used ones where there are thousands. Blocking.
    pub(super) fn put_token(&self, name: Sha256Hash, token: &[u8]) -> io::Result<()> {
        self.tokens.write(name, token)
    }
}

/// Files by name, as many as there is room for.
#[derive(Debug, Clone)]
struct Folder {
    path: PathBuf,
    suffix: &'static str,
    bytes_max: u64,
}

impl Folder {
    fn read(&self, name: Sha256Hash) -> Option<Vec<u8>> {
        let file = File::open(self.file(name)).ok()?;
        let mut bytes = Vec::new();
        (&file).take(FILE_BYTES_MAX).read_to_end(&mut bytes).ok()?;
        // Marks it as recently used; a failure only affects the order of removal.
        let _ = file.set_modified(SystemTime::now());
        Some(bytes)
    }

    /// Writes a file atomically, then removes the least recently used ones beyond the limit.
    fn write(&self, name: Sha256Hash, bytes: &[u8]) -> io::Result<()> {
        barnraise_relay::create_private_directory(&self.path)?;
        part::write(&self.file(name), bytes)?;
        self.make_room()
    }

    /// Removes the oldest files until the rest fits, partial files of a crash included.
    fn make_room(&self) -> io::Result<()> {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.path)? {
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

    fn file(&self, name: Sha256Hash) -> PathBuf {
        self.path.join(format!("{name}{}", self.suffix))
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
        fs::write(cache().shards.file(sha256), b"shart").unwrap();
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
        let cache = ShardCache::new(folder.path().to_owned(), 25);
        let names: Vec<_> = (0..3u8).map(|n| Sha256Hash::of(&[n; 10])).collect();
        for (age, name) in names.iter().take(2).enumerate() {
            cache.put(*name, &[age as u8; 10]).unwrap();
            let file = File::options().append(true).open(cache.shards.file(*name)).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(100 - age as u64)).unwrap();
        }
        // Reading the first makes the second the oldest.
        assert!(cache.get(names[0]).is_some());
        cache.put(names[2], &[2; 10]).unwrap();
        let there: Vec<_> = names.iter().map(|name| cache.get(*name).is_some()).collect();
        assert_eq!(there, [true, false, true]);
    }

    #[test]
    fn no_shard_takes_the_place_of_an_access_token() {
        let folder = tempfile::tempdir().unwrap();
        let cache = ShardCache::new(folder.path().to_owned(), 25);
        let name = Sha256Hash::of(b"this peer in that run");
        assert_eq!(cache.token(name), None);
        cache.put_token(name, b"token").unwrap();
        for n in 0..3u8 {
            cache.put(Sha256Hash::of(&[n; 10]), &[n; 10]).unwrap();
        }
        assert_eq!(cache.names().len(), 2);
        assert_eq!(cache.token(name).as_deref(), Some(&b"token"[..]));
    }
}
