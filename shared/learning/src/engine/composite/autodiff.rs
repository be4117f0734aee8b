//! Each operation is one step of a backward pass.

use burn::backend::Autodiff;
use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind, unary};
use burn::backend::tensor::FloatTensor;

use super::{Activation, Composite, Derivatives, RowNorm, Scores};

#[derive(Debug)]
struct Activate;

impl<B: Derivatives> Backward<B, 1> for Activate {
    type State = (NodeId, Activation);

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, checkpointer: &mut Checkpointer) {
        let (values, activation) = ops.state;
        let values = checkpointer.retrieve_node_output(values);
        unary::<B, _>(ops.parents, ops.node, grads, |by_output| {
            B::activate_backward(values, by_output, activation)
        });
    }
}

#[derive(Debug)]
struct NormalizeRows;

impl<B: Derivatives> Backward<B, 3> for NormalizeRows {
    type State = (NodeId, NodeId, RowNorm);

    fn backward(self, ops: Ops<Self::State, 3>, grads: &mut Gradients, checkpointer: &mut Checkpointer) {
        let (rows, weight, norm) = ops.state;
        let rows = checkpointer.retrieve_node_output(rows);
        let weight = checkpointer.retrieve_node_output(weight);
        let by_output = grads.consume::<B>(&ops.node);
        let by_inputs = B::normalize_rows_backward(rows, weight, by_output, norm);
        for (parent, by_input) in ops.parents.into_iter().zip(by_inputs) {
            if let Some(parent) = parent {
                grads.register::<B>(parent.id, by_input);
            }
        }
    }
}

#[derive(Debug)]
struct SoftmaxRows;

impl<B: Derivatives> Backward<B, 1> for SoftmaxRows {
    type State = (FloatTensor<B>, Scores);

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let (weights, of) = ops.state;
        unary::<B, _>(ops.parents, ops.node, grads, |by_output| {
            B::softmax_rows_backward(weights, by_output, of)
        });
    }
}

impl<B: Derivatives, C: CheckpointStrategy> Composite for Autodiff<B, C> {
    fn activate(values: FloatTensor<Self>, activation: Activation) -> FloatTensor<Self> {
        match Activate.prepare::<C>([values.node()]).compute_bound().stateful() {
            OpsKind::Tracked(mut prep) => {
                let state = (prep.checkpoint(&values), activation);
                prep.finish(state, B::activate(values.into_primitive(), activation))
            }
            OpsKind::UnTracked(prep) => prep.finish(B::activate(values.into_primitive(), activation)),
        }
    }

    fn normalize_rows(
        rows: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        norm: RowNorm,
    ) -> FloatTensor<Self> {
        let nodes = [rows.node(), weight.node(), bias.node()];
        match NormalizeRows.prepare::<C>(nodes).compute_bound().stateful() {
            OpsKind::Tracked(mut prep) => {
                let state = (prep.checkpoint(&rows), prep.checkpoint(&weight), norm);
                let normed = B::normalize_rows(
                    rows.into_primitive(),
                    weight.into_primitive(),
                    bias.into_primitive(),
                    norm,
                );
                prep.finish(state, normed)
            }
            OpsKind::UnTracked(prep) => prep.finish(B::normalize_rows(
                rows.into_primitive(),
                weight.into_primitive(),
                bias.into_primitive(),
                norm,
            )),
        }
    }

    fn softmax_rows(scores: FloatTensor<Self>, of: Scores) -> FloatTensor<Self> {
        match SoftmaxRows.prepare::<C>([scores.node()]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => {
                let weights = B::softmax_rows(scores.into_primitive(), of);
                prep.finish((weights.clone(), of), weights)
            }
            OpsKind::UnTracked(prep) => prep.finish(B::softmax_rows(scores.into_primitive(), of)),
        }
    }
}
