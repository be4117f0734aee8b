//! `[telemetry]`: the collector of traces.

use serde::{Deserialize, Serialize};

use super::Invalid;

/// `[telemetry]`
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TelemetrySection {
    /// Address of a collector that takes OpenTelemetry's traces by HTTP (OTLP, protobuf), without a path. Not set: no
    /// traces.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub otlp: Option<String>,
}

impl TelemetrySection {
    pub(super) fn validate(&self) -> Result<(), Invalid> {
        let Some(address) = &self.otlp else { return Ok(()) };
        let uri: Result<axum::http::Uri, _> = address.parse();
        let is_good = uri.is_ok_and(|uri| {
            let is_web = matches!(uri.scheme_str(), Some("http" | "https"));
            let is_bare = matches!(uri.path(), "" | "/") && uri.query().is_none();
            is_web && is_bare && uri.host().is_some_and(|host| !host.is_empty())
        });
        let want = "http:// or https:// with a host, and no path, as in \"http://127.0.0.1:4318\"";
        // The error shows neither user and password nor the query, which may be a key.
        let got = address.rsplit('@').next().unwrap_or_default();
        let got = got.split('?').next().unwrap_or_default();
        Invalid::check("telemetry.otlp", is_good, want, format!("{got:?}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collector_is_an_address_without_a_path() {
        let of = |address: &str| TelemetrySection { otlp: Some(address.into()) }.validate();
        assert_eq!(TelemetrySection::default().validate(), Ok(()));
        for good in ["http://127.0.0.1:4318", "https://collector.example/"] {
            assert_eq!(of(good), Ok(()));
        }
        for bad in
            ["", "collector:4318", "grpc://c:4317", "http://c:4318/v1/traces", "http://c:4318/?key=hush"]
        {
            assert!(of(bad).is_err_and(|error| !error.to_string().contains("hush")), "{bad}");
        }
    }
}
