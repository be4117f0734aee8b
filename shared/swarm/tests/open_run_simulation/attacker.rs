//! A Sybil attacker: one machine with many keys, which ignores answers and rules.

use std::collections::BTreeMap;

use barnraise_protocol::TensorCodec;
use barnraise_protocol::bulk::Transfer;
use barnraise_protocol::commitment::SampleId;
use barnraise_protocol::contribute::{DeviceKind, Report};
use barnraise_protocol::gradient::{Accepted, ContributionRefusal, Offer};
use barnraise_swarm::AddressGroup;
use barnraise_swarm::PeerKey;

use super::{
    AttackKind, Contribution, MICRO_BATCH, OpenRunEvent, OpenRunSimulation, TARGET, honest_at, model,
};

/// Connections that an address may have.
const CONNECTIONS_MAX: usize = 256;
const GROUP: AddressGroup = AddressGroup(666);
/// Interval of its actions, and keys that act each time: the capacity of one link and processor.
const EVERY_MS: u64 = 100;
const AT_ONCE: usize = 32;
/// Time of an honest batch: its device is as fast as that of a native peer.
const COMPUTED_EVERY_MS: u64 = 43;
/// Honest contributions before a wrong one, and the samples of a wrong one: four times as many as the honest ones had, and
/// too few to be recomputed for certain.
const HONEST_FIRST: u32 = 3;
const WRONG_SAMPLES: u32 = 4 * MICRO_BATCH;

#[derive(Debug, Default)]
struct AttackerKey {
    is_in: bool,
    next_id: u64,
    is_waiting: bool,
    n_right: u32,
}

pub(super) struct Attacker {
    attack: AttackKind,
    n_keys: u32,
    next_key: u32,
    next_turn: usize,
    keys: BTreeMap<PeerKey, AttackerKey>,
    /// Samples that its device has computed and not yet contributed.
    budget: u64,
    computed_at: u64,
    /// An honest contribution, to be sent again.
    honest: Option<(Vec<SampleId>, Vec<f32>, u64)>,
    /// Whether each offered contribution was honest, by peer and id.
    offered: BTreeMap<(PeerKey, u64), bool>,
}

impl Attacker {
    pub(super) fn new(attack: AttackKind, n_keys: u32) -> Self {
        Self {
            attack,
            n_keys,
            next_key: 0,
            next_turn: 0,
            keys: BTreeMap::new(),
            budget: 0,
            computed_at: 0,
            honest: None,
            offered: BTreeMap::new(),
        }
    }
}

impl OpenRunSimulation {
    /// A peer of either side has lost its seat.
    pub(super) fn on_evicted(&mut self, peer: &PeerKey) {
        if let Some(attacker) = &mut self.attacker {
            attacker.keys.remove(peer);
        }
    }

    pub(super) fn answered(
        &mut self,
        peer: &PeerKey,
        id: u64,
        answer: &Result<Accepted, ContributionRefusal>,
    ) {
        if let Some(honest) = honest_at(peer) {
            return self.answered_honest(honest, answer);
        }
        let Some(attacker) = &mut self.attacker else { return };
        if let Ok(accepted) = answer {
            self.seen.n_credited += u64::from(accepted.n_samples);
            *self.credit.entry(peer.clone()).or_default() += u64::from(accepted.n_samples);
            assert!(attacker.offered.contains_key(&(peer.clone(), id)));
        }
        if let Some(key) = attacker.keys.get_mut(peer) {
            key.is_waiting = false;
            key.n_right += u32::from(answer.is_ok());
        }
    }

    pub(super) fn attack(&mut self) {
        self.after(EVERY_MS, OpenRunEvent::Attack);
        let Some(mut attacker) = self.attacker.take() else { return };
        self.take_seats(&mut attacker);
        let passed = self.now() - attacker.computed_at;
        attacker.budget += passed / COMPUTED_EVERY_MS * u64::from(MICRO_BATCH);
        attacker.computed_at = self.now() - passed % COMPUTED_EVERY_MS;
        // The keys act in turn.
        let (n_keys, first) = (attacker.keys.len(), attacker.next_turn);
        let turns = first..first + n_keys.min(AT_ONCE);
        attacker.next_turn = turns.end % n_keys.max(1);
        let peers: Vec<PeerKey> = attacker.keys.keys().cloned().collect();
        for peer in turns.map(|turn| peers[turn % n_keys].clone()) {
            self.act_as(&mut attacker, &peer);
        }
        self.attacker = Some(attacker);
    }

    /// Takes as many seats as it may have; banned keys are of no use.
    fn take_seats(&mut self, attacker: &mut Attacker) {
        let at_once = CONNECTIONS_MAX.min(attacker.n_keys as usize);
        for _ in 0..at_once {
            if attacker.keys.len() >= at_once {
                return;
            }
            let number = attacker.next_key % attacker.n_keys;
            attacker.next_key += 1;
            let peer = PeerKey(vec![6, (number >> 8) as u8, number as u8]);
            let is_free = !attacker.keys.contains_key(&peer) && !self.banned.contains(&peer);
            if is_free && self.round.on_join(peer.clone(), DeviceKind::NativeCpu, GROUP).is_ok() {
                // Ids continue across sessions.
                let next_id = self.now();
                attacker.keys.insert(peer, AttackerKey { is_in: true, next_id, ..AttackerKey::default() });
            }
        }
    }

