//! Answers of the admin API as text tables, for a terminal. Pure.

use std::fmt::Write;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use bytesize::ByteSize;

use crate::host::operator::view::{
    AuditList, CheckpointCard, CheckpointList, PeerList, RunList, RunState, RunView,
};
use crate::text_table::columns;

/// The last second of the year 9999: RFC 3339 has four digits for the year.
const LATEST: u64 = 253_402_300_799;

fn time(unix: u64) -> String {
    let time = UNIX_EPOCH.checked_add(Duration::from_secs(unix.min(LATEST))).unwrap_or(UNIX_EPOCH);
    humantime_serde::re::humantime::format_rfc3339_seconds(time).to_string()
}

fn optional<T: std::fmt::Display>(value: Option<T>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// A name and its value, which stand apart however long the name is: sources of a stream have names of their own.
fn fact(name: &str, value: &str) -> String {
    format!("  {name:<25} {value}")
}

pub(super) fn runs(list: &RunList) -> String {
    let row = |run: &RunView| {
        let state = match run.state {
            RunState::Training => "training",
            RunState::Paused => "paused",
        };
        let n_contributors = run.n_contributors.to_string();
        vec![run.run.clone(), state.to_owned(), run.epoch.to_string(), n_contributors, run.title.clone()]
    };
    let rows: Vec<_> = list.runs.iter().map(row).collect();
    columns(&["run", "state", "epoch", "contributors", "title"], &rows)
}

pub(super) fn run(view: &RunView) -> String {
    let mut text = match &view.paused {
        Some(paused) => {
            format!("{}: {}\nPaused since {}: {}\n", view.run, view.title, time(paused.since), paused.reason)
        }
        None => format!("{}: {}\nTraining\n", view.run, view.title),
    };
    let facts = [
        ("epoch", view.epoch.to_string()),
        ("samples of the next step", format!("{} of {}", view.n_samples, view.target_batch_size)),
        ("samples in all", view.n_samples_total.to_string()),
        ("contributors", view.n_contributors.to_string()),
        ("samples per second", format!("{:.1}", view.samples_per_second)),
        ("training loss", optional(view.train_loss)),
        ("test accuracy", optional(view.test_accuracy)),
        ("learning rate", view.learning_rate.to_string()),
        ("other backbones", view.n_other_backbones.to_string()),
        ("blocked peers", view.n_blocked.to_string()),
    ];
    for (name, value) in facts {
        let _ = writeln!(text, "{}", fact(name, &value));
    }
    text.push_str("Settings (`barnraise run set KEY=VALUE`; * differs from the file)\n");
    let (now, changed) = (&view.settings, &view.changed);
    let settings = [
        (
            "learning_rate_factor",
            now.learning_rate_factor.to_string(),
            changed.learning_rate_factor.is_some(),
        ),
        (
            "collect_timeout_seconds",
            now.collect_timeout_seconds.to_string(),
            changed.collect_timeout_seconds.is_some(),
        ),
        (
            "samples_per_second_max",
            now.samples_per_second_max.to_string(),
            changed.samples_per_second_max.is_some(),
        ),
        ("gradient_norm_max", now.gradient_norm_max.to_string(), changed.gradient_norm_max.is_some()),
        ("contributors_max", now.contributors_max.to_string(), changed.contributors_max.is_some()),
        (
            "checkpoint_every_epochs",
            now.checkpoint_every_epochs.to_string(),
            changed.checkpoint_every_epochs.is_some(),
        ),
    ];
    let weights = now.stream_weights.iter().map(|(name, weight)| {
        (format!("stream_weights.{name}"), weight.to_string(), changed.stream_weights.contains_key(name))
    });
    let settings = settings.into_iter().map(|(name, value, is_changed)| (name.to_owned(), value, is_changed));
    for (name, value, is_changed) in settings.chain(weights) {
        let mark = if is_changed { " *" } else { "" };
        let _ = writeln!(text, "{}{mark}", fact(&name, &value));
    }
    text
}

pub(super) fn peers(list: &PeerList) -> String {
    let contributors = list.contributors.iter().map(|peer| {
        let bytes = peer.n_bytes_total.map(|n_bytes| ByteSize(n_bytes).to_string());
        vec![
            peer.peer.clone(),
            format!("{:?}", peer.device),
            format!("{:.1}", peer.samples_per_second),
            (u64::from(peer.n_outstanding) + peer.n_counted).to_string(),
            optional(peer.n_samples_total),
            optional(bytes),
        ]
    });
    let rows: Vec<_> = contributors.collect();
    let mut text = columns(&["peer", "device", "samples/s", "this step", "samples", "bytes"], &rows);
    let n_more = list.n_contributors.saturating_sub(rows.len() as u64);
    if n_more > 0 {
        let _ = writeln!(text, "and {n_more} more (--offset)");
    }
    if !list.blocked.is_empty() {
        let blocked = list.blocked.iter();
        let rows: Vec<_> =
            blocked.map(|peer| vec![peer.peer.clone(), time(peer.since), peer.reason.clone()]).collect();
        let _ = write!(text, "\n{}", columns(&["blocked", "since", "reason"], &rows));
    }
    if !list.convicted.is_empty() {
        let convicted = list.convicted.iter();
        let rows: Vec<_> = convicted.map(|peer| vec![peer.peer.clone(), peer.reason.clone()]).collect();
        let _ = write!(text, "\n{}", columns(&["convicted", "reason"], &rows));
    }
    let hidden = list.hidden.as_deref().unwrap_or_default();
    if !hidden.is_empty() {
        let rows: Vec<_> = hidden.iter().map(|peer| vec![peer.peer.clone(), peer.name.clone()]).collect();
        let _ = write!(text, "\n{}", columns(&["hidden", "name"], &rows));
    }
    text
}

pub(super) fn checkpoints(list: &CheckpointList) -> String {
    let rows = list.checkpoints.iter();
    let rows: Vec<_> =
        rows.map(|kept| vec![kept.epoch.to_string(), ByteSize(kept.n_bytes).to_string()]).collect();
    columns(&["epoch", "size"], &rows)
}

pub(super) fn audit(list: &AuditList) -> String {
    let rows = list.entries.iter().map(|entry| {
        vec![
            entry.number.to_string(),
            time(entry.at),
            entry.who.clone(),
            entry.from.clone(),
            entry.verb.clone(),
            entry.run.clone(),
            entry.arguments.to_string(),
            entry.outcome.clone(),
        ]
    });
    let rows: Vec<_> = rows.collect();
    columns(&["number", "at", "who", "from", "verb", "run", "arguments", "outcome"], &rows)
}

pub(super) fn exported(card: &CheckpointCard, file: &Path) -> String {
    let (epoch, size) = (card.epoch, ByteSize(card.n_bytes));
    format!("The checkpoint of epoch {epoch} is in {}: {size}, SHA-256 {}.\n", file.display(), card.sha256)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_stands_apart_from_a_long_name() {
        assert_eq!(fact("epoch", "7"), "  epoch                     7");
        let long = "stream_weights.encyclopaedia-2024";
        assert_eq!(fact(long, "2"), format!("  {long} 2"));
    }

    #[test]
    fn columns_are_as_wide_as_they_must_be() {
        let rows = [vec!["a".to_owned(), "10".to_owned()], vec!["long".to_owned(), "9".to_owned()]];
        assert_eq!(columns(&["x", "n"], &rows), "x     n\na     10\nlong   9\n");
        assert_eq!(time(0), "1970-01-01T00:00:00Z");
        assert_eq!(time(u64::MAX), "9999-12-31T23:59:59Z", "for any answer");
    }
}
