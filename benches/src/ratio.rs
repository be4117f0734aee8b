//! Contenders side by side: spreads and ratios of what was measured in turn. Pure arithmetic.

use std::fmt;

/// Smallest, middle and largest of some measurements.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Spread {
    pub(crate) min: f64,
    pub(crate) median: f64,
    pub(crate) max: f64,
}

impl Spread {
    /// NaN without any.
    pub(crate) fn of(values: &[f64]) -> Self {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |index: usize| sorted.get(index).copied().unwrap_or(f64::NAN);
        let middle = sorted.len() / 2;
        let median = match sorted.len() % 2 {
            0 if !sorted.is_empty() => (at(middle - 1) + at(middle)) / 2.0,
            _ => at(middle),
        };
        Self { min: at(0), median, max: at(sorted.len().saturating_sub(1)) }
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} [{} to {}]", short(self.median), short(self.min), short(self.max))
    }
}

/// Mean, and standard deviation of what they are drawn from: 0 of one value.
pub(crate) fn mean_and_deviation(values: &[f64]) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n.max(1.0);
    let squares = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>();
    (mean, (squares / (n - 1.0).max(1.0)).sqrt())
}

/// Three digits that count.
pub(crate) fn short(value: f64) -> String {
    let digits = match value.abs() {
        size if size >= 100.0 => 0,
        size if size >= 10.0 => 1,
        _ => 2,
    };
    format!("{value:.digits$}")
}

/// How often the first fits into the second, for each round.
pub(crate) fn ratios(first: &[f64], second: &[f64]) -> Spread {
    let pairs = first.iter().zip(second);
    Spread::of(&pairs.map(|(first, second)| second / first).collect::<Vec<_>>())
}

/// A Markdown table, its columns aligned.
pub(crate) fn table(rows: &[Vec<String>]) -> String {
    let n_columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..n_columns).map(width).collect();
    let mut text = String::new();
    for (index, row) in rows.iter().enumerate() {
        for (column, width) in widths.iter().enumerate() {
            let cell = row.get(column).map_or("", String::as_str);
            text.push_str(&format!("| {cell:width$} "));
        }
        text.push_str("|\n");
        if index == 0 {
            text.extend(widths.iter().map(|width| format!("|{}", "-".repeat(width + 2))));
            text.push_str("|\n");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_has_a_middle() {
        assert_eq!(Spread::of(&[3.0, 1.0, 2.0]), Spread { min: 1.0, median: 2.0, max: 3.0 });
        assert_eq!(Spread::of(&[4.0, 1.0, 2.0, 3.0]).median, 2.5);
        assert!(Spread::of(&[]).median.is_nan());
        assert_eq!(Spread::of(&[0.5, 12.34, 567.8]).to_string(), "12.3 [0.50 to 568]");
    }

    #[test]
    fn ratios_are_taken_within_a_round() {
        assert_eq!(ratios(&[1.0, 2.0], &[5.0, 8.0]), Spread { min: 4.0, median: 4.5, max: 5.0 });
    }

    #[test]
    fn a_table_is_aligned() {
        let rows = [vec!["a".to_owned(), "long".to_owned()], vec!["wide".to_owned(), "b".to_owned()]];
        assert_eq!(table(&rows), "| a    | long |\n|------|------|\n| wide | b    |\n");
    }
}
