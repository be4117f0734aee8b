//! Reads the sources of a stream as a run trains.

use std::collections::BTreeMap;
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

/// Opens a stream, and makes its first window where it has none. What a longer window than before lacks is made as the run
/// goes on, by the weights that an operator has changed: here they are not known.
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
    let has_window = feed.shards().window().drawn().next().is_some();
    while !has_window && feed.is_due(0) {
        feed.make().await.context("the first window of the stream cannot be made")?;
    }
    let window = feed.shards().window();
    tracing::info!(first = window.first_drawn, end = window.end(), "the window of the stream is here");
    Ok(feed)
}

/// Makes shards as long as the run goes on, of sources with these weights. An error is logged, and tried again: meanwhile
/// the window stays as it is.
pub(super) async fn feed(
    mut feed: StreamFeed,
    mut status: watch::Receiver<RunStatus>,
    mut weights: watch::Receiver<BTreeMap<String, f64>>,
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
            feed.set_weights(weights.borrow_and_update().clone());
            if let Err(error) = feed.make().await {
                tracing::error!(%error, "the stream stands still, and training goes on with the window that is there");
                tokio::time::sleep(TRY_AGAIN).await;
            }
        }
    };
    shutdown.run_until_cancelled(feeding).await;
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::data::DataSource;

    #[tokio::test]
    async fn only_the_first_window_is_made_before_the_run_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let mut settings = crate::data::streamed::tests::settings(folder.path());
        let storage = Storage::in_memory();
        for window_shards in [2, 5] {
            settings.window_shards = window_shards;
            let data = DataSource::Stream(settings.clone()).load(folder.path()).unwrap();
            let feed = open(&storage, settings.clone(), &data).await.unwrap();
            assert_eq!(feed.shards().window().end(), 2);
        }
    }
}
