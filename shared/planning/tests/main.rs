//! Plans against what is best. One program: to link one for each
//! file took longer than to run them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod groups;
mod programs;
mod roles;
mod support;
