//! One layer of one pass: which experts each of its inputs goes to, what they gave, and what their gradients were.

use std::collections::{BTreeMap, HashMap, VecDeque};

use barnraise_learning::experts::{ExpertAnswers, WayBack};
use barnraise_protocol::bulk::Transfer;
use barnraise_protocol::codec::TensorCodec;
use barnraise_protocol::experts::{ExpertPass, ExpertRequest, LayerId, PreparedRequest};
use barnraise_swarm::experts::calls::{
    CallAction, CallSettings, ExpertAnswerError, ExpertCalls, ExpertChoice, HostBook, REPLICAS_MAX, SentCall,
};
use barnraise_swarm::experts::serving::ServingRefusal;
use barnraise_swarm::experts::{ExpertTallies, QueryId, RowSelection};
use barnraise_swarm::{Moment, PeerKey};
use futures::channel::oneshot;

use super::Layer;

/// Rows of a batch that are searched together, in their order.
enum SearchedRows {
    Waiting(QueryId),
    Found(Vec<RowSelection>),
}

/// See the module.
pub(super) struct ExpertBatch {
    layer: usize,
    sizes: Layer,
    /// `[n_inputs, n_values]`
    inputs: Vec<f32>,
    n_active: usize,
    is_training: bool,
    searched: VecDeque<SearchedRows>,
    /// Experts of each input, `[n_inputs * n_active]`, once they are found.
    chosen: Vec<Option<u32>>,
    /// Where the hosts that may be asked listen, as they announced themselves.
    addresses: HashMap<PeerKey, Vec<Vec<u8>>>,
    calls: Option<ExpertCalls>,
    /// Whether a call is one of the way back, and which values it is about: `[n_inputs * n_active, n_given]`.
    given: Vec<f32>,
    /// Of the same shape.
    gradients: Option<Vec<f32>>,
    /// The gradient by the inputs, `[n_inputs, n_values]`.
    told: Vec<f32>,
    answer: Option<oneshot::Sender<ExpertAnswers>>,
    answer_back: Option<oneshot::Sender<Vec<f32>>>,
    /// Cancelled when the pass is dropped before its way back.
    way_back: Option<oneshot::Receiver<()>>,
}

impl ExpertBatch {
    pub(super) fn new(
        (layer, sizes): (usize, Layer),
        inputs: Vec<f32>,
        n_active: usize,
        is_training: bool,
        answer: oneshot::Sender<ExpertAnswers>,
    ) -> Self {
        Self {
            layer,
            sizes,
            inputs,
            n_active,
            is_training,
            searched: VecDeque::new(),
            chosen: Vec::new(),
            addresses: HashMap::new(),
            calls: None,
            given: Vec::new(),
            gradients: None,
            told: Vec::new(),
            answer: Some(answer),
            answer_back: None,
            way_back: None,
        }
    }

    pub(super) fn layer(&self) -> usize {
        self.layer
    }

    pub(super) fn sizes(&self) -> Layer {
        self.sizes
    }

    pub(super) fn is_training(&self) -> bool {
        self.is_training
    }

    pub(super) fn n_active(&self) -> usize {
        self.n_active
    }

    /// The next rows are those of a query.
    pub(super) fn await_rows(&mut self, query: QueryId) {
        self.searched.push_back(SearchedRows::Waiting(query));
    }

    /// The next rows get no experts.
    pub(super) fn pass_rows(&mut self, n_rows: usize) {
        self.searched.push_back(SearchedRows::Found(vec![RowSelection::default(); n_rows]));
    }

    pub(super) fn on_selected(&mut self, query: QueryId, found: Vec<RowSelection>) {
        let of_query =
            |rows: &&mut SearchedRows| matches!(rows, SearchedRows::Waiting(waits) if *waits == query);
        if let Some(rows) = self.searched.iter_mut().find(of_query) {
            *rows = SearchedRows::Found(found);
        }
    }

