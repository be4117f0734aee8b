//! The adapters of a run as PEFT has them, beside the whole model that they make: `PeftModel.from_pretrained(base, folder)`
//! puts them on the model that the run began with. Pure.

use std::collections::BTreeMap;

use barnraise_learning::ParameterLayout;
use barnraise_learning::tensor_file::{self, TensorFileError};
use barnraise_protocol::run::RunDescription;
use barnraise_protocol::run::model::presets::{Gpt, GptFamily};
use serde_json::json;

use super::architecture::Architecture;
use super::field::transposed;

/// Before the name of each tensor.
const PREFIX: &str = "base_model.model.";

/// Files of the adapters, in a folder of their own: a model of `transformers` with them beside it would load both.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct AdapterFiles {
    /// `adapter_config.json`
    pub(super) config: serde_json::Value,
    /// `adapter_model.safetensors`
    pub(super) tensors: Vec<u8>,
}

impl AdapterFiles {
    /// Of a run's flat parameters. `None` where it has no adapters, trains more than them, or where PEFT has no such model.
    ///
    /// # Errors
    /// Does not happen.
    pub(super) fn of(
        run: &RunDescription,
        layout: &ParameterLayout,
        parameters: &[f32],
    ) -> Result<Option<Self>, TensorFileError> {
        let Some(adapters) = run.model.weights.adapters() else { return Ok(None) };
        let Some(Architecture::Gpt(Gpt { family, experts: None, .. })) = Architecture::of(&run.model.graph)
        else {
            return Ok(None);
        };
        if !adapters.trained.is_empty() {
            return Ok(None);
        }
        let (mut tensors, mut values) = (Vec::new(), Vec::new());
        for segment in layout.segments() {
            let &[rows, columns] = &segment.shape[..] else { return Ok(None) };
            let own = &parameters[segment.range()];
            // Linear layers of PyTorch.
            tensors.push((format!("{PREFIX}{}", segment.name), vec![columns, rows]));
            values.extend(transposed(own, [rows, columns]));
        }
        let notes: BTreeMap<_, _> = [("format".to_owned(), "pt".to_owned())].into();
        let mut bytes = tensor_file::header(&ParameterLayout::of_tensors(tensors), &notes)?;
        bytes.extend(tensor_file::value_bytes(&values));
        let config = json!({
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": null,
            "r": adapters.rank,
            "lora_alpha": adapters.alpha,
            "target_modules": adapters.targets,
            "lora_dropout": 0.0,
            "bias": "none",
            // GPT-2's layers have their weights the other way round.
            "fan_in_fan_out": family == GptFamily::Gpt2,
            "inference_mode": true,
        });
        Ok(Some(Self { config, tensors: bytes }))
    }
}
