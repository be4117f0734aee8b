//! The experiments of the papers, each with one command.

pub(crate) mod dedloc;
mod fluid;
