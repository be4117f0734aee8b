//! The workload of the speed comparisons: steps of a model on a device, and bulk transfers of a tab.
//!
//! As a browser module it runs in a dedicated worker, as a library in the benchmark program, so that
//! both measure the same step. It reads no clock: its callers do. It knows no other library.

#[cfg(target_arch = "wasm32")]
mod transfers;

use barnraise_learning::{
    Batch, DataShape, DeviceChoice, MaskedTokens, ModelError, ParameterLayout, Trainer, open_device,
};
use barnraise_protocol::dataset::{ImageShape, TokenShape};
use barnraise_protocol::run::model::presets::{Albert, Gpt, GptFamily, Norm, ResNet};
use barnraise_protocol::run::{ModelSpec, Preset};
use barnraise_swarm::random::SplitMix64;
use wasm_bindgen::prelude::*;

/// Classes of the pictures.
pub const N_CLASSES: usize = 10;
/// Pictures like those of Fashion-MNIST.
const GREY: ImageShape = ImageShape { height: 28, width: 28, channels: 1 };
/// Pictures like those of CIFAR-10.
const COLOUR: ImageShape = ImageShape { height: 32, width: 32, channels: 3 };
/// Tokens of a sequence.
const LENGTH: u16 = 128;
/// Token that stands for a masked one.
const MASK: u32 = 1;
/// Of the initial parameters.
const SEED: u64 = 1;
/// Which tokens are masked.
const DRAW: u64 = 0;
/// Width, layers and heads by millions of parameters; and the sequences of a pass, of which fewer fit with more layers.
const GPTS: [(&str, [u32; 3], usize); 4] =
    [("0.4", [96, 3, 3], 8), ("0.8", [128, 4, 4], 8), ("2.7", [192, 6, 6], 8), ("6.4", [256, 8, 8], 4)];
const ALBERT: Albert = Albert { embedding: 128, hidden: 384, heads: 6, inner: 1536, layers: 4 };
const RESNET: ResNet = ResNet { norm: Norm::Group(8), small_pictures: true, width: 64 };

/// Why there is no workload.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum WorkloadError {
    /// No model has this name.
    #[error(
        "a model is `lenet`, `mlp-` with the width of its two hidden layers, `resnet-18`, `albert`, or `gpt-` with 0.4, 0.8, \
         2.7 or 6.4 million parameters, got {0:?}"
    )]
    UnknownModel(String),
    /// The device, or the model on it.
    #[error(transparent)]
    Model(#[from] ModelError),
}

/// A model, and what each of its steps is given.
#[derive(Debug, Clone, PartialEq)]
pub struct Case {
    /// What the model is made from.
    pub preset: Preset,
    /// The model.
    pub spec: ModelSpec,
    /// What samples are like.
    pub data: DataShape,
    /// They look like nothing: how long a step takes does not depend on what is in them.
    pub samples: Samples,
    /// How many there are.
    pub n_samples: usize,
}

/// Samples of a step.
#[derive(Debug, Clone, PartialEq)]
pub enum Samples {
    /// Pictures with classes.
    Images(Batch),
    /// `[n_samples, length]`.
    Tokens(Vec<u32>),
}

impl Case {
    /// `lenet`, `mlp-256` for an MLP 784-256-256-10, `resnet-18` for pictures of 32 by 32, `albert`, or `gpt-0.8`, a GPT-2 of
    /// so many million parameters on bytes.
    ///
    /// # Errors
    /// Any other name.
    pub fn new(name: &str) -> Result<Self, WorkloadError> {
        let unknown = || WorkloadError::UnknownModel(name.to_owned());
        let (preset, data, samples, n_samples) = match (name, name.split_once('-')) {
            ("lenet", _) => images(Preset::LeNet, GREY, 64),
            ("resnet-18", _) => images(Preset::ResNet18(RESNET), COLOUR, 16),
            ("albert", _) => tokens(Preset::Albert(ALBERT), 4096, Some(MASK), 8),
            (_, Some(("mlp", width))) => {
                let width = width.parse().map_err(|_| unknown())?;
                images(Preset::Mlp { hidden: vec![width; 2] }, GREY, 64)
            }
            (_, Some(("gpt", millions))) => {
                let known = GPTS.iter().find(|(known, ..)| *known == millions);
                let &(_, [width, layers, heads], n_samples) = known.ok_or_else(unknown)?;
                tokens(Preset::Gpt(Gpt::new(GptFamily::Gpt2, width, layers, heads)), 256, None, n_samples)
            }
            _ => return Err(unknown()),
        };
        Ok(Self { spec: preset.model(SEED), preset, data, samples, n_samples })
    }

    /// The first parameters, and where each tensor is among them.
    ///
    /// # Errors
    /// A model that does not fit the data.
    pub fn initial_parameters(&self) -> Result<(ParameterLayout, Vec<f32>), ModelError> {
        let layout = ParameterLayout::of(&self.spec, self.data)?;
        let values = layout.initial_parameters(self.spec.seed);
        Ok((layout, values))
    }

