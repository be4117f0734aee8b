//! A lenient parser of the OpenMetrics text format, for the operator's `/metrics`.

use std::collections::BTreeMap;

/// Most samples that are read; a backbone has some hundreds.
const SAMPLES_MAX: usize = 20_000;

/// Labels of a sample: names and values.
type Labels = Vec<(String, String)>;

/// Values by name and labels.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Metrics(BTreeMap<String, Vec<(Labels, f64)>>);

impl Metrics {
    /// Parses a text; malformed lines are skipped.
    pub(super) fn parse(text: &str) -> Self {
        let mut metrics = Self::default();
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        for (name, labels, value) in lines.filter_map(sample).take(SAMPLES_MAX) {
            metrics.0.entry(name.to_owned()).or_default().push((labels, value));
        }
        metrics
    }

    /// Sum over all labels; `None` where there is no such metric.
    pub(super) fn sum(&self, name: &str) -> Option<f64> {
        self.0.get(name).map(|samples| samples.iter().map(|(_, value)| value).sum())
    }

    /// Sum over all samples with that label; 0 where there is none.
    pub(super) fn sum_where(&self, name: &str, label: &str, wanted: &str) -> f64 {
        self.by(name, label).get(wanted).copied().unwrap_or(0.0)
    }

    /// Sums by the values of one label.
    pub(super) fn by(&self, name: &str, label: &str) -> BTreeMap<String, f64> {
        let mut sums: BTreeMap<String, f64> = BTreeMap::new();
        for (labels, value) in self.0.get(name).into_iter().flatten() {
            if let Some((_, of)) = labels.iter().find(|(name, _)| name == label) {
                *sums.entry(of.clone()).or_default() += value;
            }
        }
        sums
    }
}

type Sample<'a> = (&'a str, Labels, f64);

fn sample(line: &str) -> Option<Sample<'_>> {
    let (name, rest) = line.split_at(line.find(['{', ' '])?);
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(labelled) => labels(labelled)?,
        None => (Vec::new(), rest),
    };
    let value = rest.split_whitespace().next()?.parse::<f64>().ok().filter(|value| value.is_finite())?;
    Some((name, labels, value))
}

/// Parses `a="b",c="d"}`; returns the labels and the rest.
fn labels(mut text: &str) -> Option<(Labels, &str)> {
    let mut labels = Vec::new();
    loop {
        if let Some(rest) = text.strip_prefix('}') {
            return Some((labels, rest));
        }
        let (name, rest) = text.split_once("=\"")?;
        let mut value = String::new();
        let mut characters = rest.char_indices();
        let end = loop {
            match characters.next()? {
                (at, '"') => break at,
                (_, '\\') => match characters.next()?.1 {
                    'n' => value.push('\n'),
                    other => value.push(other),
                },
                (_, other) => value.push(other),
            }
        };
        labels.push((name.trim_start_matches(',').to_owned(), value));
        text = rest.get(end + 1..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_labels_and_values_are_read() {
        let metrics = Metrics::parse(
            "# HELP a Of things.\n# TYPE a counter\na_total{reason=\"x\"} 3\na_total{reason=\"y\",of=\"a \\\"b\\\" } c\"} 4 1.5\n\
             plain 0.25\nplain_other -1e3\nnonsense\nbroken{a=\"b\" 1\nnan NaN\n# EOF\n",
        );
        assert_eq!(metrics.sum("a_total"), Some(7.0));
        assert_eq!(metrics.sum_where("a_total", "reason", "y"), 4.0);
        assert_eq!(metrics.sum_where("a_total", "reason", "z"), 0.0);
        assert_eq!(metrics.by("a_total", "of").keys().collect::<Vec<_>>(), ["a \"b\" } c"]);
        assert_eq!((metrics.sum("plain"), metrics.sum("plain_other")), (Some(0.25), Some(-1000.0)));
        assert_eq!((metrics.sum("nan"), metrics.sum("broken"), metrics.sum("a")), (None, None, None));
    }
}
