//! Nodes and tensors of a graph of ONNX. Field numbers are those of `onnx/onnx.proto3` in the repository onnx/onnx.

use super::protobuf::Message;

/// Version of the file's form that belongs to the operators.
const IR_VERSION: i64 = 8;
/// Version of the operators.
const OPERATORS: i64 = 17;
const FLOAT: i64 = 1;
const INT64: i64 = 7;

/// An attribute of a node.
pub(super) enum Attribute<'a> {
    Float(f32),
    Integer(i64),
    Integers(&'a [i64]),
}

/// A size of an input or output.
pub(super) enum Axis {
    Fixed(usize),
    /// Of any size, by its name.
    Any(&'static str),
}

/// Kind of the values of an input or output.
pub(super) enum Kind {
    Values,
    Ids,
}

/// A graph that is being written.
#[derive(Debug, Default)]
pub(super) struct Writer {
    graph: Message,
    n_names: usize,
}

impl Writer {
    /// Adds a node with one output, and returns the output's name.
    pub(super) fn node(&mut self, op: &str, inputs: &[&str], attributes: &[(&str, Attribute<'_>)]) -> String {
        let output = self.fresh();
        self.node_to(op, inputs, attributes, &output);
        output
    }

    /// The same with the name of the output.
    pub(super) fn node_to(
        &mut self,
        op: &str,
        inputs: &[&str],
        attributes: &[(&str, Attribute<'_>)],
        output: &str,
    ) {
        let mut node = Message::default();
        for input in inputs {
            node.text(1, input);
        }
        node.text(2, output).text(4, op);
        for (name, attribute) in attributes {
            let mut message = Message::default();
            message.text(1, name);
            match attribute {
                Attribute::Float(value) => message.float(2, *value).integer(20, 1),
                Attribute::Integer(value) => message.integer(3, *value).integer(20, 2),
                Attribute::Integers(values) => {
                    for &value in *values {
                        message.integer(8, value);
                    }
                    message.integer(20, 7)
                }
            };
            node.message(5, &message);
        }
        self.graph.message(1, &node);
    }

    /// Adds a constant of integers in one dimension.
    pub(super) fn integers(&mut self, values: &[i64]) -> String {
        self.integer_tensor(&[values.len()], values)
    }

    /// Adds an integer that has no dimension.
    pub(super) fn integer(&mut self, value: i64) -> String {
        self.integer_tensor(&[], &[value])
    }

    /// Adds a number that has no dimension.
    pub(super) fn number(&mut self, value: f32) -> String {
        self.numbers(&[], &[value])
    }

    /// Adds a constant of numbers.
    pub(super) fn numbers(&mut self, shape: &[usize], values: &[f32]) -> String {
        let name = self.fresh();
        self.tensor(&name, shape, values);
        name
    }

    /// Adds a tensor of the model.
    pub(super) fn tensor(&mut self, name: &str, shape: &[usize], values: &[f32]) {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.raw(name, shape, FLOAT, &bytes);
    }

    pub(super) fn input(&mut self, name: &str, kind: &Kind, axes: &[Axis]) {
        self.graph.message(11, &value_info(name, kind, axes));
    }

    pub(super) fn output(&mut self, name: &str, axes: &[Axis]) {
        self.graph.message(12, &value_info(name, &Kind::Values, axes));
    }

    /// The bytes of the file. `name`: the graph's.
    pub(super) fn finish(mut self, name: &str) -> Vec<u8> {
        self.graph.text(2, name);
        let mut operators = Message::default();
        operators.text(1, "").integer(2, OPERATORS);
        let mut model = Message::default();
        model.integer(1, IR_VERSION).text(2, "barnraise").message(7, &self.graph).message(8, &operators);
        model.into_bytes()
    }

    /// A name that no block has: theirs have no slash.
    fn fresh(&mut self) -> String {
        self.n_names += 1;
        format!("/{}", self.n_names)
    }

    fn integer_tensor(&mut self, shape: &[usize], values: &[i64]) -> String {
        let name = self.fresh();
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.raw(&name, shape, INT64, &bytes);
        name
    }

    fn raw(&mut self, name: &str, shape: &[usize], kind: i64, bytes: &[u8]) {
        let mut tensor = Message::default();
        for &size in shape {
            tensor.integer(1, size as i64);
        }
        tensor.integer(2, kind).text(8, name).bytes(9, bytes);
        self.graph.message(5, &tensor);
    }
}

fn value_info(name: &str, kind: &Kind, axes: &[Axis]) -> Message {
    let mut shape = Message::default();
    for axis in axes {
        let mut dimension = Message::default();
        match axis {
            Axis::Fixed(size) => dimension.integer(1, *size as i64),
            Axis::Any(name) => dimension.text(2, name),
        };
        shape.message(1, &dimension);
    }
    let kind = match kind {
        Kind::Values => FLOAT,
        Kind::Ids => INT64,
    };
    let (mut tensor, mut value, mut info) = (Message::default(), Message::default(), Message::default());
    tensor.integer(1, kind).message(2, &shape);
    value.message(1, &tensor);
    info.text(1, name).message(2, &value);
    info
}
