//! Checks the Grafana dashboard and the alerts against the existing metrics: a query for a missing one fails
//! silently.

use std::collections::BTreeSet;
use std::path::Path;

use axum::body::{Body, to_bytes};
use axum::http::Request;
use barnraise_native::scheme::synchronous::metrics::Metrics;
use barnraise_native::storage::Storage;
use barnraise_native::storage::disk_space::DiskSpace;
use barnraise_protocol::api::RunStatus;
use barnraise_protocol::contribute::RunProgress;
use barnraise_protocol::gradient::ContributionRefusal;
use barnraise_relay::dht::{Dht, DhtConfig, DhtLimits};
use barnraise_relay::server::operator_routes_with;
use barnraise_relay::{Node, NodeConfig, RelayLimits, Routing};
use barnraise_swarm::PeerKey;
use barnraise_swarm::bandwidth::MeasuredBandwidth;
use barnraise_swarm::experts::leases::LeaseStanding;
use barnraise_swarm::robust::{ClipOutcome, ClipVerdict, PeerOutcome};
use libp2p::identity::Keypair;
use serde_json::Value;
use tokio::sync::watch;
use tower::ServiceExt;
use yaml_rust2::{Yaml, YamlLoader};

use crate::fixture;

fn dashboard() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/grafana/barnraise.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// Title and query of each panel.
fn queries(dashboard: &Value) -> Vec<(String, String)> {
    let mut queries = Vec::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        let title = panel["title"].as_str().unwrap();
        for target in panel["targets"].as_array().into_iter().flatten() {
            queries.push((title.to_owned(), target["expr"].as_str().unwrap().to_owned()));
        }
    }
    for variable in dashboard["templating"]["list"].as_array().unwrap() {
        queries.push(("a variable".into(), variable["query"]["query"].as_str().unwrap().to_owned()));
    }
    queries
}

/// The names of metrics in a query, without what is between braces.
fn names(query: &str) -> BTreeSet<String> {
    let outside = query.split('{').map(|part| part.split_once('}').map_or(part, |(_, outside)| outside));
    let outside: Vec<&str> = outside.collect();
    let words = outside.iter().flat_map(|part| part.split(|c: char| !c.is_ascii_alphanumeric() && c != '_'));
    words
        .filter(|word| word.starts_with("barnraise_") || word.starts_with("libp2p_"))
        .map(str::to_owned)
        .collect()
}

/// The metrics of a backbone, each counted once.
fn metrics() -> (Metrics, watch::Sender<RunStatus>) {
    let progress = RunProgress {
        epoch: 3,
        n_samples: 10,
        target_batch_size: 1024,
        n_contributors: 2,
        samples_per_second: 50.0,
        train_loss: Some(0.5),
        test_accuracy: Some(0.5),
    };
    let status = RunStatus {
        run: fixture::run(),
        n_parameters: 2,
        addresses: vec![],
        progress,
        history: vec![],
        devices: vec![],
        paused: None,
        majority_accuracy: None,
    };
    let (status, reader) = watch::channel(status);
    let storage = Storage::open_shared(&std::env::temp_dir()).unwrap();
    let room = DiskSpace::new(storage.clone(), storage, 1);
    let metrics = Metrics::new(reader, Some(room));
    let outcome = ClipOutcome { verdict: ClipVerdict::Unclipped, distance: 1.0 };
    metrics.on_aggregated(&[PeerOutcome { peer: PeerKey(vec![1]), outcome, is_shared: false }], 1);
    metrics.on_averaged("averaged");
    metrics.on_averaging_bytes(1, 1);
    metrics.on_groups(2);
    metrics.on_failure_rate(0.01);
    metrics.on_link_measured(MeasuredBandwidth { sent: Some(1), received: Some(1) });
    metrics.on_reduced("averaged");
    metrics.on_cut_off(1);
    metrics.on_followed("step");
    metrics.on_recomputed("same");
    metrics.of_run().on_shard(1);
    metrics.of_run().set_experts(LeaseStanding::default);
    metrics.on_accepted(1);
    metrics.on_refused(&ContributionRefusal::Busy);
    (metrics, status)
}

async fn node() -> Node {
    let config = NodeConfig {
        listen: vec!["/ip4/127.0.0.1/tcp/0".parse().unwrap()],
        relay_service: Some(RelayLimits::default()),
        routing: Some(Routing::Server),
        ..NodeConfig::default()
    };
    Node::start(Keypair::generate_ed25519(), config).await.unwrap()
}

