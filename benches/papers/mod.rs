//! The experiments of the papers, each with one command, a table and a picture.

pub(crate) mod dedloc;
mod plot;
