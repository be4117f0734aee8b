//! What an operator and his monitoring ask over HTTP. Every route is a `GET` and changes nothing.

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde::Serialize;

use crate::node::{Node, Reachability};

/// Of OpenMetrics, which Prometheus reads.
const METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// `/healthz`, `/metrics` and `/addresses` of a node.
pub fn operator_routes(node: Node) -> Router {
    Router::new()
        .route("/healthz", get(health))
        .route("/metrics", get(metrics))
        .route("/addresses", get(addresses))
        .with_state(node)
}

#[derive(Serialize)]
struct Health {
    status: &'static str,
    peer_id: String,
    connections: usize,
    reachability: &'static str,
}

#[derive(Serialize)]
struct Addresses {
    peer_id: String,
    /// With certificate hashes; they change: ask again, don't keep.
    addresses: Vec<String>,
}

async fn health(State(node): State<Node>) -> Response {
    let Ok(peers) = node.connected_peers().await else {
        return (StatusCode::SERVICE_UNAVAILABLE, "the node has stopped\n").into_response();
    };
    let reachability = match node.reachability() {
        Reachability::Unknown => "unknown",
        Reachability::Public => "public",
        Reachability::Private => "private",
    };
    let peer_id = node.peer_id().to_string();
    no_store(Json(Health { status: "ok", peer_id, connections: peers.len(), reachability }))
}

async fn metrics(State(node): State<Node>) -> Response {
    ([(header::CONTENT_TYPE, METRICS_TYPE)], node.metrics() + "# EOF\n").into_response()
}

async fn addresses(State(node): State<Node>) -> Response {
    let addresses = node.addresses().iter().map(ToString::to_string).collect();
    no_store(Json(Addresses { peer_id: node.peer_id().to_string(), addresses }))
}

fn no_store(body: impl IntoResponse) -> Response {
    ([(header::CACHE_CONTROL, "no-store")], body).into_response()
}
