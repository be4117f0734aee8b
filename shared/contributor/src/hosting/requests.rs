//! The requests that a host holds: from the admission of each to its answer.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use barnraise_learning::hosted::HostedLayer;
use barnraise_protocol::experts::{ExpertPass, ExpertRefusal, ExpertRequest, ExpertTensors, LayerId};
use barnraise_swarm::experts::serving::{
    ExpertRuntime, GradientScales, OutputRows, RequestKey, ServedRequest, ServingAction, ServingBatch,
    ServingLimits, ServingRefusal, WAIT_MAX,
};
use barnraise_swarm::robust::norm;
use barnraise_swarm::{AddressGroup, Moment, PeerKey};
use futures::channel::oneshot;

use super::device::{ComputeError, ComputedRows, ExpertJob, OutputGradients};

/// What the device gave for a request: the steps behind it, and the rows.
pub type ExpertAnswer = Result<(u64, Vec<f32>), ServingRefusal>;

/// A request that waits for the device, or whose answer is on its way.
struct HeldTensors {
    tensors: ExpertTensors,
    answer: oneshot::Sender<ExpertAnswer>,
}

/// See the module.
pub struct HeldRequests {
    /// Decides what is computed next.
    pub runtime: ExpertRuntime,
    /// How large gradients usually are, of each layer.
    scales: BTreeMap<LayerId, GradientScales>,
    held: HashMap<RequestKey, HeldTensors>,
    /// Rows that were computed.
    pub n_forward: u64,
    /// Rows that were learned from.
    pub n_backward: u64,
}

impl HeldRequests {
    /// Of a host without experts, whose experts will be of these layers.
    pub fn new(limits: ServingLimits, layers: &[HostedLayer]) -> Self {
        // Wide experts take fewer rows at once: a batch of more would fail, and its requests be computed one by one.
        let at_once = layers.iter().map(|layer| layer.body.graph.layout().batch_samples_max()).min();
        let at_once = at_once.and_then(|rows| u32::try_from(rows).ok()).unwrap_or(u32::MAX);
        let (rows_max, request_rows_max) =
            (limits.rows_max.min(at_once), limits.request_rows_max.min(at_once));
        let runtime = ExpertRuntime::new(ServingLimits { rows_max, request_rows_max, ..limits });
        Self { runtime, scales: BTreeMap::new(), held: HashMap::new(), n_forward: 0, n_backward: 0 }
    }

    /// The tensors of an admitted request to a layer are here, from this address. Its answer comes later; where the request is
    /// dropped, none comes.
    pub fn on_received(
        &mut self,
        now: Moment,
        key: RequestKey,
        (layer, group): (LayerId, AddressGroup),
        mut tensors: ExpertTensors,
    ) -> oneshot::Receiver<ExpertAnswer> {
        let (answer, receiver) = oneshot::channel();
        if self.runtime.holds(key) {
            if let Some(gradients) = &mut tensors.gradients {
                let factor = self.scales.entry(layer).or_default().factor(group, root_mean_square(gradients));
                if factor < 1.0 {
                    gradients.iter_mut().for_each(|value| *value *= factor);
                }
            }
            self.held.insert(key, HeldTensors { tensors, answer });
            self.runtime.on_received(now, key);
        } else {
            // The runtime ended the request while they were on their way: nobody would ever answer it.
            let _ = answer.send(Err(ServingRefusal::Unknown));
        }
        receiver
    }

    /// The conversation about a request is over: its answer has left, or its stream broke at any moment. Rows that the device
    /// has are kept until it has computed them.
    pub fn on_over(&mut self, now: Moment, key: RequestKey) {
        self.runtime.on_lost(now, key);
        self.runtime.on_answered(now, key);
        if !self.runtime.holds(key) {
            self.held.remove(&key);
        }
    }

    /// Does what the runtime wants, until it wants a batch computed, which is returned.
    pub fn next_batch(&mut self) -> Option<ServingBatch> {
        loop {
            match self.runtime.poll_action()? {
                ServingAction::Compute(batch) => return Some(batch),
                ServingAction::Refuse { key, refusal } => {
                    if let Some(held) = self.held.remove(&key) {
                        let _ = held.answer.send(Err(refusal));
                    }
                }
                ServingAction::Drop(key) => {
                    self.held.remove(&key);
                }
            }
        }
    }

