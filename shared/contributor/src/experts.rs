//! What the passes of a trainer ask of experts on other peers (Learning@home §3): finds the hosts of those that the gating
//! function prefers, has them compute, and tells the passes.
//!
//! Many passes are under way at once. An expert that does not answer is left out, so that nothing here ends a pass. Which host
//! is asked, and for how long, is decided in [`barnraise_swarm::experts`].

mod answers;
mod batch;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use barnraise_learning::experts::ExpertCall;
use barnraise_learning::graph::{ExpertGrid, HostedBody, ResolvedGraph};
use barnraise_learning::{DataShape, ModelError};
use barnraise_protocol::access::{PublicKey, UnixTime};
use barnraise_protocol::codec::TensorCodec;
use barnraise_protocol::dht::{self, Record, RecordKey, UnixMillis};
use barnraise_protocol::experts::leases::{CopyHolder, PLACES_MAX};
use barnraise_protocol::experts::{
    self, ExpertPlace, ExpertRefusal, ExpertRequestError, ExpertRows, GridShape, LayerId, PreparedRequest,
    TENSOR_BYTES_MAX,
};
use barnraise_protocol::run::RunDescription;
use barnraise_swarm::experts::calls::{
    CallAction, CallSettings, ExpertAnswerError, HostBook, HostBookLimits, SentCall,
};
use barnraise_swarm::experts::serving::{SESSION_SHIFT, ServingRefusal};
use barnraise_swarm::experts::{
    ExpertQuery, ExpertSearch, ExpertSearchAction, ExpertTallies, ExpertsSeen, GridPrefix, HostFault,
    QUERY_ROWS_MAX, QueryId, RowSelection,
};
use barnraise_swarm::experts::{announced_places, retain_holders};
use barnraise_swarm::{Moment, PeerKey};
use futures::channel::{mpsc, oneshot};
use futures::future::{FutureExt, LocalBoxFuture};
use futures::io::{AsyncRead, AsyncWrite};
use futures::stream::{FuturesUnordered, StreamExt};
use futures::{future, select_biased};

use self::answers::OfferedAnswers;
use self::batch::ExpertBatch;
use crate::platform::PlatformError;

/// Clock and network, as far as experts need them. Nothing needs to be `Send`: all runs in one task.
pub trait ExpertNetwork: Clone {
    /// A stream to a host.
    type Stream: AsyncRead + AsyncWrite + Unpin;
    /// A stream to the backbone.
    type BackboneStream: AsyncRead + AsyncWrite + Unpin;

    /// Monotonic time since an origin of the network's choice.
    fn now(&self) -> Moment;

    /// Wall-clock time, for the expiry of records.
    fn unix_time(&self) -> UnixTime;

    /// Completes at `at` or soon after.
    fn sleep_until(&self, at: Moment) -> impl Future<Output = ()>;

    /// Searches the DHT, up to the first peer that has records. Returns the records of some keys, the first ones, at least of one; all of them signed by their owners.
    fn look_up(&self, keys: Vec<RecordKey>) -> impl Future<Output = Result<Vec<Vec<Record>>, PlatformError>>;

    /// The hosts that have copies of these experts now, as the run's backbone says, in the order of the places.
    fn holders(
        &self,
        run_id: &str,
        places: Vec<ExpertPlace>,
    ) -> impl Future<Output = Result<Vec<Vec<CopyHolder>>, PlatformError>>;

    /// A stream of `expert-audits` to the run's backbone.
    fn open_audit(&self) -> impl Future<Output = Result<Self::BackboneStream, PlatformError>>;

    /// A host has refused a request, since it has seen no valid token of this peer.
    fn on_no_access(&self, host: &PeerKey) {
        let _ = host;
    }

    /// A stream to a host of experts, at the addresses that it announced. In a run that is not open, the host has seen this peer's
    /// token before.
    fn open_host(
        &self,
        host: &PeerKey,
        addresses: &[Vec<u8>],
    ) -> impl Future<Output = Result<Self::Stream, PlatformError>>;
}

fn wall(network: &impl ExpertNetwork) -> UnixMillis {
    UnixMillis(network.unix_time().0.saturating_mul(1000))
}

