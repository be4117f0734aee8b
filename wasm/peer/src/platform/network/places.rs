//! Places at relays, by which others reach the tab: at its backbone, and at another peer of the DHT, for when that is gone. Pure.

use std::time::Duration;

use libp2p::PeerId;
use libp2p::core::transport::ListenerId;
use web_time::Instant;

/// A backbone that gives the tab no place is asked again after so long.
const BACKBONE_PAUSE: Duration = Duration::from_secs(10);
/// Another peer, which may be no relay.
const OTHER_PAUSE: Duration = Duration::from_secs(60);
/// Relays of which it is known that they were asked.
const KNOWN_MAX: usize = 16;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct RelayPlaces(Vec<RelayPlace>);

#[derive(Debug)]
struct RelayPlace {
    relay: PeerId,
    asked_at: Instant,
    listener: Option<ListenerId>,
    is_held: bool,
}

impl RelayPlaces {
    /// Relays at which the tab has a place, the first ones first.
    pub(super) fn held(&self) -> impl Iterator<Item = PeerId> {
        self.0.iter().filter(|place| place.is_held).map(|place| place.relay)
    }

    /// Whether a relay is to be asked now; then it is taken for asked.
    pub(super) fn ask(&mut self, relay: PeerId, is_backbone: bool, now: Instant) -> bool {
        let pause = if is_backbone { BACKBONE_PAUSE } else { OTHER_PAUSE };
        let known = self.0.iter().position(|place| place.relay == relay);
        if let Some(at) = known {
            let place = &mut self.0[at];
            if place.is_held || now.saturating_duration_since(place.asked_at) < pause {
                return false;
            }
            place.asked_at = now;
            return true;
        }
        if self.0.len() >= KNOWN_MAX {
            // Of those with a listener it is still to be heard how that ends.
            self.0.retain(|place| place.listener.is_some());
        }
        if self.0.len() >= KNOWN_MAX && !is_backbone {
            return false;
        }
        self.0.push(RelayPlace { relay, asked_at: now, listener: None, is_held: false });
        true
    }

    /// The tab listens at a relay, or will. Returns the listener in whose place that is.
    pub(super) fn on_listening(&mut self, relay: PeerId, listener: Option<ListenerId>) -> Option<ListenerId> {
        let place = self.0.iter_mut().find(|place| place.relay == relay)?;
        place.is_held = false;
        std::mem::replace(&mut place.listener, listener)
    }

    /// A relay gave the tab a place, or renewed it.
    pub(super) fn on_held(&mut self, relay: PeerId) {
        if let Some(place) = self.0.iter_mut().find(|place| place.relay == relay && place.listener.is_some())
        {
            place.is_held = true;
        }
    }

    /// A place is gone, or was refused.
    pub(super) fn on_closed(&mut self, listener: ListenerId) {
        if let Some(place) = self.0.iter_mut().find(|place| place.listener == Some(listener)) {
            (place.listener, place.is_held) = (None, false);
        }
    }

    /// The tab hangs up on a relay, or it is gone: it may be asked again at once.
    pub(super) fn forget(&mut self, relay: &PeerId) -> Option<ListenerId> {
        let at = self.0.iter().position(|place| place.relay == *relay)?;
        self.0.remove(at).listener
    }
}

#[cfg(feature = "tests")]
mod tests {
    use wasm_bindgen_test::wasm_bindgen_test;

    use super::*;

    #[wasm_bindgen_test]
    fn a_relay_is_asked_now_and_then_until_it_gives_a_place_and_again_when_that_is_gone() {
        let (relay, other) = (PeerId::random(), PeerId::random());
        let mut places = RelayPlaces::default();
        let now = Instant::now();
        let listener = ListenerId::next();
        assert!(places.ask(relay, true, now) && !places.ask(relay, true, now));
        assert!(places.ask(other, false, now) && !places.ask(other, false, now + BACKBONE_PAUSE));
        assert_eq!(places.on_listening(relay, Some(listener)), None);
        places.on_held(relay);
        // It did not ask.
        places.on_held(PeerId::random());
        assert!(places.held().eq([relay]));
        assert!(!places.ask(relay, true, now + OTHER_PAUSE), "it has one");
        assert!(places.ask(other, false, now + OTHER_PAUSE), "it was not given one");
        places.on_closed(listener);
        assert_eq!(places.held().count(), 0);
        assert!(places.ask(relay, true, now + OTHER_PAUSE));
        let next = ListenerId::next();
        assert_eq!(places.on_listening(relay, Some(next)), None);
        assert_eq!(places.forget(&relay), Some(next));
        assert!(places.ask(relay, true, now + OTHER_PAUSE));
    }

    #[wasm_bindgen_test]
    fn places_that_are_held_stay_known_however_many_are_asked() {
        let held = PeerId::random();
        let mut places = RelayPlaces::default();
        let now = Instant::now();
        places.ask(held, false, now);
        places.on_listening(held, Some(ListenerId::next()));
        places.on_held(held);
        (0..100).for_each(|_| assert!(places.ask(PeerId::random(), false, now)));
        assert!(places.held().eq([held]) && places.0.len() <= KNOWN_MAX);
        // No listener is forgotten.
        let mut places = RelayPlaces::default();
        for _ in 0..2 * KNOWN_MAX {
            let relay = PeerId::random();
            if places.ask(relay, false, now) {
                places.on_listening(relay, Some(ListenerId::next()));
            }
        }
        assert_eq!(places.0.iter().filter(|place| place.listener.is_some()).count(), KNOWN_MAX);
    }
}
