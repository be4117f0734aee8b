//! A participant of a run without a server, whose backbone aggregates and opens streams to it; and another tab, with which it goes on
//! alone.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use barnraise_contributor::{
    ContributorCommand, ContributorEvent, IncomingStreams, OfferTurns, Platform, PlatformError, sketch_of,
};
use barnraise_learning::{PIXEL_MEAN, PIXEL_STD};
use barnraise_protocol::access::{KeyPair, PublicKey};
use barnraise_protocol::bulk::Transfer;
use barnraise_protocol::columns::rows::OwnRows;
use barnraise_protocol::columns::{Column, ColumnContent, Scale, TableColumns};
use barnraise_protocol::contribute::RunProgress;
use barnraise_protocol::dataset::{LabelledImages, SampleKind, Samples, TableShape, TableTarget};
use barnraise_protocol::run::{
    ModelAverage, ModelExchange, OptimizerDescription, Sampled, ScheduleDescription, Scheme, run_hash,
};
use barnraise_protocol::sampled::{
    self, AcceptorToDialler, Aggregates, DiallerToAcceptor, SampledRoles, SampledTask, View, ViewDigest,
};
use barnraise_protocol::{ConversationError, TensorCodec};
use barnraise_swarm::activity::Activity;
use barnraise_swarm::pacing::PacingSettings;
use barnraise_swarm::random::SplitMix64;
use barnraise_swarm::sampled::{
    PushOutcome, SampledAction, SampledIdentity, SampledModel, SampledPeer, SampledSettings,
};
use barnraise_swarm::{Moment, PeerKey};
use futures::StreamExt;
use futures::channel::mpsc;
use tokio::task::{AbortHandle, spawn_local};

use super::backbone::{
    CutStream, InMemoryBackbone, MICRO_BATCH, SHAPE, TestPlatform, contributor_key, of_test_platform,
    record_traffic, recorded_traffic,
};
use super::{Script, play_on};

const CODEC: TensorCodec = TensorCodec::F32;
/// Samples of the shard that the participant has.
const N_SAMPLES: u64 = 250;

fn scheme() -> Sampled {
    Sampled {
        sample_size: 1,
        n_aggregators: 1,
        success_fraction: 1.0,
        average: ModelAverage::Mean,
        exchange: ModelExchange::Sample,
        ping_timeout_ms: 200,
        // A round that its only trainer leaves is noticed soon.
        activity_window: 6,
        round_estimate_ms: 200,
        micro_batch_size: MICRO_BATCH,
        local_passes: 1,
        local_shards: 1,
        state_codec: CODEC,
        optimizer: OptimizerDescription::plain_sgd(),
        schedule: ScheduleDescription::constant(0.1),
    }
}

/// The backbone as a member, which aggregates; or another tab.
struct Home {
    backbone: Rc<InMemoryBackbone>,
    /// It is a tab, and outlasts the backbone.
    is_tab: bool,
    others: RefCell<Vec<Rc<Home>>>,
    key: PublicKey,
    peer: RefCell<SampledPeer>,
    n_parameters: usize,
    clock: Box<dyn Fn() -> Moment>,
    to_participant: RefCell<Option<mpsc::Sender<(PeerKey, CutStream)>>>,
    n_averaged: Cell<u64>,
    turns: RefCell<OfferTurns>,
    answers: RefCell<Vec<AbortHandle>>,
}

impl Home {
    /// Of a run that is changed to one without a server.
    fn new(backbone: &Rc<InMemoryBackbone>, clock: impl Fn() -> Moment + 'static) -> Rc<Self> {
        backbone.description.borrow_mut().scheme = Scheme::Sampled(scheme());
        let roles = SampledRoles { trains: false, aggregates: Aggregates::Dialled };
        Self::of(backbone, (9, roles), clock)
    }

