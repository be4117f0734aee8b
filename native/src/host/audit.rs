//! The audit log of operator commands: append-only lines of JSON in the run's folder, with caller, time and outcome.
//!
//! A command has two lines: the first is on disk before the command takes effect, the second has the outcome. A full
//! file is rotated, and a few older ones are kept. The log never holds a token, and is never read whole.
//!
//! The backbone writes it, and so do commands on its machine. A file lock serialises the writers, and its holder first
//! reads what others wrote: no two commands have the same number, and lines do not interleave.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;

use super::operator::view::AuditEntry;
use crate::host::clock::WallClock;

/// Name of the file in a run's folder; older ones are `audit.1.jsonl`, `audit.2.jsonl`, ….
const FILE: &str = "audit.jsonl";
/// Name of the file whose lock serialises the writers.
const LOCK_FILE: &str = "audit.lock";
/// A longer file is rotated.
const FILE_BYTES_MAX: u64 = 8 * 1024 * 1024;
/// Most older files.
const OLDER_MAX: usize = 9;
/// Most that is read from the end of a file.
const READ_BYTES_MAX: u64 = 512 * 1024;
/// Most entries in one answer.
pub const ENTRIES_MAX: usize = 500;
/// Caller of every command: the holder of the run's token, or a user with access to its folder.
pub const OPERATOR: &str = "operator";
/// Longest outcome, in characters.
const OUTCOME_CHARS_MAX: usize = 500;
const BEGUN: &str = "begun";
const DONE: &str = "done";

/// The log cannot be written or read.
#[derive(Debug, thiserror::Error)]
#[error("audit log {}: {source}", path.display())]
pub struct AuditError {
    path: PathBuf,
    source: io::Error,
}

/// A command of the operator, as it is logged.
#[derive(Debug, Clone)]
pub struct AuditRecord {
    /// Name of the token.
    pub who: &'static str,
    /// Address of the caller, or "command line".
    pub from: String,
    /// Name of the command.
    pub verb: &'static str,
    /// Id of the run.
    pub run: String,
    /// Arguments of the command.
    pub arguments: Value,
}

/// The audit log of a run. Cheap to clone.
#[derive(Clone)]
pub struct AuditLog {
    folder: Arc<PathBuf>,
    turn: Arc<File>,
    open: Arc<Mutex<OpenAuditFile>>,
    clock: WallClock,
}

struct OpenAuditFile {
    file: File,
    n_bytes: u64,
    next: u64,
    file_bytes_max: u64,
    /// Whether the file may end within a line.
    is_torn: bool,
}

impl OpenAuditFile {
    /// Opens the file as the last writer left it. The next number is `next` at least.
    fn of(folder: &Path, next: u64, file_bytes_max: u64) -> io::Result<Self> {
        let path = folder.join(FILE);
        let mut last = read_last(&older(folder, 1), ENTRIES_MAX)?;
        last.extend(read_last(&path, ENTRIES_MAX)?);
        // The highest number, not the last: a command that began earlier may have ended later.
        let newest = last.iter().map(|entry| entry.number).max();
        let next = newest.map_or(next, |number| number.saturating_add(1).max(next));
        let file = append_to(&path)?;
        let n_bytes = file.metadata()?.len();
        let is_torn = n_bytes > 0 && !ends_a_line(&path)?;
        Ok(Self { file, n_bytes, next, file_bytes_max, is_torn })
    }

    /// Whether no other process has written to the file or rotated it since.
    fn is_current(&self, folder: &Path) -> io::Result<bool> {
        let there = match std::fs::metadata(folder.join(FILE)) {
            Ok(there) => there,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(error),
        };
        Ok(there.len() == self.n_bytes && is_same_file(&there, &self.file.metadata()?))
    }
}

/// The right to write, among all processes, until it is dropped.
struct WriteLock<'f>(&'f File);

