//! Feeds the runtime of a host: requests of trainers in, batches to the device, answers out. Takes up the places that it has leases
//! for, stores their experts, and hands them over.

mod commands;

use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use barnraise_contributor::hosting::{
    AddError, CopyState, ExpertJob, JobDone, LastAveraged, StoredCheckpoint, StoredExpert, give_stored,
    newest, other_copies,
};
use barnraise_learning::hosted::{ExpertState, layer_of};
use barnraise_protocol::experts::ExpertPlace;
use barnraise_protocol::experts::checkpoints::CheckpointVersion;
use barnraise_protocol::experts::leases::ExpertLease;
use barnraise_relay::tasks::{self, TaskSet};
use barnraise_swarm::experts::checkpoints::LostCheck;
use barnraise_swarm::experts::leases::HANDED_MAX;
use barnraise_swarm::experts::serving::CountedState;
use futures::StreamExt as _;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::super::display::Display;
use super::control::HostRequest;
use super::device::StartedDevice;
use super::handing::{HandingTasks, HandoverNews, hand_over};
use super::leasing::{self, EVENTS_MAX, LeaseEvent};
use super::places::HeldPlaces;
use super::saving::{ExpertSaver, ExpertToSave, SavedExpert};
use super::state::{HostState, ServedExpert};
use super::store::ExpertStore;
use super::{announce, answer, batches, gate, keep, lost, shown};

/// Interval of what is said about the work.
const SAY_EVERY: Duration = Duration::from_secs(10);
/// New places are said together after so long.
const SAY_PLACES_AFTER: Duration = Duration::from_millis(500);
/// Longest wait for what the device has, and for the keepers, when the host leaves.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(60);
/// After so many states from which the device cannot go on, an expert begins anew.
const STATES_MAX: usize = 3;
/// Longest wait until the backbone knows that the places are free.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);
/// Without a deadline the clock is looked at again after so long.
const IDLE: Duration = Duration::from_secs(3600);

/// What a host does, and with what.
pub(super) struct ExpertHosting<'a> {
    pub(super) state: Arc<HostState>,
    pub(super) store: ExpertStore,
    pub(super) display: &'a Display,
}

/// A place that was leased, with what disk and swarm have of it.
type ReadyPlace = (ExpertLease, Option<StoredExpert>);

/// A file that was compared with what other peers have: its version, and theirs.
type CheckedFile = (LostCheck, Option<(CheckpointVersion, CheckpointVersion)>);

/// A place that is served no longer, with what its keepers get, if there is a lease for it, and whether this host needs them for its
/// last state: the disk has not taken it.
type RemovedPlace = (ExpertPlace, Option<StoredCheckpoint>, bool);