    /// The tokens that a step masks, of a model that predicts those.
    pub fn masked(&self, ids: &[u32]) -> Option<MaskedTokens> {
        let DataShape::Tokens(shape) = self.data else { return None };
        Some(MaskedTokens::of(ids, shape, shape.mask?, self.spec.seed, DRAW))
    }
}

fn images(preset: Preset, shape: ImageShape, n_samples: usize) -> (Preset, DataShape, Samples, usize) {
    let batch = Batch {
        images: (0..n_samples * shape.n_values()).map(|index| (index * 31 % 251) as u8).collect(),
        labels: (0..n_samples).map(|sample| (sample % N_CLASSES) as u8).collect(),
    };
    (preset, DataShape::Images { shape, n_classes: N_CLASSES }, Samples::Images(batch), n_samples)
}

fn tokens(
    preset: Preset,
    vocabulary: u32,
    mask: Option<u32>,
    n_samples: usize,
) -> (Preset, DataShape, Samples, usize) {
    let n_tokens = n_samples * usize::from(LENGTH);
    let ids = (0..n_tokens).map(|index| (index * 31 % 251) as u32 % vocabulary).collect();
    let shape = TokenShape { length: LENGTH, vocabulary, mask };
    (preset, DataShape::Tokens(shape), Samples::Tokens(ids), n_samples)
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
    samples: Samples,
}

impl Workload {
    /// Opens `device` and puts the model of a [`Case`] there.
    ///
    /// # Errors
    /// A name that does not exist, a device that cannot be opened.
    pub async fn new(device: &str, name: &str) -> Result<Self, WorkloadError> {
        let choice: DeviceChoice = device.parse().map_err(ModelError::from)?;
        let case = Case::new(name)?;
        let device = open_device(choice).await.map_err(ModelError::from)?;
        let trainer = Trainer::new(&case.spec, case.data, device)?;
        Ok(Self { trainer, samples: case.samples })
    }

    /// Uploads the batch, goes forward and back and adds the gradient up, `n_steps` times, without
    /// reading anything of it back in between; then takes the mean gradient, and returns the loss.
    ///
    /// # Errors
    /// A device that failed.
    pub async fn steps(&mut self, n_steps: u32) -> Result<f32, ModelError> {
        for _ in 0..n_steps {
            match &self.samples {
                Samples::Images(batch) => self.trainer.accumulate(batch).await?,
                Samples::Tokens(ids) => self.trainer.accumulate_tokens(ids, DRAW).await?,
            }
        }
        Ok(self.trainer.take_mean_gradient().await?.map_or(f32::NAN, |mean| mean.loss))
    }
}

impl Workload {
    #[cfg(target_arch = "wasm32")]
    fn divided(mut self, model: &str, n_threads: usize) -> Result<Self, WorkloadError> {
        let case = Case::new(model)?;
        let others = n_threads.saturating_sub(1);
        if let Some(start) = barnraise_peer::start_replicas(&case.spec, case.data, others) {
            self.trainer = self.trainer.with_replicas(&case.spec, start);
        }
        Ok(self)
    }

    /// Natively threads are the engine's.
    #[cfg(not(target_arch = "wasm32"))]
    fn divided(self, _model: &str, _n_threads: usize) -> Result<Self, WorkloadError> {
        Ok(self)
    }
}

#[wasm_bindgen]
impl Workload {
    /// [`Workload::new`] for JavaScript. On the processor `cpu, threads: 2` computes on two.
    pub async fn open(device: String, model: String) -> Result<Workload, JsError> {
        let (device, n_threads) = match device.split_once(", threads: ") {
            Some((device, n_threads)) => (device, n_threads.parse().unwrap_or(1)),
            None => (device.as_str(), 1),
        };
        let workload = Self::new(device, &model).await.map_err(|error| JsError::new(&error.to_string()))?;
        workload.divided(&model, n_threads).map_err(|error| JsError::new(&error.to_string()))
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
        assert_eq!(Case::new("lenet").unwrap().spec.graph, Preset::LeNet.graph());
        for (name, n_parameters) in [
            ("mlp-256", 269_322),
            ("gpt-0.4", 372_576),
            ("gpt-0.8", 842_496),
            ("gpt-2.7", 2_743_296),
            ("gpt-6.4", 6_416_896),
        ] {
            let (layout, values) = Case::new(name).unwrap().initial_parameters().unwrap();
            assert_eq!((layout.n_parameters(), values.len()), (n_parameters, n_parameters), "{name}");
        }
        for wrong in ["", "mlp", "mlp-", "mlp-x", "LeNet", "gpt-7"] {
            assert!(Case::new(wrong).unwrap_err().to_string().contains(&format!("{wrong:?}")));
        }
    }
}
