//! `barnraise run …` and `barnraise peers …`: a client of the admin API. Blocks; each command is one or two requests.

use std::fs::File;
use std::io::{Read, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::address::noted_address;
use super::client::AdminClient;
use super::table;
use super::token::{TOKEN_FILE, read_token};
use crate::config::RunConfig;
use crate::host::hex;
use crate::host::operator::view::{AuditList, CheckpointCard, CheckpointList, PeerList, RunList, RunView};
use crate::part;

const COPY_BYTES: usize = 64 * 1024;

/// `barnraise run`
#[derive(Debug, Args)]
pub struct OperateArgs {
    /// What to do.
    #[command(subcommand)]
    verb: Verb,
}

/// `barnraise peers`
#[derive(Debug, Args)]
pub struct PeersArgs {
    /// What to do.
    #[command(subcommand)]
    verb: PeersVerb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// The runs of a backbone
    List(AdminTarget),
    /// The state of a run, and its settings
    Show(AdminTarget),
    /// Make no steps until it is resumed; contributors deliver what they have, and wait
    Pause {
        /// Shown to contributors and on the page
        #[arg(long)]
        reason: String,
        /// Pause this backbone even if other backbones of the run go on
        #[arg(long)]
        alone: bool,
        #[command(flatten)]
        target: AdminTarget,
    },
    /// Go on after a pause
    Resume(AdminTarget),
    /// Change settings while the run trains, such as `learning_rate_factor=0.5`, or `stream_weights.NAME=2` for a source of
    /// a stream; without a value, as in the file again
    Set {
        /// KEY=VALUE, or KEY=
        #[arg(required = true, value_name = "KEY=VALUE")]
        settings: Vec<String>,
        #[command(flatten)]
        target: AdminTarget,
    },
    /// Write a checkpoint and its card into files
    Export {
        /// Epoch of the checkpoint; the newest one, if not given
        #[arg(long)]
        epoch: Option<u64>,
        /// File for the checkpoint; its card is written beside it
        #[arg(long, value_name = "FILE")]
        output: PathBuf,
        #[command(flatten)]
        target: AdminTarget,
    },
    /// Go on from the parameters of an earlier checkpoint, as a later epoch
    Rollback {
        /// Epoch of the checkpoint; `run checkpoints` lists them
        #[arg(long)]
        epoch: u64,
        /// Roll back even if other backbones of the run have a model with more samples
        #[arg(long)]
        alone: bool,
        #[command(flatten)]
        target: AdminTarget,
    },
    /// The stored checkpoints
    Checkpoints(AdminTarget),
    /// The log of operator commands and their outcomes
    Audit {
        /// Number of entries, the newest ones
        #[arg(long, default_value_t = 50)]
        limit: u32,
        #[command(flatten)]
        target: AdminTarget,
    },
}

#[derive(Debug, Subcommand)]
enum PeersVerb {
    /// Contributors with a session, and blocked peers
    List {
        /// Number of contributors to skip
        #[arg(long, default_value_t = 0)]
        offset: u32,
        #[command(flatten)]
        target: AdminTarget,
    },
    /// Keep a peer out of the run: its sessions end at once, its contributions stay
    Block {
        /// Its peer id
        peer: String,
        /// Sent to the peer
        #[arg(long)]
        reason: String,
        #[command(flatten)]
        target: AdminTarget,
    },
    /// Let a peer in again
    Unblock {
        /// Its peer id
        peer: String,
        #[command(flatten)]
        target: AdminTarget,
    },
    /// Show no name of a peer on the leaderboard, later names included; its contributions stay there
    Hide {
        /// Its peer id
        peer: String,
        #[command(flatten)]
        target: AdminTarget,
    },
    /// Show its name again
    Unhide {
        /// Its peer id
        peer: String,
        #[command(flatten)]
        target: AdminTarget,
    },
}

/// The backbone, the run, and the format of the output.
#[derive(Debug, Args)]
struct AdminTarget {
    /// The run, as in run.example.toml: its folder has the token, and the address of a backbone that runs
    #[arg(long, value_name = "FILE", required_unless_present = "url")]
    config: Option<PathBuf>,
    /// Address of the operator's page, instead of the one in the run's folder
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// The token, instead of the one in the run's folder
    #[arg(long, value_name = "FILE", required_unless_present = "config")]
    token_file: Option<PathBuf>,
    /// The run's id, where a backbone hosts several
    #[arg(long, value_name = "ID")]
    run: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// `barnraise run`: returns the text to print.
///
/// # Errors
/// The backbone cannot be reached, or it refuses, with its reason.
pub fn operate(args: OperateArgs) -> anyhow::Result<String> {
    match args.verb {
        Verb::List(target) => {
            let api = Api::open(&target)?;
            let list: RunList = api.client.get("/runs")?;
            api.print(&list, table::runs)
        }
        Verb::Show(target) => {
            let api = Api::open(&target)?;
            let view: RunView = api.client.get(&api.of_run("")?)?;
            api.print(&view, table::run)
        }
        Verb::Pause { reason, alone, target } => {
            change(&target, "/pause", &json!({"reason": reason, "alone": alone}))
        }
        Verb::Resume(target) => change(&target, "/resume", &Value::Null),
        Verb::Set { settings, target } => set(&target, &settings),
        Verb::Export { epoch, output, target } => export(&target, epoch, &output),
        Verb::Rollback { epoch, alone, target } => {
            change(&target, "/rollback", &json!({"epoch": epoch, "alone": alone}))
        }
        Verb::Checkpoints(target) => {
            let api = Api::open(&target)?;
            let list: CheckpointList = api.client.get(&api.of_run("/checkpoints")?)?;
            api.print(&list, table::checkpoints)
        }
        Verb::Audit { limit, target } => {
            let api = Api::open(&target)?;
            let list: AuditList = api.client.get(&format!("/audit?limit={limit}"))?;
            api.print(&list, table::audit)
        }
    }
}

/// `barnraise peers`: returns the text to print.
///
/// # Errors
/// The backbone cannot be reached, or it refuses, with its reason.
pub fn peers(args: PeersArgs) -> anyhow::Result<String> {
    match args.verb {
        PeersVerb::List { offset, target } => {
            let api = Api::open(&target)?;
            let list: PeerList = api.client.get(&api.of_run(&format!("/peers?offset={offset}"))?)?;
            api.print(&list, table::peers)
        }
        PeersVerb::Block { peer, reason, target } => {
            change(&target, &format!("/peers/{}/block", plain(&peer)?), &json!({"reason": reason}))
        }
        PeersVerb::Unblock { peer, target } => {
            change(&target, &format!("/peers/{}/unblock", plain(&peer)?), &Value::Null)
        }
        PeersVerb::Hide { peer, target } => {
            change(&target, &format!("/peers/{}/hide", plain(&peer)?), &Value::Null)
        }
        PeersVerb::Unhide { peer, target } => {
            change(&target, &format!("/peers/{}/unhide", plain(&peer)?), &Value::Null)
        }
    }
}

/// Checks that `name` can stand in a path unescaped.
fn plain(name: &str) -> anyhow::Result<&str> {
    let good = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
    ensure!(good, "{name:?} is no id: letters, digits and dashes are wanted");
    Ok(name)
}

fn change(target: &AdminTarget, verb: &str, body: &Value) -> anyhow::Result<String> {
    let api = Api::open(target)?;
    let view: RunView = api.client.send("POST", &api.of_run(verb)?, body)?;
    api.print(&view, table::run)
}

/// The change of settings that the words `KEY=VALUE` ask for.
fn settings_body(settings: &[String]) -> anyhow::Result<Map<String, Value>> {
    let mut body = Map::new();
    for setting in settings {
        let (key, value) =
            setting.split_once('=').with_context(|| format!("{setting:?}: KEY=VALUE is wanted"))?;
        let value = match value {
            "" => Value::Null,
            // Other text is sent unchanged: the backbone says what is wanted.
            text => serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned())),
        };
        // What is behind a dot is a key of a table. The name of a source may have dots itself.
        match key.split_once('.') {
            None => body.insert(key.to_owned(), value),
            Some((table, key)) => {
                let table = body.entry(table).or_insert_with(|| Map::new().into());
                let table = table.as_object_mut();
                let table = table.with_context(|| format!("{setting:?}: all of its table is set already"))?;
                table.insert(key.to_owned(), value)
            }
        };
    }
    Ok(body)
}

