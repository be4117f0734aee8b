//! Operator control of a running round: pause, resume, new limits.
//!
//! A pause has no message of its own. The round requests the gradients, so contributors deliver what they have and
//! wait until the next epoch, or the same one, is announced. Their contributions are accepted and count. None of these
//! operations drops an accepted contribution.

use std::time::Duration;

use barnraise_protocol::contribute::DeviceKind;

use super::{CollectionAction, CollectionPhase, CollectionRound};
use crate::{Moment, PeerKey};

/// Contributions accepted in a pause per seat: an honest contributor has one to deliver.
const PER_PAUSE: usize = 2;

/// Limits that may change while a run goes on. None of them changes the replay of a journalled step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CollectionLimits {
    /// Fastest speed that is believed of one peer.
    pub samples_per_second_max: u32,
    /// How long a round waits for contributors that reported and have not delivered.
    pub collect_timeout: Duration,
    /// Most contributors at once. Those with a session keep it.
    pub contributors_max: usize,
    /// Largest Euclidean norm of a gradient that counts.
    pub gradient_norm_max: f32,
}

/// State of a contributor with a session.
#[derive(Debug, Clone, PartialEq)]
pub struct ContributorState {
    /// The contributor.
    pub peer: PeerKey,
    /// Kind of its device.
    pub device: DeviceKind,
    /// Samples of the coming step: reported and not yet offered.
    pub n_outstanding: u32,
    /// Samples of the coming step that are counted.
    pub n_counted: u64,
    /// Speed that it reports.
    pub samples_per_second: f32,
}

impl CollectionRound {
    /// The current limits.
    pub fn limits(&self) -> CollectionLimits {
        let config = &self.config;
        CollectionLimits {
            samples_per_second_max: config.samples_per_second_max,
            collect_timeout: config.collect_timeout,
            contributors_max: config.contributors_max,
            gradient_norm_max: config.gradient_norm_max,
        }
    }

    /// Changes the limits; a deadline that is already set stays.
    pub fn limit_by(&mut self, limits: CollectionLimits) {
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

    /// No step begins from now on; contributors are asked to deliver what they have and to wait. A step that has begun
    /// is finished.
    pub fn pause(&mut self) {
        if !self.is_paused {
            self.is_paused = true;
            self.n_accepted_in_pause = 0;
            self.actions.push_back(CollectionAction::RequestGradients(self.epoch));
        }
    }

    /// Resumes after [`Self::pause`], with all contributions that were accepted meanwhile.
    pub fn unpause(&mut self, now: Moment) {
        if !std::mem::take(&mut self.is_paused) {
            return;
        }
        if self.phase != CollectionPhase::Stepping {
            self.phase = CollectionPhase::Accumulating;
            self.announce();
        }
        self.advance(now);
    }

    /// The driver begins to make a step, or to take other parameters, which takes time. Until [`Self::on_stepped`],
    /// [`Self::on_moved`] or [`Self::release`] nothing is collected: contributors may join, leave and report, and what they
    /// offer belongs to the next epoch.
    pub fn hold(&mut self) {
        self.is_held = true;
    }

    /// The driver did not take other parameters after [`Self::hold`]: the same epoch goes on.
    pub fn release(&mut self, now: Moment) {
        self.is_held = false;
        self.advance(now);
    }

    /// All contributors with a session.
    pub fn contributors(&self) -> impl Iterator<Item = ContributorState> + '_ {
        self.contributors.iter().map(|(peer, contributor)| ContributorState {
            peer: peer.clone(),
            device: contributor.device,
            n_outstanding: contributor.outstanding,
            n_counted: self.counted_samples.get(peer).copied().unwrap_or_default(),
            samples_per_second: contributor.samples_per_second,
        })
    }

    /// Bounds the journal of a pause, in which no step is made: contributions beyond those that peers had ready are put
    /// off until the run is resumed.
    pub(super) fn is_pause_full(&self) -> bool {
        let max = self.config.contributors_max.saturating_mul(PER_PAUSE);
        self.is_paused && self.n_accepted_in_pause + self.in_flight.len() >= max
    }

