//! Shared parts of the integration tests: real processes and real browsers, ended when dropped.

pub mod accessibility;
pub mod artifacts;
pub mod attack;
pub mod background;
pub mod bare;
pub mod browser;
pub mod byte_limit_proxy;
pub mod client;
pub mod hosted;
pub mod kills;
pub mod lan;
pub mod load;
pub mod npm;
pub mod open_run;
pub mod pause;
pub mod postgres;
pub mod process;
pub mod processors;
pub mod provider;
pub mod pypi;
pub mod s3;
pub mod sentences;
pub mod source_proxy;
pub mod tables;
pub mod verdict;
pub mod visitor;
