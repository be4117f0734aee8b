//! What an operator does to a round while it goes on: it is paused, goes on, and is limited otherwise than before.
//!
//! A pause has no message of its own. Gradients are said to be due, so contributors deliver what they have and wait
//! for the next epoch, or for the same one to be announced again; what they deliver is accepted and counts. Nothing
//! that was accepted is dropped by any of this.

use std::time::Duration;

use barnraise_protocol::contribute::DeviceKind;

use super::{AveragingRound, Phase, RoundAction};
use crate::{Moment, PeerKey};

/// Contributions that are taken in a pause, for each contributor that the run takes: honest ones have one to deliver.
const PER_PAUSE: usize = 2;

/// Limits that may be changed while a run goes on. None of them decides what a repeated step makes of the journal.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RoundLimits {
    /// Fastest speed that is believed of one peer.
    pub samples_per_second_max: u32,
    /// How long a round waits for who reported and does not deliver.
    pub collect_timeout: Duration,
    /// Most contributors at once. Those who are there stay.
    pub contributors_max: usize,
    /// Largest Euclidean length of a gradient that counts.
    pub gradient_norm_max: f32,
}

/// A contributor with a session, as the round knows it.
#[derive(Debug, Clone, PartialEq)]
pub struct ContributorState {
    /// Who.
    pub peer: PeerKey,
    /// What computes.
    pub device: DeviceKind,
    /// Samples of the coming step: reported and not yet offered.
    pub n_outstanding: u32,
    /// Samples of the coming step that are counted.
    pub n_counted: u64,
    /// As it says.
    pub samples_per_second: f32,
}

impl AveragingRound {
    /// The limits as they are.
    pub fn limits(&self) -> RoundLimits {
        let config = &self.config;
        RoundLimits {
            samples_per_second_max: config.samples_per_second_max,
            collect_timeout: config.collect_timeout,
            contributors_max: config.contributors_max,
            gradient_norm_max: config.gradient_norm_max,
        }
    }

    /// Other limits from now on; a deadline that is set stays.
    pub fn limit_by(&mut self, limits: RoundLimits) {
        let config = &mut self.config;
        config.samples_per_second_max = limits.samples_per_second_max;
        config.collect_timeout = limits.collect_timeout;
        config.contributors_max = limits.contributors_max;
        config.gradient_norm_max = limits.gradient_norm_max;
    }

    /// Whether no step is made until [`Self::unpause`].
    pub fn is_paused(&self) -> bool {
        self.is_paused
    }

    /// No step begins from now on, and contributors are told to deliver what they have and to wait. One that is being
    /// made is made.
    pub fn pause(&mut self) {
        if !self.is_paused {
            self.is_paused = true;
            self.taken_in_pause = 0;
            self.actions.push_back(RoundAction::RequestGradients(self.epoch));
        }
    }

    /// Goes on after [`Self::pause`], with all that was accepted meanwhile.
    pub fn unpause(&mut self, now: Moment) {
        if !std::mem::take(&mut self.is_paused) {
            return;
        }
        if self.phase != Phase::Stepping {
            self.phase = Phase::Accumulating;
            self.announce();
        }
        self.advance(now);
    }

