//! Feeds the runtime of a host: requests of trainers in, batches to the device, answers out. Takes up the places that it has leases
//! for, stores their experts, and hands them over.

use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use barnraise_learning::hosted::ExpertState;
use barnraise_protocol::bulk::Transfer;
use barnraise_protocol::experts::ExpertPlace;
use barnraise_protocol::experts::checkpoints::{CheckpointVersion, ExpertCheckpoint};
use barnraise_protocol::experts::leases::ExpertLease;
use barnraise_relay::tasks::{self, TaskSet};
use barnraise_swarm::experts::serving::{CountedState, ServingAction};
use futures::StreamExt as _;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::super::display::Display;
use super::device::{AddError, ExpertJob, JobDone, StartedDevice};
use super::leasing::{self, EVENTS_MAX, LeaseEvent};
use super::places::HeldPlaces;
use super::state::{HostState, ServedExpert};
use super::store::{ExpertStore, StoredExpert};
use super::{announce, answer, batches, copies, gate, keep, shown};
use crate::host::expert_hosts::layers::layer_of;

/// Interval of what is said about the work.
const SAY_EVERY: Duration = Duration::from_secs(10);
/// New places are said together after so long.
const SAY_PLACES_AFTER: Duration = Duration::from_millis(500);
/// Longest wait for what the device has, and for the keepers, when the host leaves.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(60);
/// After so many states from which the device cannot go on, an expert begins anew.
const STATES_MAX: usize = 3;
/// Experts that are handed over at a time.
const HANDING_MAX: usize = 4;
/// Longest wait until the backbone knows that the places are free.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);
/// Without a deadline the clock is looked at again after so long.
const IDLE: Duration = Duration::from_secs(3600);

/// What a host does, and with what.
pub(super) struct ExpertHosting<'a> {
    pub(super) state: Arc<HostState>,
    pub(super) store: ExpertStore,
    pub(super) display: &'a Display,
    /// Experts that it hosts at most.
    pub(super) n_room: u32,
}

/// A place that was leased, with what disk and swarm have of it.
type ReadyPlace = (ExpertLease, Option<StoredExpert>);

/// What was stored, for its keepers.
struct StoredCheckpoint {
    lease: ExpertLease,
    version: CheckpointVersion,
    bytes: Arc<[u8]>,
}

