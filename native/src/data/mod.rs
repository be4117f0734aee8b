//! The training data: where it comes from, and how it is cut into shards.
//!
//! It never trusts a file: each is compared with its known length and SHA-256 before use.

pub mod download;
pub mod fashion_mnist;
pub mod idx;
pub mod shards;