/// Time for a search. What is found by then is asked.
const SEARCH_TIME: Duration = Duration::from_secs(4);
/// Time for the experts of a layer to answer.
const FORWARD_TIME: Duration = Duration::from_secs(15);
/// Time for them to step.
const BACKWARD_TIME: Duration = Duration::from_secs(30);
/// Requests under way.
const IN_FLIGHT_MAX: usize = 256;
/// Requests under way at one host.
const HOST_IN_FLIGHT_MAX: usize = 16;
/// Batches of one layer that are under way, or wait for their way back. The oldest is forgotten for another one.
const BATCHES_MAX: usize = 512;
/// Least interval between two tellings of what is seen of experts.
const SEEN_INTERVAL: Duration = Duration::from_secs(1);
/// Without anything to do it looks at the clock again after so long.
const IDLE: Duration = Duration::from_secs(3600);

/// A layer of experts.
#[derive(Debug, Clone, Copy)]
struct Layer {
    grid: GridShape,
    n_values: usize,
    n_given: usize,
}

/// What came of a request to a host.
struct Answered {
    batch: u64,
    request_id: u64,
    /// By layer and number.
    expert: (usize, u32),
    host: PublicKey,
    /// The values, and the steps of the expert.
    result: Result<(Vec<f32>, u64), RequestFault>,
}

/// Why a request to a host has no answer.
#[derive(Debug, thiserror::Error)]
enum RequestFault {
    #[error(transparent)]
    Refused(#[from] ExpertRefusal),
    #[error(transparent)]
    Request(ExpertRequestError),
    #[error(transparent)]
    Platform(#[from] PlatformError),
    /// The host does not stand by what it gave.
    #[error("the host has not signed its answer")]
    Unsigned,
    /// Values that do not decode.
    #[error("the answer has values that are none")]
    Values,
    /// Nobody waits any more.
    #[error("cancelled")]
    Cancelled,
}

/// Prefixes that were looked up, with what was found of each.
type LookedUp = Vec<(GridPrefix, Option<Vec<Record>>)>;

/// The newest telling of what a service sees of its experts, until it is taken.
pub(crate) type SeenSlot = Rc<Cell<Option<Box<ExpertsSeen>>>>;

/// Finds and asks the experts of one run.
pub struct ExpertService<'a, N: ExpertNetwork> {
    network: N,
    run: Rc<RunDescription>,
    codec: TensorCodec,
    layers: Vec<Layer>,
    search: ExpertSearch,
    book: HostBook,
    /// By number, the oldest first.
    batches: BTreeMap<u64, ExpertBatch>,
    n_batches: u64,
    /// The batch of each query.
    queries: HashMap<QueryId, u64>,
    lookups: FuturesUnordered<LocalBoxFuture<'a, LookedUp>>,
    requests: FuturesUnordered<LocalBoxFuture<'a, Answered>>,
    /// Dropped to cancel a request.
    cancels: HashMap<u64, oneshot::Sender<()>>,
    /// Some of what came, for the backbone to check.
    answers: OfferedAnswers<'a>,
    tallies: ExpertTallies,
    /// Rows that were answered.
    n_answered: Rc<Cell<u64>>,
    /// Calls of training since one of them was answered at all.
    n_in_vain: Rc<Cell<u32>>,
    seen: SeenSlot,
    /// When there is news to tell.
    tell_at: Option<Moment>,
    told_at: Moment,
}

impl<'a, N: ExpertNetwork + 'a> ExpertService<'a, N> {
    /// For a run; `None` where its model has no hosted experts. `session` is another one with each service of this peer, also over
    /// restarts: hosts refuse what they may have counted in the same one.
    ///
    /// # Errors
    /// A model that does not fit the run's data.
    pub fn new(
        network: N,
        run: &Rc<RunDescription>,
        (seed, session): (u64, u32),
    ) -> Result<Option<Self>, ModelError> {
        let Some(hosted) = &run.model.hosted else { return Ok(None) };
        let graph = ResolvedGraph::of_model(&run.model, DataShape::of(&run.data.manifest.samples))?;
        let layers = layers(&graph);
        let model = experts::model_hash(run)?;
        let tallies = ExpertTallies::new(layers.iter().map(|layer| layer.grid).collect());
        let limits = HostBookLimits { in_flight_max: IN_FLIGHT_MAX, host_in_flight_max: HOST_IN_FLIGHT_MAX };
        Ok(Some(Self {
            run: run.clone(),
            codec: hosted.codec,
            layers,
            search: ExpertSearch::new(seed),
            book: HostBook::new(limits, u64::from(session) << SESSION_SHIFT, seed),
            network,
            batches: BTreeMap::new(),
            n_batches: 0,
            queries: HashMap::new(),
            lookups: FuturesUnordered::new(),
            requests: FuturesUnordered::new(),
            cancels: HashMap::new(),
            answers: OfferedAnswers::new(seed, model),
            tallies,
            n_answered: Rc::default(),
            n_in_vain: Rc::default(),
            seen: Rc::default(),
            tell_at: None,
            told_at: Moment::ZERO,
        }))
    }

