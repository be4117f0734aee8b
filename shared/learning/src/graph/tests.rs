#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod presets;
mod refusals;

use barnraise_protocol::dataset::ImageShape;
use barnraise_protocol::run::model::graph::{Block, Graph, Loss, Part};
use barnraise_protocol::run::model::operation::{BatchNorm, Dense, Initial, Operation, PartCall, Repeat};

use super::{GraphData, GraphError, ResolvedGraph, RunningStatistics, TensorPlace, ValueShape};
use crate::data_shape::RowTarget;

const IMAGES: GraphData =
    GraphData::Images { shape: ImageShape { height: 28, width: 28, channels: 1 }, n_classes: 10 };
const ROWS: GraphData = GraphData::Rows { n_values: 4, target: RowTarget::Values(4) };
const TEXT: GraphData = GraphData::Tokens { length: 16, vocabulary: 100, n_masked: 2 };

fn dense(name: &str, units: u32) -> Block {
    Block::new(name, Operation::Dense(Dense { units: units.into(), bias: true, initial: Initial::Lecun }))
}

fn repeat(name: &str, part: &str, times: u32, share: bool) -> Block {
    Block::new(name, Operation::Repeat(Repeat { part: part.to_owned(), times, first: 0, share }))
}

fn call(name: &str, part: &str) -> Block {
    Block::new(name, Operation::Part(PartCall { part: part.to_owned() }))
}

fn part(name: &str, blocks: Vec<Block>) -> Part {
    Part { name: name.to_owned(), blocks }
}

fn graph(parts: Vec<Part>, blocks: Vec<Block>) -> Graph {
    Graph { name: "test".to_owned(), parts, blocks, loss: Loss::Regression }
}

fn names(resolved: &ResolvedGraph) -> Vec<&str> {
    resolved.layout().segments().iter().map(|segment| segment.name.as_str()).collect()
}

#[test]
fn repeated_parts_have_parameters_of_their_own_or_share_them() {
    let parts = || vec![part("layer", vec![dense("fc", 4), Block::new("act", Operation::Relu)])];
    let own = graph(parts(), vec![repeat("h", "layer", 3, false)]);
    let own = ResolvedGraph::of(&own, ROWS).unwrap();
    assert_eq!(names(&own)[..3], ["h.0.fc.weight", "h.0.fc.bias", "h.1.fc.weight"]);
    assert_eq!(own.layout().n_parameters(), 3 * 20);
    let shared = ResolvedGraph::of(&graph(parts(), vec![repeat("h", "layer", 3, true)]), ROWS).unwrap();
    assert_eq!(names(&shared), ["h.fc.weight", "h.fc.bias"]);
    assert_eq!(shared.steps().len(), 6);
    assert_eq!(shared.steps()[4].parameters, [TensorPlace::Trained(0), TensorPlace::Trained(1)]);
    assert_eq!(shared.steps()[4].name, "h.2.fc");
}

#[test]
fn parts_nest_and_see_their_own_input() {
    let inner = part("inner", vec![dense("fc", 4), Block::new("sum", Operation::Add).from(&["fc", "input"])]);
    let outer = part("outer", vec![call("a", "inner"), repeat("b", "inner", 2, true)]);
    let nested = graph(vec![inner, outer], vec![dense("first", 4), repeat("o", "outer", 2, false)]);
    let resolved = ResolvedGraph::of(&nested, ROWS).unwrap();
    assert_eq!(names(&resolved)[2], "o.0.a.fc.weight");
    assert_eq!(names(&resolved)[4], "o.0.b.fc.weight");
    assert_eq!(names(&resolved).len(), 2 * (1 + 2 + 2));
    // The sum of the second pass has the first pass's output as its other input.
    let at = |name: &str| 1 + resolved.steps().iter().position(|step| step.name == name).unwrap();
    let sum = &resolved.steps()[at("o.0.b.1.sum") - 1];
    assert_eq!(sum.inputs, [at("o.0.b.1.fc"), at("o.0.b.0.sum")]);
}

