//! A simulated disk for tests: it fills up, fails, stalls and loses power, all from one seed.
//!
//! A loss of power keeps all that was synced. Of each name and each file's bytes that were not, the seed decides
//! whether all, a part or nothing is kept.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, SystemTime};

use barnraise_swarm::random::SplitMix64;
use bytes::Bytes;

use super::files::{DirectoryEntry, Files};

#[derive(Debug, Clone, Default)]
struct Content {
    now: Vec<u8>,
    synced: Option<Vec<u8>>,
    written: u64,
}

#[derive(Debug)]
struct SimulatedFiles {
    contents: Vec<Content>,
    /// Files by their names, and folders.
    files: BTreeMap<PathBuf, usize>,
    folders: BTreeSet<PathBuf>,
    /// Files whose names were synced.
    files_synced: BTreeMap<PathBuf, usize>,
    folders_synced: BTreeSet<PathBuf>,
    random: SplitMix64,
    n_operations: u64,
    dies_at: Option<u64>,
    /// One of so many operations fails; none where that is 0.
    fails_one_in: usize,
    n_bytes_max: u64,
}

/// The disk. Cheap to clone; clones share the state.
#[derive(Debug, Clone)]
pub(crate) struct SimulatedDisk {
    state: Arc<Mutex<SimulatedFiles>>,
    stalled: Arc<(Mutex<bool>, Condvar)>,
    held: Arc<BytesInUse>,
}

/// Bytes that were read and are still in use.
#[derive(Debug, Default)]
struct BytesInUse {
    now: AtomicU64,
    max: AtomicU64,
}

/// Bytes that are counted as in use until they are dropped.
struct TrackedBytes(Vec<u8>, Arc<BytesInUse>);

impl TrackedBytes {
    fn new(bytes: Vec<u8>, held: &Arc<BytesInUse>) -> Self {
        let n_bytes = bytes.len() as u64;
        let now = held.now.fetch_add(n_bytes, Ordering::Relaxed) + n_bytes;
        held.max.fetch_max(now, Ordering::Relaxed);
        Self(bytes, Arc::clone(held))
    }
}

impl AsRef<[u8]> for TrackedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for TrackedBytes {
    fn drop(&mut self) {
        self.1.now.fetch_sub(self.0.len() as u64, Ordering::Relaxed);
    }
}

fn error(kind: io::ErrorKind, what: &str) -> io::Error {
    io::Error::new(kind, format!("simulated: {what}"))
}

impl SimulatedDisk {
    pub(crate) fn new(seed: u64) -> Self {
        let folders = BTreeSet::from([PathBuf::new()]);
        let state = SimulatedFiles {
            contents: Vec::new(),
            files: BTreeMap::new(),
            folders_synced: folders.clone(),
            folders,
            files_synced: BTreeMap::new(),
            random: SplitMix64::new(seed),
            n_operations: 0,
            dies_at: None,
            fails_one_in: 0,
            n_bytes_max: u64::MAX,
        };
        Self { state: Arc::new(Mutex::new(state)), stalled: Arc::default(), held: Arc::default() }
    }

    /// The power fails in the middle of the operation after so many more.
    pub(crate) fn dies_after(&self, n_operations: u64) {
        let mut state = self.state.lock().unwrap();
        state.dies_at = Some(state.n_operations + n_operations);
    }

    pub(crate) fn is_dead(&self) -> bool {
        let state = self.state.lock().unwrap();
        state.dies_at.is_some_and(|at| state.n_operations >= at)
    }

    /// One of so many operations fails from now on; none where that is 0.
    pub(crate) fn fails_one_in(&self, n: usize) {
        self.state.lock().unwrap().fails_one_in = n;
    }

    /// Sets the capacity in bytes.
    pub(crate) fn holds(&self, n_bytes: u64) {
        self.state.lock().unwrap().n_bytes_max = n_bytes;
    }

    pub(crate) fn n_bytes_used(&self) -> u64 {
        self.state.lock().unwrap().n_bytes_used()
    }

    /// The most bytes that were read and in use at the same time.
    pub(crate) fn n_bytes_held_max(&self) -> u64 {
        self.held.max.load(Ordering::Relaxed)
    }

    /// Whether operations hang from now on, without an error.
    pub(crate) fn stall(&self, is_stalled: bool) {
        *self.stalled.0.lock().unwrap() = is_stalled;
        self.stalled.1.notify_all();
    }

    /// Names of all files.
    pub(crate) fn names(&self) -> Vec<PathBuf> {
        self.state.lock().unwrap().files.keys().cloned().collect()
    }

