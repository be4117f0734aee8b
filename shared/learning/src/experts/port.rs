//! Where a pass asks for experts that other peers host. Says what is to be computed; who finds the hosts, and how their answers
//! come, is the other side's.

use futures::channel::{mpsc, oneshot};

/// Calls that wait for the other side.
const WAITING_MAX: usize = 64;

/// What a pass wants of the experts of a layer.
#[derive(Debug)]
pub enum ExpertCall {
    /// Choose experts of each input, and let them compute.
    Forward {
        /// Which layer, by the number of its [`crate::graph::HostedBody`].
        layer: usize,
        /// Scores of the gating function, `[n_inputs, n_dimensions * side]`; finite, or the input gets no expert.
        scores: Vec<f32>,
        /// Experts of an input at most.
        n_active: usize,
        /// `[n_inputs, n_values]`: what goes to them.
        inputs: Vec<f32>,
        /// Whether a [`Self::Backward`] follows.
        is_training: bool,
        /// Where the answer goes. Nobody waits for it once the pass is dropped.
        answer: oneshot::Sender<ExpertAnswers>,
    },
    /// Let the experts that answered a call step, and pass their gradients back.
    Backward {
        /// [`ExpertAnswers::call`].
        call: u64,
        /// Of the loss by what the experts gave, `[n_inputs * n_active, n_given]`.
        gradients: Vec<f32>,
        /// Where the gradient by the inputs goes, `[n_inputs, n_values]`; zero where no expert told one.
        answer: oneshot::Sender<Vec<f32>>,
    },
}

/// Held by a pass that comes back with gradients: its other end hears when the pass is dropped.
#[derive(Debug)]
pub struct WayBack(#[allow(dead_code)] oneshot::Sender<()>);

impl WayBack {
    /// With the other end, which is cancelled when the pass is dropped or has come back.
    pub fn new() -> (Self, oneshot::Receiver<()>) {
        let (sender, receiver) = oneshot::channel();
        (Self(sender), receiver)
    }
}

/// What experts gave.
#[derive(Debug)]
pub struct ExpertAnswers {
    /// Name of the call among those of this port, for its way back.
    pub call: u64,
    /// `[n_inputs * n_active]`: which expert gave a row, by its place on the grid, the last dimension the fastest; `None` where
    /// none answered in time.
    pub chosen: Vec<Option<u32>>,
    /// `[n_inputs * n_active, n_given]`, finite; what is where none answered does not count.
    pub given: Vec<f32>,
    /// Of a pass with a gradient.
    pub way_back: Option<WayBack>,
}

/// The side of the pass.
#[derive(Debug, Clone)]
pub struct ExpertPort(mpsc::Sender<ExpertCall>);

impl ExpertPort {
    /// A port, and the calls that come out of it.
    pub fn new() -> (Self, mpsc::Receiver<ExpertCall>) {
        let (sender, receiver) = mpsc::channel(WAITING_MAX);
        (Self(sender), receiver)
    }

    /// Experts of each input; `None` where nobody is behind the port, or the answer is of another size.
    pub(crate) async fn forward(
        &self,
        (layer, is_training): (usize, bool),
        scores: Vec<f32>,
        inputs: Vec<f32>,
        (n_pairs, n_active, n_given): (usize, usize, usize),
    ) -> Option<ExpertAnswers> {
        let (answer, answers) = oneshot::channel();
        self.send(ExpertCall::Forward { layer, scores, n_active, inputs, is_training, answer }).await?;
        let answers = answers.await.ok()?;
        let fits = answers.chosen.len() == n_pairs && answers.given.len() == n_pairs * n_given;
        (fits && answers.given.iter().all(|value| value.is_finite())).then_some(answers)
    }

    /// The gradient by the inputs; `None` as above.
    pub(crate) async fn backward(&self, call: u64, gradients: Vec<f32>, n_wanted: usize) -> Option<Vec<f32>> {
        let (answer, answers) = oneshot::channel();
        self.send(ExpertCall::Backward { call, gradients, answer }).await?;
        let gradients = answers.await.ok()?;
        (gradients.len() == n_wanted && gradients.iter().all(|value| value.is_finite())).then_some(gradients)
    }

    async fn send(&self, call: ExpertCall) -> Option<()> {
        use futures::SinkExt;
        self.0.clone().send(call).await.ok()
    }
}