#[test]
fn a_block_uses_the_weights_of_another() {
    let tied = dense("b", 4).sharing("a");
    let resolved = ResolvedGraph::of(&graph(Vec::new(), vec![dense("a", 4), tied]), ROWS).unwrap();
    assert_eq!(names(&resolved), ["a.weight", "a.bias"]);
    let other = dense("b", 3).sharing("a");
    let refused = ResolvedGraph::of(&graph(Vec::new(), vec![dense("a", 4), other]), ROWS).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "block `b`: its weight is to have the shape [4, 3], the one that it shares has [4, 4]"
    );
}

#[test]
fn running_statistics_are_the_last_values_of_the_vector() {
    let norm = |running| Operation::BatchNorm(BatchNorm { epsilon: 1e-5, momentum: 0.25, running });
    let blocks = |running| {
        vec![
            Block::new("bn", norm(running)),
            dense("fc", 4),
            Block::new("again", norm(running)).sharing("bn"),
        ]
    };
    let with = ResolvedGraph::of(&graph(Vec::new(), blocks(true)), ROWS).unwrap();
    let without = ResolvedGraph::of(&graph(Vec::new(), blocks(false)), ROWS).unwrap();
    let layout = with.layout();
    assert_eq!(layout.trained(), without.layout().segments());
    assert_eq!(without.layout().n_parameters(), layout.n_trained());
    let n_trained = names(&without).len();
    let statistics = ["bn.running_mean", "bn.running_var", "again.running_mean", "again.running_var"];
    assert_eq!(names(&with)[n_trained..], statistics);
    let of = |mean| RunningStatistics { mean, variance: mean + 1, momentum: 0.25 };
    assert_eq!(with.statistics(), [of(n_trained), of(n_trained + 2)]);
    let flat = layout.initial_parameters(1);
    let moments = [[0.0; 4], [1.0; 4]].concat();
    assert_eq!(flat[layout.n_trained()..], moments.repeat(2));
    assert_eq!(flat[..layout.n_trained()], without.layout().initial_parameters(1));
}

#[test]
fn the_loss_is_compared_with_the_data_and_the_output() {
    let mut wrong = graph(Vec::new(), vec![dense("fc", 3)]);
    let refused = ResolvedGraph::of(&wrong, ROWS).unwrap_err();
    assert_eq!(refused.to_string(), "block `fc`: [4] wanted for the loss, the output is [3]");
    wrong.loss = Loss::CausalLanguageModel;
    let refused = ResolvedGraph::of(&wrong, ROWS).unwrap_err();
    assert_eq!(refused, GraphError::Loss { loss: "causal-language-model", data: "tables" });
}

#[test]
fn a_graph_is_short_in_a_file() {
    let text = r#"
        name = "tiny"
        loss = "classification"
        blocks = [
            { name = "conv1", op = { convolution = { maps = 8, kernel = [3, 3], padding = [1, 1], initial = "he" } } },
            { name = "block", op = { repeat = { part = "residual", times = 2 } } },
            { name = "pool", op = { global-pool = "average" } },
            { name = "fc", op = { dense = { units = "classes" } } },
        ]
        [[parts]]
        name = "residual"
        blocks = [
            { name = "norm", op = { group-norm = { groups = 4 } } },
            { name = "act", op = "relu" },
            { name = "conv", op = { convolution = { maps = 8, kernel = [3, 3], padding = [1, 1], groups = 2 } } },
            { name = "add", op = "add", from = ["conv", "input"] },
        ]
    "#;
    let read: Graph = toml::from_str(text).unwrap();
    let resolved = ResolvedGraph::of(&read, IMAGES).unwrap();
    assert_eq!(resolved.output(), &ValueShape::Values(vec![10]));
    assert_eq!(names(&resolved)[4], "block.0.conv.weight");
    assert_eq!(toml::from_str::<Graph>(&toml::to_string(&read).unwrap()).unwrap(), read);
    assert!(toml::from_str::<Graph>(&text.replace("groups = 4", "groups = 4, rate = 1")).is_err());
    assert!(toml::from_str::<Graph>(&text.replace("\"classes\"", "\"class\"")).is_err());
    assert!(toml::from_str::<Graph>(&text.replace("\"classes\"", "-1")).is_err());
}
