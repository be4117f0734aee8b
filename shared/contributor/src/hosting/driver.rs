//! A host of experts without a disk, in one task: what a tab is. What it has learned is with its keepers, as a rule at most a minute
//! old, and all of it where it hands its experts over before it ends.

mod begin;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use barnraise_learning::ComputeDevice;
use barnraise_learning::hosted::{ExpertState, layer_of};
use barnraise_protocol::dht::{DhtRefusal, Record};
use barnraise_protocol::experts::checkpoints::CheckpointVersion;
use barnraise_protocol::experts::leases::{ExpertLease, LeaseAnswer, LeaseAsk, LeaseAskError, LeaseRefusal};
use barnraise_protocol::experts::{self, ExpertPlace};
use barnraise_swarm::experts::checkpoints::CheckpointSchedule;
use barnraise_swarm::experts::leases::HolderAction;
use barnraise_swarm::experts::serving::CountedState;
use barnraise_swarm::experts::{AnnouncerAction, ExpertAnnouncer, HostedWork};
use barnraise_swarm::{Moment, PeerKey};
use futures::channel::{mpsc, oneshot};
use futures::future::{AbortHandle, Fuse, FutureExt, LocalBoxFuture, abortable};
use futures::select_biased;
use futures::stream::{FuturesUnordered, StreamExt};

use self::begin::Begun;
pub use self::begin::{HostConfig, HostError};
use super::conversation::converse;
use super::copies::{
    AveragedCopies, KeeperNetwork, NewestError, StoredCheckpoint, give_stored, newest, other_copies,
};
use super::device::{AddError, ExpertDevice, ExpertJob, JobDone};
use super::state::{HostState, Inner, LeasingError, ServedExpert};
use super::stored::{CopyState, StoredExpert};
use crate::experts::next;
use crate::kit::sleep::SleepWatch;
use crate::platform::{Platform, PlatformError};
use crate::race::before;

/// Interval of looks at what has changed, and of what is told.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Longest time for handing all experts over.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(45);
/// Of that for telling the backbone that the places are free.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest time until the keepers of an expert have it: others wait.
const GIVE_TIMEOUT: Duration = Duration::from_secs(60);
/// A computation on a device that is lost may still end within this time.
const LOST_DEVICE_GRACE: Duration = Duration::from_secs(2);
/// A host that nobody reaches for so long hands its experts over.
const UNREACHABLE_MAX: Duration = Duration::from_secs(30);
/// The wall clock has gone on by so much more than the monotonic one: the device was asleep, and nobody knows whose the places are.
const ASLEEP_MIN: Duration = Duration::from_secs(2);
/// Requests at a time.
const STREAMS_MAX: usize = 192;
/// Of one trainer.
const STREAMS_PER_PEER: usize = 48;
/// Experts whose states are on the way here at a time: a backbone answers few questions of one host.
const GATHERING_MAX: usize = 2;
/// Experts that are handed over at a time.
const HANDING_MAX: usize = 2;
/// The last state of an expert is offered to its keepers so many times, while the host stays.
const HAND_TRIES: u32 = 3;
/// Pause before that is tried again.
const HAND_PAUSE: Duration = Duration::from_secs(2);
/// From one look for a backbone through which others reach the host to the next.
const REACH_INTERVAL: Duration = Duration::from_secs(5);
/// A host whose records the DHT has refused for their time takes nothing for so long.
const CLOCK_PAUSE: Duration = Duration::from_secs(600);
/// After so many states from which the device cannot go on, an expert begins anew.
const STATES_MAX: usize = 3;

/// What was under way beside the driver.
enum TaskDone {
    /// With the number of the question.
    Asked(u64, Result<LeaseAnswer, LeasingError>),
    Gathered(ExpertLease, Result<Option<StoredExpert>, NewestError>),
    /// Nobody wants it any more.
    NotGathered,
    /// With the number of its keepers.
    Given(ExpertLease, CheckpointVersion, usize),
    /// [`other_copies`]
    Copies(ExpertLease, Option<Vec<CopyState>>),
    /// With the number of tries, and of its keepers.
    HandedOver(StoredCheckpoint, u32, usize),
    /// With the number of sleeps before it was made.
    Put(u64, Result<Vec<Result<(), DhtRefusal>>, PlatformError>),
    /// A backbone was looked for, by which others may reach this host. With the reason why none was found.
    Looked(Option<String>),
}

/// What woke the driver.
enum Woken<S> {
    Leave,
    Stream(Option<(PeerKey, S)>),
    Task(TaskDone),
    Conversation(PeerKey),
    Worked(Box<ExpertDevice>, Option<JobDone>),
    Changed,
}

