//! The layers of a run's model whose experts peers host.

use std::sync::Arc;

use barnraise_learning::DataShape;
use barnraise_learning::graph::{HostedBody, ResolvedGraph};
use barnraise_learning::optimizer::OptimizerSpec;
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
    pub(crate) optimizer: OptimizerSpec,
}

impl HostedLayer {
    /// All layers of a run; none where its experts are the model's own.
    pub(crate) fn of_run(run: &RunDescription) -> anyhow::Result<Vec<Self>> {
        Self::of_model(&run.model, DataShape::of(&run.data.manifest.samples))
    }

    /// All layers of a model of such data.
    pub(crate) fn of_model(model: &ModelSpec, data: DataShape) -> anyhow::Result<Vec<Self>> {
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
    pub(crate) fn checkpoint_bytes_min(&self) -> u64 {
        let layout = self.body.graph.layout();
        let n_moments = self.optimizer.n_moments().saturating_mul(layout.n_trained());
        (layout.n_parameters().saturating_add(n_moments) as u64).saturating_mul(4)
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

#[cfg(test)]
pub(crate) mod tests {
    #![allow(clippy::unwrap_used)]

    use std::path::Path;

    use barnraise_protocol::dataset::ImageShape;

    use super::*;
    use crate::config::RunConfig;

    const MODEL: &str = r#"
[run]
id = "barn"

[model.kind.graph]
name = "experts"
loss = "classification"
parts = [{ name = "expert", blocks = [{ name = "only", op = { dense = { units = 4 } } }] }]
blocks = [
    { name = "flat", op = "flatten" },
    { name = "first", op = { dense = { units = 4 } } },
    { name = "moe", op = { experts = { part = "expert", side = 8, active = 2 } } },
    { name = "fc", op = { dense = { units = "classes" } } },
]

[model.experts]
"#;

    pub(crate) fn model() -> ModelSpec {
        RunConfig::parse(MODEL, Path::new("run.toml")).unwrap().model_spec()
    }

    /// One layer of it, whose experts have 20 parameters.
    pub(crate) fn layers() -> Vec<HostedLayer> {
        let shape = ImageShape { height: 28, width: 28, channels: 1 };
        HostedLayer::of_model(&model(), DataShape::Images { shape, n_classes: 10 }).unwrap()
    }
}
