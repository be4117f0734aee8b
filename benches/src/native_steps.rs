//! Our step in a native process. A process of its own for each measurement, because the number of
//! threads is fixed when the first one starts.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use barnraise_bench_peer::Workload;
use clap::Args;
use tokio::process::Command;

use crate::step_task::{ContenderAnswer, StepTask};

/// Steps before the clock starts: a new process has cold caches.
const WARM_UP_STEPS: u32 = 5;

#[derive(Debug, Args)]
pub(crate) struct StepsArgs {
    model: String,
    n_steps: u32,
}

/// Runs this program again, as [`steps`].
pub(crate) async fn measure(n_threads: usize, task: StepTask<'_>, n_steps: u32) -> Result<ContenderAnswer> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["native-steps", task.model, &n_steps.to_string()]);
    command.env("RAYON_NUM_THREADS", n_threads.to_string()).kill_on_drop(true);
    let output = command.output().await?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).context("no measurement in the output")
}

/// `native-steps`: measures, and prints an [`ContenderAnswer`].
pub(crate) fn steps(args: &StepsArgs) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let answer = runtime.block_on(async {
        let mut workload = Workload::new("cpu", &args.model).await?;
        workload.steps(WARM_UP_STEPS).await?;
        let from = Instant::now();
        let loss = workload.steps(args.n_steps).await?;
        let ms_per_step = from.elapsed().as_secs_f64() * 1000.0 / f64::from(args.n_steps);
        anyhow::Ok(ContenderAnswer { ms_per_step, loss: loss.into(), device: workload.device_name() })
    })?;
    println!("{}", serde_json::to_string(&answer)?);
    Ok(())
}