/// Hosts experts until `leaving`, or until its sender is dropped. `on_news` is told what it has done, and why it serves nothing, where
/// that is so.
///
/// # Errors
/// The run has no experts for it, and a retry does not change that; or what its experts learned last is lost, as nobody took it.
pub async fn host<P: Platform>(
    platform: &P,
    config: HostConfig,
    leaving: oneshot::Receiver<()>,
    mut on_news: impl FnMut(HostedWork, Option<String>),
) -> Result<(), HostError> {
    let mut leaving = leaving.fuse();
    let begun = {
        let mut beginning = pin!(
            begin::begin(platform, config, |problem| {
                on_news(HostedWork::default(), Some(problem));
            })
            .fuse()
        );
        select_biased! {
            _ = leaving => return Ok(()),
            begun = beginning => begun?,
        }
    };
    HostDriver::new(begun).serve(leaving, on_news).await
}

/// See the module.
struct HostDriver<'a, P: Platform> {
    state: Rc<HostState<'a, P>>,
    changed: mpsc::Receiver<()>,
    tasks: FuturesUnordered<LocalBoxFuture<'a, TaskDone>>,
    conversations: FuturesUnordered<LocalBoxFuture<'a, PeerKey>>,
    /// Conversations with each trainer.
    n_streams: HashMap<PeerKey, usize>,
    compute: ComputeDevice,
    /// When it was seen that it is lost.
    lost_at: Option<Moment>,
    /// While nothing is computed.
    device: Option<Box<ExpertDevice>>,
    working: Fuse<LocalBoxFuture<'a, (Box<ExpertDevice>, Option<JobDone>)>>,
    jobs: VecDeque<ExpertJob>,
    announcer: ExpertAnnouncer,
    announced: BTreeSet<ExpertPlace>,
    is_putting: bool,
    schedule: CheckpointSchedule,
    /// A checkpoint is on its way to the device, or to its keepers.
    is_storing: bool,
    averaged: AveragedCopies,
    /// Given to the device, by number.
    numbers: HashMap<u32, ExpertPlace>,
    n_numbers: u32,
    /// The terms under which experts step here.
    terms: BTreeMap<ExpertPlace, u64>,
    to_gather: VecDeque<ExpertLease>,
    /// Their states are on the way here, for a lease of this term.
    gathering: BTreeMap<ExpertPlace, (u64, AbortHandle)>,
    /// The device gives their states back.
    stopping: BTreeSet<ExpertPlace>,
    /// Leased once more while they are stopping.
    deferred: BTreeMap<ExpertPlace, ExpertLease>,
    /// States that the device could not go on from, and which are not tried again.
    refused: BTreeMap<ExpertPlace, Vec<CheckpointVersion>>,
    /// Last states, for their keepers, each with how often that was in vain.
    to_hand: VecDeque<(StoredCheckpoint, u32)>,
    n_handing: usize,
    /// When it ends at the latest.
    leaves_by: Option<Moment>,
    is_releasing: bool,
    /// Experts whose last states nobody has.
    n_lost: usize,
    /// Of the open question about leases, where there is one, and whether it asks for vacant places.
    question: (u64, bool),
    /// Since when nobody finds or reaches it, and why.
    unreachable: Option<(Moment, &'static str)>,
    /// When it is looked for next how others may reach it; `None` while that is under way.
    look_at: Option<Moment>,
    /// Why there is no backbone.
    look_problem: Option<String>,
    /// When the DHT has refused what was announced, for its time.
    clock_refused_at: Option<Moment>,
    n_sleeps: u64,
    problem: Option<String>,
    sleep: SleepWatch,
}

impl<'a, P: Platform> HostDriver<'a, P> {
    fn new(begun: Begun<'a, P>) -> Self {
        let Begun { state, changed, device, compute, seed } = begun;
        let (key, run_id) = (state.signer.key.clone(), state.run.identity.run_id.clone());
        Self {
            state: Rc::new(state),
            changed,
            tasks: FuturesUnordered::new(),
            conversations: FuturesUnordered::new(),
            n_streams: HashMap::new(),
            compute,
            lost_at: None,
            device: Some(Box::new(device)),
            working: Fuse::terminated(),
            jobs: VecDeque::new(),
            announcer: ExpertAnnouncer::new(key, run_id, Vec::new(), seed),
            announced: BTreeSet::new(),
            is_putting: false,
            schedule: CheckpointSchedule::new(seed),
            is_storing: false,
            averaged: AveragedCopies::default(),
            numbers: HashMap::new(),
            n_numbers: 0,
            terms: BTreeMap::new(),
            to_gather: VecDeque::new(),
            gathering: BTreeMap::new(),
            stopping: BTreeSet::new(),
            deferred: BTreeMap::new(),
            refused: BTreeMap::new(),
            to_hand: VecDeque::new(),
            n_handing: 0,
            leaves_by: None,
            is_releasing: false,
            n_lost: 0,
            question: (0, false),
            unreachable: None,
            look_at: Some(Moment::ZERO),
            look_problem: None,
            clock_refused_at: None,
            n_sleeps: 0,
            problem: None,
            sleep: SleepWatch::default(),
        }
    }