    /// Adds the rows that experts answer to a counter, each once for each expert.
    #[must_use]
    pub fn counting(self, n_answered: Rc<Cell<u64>>) -> Self {
        Self { n_answered, ..self }
    }

    /// Where it counts calls of training since one of them was answered at all.
    #[must_use]
    pub(crate) fn counting_in_vain(self, n_in_vain: Rc<Cell<u32>>) -> Self {
        Self { n_in_vain, ..self }
    }

    /// Layers of experts that it asks for.
    pub(crate) fn n_layers(&self) -> u32 {
        u32::try_from(self.layers.len()).unwrap_or(u32::MAX)
    }

    /// Where it tells what it sees.
    #[must_use]
    pub(crate) fn telling(self, seen: SeenSlot) -> Self {
        Self { seen, ..self }
    }

    /// Serves a port until it is closed.
    pub async fn serve(mut self, mut calls: mpsc::Receiver<ExpertCall>) {
        loop {
            self.act();
            let network = self.network.clone();
            let at = self.next_deadline().unwrap_or(network.now() + IDLE);
            let woken = {
                let mut timer = pin!(network.sleep_until(at).fuse());
                let mut lookup = pin!(next(&mut self.lookups).fuse());
                let mut answer = pin!(next(&mut self.requests).fuse());
                let mut offered = pin!(self.answers.offered().fuse());
                select_biased! {
                    call = calls.next() => Woken::Call(call),
                    found = lookup => Woken::Found(found),
                    answered = answer => Woken::Answered(answered),
                    () = offered => Woken::Offered,
                    () = timer => Woken::Timer,
                }
            };
            match woken {
                Woken::Call(Some(call)) => self.on_call(call),
                Woken::Call(None) => return,
                Woken::Found(found) => self.on_found(found),
                Woken::Answered(answered) => self.on_answered(answered),
                Woken::Offered => {}
                Woken::Timer => self.on_timeout(),
            }
        }
    }

    fn on_call(&mut self, call: ExpertCall) {
        match call {
            ExpertCall::Forward { layer, scores, n_active, inputs, is_training, answer } => {
                let Some(of_layer) = self.layers.get(layer).copied() else { return };
                let batch = ExpertBatch::new((layer, of_layer), inputs, n_active, is_training, answer);
                self.begin(batch, &scores);
            }
            ExpertCall::Backward { call, gradients, answer } => {
                let Some(batch) = self.batches.get_mut(&call) else { return };
                batch.on_gradients(self.network.now(), &mut self.book, gradients, answer);
            }
        }
    }

    /// Searches the experts of a batch.
    fn begin(&mut self, mut batch: ExpertBatch, scores: &[f32]) {
        let now = self.network.now();
        let (layer, number) = (batch.layer(), self.n_batches);
        self.n_batches += 1;
        let n_scores = self.layers.get(layer).map_or(1, |layer| layer.grid.n_scores()).max(1);
        for scores in scores.chunks(QUERY_ROWS_MAX * n_scores) {
            // A row that has no scores gets no expert.
            let scores = scores.iter().map(|score| if score.is_finite() { *score } else { f32::MIN / 8.0 });
            let (Ok(number_of_layer), Some(of_layer)) = (u16::try_from(layer), self.layers.get(layer)) else {
                return;
            };
            let query = ExpertQuery {
                layer: LayerId(number_of_layer),
                grid: of_layer.grid,
                n_active: batch.n_active(),
                scores: scores.collect(),
                deadline: now + SEARCH_TIME,
            };
            let n_rows = query.scores.len() / n_scores;
            match self.search.begin(now, query) {
                Ok(query) => {
                    batch.await_rows(query);
                    self.queries.insert(query, number);
                }
                // Too many at a time: these rows go without.
                Err(_) => batch.pass_rows(n_rows),
            }
        }
        while self.batches.len() >= BATCHES_MAX
            && let Some((_, mut oldest)) = self.batches.pop_first()
        {
            oldest.abandon(&mut self.book);
        }
        self.batches.insert(number, batch);
        self.start_if_found(number);
    }

