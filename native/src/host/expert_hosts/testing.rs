//! A model with hosted experts, for tests.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use barnraise_learning::DataShape;
use barnraise_learning::hosted::HostedLayer;
use barnraise_protocol::dataset::ImageShape;
use barnraise_protocol::run::ModelSpec;

use crate::config::RunConfig;

const MODEL: &str = r#"
[run]
id = "barn"

[model.kind.graph]
name = "experts"
loss = "classification"
parts = [{ name = "expert", blocks = [{ name = "only", op = { dense = { units = 4 } } }] }]
blocks = [
    { name = "flat", op = "flatten" },
    { name = "first", op = { dense = { units = 4 } } },
    { name = "moe", op = { experts = { part = "expert", side = 8, active = 2 } } },
    { name = "fc", op = { dense = { units = "classes" } } },
]

[model.experts]
"#;

pub(crate) fn model() -> ModelSpec {
    RunConfig::parse(MODEL, Path::new("run.toml")).unwrap().model_spec()
}

/// One layer of it, whose experts have 20 parameters.
pub(crate) fn layers() -> Vec<HostedLayer> {
    let shape = ImageShape { height: 28, width: 28, channels: 1 };
    HostedLayer::of_model(&model(), DataShape::Images { shape, n_classes: 10 }).unwrap()
}
