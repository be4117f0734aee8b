//! Our step in a tab beside TF.js in the same tab, and beside our own native step.

use anyhow::Result;
use clap::ValueEnum;

use crate::TabArgs;
use crate::contender::{Contender, compare as contest};
use crate::lab::Lab;
use crate::step_task::StepTask;

/// What a tab computes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Device {
    /// The processor, in wasm.
    Cpu,
    /// WebGPU.
    Webgpu,
}

/// `tab`
pub(crate) async fn compare(args: &TabArgs) -> Result<()> {
    let mut lab = Lab::open().await?;
    for &device in &args.only {
        for model in &args.models {
            let task = StepTask { model, n_rounds: args.rounds };
            contest(Some(&mut lab), &contenders(device, model), task).await?;
        }
    }
    Ok(())
}

/// In TF.js only the small models are written down; its wasm backend has no gradient of a convolution, so its CPU backend stands in.
fn contenders(device: Device, model: &str) -> Vec<Contender> {
    let native = Contender::Native { n_threads: 1 };
    let (tab, of_two) = (Contender::Tab("cpu"), Contender::Tab("cpu, threads: 2"));
    let is_of_tfjs = model == "lenet" || model.starts_with("mlp-");
    match device {
        Device::Cpu if model == "lenet" => vec![tab, of_two, Contender::TfJs("cpu"), native],
        Device::Cpu if is_of_tfjs => {
            vec![tab, of_two, Contender::TfJs("wasm"), Contender::TfJs("cpu"), native]
        }
        Device::Cpu => vec![tab, of_two, native],
        Device::Webgpu if is_of_tfjs => {
            vec![Contender::Tab("wgpu"), Contender::TfJs("webgpu"), tab]
        }
        Device::Webgpu => vec![Contender::Tab("wgpu"), tab],
    }
}
