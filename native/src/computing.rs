//! Computing beside the async threads, which have to answer: steps, hashes and encodings of large models.
//!
//! What takes less than a millisecond is computed at once. So nothing about a small model depends on threads, and the
//! simulations of one are the same each time.

use std::sync::Arc;

use tracing::Span;

/// Bytes that are computed with at once.
pub const AT_ONCE_BYTES_MAX: usize = 64 * 1024;

/// Computes on a thread for it, or at once where it is about no more than [`AT_ONCE_BYTES_MAX`]. A panic goes on to the
/// caller.
///
/// Work that has begun goes on to its end, also where the caller stops waiting for it.
pub async fn compute<T: Send + 'static>(n_bytes: usize, work: impl FnOnce() -> T + Send + 'static) -> T {
    if n_bytes <= AT_ONCE_BYTES_MAX {
        return work();
    }
    let span = Span::current();
    match tokio::task::spawn_blocking(move || span.in_scope(work)).await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime ends, and with it the task that waits here.
            Err(_) => std::future::pending().await,
        },
    }
}

/// Models from this size on leave so much freed memory behind that it goes back to the system.
const GIVEN_BACK_PARAMETERS_MIN: usize = 1 << 20;

/// Whether work on all of a model frees so much that it is worth giving back ([`barnraise_relay::memory::give_back`]).
pub fn frees_much(n_parameters: usize) -> bool {
    n_parameters >= GIVEN_BACK_PARAMETERS_MIN
}

/// Parameters as little-endian bytes, which they are in memory.
#[derive(Debug, Clone)]
pub struct ParameterBytes(pub Arc<Vec<f32>>);

const _: () = assert!(cfg!(target_endian = "little"), "parameters are sent and stored as they are in memory");

impl AsRef<[u8]> for ParameterBytes {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]

    use super::*;

    #[tokio::test]
    async fn what_is_large_leaves_the_thread_and_what_is_small_stays() {
        let here = std::thread::current().id();
        let thread = || std::thread::current().id();
        assert_eq!(compute(AT_ONCE_BYTES_MAX, thread).await, here);
        assert_ne!(compute(AT_ONCE_BYTES_MAX + 1, thread).await, here);
    }

    #[tokio::test]
    async fn a_panic_is_that_of_who_asked() {
        let asked = tokio::spawn(compute(AT_ONCE_BYTES_MAX + 1, || panic!("gone")));
        let panic = asked.await.unwrap_err().into_panic();
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"gone"));
    }
}