    async fn serve(
        mut self,
        mut leaving: Fuse<oneshot::Receiver<()>>,
        mut on_news: impl FnMut(HostedWork, Option<String>),
    ) -> Result<(), HostError> {
        let platform = self.state.platform;
        let mut streams = platform.accept(experts::PROTOCOL)?;
        let (mut told, mut tick_at) = (None, platform.now());
        loop {
            let now = platform.now();
            if self.sleep.lead(now, platform.unix_time()) >= ASLEEP_MIN {
                self.on_suspended();
            }
            self.look_at_device(now);
            let is_tick = tick_at <= now;
            if is_tick {
                tick_at = now + LOOK_EVERY;
                self.look_for_reach(now);
                self.tell_loads();
                self.announce_next(now);
            }
            self.lease_next();
            self.gather_next();
            self.store_next(now);
            self.hand_over_next();
            self.work_next();
            self.release_late(now);
            if self.has_left(now) {
                // What is on its way to a keeper now ends with this host.
                return match self.n_lost + self.n_handing {
                    _ if self.lost_at.is_some() => Err(HostError::DeviceLost),
                    0 => Ok(()),
                    n_experts => Err(HostError::NotHandedOver { n_experts }),
                };
            }
            if is_tick {
                let news = (self.work_done(), self.problem_now());
                if told.as_ref() != Some(&news) {
                    on_news(news.0, news.1.clone());
                    told = Some(news);
                }
            }
            let at = self.next_deadline(now).min(tick_at);
            let woken = {
                let mut timer = pin!(platform.sleep_until(at).fuse());
                let mut task = pin!(next(&mut self.tasks).fuse());
                let mut conversation = pin!(next(&mut self.conversations).fuse());
                select_biased! {
                    _ = leaving => Woken::Leave,
                    done = task => Woken::Task(done),
                    (device, done) = &mut self.working => Woken::Worked(device, done),
                    peer = conversation => Woken::Conversation(peer),
                    stream = streams.next().fuse() => Woken::Stream(stream),
                    _ = self.changed.next().fuse() => Woken::Changed,
                    () = timer => Woken::Changed,
                }
            };
            match woken {
                Woken::Leave => self.leave(),
                Woken::Stream(Some((peer, stream))) => self.on_stream(peer, stream),
                Woken::Stream(None) => return Err(PlatformError::NotConnected.into()),
                Woken::Task(done) => self.on_task(done),
                Woken::Conversation(peer) => self.on_conversation_over(&peer),
                Woken::Worked(device, done) => {
                    self.device = Some(device);
                    if let Some(done) = done {
                        self.on_done(done);
                    }
                }
                Woken::Changed => {}
            }
        }
    }

    fn next_deadline(&self, now: Moment) -> Moment {
        let (runtime, leases) = self
            .state
            .read(|inner, now| (inner.requests.runtime.next_deadline(), inner.leases.next_deadline(now)));
        let schedule = self.schedule.next_deadline().filter(|_| !self.is_storing);
        let release = self.leaves_by.filter(|_| !self.is_releasing).map(|by| by - RELEASE_TIMEOUT);
        let deadlines = [runtime, leases, schedule, self.leaves_by, release];
        deadlines.into_iter().flatten().min().unwrap_or(now + LOOK_EVERY)
    }

    fn work_done(&self) -> HostedWork {
        let state = &self.state;
        state.read(|inner, _| HostedWork {
            n_experts: u32::try_from(inner.experts.len()).unwrap_or(u32::MAX),
            n_room: state.n_room,
            n_parameters: inner.experts.values().map(|expert| expert.n_parameters as u64).sum(),
            n_forward: inner.requests.n_forward,
            n_backward: inner.requests.n_backward,
            bytes_received: state.meter.down(),
            bytes_sent: state.meter.up(),
        })
    }

    /// Why it serves nothing.
    fn problem_now(&self) -> Option<String> {
        let serves = self.state.read(|inner, _| !inner.experts.is_empty());
        let unreachable =
            self.unreachable.map(|(_, why)| self.look_problem.clone().unwrap_or_else(|| why.to_owned()));
        unreachable.or_else(|| self.problem.clone()).filter(|_| !serves)
    }