    /// Announces the epoch; in a pause contributors fetch its parameters and wait.
    pub(super) fn announce(&mut self) {
        self.actions.push_back(CollectionAction::Announce(self.epoch));
        if self.is_paused {
            self.actions.push_back(CollectionAction::RequestGradients(self.epoch));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use barnraise_protocol::bulk::Transfer;
    use barnraise_protocol::codec::TensorCodec;
    use barnraise_protocol::contribute::Report;
    use barnraise_protocol::gradient::{ContributionRefusal, Offer};

    use super::*;
    use crate::AddressGroup;
    use crate::collection::{CollectionConfig, SessionError};
    use crate::robust::Aggregation;

    const S: Duration = Duration::from_secs(1);

    fn round() -> CollectionRound {
        let config = CollectionConfig {
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
        let mut round = CollectionRound::new(config, 0);
        round.on_join(peer(1), DeviceKind::NativeCpu, AddressGroup::UNKNOWN).unwrap();
        round
    }

    fn peer(name: u8) -> PeerKey {
        PeerKey(vec![name])
    }

    fn actions(round: &mut CollectionRound) -> Vec<CollectionAction> {
        std::iter::from_fn(|| round.poll_action()).collect()
    }

    fn contribute(
        round: &mut CollectionRound,
        id: u64,
        epoch: u64,
        n_samples: u32,
        value: f32,
    ) -> Vec<CollectionAction> {
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
        let report = Report { epoch: 0, contribution_id: u64::MAX, n_samples: 60, samples_per_second: 1.0 };
        round.on_report(S, &peer(1), &report).unwrap();
        round.pause();
        round.pause();
        assert!(round.is_paused());
        assert_eq!(actions(&mut round), [CollectionAction::RequestGradients(0)]);
        assert_eq!(contribute(&mut round, 1, 0, 60, 1.0).len(), 2, "stored and acknowledged");
        let enough = contribute(&mut round, 2, 0, 40, 1.0);
        assert!(!enough.iter().any(|action| matches!(action, CollectionAction::Step(_))), "{enough:?}");
        assert_eq!(round.next_deadline(), None);
        round.on_timeout(1000 * S);
        assert_eq!(actions(&mut round), []);
        assert!(!round.is_closing(), "nobody waits for one that is paused");
        round.unpause(2 * S);
        assert!(!round.is_paused());
        let got = actions(&mut round);
        assert_eq!(got[..2], [CollectionAction::Announce(0), CollectionAction::RequestGradients(0)]);
        assert!(matches!(&got[2], CollectionAction::Step(mean) if mean.n_samples == 100), "{got:?}");
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
        assert_eq!(round.on_offer(S, &peer(1), &offer), Err(ContributionRefusal::Busy));
        round.on_transfer_failed(S, under_way);
        assert!(!contribute(&mut round, 3, 0, 1, 1.0).is_empty());
        assert_eq!(round.on_offer(S, &peer(1), &offer), Err(ContributionRefusal::Busy));
        round.unpause(S);
        assert!(round.on_offer(S, &peer(1), &offer).is_ok());
    }

    #[test]
    fn parameters_that_come_in_a_pause_are_announced_and_waited_with() {
        let mut round = round();
        round.pause();
        actions(&mut round);
        round.on_moved(S, 5);
        assert_eq!(
            actions(&mut round),
            [CollectionAction::Announce(5), CollectionAction::RequestGradients(5)]
        );
        round.unpause(S);
        assert_eq!(actions(&mut round), [CollectionAction::Announce(5)]);
        round.unpause(S);
        assert_eq!(actions(&mut round), [], "it goes on already");
    }

    #[test]
    fn a_step_that_is_being_made_is_made_and_the_next_one_waits() {
        let mut round = round();
        let report = Report { epoch: 0, contribution_id: u64::MAX, n_samples: 100, samples_per_second: 1.0 };
        round.on_report(S, &peer(1), &report).unwrap();
        let got = contribute(&mut round, 1, 0, 100, 1.0);
        assert!(matches!(got.last(), Some(CollectionAction::Step(_))), "{got:?}");
        round.pause();
        round.on_stepped(S);
        let due = CollectionAction::RequestGradients;
        assert_eq!(actions(&mut round), [due(0), CollectionAction::Announce(1), due(1)]);
    }

    #[test]
    fn nothing_is_collected_while_the_driver_takes_other_parameters() {
        let mut round = round();
        let offer = |id, epoch| {
            let transfer = Transfer::of(&[0; 4]);
            let codec = TensorCodec::F32;
            Offer { contribution_id: id, epoch, n_samples: 50, loss: 1.0, n_values: 1, codec, transfer }
        };
        let report = Report { epoch: 0, contribution_id: u64::MAX, n_samples: 100, samples_per_second: 1.0 };
        contribute(&mut round, 1, 0, 50, 1.0);
        round.hold();
        // Enough for a step, and the step that is being made has none of it.
        round.on_report(S, &peer(1), &report).unwrap();
        let refused = round.on_offer(S, &peer(1), &offer(2, 0));
        assert_eq!(refused, Err(ContributionRefusal::Epoch { want: 1, got: 0 }));
        // Who has the new parameters already comes a moment too soon, and not too late.
        assert_eq!(round.on_offer(S, &peer(1), &offer(2, 1)), Err(ContributionRefusal::Busy));
        round.on_join(peer(2), DeviceKind::NativeCpu, AddressGroup::UNKNOWN).unwrap();
        round.on_leave(S, &peer(1));
        round.on_timeout(1000 * S);
        assert_eq!((actions(&mut round), round.next_deadline()), (vec![], None));
        round.on_join(peer(1), DeviceKind::NativeCpu, AddressGroup::UNKNOWN).unwrap();
        // It was not taken after all.
        round.release(S);
        assert_eq!(actions(&mut round), []);
        round.on_report(S, &peer(1), &report).unwrap();
        assert_eq!(actions(&mut round), [CollectionAction::RequestGradients(0)]);
        // In the middle of the collection it was.
        round.hold();
        round.on_moved(S, 7);
        assert_eq!(actions(&mut round), [CollectionAction::Announce(7)]);
        assert!(round.on_offer(S, &peer(1), &offer(3, 7)).is_ok());
    }

    #[test]
    fn messages_do_not_overtake_what_is_stored() {
        let mut round = round();
        round.pause();
        let transfer = Transfer::of(&[0; 4]);
        let codec = TensorCodec::F32;
        let offer =
            Offer { contribution_id: 1, epoch: 0, n_samples: 1, loss: 1.0, n_values: 1, codec, transfer };
        let ticket = round.on_offer(S, &peer(1), &offer).unwrap();
        round.on_gradient(S, ticket, vec![1.0]);
        assert_eq!(round.poll_message(), Some(CollectionAction::RequestGradients(0)));
        assert_eq!(round.poll_message(), None);
        assert!(matches!(round.poll_action(), Some(CollectionAction::Persist { .. })));
    }

    #[test]
    fn limits_hold_from_then_on() {
        let mut round = round();
        round.limit_by(CollectionLimits { contributors_max: 1, gradient_norm_max: 0.5, ..round.limits() });
        assert_eq!(
            round.on_join(peer(2), DeviceKind::NativeCpu, AddressGroup::UNKNOWN),
            Err(SessionError::Full(1))
        );
        assert_eq!(round.contributors().count(), 1);
        let got = contribute(&mut round, 1, 0, 10, 1.0);
        assert!(
            matches!(got[..], [CollectionAction::Refuse(_, ContributionRefusal::Norm { .. })]),
            "{got:?}"
        );
    }
}