    /// The job of a batch: the rows of its parts one after the other.
    pub fn job(&self, batch: ServingBatch, is_frozen: bool) -> ExpertJob {
        let (mut inputs, mut values, mut parts) = (Vec::new(), Vec::new(), Vec::new());
        for (key, rows) in &batch.parts {
            let Some(HeldTensors { tensors, .. }) = self.held.get(key) else { continue };
            inputs.extend_from_slice(&tensors.inputs);
            if let Some(of_part) = &tensors.gradients {
                values.extend_from_slice(of_part);
                parts.push(OutputRows { n_rows: rows.len() as u32, n_steps: tensors.n_steps });
            }
        }
        let gradients = (batch.pass == ExpertPass::Backward).then_some(OutputGradients { values, parts });
        ExpertJob::Compute { batch, is_frozen, inputs, gradients }
    }

    /// Hands out what a batch gave. Returns the steps of its expert after it.
    ///
    /// # Errors
    /// The batch failed: the runtime decides what becomes of its requests.
    pub fn on_computed(
        &mut self,
        now: Moment,
        batch: &ServingBatch,
        result: Result<ComputedRows, ComputeError>,
    ) -> Result<u64, ComputeError> {
        let ComputedRows { n_steps, n_steps_after, rows } = match result {
            Ok(computed) => computed,
            Err(error) => {
                self.runtime.on_failed(now, batch.id);
                return Err(error);
            }
        };
        let n_rows = u64::from(batch.n_rows());
        match batch.pass {
            ExpertPass::Forward => self.n_forward += n_rows,
            ExpertPass::Backward => self.n_backward += n_rows,
        }
        self.runtime.on_computed(now, batch.id);
        let width = rows.len() / batch.n_rows().max(1) as usize;
        for (key, of_part) in &batch.parts {
            let Some(held) = self.held.remove(key) else { continue };
            let range = of_part.start as usize * width..of_part.end as usize * width;
            let answer = Ok((n_steps, rows.get(range).unwrap_or_default().to_vec()));
            if held.answer.send(answer).is_err() {
                // Nobody waits for it any more.
                self.runtime.on_answered(now, *key);
            }
        }
        Ok(n_steps_after)
    }
}

fn root_mean_square(values: &[f32]) -> f32 {
    (norm(values) / (values.len().max(1) as f64).sqrt()) as f32
}

/// The head of a request to `expert`, of `layer`, as the runtime takes it.
///
/// # Errors
/// Another run, or rows of another length than the layer has.
pub fn served_request(
    (run_id, layer, expert): (&str, &HostedLayer, u32),
    (client, group, now): (PeerKey, AddressGroup, Moment),
    request: &ExpertRequest,
) -> Result<ServedRequest, ExpertRefusal> {
    request.check()?;
    if request.run_id != run_id {
        return Err(ExpertRefusal::Unknown);
    }
    for (want, got) in
        [(layer.body.n_values(), request.input_values), (layer.body.n_given(), request.output_values)]
    {
        if want as u64 != u64::from(got) {
            return Err(ExpertRefusal::Shape { want: want as u64, got: got.into() });
        }
    }
    let n_values = u64::from(request.input_values) + 2 * u64::from(request.output_values);
    Ok(ServedRequest {
        client,
        group,
        expert,
        pass: request.pass,
        n_rows: request.n_rows,
        // Decoded, in the batch, and encoded again.
        n_bytes: u64::from(request.n_rows).saturating_mul(n_values).saturating_mul(8),
        request_id: request.request_id,
        deadline: now + WAIT_MAX,
    })
}

