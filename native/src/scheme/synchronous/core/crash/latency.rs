//! How soon the core answers while a large model steps: `cargo xtask bench core`.
//!
//! A contributor delivers as fast as it can, so that step follows on step. Beside it offers come that are refused, each at
//! its time, however many wait for an answer. The same questions go to a task that does nothing else: what those take is
//! the machine and not the core.

use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};

use super::*;

/// Interval between two offers that are refused.
const ASKED_EVERY: Duration = Duration::from_millis(4);
/// Steps before the clock starts.
const WARM_UP: u64 = 2;

/// A question to a task that answers at once.
type Echo = oneshot::Sender<()>;

/// The same gradient again and again.
struct Deliveries {
    peer: PeerKey,
    events: mpsc::Sender<CoreEvent>,
    offer: Offer,
    payload: bytes::Bytes,
    values: Arc<Vec<f32>>,
}

impl Deliveries {
    /// Delivers until the core makes no more steps.
    async fn deliver(mut self, mut state: watch::Receiver<PublishedState>) {
        for id in 0.. {
            self.offer.contribution_id = id;
            loop {
                self.offer.epoch = state.borrow_and_update().header.epoch;
                match self.deliver_one().await {
                    None => return,
                    Some(Ok(())) => break,
                    Some(Err(ContributionRefusal::Epoch { .. })) => {
                        if state.changed().await.is_err() {
                            return;
                        }
                    }
                    Some(Err(refusal)) => panic!("{refusal}"),
                }
            }
        }
    }

    async fn deliver_one(&self) -> Option<Result<(), ContributionRefusal>> {
        let (answer, answered) = oneshot::channel();
        let (peer, offer) = (self.peer.clone(), self.offer.clone());
        self.events.send(CoreEvent::Offer { peer, offer, answer }).await.ok()?;
        let accepted = match answered.await.ok()? {
            Ok(accepted) => accepted,
            Err(DeclinedOffer::Refused(refusal)) => return Some(Err(refusal)),
            Err(DeclinedOffer::AlreadyCounted(_)) => return Some(Ok(())),
        };
        let values = Arc::clone(&self.values);
        let values = tokio::task::spawn_blocking(move || values.to_vec().into()).await.unwrap();
        let entry = JournalEntry {
            peer: self.peer.0.clone(),
            group: AddressGroup(1),
            offer: self.offer.clone(),
            milliseconds: 0,
            accepted_at: UnixTime(0),
            payload: self.payload.clone(),
            samples: None,
        };
        let (answer, answered) = oneshot::channel();
        let (ticket, entry) = (accepted.ticket, Box::new(entry));
        self.events.send(CoreEvent::Gradient { ticket, entry, values, answer }).await.ok()?;
        Some(answered.await.ok()?.map(drop))
    }
}

/// Asks the core and the echo until `end`; returns how long each answer took.
async fn ask(
    (events, refused): (mpsc::Sender<CoreEvent>, (PeerKey, Offer)),
    echo: mpsc::Sender<Echo>,
    mut end: oneshot::Receiver<()>,
) -> [Vec<Duration>; 2] {
    let mut ticks = tokio::time::interval(ASKED_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let (mut asked_core, mut asked_echo) = (JoinSet::new(), JoinSet::new());
    while end.try_recv().is_err() {
        let at = ticks.tick().await;
        let (events, (peer, offer), echo) = (events.clone(), refused.clone(), echo.clone());
        asked_core.spawn(async move {
            let (answer, answered) = oneshot::channel();
            events.send(CoreEvent::Offer { peer, offer, answer }).await.unwrap();
            assert!(answered.await.unwrap().is_err());
            at.elapsed()
        });
        asked_echo.spawn(async move {
            let (answer, answered) = oneshot::channel();
            echo.send(answer).await.unwrap();
            answered.await.unwrap();
            at.elapsed()
        });
    }
    [asked_core.join_all().await, asked_echo.join_all().await]
}

/// Median, 99th percentile and worst.
fn print(what: &str, mut took: Vec<Duration>) {
    took.sort_unstable();
    let at = |share: f64| took[((took.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e3;
    let (median, most, worst) = (at(0.5), at(0.99), at(1.0));
    let n = took.len();
    println!("| {what} | {n} | {median:.2} | {most:.2} | {worst:.2} |");
}

fn offer(world: &CrashHarness) -> (Offer, bytes::Bytes, Arc<Vec<f32>>) {
    let values = vec![1e-3; world.layout.n_parameters()];
    let (small, _, _) = CrashHarness::new("small").contribution(0, 0);
    let payload = TensorCodec::F32.encode(&values).unwrap();
    let (n_values, transfer) = (values.len() as u64, Transfer::of(&payload));
    (Offer { n_values, transfer, ..small }, payload.into(), Arc::new(values))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement: `cargo xtask bench core`"]
async fn answers_while_a_large_model_steps() {
    let (n_parameters, n_steps) = (number("CORE_PARAMETERS", 10_000_000), number("CORE_STEPS", 20));
    // Seven parameters for each hidden unit, and two biases.
    let mut world = CrashHarness::of_width("latency", (n_parameters / 7) as u32);
    world.config.synchronous_mut().unwrap().optimizer = OptimizerSpec::adam();
    let (folder, database) = (tempfile::tempdir().unwrap(), folder());
    let store = world.store(database.path()).await;
    let mut alive = world.start(Storage::open(folder.path()).unwrap(), &store).await.unwrap();
    let (offer, payload, values) = offer(&world);
    let refused = Offer { epoch: u64::MAX, ..offer.clone() };
    let peer = world.contributors[0].clone();
    let deliveries = Deliveries { peer, events: alive.events.clone(), offer, payload, values };
    let delivering = tokio::spawn(deliveries.deliver(alive.state.clone()));
    let mut sessions = std::mem::take(&mut alive.sessions);
    let reading = sessions.pop().unwrap();
    let reading = [reading, sessions.pop().unwrap()]
        .map(|mut session| tokio::spawn(async move { while session.recv().await.is_some() {} }));
    let (echo, mut echoed) = mpsc::channel::<Echo>(EVENTS_MAX);
    let echoing = tokio::spawn(async move {
        while let Some(answer) = echoed.recv().await {
            let _ = answer.send(());
        }
    });
    alive.reaches(WARM_UP).await;
    let (end, ended) = oneshot::channel();
    let core = (alive.events.clone(), (world.contributors[1].clone(), refused));
    let began = Instant::now();
    let asking = tokio::spawn(ask(core, echo, ended));
    alive.reaches(WARM_UP + n_steps).await;
    let per_step = began.elapsed().as_secs_f64() / n_steps as f64;
    end.send(()).unwrap();
    let [of_core, of_echo] = asking.await.unwrap();
    let n_parameters = world.layout.n_parameters();
    println!("\n{n_parameters} parameters, {n_steps} steps of {per_step:.2} s\n");
    println!("| asked | answers | median, ms | 99th percentile, ms | worst, ms |");
    println!("|---|---|---|---|---|");
    print("the core", of_core);
    print("a task that does nothing else", of_echo);
    delivering.abort();
    alive.crash().await;
    reading.into_iter().chain([echoing]).for_each(|task| task.abort());
    store.close().await;
}
