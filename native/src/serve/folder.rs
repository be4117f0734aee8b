//! The runs of a folder: each `*.toml` in it is the file of a run.
//!
//! A run starts when its file comes, ends in order when its file goes, and is started again when its file changes. Files
//! are looked at every few seconds, and one that was written to meanwhile is left for the next look. A file with a
//! mistake is logged, and its run is as it was. No run ends because of another one: one that fails is logged, and tried
//! again later.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::time::Duration;

use anyhow::Context;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::sync::oneshot;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use super::{
    Process, RunFolder, RunMilestones, ServingAddresses, conflicts, say_goodbye, warn_of, warn_of_invitations,
};
use crate::config::RunConfig;

/// Interval between two looks.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// A run that failed is tried again after this long.
const TRY_AGAIN: Duration = Duration::from_secs(60);
/// Largest file of a run that is read.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Contents of the files, by path.
type FileTexts = BTreeMap<PathBuf, String>;

/// Serves the runs of a folder until the shutdown.
///
/// # Errors
/// The folder cannot be read when the process starts, or the page cannot be served.
pub(super) async fn serve(
    process: Process,
    folder: &RunFolder,
    listening: oneshot::Sender<ServingAddresses>,
) -> anyhow::Result<()> {
    let texts = read(folder.path()).with_context(|| format!("{} cannot be read", folder.path().display()))?;
    let network = folder.network(texts.keys());
    let (http, visitors) = process.open(&network, None).await?;
    let _ = listening.send(ServingAddresses { http, runs: Vec::new() });
    let shutdown = process.shutdown.clone();
    let mut runs = FolderRuns::new(process, folder, http.to_string());
    // What is there at the start is complete.
    runs.seen = texts;
    let mut ticks = tokio::time::interval(LOOK_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = shutdown.cancelled() => break,
            Some((file, ended)) = runs.running.next() => runs.on_ended(&file, ended),
            _ = ticks.tick() => runs.look(),
        }
    }
    while let Some((file, ended)) = runs.running.next().await {
        runs.on_ended(&file, ended);
    }
    say_goodbye(visitors).await
}

/// Reads the files of a folder; one that cannot be read is left out.
fn read(folder: &Path) -> std::io::Result<FileTexts> {
    let mut texts = FileTexts::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let is_hidden = path.file_name().is_none_or(|name| name.as_encoded_bytes().starts_with(b"."));
        if is_hidden || path.extension().is_none_or(|ending| ending != "toml") {
            continue;
        }
        if !std::fs::metadata(&path).is_ok_and(|file| file.is_file() && file.len() <= FILE_BYTES_MAX) {
            continue;
        }
        match std::fs::read_to_string(&path) {
            Ok(text) => drop(texts.insert(path, text)),
            // Gone since the folder was listed, or not ours to read.
            Err(error) => tracing::debug!(path = %path.display(), %error, "a file cannot be read"),
        }
    }
    Ok(texts)
}

/// A file, and its run.
#[derive(Debug)]
struct RunOfFile {
    /// The content with which the run was last started, or tried.
    text: String,
    running: Option<RunningRun>,
    /// The run failed, and is not tried before.
    not_before: Option<Instant>,
}

#[derive(Debug)]
struct RunningRun {
    config: RunConfig,
    stop: CancellationToken,
}

type Ended = (PathBuf, anyhow::Result<()>);

struct FolderRuns<'f> {
    process: Process,
    folder: &'f RunFolder,
    /// Address of the page.
    http: String,
    /// Contents at the last look.
    seen: FileTexts,
    of_files: BTreeMap<PathBuf, RunOfFile>,
    running: FuturesUnordered<Pin<Box<dyn Future<Output = Ended>>>>,
}

impl<'f> FolderRuns<'f> {
    fn new(process: Process, folder: &'f RunFolder, http: String) -> Self {
        let (seen, of_files, running) = (FileTexts::new(), BTreeMap::new(), FuturesUnordered::new());
        Self { process, folder, http, seen, of_files, running }
    }

    /// Compares the folder with what runs.
    fn look(&mut self) {
        let texts = match read(self.folder.path()) {
            Ok(texts) => texts,
            Err(error) => {
                let folder = self.folder.path().display();
                return tracing::warn!(%folder, %error, "the folder cannot be read: its runs go on");
            }
        };
        let seen = std::mem::replace(&mut self.seen, texts.clone());
        let gone: Vec<PathBuf> =
            self.of_files.keys().filter(|file| !texts.contains_key(*file)).cloned().collect();
        gone.iter().for_each(|file| self.end(file));
        for (file, text) in texts {
            // One that changes while it is looked at is not written to its end yet.
            if seen.get(&file) == Some(&text) {
                self.follow(file, text);
            }
        }
    }