    /// The device was asleep: nothing is this host's, and what was asked before counts no more.
    fn on_suspended(&mut self) {
        self.question = (self.question.0 + 1, false);
        self.n_sleeps += 1;
        self.clock_refused_at = None;
        self.state.doubt();
        self.state.with(|inner, now| inner.leases.on_suspended(now));
    }

    /// A graphics processor that is lost computes nothing more: the experts go to other hosts.
    fn look_at_device(&mut self, now: Moment) {
        if !self.compute.is_lost() {
            return;
        }
        let lost_at = *self.lost_at.get_or_insert(now);
        self.leave();
        if self.device.is_none() && lost_at + LOST_DEVICE_GRACE <= now {
            // What it computes will never end, and the states of its experts are with it.
            self.leaves_by = self.leaves_by.min(Some(lost_at + LOST_DEVICE_GRACE + RELEASE_TIMEOUT));
        }
    }

    /// Takes nothing while nobody reaches it; after a while its experts go to other hosts.
    fn look_for_reach(&mut self, now: Moment) {
        let is_clock_wrong = self.clock_refused_at.is_some_and(|at| at + CLOCK_PAUSE > now);
        let is_nowhere = self.state.platform.addresses(1).is_empty();
        let why = match (is_nowhere, is_clock_wrong) {
            (true, _) => Some("no backbone or relay has a place yet at which this device can be reached"),
            (false, true) => Some("others cannot find it: its clock is wrong, or that of the backbone"),
            (false, false) => None,
        };
        let since = self.unreachable.map_or(now, |(since, _)| since);
        self.unreachable = why.map(|why| (since, why));
        self.state.with_quietly(|inner, _| inner.leases.set_paused(why.is_some()));
        if is_nowhere && self.look_at.is_some_and(|at| at <= now) {
            // With nothing to ask, nothing else would notice that the backbone is gone.
            self.look_at = None;
            let state = Rc::clone(&self.state);
            let looking =
                async move { TaskDone::Looked(state.look().await.err().map(|error| error.to_string())) };
            self.tasks.push(looking.boxed_local());
        }
        if self.unreachable.is_none() || since + UNREACHABLE_MAX > now {
            return;
        }
        let served: Vec<ExpertPlace> = self.state.read(|inner, _| inner.experts.keys().copied().collect());
        served.into_iter().for_each(|place| self.stop(place));
    }

    /// Tells the leases what there is to do.
    fn tell_loads(&self) {
        self.state.with_quietly(|inner, now| {
            for (place, expert) in &inner.experts {
                inner.leases.on_load(place, inner.requests.runtime.expert_load(now, expert.number));
            }
        });
    }

    /// Does what the leases want.
    fn lease_next(&mut self) {
        let action = |inner: &mut Inner, now| {
            inner.leases.on_timeout(now);
            inner.leases.poll_action(now)
        };
        while let Some(action) = self.state.with_quietly(action) {
            match action {
                HolderAction::Ask { asks, n_vacant } => self.ask(asks, n_vacant),
                HolderAction::Host(lease) => {
                    self.to_hand.retain(|(last, _)| last.lease.place != lease.place);
                    self.on_leased(lease);
                }
                HolderAction::Stop { place, .. } => {
                    let n_before = self.to_hand.len();
                    self.to_hand.retain(|(last, _)| last.lease.place != place);
                    self.n_lost += n_before - self.to_hand.len();
                    self.stop(place);
                }
                // Nothing of it is here.
                HolderAction::Yield(_) => {}
            }
        }
    }

    fn ask(&mut self, asks: Vec<LeaseAsk>, n_vacant: u8) {
        self.question = (self.question.0 + 1, n_vacant > 0);
        let (state, (question, _)) = (Rc::clone(&self.state), self.question);
        let asking = async move { TaskDone::Asked(question, state.ask(asks, n_vacant).await) };
        self.tasks.push(asking.boxed_local());
    }