    /// Another tab, which reaches the backbone and is reached by it.
    fn tab(home: &Rc<Self>, clock: impl Fn() -> Moment + 'static) -> Rc<Self> {
        let roles = SampledRoles { trains: true, aggregates: Aggregates::Relayed };
        let tab = Self::of(&home.backbone, (10, roles), clock);
        tab.others.borrow_mut().push(Rc::clone(home));
        home.others.borrow_mut().push(Rc::clone(&tab));
        tab
    }

    fn of(
        backbone: &Rc<InMemoryBackbone>,
        (seed, roles): (u8, SampledRoles),
        clock: impl Fn() -> Moment + 'static,
    ) -> Rc<Self> {
        let is_tab = roles.trains;
        let run = run_hash(&backbone.description.borrow()).unwrap();
        let identity = SampledIdentity {
            key: KeyPair::from_seed(&[seed; 32]),
            run,
            counter: 0,
            roles,
            addresses: Vec::new(),
            seed: seed.into(),
        };
        let (key, first) = (identity.key.public(), backbone.parameters());
        let n_parameters = first.len();
        let peer = SampledPeer::new(SampledSettings::of(&scheme()), identity);
        let peer = if is_tab { peer } else { peer.with_model(0, first.into()) };
        Rc::new(Self {
            backbone: Rc::clone(backbone),
            is_tab,
            others: RefCell::default(),
            key,
            peer: RefCell::new(peer),
            n_parameters,
            clock: Box::new(clock),
            to_participant: RefCell::default(),
            n_averaged: Cell::new(0),
            turns: RefCell::default(),
            answers: RefCell::default(),
        })
    }

    fn with<T>(&self, act: impl FnOnce(&mut SampledPeer, Moment) -> T) -> T {
        let done = act(&mut self.peer.borrow_mut(), (self.clock)());
        self.backbone.happened.notify_one();
        done
    }

    fn knows(&self, peer: PublicKey) -> bool {
        self.peer.borrow().registry().members().any(|member| member.peer == peer)
    }

    fn newest(&self) -> SampledModel {
        self.peer.borrow().newest().unwrap().1.clone()
    }

