//! `barnraise allow`, `barnraise invite`, `barnraise revoke`: operator commands that write into a run's database. A
//! running backbone reads the changes within seconds. Each change has two entries in the run's audit log: before it
//! takes effect, and with its outcome. The code of an invitation is never logged.

mod args;

use std::time::{Duration, SystemTime};

use anyhow::{Context, bail, ensure};
use barnraise_protocol::access::{AccessMode, PublicKey, UnixTime};
use libp2p::PeerId;
use serde_json::{Value, json};

pub use self::args::{AddArgs, AllowAction, AllowArgs, InviteArgs, RevokeArgs, RunArgs, WhoArgs};
use super::random;
use super::rooms::{LASTS_DEFAULT, LASTS_MAX, RoomCode, RoomKey, USES_DEFAULT};
use super::store::{AllowOutcome, InvitationTerms, RevocationTarget, Store};
use crate::config::RunConfig;
use crate::host::audit::{AuditLog, AuditRecord, OPERATOR};
use crate::host::clock::system_clock;
use crate::host::{hex, identity, peer_id};

/// Default lifetime of an invitation link.
const INVITATION_LASTS: Duration = Duration::from_secs(7 * 24 * 3600);

/// Source of these commands in the audit log.
const FROM: &str = "command line";

/// `barnraise allow`: changes or prints the list. Returns the text to print.
///
/// # Errors
/// A run without a list, or a database that cannot be used.
pub async fn allow(args: AllowArgs) -> anyhow::Result<String> {
    match args.action {
        AllowAction::Add(AddArgs { who, host }) => {
            let (config, store) = open(&who.run.config, AccessMode::Allowlist).await?;
            let text =
                audited(&config, "allow add", added(&who, host), add(&config, &store, &who, host)).await?;
            finish(&store, text).await
        }
        AllowAction::Remove(who) => {
            let (config, store) = open(&who.run.config, AccessMode::Allowlist).await?;
            let text = audited(&config, "allow remove", people(&who), remove(&config, &store, &who)).await?;
            finish(&store, text).await
        }
        AllowAction::List(run) => {
            let config = RunConfig::load(&run.config)?;
            let store = Store::open(&config.storage.folder).await?;
            let mut text = String::new();
            for entry in store.allowed().await? {
                text.push_str(&format!("{}  {} at {}\n", entry.value, entry.kind, entry.issuer));
            }
            for issued in store.tokens(now()).await? {
                let peer = peer_id(issued.peer).map_or_else(String::new, |peer| peer.to_string());
                let left = Duration::from_secs(issued.expires_at.0.saturating_sub(now().0));
                let left = humantime_serde::re::humantime::format_duration(left);
                text.push_str(&format!("{}  has access as {peer} for {left}\n", issued.user));
            }
            finish(&store, text).await
        }
    }
}

async fn add(config: &RunConfig, store: &Store, who: &WhoArgs, may_host: bool) -> anyhow::Result<String> {
    let issuer = issuer(config)?;
    let mut text = String::new();
    for name in &who.who {
        let said = match store.allow(issuer, who.by, name, now()).await? {
            AllowOutcome { is_new: true, is_back: false } => "is on the list now",
            AllowOutcome { is_new: false, is_back: false } => "was on the list before",
            AllowOutcome { is_back: true, .. } => "is on the list, and what was revoked before is forgotten",
        };
        store.set_may_host(issuer, who.by, name, may_host).await?;
        text.push_str(&format!("{name} {said}.\n"));
    }
    Ok(text)
}

async fn remove(config: &RunConfig, store: &Store, who: &WhoArgs) -> anyhow::Result<String> {
    let issuer = issuer(config)?;
    let mut text = String::new();
    for name in &who.who {
        let said = match store.disallow(issuer, who.by, name, now()).await? {
            Some(n_revoked) => format!("is off the list; {}", taken_back(n_revoked)),
            None => "was not on the list".to_owned(),
        };
        text.push_str(&format!("{name} {said}.\n"));
    }
    Ok(text)
}

