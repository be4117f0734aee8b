//! Losses and their derivatives by the output, in closed form: the graph's backward pass begins with them.

use barnraise_protocol::run::model::graph::Loss;
use burn::tensor::{IndexingUpdateOp, Int, Tensor, TensorData};

use super::batch::GraphTargets;
use super::value::{Value, WrongKind};
use crate::engine::arithmetic::wide;
use crate::engine::composite::{Scores, softmax_rows};

/// The loss of a pass and its derivative.
pub(super) struct Judged {
    /// Derivative of the summed losses of the samples by the predictions, `[n_rows, width]`.
    pub(super) residual: Tensor<2>,
    /// `[2, n_rows]`: the loss of each prediction; and 1 where the top-1 prediction is correct, 0 elsewhere.
    pub(super) values: Tensor<2>,
}

/// The rows of an output that a loss compares, `[n_rows, width]`, in single precision.
pub(super) fn predictions(output: Value, loss: &Loss) -> Result<Tensor<2>, WrongKind> {
    let rows = match (loss, output) {
        // What the last token predicts is not in the sample.
        (Loss::CausalLanguageModel, Value::Sequences(logits)) => {
            let length = logits.dims()[1];
            logits.narrow(1, 0, length.saturating_sub(1)).flatten(0, 1)
        }
        (_, output) => output.rows()?,
    };
    Ok(wide(rows))
}

/// Compares predictions with what was to be predicted.
pub(super) fn judge(
    predictions: Tensor<2>,
    targets: &GraphTargets,
    n_samples: usize,
) -> Result<Judged, WrongKind> {
    match targets {
        GraphTargets::Classes(classes) => Ok(cross_entropy(predictions, classes, n_samples)),
        GraphTargets::Values(values) => Ok(squared_error(&predictions, values)),
        GraphTargets::None | GraphTargets::Crops { .. } => Err(WrongKind),
    }
}

/// The derivative by the logits is `(softmax - one_hot) / predictions of a sample`.
fn cross_entropy(logits: Tensor<2>, classes: &[u32], n_samples: usize) -> Judged {
    let (device, n_rows) = (logits.device(), classes.len());
    let ids: Vec<i32> = classes.iter().map(|&class| class.cast_signed()).collect();
    let ids = Tensor::<2, Int>::from_ints(TensorData::new(ids, [n_rows, 1]), &device);
    let is_right = logits.clone().argmax(1).equal(ids.clone()).float().reshape([1, n_rows]);
    let probabilities = softmax_rows(logits, Scores { scale: 1.0, n_before: None });
    let losses = -probabilities.clone().gather(1, ids.clone()).log().reshape([1, n_rows]);
    let minus_one = Tensor::full([n_rows, 1], -1.0, &device);
    let residual = probabilities.scatter(1, ids, minus_one, IndexingUpdateOp::Add);
    let of_sample = (n_rows / n_samples.max(1)).max(1) as f32;
    Judged { residual: residual / of_sample, values: Tensor::cat(vec![losses, is_right], 0) }
}

/// The mean over the values of a sample. No prediction is correct or wrong.
fn squared_error(predictions: &Tensor<2>, values: &[f32]) -> Judged {
    let [n_rows, width] = predictions.dims();
    let data = TensorData::new(values.to_vec(), [n_rows, width]);
    let errors = predictions.clone() - Tensor::from_data(data, &predictions.device());
    let losses = (errors.clone() * errors.clone()).mean_dim(1).reshape([1, n_rows]);
    let values = Tensor::cat(vec![losses.clone(), losses.zeros_like()], 0);
    Judged { residual: errors * (2.0 / width.max(1) as f32), values }
}
