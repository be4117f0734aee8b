//! What an evaluation says: a table for people, or JSON. Pure.

use std::fmt;

use serde_json::{Map, Value, json};

/// A number of a model, and of a baseline.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Metric {
    name: &'static str,
    model: f64,
    baseline: Option<f64>,
    /// Whether it is a share of all samples.
    is_share: bool,
}

impl Metric {
    pub(super) fn new(name: &'static str, model: f64, baseline: f64) -> Self {
        Self { name, model, baseline: Some(baseline), is_share: false }
    }

    /// From 0 to 1.
    pub(super) fn share(name: &'static str, model: f64, baseline: f64) -> Self {
        Self { is_share: true, ..Self::new(name, model, baseline) }
    }

    /// Without a baseline.
    pub(super) fn alone(name: &'static str, model: f64) -> Self {
        Self { name, model, baseline: None, is_share: false }
    }

    fn shown(&self, value: f64) -> String {
        match self.is_share {
            true => format!("{:.1} %", value * 100.0),
            false => format!("{value:.4}"),
        }
    }
}

/// How good a model is on some data.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct SuiteReport {
    /// Name of the data.
    pub(super) suite: String,
    pub(super) n_samples: usize,
    /// Name of the baseline.
    pub(super) baseline: &'static str,
    pub(super) metrics: Vec<Metric>,
}

impl fmt::Display for SuiteReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}, {} samples", self.suite, self.n_samples)?;
        writeln!(f, "{:24}{:>14}{:>18}", "", "model", self.baseline)?;
        for metric in &self.metrics {
            let baseline = metric.baseline.map(|value| metric.shown(value)).unwrap_or_default();
            writeln!(f, "{:24}{:>14}{:>18}", metric.name, metric.shown(metric.model), baseline)?;
        }
        Ok(())
    }
}

/// All reports of a model as one line.
pub(super) fn json(run: &str, epoch: u64, reports: &[SuiteReport]) -> String {
    let metric = |metric: &Metric| {
        let value = json!({ "model": metric.model, "baseline": metric.baseline });
        (metric.name.replace(' ', "_").replace('²', "_squared").to_lowercase(), value)
    };
    let suites = reports.iter().map(|report| {
        let metrics: Map<String, Value> = report.metrics.iter().map(metric).collect();
        json!({
            "suite": report.suite, "samples": report.n_samples, "baseline": report.baseline, "metrics": metrics,
        })
    });
    let all = json!({ "run": run, "epoch": epoch, "suites": suites.collect::<Vec<_>>() });
    format!("{all}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> SuiteReport {
        SuiteReport {
            suite: "more.txt".into(),
            n_samples: 12,
            baseline: "unigram model",
            metrics: vec![Metric::new("R²", 2.31, 5.402), Metric::share("accuracy", 0.412, 0.051)],
        }
    }

    #[test]
    fn a_table_has_the_model_beside_its_baseline() {
        let want = "more.txt, 12 samples\n                                 model     unigram model\nR²                    \
            2.3100            5.4020\naccuracy                        41.2 %             5.1 %\n";
        let lines = |text: &str| {
            text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>()
        };
        let got = report().to_string();
        assert_eq!(lines(&got), lines(want));
        let widths: Vec<usize> = got.lines().skip(1).map(|line| line.chars().count()).collect();
        assert_eq!(widths, [56; 3], "{got}");
    }

    #[test]
    fn json_has_the_same() {
        let got = json("rhymes", 300, &[report()]);
        let want = r#"{"epoch":300,"run":"rhymes","suites":[{"baseline":"unigram model","metrics":{"accuracy":{"baseline":0.051,"model":0.412},"r_squared":{"baseline":5.402,"model":2.31}},"samples":12,"suite":"more.txt"}]}"#;
        assert_eq!(serde_json::from_str::<Value>(&got).ok(), serde_json::from_str::<Value>(want).ok());
        assert!(got.ends_with("}\n") && got.lines().count() == 1);
    }
}
