//! Tables of text for a terminal. Pure.

use std::fmt::Write;

/// Aligns rows in columns: each as wide as its widest cell, numbers aligned right.
pub(crate) fn columns(heads: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.chain(heads.get(column).map(|head| head.len())).max().unwrap_or_default()
    };
    let heads = heads.iter().map(|&head| head.to_owned()).collect();
    let mut text = String::new();
    for row in std::iter::once(&heads).chain(rows) {
        let cells = row.iter().enumerate().map(|(column, cell)| {
            let is_number = cell.parse::<f64>().is_ok();
            let width = width(column);
            if is_number { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
        });
        let line: Vec<String> = cells.collect();
        let _ = writeln!(text, "{}", line.join("  ").trim_end());
    }
    text
}