    /// Names of all folders.
    pub(crate) fn folder_names(&self) -> Vec<PathBuf> {
        self.state.lock().unwrap().folders.iter().cloned().collect()
    }

    /// What a machine finds that is switched on again.
    pub(crate) fn after_power_loss(&self) -> Self {
        let mut state = self.state.lock().unwrap();
        let SimulatedFiles { contents, files, folders, files_synced, folders_synced, random, .. } =
            &mut *state;
        let mut kept: BTreeMap<PathBuf, usize> = BTreeMap::new();
        let names: BTreeSet<PathBuf> = files.keys().chain(files_synced.keys()).cloned().collect();
        for name in names {
            let choices = [files.get(&name), files_synced.get(&name)];
            if let Some(id) = choices[random.below(2)] {
                kept.insert(name, *id);
            }
        }
        let mut folders_kept: BTreeSet<PathBuf> = BTreeSet::new();
        for name in folders.union(folders_synced) {
            let choices = [folders.contains(name), folders_synced.contains(name)];
            // A folder in which something is left was not removed.
            let is_kept = choices[random.below(2)];
            if is_kept && name.parent().is_none_or(|parent| folders_kept.contains(parent)) {
                folders_kept.insert(name.clone());
            }
        }
        // A name within a folder whose own name is lost is lost.
        kept.retain(|name, _| name.parent().is_some_and(|parent| folders_kept.contains(parent)));
        let mut after = Vec::new();
        for id in kept.values_mut() {
            let content = &contents[*id];
            let bytes = content.after_power_loss(random);
            *id = after.len();
            after.push(Content { synced: Some(bytes.clone()), now: bytes, written: content.written });
        }
        let next = SimulatedFiles {
            contents: after,
            files: kept.clone(),
            folders: folders_kept.clone(),
            files_synced: kept,
            folders_synced: folders_kept,
            random: SplitMix64::new(random.next_u64()),
            n_operations: 0,
            dies_at: None,
            fails_one_in: 0,
            n_bytes_max: u64::MAX,
        };
        Self { state: Arc::new(Mutex::new(next)), stalled: Arc::default(), held: Arc::default() }
    }

    /// An operation, which `act` does. In the one in which the power fails it may or may not be done.
    fn operate<T>(&self, act: impl FnOnce(&mut SimulatedFiles) -> io::Result<T>) -> io::Result<T> {
        let mut is_stalled = self.stalled.0.lock().unwrap();
        while *is_stalled {
            is_stalled = self.stalled.1.wait(is_stalled).unwrap();
        }
        drop(is_stalled);
        let mut state = self.state.lock().unwrap();
        let is_dead = state.dies_at.is_some_and(|at| state.n_operations >= at);
        if is_dead {
            return Err(error(io::ErrorKind::Other, "there is no power"));
        }
        state.n_operations += 1;
        if state.dies_at == Some(state.n_operations) {
            if state.random.below(2) == 0 {
                let _ = act(&mut state);
            }
            return Err(error(io::ErrorKind::Other, "the power failed"));
        }
        if state.fails_one_in > 0 {
            let n = state.fails_one_in;
            if state.random.below(n) == 0 {
                return Err(error(io::ErrorKind::Other, "an input/output error"));
            }
        }
        act(&mut state)
    }
}

impl Content {
    fn after_power_loss(&self, random: &mut SplitMix64) -> Vec<u8> {
        if self.synced.as_ref() == Some(&self.now) {
            return self.now.clone();
        }
        let torn = random.below(self.now.len() + 1);
        match random.below(4) {
            0 => self.synced.clone().unwrap_or_default(),
            1 => self.now.clone(),
            2 => self.now[..torn].to_vec(),
            // Its length was written, and not all of its bytes.
            _ => [&self.now[..torn], &vec![0; self.now.len() - torn]].concat(),
        }
    }
}

impl SimulatedFiles {
    fn n_bytes_used(&self) -> u64 {
        self.files.values().map(|id| self.contents[*id].now.len() as u64).sum()
    }

    fn id(&self, file: &Path) -> io::Result<usize> {
        self.files.get(file).copied().ok_or_else(|| error(io::ErrorKind::NotFound, "no such file"))
    }

    fn has_parent(&self, path: &Path) -> io::Result<()> {
        let has = path.parent().is_some_and(|parent| self.folders.contains(parent));
        if has { Ok(()) } else { Err(error(io::ErrorKind::NotFound, "no such folder")) }
    }
}

fn is_in(folder: &Path) -> impl Fn(&PathBuf) -> bool {
    move |path| path.parent() == Some(folder)
}

