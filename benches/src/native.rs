//! Our step in native processes: one thread beside two.

use anyhow::Result;

use crate::contender::{Contender, compare as contest};
use crate::step_task::StepTask;

/// `native`: one thread beside two.
pub(crate) async fn compare(n_rounds: usize, n_samples: usize) -> Result<()> {
    for model in ["lenet", "mlp-256"] {
        let contenders = [Contender::Native { n_threads: 2 }, Contender::Native { n_threads: 1 }];
        contest(None, &contenders, StepTask { model, n_samples, n_rounds }).await?;
    }
    Ok(())
}