    fn act_as(&mut self, attacker: &mut Attacker, peer: &PeerKey) {
        let epoch = self.round.epoch();
        let report =
            |n_samples| Report { epoch, contribution_id: u64::MAX, n_samples, samples_per_second: 1e9 };
        let Some(key) = attacker.keys.get(peer).filter(|key| key.is_in) else { return };
        let (is_waiting, is_trusted) = (key.is_waiting, key.n_right >= HONEST_FIRST);
        match attacker.attack {
            AttackKind::Seats => {}
            AttackKind::Claim => self.send(OpenRunEvent::Report(peer.clone(), report(TARGET))),
            _ if is_waiting => {}
            AttackKind::Late => {
                self.send(OpenRunEvent::Report(peer.clone(), report(TARGET / 2)));
                self.contribute_honestly(attacker, peer, TARGET / 2, Some(4500));
            }
            AttackKind::Random => self.contribute_wrong(attacker, peer, TARGET, |_, random| random),
            AttackKind::Turned | AttackKind::Scaled | AttackKind::Stale if !is_trusted => {
                self.contribute_honestly(attacker, peer, MICRO_BATCH, Some(10));
            }
            AttackKind::Turned => self.contribute_wrong(attacker, peer, WRONG_SAMPLES, |value, _| -value),
            AttackKind::Scaled => {
                self.contribute_wrong(attacker, peer, WRONG_SAMPLES, |value, _| 3.5 * value);
            }
            AttackKind::Stale => self.contribute_stale(attacker, peer),
            AttackKind::Trickle => self.contribute_honestly(attacker, peer, 1, None),
            AttackKind::Repeat => self.contribute_again(attacker, peer),
            AttackKind::Single => self.contribute_honestly(attacker, peer, 1, Some(10)),
        }
    }

    fn contribute_honestly(&mut self, attacker: &mut Attacker, peer: &PeerKey, n: u32, ms: Option<u64>) {
        let Some(budget) = attacker.budget.checked_sub(n.into()) else { return };
        attacker.budget = budget;
        self.seen.n_worked += u64::from(n);
        let samples = self.draw(n);
        let values = model::gradient(self.model.parameters(), &samples);
        attacker.honest = Some((samples.clone(), values.clone(), self.round.epoch()));
        self.offer_as(attacker, peer, (samples, values, true), ms);
    }

    /// Contributes values for `n_samples` that were not computed.
    fn contribute_wrong(
        &mut self,
        attacker: &mut Attacker,
        peer: &PeerKey,
        n_samples: u32,
        lie: impl Fn(f32, f32) -> f32,
    ) {
        let samples = self.draw(n_samples);
        let some = self.draw(8);
        let mut random = || (self.simulation.random.next_u64() >> 40) as f32 / (1 << 23) as f32 - 1.0;
        let values = model::gradient(self.model.parameters(), &some);
        let values = values.into_iter().map(|value| lie(value, random())).collect();
        self.offer_as(attacker, peer, (samples, values, false), Some(10));
    }

    fn contribute_stale(&mut self, attacker: &mut Attacker, peer: &PeerKey) {
        let samples = self.draw(WRONG_SAMPLES);
        let values = model::gradient(self.model.old(), &samples);
        let is_true = self.model.old() == self.model.parameters();
        self.offer_as(attacker, peer, (samples, values, is_true), Some(10));
    }

    /// Contributes an honest gradient again under another id, with its samples in another order.
    fn contribute_again(&mut self, attacker: &mut Attacker, peer: &PeerKey) {
        let epoch = self.round.epoch();
        match attacker.honest.clone() {
            Some((mut samples, values, of)) if of == epoch => {
                samples.reverse();
                self.offer_as(attacker, peer, (samples, values, true), Some(10));
            }
            _ => self.contribute_honestly(attacker, peer, MICRO_BATCH, Some(10)),
        }
    }

    fn offer_as(
        &mut self,
        attacker: &mut Attacker,
        peer: &PeerKey,
        (samples, values, is_true): (Vec<SampleId>, Vec<f32>, bool),
        transfer_ms: Option<u64>,
    ) {
        let Some(key) = attacker.keys.get_mut(peer) else { return };
        key.is_waiting = true;
        key.next_id += 1;
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let offer = Offer {
            contribution_id: key.next_id,
            epoch: self.round.epoch(),
            n_samples: samples.len() as u32,
            loss: 1.0,
            n_values: model::N as u64,
            codec: TensorCodec::F32,
            transfer: Transfer::of(&bytes),
        };
        attacker.offered.insert((peer.clone(), key.next_id), is_true);
        let contribution =
            Contribution { peer: peer.clone(), group: GROUP, offer, samples, values, is_true, transfer_ms };
        self.send(OpenRunEvent::Offer(Box::new(contribution)));
    }
}