impl Files for SimulatedDisk {
    fn create_folder(&self, folder: &Path) -> io::Result<()> {
        self.operate(|state| {
            state.has_parent(folder)?;
            state.folders.insert(folder.to_owned());
            Ok(())
        })
    }

    fn write_new(&self, file: &Path, pieces: &[Bytes]) -> io::Result<()> {
        self.operate(|state| {
            state.has_parent(file)?;
            if state.files.contains_key(file) {
                return Err(error(io::ErrorKind::AlreadyExists, "there is one"));
            }
            let whole = pieces.concat();
            let room = state.n_bytes_max.saturating_sub(state.n_bytes_used());
            let fits = whole.len() as u64 <= room;
            let now = if fits { whole } else { whole[..room as usize].to_vec() };
            state.contents.push(Content { now, synced: None, written: state.n_operations });
            state.files.insert(file.to_owned(), state.contents.len() - 1);
            if fits { Ok(()) } else { Err(error(io::ErrorKind::StorageFull, "no room")) }
        })
    }

    fn sync(&self, file: &Path) -> io::Result<()> {
        self.operate(|state| {
            let id = state.id(file)?;
            let content = &mut state.contents[id];
            content.synced = Some(content.now.clone());
            Ok(())
        })
    }

    fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        self.operate(|state| {
            if !state.folders.contains(folder) {
                return Err(error(io::ErrorKind::NotFound, "no such folder"));
            }
            let is_in = is_in(folder);
            state.files_synced.retain(|path, _| !is_in(path));
            let files = state.files.iter().filter(|(path, _)| is_in(path));
            state.files_synced.extend(files.map(|(path, id)| (path.clone(), *id)));
            state.folders_synced.retain(|path| !is_in(path));
            state.folders_synced.extend(state.folders.iter().filter(|path| is_in(path)).cloned());
            Ok(())
        })
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.operate(|state| {
            state.has_parent(to)?;
            let id = state.id(from)?;
            state.files.remove(from);
            state.files.insert(to.to_owned(), id);
            Ok(())
        })
    }

    fn remove(&self, file: &Path) -> io::Result<()> {
        self.operate(|state| {
            state.id(file)?;
            state.files.remove(file);
            Ok(())
        })
    }

    fn remove_folder(&self, folder: &Path) -> io::Result<()> {
        self.operate(|state| {
            let is_in = is_in(folder);
            if state.files.keys().chain(&state.folders).any(is_in) {
                return Err(error(io::ErrorKind::DirectoryNotEmpty, "there is something in it"));
            }
            let was = state.folders.remove(folder);
            if was { Ok(()) } else { Err(error(io::ErrorKind::NotFound, "no such folder")) }
        })
    }

    fn n_bytes(&self, file: &Path) -> io::Result<u64> {
        let state = self.state.lock().unwrap();
        Ok(state.contents[state.id(file)?].now.len() as u64)
    }

    fn read(&self, file: &Path, from: u64, n_bytes_max: u64) -> io::Result<Bytes> {
        if self.is_dead() {
            return Err(error(io::ErrorKind::Other, "there is no power"));
        }
        let state = self.state.lock().unwrap();
        let bytes = &state.contents[state.id(file)?].now;
        let from = bytes.len().min(from as usize);
        let to = bytes.len().min(from.saturating_add(usize::try_from(n_bytes_max).unwrap_or(usize::MAX)));
        Ok(Bytes::from_owner(TrackedBytes::new(bytes[from..to].to_vec(), &self.held)))
    }

    fn list(&self, folder: &Path) -> io::Result<Vec<DirectoryEntry>> {
        if self.is_dead() {
            return Err(error(io::ErrorKind::Other, "there is no power"));
        }
        let state = self.state.lock().unwrap();
        if !state.folders.contains(folder) {
            return Err(error(io::ErrorKind::NotFound, "no such folder"));
        }
        let name = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().to_owned();
        let is_in = is_in(folder);
        let listed = |path, is_folder, content: &Content| DirectoryEntry {
            name: name(path),
            is_folder,
            n_bytes: content.now.len() as u64,
            modified: SystemTime::UNIX_EPOCH + Duration::from_secs(content.written),
        };
        let files = state.files.iter().filter(|(path, _)| is_in(path));
        let files = files.map(|(path, id)| listed(path, false, &state.contents[*id]));
        let folders = state.folders.iter().filter(|path| is_in(path));
        Ok(files.chain(folders.map(|path| listed(path, true, &Content::default()))).collect())
    }

    fn n_bytes_free(&self) -> Option<u64> {
        let state = self.state.lock().unwrap();
        Some(state.n_bytes_max.saturating_sub(state.n_bytes_used()))
    }
}