/// A refusal of the runtime as the client is told.
pub fn wire_refusal(refusal: &ServingRefusal) -> ExpertRefusal {
    let millis = |after: Duration| u32::try_from(after.as_millis()).unwrap_or(u32::MAX);
    match *refusal {
        ServingRefusal::Unknown => ExpertRefusal::Unknown,
        ServingRefusal::Busy { retry_after } => ExpertRefusal::Busy { retry_after_ms: millis(retry_after) },
        ServingRefusal::Duplicate => ExpertRefusal::Duplicate,
        ServingRefusal::InProgress { retry_after } => {
            ExpertRefusal::InProgress { retry_after_ms: millis(retry_after) }
        }
        ServingRefusal::Rows { max, got } => ExpertRefusal::TooLarge { max: max.into(), got: got.into() },
        ServingRefusal::TooLarge { max, got } => ExpertRefusal::TooLarge { max, got },
        ServingRefusal::Draining => ExpertRefusal::Draining,
        ServingRefusal::Failed => ExpertRefusal::Failed,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use barnraise_swarm::experts::serving::CountedState;

    use super::*;

    const LIMITS: ServingLimits = ServingLimits {
        rows_max: 64,
        request_rows_max: 64,
        batch_delay: Duration::from_millis(20),
        bytes_max: 1 << 24,
        requests_per_minute: 6000,
    };

    const OF: (LayerId, AddressGroup) = (LayerId(0), AddressGroup(1));

    #[test]
    fn a_huge_gradient_is_computed_with_as_a_usual_one() {
        let mut requests = HeldRequests::new(LIMITS, &[]);
        requests.runtime.on_expert_added(Moment::ZERO, 0, &CountedState::default()).unwrap();
        let mut received = |request_id, group, gradients: Vec<f32>| {
            let request = ServedRequest {
                client: PeerKey(vec![group as u8]),
                group: AddressGroup(group),
                expert: 0,
                pass: ExpertPass::Backward,
                n_rows: 1,
                n_bytes: 100,
                request_id,
                deadline: Duration::from_secs(60),
            };
            let key = requests.runtime.on_request(Moment::ZERO, request).unwrap();
            let tensors = ExpertTensors { inputs: vec![1.0; 2], gradients: Some(gradients), n_steps: 0 };
            let _answer = requests.on_received(Moment::ZERO, key, (LayerId(0), AddressGroup(group)), tensors);
            requests.held[&key].tensors.gradients.clone().unwrap()
        };
        for at in 0..9 {
            assert_eq!(received(at, 1 + at % 3, vec![0.01, -0.02]), [0.01, -0.02]);
        }
        let taken = received(0, 9, vec![1e20, -1e20]);
        assert!((0.1..1.0).contains(&taken[0]) && (taken[0] + taken[1]).abs() < 1e-6, "{taken:?}");
    }

    #[test]
    fn tensors_that_come_after_the_end_of_their_request_are_refused_and_not_kept() {
        let minute = Duration::from_secs(60);
        let mut requests = HeldRequests::new(LIMITS, &[]);
        for expert in 0..2 {
            requests.runtime.on_expert_added(Moment::ZERO, expert, &CountedState::default()).unwrap();
        }
        let request = |expert, deadline| ServedRequest {
            client: PeerKey(vec![1]),
            group: AddressGroup(1),
            expert,
            pass: ExpertPass::Forward,
            n_rows: 1,
            n_bytes: 100,
            request_id: 0,
            deadline,
        };
        let tensors = || ExpertTensors { inputs: vec![1.0], gradients: None, n_steps: 0 };
        let refused = Ok(Some(Err(ServingRefusal::Unknown)));
        let closed = requests.runtime.on_request(Moment::ZERO, request(0, minute)).unwrap();
        requests.runtime.on_expert_closed(Moment::ZERO, 0);
        assert_eq!(requests.on_received(Moment::ZERO, closed, OF, tensors()).try_recv(), refused);
        let late = requests.runtime.on_request(Moment::ZERO, request(1, minute)).unwrap();
        requests.runtime.on_timeout(minute);
        assert_eq!(requests.on_received(minute, late, OF, tensors()).try_recv(), refused);
        assert!(requests.held.is_empty());
        let good = requests.runtime.on_request(minute, request(1, 2 * minute)).unwrap();
        assert_eq!(requests.on_received(minute, good, OF, tensors()).try_recv(), Ok(None), "it waits");
        assert!(requests.held.contains_key(&good));
    }
}