    /// Makes the calls once no query is waited for.
    pub(super) fn start_if_found(&mut self, now: Moment, settings: CallSettings) {
        let is_waiting = self.searched.iter().any(|rows| matches!(rows, SearchedRows::Waiting(_)));
        if is_waiting || self.calls.is_some() {
            return;
        }
        let rows = std::mem::take(&mut self.searched).into_iter().flat_map(|rows| match rows {
            SearchedRows::Found(rows) => rows,
            SearchedRows::Waiting(_) => Vec::new(),
        });
        let n_inputs = self.inputs.len() / self.sizes.n_values.max(1);
        self.chosen = vec![None; n_inputs * self.n_active];
        self.given = vec![0.0; self.chosen.len() * self.sizes.n_given];
        let mut choices: BTreeMap<u32, ExpertChoice> = BTreeMap::new();
        for (row, selection) in rows.enumerate().take(n_inputs) {
            for (at, selected) in selection.experts.into_iter().enumerate().take(self.n_active) {
                let number =
                    self.sizes.grid.number(&selected.uid).and_then(|number| u32::try_from(number).ok());
                let Some(expert) = number else { continue };
                self.chosen[row * self.n_active + at] = Some(expert);
                let choice = choices.entry(expert).or_insert_with(|| {
                    let asked = selected.hosts.into_iter().take(REPLICAS_MAX);
                    let hosts = asked.map(|host| {
                        let name = PeerKey(host.peer.to_peer_id());
                        self.addresses.insert(name.clone(), host.addresses);
                        name
                    });
                    ExpertChoice { expert, hosts: hosts.collect(), rows: Vec::new() }
                });
                choice.rows.push(row as u32);
            }
        }
        let input_rms: Vec<f32> =
            self.inputs.chunks(self.sizes.n_values.max(1)).map(root_mean_square).collect();
        let choices = choices.into_values().collect();
        self.calls = Some(ExpertCalls::new(now, settings, choices, &input_rms));
    }

    /// Where a host listens that this batch asks.
    pub(super) fn addresses(&self, host: &PeerKey) -> &[Vec<u8>] {
        self.addresses.get(host).map_or(&[][..], Vec::as_slice)
    }

    /// The pass came back with the gradients of what the experts gave.
    pub(super) fn on_gradients(
        &mut self,
        now: Moment,
        book: &mut HostBook,
        gradients: Vec<f32>,
        answer: oneshot::Sender<Vec<f32>>,
    ) {
        let Some(calls) = &mut self.calls else { return };
        if gradients.len() != self.given.len() || self.gradients.is_some() {
            return;
        }
        let n_given = self.sizes.n_given.max(1);
        let of_call = |call: usize| {
            let pairs = pairs(&self.chosen, self.n_active, calls.rows(call), calls.expert(call));
            let rows = pairs.into_iter().map(|pair| &gradients[pair * n_given..(pair + 1) * n_given]);
            rows.map(root_mean_square).fold(0.0, f32::max)
        };
        let rms: Vec<f32> = (0..calls.n_calls()).map(of_call).collect();
        calls.on_gradients(now, book, &rms);
        self.gradients = Some(gradients);
        self.told = vec![0.0; self.inputs.len()];
        self.answer_back = Some(answer);
    }

    /// The request of a call; `None` where its values cannot be encoded.
    pub(super) fn request(
        &self,
        run_id: &str,
        codec: TensorCodec,
        call: &SentCall,
    ) -> Option<PreparedRequest> {
        let Layer { grid, n_values, n_given } = self.sizes;
        let rows = self.calls.as_ref()?.rows(call.call);
        let inputs: Vec<f32> =
            rows.iter().flat_map(|row| of(&self.inputs, *row as usize, n_values)).copied().collect();
        let gradients: Option<Vec<f32>> = match (call.pass, &self.gradients) {
            (ExpertPass::Forward, _) => None,
            (ExpertPass::Backward, None) => return None,
            (ExpertPass::Backward, Some(gradients)) => {
                let pairs = pairs(&self.chosen, self.n_active, rows, call.expert).into_iter();
                Some(pairs.flat_map(|pair| of(gradients, pair, n_given)).copied().collect())
            }
        };
        let request = ExpertRequest {
            run_id: run_id.to_owned(),
            request_id: call.request_id,
            layer: LayerId(u16::try_from(self.layer).ok()?),
            uid: grid.uid(call.expert.into())?,
            pass: call.pass,
            n_steps: call.n_steps,
            n_rows: u32::try_from(rows.len()).ok()?,
            input_values: u32::try_from(n_values).ok()?,
            output_values: u32::try_from(n_given).ok()?,
            codec,
            transfer: Transfer::of(&[]),
        };
        PreparedRequest::new(request, &inputs, gradients.as_deref()).ok()
    }

    pub(super) fn on_answer(
        &mut self,
        now: Moment,
        book: &mut HostBook,
        request_id: u64,
        (values, n_steps): (&[f32], u64),
    ) -> Result<(), ExpertAnswerError> {
        let Some(calls) = &mut self.calls else { return Ok(()) };
        let call = calls.on_answer(now, book, request_id, (values, n_steps))?;
        let (rows, expert) = (calls.rows(call), calls.expert(call));
        match self.gradients.is_some() {
            false => {
                let n_given = self.sizes.n_given;
                let pairs = pairs(&self.chosen, self.n_active, rows, expert);
                for (pair, values) in pairs.into_iter().zip(values.chunks_exact(n_given.max(1))) {
                    self.given[pair * n_given..(pair + 1) * n_given].copy_from_slice(values);
                }
            }
            true => {
                let n_values = self.sizes.n_values;
                for (row, values) in rows.iter().zip(values.chunks_exact(n_values.max(1))) {
                    let at = *row as usize * n_values;
                    let sums = self.told[at..at + n_values].iter_mut();
                    sums.zip(values).for_each(|(sum, value)| *sum += value);
                }
            }
        }
        Ok(())
    }