    fn on_asked(&mut self, answer: Result<LeaseAnswer, LeasingError>) {
        let (_, asked_vacant) = self.question;
        let before = self.problem.take();
        let problem = match answer {
            Ok(LeaseAnswer::Leased { grantors, asked, vacant, copied, frozen }) => {
                self.state.with(|inner, now| {
                    inner.frozen = frozen.into_iter().collect();
                    // As the backbone said first.
                    inner.grantors.get_or_insert(grantors);
                    inner.leases.on_copied(&copied);
                    inner.leases.on_answer(now, asked, vacant);
                    match (inner.leases.places().next().is_some(), asked_vacant) {
                        (true, _) => None,
                        (false, true) => {
                            Some("none is free for this device now: others host them".to_owned())
                        }
                        (false, false) => before,
                    }
                })
            }
            Ok(_) => {
                self.state.with(|inner, now| inner.leases.on_failed(now));
                Some(LeaseAskError::Unexpected.to_string())
            }
            Err(error) => {
                let is_shut_out = matches!(
                    error,
                    LeasingError::Ask(LeaseAskError::Refused(
                        LeaseRefusal::NoAccess | LeaseRefusal::MayNotHost | LeaseRefusal::Distrusted { .. }
                    ))
                );
                self.state.with(|inner, now| match is_shut_out {
                    true => inner.leases.on_no_access(now),
                    false => inner.leases.on_failed(now),
                });
                Some(error.to_string())
            }
        };
        self.problem = problem;
    }

    fn on_leased(&mut self, lease: ExpertLease) {
        let place = lease.place;
        if self.stopping.contains(&place) {
            self.deferred.insert(place, lease);
        } else if self.numbers.values().any(|known| *known == place) {
            // It is here, under a term that has begun meanwhile.
            self.terms.insert(place, lease.term);
            self.state.with_quietly(|inner, _| {
                if let Some(expert) = inner.experts.get_mut(&place) {
                    expert.term = lease.term;
                }
            });
        } else {
            self.to_gather.push_back(lease);
        }
    }

    /// Takes the newest states of places that were leased, from the peers that keep them.
    fn gather_next(&mut self) {
        while self.gathering.len() < GATHERING_MAX
            && let Some(lease) = self.to_gather.pop_front()
        {
            let place = lease.place;
            if self.state.lease(&place).is_none_or(|held| held.term != lease.term) {
                continue;
            }
            let refused = self.refused.get(&place).cloned().unwrap_or_default();
            let (state, term) = (Rc::clone(&self.state), lease.term);
            let gathering = async move {
                let found = match refused.len() < STATES_MAX {
                    true => newest(&*state, place, None, refused).await,
                    false => Ok(None),
                };
                TaskDone::Gathered(lease, found)
            };
            let (gathering, handle) = abortable(gathering);
            if let Some((_, before)) = self.gathering.insert(place, (term, handle)) {
                before.abort();
            }
            let gathering = gathering.map(|gathered| gathered.unwrap_or(TaskDone::NotGathered));
            self.tasks.push(gathering.boxed_local());
        }
    }

    fn on_gathered(&mut self, lease: ExpertLease, found: Result<Option<StoredExpert>, NewestError>) {
        let place = lease.place;
        if self.gathering.get(&place).is_none_or(|(term, _)| *term != lease.term) {
            return;
        }
        self.gathering.remove(&place);
        // What came for a lease before is not what the next one begins with: others may have stepped the expert since.
        if self.state.lease(&place).is_none_or(|held| held.term != lease.term) {
            return;
        }
        match found {
            Ok(stored) => {
                let expert = self.n_numbers;
                self.n_numbers += 1;
                self.numbers.insert(expert, place);
                self.terms.insert(place, lease.term);
                self.jobs.push_back(ExpertJob::Add { expert, lease, stored });
            }
            Err(error) => {
                // To begin it anew would lose what it has learned elsewhere.
                self.problem = Some(error.to_string());
                self.give_up(&place);
            }
        }
    }

    fn give_up(&self, place: &ExpertPlace) {
        self.state.with(|inner, now| inner.leases.on_given_up(now, place));
    }

    /// A lease is over, or the host leaves: nothing more is computed.
    fn stop(&mut self, place: ExpertPlace) {
        self.deferred.remove(&place);
        self.refused.remove(&place);
        self.averaged.on_removed(&place);
        self.stop_gathering(place);
        let number = self.numbers.iter().find(|(_, known)| **known == place).map(|(number, _)| *number);
        let Some(expert) = number else { return };
        if !self.stopping.insert(place) {
            return;
        }
        self.schedule.on_removed(&place);
        self.state.with(|inner, now| {
            inner.requests.runtime.on_expert_closed(now, expert);
            inner.experts.remove(&place);
        });
        // Batches that the runtime has given come before.
        self.take_batches();
        self.jobs.push_back(ExpertJob::Remove { expert });
    }

    fn stop_gathering(&mut self, place: ExpertPlace) {
        self.to_gather.retain(|lease| lease.place != place);
        if let Some((_, gathering)) = self.gathering.remove(&place) {
            gathering.abort();
        }
    }