    /// Drives it, for ever.
    async fn run(self: Rc<Self>) {
        let introduced =
            self.others.borrow().iter().filter(|other| !other.is_tab).map(|home| home.key).collect();
        self.with(|peer, now| peer.join(now, introduced));
        let mut collected = None;
        loop {
            let action = {
                let mut peer = self.peer.borrow_mut();
                let now = (self.clock)();
                if peer.next_deadline().is_some_and(|deadline| deadline <= now) {
                    peer.on_timeout(now);
                }
                peer.poll_action()
            };
            match action {
                // Of one trainer.
                Some(SampledAction::Collect { model, .. }) => collected = Some(model),
                Some(SampledAction::Average { round }) => {
                    self.n_averaged.set(self.n_averaged.get() + 1);
                    let average = collected.take().unwrap();
                    self.with(|peer, now| peer.on_averaged(now, round, &average));
                }
                Some(SampledAction::Turn { to, task, turn }) => {
                    self.turns.borrow_mut().tell(to, task, turn);
                }
                Some(action) => {
                    spawn_local(Rc::clone(&self).carry(action));
                }
                None => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
    }

    async fn carry(self: Rc<Self>, action: SampledAction) {
        match action {
            SampledAction::Ping { to, round } => {
                let pinged = async { sampled::ping(&mut self.open(to)?, round).await };
                match pinged.await {
                    Ok(()) => self.with(|peer, now| peer.on_pong(now, to, round)),
                    Err(_) => self.with(|peer, now| peer.on_unreachable(now, to, round)),
                }
            }
            SampledAction::Meet { to, view, digest } => {
                let met = async { sampled::meet(&mut self.open(to)?, view, digest).await };
                match met.await {
                    Ok(view) => self.with(|peer, now| peer.on_met(now, to, &view)),
                    Err(_) => self.with(|peer, now| peer.on_not_met(now, to)),
                }
            }
            SampledAction::Collect { .. } | SampledAction::Average { .. } | SampledAction::Turn { .. } => {
                panic!("it is done at once")
            }
            SampledAction::Push { to, task, model } => {
                let bytes: Arc<[u8]> = CODEC.encode(&model).unwrap().into();
                let pushed = async {
                    let view_for = async |digest: ViewDigest| self.peer.borrow().view_beyond(&digest);
                    let sketch = async |seed| Ok(sketch_of(CODEC, &bytes, self.n_parameters, seed)?);
                    let model = (Transfer::of(&bytes), &bytes);
                    sampled::push(&mut self.open(to)?, task, model, view_for, sketch).await
                };
                let outcome = pushed.await.map_or(PushOutcome::Failed, PushOutcome::from);
                self.with(|peer, now| peer.on_pushed(now, to, task, outcome));
            }
            SampledAction::Train { round, model } => {
                assert!(self.is_tab, "it does not train");
                self.with(|peer, now| peer.on_trained(now, round, model));
            }
            SampledAction::CancelTraining => {}
        }
    }

    /// A stream to the participant, on the connection that it made, or to another member.
    fn open(&self, to: PublicKey) -> Result<CutStream, ConversationError> {
        let closed = || ConversationError::Unexpected("there is no connection");
        let (near, far) = CutStream::pair();
        if to != contributor_key().public() {
            let others = self.others.borrow();
            let other = others.iter().find(|other| other.key == to && other.is_up() && self.is_up());
            other.ok_or_else(closed)?.answer_later(self.key, far);
            return Ok(near);
        }
        let mut sender = self.to_participant.borrow_mut();
        let sender = sender.as_mut().filter(|_| self.is_up()).ok_or_else(closed)?;
        sender.try_send((PeerKey(self.key.to_peer_id()), far)).map_err(|_| closed())?;
        Ok(near)
    }

    fn is_up(&self) -> bool {
        self.is_tab || self.backbone.is_up()
    }

    fn answer_later(self: &Rc<Self>, from: PublicKey, stream: CutStream) {
        let answer = spawn_local(Rc::clone(self).answer(from, stream));
        self.answers.borrow_mut().push(answer.abort_handle());
    }

    async fn answer(self: Rc<Self>, from: PublicKey, mut stream: CutStream) {
        while let Ok(Some(request)) = sampled::next_request(&mut stream).await {
            let response = match request {
                DiallerToAcceptor::Ping { round } => {
                    match self.with(|peer, now| peer.on_ping(now, from, round)) {
                        true => AcceptorToDialler::Pong { round },
                        false => AcceptorToDialler::Declined,
                    }
                }
                DiallerToAcceptor::Meet(view, digest) => {
                    let told = self.with(|peer, now| peer.on_meet(now, from, &view, &digest));
                    told.map_or(AcceptorToDialler::Declined, AcceptorToDialler::View)
                }
                DiallerToAcceptor::Offer(offer) => {
                    let Ok(digest) = self.with(|peer, now| peer.on_offer(now, from, offer.task)) else {
                        sampled::respond(&mut stream, &AcceptorToDialler::Declined).await.unwrap();
                        continue;
                    };
                    sampled::respond(&mut stream, &AcceptorToDialler::Wanted(digest)).await.unwrap();
                    let n_bytes = CODEC.encoded_len(self.n_parameters) as u64;
                    let task: SampledTask = offer.task;
                    let mut pulling = ModelUnderWay { home: &self, from, task, has_come: false };
                    let on_view = async |view: View| {
                        let turn = self.turns.borrow_mut().wait(from, task);
                        let is_proven = self.with(|peer, now| peer.on_view_before(now, from, task, &view));
                        if is_proven { turn.await.ok() } else { None }
                    };
                    let never = async |_| panic!("the aggregators of this run are not compared");
                    let received = sampled::receive(&mut stream, offer.transfer, n_bytes, on_view, never);
                    let bytes = received.await.unwrap().unwrap();
                    let model = CODEC.decode(&bytes, self.n_parameters).unwrap();
                    pulling.has_come = true;
                    self.with(|peer, now| peer.on_model(now, from, task, model.into()));
                    continue;
                }
                DiallerToAcceptor::View(_) | DiallerToAcceptor::Sketch(_) => panic!("it was not asked for"),
            };
            if sampled::respond(&mut stream, &response).await.is_err() {
                return;
            }
        }
    }

    /// All streams of the participant end, and none can be opened.
    fn vanish(&self) {
        self.backbone.vanish();
        self.answers.take().iter().for_each(AbortHandle::abort);
    }
}

/// A model under way. Where the conversation ends before it has come, it does not come.
struct ModelUnderWay<'h> {
    home: &'h Home,
    from: PublicKey,
    task: SampledTask,
    has_come: bool,
}

impl Drop for ModelUnderWay<'_> {
    fn drop(&mut self) {
        if !self.has_come {
            self.home.with(|peer, now| peer.on_transfer_failed(now, self.from, self.task));
        }
    }
}