    pub(super) fn on_refused(
        &mut self,
        now: Moment,
        book: &mut HostBook,
        request_id: u64,
        refusal: ServingRefusal,
    ) {
        if let Some(calls) = &mut self.calls {
            calls.on_refused(now, book, request_id, refusal);
        }
    }

    pub(super) fn on_broken(&mut self, now: Moment, book: &mut HostBook, request_id: u64) {
        if let Some(calls) = &mut self.calls {
            calls.on_broken(now, book, request_id);
        }
    }

    pub(super) fn on_timeout(&mut self, now: Moment, book: &mut HostBook) {
        if let Some(calls) = &mut self.calls {
            calls.on_timeout(now, book);
        }
    }

    pub(super) fn next_deadline(&self, now: Moment, book: &HostBook) -> Option<Moment> {
        self.calls.as_ref()?.next_deadline(now, book)
    }

    pub(super) fn poll_action(&mut self, now: Moment, book: &mut HostBook) -> Option<CallAction> {
        self.calls.as_mut()?.poll_action(now, book)
    }

    pub(super) fn abandon(&mut self, book: &mut HostBook) {
        if let Some(calls) = &mut self.calls {
            calls.abandon(book);
        }
    }

    /// Counts what became of the rows, once all answers are there. Returns how many were answered, once for each expert.
    pub(super) fn count(&self, now: Moment, tallies: &mut ExpertTallies) -> u64 {
        let Some(calls) = &self.calls else { return 0 };
        let n_none = self.chosen.iter().filter(|chosen| chosen.is_none()).count();
        if n_none > 0 {
            tallies.on_none_found(now, n_none as u64);
        }
        let mut n_answered = 0;
        for call in 0..calls.n_calls() {
            let (expert, n_rows) = ((self.layer, calls.expert(call)), calls.rows(call).len() as u64);
            match calls.answered_by(call) {
                Some(host) => {
                    tallies.on_answered(now, expert, host, n_rows);
                    n_answered += n_rows;
                }
                None => tallies.on_missed(now, expert, n_rows),
            }
        }
        n_answered
    }

    /// Tells the pass what its experts gave. Returns whether a way back follows.
    pub(super) fn answer_forward(&mut self, number: u64) -> bool {
        let (Some(calls), Some(answer)) = (&self.calls, self.answer.take()) else { return false };
        let mut chosen = vec![None; self.chosen.len()];
        for (call, expert) in calls.answered() {
            for pair in pairs(&self.chosen, self.n_active, calls.rows(call), expert) {
                chosen[pair] = Some(expert);
            }
        }
        let is_any = chosen.iter().any(Option::is_some);
        let given = std::mem::take(&mut self.given);
        self.given = vec![0.0; if self.is_training { given.len() } else { 0 }];
        let comes_back = self.is_training && is_any;
        let way_back = comes_back.then(|| {
            let (way_back, ended) = WayBack::new();
            self.way_back = Some(ended);
            way_back
        });
        answer.send(ExpertAnswers { call: number, chosen, given, way_back }).is_ok() && comes_back
    }

    /// Whether the pass was dropped, so that no gradients will come.
    pub(super) fn is_given_up(&mut self) -> bool {
        let waits = self.gradients.is_none();
        let is_asked_no_more = self.answer.as_ref().is_some_and(oneshot::Sender::is_canceled);
        let is_dropped = self.way_back.as_mut().is_some_and(|ended| ended.try_recv().is_err());
        waits && (is_asked_no_more || is_dropped)
    }

    /// Tells the pass what its experts told on the way back.
    pub(super) fn answer_backward(&mut self) {
        if let Some(answer) = self.answer_back.take() {
            let _ = answer.send(std::mem::take(&mut self.told));
        }
    }
}

fn of(values: &[f32], row: usize, width: usize) -> &[f32] {
    values.get(row * width..(row + 1) * width).unwrap_or_default()
}

/// Where the choices of an expert for some rows are.
fn pairs(chosen: &[Option<u32>], n_active: usize, rows: &[u32], expert: u32) -> Vec<usize> {
    let of_row = |row: &u32| {
        let first = *row as usize * n_active;
        (first..first + n_active).find(|&pair| chosen.get(pair) == Some(&Some(expert)))
    };
    rows.iter().filter_map(of_row).collect()
}

fn root_mean_square(row: &[f32]) -> f32 {
    let sum: f64 = row.iter().map(|value| f64::from(*value) * f64::from(*value)).sum();
    (sum / row.len().max(1) as f64).sqrt() as f32
}
