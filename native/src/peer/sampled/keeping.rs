//! All of a run's data at a participant, so that newcomers find them where the one that began the run is gone.

use std::time::Duration;

use anyhow::Context;
use barnraise_protocol::bulk::Transfer;
use barnraise_protocol::dataset::Manifest;
use barnraise_protocol::shard::{self, ShardId};
use barnraise_protocol::{ConversationError, Refusal};
use futures::{AsyncRead, AsyncWrite};

use crate::peer::cache::ShardCache;
use crate::peer::display::Display;
use crate::peer::home::HomeBackbone;

/// Interval of attempts to get what is missing.
const TRY_EVERY: Duration = Duration::from_secs(30);
/// Interval of looks at whether all is here still: other processes may keep their shards in the same folder.
const LOOK_EVERY: Duration = Duration::from_secs(600);
/// A transfer is given up after this and the time that it takes at the least pace.
const GRACE: Duration = Duration::from_secs(60);
const BYTES_PER_SECOND_MIN: u64 = 1024;

/// The bytes of a shard: from the cache, or over the stream, unless the peer there does not have it.
///
/// # Errors
/// The stream breaks, or what comes over it is not that shard.
pub(super) async fn shard<S: AsyncRead + AsyncWrite + Unpin, E>(
    cache: &ShardCache,
    open: impl AsyncFnOnce() -> Result<S, E>,
    (id, wanted): (ShardId, Transfer),
) -> anyhow::Result<Option<Vec<u8>>>
where
    anyhow::Error: From<E>,
{
    let of_cache = cache.clone();
    if let Some(bytes) = tokio::task::spawn_blocking(move || of_cache.get(wanted.sha256)).await? {
        return Ok(Some(bytes));
    }
    let limit = GRACE + Duration::from_secs(wanted.n_bytes / BYTES_PER_SECOND_MIN);
    let (mut stream, mut partial) = (open().await?, None);
    let fetching = shard::fetch(&mut stream, id, wanted, &mut partial, |_| ());
    let fetched = tokio::time::timeout(limit, fetching).await;
    let bytes = match fetched.context("a shard did not come in time")? {
        Err(ConversationError::Refused(Refusal::NoShard | Refusal::Unavailable { .. })) => return Ok(None),
        fetched => fetched?,
    };
    let (of_cache, kept) = (cache.clone(), bytes.clone());
    if let Err(error) = tokio::task::spawn_blocking(move || of_cache.put(wanted.sha256, &kept)).await? {
        tracing::warn!(%error, "a shard is not kept on disk");
    }
    Ok(Some(bytes))
}

/// Everything of a run's data that newcomers ask for.
fn all_of(manifest: &Manifest) -> Vec<(ShardId, Transfer)> {
    let numbers = 0..u32::try_from(manifest.shards.len()).unwrap_or(u32::MAX);
    let ids = numbers.map(ShardId::Numbered).chain([ShardId::Gallery, ShardId::Preprocessing]);
    ids.filter_map(|id| Some((id, id.transfer(manifest)?))).collect()
}

/// Fetches all of a run's data that are not on the disk yet, and looks now and then. Does not end, but with an error.
///
/// # Errors
/// There is no room for them.
pub(super) async fn keep_all(
    home: &HomeBackbone,
    cache: &ShardCache,
    manifest: &Manifest,
    display: &Display,
) -> anyhow::Result<()> {
    let all = all_of(manifest);
    let n_bytes: u64 = all.iter().map(|(_, wanted)| wanted.n_bytes).sum();
    anyhow::ensure!(
        n_bytes <= cache.bytes_max(),
        "the page hands out all of the run's data, {n_bytes} bytes: --cache-size has to be that at least"
    );
    let mut were_here = false;
    loop {
        for shard in missing(cache, &all).await? {
            let open = async || home.open(shard::PROTOCOL).await;
            if let Err(error) = self::shard(cache, open, shard).await {
                tracing::debug!(error = format!("{error:#}"), "a shard is not had yet");
                break;
            }
        }
        // The disk has the last word.
        let are_here = missing(cache, &all).await?.is_empty();
        if are_here != were_here {
            were_here = are_here;
            display.say(match are_here {
                true => "All of the run's data are kept here, for those who come later.",
                false => "Not all of the run's data are kept here any longer: the folder of --cache has no room for them.",
            });
        }
        tokio::time::sleep(if are_here { LOOK_EVERY } else { TRY_EVERY }).await;
    }
}

/// Those that are not on the disk.
async fn missing(
    cache: &ShardCache,
    all: &[(ShardId, Transfer)],
) -> anyhow::Result<Vec<(ShardId, Transfer)>> {
    let cache = cache.clone();
    let here = tokio::task::spawn_blocking(move || cache.names()).await?;
    Ok(all.iter().filter(|(_, wanted)| !here.contains(&wanted.sha256)).copied().collect())
}