struct SampledPlatform {
    platform: Rc<TestPlatform>,
    home: Rc<Home>,
    /// Another tab. Where there is one, both are reached through a relay.
    tab: Option<Rc<Home>>,
}

impl Platform for SampledPlatform {
    type Stream = CutStream;

    of_test_platform!();

    async fn connect(&self) -> Result<Vec<u8>, PlatformError> {
        self.platform.connect().await?;
        Ok(self.home.key.to_peer_id())
    }

    async fn open(&self, protocol: &'static str) -> Result<CutStream, PlatformError> {
        if protocol != sampled::PROTOCOL {
            return self.platform.open(protocol).await;
        }
        if !self.home.backbone.is_up() {
            return Err(PlatformError::NotConnected);
        }
        let (near, far) = CutStream::pair();
        self.home.answer_later(contributor_key().public(), far);
        Ok(near)
    }

    async fn open_host(
        &self,
        host: &PeerKey,
        _: &[Vec<u8>],
        protocol: &'static str,
    ) -> Result<CutStream, PlatformError> {
        let tab = self.tab.as_ref().filter(|tab| tab.key.to_peer_id() == host.0);
        let (near, far) = CutStream::pair();
        tab.ok_or(PlatformError::NoPeers { protocol })?.answer_later(contributor_key().public(), far);
        Ok(near)
    }

    fn addresses(&self, n_relays: usize) -> Vec<Vec<u8>> {
        assert_eq!(n_relays, 2);
        self.tab.iter().map(|_| vec![4, 127, 0, 0, 1]).collect()
    }

    fn accept(&self, protocol: &'static str) -> Result<IncomingStreams<CutStream>, PlatformError> {
        assert_eq!(protocol, sampled::PROTOCOL);
        let (sender, incoming) = mpsc::channel(4);
        for member in self.tab.iter().chain([&self.home]) {
            member.to_participant.replace(Some(sender.clone()));
        }
        Ok(incoming.boxed_local())
    }
}

fn n_accepted(script: &Script) -> u64 {
    let given = script.events.borrow();
    given
        .iter()
        .rev()
        .find_map(|event| match event {
            barnraise_contributor::ContributorEvent::Contribution(given) => Some(given.n_accepted),
            _ => None,
        })
        .unwrap_or_default()
}

fn setting() -> (Rc<InMemoryBackbone>, Rc<Home>, SampledPlatform) {
    setting_of(InMemoryBackbone::new(3, 64))
}

fn setting_of(backbone: Rc<InMemoryBackbone>) -> (Rc<InMemoryBackbone>, Rc<Home>, SampledPlatform) {
    let platform = TestPlatform::new(&backbone);
    let of_clock = Rc::clone(&platform);
    let home = Home::new(&backbone, move || of_clock.now());
    (backbone, Rc::clone(&home), SampledPlatform { platform, home, tab: None })
}

