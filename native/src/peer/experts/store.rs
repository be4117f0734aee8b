//! The experts of this host on its disk: an object for each, with parameters, optimizer, and the requests that it has counted,
//! all of one step. The same bytes are what other peers keep of it.

use std::collections::BTreeSet;
use std::sync::Arc;

use barnraise_contributor::hosting::StoredExpert;
use barnraise_learning::hosted::{HostedLayer, layer_of};
use barnraise_protocol::Sha256Hash;
use barnraise_protocol::experts::{ExpertPlace, ExpertUid, LayerId};
use barnraise_protocol::sealed::{self as envelope, ObjectKind, SealError};
use object_store::path::Path as ObjectPath;

use crate::computing::compute;
use crate::host::expert_hosts::name;
use crate::storage::{Storage, StorageError};

const FROZEN_KIND: ObjectKind = ObjectKind { name: *b"expf", what: "list of frozen layers", version: 1 };
const FOLDER: &str = "experts";
/// Beside the experts. It names no place.
const FROZEN_FILE: &str = "frozen-layers";
/// Holds all layers that there can be.
const FROZEN_BYTES_MAX: u64 = 256 * 1024;
/// Largest expert: two GiB of parameters with Adam's moments.
const EXPERT_BYTES_MAX: u64 = 6 * 1024 * 1024 * 1024;

/// Why an expert could not be stored or loaded.
#[derive(Debug, thiserror::Error)]
pub(super) enum ExpertStoreError {
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// Damaged, or of another version.
    #[error("{path}: {source}; to begin this expert anew, take the file away")]
    Sealed { path: String, source: SealError },
    /// Likewise.
    #[error("{path}: {source}; to freeze no layer, take the file away")]
    Frozen { path: String, source: SealError },
}

/// The experts of one run in a folder.
#[derive(Debug, Clone)]
pub(super) struct ExpertStore {
    storage: Storage,
    /// [`parameters_hash`](barnraise_protocol::experts::parameters_hash), after which the folder is named.
    parameters: Sha256Hash,
}

impl ExpertStore {
    pub(super) fn new(storage: Storage, parameters: Sha256Hash) -> Self {
        Self { storage, parameters }
    }

    /// The experts that are stored, in the order of their places.
    pub(super) async fn places(&self, layers: &[HostedLayer]) -> Result<Vec<ExpertPlace>, ExpertStoreError> {
        let found = self.storage.list(&self.folder()).await?;
        let mut places: Vec<ExpertPlace> = found
            .iter()
            .filter_map(|object| place_of(object.location.filename()?))
            .filter(|place| layer_of(layers, *place).is_some())
            .collect();
        places.sort_unstable_by_key(|place| name(*place));
        Ok(places)
    }

    /// `None` where it is not stored.
    pub(super) async fn load(&self, place: ExpertPlace) -> Result<Option<StoredExpert>, ExpertStoreError> {
        let path = self.path(place);
        let Some(bytes) = self.storage.get(&path, EXPERT_BYTES_MAX).await? else { return Ok(None) };
        let opened = compute(bytes.len(), move || StoredExpert::open(&bytes)).await;
        opened.map(Some).map_err(|source| ExpertStoreError::Sealed { path: path.to_string(), source })
    }

    /// Stores what [`sealed`] gave.
    pub(super) async fn save(&self, place: ExpertPlace, sealed: Arc<[u8]>) -> Result<(), ExpertStoreError> {
        Ok(self.storage.put(&self.path(place), bytes::Bytes::from_owner(sealed)).await?)
    }

    /// Deletes what is stored of a place, if anything is.
    pub(super) async fn delete(&self, place: ExpertPlace) -> Result<(), ExpertStoreError> {
        Ok(self.storage.delete(&self.path(place)).await?)
    }

    /// The layers whose experts make no step here.
    pub(super) async fn frozen(&self) -> Result<BTreeSet<LayerId>, ExpertStoreError> {
        let path = self.folder().join(FROZEN_FILE);
        let Some(bytes) = self.storage.get(&path, FROZEN_BYTES_MAX).await? else {
            return Ok(BTreeSet::new());
        };
        let opened = envelope::open_parts(FROZEN_KIND, &bytes);
        opened
            .map(|(layers, _)| layers)
            .map_err(|source| ExpertStoreError::Frozen { path: path.to_string(), source })
    }

    /// Stores them.
    pub(super) async fn save_frozen(&self, layers: &BTreeSet<LayerId>) -> Result<(), ExpertStoreError> {
        let path = self.folder().join(FROZEN_FILE);
        let sealed = envelope::seal_parts(FROZEN_KIND, layers, &[]);
        let sealed = sealed.map_err(|source| ExpertStoreError::Frozen { path: path.to_string(), source })?;
        Ok(self.storage.put(&path, sealed).await?)
    }

    fn folder(&self) -> ObjectPath {
        ObjectPath::from_iter([FOLDER.to_owned(), self.parameters.to_string()])
    }

    fn path(&self, place: ExpertPlace) -> ObjectPath {
        ObjectPath::from_iter([FOLDER.to_owned(), self.parameters.to_string(), name(place)])
    }
}

/// An expert as it is stored, and as other peers keep it.
pub(super) async fn sealed(expert: StoredExpert) -> Result<Arc<[u8]>, SealError> {
    let n_bytes = size_of_val(expert.state.parameters.as_slice());
    compute(n_bytes, move || expert.seal().map(Arc::from)).await
}