fn set(target: &AdminTarget, settings: &[String]) -> anyhow::Result<String> {
    let body = settings_body(settings)?;
    let api = Api::open(target)?;
    let view: RunView = api.client.send("PATCH", &api.of_run("/settings")?, &Value::Object(body))?;
    api.print(&view, table::run)
}

fn export(target: &AdminTarget, epoch: Option<u64>, output: &Path) -> anyhow::Result<String> {
    let card_file = beside(output, ".card.json");
    for file in [output, &card_file] {
        ensure!(
            !file.exists(),
            "{} is there already: move it away, or name another --output",
            file.display()
        );
    }
    let api = Api::open(target)?;
    let epoch = match epoch {
        Some(epoch) => epoch,
        None => {
            let list: CheckpointList = api.client.get(&api.of_run("/checkpoints")?)?;
            list.checkpoints.last().context("no checkpoint is kept yet")?.epoch
        }
    };
    let card: CheckpointCard = api.client.get(&api.of_run(&format!("/checkpoints/{epoch}/card"))?)?;
    let mut part = part::beside(output).with_context(|| format!("{}", output.display()))?;
    api.download(&api.of_run(&format!("/checkpoints/{epoch}"))?, &card, part.as_file_mut())?;
    // Another command may have written the file meanwhile.
    let persisted = part.persist_noclobber(output).map_err(|error| error.error);
    persisted.with_context(|| format!("{}", output.display()))?;
    let text = serde_json::to_string_pretty(&card)? + "\n";
    part::write(&card_file, text.as_bytes()).with_context(|| format!("{}", card_file.display()))?;
    api.print(&card, |card| table::exported(card, output))
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// The admin API of a backbone, and the run that is meant.
struct Api {
    client: AdminClient,
    run: Option<String>,
    is_json: bool,
}

impl Api {
    fn open(target: &AdminTarget) -> anyhow::Result<Self> {
        let config = target.config.as_deref().map(RunConfig::load).transpose()?;
        let folder = config.as_ref().map(|config| config.storage.folder.as_path());
        let base = match (&target.url, folder, &config) {
            (Some(url), _, _) => url.trim_end_matches('/').to_owned(),
            (None, Some(folder), Some(config)) => format!("http://{}", served_at(folder, config)?),
            _ => bail!("--config or --url says where the backbone is"),
        };
        // An address from the run's folder is on this machine.
        if target.url.as_deref().is_some_and(is_exposed) {
            tracing::warn!(
                "the token travels unencrypted to --url, where others may read it: use a tunnel (ssh -L)"
            );
        }
        let token_file = target.token_file.clone().or_else(|| folder.map(|folder| folder.join(TOKEN_FILE)));
        let token = read_token(&token_file.context("--config or --token-file says where the token is")?)?;
        let run = target.run.clone().or_else(|| config.map(|config| config.run.id));
        Ok(Self { client: AdminClient::new(base, token), run, is_json: target.json })
    }

    /// The path `what` below the run: the named run, or the only one.
    fn of_run(&self, what: &str) -> anyhow::Result<String> {
        let id = match &self.run {
            Some(id) => id.clone(),
            None => {
                let list: RunList = self.client.get("/runs")?;
                let [run] = &list.runs[..] else {
                    let ids: Vec<&str> = list.runs.iter().map(|run| run.run.as_str()).collect();
                    bail!("--run says which of the runs is meant: {ids:?}");
                };
                run.run.clone()
            }
        };
        Ok(format!("/runs/{}{what}", plain(&id)?))
    }

    /// Downloads `path` into an empty file, and checks its length and hash against `card`.
    fn download(&self, path: &str, card: &CheckpointCard, output: &mut File) -> anyhow::Result<()> {
        let body = self.client.open(path)?;
        let mut reader = body.into_with_config().limit(card.n_bytes.saturating_add(1)).reader();
        let (mut hash, mut n_bytes, mut buffer) = (Sha256::new(), 0, vec![0; COPY_BYTES]);
        loop {
            let n = reader.read(&mut buffer)?;
            let Some(chunk) = buffer.get(..n).filter(|chunk| !chunk.is_empty()) else { break };
            hash.update(chunk);
            n_bytes += n as u64;
            output.write_all(chunk)?;
        }
        output.sync_all()?;
        let (want, got) = (&card.sha256, hex(&hash.finalize()));
        ensure!(
            *want == got && n_bytes == card.n_bytes,
            "{n_bytes} bytes with SHA-256 {got} came, {} with {want} were announced",
            card.n_bytes
        );
        Ok(())
    }

    fn print<T: serde::Serialize>(
        &self,
        value: &T,
        table: impl FnOnce(&T) -> String,
    ) -> anyhow::Result<String> {
        match self.is_json {
            true => Ok(serde_json::to_string_pretty(value)? + "\n"),
            false => Ok(table(value)),
        }
    }
}

/// Whether requests to this address pass other machines unencrypted.
fn is_exposed(base: &str) -> bool {
    let Ok(uri) = base.parse::<ureq::http::Uri>() else { return false };
    let host = uri.host().unwrap_or_default();
    let ip = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    let is_here = host == "localhost" || ip.is_ok_and(|ip| ip.is_loopback());
    uri.scheme_str() == Some("http") && !is_here
}

/// Address at which the backbone of a run serves its operator: from its address file, else from the configuration. An
/// error while it does not run: after a crash another process may listen there, which must not read the token.
fn served_at(folder: &Path, config: &RunConfig) -> anyhow::Result<std::net::SocketAddr> {
    let said = noted_address(folder).with_context(|| {
        let (run, folder) = (&config.run.id, folder.display());
        format!("the backbone of run `{run}` is not running (its folder is {folder}): start it with `barnraise serve`")
    })?;
    let address = said.or(config.network.operator);
    let address = address.context("the backbone serves no operator: see `operator` in its [network]")?;
    Ok(barnraise_relay::server::page_address(address))
}

#[cfg(test)]
mod export_tests;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::super::address::note_address;
    use super::*;
    use crate::storage::Storage;

    #[test]
    fn a_setting_behind_a_dot_is_of_a_table() {
        let body = |settings: &[&str]| {
            let settings: Vec<String> = settings.iter().map(|&setting| setting.to_owned()).collect();
            settings_body(&settings).map(Value::Object).map_err(|error| error.to_string())
        };
        let all = ["gradient_norm_max=5", "stream_weights.web.jsonl=0.5", "stream_weights.my books="];
        let want = json!({"gradient_norm_max": 5, "stream_weights": {"web.jsonl": 0.5, "my books": null}});
        assert_eq!(body(&all), Ok(want));
        assert_eq!(body(&["stream_weights="]), Ok(json!({"stream_weights": null})));
        for bad in [&["stream_weights.web"][..], &["stream_weights=", "stream_weights.web=1"]] {
            let error = body(bad).unwrap_err();
            assert!(error.contains("stream_weights.web"), "{error}");
        }
    }

    #[test]
    fn an_address_that_a_crash_left_is_not_asked() {
        let folder = tempfile::tempdir().unwrap();
        let mut config = RunConfig::default();
        config.network.operator = Some("127.0.0.1:8082".parse().unwrap());
        let served = |config: &RunConfig| served_at(folder.path(), config).map_err(|error| error.to_string());
        assert_eq!(served(&config), Ok("127.0.0.1:8082".parse().unwrap()), "it is not seen from here");
        let running = Storage::open(folder.path()).unwrap();
        note_address(Some("0.0.0.0:9".parse().unwrap()), folder.path()).unwrap();
        assert_eq!(served(&config), Ok("127.0.0.1:9".parse().unwrap()));
        drop(running);
        // A process that another test starts has the files of this one for a moment, until it is another program.
        while served(&config).is_ok() {
            std::thread::yield_now();
        }
        let error = served(&config).unwrap_err();
        assert!(
            error.contains("`fashion-mnist` is not running") && error.contains("barnraise serve"),
            "{error}"
        );
    }

    #[test]
    fn ids_stand_in_paths_and_nothing_else_does() {
        assert_eq!(plain("12D3KooWx").unwrap(), "12D3KooWx");
        for wrong in ["", "a/b", "..", "a?b", "a b", "ä"] {
            assert!(plain(wrong).is_err(), "{wrong}");
        }
        assert_eq!(beside(Path::new("/x/a.ckpt"), ".card.json"), Path::new("/x/a.ckpt.card.json"));
    }
}