#[test]
fn a_participant_that_nobody_dials_trains_rounds_and_tells_that_it_leaves() {
    let (backbone, home, platform) = setting();
    let before = home.newest();
    let me = contributor_key().public();
    let (activities, given) = play_on(&backbone, &platform, async |mut script| {
        let driving = spawn_local(Rc::clone(&home).run());
        script.send(ContributorCommand::Start);
        script.until(|script| n_accepted(script) >= 3).await;
        assert!(home.knows(me));
        script.send(ContributorCommand::Stop);
        script.until(|_| !home.knows(me)).await;
        let averaged = home.n_averaged.get();
        // It comes back, with a later counter than before, or nobody would believe it.
        script.send(ContributorCommand::Start);
        script.until(|_| home.knows(me) && home.n_averaged.get() >= averaged + 2).await;
        driving.abort();
        script.activities()
    });
    assert!(given.n_accepted >= 3, "{given:?}");
    assert!(home.n_averaged.get() >= given.n_accepted, "{} of {given:?}", home.n_averaged.get());
    // Whole batches of its shard.
    let of_round = N_SAMPLES.next_multiple_of(MICRO_BATCH.into());
    assert_eq!(given.n_samples_accepted, given.n_accepted * of_round);
    let is_training = |activity: &Activity| matches!(activity, Activity::Training { .. });
    assert!(activities.iter().any(is_training), "{activities:?}");
    let moved = before.iter().zip(home.newest().iter()).any(|(before, after)| before != after);
    assert!(moved, "the model that it gave is another one");
}

#[test]
fn one_that_is_started_while_it_leaves_takes_part_again_on_its_connection() {
    let (backbone, home, platform) = setting();
    let (activities, _) = play_on(&backbone, &platform, async |mut script| {
        let driving = spawn_local(Rc::clone(&home).run());
        script.send(ContributorCommand::Start);
        script.until(|script| n_accepted(script) >= 1).await;
        script.send(ContributorCommand::Stop);
        script.send(ContributorCommand::Start);
        let before = n_accepted(&script);
        script.until(|script| n_accepted(script) >= before + 2).await;
        driving.abort();
        script.activities()
    });
    let is_gone = |activity: &Activity| matches!(activity, Activity::Reconnecting { .. });
    assert!(!activities.iter().any(is_gone), "{activities:?}");
}

#[test]
fn a_participant_goes_on_when_its_backbone_is_back() {
    let (backbone, home, platform) = setting();
    play_on(&backbone, &platform, async |mut script| {
        let driving = spawn_local(Rc::clone(&home).run());
        script.send(ContributorCommand::Start);
        script.until(|script| n_accepted(script) >= 1).await;
        home.vanish();
        let is_gone = |activity: &Activity| matches!(activity, Activity::Reconnecting { .. });
        script.until(|script| script.activities().iter().any(is_gone)).await;
        let before = n_accepted(&script);
        backbone.come_back();
        script.until(|script| n_accepted(script) >= before + 2).await;
        driving.abort();
    });
}