    fn take_batches(&mut self) {
        let (state, numbers, jobs) = (&self.state, &self.numbers, &mut self.jobs);
        state.with_quietly(|inner, now| {
            inner.requests.runtime.on_timeout(now);
            while let Some(batch) = inner.requests.next_batch() {
                let place = numbers.get(&batch.expert);
                let is_frozen = place.is_some_and(|(layer, _)| inner.frozen.contains(layer));
                jobs.push_back(inner.requests.job(batch, is_frozen));
            }
        });
    }

    /// Gives the device its next job, where it has none.
    fn work_next(&mut self) {
        self.take_batches();
        if self.jobs.is_empty() {
            return;
        }
        let Some(mut device) = self.device.take() else { return };
        let Some(job) = self.jobs.pop_front() else { return };
        let platform = self.state.platform;
        let working = async move {
            let done = device.work(job).await;
            // On a processor nothing of the network moves while it computes.
            platform.yield_now().await;
            (device, done)
        };
        self.working = working.boxed_local().fuse();
    }

    fn on_done(&mut self, done: JobDone) {
        match done {
            JobDone::Computed { batch, result } => {
                let place = self.numbers.get(&batch.expert).copied();
                self.state.with(|inner, now| {
                    // What failed is computed once more, or refused, as the runtime decides.
                    let Ok(n_steps) = inner.requests.on_computed(now, &batch, result) else { return };
                    if let Some(expert) = place.and_then(|place| inner.experts.get_mut(&place)) {
                        expert.n_steps = n_steps;
                    }
                });
            }
            JobDone::Added { expert, lease, result } => self.on_added(expert, lease, result),
            JobDone::Store { expert, state } => {
                let now = self.state.platform.now();
                match self.checkpoint(expert, state) {
                    Some(made) if self.schedule.is_offered(now, &made.lease.place, made.version) => {
                        self.give(made);
                    }
                    _ => self.is_storing = false,
                }
            }
            JobDone::Averaged { expert, n_steps } => {
                let place = self.numbers.get(&expert).copied();
                self.state.with(|inner, _| {
                    if let Some(expert) = place.and_then(|place| inner.experts.get_mut(&place)) {
                        expert.n_steps = n_steps;
                    }
                });
            }
            JobDone::Removed { expert, state } => self.on_removed(expert, state),
        }
    }

    fn on_added(&mut self, number: u32, lease: ExpertLease, result: Result<(CountedState, u64), AddError>) {
        let place = lease.place;
        let n_parameters =
            layer_of(&self.state.layers, place).map_or(0, |layer| layer.body.graph.layout().n_parameters());
        let is_stopping = self.stopping.contains(&place);
        let term = self.terms.get(&place).copied().unwrap_or(lease.term);
        let added = result.and_then(|(counted, n_steps)| {
            self.state.with(|inner, now| {
                inner.requests.runtime.on_expert_added(now, number, &counted)?;
                if is_stopping {
                    inner.requests.runtime.on_expert_closed(now, number);
                } else {
                    inner.experts.insert(place, ServedExpert { number, term, n_steps, n_parameters });
                }
                Ok(())
            })
        });
        match added {
            Ok(()) if is_stopping => {}
            Ok(()) => {
                self.refused.remove(&place);
                self.schedule.on_hosted(self.state.platform.now(), place);
            }
            Err(error) => {
                self.numbers.remove(&number);
                self.terms.remove(&place);
                self.stopping.remove(&place);
                if let Some(deferred) = self.deferred.remove(&place) {
                    self.to_gather.push_back(deferred);
                    return;
                }
                // The lease is kept: given up, the place would come again, here or at another host, with the same state.
                if let AddError::State { version, .. } = error
                    && !is_stopping
                {
                    self.refused.entry(place).or_default().push(version);
                    // A term may have begun meanwhile.
                    self.to_gather.push_back(self.state.lease(&place).unwrap_or(lease));
                    return;
                }
                self.problem = Some(error.to_string());
                self.refused.remove(&place);
                self.give_up(&place);
            }
        }
    }

    /// The state that the device gave, as its keepers get it, while the place is this host's.
    fn checkpoint(&self, expert: u32, state: ExpertState) -> Option<StoredCheckpoint> {
        let place = *self.numbers.get(&expert)?;
        let term = *self.terms.get(&place)?;
        let lease = self.state.lease(&place).filter(|lease| lease.term == term)?;
        let counted = self.state.read(|inner, _| inner.requests.runtime.counted(expert)).unwrap_or_default();
        let stored = StoredExpert { term, state, counted };
        let version = stored.version();
        Some(StoredCheckpoint { lease, version, bytes: Arc::from(stored.seal().ok()?) })
    }

