//! What the tasks of a node run on: it computes, or stands still.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use super::{Sleep, VirtualNetwork};
use crate::Moment;

#[derive(Default)]
struct CpuState {
    stopped_until: Moment,
    /// Tasks that stand still.
    waiting: Vec<Waker>,
}

/// A processor, whose tasks stand still while it is stopped or busy. Its clones are the same processor.
#[derive(Clone)]
pub struct Cpu {
    network: VirtualNetwork,
    state: Arc<Mutex<CpuState>>,
}

impl Cpu {
    /// A processor that runs.
    pub fn new(network: &VirtualNetwork) -> Self {
        Self { network: network.clone(), state: Arc::default() }
    }

    /// A task of this processor.
    pub fn run<F: Future>(&self, task: F) -> CpuTask<F> {
        CpuTask { cpu: self.clone(), task: Box::pin(task), sleep: None }
    }

    /// Until when it is stopped; not after now where it runs.
    pub fn stopped_until(&self) -> Moment {
        self.with(|state| state.stopped_until)
    }

    /// Stops until then at least. Within a task: it computes until then.
    pub fn stop_until(&self, at: Moment) {
        self.with(|state| state.stopped_until = state.stopped_until.max(at));
    }

    /// Goes on then, if not before.
    pub fn go_on_at(&self, at: Moment) {
        let waiting = self.with(|state| {
            state.stopped_until = state.stopped_until.min(at);
            std::mem::take(&mut state.waiting)
        });
        waiting.into_iter().for_each(Waker::wake);
    }

    fn with<T>(&self, act: impl FnOnce(&mut CpuState) -> T) -> T {
        act(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A task that is not polled while its processor is stopped.
pub struct CpuTask<F> {
    cpu: Cpu,
    task: Pin<Box<F>>,
    sleep: Option<Sleep>,
}

impl<F: Future> Future for CpuTask<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        loop {
            let until = self.cpu.stopped_until();
            if until <= self.cpu.network.now() {
                self.sleep = None;
                let polled = self.task.as_mut().poll(context);
                // The poll itself may have stopped it.
                if polled.is_ready() || self.cpu.stopped_until() <= self.cpu.network.now() {
                    return polled;
                }
                continue;
            }
            self.cpu.with(|state| {
                if !state.waiting.iter().any(|waker| waker.will_wake(context.waker())) {
                    state.waiting.push(context.waker().clone());
                }
            });
            let mut sleep = self.cpu.network.sleep_until(until);
            if Pin::new(&mut sleep).poll(context).is_pending() {
                self.sleep = Some(sleep);
                return Poll::Pending;
            }
        }
    }
}
