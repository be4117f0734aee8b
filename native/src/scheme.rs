//! The schemes that keep parameters in step, a folder for each: drivers on the host.

pub(crate) mod sampled;
pub mod synchronous;
