//! How others reach a participant, and how it goes on while no backbone answers.

use barnraise_protocol::contribute::RunProgress;
use barnraise_protocol::run::{Sampled, Scheme};
use barnraise_protocol::sampled::{self, Aggregates, SampledRoles};
use barnraise_swarm::sampled::{CollectedModels, neighbor_models_max};

use super::member::MemberSettings;
use super::{LOOK_EVERY, SampledParticipant};
use crate::event::ContributorEvent;
use crate::kit::Kit;
use crate::kit::scheme::SchemeParticipant;
use crate::platform::Platform;

/// Relays at which it has a place: its backbone, and another one, for when that is gone.
const PLACES: usize = 2;
const BYTES_PER_MB: u64 = 1_000_000;
/// Most memory for models that are averaged.
const COLLECTED_BYTES_MAX: usize = 256 * 1024 * 1024;
/// Averaged rounds that the data of a day have to be enough for, or it averages none.
const ROUNDS_OF_DAY: u64 = 100;

impl<'a, P: Platform> SampledParticipant<'a, P> {
    /// Looks at how others reach it, and tells them: it aggregates where they do, and where that is not too much for it.
    pub(super) fn look_at_reach(&mut self, kit: &Kit<'a, P>) {
        let now = kit.platform.now();
        if self.incoming.is_none() || now < self.reach_look_at {
            return;
        }
        self.reach_look_at = now + LOOK_EVERY;
        let is_wanted = self.bears_averaging(kit.day_mb());
        let addresses = if is_wanted { kit.platform.addresses(PLACES) } else { Vec::new() };
        if addresses != self.reached_at {
            self.reached_at.clone_from(&addresses);
            let aggregates = if addresses.is_empty() { Aggregates::Never } else { Aggregates::Relayed };
            let roles = SampledRoles { trains: true, aggregates };
            self.member.with(|peer, now| peer.on_own_change(now, roles, addresses));
        }
        if let Some((home, _)) = self.joins.take_if(|(_, at)| *at <= now || !is_wanted) {
            self.join(home);
        }
    }

    /// Tells the user how far the run is, where no backbone does.
    pub(super) fn tell_round(&mut self, kit: &mut Kit<'a, P>) {
        let round = self.epoch();
        if kit.is_linked() || std::mem::replace(&mut self.told_round, round) == round {
            return;
        }
        kit.tell(ContributorEvent::Progress(RunProgress {
            epoch: round,
            n_samples: 0,
            target_batch_size: Scheme::Sampled(self.scheme).step_samples(),
            n_contributors: self.n_trainers(),
            samples_per_second: 0.0,
            train_loss: None,
            test_accuracy: None,
        }));
    }

    pub(super) fn n_trainers(&self) -> u32 {
        self.member.look(|peer| {
            let members = peer.registry().members().filter_map(|member| member.joined());
            u32::try_from(members.filter(|joined| joined.roles.trains).count()).unwrap_or(u32::MAX)
        })
    }

    /// Whether memory and data plan bear that it averages. A round brings the models of up to two samples, as samples may
    /// differ, and the average goes to one. Among neighbours it keeps the models of some rounds.
    pub(super) fn bears_averaging(&self, day_mb: Option<u32>) -> bool {
        let MemberSettings { n_parameters, .. } = self.member.settings();
        let Sampled { exchange, average, sample_size, .. } = self.scheme;
        let (n_came, n_sent, n_bytes) = match exchange.is_among_neighbors() {
            true => {
                let n = usize::from(exchange.n_receivers());
                (
                    n,
                    n,
                    neighbor_models_max(exchange)
                        .saturating_mul(n_parameters)
                        .saturating_mul(size_of::<f32>()),
                )
            }
            false => {
                let n = usize::from(sample_size);
                (2 * n, n, CollectedModels::n_bytes_max(average, 2 * n, n_parameters))
            }
        };
        let of_round = self.member.settings().n_bytes().saturating_mul((n_came + n_sent) as u64);
        n_bytes <= COLLECTED_BYTES_MAX
            && day_mb.is_none_or(|mb| u64::from(mb) * BYTES_PER_MB >= of_round.saturating_mul(ROUNDS_OF_DAY))
    }

    /// Takes part again while no backbone answers, with those whom it knows.
    pub(super) fn join_alone(&mut self, kit: &Kit<'a, P>) {
        let has_failed = kit.session.down().is_some_and(|(_, reason)| reason.is_some());
        if !self.has_joined || self.incoming.is_some() || !has_failed || kit.session.is_stopping() {
            return;
        }
        // It would train on data that were taken back; with a backbone it begins anew on those that are wanted.
        if kit.is_data_new {
            return;
        }
        if let Ok(incoming) = kit.platform.accept(sampled::PROTOCOL) {
            self.incoming = Some(incoming);
            self.member.forget_home();
            self.member.with(|peer, now| peer.join(now, Vec::new()));
        }
    }

    /// Whether it takes part without a connection to a backbone, or is about to leave.
    pub(super) fn is_alone(&self, kit: &Kit<'a, P>) -> bool {
        !kit.is_linked() && (self.goes_on_alone() || self.leaving.is_some())
    }
}