impl<'f> WriteLock<'f> {
    /// Waits for the lock, which each writer holds for one line.
    fn take(file: &'f File) -> io::Result<Self> {
        loop {
            match file.lock() {
                Ok(()) => return Ok(Self(file)),
                // A signal interrupted the wait.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

impl Drop for WriteLock<'_> {
    fn drop(&mut self) {
        // If unlocking fails, the end of the process releases the lock.
        let _ = self.0.unlock();
    }
}

impl AuditLog {
    /// The log in a run's folder. Blocks.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn open(folder: &Path, clock: WallClock) -> Result<Self, AuditError> {
        let path = folder.join(FILE);
        let fail = |source| AuditError { path: path.clone(), source };
        let file = append_to(&folder.join(LOCK_FILE)).map_err(fail)?;
        let turn = WriteLock::take(&file).map_err(fail)?;
        let open = OpenAuditFile::of(folder, 1, FILE_BYTES_MAX).map_err(fail)?;
        drop(turn);
        Ok(Self {
            folder: Arc::new(folder.to_owned()),
            turn: Arc::new(file),
            open: Arc::new(Mutex::new(open)),
            clock,
        })
    }

    /// Logs that a command begins, and returns its number. The line is on disk once this returns. Blocks.
    ///
    /// # Errors
    /// The line could not be written: then the command must not be executed.
    pub fn begin(&self, record: &AuditRecord) -> Result<u64, AuditError> {
        let mut open = self.lock();
        let _turn = self.take_turn(&mut open)?;
        let number = open.next;
        self.write(&mut open, number, record, BEGUN)?;
        open.next += 1;
        Ok(number)
    }

    /// Logs the outcome of command `number`: `error`, or success. Blocks.
    ///
    /// # Errors
    /// The line could not be written.
    pub fn end(&self, number: u64, record: &AuditRecord, error: Option<&str>) -> Result<(), AuditError> {
        let outcome: String = error.unwrap_or(DONE).chars().take(OUTCOME_CHARS_MAX).collect();
        let mut open = self.lock();
        let _turn = self.take_turn(&mut open)?;
        self.write(&mut open, number, record, &outcome)
    }

    /// The newest entries, newest last. Blocks.
    ///
    /// # Errors
    /// The log cannot be read.
    pub fn newest(&self, limit: usize) -> Result<Vec<AuditEntry>, AuditError> {
        let limit = limit.min(ENTRIES_MAX);
        let path = self.folder.join(FILE);
        let fail = |source| AuditError { path: path.clone(), source };
        let newest = read_last(&path, limit).map_err(fail)?;
        let mut entries = match limit - newest.len() {
            0 => Vec::new(),
            missing => read_last(&older(&self.folder, 1), missing).map_err(fail)?,
        };
        entries.extend(newest);
        Ok(entries)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, OpenAuditFile> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the log and updates `open` to what other processes wrote.
    fn take_turn(&self, open: &mut OpenAuditFile) -> Result<WriteLock<'_>, AuditError> {
        let fail = |source| AuditError { path: self.folder.join(FILE), source };
        let turn = WriteLock::take(&self.turn).map_err(fail)?;
        if !open.is_current(&self.folder).map_err(fail)? {
            *open = OpenAuditFile::of(&self.folder, open.next, open.file_bytes_max).map_err(fail)?;
        }
        Ok(turn)
    }

    fn write(
        &self,
        open: &mut OpenAuditFile,
        number: u64,
        record: &AuditRecord,
        outcome: &str,
    ) -> Result<(), AuditError> {
        let entry = AuditEntry {
            number,
            at: (self.clock)().0,
            who: record.who.to_owned(),
            from: record.from.clone(),
            verb: record.verb.to_owned(),
            run: record.run.clone(),
            arguments: record.arguments.clone(),
            outcome: outcome.to_owned(),
        };
        let fail = |source| AuditError { path: self.folder.join(FILE), source };
        let text = serde_json::to_string(&entry).map_err(|error| fail(io::Error::other(error)))?;
        // A line that a crash or a full disk tore stays in the file; readers skip it.
        let before = if open.is_torn { "\n" } else { "" };
        let line = format!("{before}{text}\n").into_bytes();
        if open.n_bytes + line.len() as u64 > open.file_bytes_max && open.n_bytes > 0 {
            *open = self.rotate(open).map_err(fail)?;
        }
        open.is_torn = true;
        append_line(&mut open.file, &line).map_err(fail)?;
        open.is_torn = false;
        open.n_bytes += line.len() as u64;
        Ok(())
    }

    fn rotate(&self, full: &OpenAuditFile) -> io::Result<OpenAuditFile> {
        for age in (1..OLDER_MAX).rev() {
            let from = older(&self.folder, age);
            if from.exists() {
                std::fs::rename(from, older(&self.folder, age + 1))?;
            }
        }
        let path = self.folder.join(FILE);
        // It is missing where an earlier rotation failed after this step.
        if path.exists() {
            std::fs::rename(&path, older(&self.folder, 1))?;
        }
        let file = append_to(&path)?;
        Ok(OpenAuditFile {
            file,
            n_bytes: 0,
            next: full.next,
            file_bytes_max: full.file_bytes_max,
            is_torn: false,
        })
    }
}

/// A file that lines are appended to; tests have their own.
trait AppendOnly {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;
    fn sync(&mut self) -> io::Result<()>;
}

impl AppendOnly for File {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write_all(bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.sync_data()
    }
}

/// Appends a line and syncs the file: the line survives a loss of power once this has returned.
fn append_line(file: &mut impl AppendOnly, line: &[u8]) -> io::Result<()> {
    file.append(line)?;
    file.sync()
}

fn older(folder: &Path, age: usize) -> PathBuf {
    folder.join(format!("audit.{age}.jsonl"))
}

/// Opens a file for appending, readable by its owner only: it has addresses of people.
fn append_to(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.create(true).append(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let file = options.open(path)?;
    // The folder is synced as well, so that the file's name survives.
    #[cfg(unix)]
    if let Some(folder) = path.parent() {
        File::open(folder)?.sync_all()?;
    }
    Ok(file)
}

#[cfg(unix)]
fn is_same_file(one: &Metadata, other: &Metadata) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

#[cfg(not(unix))]
fn is_same_file(one: &Metadata, other: &Metadata) -> bool {
    one.created().ok() == other.created().ok()
}

/// Whether a non-empty file ends with a whole line.
fn ends_a_line(path: &Path) -> io::Result<bool> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::End(-1))?;
    let mut last = [0];
    file.read_exact(&mut last)?;
    Ok(last == *b"\n")
}

/// The last entries of a file, oldest first; none where there is no file.
fn read_last(path: &Path, limit: usize) -> io::Result<Vec<AuditEntry>> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let n_bytes = file.metadata()?.len();
    file.seek(SeekFrom::Start(n_bytes.saturating_sub(READ_BYTES_MAX)))?;
    let mut bytes = Vec::new();
    file.take(READ_BYTES_MAX).read_to_end(&mut bytes)?;
    let lines = bytes.split(|byte| *byte == b'\n').rev();
    let entries = lines.filter_map(|line| serde_json::from_slice(line).ok()).take(limit);
    let mut entries: Vec<AuditEntry> = entries.collect();
    entries.reverse();
    Ok(entries)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use barnraise_protocol::access::UnixTime;
    use serde_json::json;

