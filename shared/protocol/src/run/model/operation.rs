//! What the blocks of a graph compute: plain data, with the defaults that an operator may leave out.
//!
//! Shapes are those of one sample: `[width]`, a sequence `[length, width]`, or maps `[channels, height, width]`.

use serde::{Deserialize, Serialize};

use super::size::Size;

/// What a block computes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// The blocks of a part, once.
    Part(PartCall),
    /// The blocks of a part, several times, each on what the one before gave.
    Repeat(Repeat),
    /// A linear layer over the last dimension.
    Dense(Dense),
    /// A convolution of maps.
    Convolution(Convolution),
    /// The largest value of each window of maps.
    MaxPool(Pool),
    /// The mean of each window of maps; padding counts as zeros.
    AveragePool(Pool),
    /// One value of each map: `[channels, height, width]` to `[channels]`.
    GlobalPool(GlobalPool),
    /// Batch normalization of maps or of a vector (Ioffe and Szegedy 2015).
    BatchNorm(BatchNorm),
    /// Group normalization of maps (Wu and He 2018).
    GroupNorm(GroupNorm),
    /// Layer normalization over the last dimension (Ba et al. 2016).
    LayerNorm(LayerNorm),
    /// Normalization by the root mean square over the last dimension (Zhang and Sennrich 2019).
    RmsNorm(RmsNorm),
    /// `max(x, 0)`.
    Relu,
    /// `x Φ(x)`, exactly (Hendrycks and Gimpel 2016).
    Gelu,
    /// The same with the tanh approximation, as in GPT-2.
    GeluTanh,
    /// `x sigmoid(x)`.
    Silu,
    /// Hyperbolic tangent.
    Tanh,
    /// Logistic function.
    Sigmoid,
    /// Softmax over the last dimension.
    Softmax,
    /// Sets values to zero at random while training (Srivastava et al. 2014).
    Dropout(Dropout),
    /// Rows of a table, by ids: ids `[...]` to `[..., width]`.
    Embedding(Embedding),
    /// Products with the rows of an embedding that it shares: `[..., width]` to `[..., rows]`.
    Unembedding(Unembedding),
    /// Adds a learned vector for each position of a sequence.
    Positions(Positions),
    /// Puts a learned token before a sequence (ViT's class token): one token more.
    ClassToken(ClassToken),
    /// Scaled dot-product attention. Its inputs are queries, keys and values; or one sequence that has them side by
    /// side in the last dimension.
    Attention(Attention),
    /// Sum of the inputs: a residual.
    Add,
    /// Product of the inputs, value by value: a gate.
    Multiply,
    /// The inputs one after another: maps by channels, all else by the last dimension.
    Concat,
    /// Dot product of two inputs over the last dimension, which becomes 1.
    DotProduct,
    /// Adds a learned vector over the last dimension.
    Bias,
    /// All values in one dimension.
    Flatten,
    /// The values in another shape.
    Reshape(Reshape),
    /// Each pixel of maps becomes a token: `[channels, height, width]` to `[height * width, channels]`. A vector stays what
    /// it is, so that one graph serves pictures and rows of a table.
    ToTokens,
    /// Mean over the tokens of a sequence.
    MeanTokens,
    /// One token of a sequence.
    PickToken(PickToken),
    /// The tokens of a sequence that are masked, in their order.
    PickMasked,
    /// Brings the vectors along the last dimension to length 1.
    UnitLength,
    /// Cosines with learned vectors, such as prototypes: `[width]` to `[units]`.
    Cosine(Cosine),
    /// A mixture of experts: each input goes to the few that a gating function prefers (Learning@home §3.1).
    Experts(Experts),
}

/// Calls a part once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartCall {
    /// Name of the part. The names of its blocks follow that of the call and a dot.
    pub part: String,
}

/// Calls a part several times in a row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Repeat {
    /// Name of the part. The names of its blocks follow that of the call, the number of the pass, and dots.
    pub part: String,
    /// Passes.
    pub times: u32,
    /// Number of the first pass in names.
    #[serde(default)]
    pub first: u32,
    /// Whether all passes have the same parameters, as in ALBERT; then names have no number.
    #[serde(default)]
    pub share: bool,
}

