//! What a peer does for the hosts of experts: a backbone grants leases of places, and hosts and backbones keep checkpoints for each
//! other.

pub(crate) mod keeper;
pub(crate) mod layers;
mod leases;
pub(crate) mod service;