    use super::*;

    fn open(folder: &Path) -> AuditLog {
        AuditLog::open(folder, Arc::new(|| UnixTime(9))).unwrap()
    }

    /// A file on a disk that may fail, and loses what was not synced.
    #[derive(Default)]
    struct UnsyncedFile {
        now: Vec<u8>,
        n_synced: usize,
        n_until_failure: usize,
    }

    impl UnsyncedFile {
        fn operate(&mut self) -> io::Result<()> {
            self.n_until_failure = self.n_until_failure.checked_sub(1).ok_or(io::ErrorKind::StorageFull)?;
            Ok(())
        }
    }

    impl AppendOnly for UnsyncedFile {
        fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
            let done = self.operate();
            let n_bytes = if done.is_ok() { bytes.len() } else { bytes.len() / 2 };
            self.now.extend_from_slice(&bytes[..n_bytes]);
            done
        }

        fn sync(&mut self) -> io::Result<()> {
            self.operate()?;
            self.n_synced = self.now.len();
            Ok(())
        }
    }

    #[test]
    fn a_line_that_is_said_to_be_written_outlasts_a_loss_of_power() {
        for n_until_failure in 0..8 {
            let mut file = UnsyncedFile { n_until_failure, ..UnsyncedFile::default() };
            let lines: [&[u8]; 3] = [b"one\n", b"two\n", b"six\n"];
            let n_done = lines.iter().take_while(|line| append_line(&mut file, line).is_ok()).count();
            assert_eq!(n_done, (n_until_failure / 2).min(lines.len()));
            assert_eq!(file.now[..file.n_synced], lines[..n_done].concat(), "{n_until_failure} operations");
        }
    }

    fn record(verb: &'static str) -> AuditRecord {
        let arguments = json!({"reason": "a\nb"});
        AuditRecord { who: "operator", from: "127.0.0.1:5".into(), verb, run: "r".into(), arguments }
    }

    #[test]
    fn a_command_is_on_the_disk_before_and_after_and_over_restarts() {
        let folder = tempfile::tempdir().unwrap();
        let audit = open(folder.path());
        assert_eq!(audit.begin(&record("pause")).unwrap(), 1);
        let there = || std::fs::read_to_string(folder.path().join(FILE)).unwrap();
        assert!(there().contains("\"verb\":\"pause\"") && there().contains("begun"), "{}", there());
        audit.end(1, &record("pause"), None).unwrap();
        drop(audit);
        // A crash in the middle of a line.
        let mut file = append_to(&folder.path().join(FILE)).unwrap();
        file.write_all(b"{\"number\":2,\"at\"").unwrap();
        let audit = open(folder.path());
        assert_eq!(audit.begin(&record("resume")).unwrap(), 2);
        audit.end(2, &record("resume"), Some("no such run")).unwrap();
        let outcome = |entry: &AuditEntry| (entry.number, entry.outcome.clone());
        let entries: Vec<_> = audit.newest(3).unwrap().iter().map(outcome).collect();
        assert_eq!(entries, [(1, "done".into()), (2, "begun".into()), (2, "no such run".into())]);
    }

    /// The format of the lines must never change.
    #[test]
    fn golden_lines() {
        let folder = tempfile::tempdir().unwrap();
        let audit = open(folder.path());
        audit.begin(&record("pause")).unwrap();
        audit.end(1, &record("pause"), None).unwrap();
        assert_eq!(std::fs::read_to_string(folder.path().join(FILE)).unwrap(), GOLDEN);
    }

    const GOLDEN: &str = r#"{"number":1,"at":9,"who":"operator","from":"127.0.0.1:5","verb":"pause","run":"r","arguments":{"reason":"a\nb"},"outcome":"begun"}
{"number":1,"at":9,"who":"operator","from":"127.0.0.1:5","verb":"pause","run":"r","arguments":{"reason":"a\nb"},"outcome":"done"}
"#;

    #[test]
    fn no_two_commands_have_one_number_in_any_order_of_their_ends() {
        let folder = tempfile::tempdir().unwrap();
        let audit = open(folder.path());
        let (long, short) = (audit.begin(&record("rollback")).unwrap(), audit.begin(&record("set")).unwrap());
        audit.end(short, &record("set"), None).unwrap();
        audit.end(long, &record("rollback"), None).unwrap();
        assert_eq!(open(folder.path()).begin(&record("set")).unwrap(), short + 1);
        // Only the end of the earlier one is in the newer file.
        std::fs::rename(folder.path().join(FILE), older(folder.path(), 1)).unwrap();
        open(folder.path()).end(long, &record("rollback"), None).unwrap();
        assert_eq!(open(folder.path()).begin(&record("set")).unwrap(), short + 2);
    }

    #[test]
    fn a_line_that_could_not_be_finished_does_not_swallow_the_next_one() {
        let folder = tempfile::tempdir().unwrap();
        let audit = open(folder.path());
        assert_eq!(audit.begin(&record("pause")).unwrap(), 1);
        // A file that takes nothing, as on a full disk.
        let full = File::open(folder.path().join(FILE)).unwrap();
        let mut file = std::mem::replace(&mut audit.lock().file, full);
        audit.begin(&record("resume")).unwrap_err();
        file.write_all(b"{\"number\":2,\"at\"").unwrap();
        audit.lock().file = file;
        assert_eq!(audit.begin(&record("resume")).unwrap(), 2);
        let numbers: Vec<u64> = audit.newest(9).unwrap().iter().map(|entry| entry.number).collect();
        assert_eq!(numbers, [1, 2]);
    }

    #[test]
    fn a_full_file_becomes_the_older_one_and_few_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let audit = open(folder.path());
        audit.lock().file_bytes_max = 1000;
        for number in 1..=200 {
            assert_eq!(audit.begin(&record("set")).unwrap(), number);
        }
        let files = std::fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(files, 1 + OLDER_MAX + 1, "with the lock");
        let newest: Vec<u64> = audit.newest(6).unwrap().iter().map(|entry| entry.number).collect();
        assert_eq!(newest, [195, 196, 197, 198, 199, 200]);
        assert_eq!(open(folder.path()).begin(&record("set")).unwrap(), 201);
    }

    /// Two writers, as a backbone and a command on its machine.
    #[test]
    fn two_that_write_at_once_share_no_number_and_no_line() {
        let folder = tempfile::tempdir().unwrap();
        let write = || {
            let audit = open(folder.path());
            // Small files, so that both writers rotate them.
            audit.lock().file_bytes_max = 8000;
            let numbers = (0..100).map(|_| {
                let number = audit.begin(&record("set")).unwrap();
                audit.end(number, &record("set"), None).unwrap();
                number
            });
            numbers.collect::<Vec<u64>>()
        };
        let mut numbers = std::thread::scope(|scope| {
            let (one, other) = (scope.spawn(write), scope.spawn(write));
            [one.join().unwrap(), other.join().unwrap()].concat()
        });
        numbers.sort_unstable();
        assert!(numbers.iter().copied().eq(1..=200), "{numbers:?}");
        let files = (1..=OLDER_MAX).map(|age| older(folder.path(), age)).chain([folder.path().join(FILE)]);
        let texts: Vec<String> = files.filter_map(|path| std::fs::read_to_string(path).ok()).collect();
        assert!(texts.len() > 2, "{} files", texts.len());
        let entries = texts.iter().flat_map(|text| text.lines());
        let mut written: Vec<u64> =
            entries.map(|line| serde_json::from_str::<AuditEntry>(line).unwrap().number).collect();
        written.sort_unstable();
        let twice: Vec<u64> = (1..=200).flat_map(|number| [number, number]).collect();
        assert_eq!(written, twice, "each begun and done");
    }
}