impl ExpertHosting<'_> {
    /// Hosts until `leaving` or until the operator has drained it, then stores the experts and hands them over.
    ///
    /// # Errors
    /// The node has another host already, or the thread that computes has ended.
    pub(super) async fn serve(
        self,
        device: StartedDevice,
        mut requests: mpsc::Receiver<HostRequest>,
        leaving: CancellationToken,
    ) -> anyhow::Result<()> {
        let StartedDevice { compute, jobs, mut results } = device;
        let state = &self.state;
        let _gated = gate::spawn(&state.home.node, state)?;
        let _keeping_gate = gate::spawn_keeping(state.clone());
        let _answering = answer::spawn(&state.home.node, state)?;
        let _keeping = keep::spawn(&state.home.node, state)?;
        let _announcing = announce::spawn(state.clone());
        let (events, mut leased) = mpsc::channel(EVENTS_MAX);
        let _leasing = leasing::spawn(state.clone(), events);
        let (ready, mut gathered) = mpsc::channel::<ReadyPlace>(1);
        let gathering = TaskSet::default();
        let mut saver = ExpertSaver::new(self.store.clone());
        let (stored, mut kept, _giving) = spawn_giving(state.clone());
        let (to_take, mut taken, _taking) = spawn_taking(state.clone());
        let (handing, mut handed) = HandingTasks::new();
        let mut places = HeldPlaces::new(state.signer.key.public().seed());
        let (compared, mut checked) = mpsc::channel::<CheckedFile>(1);
        for place in self.store.places(&state.layers).await? {
            places.lost.on_lost(state.now(), place);
        }
        let mut say_at = tokio::time::interval(SAY_EVERY);
        let mut say_places_at = None;
        // On a graphics processor that is lost nothing is computed any more: the experts go to other hosts.
        while !compute.is_lost() {
            self.act(&mut places);
            self.store_next(&mut places, stored.capacity() > 0);
            self.check_next(&mut places, (&gathering, &compared));
            if self.hand_over_next(&mut places, &handing) {
                break;
            }
            places.flush(&jobs)?;
            if !places.news.is_empty() && say_places_at.is_none() {
                say_places_at = Some(tokio::time::Instant::now() + SAY_PLACES_AFTER);
            }
            let deadline = state.lock().requests.runtime.next_deadline();
            let due = if places.is_storing { None } else { places.schedule.next_deadline() };
            let handover = places.handover.as_ref().and_then(|handover| handover.next_deadline(state.now()));
            let deadline = [deadline, due, handover, places.lost.next_deadline()].into_iter().flatten().min();
            let wait = deadline.map_or(IDLE, |deadline| deadline.saturating_sub(state.now()));
            tokio::select! {
                () = leaving.cancelled() => break,
                () = state.changed.notified() => {}
                done = results.recv(), if saver.has_room() => match done {
                    Some(done) => self.on_done(&mut places, done, &mut saver)?,
                    None => bail!("the thread that computes has ended"),
                },
                saved = saver.saved() => match saved {
                    Some(saved) => {
                        let removed = self.on_saved(&mut places, saved, Some(&stored));
                        if let Some((place, checkpoint, _)) = removed.filter(|(place, ..)| places.is_leaving(place)) {
                            let time = places.time_to_give(state.now());
                            handing.give_back(state.clone(), place, (checkpoint, time));
                        }
                    }
                    None => bail!("the task that stores experts has ended"),
                },
                Some(event) = leased.recv() => self.on_event(&mut places, event, (&gathering, &ready)),
                Some((lease, stored)) = gathered.recv() => self.on_gathered(&mut places, lease, stored),
                Some((check, versions)) = checked.recv() => {
                    // A copy is not on the disk: the file is that of the expert itself, and needed no longer.
                    let serves = state.lease(&check.place).is_some_and(|lease| lease.copy == 0);
                    if places.lost.on_checked(check, versions) && !serves {
                        saver.forget(check.place);
                    }
                }
                Some((place, version, n_keepers)) = kept.recv() => {
                    places.schedule.on_offered(state.now(), &place, version, n_keepers);
                    match state.lease(&place) {
                        // Where others are taken for long, in another minute.
                        Some(lease) if state.has_copies(&place) => {
                            let _ = to_take.try_send((lease, places.averaged.of(&place)));
                        }
                        Some(lease) => self.on_copies(&mut places, &lease, None),
                        None => {}
                    }
                }
                Some((lease, others)) = taken.recv() => self.on_copies(&mut places, &lease, others),
                Some(HostRequest { command, answer }) = requests.recv() => {
                    // The operator may have gone.
                    let _ = answer.send(self.on_command(&mut places, command).await);
                }
                Some(news) = handed.recv() => places.on_handed(state.now(), news),
                () = at(say_places_at) => {
                    say_places_at = None;
                    self.say_places(&std::mem::take(&mut places.news));
                }
                _ = say_at.tick() => self.say(),
                () = tokio::time::sleep(wait) => state.with(|runtime, now| runtime.on_timeout(now)),
            }
            self.gather_again(&mut places, (&gathering, &ready));
        }
        drop(gathering);
        state.with(|runtime, _| runtime.on_drain());
        state.with_leases(|leases, _| leases.on_leaving());
        let ending = self.end(&mut places, &mut saver, (jobs, results));
        let ended = tokio::time::timeout(LEAVE_TIMEOUT, async {
            let stored = ending.await?;
            // What one of them waits for holds up no other.
            let handing = stored.into_iter().map(|(place, last, is_needed)| async move {
                let n_keepers = hand_over(state, place, (last, LEAVE_TIMEOUT)).await;
                usize::from(is_needed && n_keepers == 0)
            });
            let handed = futures::stream::iter(handing).buffer_unordered(HANDED_MAX);
            anyhow::Ok(handed.collect::<Vec<usize>>().await.iter().sum::<usize>())
        })
        .await;
        self.release().await;
        self.on_drained();
        match ended {
            Ok(ended) => match ended? {
                0 => self.display.say("All experts are handed over."),
                n_lost => bail!(
                    "the last steps of {n_lost} experts are lost: the disk did not take them, and nobody else keeps them"
                ),
            },
            Err(_) => bail!(
                "some experts were not handed over within {LEAVE_TIMEOUT:?}; those on the disk stay there"
            ),
        }
        Ok(compute.check()?)
    }

    /// Gathers places that were leased again while they were stopping, and those that need another state.
    fn gather_again(&self, places: &mut HeldPlaces, gathering: (&TaskSet, &mpsc::Sender<ReadyPlace>)) {
        for (place, lease) in std::mem::take(&mut places.deferred) {
            if places.stopping.contains(&place) {
                places.deferred.insert(place, lease);
            } else {
                self.gather(places, lease, gathering);
            }
        }
        for lease in std::mem::take(&mut places.retried) {
            self.gather(places, lease, gathering);
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
                    places.terms.insert(place, (lease.copy, lease.term));
                    if let Some(expert) = self.state.lock().experts.get_mut(&place) {
                        expert.term = lease.term;
                    }
                } else {
                    self.gather(places, lease, gathering);
                }
            }
            LeaseEvent::Stop(place) => {
                if let Some(handover) = &mut places.handover {
                    handover.on_lost(self.state.now(), &place);
                }
                self.stop(places, place);
            }
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
        // A term may have begun since this one was to be gathered.
        let lease = state.lease(&place).unwrap_or(lease);
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
            match newest(&*state, place, version, refused).await {
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
        // What came for a lease before is not what the next one begins with: others may have stepped the expert since.
        let is_current = self.state.lease(&place).is_some_and(|held| held.term == lease.term);
        if !is_current || places.gathering.remove(&place).is_none() {
            return;
        }
        if lease.copy == 0 {
            places.lost.on_held(&place);
        }
        let expert = places.n_numbers;
        places.n_numbers += 1;
        places.numbers.insert(expert, place);
        places.terms.insert(place, (lease.copy, lease.term));
        places.jobs.push_back(ExpertJob::Add { expert, lease, stored });
    }

    /// A lease is over: nothing more is computed, and what was learned is stored.
    fn stop(&self, places: &mut HeldPlaces, place: ExpertPlace) {
        places.deferred.remove(&place);
        places.refused.remove(&place);
        places.averaged.on_removed(&place);
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

    /// Computes what it has, and stores all experts.
    async fn end(
        &self,
        places: &mut HeldPlaces,
        saver: &mut ExpertSaver,
        (jobs, mut results): (mpsc::Sender<ExpertJob>, mpsc::Receiver<JobDone>),
    ) -> anyhow::Result<Vec<RemovedPlace>> {
        self.act(places);
        let hosted: Vec<ExpertPlace> = places.numbers.values().copied().collect();
        hosted.into_iter().for_each(|place| self.stop(places, place));
        let (mut jobs, mut is_computed) = (Some(jobs), false);
        let mut removed = Vec::new();
        while !is_computed || !saver.is_idle() {
            self.act(places);
            if let Some(sender) = &jobs {
                places.flush(sender)?;
            }
            if places.jobs.is_empty() {
                // The thread ends once it has done what it has.
                jobs = None;
            }
            tokio::select! {
                done = results.recv(), if !is_computed && saver.has_room() => match done {
                    Some(done) => self.on_done(places, done, saver)?,
                    None => is_computed = true,
                },
                saved = saver.saved() => match saved {
                    Some(saved) => removed.extend(self.on_saved(places, saved, None)),
                    None => bail!("the task that stores experts has ended"),
                },
            }
        }
        Ok(removed)
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
        let mut inner = state.lock();
        while let Some(batch) = inner.requests.next_batch() {
            let layer = places.numbers.get(&batch.expert).map(|(layer, _)| *layer);
            let is_frozen = layer.is_some_and(|layer| inner.is_frozen(layer));
            places.jobs.push_back(inner.requests.job(batch, is_frozen));
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

    /// Compares the file of the next expert that is not served here with what other peers have of it.
    fn check_next(&self, places: &mut HeldPlaces, (tasks, compared): (&TaskSet, &mpsc::Sender<CheckedFile>)) {
        let Some(check) = places.lost.next_check(self.state.now()) else { return };
        let (state, store, compared) = (self.state.clone(), self.store.clone(), compared.clone());
        let turns = places.gathering_turns.clone();
        tasks.spawn("checking the file of an expert", async move {
            let Ok(_turn) = turns.acquire_owned().await else { return };
            let versions = lost::versions(&state, &store, check.place).await;
            // The driver may have ended.
            let _ = compared.send((check, versions)).await;
        });
    }

    /// What the device has done. `saver` has room.
    ///
    /// # Errors
    /// The task that stores experts has ended.
    fn on_done(&self, places: &mut HeldPlaces, done: JobDone, saver: &mut ExpertSaver) -> anyhow::Result<()> {
        let state = &self.state;
        match done {
            JobDone::Computed { batch, result } => {
                let place = places.numbers.get(&batch.expert).copied();
                batches::on_computed(state, &batch, place, result);
            }
            JobDone::Added { expert, lease, result } => self.on_added(places, expert, &lease, result),
            JobDone::Store { expert, state: of_expert } => {
                match self.to_save(places, (expert, of_expert), false) {
                    Some(expert) => saver.save(expert)?,
                    None => places.is_storing = false,
                }
            }
            JobDone::Averaged { expert, n_steps } => {
                let (place, mut inner) = (places.numbers.get(&expert), state.lock());
                if let Some(expert) = place.and_then(|place| inner.experts.get_mut(place)) {
                    expert.n_steps = n_steps;
                }
            }
            JobDone::Removed { expert, state: of_expert } => {
                let last = self.to_save(places, (expert, of_expert), true);
                state.with(|runtime, now| runtime.on_expert_removed(now, expert));
                places.numbers.remove(&expert);
                if let Some(last) = last {
                    saver.save(last)?;
                }
            }
        }
        Ok(())
    }

    /// A state that the device gave, with what the expert has counted until then.
    fn to_save(
        &self,
        places: &HeldPlaces,
        (expert, state): (u32, ExpertState),
        is_last: bool,
    ) -> Option<ExpertToSave> {
        let counted = self.state.lock().requests.runtime.counted(expert).unwrap_or_default();
        let place = *places.numbers.get(&expert)?;
        let (copy, term) = *places.terms.get(&place)?;
        Some(ExpertToSave { place, copy, stored: StoredExpert { term, state, counted }, is_last })
    }

    /// A state was stored, or could not be. `giver` is where checkpoints are given away. Returns the place of an expert that was
    /// removed.
    fn on_saved(
        &self,
        places: &mut HeldPlaces,
        saved: SavedExpert,
        giver: Option<&mpsc::Sender<StoredCheckpoint>>,
    ) -> Option<RemovedPlace> {
        let SavedExpert { place, copy, version, is_last, bytes, error } = saved;
        let (state, now) = (&self.state, self.state.now());
        let is_needed = error.is_some();
        match error {
            Some(error) => self.display.say(&format!("An expert could not be stored: {error}")),
            None => {
                if let Some(expert) = state.lock().experts.get_mut(&place).filter(|_| copy == 0) {
                    expert.stored_at = Some(now);
                }
            }
        }
        let lease = state.lease(&place).filter(|lease| lease.term == version.term);
        let checkpoint = lease.zip(bytes).map(|(lease, bytes)| StoredCheckpoint { lease, version, bytes });
        if is_last {
            places.stopping.remove(&place);
            if copy == 0 {
                places.lost.on_lost(now, place);
            }
            return Some((place, checkpoint, is_needed));
        }
        places.is_storing = false;
        // Where others are on their way, the disk has it.
        if let Some(checkpoint) = checkpoint
            && places.schedule.is_offered(now, &place, version)
            && let Some(giver) = giver
            && giver.try_send(checkpoint).is_err()
        {
            places.on_not_given(place);
        }
        None
    }

    /// What the other copies of an expert have learned is here: the device averages them.
    fn on_copies(&self, places: &mut HeldPlaces, lease: &ExpertLease, others: Option<Vec<CopyState>>) {
        let (place, inner) = (lease.place, self.state.lock());
        let served = inner.experts.get(&place).filter(|expert| expert.term == lease.term);
        let Some(expert) = served.filter(|_| !inner.is_frozen(place.0)) else { return };
        places.jobs.extend(places.averaged.job((place, expert.number), others));
    }

    fn on_added(
        &self,
        places: &mut HeldPlaces,
        expert: u32,
        lease: &ExpertLease,
        result: Result<(CountedState, u64), AddError>,
    ) {
        let (state, place) = (&self.state, lease.place);
        let term = places.terms.get(&place).map_or(lease.term, |(_, term)| *term);
        let added = result.and_then(|(counted, n_steps)| {
            state.with(|runtime, now| runtime.on_expert_added(now, expert, &counted))?;
            if places.stopping.contains(&place) {
                // What it has counted is stored with it, and nothing more is computed.
                state.with(|runtime, now| runtime.on_expert_closed(now, expert));
            } else {
                let served = ServedExpert { number: expert, term, n_steps, n_requests: 0, stored_at: None };
                state.lock().experts.insert(place, served);
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
                places.on_handed(state.now(), HandoverNews::GivenBack(place));
            }
        }
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
        let requests = &mut inner.requests;
        let (n_forward, n_backward) =
            (std::mem::take(&mut requests.n_forward), std::mem::take(&mut requests.n_backward));
        let n_steps: u64 = inner.experts.values().map(|expert| expert.n_steps).sum();
        let speed = inner.requests.runtime.load().rows_per_second;
        drop(inner);
        if n_forward + n_backward > 0 {
            self.display.say(&format!(
                "{n_forward} rows computed and {n_backward} learned from in {} s, {n_steps} steps in all; the device does {speed:.0} rows a second.",
                SAY_EVERY.as_secs()
            ));
        }
    }
}

/// A checkpoint that was given to so many keepers.
type KeptCheckpoint = (ExpertPlace, CheckpointVersion, usize);

/// Gives checkpoints to their keepers, one after the other, until the handle is dropped.
fn spawn_giving(
    state: Arc<HostState>,
) -> (mpsc::Sender<StoredCheckpoint>, mpsc::Receiver<KeptCheckpoint>, AbortOnDropHandle<()>) {
    let (stored, mut to_give) = mpsc::channel::<StoredCheckpoint>(1);
    let (given, kept) = mpsc::channel(1);
    let giving = tasks::spawn("giving checkpoints to keepers", async move {
        while let Some(checkpoint) = to_give.recv().await {
            let (place, version) = (checkpoint.lease.place, checkpoint.version);
            let n_keepers = give_stored(&*state, checkpoint).await;
            let n_steps = version.n_steps;
            tracing::debug!(expert = %place.1, n_steps, n_keepers, "a checkpoint was given to its keepers");
            if given.send((place, version, n_keepers)).await.is_err() {
                return;
            }
        }
    });
    (stored, kept, giving)
}

/// An expert's lease, and what the other copies have learned.
type TakenCopies = (ExpertLease, Option<Vec<CopyState>>);

/// Takes what the other copies of experts have learned since they were averaged, one expert after the other, until the handle is dropped.
fn spawn_taking(
    state: Arc<HostState>,
) -> (mpsc::Sender<(ExpertLease, LastAveraged)>, mpsc::Receiver<TakenCopies>, AbortOnDropHandle<()>) {
    let (sender, mut to_take) = mpsc::channel::<(ExpertLease, LastAveraged)>(1);
    let (taken, copies) = mpsc::channel(1);
    let taking = tasks::spawn("taking copies of experts", async move {
        while let Some((lease, averaged)) = to_take.recv().await {
            let others = Box::pin(other_copies(&*state, &lease, &averaged)).await;
            if taken.send((lease, others)).await.is_err() {
                return;
            }
        }
    });
    (sender, copies, taking)
}

async fn at(moment: Option<tokio::time::Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}