/// How weights begin. All distributions are uniform, which every platform draws bit for bit the same.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Initial {
    /// Within `±sqrt(3 / fan_in)`, and biases within `±1 / sqrt(fan_in)` (LeCun et al. 1998).
    #[default]
    Lecun,
    /// For a layer before a ReLU: within `±sqrt(6 / fan_in)`, and biases as above (He et al. 2015).
    He,
    /// Within plus and minus this bound, and biases zero.
    Uniform(f32),
}

/// A linear layer: weight `[in, units]`, bias `[units]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dense {
    /// Values that it gives.
    pub units: Size,
    /// Whether it adds a bias.
    #[serde(default = "yes")]
    pub bias: bool,
    /// How its weights begin.
    #[serde(default)]
    pub initial: Initial,
}

/// A convolution: weight `[maps, channels / groups, kernel height, kernel width]`, bias `[maps]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Convolution {
    /// Maps that it gives.
    pub maps: u32,
    /// Height and width of the window.
    pub kernel: [u32; 2],
    /// Pixels from one window to the next.
    #[serde(default = "ones")]
    pub stride: [u32; 2],
    /// Zeros on each side, in rows and columns.
    #[serde(default)]
    pub padding: [u32; 2],
    /// Pixels from one value of a window to the next.
    #[serde(default = "ones")]
    pub dilation: [u32; 2],
    /// Groups that channels and maps are divided into; each map sees the channels of its group.
    #[serde(default = "one")]
    pub groups: u32,
    /// Whether it adds a bias.
    #[serde(default = "yes")]
    pub bias: bool,
    /// How its weights begin.
    #[serde(default)]
    pub initial: Initial,
}

/// Windows of pooling.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pool {
    /// Height and width of the window.
    pub kernel: [u32; 2],
    /// Pixels from one window to the next.
    pub stride: [u32; 2],
    /// Pixels added on each side, at most half a window.
    #[serde(default)]
    pub padding: [u32; 2],
}

/// Which value stands for a map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GlobalPool {
    /// The mean.
    Average,
    /// The largest.
    Max,
}

/// Batch normalization: weight and bias `[channels]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BatchNorm {
    /// Added to the variance.
    #[serde(default = "small")]
    pub epsilon: f32,
    /// Share of a step's statistics in the running ones.
    #[serde(default = "tenth")]
    pub momentum: f32,
    /// Whether evaluation uses running statistics; else those of its own pass.
    #[serde(default = "yes")]
    pub running: bool,
}

/// Group normalization: weight and bias `[channels]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupNorm {
    /// Groups of channels, each normalized by itself.
    pub groups: u32,
    /// Added to the variance.
    #[serde(default = "small")]
    pub epsilon: f32,
}

/// Layer normalization: weight and bias of the last dimension's size.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerNorm {
    /// Added to the variance.
    #[serde(default = "small")]
    pub epsilon: f32,
    /// Whether it adds a bias.
    #[serde(default = "yes")]
    pub bias: bool,
}

/// Normalization by the root mean square: weight of the last dimension's size.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RmsNorm {
    /// Added to the mean square.
    #[serde(default = "small")]
    pub epsilon: f32,
}

/// Dropout.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dropout {
    /// Share of the values that become zero. The others are divided by one less it.
    pub rate: f32,
}

/// A table of embeddings: weight `[rows, width]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Embedding {
    /// Ids that have a row.
    pub rows: Size,
    /// Values of a row.
    pub width: u32,
    /// How its values begin: by default within `±0.02 sqrt(3)`, BERT's and GPT-2's deviation.
    #[serde(default = "embedding")]
    pub initial: Initial,
}

/// The table of an embedding as a linear layer: bias `[rows]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Unembedding {
    /// Whether it adds a bias.
    #[serde(default)]
    pub bias: bool,
}

/// Learned positions: weight `[length, width]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Positions {
    /// How its values begin.
    #[serde(default = "embedding")]
    pub initial: Initial,
}

/// A learned token: weight `[width]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClassToken {
    /// How its values begin.
    #[serde(default = "embedding")]
    pub initial: Initial,
}

