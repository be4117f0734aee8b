//! A model as one file of ONNX, with any number of samples and, of text, of tokens up to the run's length. Pure.
//!
//! What it gives is the output of the last block: logits, of masked language modelling those of every token.

mod attention;
mod protobuf;
mod writer;

use std::collections::BTreeSet;

use barnraise_learning::graph::{GraphData, ResolvedGraph, Step, TensorPlace, ValueShape};
use barnraise_protocol::run::model::operation::{Convolution, GlobalPool, Operation, Pool};

use self::writer::{Attribute, Axis, Kind, Writer};

/// Name of what the file's graph gives.
const OUTPUT: &str = "logits";
/// Most bytes of weights: a message of Protocol Buffers has less than 2 GiB, the rest is for the graph.
const WEIGHT_BYTES_MAX: usize = (1 << 31) - (1 << 26);
/// Added to the square of a length that is divided by.
const LENGTH_EPSILON: f32 = 1e-12;

/// Why a model has no form in ONNX.
#[derive(Debug, thiserror::Error)]
pub enum OnnxError {
    /// A block without one.
    #[error("block `{block}` has no form in ONNX: {reason}; export into a folder instead")]
    Block {
        /// Its full name.
        block: String,
        /// What it is.
        reason: &'static str,
    },
    /// The weights are more than a file holds.
    #[error(
        "the weights have {got} bytes, a file of ONNX holds {max}: export into a folder instead", max = WEIGHT_BYTES_MAX
    )]
    TooLarge {
        /// Theirs.
        got: usize,
    },
}

/// The bytes of the file. `parameters`: flat, as long as the graph's layout.
///
/// # Errors
/// A block without a form in ONNX, weights that are too many.
pub(super) fn file(graph: &ResolvedGraph, name: &str, parameters: &[f32]) -> Result<Vec<u8>, OnnxError> {
    let got = size_of_val(parameters);
    if got > WEIGHT_BYTES_MAX {
        return Err(OnnxError::TooLarge { got });
    }
    let mut nodes = Nodes { graph, parameters, written: BTreeSet::new(), writer: Writer::default() };
    let mut values: Vec<String> = Vec::new();
    for input in graph.inputs() {
        let kind = match &input.shape {
            ValueShape::Values(_) => Kind::Values,
            ValueShape::Ids { .. } => Kind::Ids,
        };
        nodes.writer.input(input.name, &kind, &axes(graph, input.shape.dims()));
        values.push(input.name.to_owned());
    }
    for step in graph.steps() {
        let inputs: Vec<&str> = step.inputs.iter().map(|&input| values[input].as_str()).collect();
        let value = nodes.step(step, &inputs)?;
        values.push(value);
    }
    let last = values.last().map_or("", String::as_str);
    nodes.writer.node_to("Identity", &[last], &[], OUTPUT);
    let dims = match graph.steps().iter().find(|step| step.op == Operation::PickMasked) {
        Some(picked) => [graph.shape_of(picked.inputs[0]).dims()[0], graph.output().dims()[1]].to_vec(),
        None => graph.output().dims().to_vec(),
    };
    nodes.writer.output(OUTPUT, &axes(graph, &dims));
    Ok(nodes.writer.finish(name))
}

/// Axes of a value, the samples first. A sequence as long as the text is of any length, unless a block fixes it.
fn axes(graph: &ResolvedGraph, dims: &[usize]) -> Vec<Axis> {
    let is_fixed = |step: &Step| matches!(step.op, Operation::Flatten | Operation::Reshape(_));
    let length = match graph.data() {
        GraphData::Tokens { length, .. } if !graph.steps().iter().any(is_fixed) => Some(length),
        _ => None,
    };
    let mut axes = vec![Axis::Any("batch")];
    for (at, &size) in dims.iter().enumerate() {
        let is_length =
            at == 0 && length == Some(size) && (dims.len() == 2 || graph.inputs()[0].shape.dims() == dims);
        axes.push(if is_length { Axis::Any("length") } else { Axis::Fixed(size) });
    }
    axes
}

/// The nodes of a graph that is being written.
struct Nodes<'a> {
    graph: &'a ResolvedGraph,
    parameters: &'a [f32],
    /// Tensors that the file has: blocks may share them.
    written: BTreeSet<usize>,
    writer: Writer,
}

