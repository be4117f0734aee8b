//! The experiments of the papers, each with one command, a table and a picture.

pub(crate) mod dedloc;
pub(crate) mod learning_at_home;
pub(crate) mod modest;
mod plot;
