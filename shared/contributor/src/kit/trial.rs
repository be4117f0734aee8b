//! Finds out whether the graphics adapter or the CPU is faster for a run: an adapter may be emulated in software on
//! the CPU itself.
//!
//! Times a few steps of the run's own model on both devices and discards the results: first on the CPU, then on the
//! adapter, which has at most the CPU's time. It never changes a parameter.

use std::time::Duration;

use barnraise_learning::{ModelError, Trainer};
use barnraise_protocol::dataset::Samples;
use barnraise_swarm::Moment;

use super::compute::{ComputeOutcome, ComputeResult, TrialVerdict};
use crate::platform::Platform;
use crate::race::before;

/// Steps that are timed, after one that is not.
const STEPS_MAX: u32 = 8;
/// No further step begins on the CPU after this: in a tab it holds the only thread.
const PROCESSOR_TIME_MAX: Duration = Duration::from_millis(300);
/// Longest first step of the adapter, in which it compiles its kernels.
const WARM_UP_MAX: Duration = Duration::from_secs(3);

/// Steps on the CPU, and their time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct CpuTiming {
    n_steps: u32,
    took: Moment,
}

impl CpuTiming {
    /// Whether these are enough steps for a comparison.
    fn is_known(self) -> bool {
        self.n_steps >= STEPS_MAX || (self.n_steps > 0 && self.took >= PROCESSOR_TIME_MAX)
    }

    /// Compares with the adapter's time for as many steps; `None` if it exceeded the CPU's time,
    /// or did not warm up in [`WARM_UP_MAX`].
    fn verdict(self, adapter: Option<Moment>) -> TrialVerdict {
        match adapter {
            Some(took) if took <= self.took => TrialVerdict::Keep,
            _ => TrialVerdict::Slower,
        }
    }
}

/// Times both trainers on a batch of the run's size. Returns the faster one, without a gradient; the other one is
/// dropped.
pub(crate) async fn trial<P: Platform>(
    platform: &P,
    mut adapter: Trainer,
    mut processor: Trainer,
    batch: Samples,
) -> ComputeOutcome {
    let result = compare(platform, &mut adapter, &mut processor, &batch).await;
    let mut trainer = if matches!(result, Ok(TrialVerdict::Slower)) { processor } else { adapter };
    trainer.discard_warmup();
    ComputeOutcome { trainer, done: ComputeResult::Trial { result } }
}

async fn compare<P: Platform>(
    platform: &P,
    adapter: &mut Trainer,
    processor: &mut Trainer,
    batch: &Samples,
) -> Result<TrialVerdict, ModelError> {
    processor.accumulate_samples(batch, 0).await?;
    let mut pace = CpuTiming::default();
    while !pace.is_known() {
        platform.yield_now().await;
        let began = platform.now();
        processor.accumulate_samples(batch, 0).await?;
        pace =
            CpuTiming { n_steps: pace.n_steps + 1, took: pace.took + platform.now().saturating_sub(began) };
    }
    processor.take_mean_gradient().await?;
    // Taking the gradient waits for all queued passes.
    if within(platform, WARM_UP_MAX, steps(adapter, batch, 1)).await.transpose()?.is_none() {
        return Ok(pace.verdict(None));
    }
    let began = platform.now();
    let done = within(platform, pace.took, steps(adapter, batch, pace.n_steps)).await.transpose()?;
    Ok(pace.verdict(done.map(|()| platform.now().saturating_sub(began))))
}

async fn steps(trainer: &mut Trainer, batch: &Samples, n_steps: u32) -> Result<(), ModelError> {
    for _ in 0..n_steps {
        trainer.accumulate_samples(batch, 0).await?;
    }
    trainer.take_mean_gradient().await.map(drop)
}

/// Runs `work` with a time limit.
async fn within<P: Platform, T>(platform: &P, limit: Moment, work: impl Future<Output = T>) -> Option<T> {
    before(platform.sleep_until(platform.now() + limit), work).await
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn an_adapter_must_be_done_in_the_time_of_the_processor() {
        let pace = CpuTiming { n_steps: 8, took: 80 * MS };
        assert_eq!(pace.verdict(Some(20 * MS)), TrialVerdict::Keep);
        assert_eq!(pace.verdict(Some(80 * MS)), TrialVerdict::Keep);
        assert_eq!(pace.verdict(Some(81 * MS)), TrialVerdict::Slower);
        assert_eq!(pace.verdict(None), TrialVerdict::Slower);
    }

    #[test]
    fn a_slow_processor_is_timed_for_few_steps_and_at_least_one() {
        assert!(!CpuTiming::default().is_known());
        assert!(!CpuTiming { n_steps: STEPS_MAX - 1, took: 10 * MS }.is_known());
        assert!(CpuTiming { n_steps: STEPS_MAX, took: 10 * MS }.is_known());
        assert!(CpuTiming { n_steps: 1, took: PROCESSOR_TIME_MAX }.is_known());
    }
}