    fn on_selected(&mut self, query: QueryId, rows: Vec<RowSelection>) {
        let Some(number) = self.queries.remove(&query) else { return };
        let Some(batch) = self.batches.get_mut(&number) else { return };
        batch.on_selected(query, rows);
        self.start_if_found(number);
    }

    /// Asks the hosts of a batch once all of its rows have their experts.
    fn start_if_found(&mut self, number: u64) {
        let now = self.network.now();
        if let Some(batch) = self.batches.get_mut(&number) {
            batch.start_if_found(now, settings(batch.sizes(), self.codec));
        }
    }

    fn on_found(&mut self, found: LookedUp) {
        let (now, wall) = (self.network.now(), wall(&self.network));
        for (prefix, records) in found {
            match records {
                Some(records) => self.search.on_records(now, wall, prefix, &records),
                None => self.search.on_failed(now, prefix),
            }
        }
    }

    fn on_answered(&mut self, answered: Answered) {
        let Answered { batch, request_id, expert, host, result } = answered;
        // One that was cancelled may have been sent again meanwhile, under its number: that one goes on.
        if !matches!(result, Err(RequestFault::Cancelled)) {
            self.cancels.remove(&request_id);
        }
        let now = self.network.now();
        let Some(batch) = self.batches.get_mut(&batch) else { return };
        let fault = match result {
            Ok((values, n_steps)) => {
                match batch.on_answer(now, &mut self.book, request_id, (&values, n_steps)) {
                    Ok(()) => {
                        self.tallies.on_steps(now, expert, n_steps);
                        None
                    }
                    // It came with its cancellation: its host was late, and nothing is wrong with what it gave.
                    Err(ExpertAnswerError::NotWaitedFor) => return,
                    Err(_) => Some(HostFault::Absurd),
                }
            }
            Err(RequestFault::Cancelled) => return,
            Err(RequestFault::Refused(refusal)) => {
                let of_runtime = serving_refusal(&refusal);
                batch.on_refused(now, &mut self.book, request_id, of_runtime);
                match (refusal, of_runtime) {
                    (_, ServingRefusal::Busy { retry_after }) => Some(HostFault::Busy(retry_after)),
                    (ExpertRefusal::NoAccess(_), _) => Some(HostFault::Failed),
                    // Neither a fault nor an answer.
                    _ => return,
                }
            }
            Err(RequestFault::Unsigned) => {
                batch.on_broken(now, &mut self.book, request_id);
                Some(HostFault::Absurd)
            }
            Err(RequestFault::Request(_) | RequestFault::Platform(_) | RequestFault::Values) => {
                batch.on_broken(now, &mut self.book, request_id);
                Some(HostFault::Failed)
            }
        };
        match fault {
            Some(fault) => self.search.on_host_fault(now, host, fault),
            None => self.search.on_host_answered(&host),
        }
    }

    fn on_timeout(&mut self) {
        let now = self.network.now();
        self.search.on_timeout(now);
        self.batches.values_mut().for_each(|batch| batch.on_timeout(now, &mut self.book));
    }

    fn next_deadline(&self) -> Option<Moment> {
        let now = self.network.now();
        let of_batches = self.batches.values().filter_map(|batch| batch.next_deadline(now, &self.book));
        of_batches
            .chain(self.search.next_deadline())
            .chain(self.tell_at)
            .chain(self.answers.next_deadline())
            .min()
    }

    /// Tells what is seen, if there is news and the last telling was long enough ago.
    fn tell(&mut self) {
        let now = self.network.now();
        if self.tell_at.is_none_or(|at| at > now) {
            return;
        }
        (self.tell_at, self.told_at) = (None, now);
        let (search, layers) = (&self.search, &self.layers);
        let hosted = search.hosted(now).filter_map(|(layer, uid, n_hosts, n_steps)| {
            let layer = usize::from(layer.0);
            let number = layers.get(layer)?.grid.number(&uid)?;
            Some((layer, u32::try_from(number).ok()?, n_hosts, n_steps))
        });
        self.seen.set(Some(Box::new(self.tallies.seen(now, hosted))));
    }