    fn on_removed(&mut self, expert: u32, state: ExpertState) {
        let last = self.checkpoint(expert, state);
        self.state.with(|inner, now| inner.requests.runtime.on_expert_removed(now, expert));
        let Some(place) = self.numbers.remove(&expert) else { return };
        self.stopping.remove(&place);
        self.terms.remove(&place);
        match (last, self.deferred.remove(&place)) {
            (_, Some(lease)) if self.leaves_by.is_none() => self.to_gather.push_back(lease),
            // Its place is this host's still: it leaves, or nobody reaches it.
            (Some(last), _) => self.to_hand.push_back((last, 0)),
            _ => self.give_up(&place),
        }
    }

    /// Has the device tell the state of the expert that is due, one after the other.
    fn store_next(&mut self, now: Moment) {
        if self.is_storing || self.leaves_by.is_some() {
            return;
        }
        let Some(place) = self.schedule.next_due(now) else { return };
        let number = self.state.read(|inner, _| inner.experts.get(&place).map(|expert| expert.number));
        if let Some(expert) = number {
            self.jobs.push_back(ExpertJob::Store { expert });
            self.is_storing = true;
        }
    }

    fn give(&mut self, made: StoredCheckpoint) {
        let state = Rc::clone(&self.state);
        let (lease, version) = (made.lease.clone(), made.version);
        let giving = async move {
            let n_keepers = given(&state, made).await;
            TaskDone::Given(lease, version, n_keepers)
        };
        self.tasks.push(giving.boxed_local());
    }

    /// Takes what the other copies of an expert have learned, beside the checkpoints of others that are due.
    fn take_copies(&mut self, lease: ExpertLease) {
        let state = Rc::clone(&self.state);
        let averaged = self.averaged.of(&lease.place);
        let taking = async move {
            let others = other_copies(&*state, &lease, &averaged).await;
            TaskDone::Copies(lease, others)
        };
        self.tasks.push(taking.boxed_local());
    }

    /// Has the device average an expert with its other copies.
    fn average(&mut self, lease: &ExpertLease, others: Option<Vec<CopyState>>) {
        let place = lease.place;
        let served = self.state.read(|inner, _| {
            let is_frozen = inner.frozen.contains(&place.0);
            inner
                .experts
                .get(&place)
                .filter(|expert| expert.term == lease.term && !is_frozen)
                .map(|it| it.number)
        });
        let Some(expert) = served else { return };
        self.jobs.extend(self.averaged.job((place, expert), others));
    }

    /// Gives last states to their keepers, and then the places to other hosts.
    fn hand_over_next(&mut self) {
        while self.n_handing < HANDING_MAX
            && let Some((last, n_tries)) = self.to_hand.pop_front()
        {
            self.n_handing += 1;
            let state = Rc::clone(&self.state);
            let handing = async move {
                if n_tries > 0 {
                    state.sleep(HAND_PAUSE).await;
                }
                let n_keepers = given(&state, last.clone()).await;
                TaskDone::HandedOver(last, n_tries + 1, n_keepers)
            };
            self.tasks.push(handing.boxed_local());
        }
    }

    fn on_task(&mut self, done: TaskDone) {
        match done {
            TaskDone::Asked(question, answer) => {
                // That of before a sleep is about what was this host's then.
                if question == self.question.0 {
                    self.on_asked(answer);
                }
            }
            TaskDone::NotGathered => {}
            TaskDone::Gathered(lease, found) => self.on_gathered(lease, found),
            TaskDone::Given(lease, version, n_keepers) => {
                self.is_storing = false;
                self.schedule.on_offered(self.state.platform.now(), &lease.place, version, n_keepers);
                if self.state.read(|inner, _| inner.leases.has_copies(&lease.place)) {
                    self.take_copies(lease);
                } else {
                    self.average(&lease, None);
                }
            }
            TaskDone::Copies(lease, others) => self.average(&lease, others),
            TaskDone::HandedOver(last, n_tries, n_keepers) => {
                self.n_handing -= 1;
                let place = last.lease.place;
                // It may have been leased here once more.
                if self.state.lease(&place).is_none_or(|held| held.term != last.lease.term) {
                    self.n_lost += usize::from(n_keepers == 0);
                    return;
                }
                // Its keepers may have had others on their way.
                let is_tried_again = !self.is_releasing && (self.leaves_by.is_some() || n_tries < HAND_TRIES);
                match n_keepers {
                    0 if is_tried_again => self.to_hand.push_back((last, n_tries)),
                    0 => {
                        self.n_lost += 1;
                        self.give_up(&place);
                    }
                    _ => self.give_up(&place),
                }
            }
            TaskDone::Put(n_sleeps, put) => self.on_put(n_sleeps, put),
            TaskDone::Looked(problem) => {
                self.look_at = Some(self.state.platform.now() + REACH_INTERVAL);
                self.look_problem = problem;
            }
        }
    }

