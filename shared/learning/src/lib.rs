//! A training step: models, losses, optimizers, batches, flat gradients.
//!
//! The same code computes gradients in a browser tab and natively, on the CPU, WebGPU or CUDA. It
//! opens no socket, reads no clock, draws no entropy and spawns nothing: seeds are arguments.

#[cfg(test)]
mod adapters_tests;
pub mod conformance;
pub mod device;
pub mod error;
pub mod experts;
pub mod frozen;
#[cfg(test)]
mod fuzz;
pub mod graph;
pub mod hosted;
pub mod local;
pub mod neighbours;
pub mod optimizer;
pub mod replicas;
pub mod schedule;
pub mod tensor_file;
pub mod tokenizer;
pub mod trainer;

mod augmentation;
mod batch;
mod continuation;
mod crops;
mod data_shape;
mod engine;
mod masking;
mod memory;
mod merge;
mod model;
mod parameters;
mod platform;
mod random;
mod scaling;
mod statistics;

pub use augmentation::{AugmentationError, check as check_augmentation};
pub use batch::{Batch, PIXEL_MEAN, PIXEL_STD};
pub use continuation::Continuation;
pub use data_shape::{DataShape, RowTarget};
pub use device::{ComputeDevice, DeviceChoice, DeviceError, Precision, open_device};
pub use error::{FrozenError, ModelError};
pub use frozen::FrozenWeights;
pub use local::{LocalSteps, LocalStepsError};
pub use masking::{EVALUATION_DRAW, MASKED_SHARE, MaskedTokens, masked_per_sequence};
pub use memory::MemoryEstimate;
pub use merge::merged;
pub use optimizer::{Optimizer, OptimizerError, OptimizerSpec, OptimizerState};
pub use parameters::{Initialization, ParameterLayout, ParameterSegment};
pub use schedule::{Decay, ScheduleError, ScheduleSpec};
pub use trainer::{Evaluation, MeanGradient, Trainer};
