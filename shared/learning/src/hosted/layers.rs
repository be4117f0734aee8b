//! The layers of a run's model whose experts peers host.

use std::num::TryFromIntError;
use std::sync::Arc;

use barnraise_protocol::experts::{ExpertPlace, GridShape, LayerId, PlaceError};
use barnraise_protocol::run::{ModelSpec, RunDescription};

use crate::data_shape::DataShape;
use crate::error::ModelError;
use crate::graph::{HostedBody, ResolvedGraph};
use crate::optimizer::OptimizerSpec;

/// Vectors of an expert's size in a checkpoint: its parameters, and at most three moments of its optimizer.
const VECTORS_MAX: u64 = 4;
/// Beside these vectors: what the expert has counted, for each of a thousand trainers.
const OTHER_BYTES_MAX: u64 = 2 * 1024 * 1024;

/// Why a model has no such layers.
#[derive(Debug, thiserror::Error)]
pub enum HostedLayerError {
    /// The model does not fit the data.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A grid beyond all bounds.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// Likewise.
    #[error(transparent)]
    Number(#[from] TryFromIntError),
}

/// A layer of the model, and the grid that its experts stand on.
#[derive(Debug, Clone)]
pub struct HostedLayer {
    /// Its number.
    pub id: LayerId,
    /// The places of its experts.
    pub grid: GridShape,
    /// What each of them computes.
    pub body: Arc<HostedBody>,
    /// By which each of them steps.
    pub optimizer: OptimizerSpec,
}

impl HostedLayer {
    /// All layers of a run; none where its experts are the model's own.
    ///
    /// # Errors
    /// The model does not fit the data.
    pub fn of_run(run: &RunDescription) -> Result<Vec<Self>, HostedLayerError> {
        Self::of_model(&run.model, DataShape::of(&run.data.manifest.samples))
    }

    /// All layers of a model of such data.
    ///
    /// # Errors
    /// The model does not fit the data.
    pub fn of_model(model: &ModelSpec, data: DataShape) -> Result<Vec<Self>, HostedLayerError> {
        let Some(hosted) = &model.hosted else { return Ok(Vec::new()) };
        let optimizer = OptimizerSpec::from(hosted.optimizer);
        let graph = ResolvedGraph::of_model(model, data)?;
        let mut layers = Vec::new();
        for (grid, body) in graph.hosted() {
            let side = u16::try_from(grid.side)?;
            let grid = GridShape::new(&vec![side; grid.n_dimensions])?;
            let id = LayerId(u16::try_from(body.layer)?);
            layers.push(Self { id, grid, body: body.clone(), optimizer });
        }
        Ok(layers)
    }

    /// Fewest bytes of a checkpoint of one of its experts: its parameters, and the moments of its optimizer.
    pub fn checkpoint_bytes_min(&self) -> u64 {
        let layout = self.body.graph.layout();
        let n_moments = self.optimizer.n_moments().saturating_mul(layout.n_trained());
        (layout.n_parameters().saturating_add(n_moments) as u64).saturating_mul(4)
    }

    /// Whether a checkpoint of one of its experts can have so many bytes.
    pub fn is_checkpoint_size(&self, n_bytes: u64) -> bool {
        (self.checkpoint_bytes_min()..=self.checkpoint_bytes_max()).contains(&n_bytes)
    }

    /// Most bytes of a checkpoint of one of its experts.
    pub fn checkpoint_bytes_max(&self) -> u64 {
        let n_parameters = self.body.graph.layout().n_parameters() as u64;
        n_parameters.saturating_mul(4 * VECTORS_MAX).saturating_add(OTHER_BYTES_MAX)
    }
}

/// The layer of a place, where the grid has it.
pub fn layer_of(layers: &[HostedLayer], (id, uid): ExpertPlace) -> Option<&HostedLayer> {
    layers.iter().find(|layer| layer.id == id && layer.grid.contains(&uid))
}