fn added(who: &WhoArgs, may_host: bool) -> Value {
    json!({"by": who.by.as_str(), "who": who.who, "host": may_host})
}

fn people(who: &WhoArgs) -> Value {
    json!({"by": who.by.as_str(), "who": who.who})
}

/// `barnraise invite`: returns the link, or the code of a room.
///
/// # Errors
/// A run that takes no invitations or has no rooms, or a database that cannot be used.
pub async fn invite(args: InviteArgs) -> anyhow::Result<String> {
    let (config, store) = open(&args.run.config, AccessMode::Invitation).await?;
    let (uses, lasts) = if args.room { (USES_DEFAULT, LASTS_DEFAULT) } else { (1, INVITATION_LASTS) };
    let (uses, lasts) = (args.uses.unwrap_or(uses), args.expires.unwrap_or(lasts));
    let expires_at = now().after(lasts.as_secs());
    if args.room && !config.access.room {
        bail!("the run has no rooms: see `room` in its [access]");
    }
    if args.room && lasts > LASTS_MAX {
        bail!("the code of a room can be guessed in time: let it last 7 days at most");
    }
    let terms = InvitationTerms { uses, expires_at, may_host: args.host };
    let arguments = json!({"room": args.room, "host": args.host, "uses": uses, "expires_at": expires_at.0});
    let inviting = async {
        if args.room {
            let code = RoomCode::random()?;
            let invitation = RoomKey::load_or_create(&config.storage.folder)?.invitation(&code);
            store.invite(&invitation, terms, now()).await?;
            return anyhow::Ok(format!("{code}\n"));
        }
        let code = hex(&random::<16>()?);
        store.invite(&code, terms, now()).await?;
        let page = config.access.page.clone().unwrap_or_else(|| format!("http://{}", config.network.http));
        anyhow::Ok(format!("{page}/#invitation={code}\n"))
    };
    let text = audited(&config, "invite", arguments, inviting).await?;
    finish(&store, text).await
}

/// `barnraise revoke`: revokes tokens. Returns how many, as text.
///
/// # Errors
/// An open run, a name that nobody has, or a database that cannot be used.
pub async fn revoke(args: RevokeArgs) -> anyhow::Result<String> {
    let config = RunConfig::load(&args.run.config)?;
    if config.access.mode == AccessMode::Open {
        bail!("the run is open to everybody: there is nothing to take back");
    }
    check_authority(&config)?;
    let store = Store::open(&config.storage.folder).await?;
    let key = args.who.parse::<PeerId>().ok().and_then(|peer| PublicKey::of_peer_id(&peer.to_bytes()));
    let whose = key.map_or_else(|| RevocationTarget::User(args.who.clone()), RevocationTarget::Peer);
    if let RevocationTarget::User(user) = &whose {
        let is_known = store.has_user(user).await?;
        ensure!(
            is_known,
            "nobody of the name `{user}` has come so far, and nothing was taken back: `barnraise allow list` has the \
            names of those with access, and `barnraise allow remove` takes off the list who has not come yet"
        );
    }
    let arguments = json!({"who": args.who, "with_invitation": args.with_invitation});
    let revoking = async { anyhow::Ok(store.revoke(&whose, args.with_invitation, now()).await?) };
    let n_revoked = audited(&config, "revoke", arguments, revoking).await?;
    let lasts = match (&whose, config.access.mode) {
        (RevocationTarget::Peer(_), AccessMode::Allowlist) => {
            "This key stays out until `barnraise allow add` names the person who signed in for it."
        }
        (_, AccessMode::Allowlist) => {
            "A person of that name stays out, with every key, until `barnraise allow add` names them again."
        }
        _ => "These keys stay out; another invitation does not let them in.",
    };
    finish(&store, format!("{}. {lasts}\n", taken_back(n_revoked))).await
}

fn taken_back(n_revoked: usize) -> String {
    match n_revoked {
        1 => "1 token was taken back".to_owned(),
        n => format!("{n} tokens were taken back"),
    }
}

