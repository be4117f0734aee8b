//! What the operator of a host wants: handovers and frozen layers.

use std::time::Duration;

use barnraise_protocol::experts::ExpertPlace;
use barnraise_swarm::experts::leases::{Handover, HandoverAction};

use super::super::control::{HostCommand, HostCommandError};
use super::super::handing::HandingTasks;
use super::super::places::HeldPlaces;
use super::super::view::{HandedOver, HostStage};
use super::ExpertHosting;

impl ExpertHosting<'_> {
    /// Carries out what the operator wants; of a handover it only begins.
    pub(super) async fn on_command(
        &self,
        places: &mut HeldPlaces,
        command: HostCommand,
    ) -> Result<(), HostCommandError> {
        let state = &self.state;
        match command {
            HostCommand::Drain { limit } => {
                let held: Vec<ExpertPlace> = state.with_leases(|leases, _| leases.places().collect());
                let n_held = held.len();
                self.begin_handover(places, held, (limit, HostStage::Draining))?;
                self.display.say(&format!("Draining: {n_held} experts go to other hosts, a few at a time."));
            }
            HostCommand::Move { place, limit, to } => {
                state.lease(&place).ok_or(HostCommandError::NotHere(place))?;
                if let Some(here) = to.filter(|to| *to == state.signer.key.public()) {
                    return Err(HostCommandError::Itself(here));
                }
                self.begin_handover(places, vec![place], (limit, HostStage::Moving))?;
                if let Some(to) = to {
                    state.with_leases(|leases, _| leases.on_heir(place, to));
                }
            }
            HostCommand::Freeze { layer, is_frozen } => {
                if !state.layers.iter().any(|known| known.id == layer) {
                    return Err(HostCommandError::NoLayer(layer));
                }
                if !is_frozen && state.lock().frozen_by_run.contains(&layer) {
                    return Err(HostCommandError::FrozenByRun(layer));
                }
                let mut frozen = state.lock().frozen.clone();
                let _ = if is_frozen { frozen.insert(layer) } else { frozen.remove(&layer) };
                self.store.save_frozen(&frozen).await?;
                state.lock().frozen = frozen;
                let how = if is_frozen { "make no steps here" } else { "make steps again" };
                self.display.say(&format!("The experts of layer {} {how}.", layer.0));
            }
        }
        Ok(())
    }

    fn begin_handover(
        &self,
        places: &mut HeldPlaces,
        held: Vec<ExpertPlace>,
        (limit, stage): (Duration, HostStage),
    ) -> Result<(), HostCommandError> {
        if places.handover.is_some() {
            return Err(HostCommandError::HandingOver);
        }
        let state = &self.state;
        state.with_leases(|leases, _| leases.on_leaving());
        places.handover = Some(Handover::new(state.now(), state.signer.key.public(), held, limit));
        state.lock().stage = stage;
        Ok(())
    }

    /// Goes on with a handover. Returns whether the host was drained.
    pub(super) fn hand_over_next(&self, places: &mut HeldPlaces, handing: &HandingTasks) -> bool {
        let state = &self.state;
        while let Some(action) = places.handover.as_mut().and_then(|it| it.poll_action(state.now())) {
            match action {
                HandoverAction::GiveBack(place) => {
                    self.stop(places, place);
                    // Its state was still on the way here.
                    if !places.stopping.contains(&place) {
                        handing.give_back(state.clone(), place, (None, Duration::ZERO));
                    }
                }
                HandoverAction::Ask(asked) => handing.ask(state.clone(), asked),
            }
        }
        let Some(handover) = &places.handover else { return false };
        let (n_taken, n_left) = (handover.n_taken(), handover.n_left());
        state.lock().handed_over = Some(HandedOver { n_taken, n_left, last_taker: handover.last_taker() });
        if !handover.is_over(state.now()) {
            return false;
        }
        if state.stage() == HostStage::Draining {
            return true;
        }
        let back: Vec<ExpertPlace> = handover.vacant().collect();
        places.handover = None;
        state.with_leases(|leases, now| leases.on_staying(now, back));
        state.lock().stage = HostStage::Serving;
        self.display.say(match n_left {
            0 => "The expert has another host.",
            _ => "No other host has taken the expert: it stays here.",
        });
        false
    }

    /// Says how the host was drained, if it was.
    pub(super) fn on_drained(&self) {
        let mut inner = self.state.lock();
        if inner.stage != HostStage::Draining {
            return;
        }
        inner.stage = HostStage::Drained;
        let n_left = inner.handed_over.map_or(0, |handed| handed.n_left);
        drop(inner);
        if n_left > 0 {
            self.display.say(&format!(
                "No other host has taken {n_left} experts yet: their states are on this disk and with their keepers."
            ));
        }
    }
}
