//! How others reach the tab: it asks relays for places, and tells where they are.

use std::rc::Rc;

use libp2p::PeerId;
use wasm_bindgen_futures::spawn_local;
use web_time::Instant;

use super::addresses::{Way, circuits};
use super::lookup::DialTarget;
use super::{SwarmCommand, TabNetwork};

/// Addresses of each relay, where others reach the tab through more than one.
const ADDRESSES_PER_RELAY: usize = 2;

impl TabNetwork {
    /// Where others reach the tab: through its backbone, and through so many relays in all. Nowhere at first, until one has given it
    /// a place.
    pub(in crate::platform) fn addresses(self: &Rc<Self>, n_relays: usize) -> Vec<Vec<u8>> {
        self.reserve(n_relays);
        let held: Vec<PeerId> = self.places.borrow().held().take(n_relays).collect();
        let known = self.backbone_addresses.borrow();
        let n_each = if held.len() > 1 { ADDRESSES_PER_RELAY } else { usize::MAX };
        let of_relay = |relay: &PeerId| circuits(known.get(relay).map_or(&[], Vec::as_slice));
        held.iter().flat_map(|relay| of_relay(relay).into_iter().take(n_each)).collect()
    }

    /// Asks for places: the backbone, and where it has given one or is gone, others of the DHT.
    fn reserve(self: &Rc<Self>, n_relays: usize) {
        let (now, connected) = (Instant::now(), *self.connected.borrow());
        if let Some(backbone) = connected
            && self.places.borrow_mut().ask(backbone, true, now)
        {
            self.ask_for_place(backbone);
        }
        let held: Vec<PeerId> = self.places.borrow().held().collect();
        // They stay, however long nobody comes through them.
        for relay in &held {
            self.links.borrow_mut().on_used(relay);
        }
        let n_others = held.iter().filter(|relay| Some(**relay) != connected).count();
        if n_others + 1 >= n_relays {
            return;
        }
        let contacts = self.known.borrow().as_ref().map(|known| known.contacts.clone()).unwrap_or_default();
        let mut others = contacts.into_iter().filter(|contact| Some(contact.peer) != connected);
        let next = others.find(|contact| self.places.borrow_mut().ask(contact.peer, false, now));
        if let Some(DialTarget { peer, transports }) = next {
            let network = Rc::clone(self);
            spawn_local(async move {
                // One that is no relay, or is away, is asked again later.
                if Box::pin(network.link(peer, || Way::direct(transports))).await.is_ok() {
                    network.ask_for_place(peer);
                }
            });
        }
    }

    fn ask_for_place(&self, relay: PeerId) {
        let known = self.backbone_addresses.borrow().get(&relay).and_then(|all| all.first().cloned());
        if let Some(address) = known {
            // Where the task has ended, nothing is reached any more.
            let _ = self.commands.clone().try_send(SwarmCommand::Reserve { relay, address });
        }
    }
}