    /// Tells the DHT of the experts, through the backbone.
    fn announce_next(&mut self, now: Moment) {
        let addresses = self.state.platform.addresses(1);
        if self.is_putting || addresses.is_empty() {
            return;
        }
        self.announcer.on_addresses(now, addresses);
        let announced = self.state.announced();
        let places = announced.iter().map(|(layer, expert)| (*layer, expert.uid)).collect();
        for (layer, uid) in self.announced.difference(&places) {
            self.announcer.on_removed(*layer, *uid);
        }
        self.announced = places;
        for (layer, expert) in announced {
            // It has room for fewer than can be announced.
            let _ = self.announcer.on_expert(now, layer, expert);
        }
        if let Ok(Some(AnnouncerAction::Put(records))) = self.announcer.poll_action(now, self.state.wall()) {
            self.put(records);
        }
    }

    fn put(&mut self, records: Vec<Record>) {
        self.is_putting = true;
        let (state, n_sleeps) = (Rc::clone(&self.state), self.n_sleeps);
        self.tasks.push(async move { TaskDone::Put(n_sleeps, state.put(records).await) }.boxed_local());
    }

    fn on_put(&mut self, n_sleeps: u64, put: Result<Vec<Result<(), DhtRefusal>>, PlatformError>) {
        self.is_putting = false;
        let now = self.state.platform.now();
        match put {
            Ok(verdicts) => {
                let of_clocks = |refusal: &DhtRefusal| {
                    matches!(refusal, DhtRefusal::Expired { .. } | DhtRefusal::TooFar { .. })
                };
                let is_refused =
                    verdicts.into_iter().filter_map(Result::err).any(|refusal| of_clocks(&refusal));
                // What was made before a sleep was old when it came.
                self.clock_refused_at = (is_refused && n_sleeps == self.n_sleeps).then_some(now);
            }
            Err(_) => self.announcer.on_put_failed(now),
        }
    }

    fn on_stream(&mut self, peer: PeerKey, stream: P::Stream) {
        if self.conversations.len() >= STREAMS_MAX {
            return;
        }
        let n_streams = self.n_streams.entry(peer.clone()).or_default();
        if *n_streams >= STREAMS_PER_PEER {
            return;
        }
        *n_streams += 1;
        let state = Rc::clone(&self.state);
        let conversation = async move {
            converse(state, peer.clone(), stream).await;
            peer
        };
        self.conversations.push(conversation.boxed_local());
    }

    fn on_conversation_over(&mut self, peer: &PeerKey) {
        if let Some(n_streams) = self.n_streams.get_mut(peer) {
            *n_streams -= 1;
            if *n_streams == 0 {
                self.n_streams.remove(peer);
            }
        }
    }

    /// Takes nothing new, and hands over what is here.
    fn leave(&mut self) {
        if self.leaves_by.is_some() {
            return;
        }
        self.leaves_by = Some(self.state.platform.now() + LEAVE_TIMEOUT);
        let held: Vec<ExpertPlace> = self.state.with(|inner, _| {
            inner.requests.runtime.on_drain();
            inner.leases.on_leaving();
            inner.leases.places().collect()
        });
        let here: BTreeSet<ExpertPlace> = self.numbers.values().copied().collect();
        for place in held {
            if here.contains(&place) {
                self.stop(place);
            } else {
                self.stop_gathering(place);
                self.give_up(&place);
            }
        }
    }

    /// What is not handed over by now is given back without.
    fn release_late(&mut self, now: Moment) {
        if self.is_releasing || self.leaves_by.is_none_or(|by| now + RELEASE_TIMEOUT < by) {
            return;
        }
        self.is_releasing = true;
        self.n_lost += self.to_hand.len() + self.numbers.len();
        self.to_hand.clear();
        let held: Vec<ExpertPlace> = self.state.read(|inner, _| inner.leases.places().collect());
        held.iter().for_each(|place| self.give_up(place));
    }

    fn has_left(&self, now: Moment) -> bool {
        let Some(by) = self.leaves_by else { return false };
        let is_empty = self.numbers.is_empty() && self.to_hand.is_empty() && self.n_handing == 0;
        let is_settled = || self.state.read(|inner, _| inner.leases.is_settled());
        by <= now || ((is_empty || self.is_releasing) && is_settled())
    }
}

/// How many peers keep a checkpoint, within bounds of time.
async fn given<P: Platform>(state: &HostState<'_, P>, made: StoredCheckpoint) -> usize {
    before(state.sleep(GIVE_TIMEOUT), give_stored(state, made)).await.unwrap_or_default()
}