/// All that can be dialled are gone: half of the rounds are this participant's to average.
#[test]
fn a_participant_that_others_reach_goes_on_with_another_tab_while_no_backbone_answers() {
    let (backbone, home, mut platform) = setting();
    let of_clock = Rc::clone(&platform.platform);
    let tab = Home::tab(&home, move || of_clock.now());
    platform.tab = Some(Rc::clone(&tab));
    let (activities, given) = play_on(&backbone, &platform, async |mut script| {
        let driving = [&home, &tab].map(|member| spawn_local(Rc::clone(member).run()));
        script.send(ContributorCommand::Start);
        let me = contributor_key().public();
        script.until(|script| n_accepted(script) >= 2 && tab.knows(me)).await;
        assert_eq!(tab.n_averaged.get(), 0, "the backbone averages");
        home.vanish();
        driving[0].abort();
        let (before, round) = (n_accepted(&script), tab.peer.borrow().round());
        // Each round is averaged once: those that the other tab did not are this participant's.
        let n_averaged = || (tab.peer.borrow().round() - round).saturating_sub(tab.n_averaged.get());
        script
            .until(|script| {
                n_accepted(script) >= before + 3 && tab.n_averaged.get() >= 3 && n_averaged() >= 3
            })
            .await;
        // Once it is seen that the backbone is gone, the user is told how far the run is.
        script
            .until_event(|event| {
                let is_later = |progress: &RunProgress| progress.epoch > round + 2;
                matches!(event, ContributorEvent::Progress(progress) if is_later(progress))
            })
            .await;
        let before = n_accepted(&script);
        script.until(|script| n_accepted(script) >= before + 2).await;
        // One that its user stops finds the other again, without a backbone.
        script.send(ContributorCommand::Stop);
        script.until(|script| script.activities().last() == Some(&Activity::Idle)).await;
        let before = n_accepted(&script);
        script.send(ContributorCommand::Start);
        script.until(|script| n_accepted(script) >= before + 2).await;
        driving[1].abort();
        script.activities()
    });
    let until_stopped = activities.iter().take_while(|doing| **doing != Activity::Stopping);
    let is_gone = |activity: &Activity| matches!(activity, Activity::Reconnecting { .. });
    assert!(!until_stopped.clone().any(is_gone), "{activities:?}");
    assert!(given.bytes_up > 0);
}

/// Who pays for each byte does not average.
#[test]
fn a_participant_with_few_bytes_a_day_tells_that_it_does_not_average() {
    for (day_mb, aggregates) in
        [(Some(0), Aggregates::Never), (Some(5000), Aggregates::Relayed), (None, Aggregates::Relayed)]
    {
        let (backbone, home, mut platform) = setting();
        let of_clock = Rc::clone(&platform.platform);
        platform.tab = Some(Home::tab(&home, move || of_clock.now()));
        play_on(&backbone, &platform, async |mut script| {
            let driving = spawn_local(Rc::clone(&home).run());
            script.send(ContributorCommand::Pacing(PacingSettings { day_mb, ..PacingSettings::default() }));
            script.send(ContributorCommand::Start);
            let me = contributor_key().public();
            script.until(|_| home.knows(me)).await;
            let roles = home.peer.borrow().registry().membership(&me).unwrap().joined().unwrap().roles;
            assert_eq!(roles.aggregates, aggregates, "{day_mb:?}");
            driving.abort();
        });
    }
}

/// What a byte of a picture is to a network.
fn decoded(byte: u8) -> [u8; 4] {
    ((f32::from(byte) / 255.0 - PIXEL_MEAN) / PIXEL_STD).to_le_bytes()
}

/// Whether there is any run of the data's bytes in `traffic`, or of the values that they are decoded to.
fn holds_any_of(traffic: &[u8], data: &[u8], values: &[[u8; 4]]) -> bool {
    let mut runs: HashSet<[u8; 8]> = data.windows(8).map(|run| run.try_into().unwrap()).collect();
    runs.extend(values.windows(2).map(|pair| -> [u8; 8] { pair.concat().try_into().unwrap() }));
    traffic.windows(8).any(|run| runs.contains(run))
}

/// All traffic of a participant that trains some rounds on samples of its own, fewer of them than a batch has.
fn traffic_of_training(
    (backbone, home, platform): &(Rc<InMemoryBackbone>, Rc<Home>, SampledPlatform),
    own: Samples,
) -> Vec<u8> {
    let before = home.newest();
    record_traffic();
    let (_, given) = play_on(backbone, platform, async |mut script| {
        let driving = spawn_local(Rc::clone(home).run());
        script.send(ContributorCommand::OwnData(Some(own)));
        script.send(ContributorCommand::Start);
        script.until(|script| n_accepted(script) >= 3).await;
        driving.abort();
        script.activities()
    });
    // A batch of a round has each sample more than once.
    assert_eq!(given.n_samples_accepted, given.n_accepted * u64::from(MICRO_BATCH));
    assert!(before.iter().zip(home.newest().iter()).any(|(before, after)| before != after));
    let traffic = recorded_traffic();
    let n_model_bytes = CODEC.encoded_len(before.len());
    assert!(traffic.len() > 3 * n_model_bytes, "{} bytes: models went to and fro", traffic.len());
    traffic
}

