//! All of a run's data at a participant, so that newcomers find them where the one that began the run is gone.

use std::time::Duration;

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
    let bytes = match shard::fetch(&mut open().await?, id, wanted, &mut None, |_| ()).await {
        Err(ConversationError::Refused(Refusal::NoShard | Refusal::Unavailable { .. })) => return Ok(None),
        fetched => fetched?,
    };
    let (of_cache, kept) = (cache.clone(), bytes.clone());
    if let Err(error) = tokio::task::spawn_blocking(move || of_cache.put(wanted.sha256, &kept)).await? {
        tracing::warn!(%error, "a shard is not kept on disk");
    }
    Ok(Some(bytes))
}

/// Everything of a run's data that newcomers ask for, but how files become samples.
fn all_of(manifest: &Manifest) -> Vec<(ShardId, Transfer)> {
    let numbers = 0..u32::try_from(manifest.shards.len()).unwrap_or(u32::MAX);
    let ids = numbers.map(ShardId::Numbered).chain([ShardId::Gallery]);
    ids.filter_map(|id| Some((id, id.transfer(manifest)?))).collect()
}

/// Fetches all of a run's data that are not on the disk yet. Ends when they are.
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
    loop {
        match fetch_missing(home, cache, &all).await {
            Ok(0) => {
                display.say("All of the run's data are kept here, for those who come later.");
                return Ok(());
            }
            Ok(n_missing) => tracing::debug!(n_missing, "shards are not kept here yet"),
            Err(error) => tracing::debug!(error = format!("{error:#}"), "shards are not kept here yet"),
        }
        tokio::time::sleep(TRY_EVERY).await;
    }
}

/// Returns how many shards are still missing.
async fn fetch_missing(
    home: &HomeBackbone,
    cache: &ShardCache,
    all: &[(ShardId, Transfer)],
) -> anyhow::Result<usize> {
    let of_cache = cache.clone();
    let here = tokio::task::spawn_blocking(move || of_cache.names()).await?;
    let mut n_missing = 0;
    for (id, wanted) in all.iter().filter(|(_, wanted)| !here.contains(&wanted.sha256)) {
        let open = async || home.open(shard::PROTOCOL).await;
        n_missing += usize::from(shard(cache, open, (*id, *wanted)).await?.is_none());
    }
    Ok(n_missing)
}