/// Attention (Vaswani et al. 2017); with fewer heads of keys and values than of queries grouped-query attention
/// (Ainslie et al. 2023). It has no parameters: dense blocks before and after it do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attention {
    /// Heads of the queries.
    pub heads: u32,
    /// Heads of keys and values, a divisor of `heads`; 0 for as many.
    #[serde(default)]
    pub key_value_heads: u32,
    /// Whether a token sees those before it and itself only.
    #[serde(default)]
    pub causal: bool,
    /// Rotary embedding of queries and keys (Su et al. 2021), the halves of a head as real and imaginary parts.
    #[serde(default)]
    pub rotary: Option<Rotary>,
    /// Share of the weights that become zero while training; the others are divided by one less it.
    #[serde(default)]
    pub dropout: f32,
}

/// Rotary embedding.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rotary {
    /// Base of the wave lengths.
    #[serde(default = "ten_thousand")]
    pub theta: f32,
    /// Longer waves than those of the base.
    #[serde(default)]
    pub scaling: Option<RotaryScaling>,
}

/// Makes the long waves of a rotary embedding longer, for more tokens than it was first trained with: `rope_type` `llama3` of
/// transformers (Llama Team 2024). Waves longer than `original_tokens / low_frequency` become `factor` times as long, those
/// shorter than `original_tokens / high_frequency` stay, and those between become longer by parts.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RotaryScaling {
    /// 1 or more.
    pub factor: f32,
    /// Above 0.
    pub low_frequency: f32,
    /// Above `low_frequency`.
    pub high_frequency: f32,
    /// Tokens that it was first trained with.
    pub original_tokens: u32,
}

/// Another shape of as many values.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reshape {
    /// One to three sizes.
    pub shape: Vec<u32>,
}

/// A token by its position.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PickToken {
    /// 0 for the first.
    pub index: u32,
}

/// Learned vectors that an input is compared with: weight `[units, width]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cosine {
    /// Vectors.
    pub units: u32,
}

/// A mixture of experts on a grid (Learning@home §3.2). Expert `u` has the score `Σ_i g_i(x)[u_i]`; each `g_i` is a linear layer
/// without bias: weight `[width, side]`.
///
/// The output is the mean over the `active` experts with the highest scores, weighted by a softmax over these scores (eq. 1).
/// With one active expert the weight is its share in a softmax over all experts, since a softmax over one score is constant
/// (Fedus et al. 2021).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experts {
    /// Name of the part that an expert computes, each with parameters of its own.
    pub part: String,
    /// Places along each dimension of the grid (the paper's M).
    pub side: u32,
    /// Dimensions of the grid (d), so that it has `side ^ dimensions` experts.
    #[serde(default = "one")]
    pub dimensions: u32,
    /// Experts that compute an input (k).
    pub active: u32,
    /// What goes to an expert.
    #[serde(default)]
    pub route: Route,
    /// Most inputs of an expert in a pass of training, as a multiple of the mean; 0 for no limit. An expert beyond it is left
    /// out as if it had not answered.
    #[serde(default)]
    pub capacity: f32,
    /// Weight of the loss that balances how often the places of each dimension are chosen (Fedus et al. 2021, eq. 4).
    #[serde(default = "hundredth")]
    pub balance: f32,
    /// Input of the gating function is multiplied by random numbers of `1 ± jitter` in training.
    #[serde(default)]
    pub jitter: f32,
}

/// What goes to an expert.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Route {
    /// Each token of a sequence by itself, or a vector.
    #[default]
    Token,
    /// A whole sample. The gating function sees the mean over its tokens or pixels.
    Sample,
}

fn yes() -> bool {
    true
}

fn one() -> u32 {
    1
}

fn ones() -> [u32; 2] {
    [1, 1]
}

fn small() -> f32 {
    1e-5
}

fn tenth() -> f32 {
    0.1
}

fn hundredth() -> f32 {
    0.01
}

fn ten_thousand() -> f32 {
    10_000.0
}

/// `0.02 * sqrt(3)`: a standard deviation of 0.02.
fn embedding() -> Initial {
    Initial::Uniform(0.034_641_016)
}
