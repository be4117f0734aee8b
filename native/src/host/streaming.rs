//! Reads the sources of a stream as a run trains.

use std::time::Duration;

use anyhow::Context;
use barnraise_protocol::api::RunStatus;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::data::TrainingData;
use crate::data::streamed::StreamFeed;
use crate::data::text::stream::StreamSettings;
use crate::storage::Storage;

/// Pause after a source that could not be read, or a shard that could not be stored.
const TRY_AGAIN: Duration = Duration::from_secs(10);

/// Opens a stream, and makes its first window where it has none.
///
/// # Errors
/// A source that cannot be read or is too short, a record of another version, no room.
pub(super) async fn open(
    storage: &Storage,
    settings: StreamSettings,
    data: &TrainingData,
) -> anyhow::Result<StreamFeed> {
    let stream = data.stream.context("the data are not a stream")?;
    let tokenizer = data.tokenizer.clone().unwrap_or_default();
    let mut feed = StreamFeed::open(storage.clone(), settings, (stream, &tokenizer)).await?;
    while feed.is_due(0) {
        feed.make().await.context("the first window of the stream cannot be made")?;
    }
    let window = feed.shards().window();
    tracing::info!(first = window.first_drawn, end = window.end(), "the window of the stream is here");
    Ok(feed)
}

/// Makes shards as long as the run goes on. An error is logged, and tried again: meanwhile the window stays as it is.
pub(super) async fn feed(
    mut feed: StreamFeed,
    mut status: watch::Receiver<RunStatus>,
    shutdown: CancellationToken,
) {
    let feeding = async {
        loop {
            let last = status.borrow_and_update().history.last().map(|point| point.n_samples_total);
            if !feed.is_due(last.unwrap_or_default()) {
                if status.changed().await.is_err() {
                    return;
                }
                continue;
            }
            if let Err(error) = feed.make().await {
                tracing::error!(%error, "the stream stands still, and training goes on with the window that is there");
                tokio::time::sleep(TRY_AGAIN).await;
            }
        }
    };
    shutdown.run_until_cancelled(feeding).await;
}
