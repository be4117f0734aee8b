//! What the integration tests share: real processes and real browsers, ended when dropped.

pub mod accessibility;
pub mod artifacts;
pub mod attack;
pub mod background;
pub mod bare;
pub mod browser;
pub mod client;
pub mod doorway;
pub mod gate;
pub mod kills;
pub mod lan;
pub mod load;
pub mod npm;
pub mod pause;
pub mod postgres;
pub mod process;
pub mod processors;
pub mod provider;
pub mod pypi;
pub mod s3;
pub mod verdict;
pub mod village;
pub mod visitor;
