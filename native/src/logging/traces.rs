//! Traces: a thread sends spans to a collector in batches. While the collector is down, spans are lost and nothing else is
//! affected.

use std::time::Duration;

use anyhow::Context as _;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing::Subscriber;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::FilterFn;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::config::TelemetrySection;

/// Path at a collector that takes traces (OTLP).
const TRACES_PATH: &str = "/v1/traces";
/// Timeout of a batch.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest wait for the last batch when the program ends.
const GOODBYE_MAX: Duration = Duration::from_secs(3);
/// Largest answer that is read.
const ANSWER_BYTES_MAX: u64 = 64 * 1024;

/// The exporter of traces, if there is a collector.
#[derive(Debug)]
#[must_use]
pub struct Traces(Option<SdkTracerProvider>);

impl Traces {
    /// Installs the global subscriber, with a layer for the collector.
    pub(super) fn start<S>(lines: S, telemetry: &TelemetrySection) -> anyhow::Result<Self>
    where
        S: Subscriber + for<'a> LookupSpan<'a> + Send + Sync,
    {
        let provider = telemetry.otlp.as_deref().map(provider).transpose()?;
        lines.with(provider.as_ref().map(span_layer)).init();
        if let Some(otlp) = &telemetry.otlp {
            let otlp = without_user(otlp);
            tracing::info!(otlp, "spans of rounds, steps and contributions are sent");
        }
        Ok(Self(provider))
    }

    /// Sends the remaining spans.
    pub fn finish(self) {
        if let Some(provider) = self.0
            && let Err(error) = provider.shutdown_with_timeout(GOODBYE_MAX)
        {
            tracing::warn!(%error, "the last traces could not be sent");
        }
    }
}

fn provider(otlp: &str) -> anyhow::Result<SdkTracerProvider> {
    let exporter = SpanExporter::builder()
        .with_http()
        .with_http_client(ExporterHttp::default())
        .with_protocol(Protocol::HttpBinary)
        .with_endpoint(format!("{}{TRACES_PATH}", otlp.trim_end_matches('/')))
        .with_timeout(EXPORT_TIMEOUT)
        .build()
        .with_context(|| format!("traces cannot be sent to {}", without_user(otlp)))?;
    let resource = Resource::builder().with_service_name("barnraise").build();
    Ok(SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build())
}

/// The address without user and password.
fn without_user(address: &str) -> &str {
    address.rsplit('@').next().unwrap_or_default()
}

/// A layer that exports our own spans, without those of libraries.
fn span_layer<S>(provider: &SdkTracerProvider) -> Box<dyn Layer<S> + Send + Sync>
where
    S: Subscriber + for<'a> LookupSpan<'a> + Send + Sync,
{
    let ours = FilterFn::new(|metadata| metadata.is_span() && metadata.target().starts_with("barnraise"));
    let ours = ours.with_max_level_hint(LevelFilter::DEBUG);
    tracing_opentelemetry::layer().with_tracer(provider.tracer("barnraise")).with_filter(ours).boxed()
}

/// HTTP client of the exporter. It blocks: only the exporter's own thread calls it.
#[derive(Debug)]
struct ExporterHttp(ureq::Agent);

impl Default for ExporterHttp {
    fn default() -> Self {
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(EXPORT_TIMEOUT))
            .user_agent(concat!("barnraise/", env!("CARGO_PKG_VERSION")));
        Self(config.build().into())
    }
}

#[async_trait::async_trait]
impl HttpClient for ExporterHttp {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let answer = self.0.run(request.map(|body| body.to_vec()))?;
        let (parts, body) = answer.into_parts();
        let body = body.into_with_config().limit(ANSWER_BYTES_MAX).read_to_vec()?;
        Ok(Response::from_parts(parts, body.into()))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use axum::Router;
    use axum::body::Bytes as Body;
    use axum::extract::State;
    use axum::http::HeaderMap;
    use axum::routing::post;
    use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
    use prost::Message as _;
    use tokio::net::TcpListener;
    use tokio::sync::mpsc;

    use super::*;

    type TraceBatch = (String, ExportTraceServiceRequest);

    async fn take(State(batches): State<mpsc::Sender<TraceBatch>>, headers: HeaderMap, body: Body) {
        let kind = headers["content-type"].to_str().unwrap().to_owned();
        batches.send((kind, ExportTraceServiceRequest::decode(body).unwrap())).await.unwrap();
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_collector_gets_our_spans_and_how_they_belong_together() {
        let (batches, mut taken) = mpsc::channel(4);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let otlp = format!("http://{}/", listener.local_addr().unwrap());
        let collector = Router::new().route(TRACES_PATH, post(take)).with_state(batches);
        tokio::spawn(axum::serve(listener, collector).into_future());

        let provider = provider(&otlp).unwrap();
        let subscriber = tracing_subscriber::registry().with(span_layer(&provider));
        tracing::subscriber::with_default(subscriber, || {
            let round = tracing::debug_span!("round", epoch = 3);
            let step = tracing::debug_span!(parent: &round, "step", epoch = 3, n_samples = 1024);
            step.in_scope(|| tracing::debug_span!(target: "a_library", "not ours").in_scope(|| ()));
        });
        // It waits for the collector, which is on another thread.
        tokio::task::spawn_blocking(move || Traces(Some(provider)).finish()).await.unwrap();

        let (kind, batch) = taken.recv().await.unwrap();
        assert_eq!(kind, "application/x-protobuf");
        let of_service = &batch.resource_spans[0];
        let names = &of_service.resource.as_ref().unwrap().attributes;
        let service = names.iter().find(|name| name.key == "service.name").unwrap();
        assert!(format!("{:?}", service.value).contains("barnraise"));
        let mut spans = of_service.scope_spans[0].spans.clone();
        spans.sort_by(|one, other| one.name.cmp(&other.name));
        let names: Vec<&str> = spans.iter().map(|span| span.name.as_str()).collect();
        assert_eq!(names, ["round", "step"]);
        assert_eq!((&spans[1].parent_span_id, &spans[1].trace_id), (&spans[0].span_id, &spans[0].trace_id));
        assert!(spans[1].attributes.iter().any(|attribute| attribute.key == "n_samples"));
    }

    #[test]
    fn no_password_of_a_collector_is_shown() {
        assert_eq!(without_user("http://me:hush@c.example:4318"), "c.example:4318");
        assert_eq!(without_user("http://127.0.0.1:4318"), "http://127.0.0.1:4318");
    }

    #[test]
    fn a_collector_that_is_away_stops_nobody() {
        // Nobody listens at a port that was just given back.
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let provider = provider(&format!("http://127.0.0.1:{port}")).unwrap();
        let subscriber = tracing_subscriber::registry().with(span_layer(&provider));
        tracing::subscriber::with_default(subscriber, || tracing::debug_span!("step").in_scope(|| ()));
        Traces(Some(provider)).finish();
    }
}