    /// Does all that search and calls want.
    fn act(&mut self) {
        let now = self.network.now();
        while let Some(action) = self.search.poll_action(now) {
            match action {
                ExpertSearchAction::LookUp(prefixes) => self.look_up(prefixes),
                ExpertSearchAction::Selected { query, rows } => self.on_selected(query, rows),
            }
        }
        // Calls began meanwhile, and none is sent before its time.
        let now = self.network.now();
        let (mut over, mut sent) = (Vec::new(), Vec::new());
        for (number, batch) in &mut self.batches {
            if batch.is_given_up() {
                batch.abandon(&mut self.book);
                over.push(*number);
            }
        }
        for (&number, batch) in &mut self.batches {
            while let Some(action) = batch.poll_action(now, &mut self.book) {
                match action {
                    CallAction::Send(call) => sent.push((number, call)),
                    CallAction::Cancel { request_id } => {
                        self.cancels.remove(&request_id);
                    }
                    CallAction::ForwardOver => {
                        let n_answered = batch.count(now, &mut self.tallies);
                        self.n_answered.set(self.n_answered.get() + n_answered);
                        if n_answered > 0 {
                            self.n_in_vain.set(0);
                        } else if batch.is_training() {
                            self.n_in_vain.set(self.n_in_vain.get().saturating_add(1));
                        }
                        self.tell_at.get_or_insert(now.max(self.told_at + SEEN_INTERVAL));
                        if !batch.answer_forward(number) {
                            over.push(number);
                        }
                    }
                    CallAction::BackwardOver => {
                        batch.answer_backward();
                        over.push(number);
                    }
                }
            }
        }
        for number in over {
            self.batches.remove(&number);
        }
        sent.into_iter().for_each(|(number, call)| self.send(number, call));
        self.answers.offer(&self.network, &self.run.identity.run_id);
        self.tell();
    }

    fn look_up(&mut self, prefixes: Vec<GridPrefix>) {
        let grids = self.layers.iter().map(|layer| layer.grid).collect();
        self.lookups.push(look_up(self.network.clone(), Rc::clone(&self.run), grids, prefixes).boxed_local());
    }

    fn send(&mut self, number: u64, call: SentCall) {
        let Some(batch) = self.batches.get(&number) else { return };
        let run_id = &self.run.identity.run_id;
        let prepared = batch.request(run_id, self.codec, &call);
        let Some(host) = PublicKey::of_peer_id(&call.host.0) else { return };
        let addresses = batch.addresses(&call.host).to_vec();
        let (cancel, cancelled) = oneshot::channel();
        let (network, request_id, peer) = (self.network.clone(), call.request_id, call.host);
        let expert = (batch.layer(), call.expert);
        let log = self.answers.log();
        self.cancels.insert(request_id, cancel);
        let asking = async move {
            let work = pin!(async {
                let prepared = prepared.ok_or(RequestFault::Values)?;
                let rows = ask(&network, (&peer, &addresses), &prepared).await?;
                let values = prepared.decode(&rows).map_err(|_| RequestFault::Values)?;
                let n_steps = rows.version.n_steps;
                match log.borrow_mut().on_answer(network.now(), host, prepared, rows) {
                    true => Ok((values, n_steps)),
                    false => Err(RequestFault::Unsigned),
                }
            });
            let result = match future::select(work, cancelled).await {
                future::Either::Left((result, _)) => result,
                future::Either::Right(_) => Err(RequestFault::Cancelled),
            };
            Answered { batch: number, request_id, expert, host, result }
        };
        self.requests.push(asking.boxed_local());
    }
}

/// A completed operation.
enum Woken {
    Call(Option<ExpertCall>),
    Found(LookedUp),
    Answered(Answered),
    Offered,
    Timer,
}

/// The next of some operations; never where there is none.
pub(crate) async fn next<T>(operations: &mut FuturesUnordered<LocalBoxFuture<'_, T>>) -> T {
    match operations.next().await {
        Some(done) => done,
        None => future::pending().await,
    }
}

/// The layers of hosted experts, by their numbers.
fn layers(graph: &ResolvedGraph) -> Vec<Layer> {
    let layer = |(grid, body): (&ExpertGrid, &Arc<HostedBody>)| {
        let side = u16::try_from(grid.side).ok()?;
        let grid = GridShape::new(&vec![side; grid.n_dimensions]).ok()?;
        Some(Layer { grid, n_values: body.n_values(), n_given: body.n_given() })
    };
    graph.hosted().into_iter().map_while(layer).collect()
}

fn settings(layer: Layer, codec: TensorCodec) -> CallSettings {
    let row = codec.encoded_len(layer.n_values) + codec.encoded_len(layer.n_given);
    CallSettings {
        input_values: layer.n_values,
        output_values: layer.n_given,
        request_rows_max: (TENSOR_BYTES_MAX / row.max(1)).max(1),
        forward_time: FORWARD_TIME,
        backward_time: BACKWARD_TIME,
    }
}

