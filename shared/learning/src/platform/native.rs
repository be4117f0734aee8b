//! A native process: the graphics backend reports a missing adapter itself.

#[cfg(feature = "wgpu")]
use burn::tensor::wgpu::wgpu;
use rayon::prelude::*;

/// Gives each part of `values` to `f`, with where it begins, on as many threads as there are.
pub(crate) fn on_chunks<R: Send>(
    values: &mut [f32],
    len: usize,
    f: impl Fn(usize, &mut [f32]) -> R + Sync,
) -> Vec<R> {
    let chunks = values.par_chunks_mut(len.max(1)).enumerate();
    chunks.map(|(index, chunk)| f(index * len, chunk)).collect()
}

/// Gives each of the parts to `f`, on as many threads as there are. Returns what it made of them, in their order.
pub(crate) fn on_each<T: Send, R: Send>(parts: Vec<T>, f: impl Fn(T) -> R + Send + Sync) -> Vec<R> {
    parts.into_par_iter().map(f).collect()
}

/// Nothing: the loader ran them.
pub(crate) fn run_constructors() {}

/// Nothing to ask before the backend does, which names the adapter too.
#[cfg(feature = "wgpu")]
pub(crate) async fn check_adapter() -> Result<String, std::convert::Infallible> {
    Ok(String::new())
}

/// A panic of a driver's wrapper, with its message.
#[cfg(feature = "cuda")]
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct BackendPanic(String);

/// Runs `open`, and catches a panic of a driver's wrapper.
#[cfg(feature = "cuda")]
pub(crate) fn catch_panic<T>(open: impl FnOnce() -> T + std::panic::UnwindSafe) -> Result<T, BackendPanic> {
    std::panic::catch_unwind(open).map_err(|payload| match payload.downcast::<String>() {
        Ok(message) => BackendPanic(*message),
        Err(payload) => BackendPanic(match payload.downcast::<&str>() {
            Ok(message) => (*message).to_owned(),
            Err(_) => "the backend stopped without a message".to_owned(),
        }),
    })
}

/// Blocks until a submission is done and its callbacks have run.
#[cfg(feature = "wgpu")]
pub(crate) fn finish(
    device: &wgpu::Device,
    submission: wgpu::SubmissionIndex,
) -> Result<(), wgpu::PollError> {
    device.poll(wgpu::PollType::Wait { submission_index: Some(submission), timeout: None }).map(|_| ())
}
