//! Experts on other people's machines, as a trainer and a host see them (Learning@home §3).
//!
//! - [`serving`]: a host batches what trainers ask of its experts, and says when it is too much.
//! - [`calls`]: a trainer has the experts of a layer compute, and goes on without those that do not answer.
//!
//! Nothing here computes, keeps a tensor, or does I/O.

pub mod calls;
pub mod serving;

/// What an expert is asked for (Learning@home §3.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ExpertPass {
    /// The output of its input rows. It has no side effect.
    Forward,
    /// The gradient by the input rows, from that by the output; the expert steps by the gradient of its parameters.
    Backward,
}
