//! Shape rules of operations on sequences `[length, width]` and on ids.

use barnraise_protocol::run::model::Size;
use barnraise_protocol::run::model::operation::{
    Attention, ClassToken, Embedding, Positions, Rotary, RotaryScaling, Unembedding,
};

use super::{Context, Outcome, SIZE_MAX, initialization, replace_last, shape};
use crate::graph::check;
use crate::graph::data::GraphData;
use crate::graph::error::{BlockProblem, WantedShape};
use crate::graph::shape::ValueShape;
use crate::graph::tensors::TensorPlan;
use crate::parameters::Initialization;

/// Most heads of an attention.
const HEADS_MAX: u32 = 1024;

pub(super) fn embedding(options: &Embedding, context: &Context<'_>) -> Result<Outcome, BlockProblem> {
    check::integers("width", &[options.width], 1..=SIZE_MAX, "1 to 16,777,216")?;
    let table = context.size("rows", options.rows)?;
    let (dims, rows) = match context.only()? {
        ValueShape::Ids { shape, rows } => (shape, *rows),
        got @ ValueShape::Values(_) => return Err(shape(WantedShape::Ids(table), got)),
    };
    if rows > table {
        return Err(shape(WantedShape::Ids(table), &context.inputs[0]));
    }
    let width = options.width as usize;
    let (initial, _) = initialization(options.initial, width)?;
    let dims = dims.iter().copied().chain([width]).collect();
    Ok(Outcome::of(dims).with(vec![TensorPlan::weight(vec![table, width], initial)]))
}

/// The table is that of the embedding, which has as many rows as there are ids.
pub(super) fn unembedding(options: &Unembedding, context: &Context<'_>) -> Result<Outcome, BlockProblem> {
    let (dims, width) = context.last()?;
    let size = match context.data {
        GraphData::Ratings { .. } => Size::Items,
        _ => Size::Vocabulary,
    };
    let rows = context.size("rows", size)?;
    let zero = Initialization::Constant(0.0);
    let mut weight = TensorPlan::weight(vec![rows, width], zero);
    weight.is_shared_only = true;
    let mut tensors = vec![weight];
    tensors.extend(options.bias.then(|| TensorPlan::bias(rows, zero)));
    Ok(Outcome::of(replace_last(dims, rows)).with(tensors))
}

pub(super) fn positions(options: &Positions, context: &Context<'_>) -> Result<Outcome, BlockProblem> {
    let [length, width] = context.sequence()?;
    let (initial, _) = initialization(options.initial, width)?;
    Ok(Outcome::of(vec![length, width]).with(vec![TensorPlan::weight(vec![length, width], initial)]))
}

pub(super) fn class_token(options: &ClassToken, context: &Context<'_>) -> Result<Outcome, BlockProblem> {
    let [length, width] = context.sequence()?;
    let (initial, _) = initialization(options.initial, width)?;
    let length = length.checked_add(1).ok_or(BlockProblem::Overflow)?;
    Ok(Outcome::of(vec![length, width]).with(vec![TensorPlan::weight(vec![width], initial)]))
}

pub(super) fn attention(options: &Attention, context: &Context<'_>) -> Result<Outcome, BlockProblem> {
    check::dropped("dropout", options.dropout)?;
    let sizes = AttentionSizes::of(options, context.inputs)?;
    if let Some(Rotary { theta, scaling }) = options.rotary {
        check::number("theta", theta, 1.0..=1e9, "1 to 1,000,000,000")?;
        if let Some(RotaryScaling { factor, low_frequency: low, high_frequency: high, original_tokens }) =
            scaling
        {
            check::number("factor", factor, 1.0..=1e6, "1 to 1,000,000")?;
            check::number("low_frequency", low, 1e-6..=1e6, "above 0, at most 1,000,000")?;
            check::number("high_frequency", high, low.next_up()..=1e6, "above low_frequency")?;
            check::that(original_tokens > 0, "original_tokens", original_tokens, "1 or more")?;
        }
        let is_even = sizes.head_width.is_multiple_of(2);
        check::that(
            is_even,
            "heads",
            options.heads,
            "such that a head has an even width for rotary embedding",
        )?;
    }
    let AttentionSizes { length, heads, key_value_heads, head_width } = sizes;
    // Scores, weights, and what dropout keeps of them.
    let n_kept = if options.dropout > 0.0 { 5 } else { 3 };
    let scores = length.checked_mul(length).and_then(|n| n.checked_mul(n_kept * heads));
    let operands =
        (heads + 2 * key_value_heads).checked_mul(head_width).and_then(|n| n.checked_mul(2 * length));
    let besides = scores.zip(operands).and_then(|(scores, operands)| scores.checked_add(operands));
    let mut outcome = Outcome::of(vec![length, heads * head_width]);
    outcome.kept_besides = besides.ok_or(BlockProblem::Overflow)?;
    Ok(outcome)
}

/// Sizes of an attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AttentionSizes {
    /// Tokens.
    pub(crate) length: usize,
    /// Heads of the queries.
    pub(crate) heads: usize,
    /// Heads of keys and values.
    pub(crate) key_value_heads: usize,
    /// Values of a head.
    pub(crate) head_width: usize,
}

impl AttentionSizes {
    /// Of inputs that are queries, keys and values; or one sequence with all of them.
    pub(crate) fn of(options: &Attention, inputs: &[ValueShape]) -> Result<Self, BlockProblem> {
        let Attention { heads, key_value_heads, .. } = *options;
        check::integers("heads", &[heads], 1..=HEADS_MAX, "1 to 1,024")?;
        let key_value_heads = if key_value_heads == 0 { heads } else { key_value_heads };
        let divides = heads.is_multiple_of(key_value_heads);
        check::that(divides, "key_value_heads", key_value_heads, "a divisor of its heads")?;
        let (first, n_first) = match inputs {
            [packed] => (packed, heads + 2 * key_value_heads),
            [queries, _, _] => (queries, heads),
            _ => return Err(BlockProblem::InputCount { want: "1 or 3", got: inputs.len() }),
        };
        let (ValueShape::Values(dims), heads) = (first, heads as usize) else {
            return Err(shape(WantedShape::Sequence, first));
        };
        let [length, width] = *dims.as_slice() else { return Err(shape(WantedShape::Sequence, first)) };
        let divides = width.is_multiple_of(n_first as usize);
        check::that(divides, "heads", options.heads, "such that they divide the width of the input")?;
        let (head_width, key_value_heads) = (width / n_first as usize, key_value_heads as usize);
        for other in inputs.iter().skip(1) {
            let want = vec![length, key_value_heads * head_width];
            if *other != ValueShape::Values(want.clone()) {
                return Err(shape(WantedShape::Exactly(want), other));
            }
        }
        Ok(Self { length, heads, key_value_heads, head_width })
    }
}

pub(super) fn pick_masked(context: &Context<'_>) -> Result<Outcome, BlockProblem> {
    let [length, width] = context.sequence()?;
    match *context.data {
        GraphData::Tokens { length: want, n_masked, .. } if length == want => {
            Ok(Outcome::of(vec![n_masked, width]))
        }
        GraphData::Tokens { length: want, .. } => {
            Err(shape(WantedShape::Exactly(vec![want, width]), &context.inputs[0]))
        }
        _ => Err(BlockProblem::NoSuchSize { size: Size::Length }),
    }
}