/// The place that a file is named after, such as `2-3.17`.
pub(super) fn place_of(name: &str) -> Option<ExpertPlace> {
    let (layer, indices) = name.split_once('-')?;
    let indices: Option<Vec<u16>> = indices.split('.').map(|index| index.parse().ok()).collect();
    Some((LayerId(layer.parse().ok()?), ExpertUid::new(&indices?).ok()?))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use barnraise_contributor::hosting::StoredExpertError;
    use barnraise_learning::OptimizerState;
    use barnraise_learning::hosted::ExpertState;
    use barnraise_swarm::experts::checkpoints::CheckpointVersion;
    use barnraise_swarm::experts::serving::CountedState;

    use super::*;
    use crate::host::expert_hosts::testing::layers;

    #[tokio::test]
    async fn an_expert_is_stored_under_its_place_and_read_again() {
        let store = ExpertStore::new(Storage::in_memory(), Sha256Hash([7; 32]));
        let place = (LayerId(3), ExpertUid::new(&[17, 0, 5]).unwrap());
        assert_eq!(place_of(&name(place)), Some(place));
        assert!(store.load(place).await.unwrap().is_none());
        let optimizer =
            OptimizerState { n_steps: 4, beta_products: [0.5, 0.25], moments: vec![vec![1.0, 2.0]] };
        let state = ExpertState { parameters: vec![0.5, -1.0], optimizer };
        let stored = StoredExpert { term: 9, state: state.clone(), counted: CountedState::default() };
        assert_eq!(stored.version(), CheckpointVersion { term: 9, n_steps: 4 });
        let bytes = sealed(stored.clone()).await.unwrap();
        store.save(place, bytes).await.unwrap();
        let loaded = store.load(place).await.unwrap().unwrap();
        assert_eq!((loaded.version(), &loaded.state), (stored.version(), &state));
        let other = ExpertStore::new(store.storage.clone(), Sha256Hash([8; 32]));
        assert!(other.load(place).await.unwrap().is_none(), "of another run");
        other.delete(place).await.unwrap();
        assert!(store.load(place).await.unwrap().is_some(), "nothing was deleted there");
        // Frozen layers lie beside, and name no place.
        assert!(store.frozen().await.unwrap().is_empty());
        let frozen = BTreeSet::from([LayerId(3), LayerId(300)]);
        store.save_frozen(&frozen).await.unwrap();
        assert_eq!(store.frozen().await.unwrap(), frozen);
        assert_eq!(place_of(FROZEN_FILE), None);
        let bytes = envelope::seal_parts(FROZEN_KIND, &frozen, &[]).unwrap();
        assert_eq!(crate::storage::hex(&bytes[envelope::HEADER_BYTES..]), "040000000203ac02");
        store.storage.put(&store.path(place), b"barn".to_vec()).await.unwrap();
        assert!(store.load(place).await.unwrap_err().to_string().contains("take the file away"));
    }

    #[tokio::test]
    async fn a_checkpoint_that_no_expert_of_the_layer_goes_on_from_is_refused_before_it_is_taken() {
        let layer = layers().remove(0);
        let layout = layer.body.graph.layout();
        let (n_parameters, n_trained) = (layout.n_parameters(), layout.n_trained());
        let moments = vec![vec![0.5; n_trained]; layer.optimizer.n_moments()];
        let optimizer = OptimizerState { n_steps: 4, beta_products: [0.5, 0.25], moments };
        let state = ExpertState { parameters: vec![0.5; n_parameters], optimizer };
        let good = StoredExpert { term: 9, state, counted: CountedState::default() };
        let opened = async |made: StoredExpert, version: CheckpointVersion| {
            let sealed = sealed(made).await.unwrap();
            assert!(sealed.len() as u64 <= layer.checkpoint_bytes_max());
            StoredExpert::open_kept(&sealed, &layer, version)
        };
        let back = opened(good.clone(), good.version()).await.unwrap();
        assert_eq!((back.version(), &back.state), (good.version(), &good.state), "another peer kept it");
        assert!(sealed(good.clone()).await.unwrap().len() as u64 >= layer.checkpoint_bytes_min());
        let other = CheckpointVersion { n_steps: 5, ..good.version() };
        assert!(matches!(opened(good.clone(), other).await, Err(StoredExpertError::Version)));
        let forged: [fn(&mut ExpertState); 9] = [
            |state| state.parameters.truncate(2),
            |state| state.parameters.push(1.0),
            |state| state.optimizer.moments.clear(),
            |state| state.optimizer.moments.push(vec![0.0]),
            |state| state.optimizer.moments.iter_mut().for_each(|moment| moment.push(1.0)),
            |state| state.optimizer.moments[0][0] = f32::NAN,
            |state| state.optimizer.beta_products[1] = f64::NAN,
            |state| state.optimizer.beta_products[0] = 1.5,
            |state| state.optimizer.n_steps = u64::MAX,
        ];
        for (at, forge) in forged.into_iter().enumerate() {
            let mut made = good.clone();
            forge(&mut made.state);
            let version = made.version();
            assert!(matches!(opened(made, version).await, Err(StoredExpertError::State(_))), "{at}");
        }
    }
}
