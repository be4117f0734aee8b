//! Whether the file of an expert that another host has may be deleted here.

use barnraise_contributor::hosting::{NewestError, newest};
use barnraise_protocol::experts::ExpertPlace;
use barnraise_protocol::experts::checkpoints::CheckpointVersion;
use barnraise_protocol::experts::leases::CopyHolder;

use super::leasing;
use super::state::HostState;
use super::store::{ExpertStore, ExpertStoreError};

/// Why a file stays for now.
#[derive(Debug, thiserror::Error)]
enum LostExpertError {
    #[error(transparent)]
    Holders(#[from] leasing::LeasingError),
    #[error(transparent)]
    Store(#[from] ExpertStoreError),
    #[error(transparent)]
    Newest(#[from] NewestError),
}

/// The version of the file of a place, and of the newest state that other peers gave: an expert can go on from it. `None` where
/// no other host has the place, or nobody gave a newer state.
pub(super) async fn versions(
    state: &HostState,
    store: &ExpertStore,
    place: ExpertPlace,
) -> Option<(CheckpointVersion, CheckpointVersion)> {
    match compared(state, store, place).await {
        Ok(versions) => versions,
        Err(error) => {
            tracing::debug!(expert = %place.1, %error, "it is not known whether others have a newer state");
            None
        }
    }
}

async fn compared(
    state: &HostState,
    store: &ExpertStore,
    place: ExpertPlace,
) -> Result<Option<(CheckpointVersion, CheckpointVersion)>, LostExpertError> {
    let holders = leasing::holders(state, vec![place]).await?;
    let holder = holders.first().and_then(|copies| CopyHolder::of_expert(copies));
    if holder.is_none_or(|holder| holder == state.signer.key.public()) {
        return Ok(None);
    }
    let Some(own) = store.load(place).await? else { return Ok(None) };
    let own = own.version();
    let newest = newest(state, place, Some(own), Vec::new()).await?;
    Ok(newest.map(|newest| (own, newest.version())))
}
