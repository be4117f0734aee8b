//! The experts of this host on its disk: an object for each, with parameters, optimizer, and the requests that it has counted,
//! all of one step.

use std::sync::Arc;

use barnraise_learning::OptimizerState;
use barnraise_learning::hosted::ExpertState;
use barnraise_protocol::Sha256Hash;
use barnraise_protocol::experts::{ExpertUid, LayerId};
use barnraise_swarm::experts::serving::CountedState;
use object_store::path::Path as ObjectPath;
use serde::{Deserialize, Serialize};

use super::{ExpertPlace, HostedLayer, name};
use crate::computing::{ParameterBytes, compute};
use crate::storage::sealed::{self, ObjectKind, SealError};
use crate::storage::{Storage, StorageError};

const KIND: ObjectKind = ObjectKind { name: *b"exps", what: "expert", version: 1 };
const FOLDER: &str = "experts";
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
}

/// An expert with what it has counted.
#[derive(Debug, Clone)]
pub(super) struct StoredExpert {
    pub(super) state: ExpertState,
    pub(super) counted: CountedState,
}

/// Before the raw parameters.
#[derive(Serialize, Deserialize)]
struct ExpertHeader {
    n_parameters: u64,
    optimizer: OptimizerState,
    counted: CountedState,
}

/// The experts of one run in a folder.
#[derive(Debug, Clone)]
pub(super) struct ExpertStore {
    storage: Storage,
    /// The folder is that of a run whose description is this.
    run: Sha256Hash,
}

impl ExpertStore {
    pub(super) fn new(storage: Storage, run: Sha256Hash) -> Self {
        Self { storage, run }
    }

    /// The experts that are stored, in the order of their places.
    pub(super) async fn places(&self, layers: &[HostedLayer]) -> Result<Vec<ExpertPlace>, ExpertStoreError> {
        let found = self.storage.list(&self.folder()).await?;
        let mut places: Vec<ExpertPlace> = found
            .iter()
            .filter_map(|object| place_of(object.location.filename()?))
            .filter(|(id, uid)| layers.iter().any(|layer| layer.id == *id && layer.grid.contains(uid)))
            .collect();
        places.sort_unstable_by_key(|place| name(*place));
        Ok(places)
    }

    /// `None` where it is not stored.
    pub(super) async fn load(&self, place: ExpertPlace) -> Result<Option<StoredExpert>, ExpertStoreError> {
        let path = self.path(place);
        let Some(bytes) = self.storage.get(&path, EXPERT_BYTES_MAX).await? else { return Ok(None) };
        let opened = compute(bytes.len(), move || open(&bytes)).await;
        opened.map(Some).map_err(|source| ExpertStoreError::Sealed { path: path.to_string(), source })
    }

    pub(super) async fn save(
        &self,
        place: ExpertPlace,
        expert: StoredExpert,
    ) -> Result<(), ExpertStoreError> {
        let path = self.path(place);
        let n_bytes = size_of_val(expert.state.parameters.as_slice());
        let sealed = compute(n_bytes, move || seal(expert)).await;
        let sealed = sealed.map_err(|source| ExpertStoreError::Sealed { path: path.to_string(), source })?;
        Ok(self.storage.put(&path, sealed).await?)
    }

    fn folder(&self) -> ObjectPath {
        ObjectPath::from_iter([FOLDER.to_owned(), self.run.to_string()])
    }

    fn path(&self, place: ExpertPlace) -> ObjectPath {
        ObjectPath::from_iter([FOLDER.to_owned(), self.run.to_string(), name(place)])
    }
}

fn seal(expert: StoredExpert) -> Result<Vec<u8>, SealError> {
    let StoredExpert { state: ExpertState { parameters, optimizer }, counted } = expert;
    let header = ExpertHeader { n_parameters: parameters.len() as u64, optimizer, counted };
    let parameters = ParameterBytes(Arc::new(parameters));
    sealed::seal_parts(KIND, &header, &[parameters.as_ref()])
}

fn open(bytes: &[u8]) -> Result<StoredExpert, SealError> {
    let (header, raw): (ExpertHeader, &[u8]) = sealed::open_parts(KIND, bytes)?;
    let (values, rest) = raw.as_chunks::<4>();
    if values.len() as u64 != header.n_parameters || !rest.is_empty() {
        return Err(SealError::Payload("its parameters are cut".into()));
    }
    let parameters: Vec<f32> = values.iter().map(|value| f32::from_le_bytes(*value)).collect();
    if !parameters.iter().all(|value| value.is_finite()) {
        return Err(SealError::Payload("a parameter is not finite".into()));
    }
    let state = ExpertState { parameters, optimizer: header.optimizer };
    Ok(StoredExpert { state, counted: header.counted })
}

/// The place that a file is named after.
fn place_of(name: &str) -> Option<ExpertPlace> {
    let (layer, indices) = name.split_once('-')?;
    let indices: Option<Vec<u16>> = indices.split('.').map(|index| index.parse().ok()).collect();
    Some((LayerId(layer.parse().ok()?), ExpertUid::new(&indices?).ok()?))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[tokio::test]
    async fn an_expert_is_stored_under_its_place_and_read_again() {
        let store = ExpertStore::new(Storage::in_memory(), Sha256Hash([7; 32]));
        let place = (LayerId(3), ExpertUid::new(&[17, 0, 5]).unwrap());
        assert_eq!(place_of(&name(place)), Some(place));
        assert!(store.load(place).await.unwrap().is_none());
        let optimizer =
            OptimizerState { n_steps: 4, beta_products: [0.5, 0.25], moments: vec![vec![1.0, 2.0]] };
        let state = ExpertState { parameters: vec![0.5, -1.0], optimizer };
        let stored = StoredExpert { state: state.clone(), counted: CountedState::default() };
        store.save(place, stored).await.unwrap();
        assert_eq!(store.load(place).await.unwrap().unwrap().state, state);
        let other = ExpertStore::new(store.storage.clone(), Sha256Hash([8; 32]));
        assert!(other.load(place).await.unwrap().is_none(), "of another run");
        store.storage.put(&store.path(place), b"barn".to_vec()).await.unwrap();
        assert!(store.load(place).await.unwrap_err().to_string().contains("take the file away"));
    }
}