/// Names of the samples at the operator's page of a backbone and relay that has dialled another one.
async fn scraped() -> BTreeSet<String> {
    let (here, other) = (node().await, node().await);
    let _dht = Dht::start(here.clone(), DhtConfig::from(&DhtLimits::default())).unwrap();
    // The dialling node has counted the connection once this returns.
    here.dial(other.addresses()[0].clone()).await.unwrap();
    let (metrics, _status) = metrics();
    let request = Request::get("/metrics").body(Body::empty()).unwrap();
    let answer = operator_routes_with(here.clone(), metrics.registry()).oneshot(request).await.unwrap();
    let text = to_bytes(answer.into_body(), 1 << 22).await.unwrap();
    let text = String::from_utf8(text.to_vec()).unwrap();
    other.shutdown().await;
    here.shutdown().await;
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    samples.map(|line| line.split(['{', ' ']).next().unwrap().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn panels_ask_for_what_there_is_and_all_of_ours_is_shown() {
    let (there, dashboard) = (scraped().await, dashboard());
    let mut shown = BTreeSet::new();
    for (title, query) in queries(&dashboard) {
        let names = names(&query);
        assert!(!names.is_empty(), "{title}: {query} asks for nothing");
        for name in names {
            assert!(there.contains(&name), "{title}: there is no {name} among {there:#?}");
            // Rates are of what only grows.
            let is_counter = ["_total", "_bucket"].iter().any(|end| name.ends_with(end));
            assert_eq!(query.contains("rate("), is_counter, "{title}: {query}");
            shown.insert(name);
        }
    }
    // Sums and counts of histograms come with their buckets.
    let of_histogram = |name: &str| {
        let stem = name.strip_suffix("_sum").or_else(|| name.strip_suffix("_count"));
        stem.is_some_and(|stem| there.contains(&format!("{stem}_bucket")))
    };
    let ours = there.iter().filter(|name| name.starts_with("barnraise_") && !of_histogram(name));
    let unlisted: Vec<&String> = ours.filter(|name| !shown.contains(*name)).collect();
    assert!(unlisted.is_empty(), "no panel of deploy/grafana/barnraise.json shows {unlisted:?}");
}

/// Names and expressions of the alarms.
fn alarms() -> Vec<(String, String)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/alerts.yml");
    let rules = YamlLoader::load_from_str(&std::fs::read_to_string(path).unwrap()).unwrap().remove(0);
    let groups = rules["groups"].as_vec().unwrap().iter();
    let rules = groups.flat_map(|group| group["rules"].as_vec().unwrap());
    let text = |rule: &Yaml, key: &str| rule[key].as_str().unwrap().to_owned();
    rules.map(|rule| (text(rule, "alert"), text(rule, "expr"))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn alarms_ask_for_what_there_is() {
    let (there, alarms) = (scraped().await, alarms());
    assert!(alarms.len() > 3, "{alarms:?}");
    for (alarm, expression) in alarms {
        let names = names(&expression);
        // Prometheus itself says whether a target answers.
        assert!(
            !names.is_empty() || expression.starts_with("up{job="),
            "{alarm}: {expression} asks for nothing"
        );
        for name in names {
            assert!(there.contains(&name), "{alarm}: there is no {name} among {there:#?}");
            let is_counter = name.ends_with("_total");
            let is_of_growth = expression.contains("rate(") || expression.contains("increase(");
            assert_eq!(is_of_growth, is_counter, "{alarm}: {expression}");
        }
    }
}

#[test]
fn each_panel_has_a_position_a_unit_and_a_description() {
    let dashboard = dashboard();
    let panels = dashboard["panels"].as_array().unwrap();
    let mut places = BTreeSet::new();
    let mut ids = BTreeSet::new();
    for panel in panels {
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{panel}");
        let place = &panel["gridPos"];
        assert!(places.insert((place["x"].as_u64().unwrap(), place["y"].as_u64().unwrap())), "{panel}");
        assert!(place["x"].as_u64().unwrap() + place["w"].as_u64().unwrap() <= 24, "{panel}");
        if panel["type"] != "row" {
            assert!(!panel["description"].as_str().unwrap().is_empty(), "{panel}");
            assert!(panel["fieldConfig"]["defaults"]["unit"].is_string(), "{panel}");
            assert_eq!(panel["datasource"]["uid"], "prometheus");
        }
    }
}

#[test]
fn names_are_found_in_queries() {
    let query =
        "60 * deriv(barnraise_epoch{instance=~\"barnraise_x\"}[5m]) + sum by (a) (libp2p_b_total{c=\"d\"})";
    assert_eq!(names(query).into_iter().collect::<Vec<_>>(), ["barnraise_epoch", "libp2p_b_total"]);
    assert_eq!(names("label_values(barnraise_a, instance)").len(), 1);
}
