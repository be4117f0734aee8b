//! Each operation is one step of a backward pass.

use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind, binary, unary};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, AutodiffBackend, Backend};

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
struct Multiply;

impl<B: Composite> Backward<B, 2> for Multiply {
    /// Of an operand that the other's derivative needs, which is asked for only then.
    type State = (Option<NodeId>, Option<NodeId>);

    fn backward(self, ops: Ops<Self::State, 2>, grads: &mut Gradients, checkpointer: &mut Checkpointer) {
        let (lhs, rhs) = ops.state;
        let lhs = lhs.map(|lhs| checkpointer.retrieve_node_output::<FloatTensor<B>>(lhs));
        let rhs = rhs.map(|rhs| checkpointer.retrieve_node_output::<FloatTensor<B>>(rhs));
        binary::<B, _, _>(
            ops.parents,
            ops.node,
            grads,
            |by_output| match rhs {
                Some(rhs) => B::multiply(by_output, B::float_transpose(rhs)),
                None => by_output,
            },
            |by_output| match lhs {
                Some(lhs) => B::multiply(B::float_transpose(lhs), by_output),
                None => by_output,
            },
        );
    }
}

#[derive(Debug)]
struct MultiplyByFlat;

impl<B: Composite> Backward<B, 2> for MultiplyByFlat {
    /// As of [`Multiply`]; and the shape of what is flat.
    type State = (Option<NodeId>, Option<NodeId>, [usize; 2]);

    fn backward(self, ops: Ops<Self::State, 2>, grads: &mut Gradients, checkpointer: &mut Checkpointer) {
        let (lhs, rhs, shape) = ops.state;
        let lhs = lhs.map(|lhs| checkpointer.retrieve_node_output::<FloatTensor<B>>(lhs));
        let rhs = rhs.map(|rhs| checkpointer.retrieve_node_output::<FloatTensor<B>>(rhs));
        binary::<B, _, _>(
            ops.parents,
            ops.node,
            grads,
            |by_output| match rhs {
                Some(rhs) => B::multiply(by_output, B::float_transpose(B::float_reshape(rhs, shape.into()))),
                None => by_output,
            },
            |by_output| match lhs {
                Some(lhs) => {
                    let by_matrix = B::multiply(B::float_transpose(lhs), by_output);
                    B::float_reshape(by_matrix, [shape[0] * shape[1]].into())
                }
                None => by_output,
            },
        );
    }
}

#[derive(Debug)]
struct Summing;

impl<B: Backend> Backward<B, 2> for Summing {
    type State = FloatTensor<B>;

    fn backward(self, ops: Ops<Self::State, 2>, grads: &mut Gradients, _: &mut Checkpointer) {
        let sum = ops.state;
        binary::<B, _, _>(ops.parents, ops.node, grads, |by_output| by_output, |_| sum);
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

    fn multiply(lhs: FloatTensor<Self>, rhs: FloatTensor<Self>) -> FloatTensor<Self> {
        let (of_lhs, of_rhs) = (lhs.is_tracked(), rhs.is_tracked());
        match Multiply.prepare::<C>([lhs.node(), rhs.node()]).compute_bound().stateful() {
            OpsKind::Tracked(mut prep) => {
                let state = (of_rhs.then(|| prep.checkpoint(&lhs)), of_lhs.then(|| prep.checkpoint(&rhs)));
                prep.finish(state, B::multiply(lhs.into_primitive(), rhs.into_primitive()))
            }
            OpsKind::UnTracked(prep) => prep.finish(B::multiply(lhs.into_primitive(), rhs.into_primitive())),
        }
    }

    fn multiply_by_flat(
        lhs: FloatTensor<Self>,
        rhs: FloatTensor<Self>,
        shape: [usize; 2],
    ) -> FloatTensor<Self> {
        let (of_lhs, of_rhs) = (lhs.is_tracked(), rhs.is_tracked());
        match MultiplyByFlat.prepare::<C>([lhs.node(), rhs.node()]).compute_bound().stateful() {
            OpsKind::Tracked(mut prep) => {
                let lhs_node = of_rhs.then(|| prep.checkpoint(&lhs));
                let rhs_node = of_lhs.then(|| prep.checkpoint(&rhs));
                let product = B::multiply_by_flat(lhs.into_primitive(), rhs.into_primitive(), shape);
                prep.finish((lhs_node, rhs_node, shape), product)
            }
            OpsKind::UnTracked(prep) => {
                prep.finish(B::multiply_by_flat(lhs.into_primitive(), rhs.into_primitive(), shape))
            }
        }
    }

    fn summing(
        through: FloatTensor<Self>,
        leaf: FloatTensor<Self>,
        sum: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        match Summing.prepare::<C>([through.node(), leaf.node()]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => prep.finish(sum.into_primitive(), through.into_primitive()),
            OpsKind::UnTracked(prep) => prep.finish(through.into_primitive()),
        }
    }

    /// It is a derivative already.
    fn cross_entropy(
        logits: FloatTensor<Self>,
        classes: Vec<u32>,
        scale: f32,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let (residual, values) = B::cross_entropy(logits.into_primitive(), classes, scale);
        (Self::from_inner(residual), Self::from_inner(values))
    }
}
