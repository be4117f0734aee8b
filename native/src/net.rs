//! What backbone and native peer share about the network: addresses, slots for streams, violations, the speed of the link.

pub(crate) mod address_slots;
pub(crate) mod announced;
pub mod platform;
pub mod speed;
pub(crate) mod transfer_slots;
pub(crate) mod violations;
