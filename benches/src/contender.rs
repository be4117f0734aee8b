//! Contenders that compute the workload's step, and rounds that measure each of them once, in turn.

use anyhow::{Context, Result, ensure};
use barnraise_bench_peer::Case;

use crate::lab::Lab;
use crate::native_steps;
use crate::ratio::{Spread, ratios, short, table};
use crate::step_task::{ContenderAnswer, StepTask};
use crate::torch;

/// How long a measurement is meant to take: many quick steps, few slow ones.
const MEASUREMENT_MS: f64 = 1500.0;
/// Steps of a measurement at least and at most.
const STEPS: (f64, f64) = (3.0, 500.0);
/// Steps before anything counts: kernels are compiled, buffers allocated.
const WARM_UP_STEPS: u32 = 2;
/// How far the losses of two contenders may lie apart and still be those of the same step. A wrong
/// layer differs in the first digit.
const LOSS_TOLERANCE: f64 = 1e-3;

/// An implementation of the step, and its device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Contender {
    /// Our step in a worker of a tab: `cpu` or `wgpu`.
    Tab(&'static str),
    /// The same in TF.js: `wasm`, `cpu` or `webgpu`.
    TfJs(&'static str),
    /// Our step in a process with so many threads.
    Native { n_threads: usize },
    /// The same in PyTorch.
    Torch { n_threads: usize },
}

impl Contender {
    fn name(self) -> String {
        match self {
            Self::Tab(device) => format!("Barnraise in the tab, {device}"),
            Self::TfJs(backend) => format!("TF.js in the tab, {backend}"),
            Self::Native { n_threads } => format!("Barnraise natively, threads: {n_threads}"),
            Self::Torch { n_threads } => format!("PyTorch, threads: {n_threads}"),
        }
    }
}

struct ContenderResult {
    contender: Contender,
    n_steps: u32,
    device: String,
    loss: f64,
    ms_per_step: Vec<f64>,
}

/// Measures all contenders in turn, round after round, and prints how much faster the first one is.
/// `lab` is needed for those in the tab.
pub(crate) async fn compare(
    lab: Option<&mut Lab>,
    contenders: &[Contender],
    task: StepTask<'_>,
) -> Result<()> {
    let mut lab = lab;
    let mut entrants = Vec::new();
    for &contender in contenders {
        entrants.push(warm_up(lab.as_deref_mut(), contender, task).await?);
    }
    check_losses(&entrants)?;
    for _ in 0..task.n_rounds {
        for entrant in &mut entrants {
            let answer = measure(lab.as_deref_mut(), entrant.contender, task, entrant.n_steps).await?;
            entrant.ms_per_step.push(answer.ms_per_step);
        }
    }
    print(&entrants, task, Case::new(task.model)?.n_samples);
    Ok(())
}

async fn warm_up(
    mut lab: Option<&mut Lab>,
    contender: Contender,
    task: StepTask<'_>,
) -> Result<ContenderResult> {
    let first = measure(lab.as_deref_mut(), contender, task, WARM_UP_STEPS).await?;
    // The first steps include the compiler; these do not.
    let second = measure(lab, contender, task, WARM_UP_STEPS).await?;
    let n_steps = (MEASUREMENT_MS / second.ms_per_step).clamp(STEPS.0, STEPS.1) as u32;
    Ok(ContenderResult {
        contender,
        n_steps,
        device: first.device,
        loss: first.loss,
        ms_per_step: Vec::new(),
    })
}

async fn measure(
    lab: Option<&mut Lab>,
    contender: Contender,
    task: StepTask<'_>,
    n_steps: u32,
) -> Result<ContenderAnswer> {
    let answer = match contender {
        Contender::Native { n_threads } => native_steps::measure(n_threads, task, n_steps).await,
        Contender::Torch { n_threads } => torch::measure(n_threads, task.model, n_steps).await,
        Contender::Tab(device) => {
            lab.context("there is no tab")?.measure("barnraise", device, task, n_steps).await
        }
        Contender::TfJs(device) => {
            lab.context("there is no tab")?.measure("tfjs", device, task, n_steps).await
        }
    };
    answer.with_context(|| format!("{}, {}", contender.name(), task.model))
}

/// Fails where a contender reports another loss: it computes another step, and its time cannot be compared.
fn check_losses(entrants: &[ContenderResult]) -> Result<()> {
    let Some(first) = entrants.first() else { return Ok(()) };
    for entrant in entrants {
        let deviation = (entrant.loss - first.loss).abs();
        ensure!(
            deviation <= LOSS_TOLERANCE * first.loss.abs(),
            "not the same step: the loss is {} for {} and {} for {}",
            first.loss,
            first.contender.name(),
            entrant.loss,
            entrant.contender.name(),
        );
    }
    Ok(())
}

fn print(entrants: &[ContenderResult], task: StepTask<'_>, n_samples: usize) {
    let Some(first) = entrants.first() else { return };
    println!(
        "\n{}, batch {}, {} rounds in turn; median [min to max]\n",
        task.model, n_samples, task.n_rounds
    );
    let heading = ["", "computes on", "loss", "ms per step", "samples/s", "time, the first one's being 1"];
    let mut rows = vec![heading.map(String::from).to_vec()];
    for entrant in entrants {
        let time = Spread::of(&entrant.ms_per_step);
        rows.push(vec![
            entrant.contender.name(),
            entrant.device.clone(),
            format!("{:.5}", entrant.loss),
            time.to_string(),
            short(1000.0 * n_samples as f64 / time.median),
            ratios(&first.ms_per_step, &entrant.ms_per_step).to_string(),
        ]);
    }
    println!("{}", table(&rows));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entrant(loss: f64) -> ContenderResult {
        let contender = Contender::Native { n_threads: 1 };
        ContenderResult { contender, n_steps: 1, device: String::new(), loss, ms_per_step: vec![1.0] }
    }

    #[test]
    fn another_loss_is_another_step() {
        assert!(check_losses(&[entrant(2.3), entrant(2.3001)]).is_ok());
        assert!(check_losses(&[entrant(2.3), entrant(2.4)]).is_err());
        assert!(check_losses(&[entrant(2.3), entrant(f64::NAN)]).is_err());
    }
}
