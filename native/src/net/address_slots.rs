//! Slots for streams by address: however many keys it has, an address holds at most as many as are left free.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use barnraise_swarm::AddressGroup;
use barnraise_swarm::guard::FairShares;

/// Slots for streams, shared by addresses.
pub(crate) struct AddressSlots(Mutex<FairShares<AddressGroup>>);

/// One slot, released on drop.
pub(crate) struct AddressSlot {
    slots: Arc<AddressSlots>,
    group: AddressGroup,
}

impl AddressSlots {
    pub(crate) fn new(all: usize) -> Self {
        Self(Mutex::new(FairShares::new(all)))
    }

    /// A slot for a stream from an address; `None` where it has as many as it may.
    pub(crate) fn take(slots: &Arc<Self>, group: AddressGroup) -> Option<AddressSlot> {
        slots.lock().take(&group).then(|| AddressSlot { slots: slots.clone(), group })
    }

    fn lock(&self) -> MutexGuard<'_, FairShares<AddressGroup>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for AddressSlot {
    fn drop(&mut self) {
        self.slots.lock().give_back(&self.group);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_with_many_keys_leaves_slots_for_others() {
        let slots = Arc::new(AddressSlots::new(16));
        let take = |group| AddressSlots::take(&slots, AddressGroup(group));
        let greedy: Vec<AddressSlot> = std::iter::from_fn(|| take(1)).collect();
        assert_eq!(greedy.len(), 8);
        let other: Vec<AddressSlot> = std::iter::from_fn(|| take(2)).collect();
        assert_eq!(other.len(), 4);
        drop(greedy);
        assert!(take(1).is_some() && take(2).is_some(), "what is released is there again");
    }
}