    /// Ends the run of a file that is gone.
    fn end(&mut self, file: &Path) {
        match self.of_files.get(file).and_then(|of| of.running.as_ref()) {
            Some(RunningRun { config, stop }) if !stop.is_cancelled() => {
                tracing::info!(run = config.run.id, file = %file.display(), "the file is gone: the run ends");
                stop.cancel();
            }
            // It is forgotten when it has ended.
            Some(_) => {}
            None => drop(self.of_files.remove(file)),
        }
    }

    /// Starts the run of a file that is new, has changed, or failed a while ago.
    fn follow(&mut self, file: PathBuf, text: String) {
        if let Some(of) = self.of_files.get(&file) {
            let is_due = of.not_before.is_some_and(|at| at <= Instant::now());
            if of.text == text && (of.running.is_some() || !is_due) {
                return;
            }
        }
        let config = self.load(&file);
        let known = self.of_files.entry(file.clone());
        let of = known.or_insert_with(|| RunOfFile { text: String::new(), running: None, not_before: None });
        of.text = text;
        let config = match config {
            Ok(config) => config,
            Err(error) => {
                of.not_before = None;
                let file = file.display();
                return tracing::error!(%file, "the run is not started, until the file changes: {error:#}");
            }
        };
        match &of.running {
            Some(RunningRun { stop, .. }) => {
                tracing::info!(run = config.run.id, "its file has changed: the run is started again");
                stop.cancel();
            }
            None => self.start(file, config),
        }
    }

    /// The configuration of a file, if it can run beside the others.
    fn load(&self, file: &Path) -> anyhow::Result<RunConfig> {
        let mut config = self.folder.load(file)?;
        // The page of all runs is where this process serves it.
        config.network.http = self.http.parse()?;
        let others = self.of_files.iter().filter(|(other, _)| *other != file);
        let others = others.filter_map(|(_, of)| Some(of.running.as_ref()?.config.clone()));
        conflicts::check(&others.chain([config.clone()]).collect::<Vec<_>>())?;
        Ok(config)
    }

    fn start(&mut self, file: PathBuf, config: RunConfig) {
        let Some(of) = self.of_files.get_mut(&file) else { return };
        let stop = self.process.shutdown.child_token();
        warn_of(&config);
        warn_of_invitations(&config);
        tracing::info!(run = config.run.id, file = %file.display(), "the run starts");
        let (mounting, _) = oneshot::channel();
        let (beginning, begun) = oneshot::channel();
        let running = self.process.host(config.clone(), stop.clone(), RunMilestones { mounting, beginning });
        (of.running, of.not_before) = (Some(RunningRun { config, stop }), None);
        let page = self.http.clone();
        self.running.push(Box::pin(async move {
            let telling = async move {
                if let Ok(here) = begun.await {
                    let run = here.run_id;
                    tracing::info!(run, addresses = ?here.addresses, "the run has begun; its page: http://{page}/run/{run}/");
                }
            };
            let (ended, ()) = tokio::join!(running, telling);
            (file, ended)
        }));
    }

    fn on_ended(&mut self, file: &Path, ended: anyhow::Result<()>) {
        let is_there = self.seen.contains_key(file);
        let Some(of) = self.of_files.get_mut(file) else { return };
        let was_stopped = of.running.take().is_some_and(|run| run.stop.is_cancelled());
        let file = file.display();
        match ended {
            Ok(()) => tracing::info!(%file, "the run has ended"),
            Err(error) => tracing::error!(%file, "the run has failed: {error:#}"),
        }
        // One that was stopped goes on if its file has changed or is there again.
        let pause = if was_stopped { Duration::ZERO } else { TRY_AGAIN };
        of.not_before = Some(Instant::now() + pause);
        if !is_there {
            self.of_files.retain(|known, of| of.running.is_some() || self.seen.contains_key(known));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn the_files_of_runs_are_read_and_no_others() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        write("a.toml", "1");
        write("b.toml", "2");
        write(".a.toml.swp", "3");
        write(".hidden.toml", "4");
        write("notes.txt", "5");
        write("large.toml", &" ".repeat(FILE_BYTES_MAX as usize + 1));
        std::fs::create_dir(folder.path().join("folder.toml")).unwrap();
        let texts = read(folder.path()).unwrap();
        let names: Vec<_> =
            texts.iter().map(|(path, text)| (path.file_name().unwrap(), text.as_str())).collect();
        assert_eq!(names, [("a.toml".as_ref(), "1"), ("b.toml".as_ref(), "2")]);
        assert!(read(&folder.path().join("nowhere")).is_err());
    }
}
