//! `barnraise devices`: what this machine can compute on, and whether it computes there what its processor does.

use anyhow::bail;
use barnraise_learning::conformance::{self, CheckOutcome};
use barnraise_learning::{DeviceChoice, DeviceError, Precision, open_device};
use clap::Args;

use crate::config::Device;
use crate::text_table::columns;

const PRECISIONS: [Precision; 3] = [Precision::Single, Precision::F16, Precision::Bf16];

/// `barnraise devices`
#[derive(Debug, Args)]
pub struct DevicesArgs {
    /// Only these
    #[arg(value_name = "DEVICE", default_values = ["cpu", "wgpu", "cuda"])]
    pub devices: Vec<Device>,
}

/// Checks each device in each precision with every architecture, against the processor in single precision. `say` hears
/// what is going on.
///
/// # Errors
/// A result that is further from the processor's than rounding explains, or a device that failed; devices that are not there
/// are none.
pub async fn check(args: &DevicesArgs, say: impl Fn(&str)) -> anyhow::Result<String> {
    let mut rows = Vec::new();
    let mut failed = Vec::new();
    for &choice in &args.devices {
        let choice = DeviceChoice::from(choice);
        let device = match open_device(choice).await {
            Ok(device) => device,
            Err(
                error @ (DeviceError::NoAdapter(_) | DeviceError::NotBuilt(_) | DeviceError::Open { .. }),
            ) => {
                say(&format!("{choice}: {error}"));
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        for precision in PRECISIONS {
            let device = match device.clone().with_precision(precision) {
                Ok(device) => device,
                Err(error) => {
                    say(&format!("{choice}: {error}"));
                    continue;
                }
            };
            say(&format!("{choice}: checking {} in {precision}", device.name()));
            let outcomes = conformance::run(&device).await?;
            let of = |outcome: &CheckOutcome| {
                let CheckOutcome { name, deviation, tolerance } = outcome;
                format!("{choice} in {precision}, {name}: {deviation:.1e} where {tolerance:.1e} is allowed")
            };
            failed.extend(outcomes.iter().filter(|outcome| !outcome.passed()).map(of));
            rows.extend(by_model(&outcomes).into_iter().map(|row| {
                let mut cells = vec![choice.to_string(), precision.to_string()];
                cells.extend(row);
                cells
            }));
        }
    }
    let table = columns(&["device", "precision", "model", "checks", "largest deviation", "allowed"], &rows);
    if !failed.is_empty() {
        bail!("{table}\nnot what the processor computes:\n{}", failed.join("\n"));
    }
    Ok(table)
}

/// For each model how many checks passed, and the deviation that came nearest to what is allowed.
fn by_model(outcomes: &[CheckOutcome]) -> Vec<[String; 4]> {
    let model = |outcome: &CheckOutcome| outcome.name.split(": ").next().unwrap_or_default().to_owned();
    let groups = outcomes.chunk_by(|a, b| model(a) == model(b));
    let row = |group: &[CheckOutcome]| {
        let share = |outcome: &CheckOutcome| outcome.deviation / outcome.tolerance;
        let worst = group.iter().max_by(|a, b| share(a).total_cmp(&share(b)))?;
        let n_passed = group.iter().filter(|outcome| outcome.passed()).count();
        let checks = format!("{n_passed} of {}", group.len());
        Some([model(worst), checks, format!("{:.1e}", worst.deviation), format!("{:.1e}", worst.tolerance)])
    };
    groups.filter_map(row).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use std::cell::RefCell;

    use super::*;

    #[test]
    fn what_is_nearest_to_what_is_allowed_is_shown() {
        let outcome =
            |name: &str, deviation, tolerance| CheckOutcome { name: name.into(), deviation, tolerance };
        let rows = by_model(&[
            outcome("MLP: loss", 1e-4, 1e-3),
            outcome("MLP: gradient", 5e-3, 2e-2),
            outcome("ViT: gradient", f32::NAN, 1e-3),
        ]);
        assert_eq!(rows[0], ["MLP", "2 of 2", "5.0e-3", "2.0e-2"]);
        assert_eq!(rows[1][..2], ["ViT", "0 of 1"]);
    }

    #[tokio::test]
    async fn the_processor_computes_what_it_does_and_what_is_not_built_is_said() {
        let said = RefCell::new(Vec::new());
        let args = DevicesArgs { devices: vec![Device::Cpu, Device::Cuda] };
        let table = check(&args, |line| said.borrow_mut().push(line.to_owned())).await.unwrap();
        let lines: Vec<&str> = table.lines().collect();
        assert!(lines[0].starts_with("device  precision  model"), "{table}");
        for (precision, model) in [("f32", "GPT-2"), ("f16", "ResNet-18"), ("bf16", "Matrix factorization")] {
            let is_it = |line: &&str| line.contains(precision) && line.contains(model);
            assert!(lines.iter().any(is_it), "{model} in {precision}: {table}");
        }
        let said = said.into_inner();
        assert_eq!(said[..3].iter().filter(|line| line.starts_with("cpu: checking CPU in")).count(), 3);
        assert!(cfg!(feature = "cuda") || said[3].contains("`cuda`"), "{said:?}");
    }
}
