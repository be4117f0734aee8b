//! A run's model: its graph on the run's data, within the bounds of a run.

use barnraise_protocol::run::{ModelSpec, RunDescription};

use crate::data_shape::{DataShape, RowTarget};
use crate::error::ModelError;
use crate::graph::{CLASSES_MAX, GraphError, ResolvedGraph};
use crate::parameters::{BATCH_ACTIVATIONS_MAX, ParameterLayout};

impl ResolvedGraph {
    /// A run's model on samples of such sizes.
    ///
    /// # Errors
    /// A graph that cannot be computed on them, or is too large for a run; classes that have no label.
    pub fn of_model(spec: &ModelSpec, data: DataShape) -> Result<Self, ModelError> {
        if let DataShape::Images { n_classes, .. }
        | DataShape::Rows { target: RowTarget::Class(n_classes), .. } = data
            && !(1..=CLASSES_MAX).contains(&n_classes)
        {
            return Err(ModelError::Classes { max: CLASSES_MAX, got: n_classes });
        }
        let (adapters, is_hosted) = (spec.weights.adapters(), spec.hosted.is_some());
        let graph = Self::with_options(&spec.graph, data.into(), adapters, is_hosted)?;
        let layout = graph.layout();
        if layout.n_activations > BATCH_ACTIVATIONS_MAX {
            return Err(GraphError::Activations { max: BATCH_ACTIVATIONS_MAX }.into());
        }
        Ok(graph)
    }
}

impl ParameterLayout {
    /// The layout of a run's model on its data. Its length is that of the flat parameter vector and of each gradient,
    /// which a description does not state.
    ///
    /// # Errors
    /// As of [`ResolvedGraph::of_model`].
    pub fn of_run(run: &RunDescription) -> Result<Self, ModelError> {
        Self::of(&run.model, DataShape::of(&run.data.manifest.samples))
    }

    /// The layout of the weights that a run's model does not train.
    ///
    /// # Errors
    /// As of [`ResolvedGraph::of_model`].
    pub fn frozen_of_run(run: &RunDescription) -> Result<Self, ModelError> {
        let data = DataShape::of(&run.data.manifest.samples);
        Ok(ResolvedGraph::of_model(&run.model, data)?.frozen().clone())
    }

    /// The layout of `spec` on samples of such sizes.
    ///
    /// # Errors
    /// As of [`ResolvedGraph::of_model`].
    pub fn of(spec: &ModelSpec, data: DataShape) -> Result<Self, ModelError> {
        Ok(ResolvedGraph::of_model(spec, data)?.layout().clone())
    }

    /// Checks that a flat vector has this layout's length.
    pub(crate) fn check_length(&self, got: usize) -> Result<(), ModelError> {
        match got == self.n_parameters {
            true => Ok(()),
            false => Err(ModelError::ParameterCount { want: self.n_parameters, got }),
        }
    }
}