impl ExpertHosting<'_> {
    /// Hosts until `leaving`, then stores the experts and hands them over.
    ///
    /// # Errors
    /// The node has another host already, or the thread that computes has ended.
    pub(super) async fn serve(self, device: StartedDevice, leaving: CancellationToken) -> anyhow::Result<()> {
        let StartedDevice { jobs, mut results } = device;
        let state = &self.state;
        let _gated = gate::spawn(&state.home.node, state)?;
        let _keeping_gate = gate::spawn_keeping(state.clone());
        let _answering = answer::spawn(&state.home.node, state)?;
        let _keeping = keep::spawn(&state.home.node, state)?;
        let _announcing = announce::spawn(state.clone());
        let (events, mut leased) = mpsc::channel(EVENTS_MAX);
        let _leasing = leasing::spawn(state.clone(), self.n_room, events);
        let (ready, mut gathered) = mpsc::channel::<ReadyPlace>(1);
        let gathering = TaskSet::default();
        let (stored, mut to_give) = mpsc::channel::<StoredCheckpoint>(1);
        let (given, mut kept) = mpsc::channel(1);
        let giver = state.clone();
        let _giving = tasks::spawn("giving checkpoints to keepers", async move {
            while let Some(StoredCheckpoint { lease, version, bytes }) = to_give.recv().await {
                let place = lease.place;
                let n_keepers = give(&giver, lease, version, &bytes).await;
                let n_steps = version.n_steps;
                tracing::debug!(expert = %place.1, n_steps, n_keepers, "a checkpoint was given to its keepers");
                if given.send((place, version, n_keepers)).await.is_err() {
                    return;
                }
            }
        });
        let [a, b, c, d, e, f, g, h, ..] = state.key.public().0;
        let mut places = HeldPlaces::new(u64::from_le_bytes([a, b, c, d, e, f, g, h]));
        let mut say_at = tokio::time::interval(SAY_EVERY);
        let mut say_places_at = None;
        loop {
            self.act(&mut places);
            self.store_next(&mut places, stored.capacity() > 0);
            places.flush(&jobs)?;
            if !places.news.is_empty() && say_places_at.is_none() {
                say_places_at = Some(tokio::time::Instant::now() + SAY_PLACES_AFTER);
            }
            let deadline = state.lock().runtime.next_deadline();
            let due = if places.is_storing { None } else { places.schedule.next_deadline() };
            let deadline = [deadline, due].into_iter().flatten().min();
            let wait = deadline.map_or(IDLE, |deadline| deadline.saturating_sub(state.now()));
            tokio::select! {
                () = leaving.cancelled() => break,
                () = state.changed.notified() => {}
                done = results.recv() => match done {
                    Some(done) => drop(self.on_done(&mut places, done, Some(&stored)).await),
                    None => bail!("the thread that computes has ended"),
                },
                Some(event) = leased.recv() => self.on_event(&mut places, event, (&gathering, &ready)),
                Some((lease, stored)) = gathered.recv() => self.on_gathered(&mut places, lease, stored),
                Some((place, version, n_keepers)) = kept.recv() => {
                    places.schedule.on_offered(state.now(), &place, version, n_keepers);
                }
                () = at(say_places_at) => {
                    say_places_at = None;
                    self.say_places(&std::mem::take(&mut places.news));
                }
                _ = say_at.tick() => self.say(),
                () = tokio::time::sleep(wait) => state.with(|runtime, now| runtime.on_timeout(now)),
            }
            // A place that was leased again while it was stopping.
            for (place, lease) in std::mem::take(&mut places.deferred) {
                if places.stopping.contains(&place) {
                    places.deferred.insert(place, lease);
                } else {
                    self.gather(&mut places, lease, (&gathering, &ready));
                }
            }
            for lease in std::mem::take(&mut places.retried) {
                self.gather(&mut places, lease, (&gathering, &ready));
            }
        }
        drop(gathering);
        state.with(|runtime, _| runtime.on_drain());
        state.with_leases(|leases, _| leases.on_leaving());
        let ending = self.end(&mut places, jobs, results);
        let ended = tokio::time::timeout(LEAVE_TIMEOUT, async {
            let stored = ending.await?;
            // What one of them waits for holds up no other.
            let handing = stored.into_iter().map(|checkpoint| self.hand_over(checkpoint));
            futures::stream::iter(handing).buffer_unordered(HANDING_MAX).collect::<()>().await;
            anyhow::Ok(())
        })
        .await;
        self.release().await;
        match ended {
            Ok(ended) => ended.map(|()| self.display.say("All experts are handed over.")),
            Err(_) => bail!(
                "some experts were not handed over within {LEAVE_TIMEOUT:?}; those on the disk stay there"
            ),
        }
    }

    fn on_event(
        &self,
        places: &mut HeldPlaces,
        event: LeaseEvent,
        gathering: (&TaskSet, &mpsc::Sender<ReadyPlace>),
    ) {
        match event {
            LeaseEvent::Host(lease) => {
                let place = lease.place;
                if places.stopping.contains(&place) {
                    places.deferred.insert(place, lease);
                } else if places.numbers.values().any(|known| *known == place) {
                    // It is here, under a term that has begun meanwhile.
                    places.terms.insert(place, lease.term);
                } else {
                    self.gather(places, lease, gathering);
                }
            }
            LeaseEvent::Stop(place) => self.stop(places, place),
            LeaseEvent::Yield((layer, uid)) => {
                let layer = layer.0;
                self.display
                    .say(&format!("Another host has the expert {uid} of layer {layer}: it stays there."));
            }
        }
    }

    /// Gets the newest state of a place: from the disk, or from other peers.
    fn gather(
        &self,
        places: &mut HeldPlaces,
        lease: ExpertLease,
        (gathering, ready): (&TaskSet, &mpsc::Sender<ReadyPlace>),
    ) {
        let (place, state) = (lease.place, self.state.clone());
        let (store, ready, display) = (self.store.clone(), ready.clone(), self.display.clone());
        let turns = places.gathering_turns.clone();
        let refused = places.refused.get(&place).cloned().unwrap_or_default();
        let task = async move {
            let Ok(_turn) = turns.acquire_owned().await else { return };
            if refused.len() >= STATES_MAX {
                drop(ready.send((lease, None)).await);
                return;
            }
            let own = match store.load(place).await {
                Ok(own) => own,
                Err(error) => {
                    display.say(&format!("An expert on this disk cannot be read: {error}"));
                    // Its file stays as it is.
                    state.with_leases(|leases, now| leases.on_given_up(now, &place));
                    return;
                }
            };
            let own = own.filter(|own| !refused.contains(&own.version()));
            let own = own.filter(|own| match layer_of(&state.layers, place).map(|layer| own.check(layer)) {
                Some(Err(error)) => {
                    display.say(&format!("An expert on this disk is of no use: {error}"));
                    false
                }
                _ => true,
            });
            let version = own.as_ref().map(StoredExpert::version);
            match copies::newest(&state, place, version, refused).await {
                Ok(newest) => drop(ready.send((lease, newest.or(own))).await),
                Err(error) => {
                    // To begin it anew would lose what it has learned elsewhere.
                    tracing::debug!(expert = %place.1, %error, "an expert is not taken over");
                    state.with_leases(|leases, now| leases.on_given_up(now, &place));
                }
            }
        };
        if let Some(before) = places.gathering.insert(place, gathering.spawn("taking an expert", task)) {
            before.abort();
        }
    }

    fn on_gathered(&self, places: &mut HeldPlaces, lease: ExpertLease, stored: Option<StoredExpert>) {
        let place = lease.place;
        if places.gathering.remove(&place).is_none() || self.state.lease(&place).is_none() {
            return;
        }
        let expert = places.n_numbers;
        places.n_numbers += 1;
        places.numbers.insert(expert, place);
        places.terms.insert(place, lease.term);
        places.jobs.push_back(ExpertJob::Add { expert, lease, stored });
    }

    /// A lease is over: nothing more is computed, and what was learned is stored.
    fn stop(&self, places: &mut HeldPlaces, place: ExpertPlace) {
        places.deferred.remove(&place);
        places.refused.remove(&place);
        places.retried.retain(|lease| lease.place != place);
        places.not_given.retain(|known| *known != place);
        places.news.retain(|new| *new != place);
        if let Some(gathering) = places.gathering.remove(&place) {
            gathering.abort();
        }
        let number = places.numbers.iter().find(|(_, known)| **known == place).map(|(number, _)| *number);
        let Some(expert) = number else { return };
        if !places.stopping.insert(place) {
            return;
        }
        places.schedule.on_removed(&place);
        self.state.with(|runtime, now| runtime.on_expert_closed(now, expert));
        self.state.lock().experts.remove(&place);
        // Batches that the runtime has given come before.
        self.act(places);
        places.jobs.push_back(ExpertJob::Remove { expert });
    }

    /// Gives the last state of an expert to its keepers, and its place to other hosts.
    async fn hand_over(&self, StoredCheckpoint { lease, version, bytes }: StoredCheckpoint) {
        let place = lease.place;
        give(&self.state, lease, version, &bytes).await;
        self.state.with_leases(|leases, now| leases.on_given_up(now, &place));
    }

    /// Computes what it has, and stores all experts.
    async fn end(
        &self,
        places: &mut HeldPlaces,
        jobs: mpsc::Sender<ExpertJob>,
        mut results: mpsc::Receiver<JobDone>,
    ) -> anyhow::Result<Vec<StoredCheckpoint>> {
        self.act(places);
        let hosted: Vec<ExpertPlace> = places.numbers.values().copied().collect();
        hosted.into_iter().for_each(|place| self.stop(places, place));
        let mut jobs = Some(jobs);
        let mut stored = Vec::new();
        loop {
            self.act(places);
            if let Some(sender) = &jobs {
                places.flush(sender)?;
            }
            if places.jobs.is_empty() {
                // The thread ends once it has done what it has.
                jobs = None;
            }
            match results.recv().await {
                Some(done) => stored.extend(self.on_done(places, done, None).await),
                None => return Ok(stored),
            }
        }
    }

    /// Gives all leases back, so that others need not wait until they expire.
    async fn release(&self) {
        let state = &self.state;
        state.with_leases(|leases, now| {
            let held: Vec<ExpertPlace> = leases.places().collect();
            held.iter().for_each(|place| leases.on_given_up(now, place));
        });
        let settled = async {
            while !state.with_leases(|leases, _| leases.is_settled()) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let _ = tokio::time::timeout(RELEASE_TIMEOUT, settled).await;
    }

    /// Does all that the runtime wants.
    fn act(&self, places: &mut HeldPlaces) {
        let state = &self.state;
        loop {
            let action = state.lock().runtime.poll_action();
            match action {
                None => return,
                Some(ServingAction::Compute(batch)) => {
                    places.jobs.push_back(batches::gather_rows(state, &batch));
                }
                Some(ServingAction::Refuse { key, refusal }) => {
                    if let Some(held) = state.lock().held.remove(&key) {
                        let _ = held.answer.send(Err(refusal));
                    }
                }
                Some(ServingAction::Drop(key)) => {
                    state.lock().held.remove(&key);
                }
            }
        }
    }

    /// Has the device tell the state of the expert that is due, one after the other. Where the giver has room, the one that has
    /// waited for it the longest comes first; where it has none, the disk is not kept waiting.
    fn store_next(&self, places: &mut HeldPlaces, has_room: bool) {
        if places.is_storing {
            return;
        }
        let waiting = if has_room { places.not_given.pop_front() } else { None };
        let due = waiting.or_else(|| places.schedule.next_due(self.state.now()));
        let Some(place) = due else { return };
        if let Some(expert) = self.state.lock().experts.get(&place) {
            places.jobs.push_back(ExpertJob::Store { expert: expert.number });
            places.is_storing = true;
        }
    }

    /// `giver` is where checkpoints are given away. Returns what was stored of an expert that is removed.
    async fn on_done(
        &self,
        places: &mut HeldPlaces,
        done: JobDone,
        giver: Option<&mpsc::Sender<StoredCheckpoint>>,
    ) -> Option<StoredCheckpoint> {
        let state = &self.state;
        match done {
            JobDone::Computed { batch, result } => {
                let place = places.numbers.get(&batch.expert).copied();
                batches::on_computed(state, &batch, place, result);
            }
            JobDone::Added { expert, lease, result } => self.on_added(places, expert, &lease, result),
            JobDone::Store { expert, state: of_expert } => {
                places.is_storing = false;
                let counted = state.lock().runtime.counted(expert).unwrap_or_default();
                let place = *places.numbers.get(&expert)?;
                let checkpoint = self.save(places, place, of_expert, counted).await?;
                if places.schedule.is_offered(state.now(), &place, checkpoint.version)
                    && let Some(giver) = giver
                {
                    // Others are on their way; the disk has it.
                    if giver.try_send(checkpoint).is_err() {
                        places.on_not_given(place);
                    }
                }
            }
            JobDone::Removed { expert, state: of_expert } => {
                let counted = state.lock().runtime.counted(expert).unwrap_or_default();
                state.with(|runtime, now| runtime.on_expert_removed(now, expert));
                let place = places.numbers.remove(&expert)?;
                let saved = self.save(places, place, of_expert, counted).await;
                places.stopping.remove(&place);
                return saved;
            }
        }
        None
    }

    fn on_added(
        &self,
        places: &mut HeldPlaces,
        expert: u32,
        lease: &ExpertLease,
        result: Result<(CountedState, u64), AddError>,
    ) {
        let (state, place) = (&self.state, lease.place);
        let added = result.and_then(|(counted, n_steps)| {
            let added = state.with(|runtime, now| runtime.on_expert_added(now, expert, &counted));
            added.map_err(anyhow::Error::from)?;
            if places.stopping.contains(&place) {
                // What it has counted is stored with it, and nothing more is computed.
                state.with(|runtime, now| runtime.on_expert_closed(now, expert));
            } else {
                state.lock().experts.insert(place, ServedExpert { number: expert, n_steps });
            }
            Ok(())
        });
        match added {
            Ok(()) if places.stopping.contains(&place) => {}
            Ok(()) => {
                places.refused.remove(&place);
                places.schedule.on_hosted(state.now(), place);
                places.news.push(place);
            }
            Err(error) => {
                let (layer, uid) = (place.0.0, place.1);
                self.display.say(&format!("The expert {uid} of layer {layer} cannot be served: {error}"));
                places.numbers.remove(&expert);
                let is_stopping = places.stopping.remove(&place);
                // The lease is kept: given up, the place would come again, here or at another host, with the same state.
                if let AddError::State { version, .. } = error
                    && !is_stopping
                {
                    places.on_no_state(lease, version);
                    return;
                }
                places.refused.remove(&place);
                state.with_leases(|leases, now| leases.on_given_up(now, &place));
            }
        }
    }

    /// Stores the state of an expert. Returns what its keepers get, if there was a lease for it.
    async fn save(
        &self,
        places: &HeldPlaces,
        place: ExpertPlace,
        state: ExpertState,
        counted: CountedState,
    ) -> Option<StoredCheckpoint> {
        let term = *places.terms.get(&place)?;
        let stored = StoredExpert { term, state, counted };
        let version = stored.version();
        let bytes = match stored.sealed().await {
            Ok(bytes) => bytes,
            Err(error) => {
                self.display.say(&format!("An expert could not be stored: {error}"));
                return None;
            }
        };
        if let Err(error) = self.store.save(place, bytes.clone()).await {
            self.display.say(&format!("An expert could not be stored: {error}"));
        }
        let lease = self.state.lease(&place).filter(|lease| lease.term == term)?;
        Some(StoredCheckpoint { lease, version, bytes })
    }

    fn say_places(&self, news: &[ExpertPlace]) {
        let inner = self.state.lock();
        let (n_all, n_news, id) = (inner.experts.len(), news.len(), &self.state.run_id);
        let n_steps: u64 =
            news.iter().filter_map(|place| inner.experts.get(place)).map(|it| it.n_steps).sum();
        drop(inner);
        self.display.say(&format!(
            "Hosting {n_all} experts of `{id}`, {n_news} of them now, with {n_steps} steps behind them: {}",
            shown(news)
        ));
    }

    fn say(&self) {
        let mut inner = self.state.lock();
        let (n_forward, n_backward) = (inner.n_forward, inner.n_backward);
        (inner.n_forward, inner.n_backward) = (0, 0);
        let n_steps: u64 = inner.experts.values().map(|expert| expert.n_steps).sum();
        let speed = inner.runtime.load().rows_per_second;
        drop(inner);
        if n_forward + n_backward > 0 {
            self.display.say(&format!(
                "{n_forward} rows computed and {n_backward} learned from in {} s, {n_steps} steps in all; the device does {speed:.0} rows a second.",
                SAY_EVERY.as_secs()
            ));
        }
    }
}

/// Gives a checkpoint to its keepers; returns how many have it.
async fn give(state: &HostState, lease: ExpertLease, version: CheckpointVersion, bytes: &Arc<[u8]>) -> usize {
    let hashing = {
        let bytes = bytes.clone();
        move || Transfer::of(&bytes)
    };
    let transfer = crate::computing::compute(bytes.len(), hashing).await;
    match ExpertCheckpoint::sign(&state.key, &state.run_id, (lease, version.n_steps, transfer)) {
        Ok(checkpoint) => copies::give(state, &checkpoint, bytes).await,
        Err(_) => 0,
    }
}

async fn at(moment: Option<tokio::time::Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}