/// Runs `doing` between its two entries in the run's audit log, which the backbone may be writing as well.
async fn audited<T>(
    config: &RunConfig,
    verb: &'static str,
    arguments: Value,
    doing: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<T> {
    let run = config.run.id.clone();
    let deed = AuditRecord { who: OPERATOR, from: FROM.to_owned(), verb, run, arguments };
    let begun = AuditLog::open(&config.storage.folder, system_clock())
        .and_then(|audit| audit.begin(&deed).map(|number| (audit, number)));
    let (audit, number) = begun.context("it cannot be written to the audit log, so it is not done")?;
    let done = doing.await;
    let error = done.as_ref().err().map(|error| format!("{error:#}"));
    if let Err(error) = audit.end(number, &deed, error.as_deref()) {
        // The change took effect: a missing second entry is no failure of the command.
        tracing::warn!(%error, "the outcome is not in the audit log");
    }
    done
}

async fn open(config: &std::path::Path, mode: AccessMode) -> anyhow::Result<(RunConfig, Store)> {
    let config = RunConfig::load(config)?;
    if config.access.mode != mode {
        bail!("the run is {}: see `mode` in its [access]", config.access.mode.words());
    }
    check_authority(&config)?;
    let store = Store::open(&config.storage.folder).await?;
    Ok((config, store))
}

/// Refuses where another backbone decides who takes part: nobody would read what is written here.
fn check_authority(config: &RunConfig) -> anyhow::Result<()> {
    let Some(authority) = &config.access.authority else { return Ok(()) };
    let is_here = identity::is_own(&config.storage.folder, authority)?;
    ensure!(
        is_here,
        "the backbone at {authority} decides who takes part: say this there, with its configuration"
    );
    Ok(())
}

fn issuer(config: &RunConfig) -> anyhow::Result<&str> {
    let oidc = config.access.oidc.as_ref().context("the run has no identity provider: see [access.oidc]")?;
    Ok(&oidc.issuer)
}

async fn finish(store: &Store, text: String) -> anyhow::Result<String> {
    store.close().await;
    Ok(text)
}

fn now() -> UnixTime {
    system_clock()()
}

/// Why a lifetime is refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum LifetimeError {
    /// It is no duration.
    #[error(transparent)]
    Unparsed(#[from] humantime_serde::re::humantime::DurationError),
    /// It is zero, or ends after all time.
    #[error("a duration above zero is wanted")]
    OutOfRange,
}

/// Parses the lifetime of an invitation: above zero, and ending at a time that the clock can express.
///
/// # Errors
/// [`LifetimeError`].
pub fn duration(text: &str) -> Result<Duration, LifetimeError> {
    let duration: Duration = humantime_serde::re::humantime::parse_duration(text)?;
    match SystemTime::now().checked_add(duration) {
        Some(_) if !duration.is_zero() => Ok(duration),
        _ => Err(LifetimeError::OutOfRange),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]

    use std::path::Path;

    use barnraise_protocol::access::KeyPair;
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, CliCommand};
    use crate::host::access::store::Identity;
    use crate::host::operator::view::AuditEntry;

    const LIST: &str = "mode = \"allowlist\"\npage = \"http://127.0.0.1:8080\"\n\
        [access.oidc]\nissuer = \"http://127.0.0.1:9\"\nclient_id = \"barnraise\"\n";
    const PEER: &str = "12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN";
    const INVITATION: &str = "mode = \"invitation\"\nroom = true\n";

    /// The configuration of a run called `barn`, whose folder is `run` beside it.
    fn configured(access: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let text = format!("[run]\nid = \"barn\"\n[storage]\nfolder = \"run\"\n[access]\n{access}");
        std::fs::write(folder.path().join("run.toml"), text).unwrap();
        folder
    }

    /// Output of the program for this command line.
    async fn said(folder: &Path, args: &[&str]) -> anyhow::Result<String> {
        let config = folder.join("run.toml").display().to_string();
        let line = [&["barnraise"][..], args, &["--config", &config]].concat();
        match Cli::try_parse_from(line)?.command {
            CliCommand::Allow(args) => allow(args).await,
            CliCommand::Invite(args) => invite(args).await,
            CliCommand::Revoke(args) => revoke(args).await,
            other => panic!("{other:?}"),
        }
    }

    fn text(folder: &Path) -> String {
        std::fs::read_to_string(folder.join("run/audit.jsonl")).unwrap()
    }

    fn lines(folder: &Path) -> Vec<AuditEntry> {
        text(folder).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[tokio::test]
    async fn each_change_of_the_list_is_in_the_audit_log_before_and_after() {
        let folder = configured(LIST);
        said(folder.path(), &["allow", "add", "alice", "bob"]).await.unwrap();
        said(folder.path(), &["allow", "remove", "alice", "--by", "email"]).await.unwrap();
        sign_in(folder.path(), "bob").await;
        said(folder.path(), &["revoke", "bob"]).await.unwrap();
        said(folder.path(), &["allow", "list"]).await.unwrap();
        let lines = lines(folder.path());
        let short = lines.iter().map(|line| (line.number, line.verb.as_str(), line.outcome.as_str()));
        let want = [(1_u64, "allow add"), (2, "allow remove"), (3, "revoke")];
        let want = want.iter().flat_map(|&(number, verb)| [(number, verb, "begun"), (number, verb, "done")]);
        assert!(short.eq(want), "{lines:?}");
        let from = |line: &AuditEntry| (line.who.clone(), line.from.clone(), line.run.clone());
        assert!(lines.iter().all(|line| from(line) == (OPERATOR.into(), FROM.into(), "barn".into())));
        assert_eq!(lines[0].arguments, json!({"by": "name", "who": ["alice", "bob"], "host": false}));
        assert_eq!(lines[2].arguments, json!({"by": "email", "who": ["alice"]}));
        assert_eq!(lines[4].arguments, json!({"who": "bob", "with_invitation": false}));
    }

    /// Somebody of this name comes.
    async fn sign_in(folder: &Path, name: &str) {
        let store = Store::open(&folder.join("run")).await.unwrap();
        let issuer = "http://127.0.0.1:9".to_owned();
        let identity = Identity { issuer, subject: name.into(), name: name.into(), email: String::new() };
        store.sign_in(KeyPair::from_seed(&[1; 32]).public(), &identity, now()).await.unwrap();
        store.close().await;
    }

    #[tokio::test]
    async fn a_name_that_nobody_has_is_not_said_to_stay_out() {
        let folder = configured(LIST);
        said(folder.path(), &["allow", "add", "alice"]).await.unwrap();
        for name in ["alcie", "alice"] {
            let error = said(folder.path(), &["revoke", name]).await.unwrap_err().to_string();
            assert!(error.contains(name) && error.contains("barnraise allow remove"), "{error}");
        }
        sign_in(folder.path(), "alice").await;
        let stays_out = said(folder.path(), &["revoke", "alice"]).await.unwrap();
        assert!(stays_out.contains("A person of that name stays out"), "{stays_out}");
        assert!(lines(folder.path()).iter().all(|line| line.arguments["who"] != "alcie"));
    }

    #[tokio::test]
    async fn an_invitation_is_in_the_audit_log_and_its_code_is_not() {
        let folder = configured(INVITATION);
        let link = said(folder.path(), &["invite", "--uses", "3"]).await.unwrap();
        let room = said(folder.path(), &["invite", "--room"]).await.unwrap();
        let lines = lines(folder.path());
        assert_eq!(lines.len(), 4, "{lines:?}");
        assert_eq!((&lines[0].arguments["uses"], &lines[0].arguments["room"]), (&json!(3), &json!(false)));
        assert_eq!((&lines[2].arguments["uses"], &lines[2].arguments["room"]), (&json!(40), &json!(true)));
        let code = link.trim().split_once("#invitation=").unwrap().1;
        for secret in [code, room.trim()] {
            assert!(secret.len() >= 6 && !text(folder.path()).contains(secret), "{secret}");
        }
    }

    #[tokio::test]
    async fn each_change_of_the_list_says_what_it_did() {
        let folder = configured(LIST);
        let say = async |args: &[&str]| said(folder.path(), args).await.unwrap();
        assert_eq!(say(&["allow", "add", "alice"]).await, "alice is on the list now.\n");
        assert_eq!(say(&["allow", "add", "alice"]).await, "alice was on the list before.\n");
        assert_eq!(say(&["allow", "list"]).await, "alice  name at http://127.0.0.1:9\n");
        let off = "alice is off the list; 0 tokens were taken back.\n";
        assert_eq!(say(&["allow", "remove", "alice"]).await, off);
        assert_eq!(say(&["allow", "remove", "alice"]).await, "alice was not on the list.\n");
        let nobody = said(folder.path(), &["revoke", "bob"]).await.unwrap_err().to_string();
        assert!(nobody.contains("nobody of the name `bob`"), "{nobody}");
        assert!(say(&["revoke", PEER]).await.contains("This key stays out"));
        let folder = configured(INVITATION);
        assert!(said(folder.path(), &["revoke", PEER]).await.unwrap().contains("These keys stay out"));
    }

    #[tokio::test]
    async fn a_command_that_does_not_fit_the_run_is_refused_with_the_reason() {
        let longer = (LASTS_MAX.as_secs() + 1).to_string() + "s";
        let cases: [(&str, &[&str], Option<&str>); 8] = [
            (INVITATION, &["invite", "--room", "--expires", "7d"], None),
            (INVITATION, &["invite", "--room", "--expires", &longer], Some("7 days at most")),
            (INVITATION, &["invite", "--expires", &longer], None),
            ("mode = \"invitation\"\n", &["invite"], None),
            ("mode = \"invitation\"\n", &["invite", "--room"], Some("no rooms")),
            (INVITATION, &["allow", "add", "alice"], Some("see `mode`")),
            (LIST, &["invite"], Some("see `mode`")),
            ("mode = \"open\"\n", &["revoke", "bob"], Some("open to everybody")),
        ];
        for (access, args, wrong) in cases {
            let folder = configured(access);
            let done = said(folder.path(), args).await.map_err(|error| format!("{error:#}"));
            match wrong {
                None => assert!(done.is_ok(), "{args:?}: {done:?}"),
                Some(reason) => assert!(done.as_ref().is_err_and(|error| error.contains(reason)), "{done:?}"),
            }
        }
    }

    #[test]
    fn a_lifetime_is_above_zero_and_ends_within_all_time() {
        assert_eq!(duration("1s"), Ok(Duration::from_secs(1)));
        assert_eq!(duration("0s"), Err(LifetimeError::OutOfRange));
        assert_eq!(duration("500000000000y"), Err(LifetimeError::OutOfRange));
        assert!(matches!(duration("soon"), Err(LifetimeError::Unparsed(_))));
    }

    #[tokio::test]
    async fn where_another_backbone_decides_nothing_is_done() {
        let at = format!("/ip4/192.0.2.1/tcp/4001/p2p/{PEER}");
        let folder = configured(&format!("mode = \"invitation\"\nauthority = \"{at}\"\n"));
        for args in [&["invite"][..], &["revoke", "bob"]] {
            let error = said(folder.path(), args).await.unwrap_err().to_string();
            assert!(error.contains(&at), "{error}");
        }
        assert!(!folder.path().join("run").exists());
    }

    #[tokio::test]
    async fn what_cannot_be_written_to_the_audit_log_is_not_done() {
        let folder = configured(LIST);
        // Not a file that lines can be appended to.
        std::fs::create_dir_all(folder.path().join("run/audit.jsonl")).unwrap();
        let error = said(folder.path(), &["allow", "add", "alice"]).await.unwrap_err();
        assert!(error.to_string().contains("so it is not done"), "{error:#}");
        assert_eq!(said(folder.path(), &["allow", "list"]).await.unwrap(), "");
    }
}