    /// Everybody who has a session.
    pub fn contributors(&self) -> impl Iterator<Item = ContributorState> + '_ {
        self.contributors.iter().map(|(peer, contributor)| ContributorState {
            peer: peer.clone(),
            device: contributor.device,
            n_outstanding: contributor.outstanding,
            n_counted: self.counted_samples.get(peer).copied().unwrap_or_default(),
            samples_per_second: contributor.samples_per_second,
        })
    }

    /// No step ends a pause, and no epoch what is journaled for it: others than those who deliver what they had are put
    /// off until the run goes on.
    pub(super) fn has_enough_of_a_pause(&self) -> bool {
        let max = self.config.contributors_max.saturating_mul(PER_PAUSE);
        self.is_paused && self.taken_in_pause + self.in_flight.len() >= max
    }

    /// Contributors are to compute on the epoch; in a pause, to have its parameters and wait.
    pub(super) fn announce(&mut self) {
        self.actions.push_back(RoundAction::Announce(self.epoch));
        if self.is_paused {
            self.actions.push_back(RoundAction::RequestGradients(self.epoch));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use barnraise_protocol::bulk::Transfer;
    use barnraise_protocol::codec::TensorCodec;
    use barnraise_protocol::contribute::Report;
    use barnraise_protocol::gradient::{Offer, Refusal};

    use super::*;
    use crate::robust::Aggregation;
    use crate::round::{AddressGroup, RoundConfig, SessionError};

    const S: Duration = Duration::from_secs(1);

    fn round() -> AveragingRound {
        let config = RoundConfig {
            target_batch_size: 100,
            n_parameters: 1,
            codec: TensorCodec::F32,
            slow_codec: None,
            micro_batch_size: 1,
            contribution_samples_max: 100,
            samples_per_second_max: 1000,
            collect_timeout: S,
            in_flight_max: 8,
            contributors_max: 2,
            is_open: false,
            aggregation: Aggregation::Mean,
            gradient_norm_max: 1e3,
        };
        let mut round = AveragingRound::new(config, 0);
        round.on_join(peer(1), DeviceKind::NativeCpu, AddressGroup::UNKNOWN).unwrap();
        round
    }

    fn peer(name: u8) -> PeerKey {
        PeerKey(vec![name])
    }

    fn actions(round: &mut AveragingRound) -> Vec<RoundAction> {
        std::iter::from_fn(|| round.poll_action()).collect()
    }

    fn contribute(
        round: &mut AveragingRound,
        id: u64,
        epoch: u64,
        n_samples: u32,
        value: f32,
    ) -> Vec<RoundAction> {
        let transfer = Transfer::of(&[0; 4]);
        let codec = TensorCodec::F32;
        let offer = Offer { contribution_id: id, epoch, n_samples, loss: 1.0, n_values: 1, codec, transfer };
        let ticket = round.on_offer(S, &peer(1), &offer).unwrap();
        round.on_gradient(S, ticket, vec![value]);
        round.on_persisted(S, ticket);
        actions(round)
    }

    #[test]
    fn a_pause_takes_what_is_there_and_steps_only_afterwards() {
        let mut round = round();
        let report = Report { epoch: 0, n_samples: 60, samples_per_second: 1.0 };
        round.on_report(S, &peer(1), &report).unwrap();
        round.pause();
        round.pause();
        assert!(round.is_paused());
        assert_eq!(actions(&mut round), [RoundAction::RequestGradients(0)]);
        assert_eq!(contribute(&mut round, 1, 0, 60, 1.0).len(), 2, "stored and acknowledged");
        let enough = contribute(&mut round, 2, 0, 40, 1.0);
        assert!(!enough.iter().any(|action| matches!(action, RoundAction::Step(_))), "{enough:?}");
        assert_eq!(round.next_deadline(), None);
        round.on_timeout(1000 * S);
        assert_eq!(actions(&mut round), []);
        assert!(!round.is_closing(), "nobody waits for one that is paused");
        round.unpause(2 * S);
        assert!(!round.is_paused());
        let got = actions(&mut round);
        assert_eq!(got[..2], [RoundAction::Announce(0), RoundAction::RequestGradients(0)]);
        assert!(matches!(&got[2], RoundAction::Step(mean) if mean.n_samples == 100), "{got:?}");
    }

    #[test]
    fn a_flood_in_a_pause_is_put_off() {
        let mut round = round();
        round.pause();
        for id in 0..3 {
            assert!(!contribute(&mut round, id, 0, 1, 1.0).is_empty());
        }
        let transfer = Transfer::of(&[0; 4]);
        let codec = TensorCodec::F32;
        let offer =
            Offer { contribution_id: 9, epoch: 0, n_samples: 1, loss: 1.0, n_values: 1, codec, transfer };
        // What is on its way is the fourth.
        round.on_join(peer(2), DeviceKind::NativeCpu, AddressGroup::UNKNOWN).unwrap();
        let under_way = round.on_offer(S, &peer(2), &offer).unwrap();
        assert_eq!(round.on_offer(S, &peer(1), &offer), Err(Refusal::Busy));
        round.on_transfer_failed(S, under_way);
        assert!(!contribute(&mut round, 3, 0, 1, 1.0).is_empty());
        assert_eq!(round.on_offer(S, &peer(1), &offer), Err(Refusal::Busy));
        round.unpause(S);
        assert!(round.on_offer(S, &peer(1), &offer).is_ok());
    }

    #[test]
    fn parameters_that_come_in_a_pause_are_announced_and_waited_with() {
        let mut round = round();
        round.pause();
        actions(&mut round);
        round.on_moved(S, 5);
        assert_eq!(actions(&mut round), [RoundAction::Announce(5), RoundAction::RequestGradients(5)]);
        round.unpause(S);
        assert_eq!(actions(&mut round), [RoundAction::Announce(5)]);
        round.unpause(S);
        assert_eq!(actions(&mut round), [], "it goes on already");
    }

    #[test]
    fn a_step_that_is_being_made_is_made_and_the_next_one_waits() {
        let mut round = round();
        let report = Report { epoch: 0, n_samples: 100, samples_per_second: 1.0 };
        round.on_report(S, &peer(1), &report).unwrap();
        let got = contribute(&mut round, 1, 0, 100, 1.0);
        assert!(matches!(got.last(), Some(RoundAction::Step(_))), "{got:?}");
        round.pause();
        round.on_stepped(S);
        let due = RoundAction::RequestGradients;
        assert_eq!(actions(&mut round), [due(0), RoundAction::Announce(1), due(1)]);
    }

    #[test]
    fn limits_hold_from_then_on() {
        let mut round = round();
        round.limit_by(RoundLimits { contributors_max: 1, gradient_norm_max: 0.5, ..round.limits() });
        assert_eq!(
            round.on_join(peer(2), DeviceKind::NativeCpu, AddressGroup::UNKNOWN),
            Err(SessionError::Full(1))
        );
        assert_eq!(round.contributors().count(), 1);
        let got = contribute(&mut round, 1, 0, 10, 1.0);
        assert!(matches!(got[..], [RoundAction::Refuse(_, Refusal::Norm { .. })]), "{got:?}");
    }
}
