//! Shares the model of an open run: who publishes it, its files, and the task that keeps some earlier ones.

use std::sync::Arc;

use barnraise_learning::ParameterLayout;
use barnraise_protocol::access::AccessMode;
use barnraise_protocol::columns::DataColumns;
use barnraise_protocol::run::RunDescription;
use bytes::Bytes;

use super::{Facts, Keeper, ModelFiles, Publisher};
use crate::config::RunConfig;
use crate::data::shards::ShardStore;
use crate::host::clock::system_clock;
use crate::host::data_files::DataFiles;
use crate::storage::Storage;

/// A model that is shared.
pub(crate) struct SharedModel {
    /// Takes each evaluated model.
    pub(crate) publisher: Publisher,
    /// For the page.
    pub(crate) files: ModelFiles,
}

impl SharedModel {
    /// Shares the model of an open run; in other runs it is for participants only. The task that is returned as well
    /// ends with the publisher.
    ///
    /// # Errors
    /// The earlier models cannot be listed, or the columns cannot be written.
    pub(crate) async fn open(
        config: &RunConfig,
        description: &Arc<RunDescription>,
        layout: ParameterLayout,
        storage: &Storage,
        (tokenizer, columns): (Option<Bytes>, Option<&DataColumns>),
        shards: Arc<ShardStore>,
    ) -> anyhow::Result<Option<(Self, impl Future<Output = ()> + Send + use<>)>> {
        if config.access.mode != AccessMode::Open {
            return Ok(None);
        }
        let (run, license) = (Arc::clone(description), config.model.license.clone());
        let facts = Facts { run, layout: Arc::new(layout), license };
        let (keeper, kept) = Keeper::open(storage.clone(), &config.storage.keep_models).await?;
        let (publisher, latest) = Publisher::new(facts.clone(), config.storage.folder.clone());
        let keeping = keeper.run(latest.clone());
        let files = ModelFiles::new(facts, latest, kept, storage.clone(), system_clock());
        let files = files.with_data(DataFiles::new(tokenizer, columns)?).with_shards(shards);
        Ok(Some((Self { publisher, files }, keeping)))
    }
}
