//! Losses and their derivatives by the output, in closed form: the graph's backward pass begins with them.

use barnraise_protocol::run::model::graph::Loss;
use burn::tensor::{Tensor, TensorData};

use super::batch::GraphTargets;
use super::value::{Value, WrongKind};
use crate::engine::arithmetic::wide;
use crate::engine::composite;

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

/// A loss of each row; that of a sample is their mean.
fn cross_entropy(logits: Tensor<2>, classes: &[u32], n_samples: usize) -> Judged {
    let of_sample = (classes.len() / n_samples.max(1)).max(1) as f32;
    let (residual, values) = composite::cross_entropy(logits, classes.to_vec(), 1.0 / of_sample);
    Judged { residual, values }
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
