//! Our step in native processes: beside PyTorch with as many threads, and with one thread.

use anyhow::Result;

use crate::contender::{Contender, compare as contest};
use crate::step_task::StepTask;

/// Threads of the first contenders.
const N_THREADS: usize = 2;

/// `native`
pub(crate) async fn compare(n_rounds: usize, models: &[String]) -> Result<()> {
    for model in models {
        let mut contenders =
            vec![Contender::Native { n_threads: N_THREADS }, Contender::Native { n_threads: 1 }];
        // Their step is not written down for the small ones.
        if !(model == "lenet" || model.starts_with("mlp-")) {
            contenders.insert(1, Contender::Torch { n_threads: N_THREADS });
        }
        contest(None, &contenders, StepTask { model, n_rounds }).await?;
    }
    Ok(())
}
