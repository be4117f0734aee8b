//! The workload of the speed comparisons: steps of a model on a device, and bulk transfers of a tab.
//!
//! As a browser module it runs in a dedicated worker, as a library in the benchmark program, so that
//! both measure the same step. It reads no clock: its callers do. It knows no other library.

#[cfg(target_arch = "wasm32")]
mod transfers;

use barnraise_learning::{Batch, DataShape, DeviceChoice, ModelError, ParameterLayout, Trainer, open_device};
use barnraise_protocol::dataset::ImageShape;
use barnraise_protocol::run::{ModelSpec, Preset};
use barnraise_swarm::random::SplitMix64;
use wasm_bindgen::prelude::*;

/// Images of the workload.
pub const SHAPE: ImageShape = ImageShape { height: 28, width: 28, channels: 1 };
/// Classes of the workload.
pub const N_CLASSES: usize = 10;
const DATA: DataShape = DataShape::Images { shape: SHAPE, n_classes: N_CLASSES };
/// Of the initial parameters.
const SEED: u64 = 1;

/// Why there is no workload.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum WorkloadError {
    /// No model has this name.
    #[error("a model is `lenet` or `mlp-` with the width of its two hidden layers, got {0:?}")]
    UnknownModel(String),
    /// The device, or the model on it.
    #[error(transparent)]
    Model(#[from] ModelError),
}

/// `lenet`, or `mlp-256` for an MLP 784-256-256-10.
///
/// # Errors
/// Any other name.
pub fn model(name: &str) -> Result<ModelSpec, WorkloadError> {
    let unknown = || WorkloadError::UnknownModel(name.to_owned());
    let kind = match name.strip_prefix("mlp-") {
        Some(width) => Preset::Mlp { hidden: vec![width.parse().map_err(|_| unknown())?; 2] },
        None if name == "lenet" => Preset::LeNet,
        None => return Err(unknown()),
    };
    Ok(kind.model(SEED))
}

/// The first parameters of a model, in the order of [`ParameterLayout`].
///
/// # Errors
/// A model that does not fit the images.
pub fn initial_parameters(spec: &ModelSpec) -> Result<Vec<f32>, ModelError> {
    Ok(ParameterLayout::of(spec, DATA)?.initial_parameters(spec.seed))
}

/// Samples that look like nothing: how long a step takes does not depend on what is in it.
pub fn batch(n_samples: usize) -> Batch {
    let pixel = |index: usize| (index * 31 % 251) as u8;
    Batch {
        images: (0..n_samples * SHAPE.n_values()).map(pixel).collect(),
        labels: (0..n_samples).map(|sample| (sample % N_CLASSES) as u8).collect(),
    }
}

/// The side that opens a stream of it pulls the bytes.
pub const PULL: &str = "/barnraise-bench/bulk/1";
/// The side that opens a stream of it has the bytes pulled.
pub const SERVE: &str = "/barnraise-bench/bulk-up/1";

/// Bytes that nothing on the way could compress, the same at both ends.
#[wasm_bindgen]
pub fn noise(n_bytes: usize) -> Vec<u8> {
    let mut random = SplitMix64::new(7);
    let mut bytes = Vec::with_capacity(n_bytes + 8);
    while bytes.len() < n_bytes {
        bytes.extend(random.next_u64().to_le_bytes());
    }
    bytes.truncate(n_bytes);
    bytes
}

/// A model on a device, and the batch that it is given again and again.
#[wasm_bindgen]
pub struct Workload {
    trainer: Trainer,
    batch: Batch,
}

impl Workload {
    /// Opens `device` and puts `model` there.
    ///
    /// # Errors
    /// A name that does not exist, a device that cannot be opened.
    pub async fn new(device: &str, model_name: &str, n_samples: usize) -> Result<Self, WorkloadError> {
        let choice: DeviceChoice = device.parse().map_err(ModelError::from)?;
        let spec = model(model_name)?;
        let device = open_device(choice).await.map_err(ModelError::from)?;
        let trainer = Trainer::new(&spec, DATA, device)?;
        Ok(Self { trainer, batch: batch(n_samples) })
    }

    /// Uploads the batch, goes forward and back and adds the gradient up, `n_steps` times, without
    /// reading anything of it back in between; then takes the mean gradient, and returns the loss.
    ///
    /// # Errors
    /// A device that failed.
    pub async fn steps(&mut self, n_steps: u32) -> Result<f32, ModelError> {
        for _ in 0..n_steps {
            self.trainer.accumulate(&self.batch).await?;
        }
        Ok(self.trainer.take_mean_gradient().await?.map_or(f32::NAN, |mean| mean.loss))
    }
}

#[wasm_bindgen]
impl Workload {
    /// [`Workload::new`] for JavaScript.
    pub async fn open(device: String, model: String, n_samples: usize) -> Result<Workload, JsError> {
        Self::new(&device, &model, n_samples).await.map_err(|error| JsError::new(&error.to_string()))
    }

    /// [`Workload::steps`] for JavaScript.
    pub async fn run(&mut self, n_steps: u32) -> Result<f32, JsError> {
        self.steps(n_steps).await.map_err(|error| JsError::new(&error.to_string()))
    }

    /// What it computes on.
    pub fn device_name(&self) -> String {
        self.trainer.device().name().to_owned()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn models_have_names() {
        assert_eq!(model("lenet").unwrap().graph, Preset::LeNet.graph());
        assert_eq!(model("mlp-256").unwrap().graph, Preset::Mlp { hidden: vec![256, 256] }.graph());
        assert_eq!(initial_parameters(&model("mlp-256").unwrap()).unwrap().len(), 269_322);
        for wrong in ["", "mlp", "mlp-", "mlp-x", "LeNet"] {
            assert!(model(wrong).unwrap_err().to_string().contains(&format!("{wrong:?}")));
        }
    }
}
