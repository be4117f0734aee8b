#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod differences;
mod experts;
mod swav;
mod torch;

use std::sync::Arc;

use barnraise_protocol::run::model::Graph;
use futures::executor::block_on;

use super::{GraphBatch, GraphEngine};
use crate::conformance::deviation;
use crate::device::ComputeDevice;
use crate::engine::Arithmetic;
use crate::graph::{GraphData, ResolvedGraph};

fn engine(graph: &Graph, data: GraphData, seed: u64) -> GraphEngine {
    let resolved = ResolvedGraph::of(graph, data).unwrap_or_else(|error| panic!("{error}"));
    let flat = resolved.layout().initial_parameters(seed);
    GraphEngine::new(Arc::new(resolved), ComputeDevice::cpu().burn(), &flat, None)
}

/// Losses of a pass, whose gradient is summed.
fn pass_only(engine: &mut GraphEngine, batch: &GraphBatch) -> Vec<f32> {
    block_on(block_on(engine.step(batch.clone(), Arithmetic::Single))).unwrap()
}

/// Losses and gradient of a pass.
fn pass(engine: &mut GraphEngine, batch: &GraphBatch) -> (Vec<f32>, Vec<f32>) {
    let values = pass_only(engine, batch);
    (values, block_on(engine.take()).unwrap())
}

#[track_caller]
fn assert_near(what: &str, got: &[f32], want: &[f32], tolerance: f32) {
    let deviation = deviation(got, want);
    println!("{what}: {deviation:e} of {tolerance:e}");
    assert!(deviation <= tolerance, "{what}: {deviation:e}, at most {tolerance:e} is allowed");
}