#[test]
fn pictures_of_the_users_own_are_trained_on_and_never_sent() {
    let mut random = SplitMix64::new(9);
    let images: Vec<u8> = (0..5 * SHAPE.n_values()).map(|_| random.below(256) as u8).collect();
    let own = LabelledImages { images: images.clone(), labels: vec![0, 1, 0, 1, 1] };
    let traffic = traffic_of_training(&setting(), Samples::Images(own));
    let values: Vec<[u8; 4]> = images.iter().copied().map(decoded).collect();
    assert!(!holds_any_of(&traffic, &images, &values));
    for leak in [images[100..120].to_vec(), values[30..33].concat()] {
        assert!(holds_any_of(&[&traffic[..], &leak].concat(), &images, &values), "it would be found");
    }
}

/// Columns of a run's table, and what is to be told of a row.
fn flowers() -> (TableColumns, TableTarget) {
    let column = |name: &str| {
        let content = ColumnContent::Number(Scale { mean: 300.0, deviation: 150.0 });
        Column { name: name.into(), content }
    };
    let columns = TableColumns { target: "kind".into(), columns: vec![column("petal"), column("sepal")] };
    (columns, TableTarget::Class(["daisy", "rose"].map(String::from).into()))
}

#[test]
fn rows_of_the_users_own_table_are_trained_on_and_never_sent() {
    let backbone = InMemoryBackbone::new(3, 64);
    let (columns, target) = flowers();
    let shape = TableShape { columns: columns.names(), target: target.clone() };
    backbone.learn_from(SampleKind::Rows(shape));
    let mut random = SplitMix64::new(9);
    let mut number = || format!("{}.{:03}", random.below(1000), random.below(1000));
    let row = |row: usize| format!("{},seen {row},{},{}\n", ["rose", "daisy"][row % 2], number(), number());
    let text: String = (0..7).map(row).collect();
    // In another order than the run's, beside a column of the user's own, and with a row that is left out.
    let table = format!("kind,note,sepal,petal\n{text}rose,no numbers,long,short\n");
    let OwnRows { rows, broken } = OwnRows::read(table.as_bytes(), &columns, &target).unwrap();
    assert_eq!((rows.n_samples(), broken.n()), (7, 1));
    let values: Vec<[u8; 4]> = rows.values.iter().map(|value| value.to_le_bytes()).collect();
    let traffic = traffic_of_training(&setting_of(backbone), Samples::Rows(rows));
    assert!(!holds_any_of(&traffic, text.as_bytes(), &values));
    for leak in [text.as_bytes()[20..30].to_vec(), values[3..5].concat()] {
        assert!(holds_any_of(&[&traffic[..], &leak].concat(), text.as_bytes(), &values), "it would be found");
    }
}

#[test]
fn pictures_that_the_run_does_not_learn_from_are_refused_with_the_reason() {
    let (backbone, _, platform) = setting();
    let (activities, _) = play_on(&backbone, &platform, async |mut script| {
        let own = LabelledImages { images: vec![1; 7], labels: vec![0] };
        script.send(ContributorCommand::OwnData(Some(Samples::Images(own))));
        script.send(ContributorCommand::Start);
        let is_broken = |activity: &Activity| matches!(activity, Activity::Broken { .. });
        script.until(|script| script.activities().iter().any(is_broken)).await;
        script.activities()
    });
    let said = format!("{activities:?}");
    assert!(said.contains("your own data are not of the kind"), "{said}");
}