impl Nodes<'_> {
    fn step(&mut self, step: &Step, inputs: &[&str]) -> Result<String, OnnxError> {
        if inputs.len() > 1 {
            return self.on_several(step, inputs);
        }
        let x = inputs.first().copied().unwrap_or_default();
        Ok(match &step.op {
            Operation::Dense(_) => {
                if step.adapter.is_some() {
                    return Err(refused(step, "an adapter"));
                }
                let weight = self.tensor(step, 0)?;
                let product = self.writer.node("MatMul", &[x, &weight], &[]);
                self.with_bias(step, product)?
            }
            Operation::Convolution(options) => self.convolution(step, x, options)?,
            Operation::MaxPool(options) => self.pool("MaxPool", x, options),
            Operation::AveragePool(options) => self.pool("AveragePool", x, options),
            Operation::GlobalPool(GlobalPool::Average) => self.reduce("ReduceMean", x, &[2, 3], false),
            Operation::GlobalPool(GlobalPool::Max) => self.reduce("ReduceMax", x, &[2, 3], false),
            Operation::BatchNorm(options) => self.batch_norm(step, x, options.epsilon)?,
            Operation::GroupNorm(options) => self.group_norm(step, x, options.groups, options.epsilon)?,
            Operation::LayerNorm(options) => {
                let weight = self.tensor(step, 0)?;
                let attributes =
                    [("axis", Attribute::Integer(-1)), ("epsilon", Attribute::Float(options.epsilon))];
                match options.bias {
                    true => {
                        let bias = self.tensor(step, 1)?;
                        self.writer.node("LayerNormalization", &[x, &weight, &bias], &attributes)
                    }
                    false => self.writer.node("LayerNormalization", &[x, &weight], &attributes),
                }
            }
            Operation::RmsNorm(options) => {
                let squares = self.writer.node("Mul", &[x, x], &[]);
                let mean = self.reduce("ReduceMean", &squares, &[-1], true);
                let normed = self.divided_by_root(x, &mean, options.epsilon);
                let weight = self.tensor(step, 0)?;
                self.writer.node("Mul", &[&normed, &weight], &[])
            }
            Operation::Relu => self.writer.node("Relu", &[x], &[]),
            Operation::Gelu => {
                let scaled = self.by_number("Mul", x, std::f32::consts::FRAC_1_SQRT_2);
                let error = self.writer.node("Erf", &[&scaled], &[]);
                self.gated_by(x, &error)
            }
            Operation::GeluTanh => {
                let square = self.writer.node("Mul", &[x, x], &[]);
                let inner = self.by_number("Mul", &square, 0.044_715);
                let inner = self.by_number("Add", &inner, 1.0);
                let inner = self.writer.node("Mul", &[x, &inner], &[]);
                let inner = self.by_number("Mul", &inner, (2.0 / std::f32::consts::PI).sqrt());
                let tanh = self.writer.node("Tanh", &[&inner], &[]);
                self.gated_by(x, &tanh)
            }
            Operation::Silu => {
                let gate = self.writer.node("Sigmoid", &[x], &[]);
                self.writer.node("Mul", &[x, &gate], &[])
            }
            Operation::Tanh => self.writer.node("Tanh", &[x], &[]),
            Operation::Sigmoid => self.writer.node("Sigmoid", &[x], &[]),
            Operation::Softmax => self.writer.node("Softmax", &[x], &[("axis", Attribute::Integer(-1))]),
            // Only training drops; and of masked tokens the file gives what it gives of all.
            Operation::Dropout(_) | Operation::PickMasked => x.to_owned(),
            _ => self.on_tokens(step, x)?,
        })
    }

    /// Operations on one input that are about tokens, or change a shape.
    fn on_tokens(&mut self, step: &Step, x: &str) -> Result<String, OnnxError> {
        Ok(match &step.op {
            Operation::Embedding(_) => {
                let table = self.tensor(step, 0)?;
                self.writer.node("Gather", &[&table, x], &[])
            }
            Operation::Unembedding(_) => {
                let table = self.tensor(step, 0)?;
                let turned = self.transposed(&table, &[1, 0]);
                let product = self.writer.node("MatMul", &[x, &turned], &[]);
                self.with_bias(step, product)?
            }
            Operation::Positions(_) => {
                let table = self.tensor(step, 0)?;
                let rows = self.first_rows(&table, x);
                self.writer.node("Add", &[x, &rows], &[])
            }
            Operation::ClassToken(_) => {
                let token = self.tensor(step, 0)?;
                let n = self.size(x, 0);
                let rest = self.writer.integers(&[1, last(&step.shape)]);
                let shape = self.writer.node("Concat", &[&n, &rest], &[("axis", Attribute::Integer(0))]);
                let tokens = self.writer.node("Expand", &[&token, &shape], &[]);
                self.writer.node("Concat", &[&tokens, x], &[("axis", Attribute::Integer(1))])
            }
            Operation::Attention(options) => self.packed_attention(step, options, x),
            Operation::Bias => {
                let bias = self.tensor(step, 0)?;
                self.writer.node("Add", &[x, &bias], &[])
            }
            Operation::Flatten => self.writer.node("Flatten", &[x], &[("axis", Attribute::Integer(1))]),
            Operation::Reshape(_) => {
                let sizes = step.shape.dims().iter().map(|&size| size as i64);
                let shape: Vec<i64> = std::iter::once(-1).chain(sizes).collect();
                self.reshaped(x, &shape)
            }
            Operation::ToTokens if step.shape.dims().len() == 1 => x.to_owned(),
            Operation::ToTokens => {
                let flat = self.reshaped(x, &[0, 0, -1]);
                self.transposed(&flat, &[0, 2, 1])
            }
            Operation::MeanTokens => self.reduce("ReduceMean", x, &[1], false),
            Operation::PickToken(options) => {
                let index = self.writer.integer(options.index.into());
                self.writer.node("Gather", &[x, &index], &[("axis", Attribute::Integer(1))])
            }
            Operation::UnitLength => self.unit_length(x),
            Operation::Cosine(_) => {
                let vectors = self.tensor(step, 0)?;
                let vectors = self.unit_length(&vectors);
                let vectors = self.transposed(&vectors, &[1, 0]);
                let input = self.unit_length(x);
                self.writer.node("MatMul", &[&input, &vectors], &[])
            }
            // One input of what takes several.
            Operation::Add | Operation::Multiply | Operation::Concat => x.to_owned(),
            Operation::Experts(_) => return Err(refused(step, "experts are chosen for each input")),
            _ => return Err(refused(step, "it takes other inputs")),
        })
    }

    fn on_several(&mut self, step: &Step, inputs: &[&str]) -> Result<String, OnnxError> {
        if let (Operation::Attention(options), &[query, key, value]) = (&step.op, inputs) {
            return Ok(self.attention(step, options, [query, key, value]));
        }
        if step.op == Operation::Concat {
            let axis = if step.shape.dims().len() == 3 { 1 } else { -1 };
            return Ok(self.writer.node("Concat", inputs, &[("axis", Attribute::Integer(axis))]));
        }
        let mut result = inputs[0].to_owned();
        for input in &inputs[1..] {
            let op = match &step.op {
                Operation::Add => "Add",
                Operation::Multiply | Operation::DotProduct => "Mul",
                _ => return Err(refused(step, "it takes one input")),
            };
            result = self.writer.node(op, &[&result, input], &[]);
            if step.op == Operation::DotProduct {
                result = self.sum_last(&result);
            }
        }
        Ok(result)
    }

    fn convolution(&mut self, step: &Step, x: &str, options: &Convolution) -> Result<String, OnnxError> {
        let mut inputs = vec![x.to_owned(), self.tensor(step, 0)?];
        if step.parameters.len() > 1 {
            inputs.push(self.tensor(step, 1)?);
        }
        let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
        let (strides, dilations) = (options.stride.map(i64::from), options.dilation.map(i64::from));
        let pads = pads(options.padding);
        let attributes = [
            ("strides", Attribute::Integers(&strides)),
            ("pads", Attribute::Integers(&pads)),
            ("dilations", Attribute::Integers(&dilations)),
            ("group", Attribute::Integer(options.groups.into())),
        ];
        Ok(self.writer.node("Conv", &inputs, &attributes))
    }

    fn pool(&mut self, op: &str, x: &str, options: &Pool) -> String {
        let (kernel, strides) = (options.kernel.map(i64::from), options.stride.map(i64::from));
        let pads = pads(options.padding);
        let mut attributes = vec![
            ("kernel_shape", Attribute::Integers(&kernel)),
            ("strides", Attribute::Integers(&strides)),
            ("pads", Attribute::Integers(&pads)),
        ];
        if op == "AveragePool" {
            attributes.push(("count_include_pad", Attribute::Integer(1)));
        }
        self.writer.node(op, &[x], &attributes)
    }

    fn batch_norm(&mut self, step: &Step, x: &str, epsilon: f32) -> Result<String, OnnxError> {
        let running = step.statistics.and_then(|index| self.graph.statistics().get(index).copied());
        let Some(running) = running else {
            return Err(refused(step, "it normalizes by the samples of a pass"));
        };
        let (weight, bias) = (self.tensor(step, 0)?, self.tensor(step, 1)?);
        let (mean, variance) = (self.segment(running.mean), self.segment(running.variance));
        let inputs: [&str; 5] = [x, &weight, &bias, &mean, &variance];
        Ok(self.writer.node("BatchNormalization", &inputs, &[("epsilon", Attribute::Float(epsilon))]))
    }

    /// Groups are the channels of an instance normalization; weight and bias are of our channels.
    fn group_norm(&mut self, step: &Step, x: &str, groups: u32, epsilon: f32) -> Result<String, OnnxError> {
        let n_groups = groups as usize;
        let rows = self.reshaped(x, &[0, groups.into(), -1]);
        let ones = self.writer.numbers(&[n_groups], &vec![1.0; n_groups]);
        let zeros = self.writer.numbers(&[n_groups], &vec![0.0; n_groups]);
        let attributes = [("epsilon", Attribute::Float(epsilon))];
        let normed = self.writer.node("InstanceNormalization", &[&rows, &ones, &zeros], &attributes);
        let sizes = step.shape.dims().iter().map(|&size| size as i64);
        let shape: Vec<i64> = std::iter::once(-1).chain(sizes).collect();
        let normed = self.reshaped(&normed, &shape);
        let (weight, bias) = (self.tensor(step, 0)?, self.tensor(step, 1)?);
        let (weight, bias) = (self.reshaped(&weight, &[-1, 1, 1]), self.reshaped(&bias, &[-1, 1, 1]));
        let scaled = self.writer.node("Mul", &[&normed, &weight], &[]);
        Ok(self.writer.node("Add", &[&scaled, &bias], &[]))
    }

    /// `x / 2 (1 + gate)`
    fn gated_by(&mut self, x: &str, gate: &str) -> String {
        let gate = self.by_number("Add", gate, 1.0);
        let product = self.writer.node("Mul", &[x, &gate], &[]);
        self.by_number("Mul", &product, 0.5)
    }

    fn unit_length(&mut self, x: &str) -> String {
        let squares = self.writer.node("Mul", &[x, x], &[]);
        let sum = self.sum_last(&squares);
        self.divided_by_root(x, &sum, LENGTH_EPSILON)
    }

    fn divided_by_root(&mut self, x: &str, square: &str, epsilon: f32) -> String {
        let square = self.by_number("Add", square, epsilon);
        let root = self.writer.node("Sqrt", &[&square], &[]);
        self.writer.node("Div", &[x, &root], &[])
    }

    fn by_number(&mut self, op: &str, x: &str, number: f32) -> String {
        let number = self.writer.number(number);
        self.writer.node(op, &[x, &number], &[])
    }

    fn sum_last(&mut self, x: &str) -> String {
        let axes = self.writer.integers(&[-1]);
        self.writer.node("ReduceSum", &[x, &axes], &[("keepdims", Attribute::Integer(1))])
    }

    fn reduce(&mut self, op: &str, x: &str, axes: &[i64], keeps: bool) -> String {
        let attributes =
            [("axes", Attribute::Integers(axes)), ("keepdims", Attribute::Integer(keeps.into()))];
        self.writer.node(op, &[x], &attributes)
    }

    /// 0 is the size that it has.
    fn reshaped(&mut self, x: &str, shape: &[i64]) -> String {
        let shape = self.writer.integers(shape);
        self.writer.node("Reshape", &[x, &shape], &[])
    }

    fn transposed(&mut self, x: &str, order: &[i64]) -> String {
        self.writer.node("Transpose", &[x], &[("perm", Attribute::Integers(order))])
    }

    /// A size of a value, `[1]`.
    fn size(&mut self, x: &str, axis: i64) -> String {
        let attributes = [("start", Attribute::Integer(axis)), ("end", Attribute::Integer(axis + 1))];
        self.writer.node("Shape", &[x], &attributes)
    }

    /// As many rows of a table as `x`, `[samples, length, …]`, has tokens.
    fn first_rows(&mut self, table: &str, x: &str) -> String {
        let length = self.size(x, 1);
        let zero = self.writer.integers(&[0]);
        self.writer.node("Slice", &[table, &zero, &length, &zero], &[])
    }

    fn with_bias(&mut self, step: &Step, product: String) -> Result<String, OnnxError> {
        if step.parameters.len() < 2 {
            return Ok(product);
        }
        let bias = self.tensor(step, 1)?;
        Ok(self.writer.node("Add", &[&product, &bias], &[]))
    }

    /// Name of a tensor of a step.
    fn tensor(&mut self, step: &Step, tensor: usize) -> Result<String, OnnxError> {
        match step.parameters.get(tensor) {
            Some(&TensorPlace::Trained(index)) => Ok(self.segment(index)),
            _ => Err(refused(step, "its weights are frozen")),
        }
    }

    fn segment(&mut self, index: usize) -> String {
        let segment = &self.graph.layout().segments()[index];
        if self.written.insert(index) {
            self.writer.tensor(&segment.name, &segment.shape, &self.parameters[segment.range()]);
        }
        segment.name.clone()
    }
}

fn refused(step: &Step, reason: &'static str) -> OnnxError {
    OnnxError::Block { block: step.name.clone(), reason }
}

fn pads([rows, columns]: [u32; 2]) -> [i64; 4] {
    [rows, columns, rows, columns].map(i64::from)
}

fn last(shape: &ValueShape) -> i64 {
    shape.dims().last().map_or(1, |&size| size as i64)
}
