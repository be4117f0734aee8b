//! The step in PyTorch, in a process of its own: it is given our parameters and our batch in files.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use barnraise_bench_peer::{Case, Samples};
use barnraise_learning::DataShape;
use serde_json::{Value, json};
use tokio::process::Command;

use crate::lab::{f32_bytes, normalized};
use crate::python;
use crate::step_task::ContenderAnswer;

/// Measures steps with so many threads.
pub(crate) async fn measure(n_threads: usize, model: &str, n_steps: u32) -> Result<ContenderAnswer> {
    let python = tokio::task::spawn_blocking(|| python::environment(&python::TORCH)).await??;
    let folder = tempfile::tempdir()?;
    write(&Case::new(model)?, folder.path())?;
    let script = folder.path().join("torch_steps.py");
    std::fs::write(&script, include_str!("../torch_steps.py"))?;
    let mut command = Command::new(python);
    command.arg(script).arg(folder.path()).args([n_steps.to_string(), n_threads.to_string()]);
    command.env("OMP_NUM_THREADS", n_threads.to_string()).kill_on_drop(true);
    let output = command.output().await?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).context("no measurement in the output")
}

/// `case.json`, the parameters, and the batch.
fn write(case: &Case, folder: &Path) -> Result<()> {
    let (layout, parameters) = case.initial_parameters()?;
    let segments: BTreeMap<&str, (usize, &[usize])> = layout
        .segments()
        .iter()
        .map(|segment| (segment.name.as_str(), (segment.offset, segment.shape.as_slice())))
        .collect();
    let file = json!({
        "segments": segments,
        "n_samples": case.n_samples,
        "model": case.preset,
        "data": data(case),
    });
    std::fs::write(folder.join("case.json"), file.to_string())?;
    std::fs::write(folder.join("parameters"), f32_bytes(parameters))?;
    let i32_bytes = |values: &mut dyn Iterator<Item = u32>| -> Vec<u8> {
        values.flat_map(|value| value.cast_signed().to_le_bytes()).collect()
    };
    let (inputs, targets) = match &case.samples {
        Samples::Images(batch) => {
            let targets = i32_bytes(&mut batch.labels.iter().map(|&label| label.into()));
            (f32_bytes(normalized(&batch.images)), targets)
        }
        Samples::Tokens(ids) => match case.masked(ids) {
            Some(masked) => {
                let positions = i32_bytes(&mut masked.positions.iter().copied());
                std::fs::write(folder.join("positions"), positions)?;
                let targets = i32_bytes(&mut masked.targets.iter().copied());
                (i32_bytes(&mut masked.inputs.iter().copied()), targets)
            }
            None => (i32_bytes(&mut ids.iter().copied()), Vec::new()),
        },
    };
    std::fs::write(folder.join("inputs"), inputs)?;
    std::fs::write(folder.join("targets"), targets)?;
    Ok(())
}

fn data(case: &Case) -> Value {
    match case.data {
        DataShape::Tokens(shape) => json!({ "length": shape.length, "vocabulary": shape.vocabulary }),
        DataShape::Images { shape, n_classes } => json!({ "side": shape.height, "classes": n_classes }),
        DataShape::Rows { .. } | DataShape::Ratings(_) => Value::Null,
    }
}
