//! What backbone and native peer share about the network: slots for streams, violations, the speed of the link.

pub mod platform;
pub mod speed;
pub(crate) mod transfer_slots;
pub(crate) mod violations;
