//! Attention as products and a softmax. Heads of queries that share one of keys are a dimension of their own.

use std::f64::consts::TAU;

use barnraise_learning::graph::Step;
use barnraise_protocol::run::model::operation::{Attention, Rotary, RotaryScaling};

use super::writer::Attribute;
use super::{Nodes, last};

/// What a token that is not to be seen has added to its score.
const UNSEEN: f32 = -1e30;

impl Nodes<'_> {
    /// Of one sequence that has queries, keys and values side by side.
    pub(super) fn packed_attention(&mut self, step: &Step, options: &Attention, x: &str) -> String {
        let [heads, key_heads] = heads(options);
        let wide = last(&step.shape);
        let narrow = wide / heads * key_heads;
        let query = self.slice_last(x, 0, wide);
        let key = self.slice_last(x, wide, wide + narrow);
        let value = self.slice_last(x, wide + narrow, wide + 2 * narrow);
        self.attention(step, options, [&query, &key, &value])
    }

    /// Of queries `[samples, length, heads * head width]`, keys and values; as the queries.
    pub(super) fn attention(
        &mut self,
        step: &Step,
        options: &Attention,
        [query, key, value]: [&str; 3],
    ) -> String {
        let [heads, key_heads] = heads(options);
        let width = last(&step.shape);
        let head_width = width / heads;
        let queries = self.heads(query, [key_heads, heads / key_heads, head_width]);
        let keys = self.heads(key, [key_heads, 1, head_width]);
        let values = self.heads(value, [key_heads, 1, head_width]);
        let (queries, keys) = match options.rotary {
            Some(rotary) => {
                let length = step.shape.dims()[0];
                let waves = self.waves(query, length, head_width as usize, rotary);
                (self.rotated(&queries, &waves, head_width), self.rotated(&keys, &waves, head_width))
            }
            None => (queries, keys),
        };
        let keys = self.transposed(&keys, &[0, 1, 2, 4, 3]);
        let scores = self.writer.node("MatMul", &[&queries, &keys], &[]);
        let mut scores = self.by_number("Mul", &scores, 1.0 / (head_width as f32).sqrt());
        if options.causal {
            let mask = self.mask(query);
            scores = self.writer.node("Add", &[&scores, &mask], &[]);
        }
        let weights = self.writer.node("Softmax", &[&scores], &[("axis", Attribute::Integer(-1))]);
        let mixed = self.writer.node("MatMul", &[&weights, &values], &[]);
        let mixed = self.transposed(&mixed, &[0, 3, 1, 2, 4]);
        self.reshaped(&mixed, &[0, 0, width])
    }

    /// `[samples, key heads, heads of each, length, head width]`
    fn heads(&mut self, x: &str, [key_heads, of_each, head_width]: [i64; 3]) -> String {
        let split = self.reshaped(x, &[0, 0, key_heads, of_each, head_width]);
        self.transposed(&split, &[0, 2, 3, 1, 4])
    }

    /// `[length, length]`: [`UNSEEN`] above the diagonal, zero elsewhere.
    fn mask(&mut self, x: &str) -> String {
        let length = self.size(x, 1);
        let shape = self.writer.node("Concat", &[&length, &length], &[("axis", Attribute::Integer(0))]);
        let unseen = self.writer.number(UNSEEN);
        let all = self.writer.node("Expand", &[&unseen, &shape], &[]);
        let one = self.writer.integer(1);
        self.writer.node("Trilu", &[&all, &one], &[("upper", Attribute::Integer(1))])
    }

    /// Cosines and sines `[length of x, head width]` by which positions turn the pairs of a head.
    fn waves(&mut self, x: &str, length: usize, head_width: usize, rotary: Rotary) -> [String; 2] {
        let half = (head_width / 2).max(1);
        let angle = |at: usize| {
            let (position, pair) = (at / head_width, at % head_width % half);
            let frequency = f64::from(rotary.theta).powf(-2.0 * pair as f64 / head_width as f64);
            position as f64 * rotary.scaling.map_or(frequency, |scaling| scaled(frequency, scaling))
        };
        [f64::cos as fn(f64) -> f64, f64::sin].map(|of| {
            let values: Vec<f32> = (0..length * head_width).map(|at| of(angle(at)) as f32).collect();
            let table = self.writer.numbers(&[length, head_width], &values);
            self.first_rows(&table, x)
        })
    }

    fn rotated(&mut self, x: &str, [cosines, sines]: &[String; 2], head_width: i64) -> String {
        let real = self.slice_last(x, 0, head_width / 2);
        let imaginary = self.slice_last(x, head_width / 2, head_width);
        let negative = self.writer.node("Neg", &[&imaginary], &[]);
        let turned = self.writer.node("Concat", &[&negative, &real], &[("axis", Attribute::Integer(-1))]);
        let straight = self.writer.node("Mul", &[x, cosines], &[]);
        let turned = self.writer.node("Mul", &[&turned, sines], &[]);
        self.writer.node("Add", &[&straight, &turned], &[])
    }

    fn slice_last(&mut self, x: &str, from: i64, to: i64) -> String {
        let (from, to) = (self.writer.integers(&[from]), self.writer.integers(&[to]));
        let axis = self.writer.integers(&[-1]);
        self.writer.node("Slice", &[x, &from, &to, &axis], &[])
    }
}

/// Heads of queries, and of keys and values.
fn heads(options: &Attention) -> [i64; 2] {
    let heads = i64::from(options.heads.max(1));
    let key_heads = i64::from(options.key_value_heads);
    [heads, if key_heads == 0 { heads } else { key_heads }]
}

/// What a frequency, in radians for each position, becomes.
fn scaled(frequency: f64, scaling: RotaryScaling) -> f64 {
    let [factor, low, high] = [scaling.factor, scaling.low_frequency, scaling.high_frequency].map(f64::from);
    // Waves in a text of the original length.
    let n_waves = f64::from(scaling.original_tokens) * frequency / TAU;
    let kept = ((n_waves - low) / (high - low)).clamp(0.0, 1.0);
    frequency * (kept + (1.0 - kept) / factor)
}
