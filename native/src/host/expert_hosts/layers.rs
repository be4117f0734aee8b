//! The layers of a run's model whose experts peers host.

use std::sync::Arc;

use barnraise_learning::DataShape;
use barnraise_learning::graph::{HostedBody, ResolvedGraph};
use barnraise_protocol::experts::{ExpertPlace, GridShape, LayerId};
use barnraise_protocol::run::{ModelSpec, RunDescription};

/// Vectors of an expert's size in a checkpoint: its parameters, and at most three moments of its optimizer.
const VECTORS_MAX: u64 = 4;
/// Beside these vectors: what the expert has counted, for each of a thousand trainers.
const OTHER_BYTES_MAX: u64 = 2 * 1024 * 1024;

/// A layer of the model, and the grid that its experts stand on.
#[derive(Debug, Clone)]
pub(crate) struct HostedLayer {
    pub(crate) id: LayerId,
    pub(crate) grid: GridShape,
    pub(crate) body: Arc<HostedBody>,
}

impl HostedLayer {
    /// All layers of a run; none where its experts are the model's own.
    pub(crate) fn of_run(run: &RunDescription) -> anyhow::Result<Vec<Self>> {
        Self::of_model(&run.model, DataShape::of(&run.data.manifest.samples))
    }

    /// All layers of a model of such data.
    pub(crate) fn of_model(model: &ModelSpec, data: DataShape) -> anyhow::Result<Vec<Self>> {
        if model.hosted.is_none() {
            return Ok(Vec::new());
        }
        let graph = ResolvedGraph::of_model(model, data)?;
        let mut layers = Vec::new();
        for (grid, body) in graph.hosted() {
            let side = u16::try_from(grid.side)?;
            let grid = GridShape::new(&vec![side; grid.n_dimensions])?;
            layers.push(Self { id: LayerId(u16::try_from(body.layer)?), grid, body: body.clone() });
        }
        Ok(layers)
    }

    /// Most bytes of a checkpoint of one of its experts.
    pub(crate) fn checkpoint_bytes_max(&self) -> u64 {
        let n_parameters = self.body.graph.layout().n_parameters() as u64;
        n_parameters.saturating_mul(4 * VECTORS_MAX).saturating_add(OTHER_BYTES_MAX)
    }
}

/// The layer of a place, where the grid has it.
pub(crate) fn layer_of(layers: &[HostedLayer], (id, uid): ExpertPlace) -> Option<&HostedLayer> {
    layers.iter().find(|layer| layer.id == id && layer.grid.contains(&uid))
}

/// Name of an expert in a folder.
pub(crate) fn name((layer, uid): ExpertPlace) -> String {
    format!("{}-{uid}", layer.0)
}
