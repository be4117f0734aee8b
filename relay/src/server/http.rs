//! HTTP routes for the operator and monitoring. Every route is a `GET` and changes nothing.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use libp2p::metrics::Registry;
use prometheus_client::encoding::text::encode_registry;
use serde::Serialize;

use crate::node::{Node, Reachability};

/// Of OpenMetrics, which Prometheus reads.
const METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// `/healthz`, `/readyz`, `/metrics` and `/addresses` of a node.
pub fn operator_routes(node: Node) -> Router {
    operator_routes_with(node, Arc::default())
}

/// Likewise, with what else is counted behind the metrics of the node.
pub fn operator_routes_with(node: Node, registry: Arc<Registry>) -> Router {
    Router::new()
        .route("/healthz", get(health))
        .route("/readyz", get(ready))
        .route("/addresses", get(addresses))
        .with_state(node.clone())
        .merge(Router::new().route("/metrics", get(metrics)).with_state((node, registry)))
}

#[derive(Serialize)]
struct Health {
    status: &'static str,
    peer_id: String,
    connections: usize,
    reachability: &'static str,
}

#[derive(Serialize)]
struct AddressesBody {
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

/// Ready once the node listens on an address.
async fn ready(State(node): State<Node>) -> Response {
    let reason = match node.connected_peers().await {
        Err(_) => "the node has stopped\n",
        Ok(_) if node.addresses().is_empty() => "no address is listened at\n",
        Ok(_) => return no_store("ready\n"),
    };
    (StatusCode::SERVICE_UNAVAILABLE, no_store(reason)).into_response()
}

async fn metrics(State((node, registry)): State<(Node, Arc<Registry>)>) -> Response {
    let mut text = node.metrics();
    // Writing into a string does not fail.
    let _ = encode_registry(&mut text, &registry);
    ([(header::CONTENT_TYPE, METRICS_TYPE)], text + "# EOF\n").into_response()
}

async fn addresses(State(node): State<Node>) -> Response {
    let addresses = node.addresses().iter().map(ToString::to_string).collect();
    no_store(Json(AddressesBody { peer_id: node.peer_id().to_string(), addresses }))
}

fn no_store(body: impl IntoResponse) -> Response {
    ([(header::CACHE_CONTROL, "no-store")], body).into_response()
}
