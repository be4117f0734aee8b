//! `barnraise allow`, `barnraise invite`, `barnraise revoke`: the operator's words, written into the
//! database of a run. A backbone that is running sees them within seconds.

use std::time::{Duration, SystemTime};

use anyhow::{Context, bail};
use barnraise_protocol::access::{AccessMode, PublicKey, UnixTime};
use libp2p::PeerId;

use super::rooms::{LASTS_DEFAULT, LASTS_MAX, RoomCode, RoomKey, USES_DEFAULT};
use super::store::{Store, Whose};
use super::{hex, peer_id, random, system_clock};
use crate::cli::{AllowAction, AllowArgs, InviteArgs, RevokeArgs};
use crate::config::RunConfig;

/// How long the link of an invitation is good where nothing else is said.
const INVITATION_LASTS: Duration = Duration::from_secs(7 * 24 * 3600);

/// `barnraise allow`: what there is to say about it.
///
/// # Errors
/// A run without a list, or a database that cannot be used.
pub async fn allow(args: AllowArgs) -> anyhow::Result<String> {
    match args.action {
        AllowAction::Add(who) => {
            let (config, store) = open(&who.run.config, AccessMode::Allowlist).await?;
            let issuer = issuer(&config)?;
            let mut text = String::new();
            for name in &who.who {
                let is_new = store.allow(issuer, who.by, name, now()).await?;
                let said = if is_new { "is on the list now" } else { "was on the list before" };
                text.push_str(&format!("{name} {said}.\n"));
            }
            finish(&store, text).await
        }
        AllowAction::Remove(who) => {
            let (config, store) = open(&who.run.config, AccessMode::Allowlist).await?;
            let issuer = issuer(&config)?;
            let mut text = String::new();
            for name in &who.who {
                let said = match store.disallow(issuer, who.by, name, now()).await? {
                    Some(n_revoked) => format!("is off the list; {n_revoked} tokens were taken back"),
                    None => "was not on the list".to_owned(),
                };
                text.push_str(&format!("{name} {said}.\n"));
            }
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

/// `barnraise invite`: the link, or the code of a room.
///
/// # Errors
/// A run that takes no invitations or has no rooms, or a database that cannot be used.
pub async fn invite(args: InviteArgs) -> anyhow::Result<String> {
    let (config, store) = open(&args.run.config, AccessMode::Invitation).await?;
    let (uses, lasts) = if args.room { (USES_DEFAULT, LASTS_DEFAULT) } else { (1, INVITATION_LASTS) };
    let (uses, lasts) = (args.uses.unwrap_or(uses), args.expires.unwrap_or(lasts));
    let expires_at = now().after(lasts.as_secs());
    if args.room {
        if !config.access.room {
            bail!("the run has no rooms: see `room` in its [access]");
        }
        if lasts > LASTS_MAX {
            bail!("the code of a room can be guessed in time: let it last 7 days at most");
        }
        let code = RoomCode::random()?;
        let invitation = RoomKey::load_or_create(&config.storage.folder)?.invitation(&code);
        store.invite(&invitation, uses, expires_at, now()).await?;
        return finish(&store, format!("{code}\n")).await;
    }
    let code = hex(&random::<16>()?);
    store.invite(&code, uses, expires_at, now()).await?;
    let page = config.access.page.unwrap_or_else(|| format!("http://{}", config.network.http));
    finish(&store, format!("{page}/#invitation={code}\n")).await
}

/// `barnraise revoke`: how much was taken back.
///
/// # Errors
/// An open run, or a database that cannot be used.
pub async fn revoke(args: RevokeArgs) -> anyhow::Result<String> {
    let config = RunConfig::load(&args.run.config)?;
    if config.access.mode == AccessMode::Open {
        bail!("the run is open to everybody: there is nothing to take back");
    }
    let store = Store::open(&config.storage.folder).await?;
    let key = args.who.parse::<PeerId>().ok().and_then(|peer| PublicKey::of_peer_id(&peer.to_bytes()));
    let whose = key.map_or_else(|| Whose::User(args.who.clone()), Whose::Peer);
    let n_revoked = store.revoke(&whose, args.with_invitation, now()).await?;
    finish(&store, format!("{n_revoked} tokens were taken back.\n")).await
}

async fn open(config: &std::path::Path, mode: AccessMode) -> anyhow::Result<(RunConfig, Store)> {
    let config = RunConfig::load(config)?;
    if config.access.mode != mode {
        bail!("the run is {}: see `mode` in its [access]", config.access.mode.words());
    }
    let store = Store::open(&config.storage.folder).await?;
    Ok((config, store))
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

/// The latest moment that an invitation can last until.
pub fn duration(text: &str) -> Result<Duration, String> {
    let duration: Duration =
        humantime_serde::re::humantime::parse_duration(text).map_err(|error| error.to_string())?;
    match SystemTime::now().checked_add(duration) {
        Some(_) if !duration.is_zero() => Ok(duration),
        _ => Err("a duration above zero is wanted".into()),
    }
}