fn serving_refusal(refusal: &ExpertRefusal) -> ServingRefusal {
    let after = |millis: u32| Duration::from_millis(millis.into());
    match *refusal {
        ExpertRefusal::Busy { retry_after_ms } => ServingRefusal::Busy { retry_after: after(retry_after_ms) },
        ExpertRefusal::InProgress { retry_after_ms } => {
            ServingRefusal::InProgress { retry_after: after(retry_after_ms) }
        }
        ExpertRefusal::Duplicate => ServingRefusal::Duplicate,
        ExpertRefusal::Unknown | ExpertRefusal::NoAccess(_) => ServingRefusal::Unknown,
        ExpertRefusal::Draining => ServingRefusal::Draining,
        ExpertRefusal::TooLarge { max, got } => ServingRefusal::TooLarge { max, got },
        ExpertRefusal::NotFinite
        | ExpertRefusal::Shape { .. }
        | ExpertRefusal::Codec { .. }
        | ExpertRefusal::Bytes { .. }
        | ExpertRefusal::Failed => ServingRefusal::Failed,
    }
}

/// Looks prefixes up in the DHT. One answer has the records of some of them; the others are asked for again.
async fn look_up<N: ExpertNetwork>(
    network: N,
    run: Rc<RunDescription>,
    grids: Vec<GridShape>,
    prefixes: Vec<GridPrefix>,
) -> LookedUp {
    let run_id = &run.identity.run_id;
    let mut left: VecDeque<GridPrefix> = prefixes.into();
    let mut found = Vec::with_capacity(left.len());
    while !left.is_empty() {
        let key = |place: &GridPrefix| dht::experts::key(run_id, place.layer, &place.prefix);
        match network.look_up(left.iter().map(key).collect()).await {
            Ok(answers) if !answers.is_empty() => {
                let answered =
                    answers.into_iter().map_while(|records| Some((left.pop_front()?, Some(records))));
                found.extend(answered);
            }
            Ok(_) | Err(_) => break,
        }
    }
    found.extend(left.into_iter().map(|prefix| (prefix, None)));
    // Anybody may say in the DHT that it has an expert; a host is one by its lease.
    let known = holders(&network, (run_id, &grids), &found).await;
    for (prefix, records) in &mut found {
        match (&known, records) {
            (Ok(known), Some(records)) => retain_holders(prefix, records, known),
            (Err(_), records) => *records = None,
            (Ok(_), None) => {}
        }
    }
    found
}

/// The holders of all places that were found, of any copy. Anybody may announce places that the grids do not have: these are not asked for.
async fn holders<N: ExpertNetwork>(
    network: &N,
    (run_id, grids): (&str, &[GridShape]),
    found: &LookedUp,
) -> Result<BTreeSet<(ExpertPlace, PublicKey)>, PlatformError> {
    let of_prefix = |(prefix, records): &(GridPrefix, Option<Vec<Record>>)| {
        records.as_ref().map(|records| announced_places(prefix, records)).unwrap_or_default()
    };
    let exists =
        |(layer, uid): &ExpertPlace| grids.get(usize::from(layer.0)).is_some_and(|grid| grid.contains(uid));
    let places: Vec<ExpertPlace> = found.iter().flat_map(of_prefix).filter(exists).collect();
    let mut known = BTreeSet::new();
    for places in places.chunks(PLACES_MAX) {
        let holders = network.holders(run_id, places.to_vec()).await?;
        let of_place = |(place, copies): (&ExpertPlace, Vec<CopyHolder>)| {
            let place = *place;
            copies.into_iter().map(move |held| (place, held.holder))
        };
        known.extend(places.iter().zip(holders).flat_map(of_place));
    }
    Ok(known)
}

/// Asks a host, and once more where it has forgotten this peer's token.
async fn ask<N: ExpertNetwork>(
    network: &N,
    (host, addresses): (&PeerKey, &[Vec<u8>]),
    prepared: &PreparedRequest,
) -> Result<ExpertRows, RequestFault> {
    let mut is_first = true;
    loop {
        let mut stream = network.open_host(host, addresses).await?;
        match experts::ask(&mut stream, prepared).await {
            Ok(rows) => return Ok(rows),
            Err(ExpertRequestError::Refused(ExpertRefusal::NoAccess(_))) if is_first => {
                is_first = false;
                network.on_no_access(host);
            }
            Err(ExpertRequestError::Refused(refusal)) => return Err(RequestFault::Refused(refusal)),
            Err(error) => return Err(RequestFault::Request(error)),
        }
    }
}
