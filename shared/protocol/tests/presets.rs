//! What an operator's short forms mean: the graph of each preset, and what a block has where nothing is said of it. A preset
//! means the same network tomorrow, or models that were trained with it load no more.

use barnraise_protocol::run::Preset;
use barnraise_protocol::run::model::Size;
use barnraise_protocol::run::model::graph::{Block, Graph, Loss};
use barnraise_protocol::run::model::operation::Operation;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// A line for each preset and its graph.
const GRAPHS: &str = include_str!("golden/presets.jsonl");

#[derive(Deserialize)]
struct PresetGraph {
    preset: Preset,
    graph: Value,
}

fn written(value: &impl Serialize) -> Value {
    serde_json::to_value(value).unwrap()
}

#[test]
fn presets_have_their_golden_graphs() {
    for line in GRAPHS.lines() {
        let PresetGraph { preset, graph: golden } = serde_json::from_str(line).unwrap();
        let graph = written(&preset.graph());
        assert!(graph == golden, "{}\nwanted:\n{golden}\ngot:\n{graph}", written(&preset));
        assert_eq!(
            written(&preset.model(7)),
            json!({ "graph": graph, "seed": 7, "weights": "Drawn", "hosted": null })
        );
    }
}

#[test]
fn a_block_has_what_nothing_is_said_of() {
    let drawn = json!({ "uniform": 0.034_641_016_f32 });
    for (least, all) in [
        (
            json!({ "repeat": { "part": "layer", "times": 3 } }),
            json!({ "repeat": { "part": "layer", "times": 3, "first": 0, "share": false } }),
        ),
        (
            json!({ "dense": { "units": 3 } }),
            json!({ "dense": { "units": 3, "bias": true, "initial": "lecun" } }),
        ),
        (
            json!({ "convolution": { "maps": 8, "kernel": [3, 3] } }),
            json!({ "convolution": {
                "maps": 8, "kernel": [3, 3], "stride": [1, 1], "padding": [0, 0], "dilation": [1, 1], "groups": 1,
                "bias": true, "initial": "lecun",
            } }),
        ),
        (
            json!({ "max-pool": { "kernel": [2, 2], "stride": [2, 2] } }),
            json!({ "max-pool": { "kernel": [2, 2], "stride": [2, 2], "padding": [0, 0] } }),
        ),
        (
            json!({ "batch-norm": {} }),
            json!({ "batch-norm": { "epsilon": 1e-5_f32, "momentum": 0.1_f32, "running": true } }),
        ),
        (
            json!({ "group-norm": { "groups": 4 } }),
            json!({ "group-norm": { "groups": 4, "epsilon": 1e-5_f32 } }),
        ),
        (json!({ "layer-norm": {} }), json!({ "layer-norm": { "epsilon": 1e-5_f32, "bias": true } })),
        (json!({ "rms-norm": {} }), json!({ "rms-norm": { "epsilon": 1e-5_f32 } })),
        (
            json!({ "embedding": { "rows": "vocabulary", "width": 8 } }),
            json!({ "embedding": { "rows": "vocabulary", "width": 8, "initial": drawn } }),
        ),
        (json!({ "unembedding": {} }), json!({ "unembedding": { "bias": false } })),
        (json!({ "positions": {} }), json!({ "positions": { "initial": drawn } })),
        (json!({ "class-token": {} }), json!({ "class-token": { "initial": drawn } })),
        (
            json!({ "attention": { "heads": 2, "rotary": {} } }),
            json!({ "attention": {
                "heads": 2, "key_value_heads": 0, "causal": false,
                "rotary": { "theta": 10_000.0, "scaling": null }, "dropout": 0.0,
            } }),
        ),
        (
            json!({ "experts": { "part": "expert", "side": 4, "active": 2 } }),
            json!({ "experts": {
                "part": "expert", "side": 4, "dimensions": 1, "active": 2, "route": "token", "capacity": 0.0,
                "balance": 0.01_f32, "jitter": 0.0,
            } }),
        ),
    ] {
        let operation: Operation = serde_json::from_value(least).unwrap();
        assert_eq!(written(&operation), all);
    }
}

#[test]
fn a_size_is_a_number_or_a_name() {
    for (text, size, shown) in [
        ("300", Size::Fixed(300), "300"),
        ("\"classes\"", Size::Classes, "classes"),
        ("\"items\"", Size::Items, "items"),
    ] {
        assert_eq!(serde_json::from_str::<Size>(text).unwrap(), size);
        assert_eq!((size.to_string().as_str(), written(&size).to_string().as_str()), (shown, text));
    }
    let names = "a number, or one of `classes` `targets` `vocabulary` `length` `users` `items`";
    for bad in ["\"class\"", "-1", "4294967296", "true"] {
        let error = serde_json::from_str::<Size>(bad).unwrap_err().to_string();
        assert!(error.contains(names), "{bad}: {error}");
    }
}

#[test]
fn a_graph_says_what_its_samples_share() {
    let graph = |operation: Value, loss| {
        let block = Block::new("block", serde_json::from_value::<Operation>(operation).unwrap());
        Graph { name: "graph".to_owned(), parts: Vec::new(), blocks: vec![block], loss }
    };
    let experts = |balance: f32, capacity: f32| json!({ "experts": { "part": "p", "side": 2, "active": 1, "balance": balance, "capacity": capacity } });
    for (operation, is_of_samples, keeps_statistics) in [
        (json!("relu"), true, false),
        (json!({ "batch-norm": {} }), false, true),
        (json!({ "batch-norm": { "running": false } }), false, false),
        (experts(0.0, 0.0), true, false),
        (experts(0.5, 0.0), false, false),
        (experts(0.0, 1.5), false, false),
    ] {
        let graph = graph(operation, Loss::Classification);
        let got = (graph.is_of_samples(), graph.keeps_statistics());
        assert_eq!(got, (is_of_samples, keeps_statistics), "{graph:?}");
    }
    let swav: Preset = serde_json::from_value(json!({ "swav": {
        "trunk": { "convolutions": [4] }, "hidden": 8, "projection": 4, "prototypes": 3, "small_crops": 1,
        "small_side": 4,
    } }))
    .unwrap();
    let swav = swav.graph().loss;
    assert!(!graph(json!("relu"), swav.clone()).is_of_samples());
    let losses = [Loss::CausalLanguageModel, Loss::MaskedLanguageModel, swav];
    assert!(losses.iter().all(Loss::is_self_supervised));
    assert!([Loss::Classification, Loss::Regression].iter().all(|loss| !loss.is_self_supervised()));
}

#[test]
fn a_model_is_named_with_its_seed() {
    let model = Preset::Mlp { hidden: vec![12] }.model(7);
    assert_eq!(model.to_string(), format!("{}, seed 7", model.graph.name));
}
