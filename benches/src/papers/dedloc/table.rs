//! Tables and charts in Markdown, as RESULTS.md has them.

/// Prints a table; the first column is text, the others are numbers.
pub(crate) fn print_table(header: &[&str], rows: &[Vec<String>]) {
    println!("| {} |", header.join(" | "));
    println!("|---|{}", "---:|".repeat(header.len() - 1));
    rows.iter().for_each(|row| println!("| {} |", row.join(" | ")));
}

/// Prints a bar chart that GitHub and others draw (mermaid).
pub(crate) fn chart(title: &str, axis: &str, names: &[String], series: &[Vec<f64>]) {
    let names: Vec<String> = names.iter().map(|name| format!("{name:?}")).collect();
    println!("\n```mermaid\nxychart-beta\n    title \"{title}\"\n    x-axis [{}]", names.join(", "));
    println!("    y-axis \"{axis}\"");
    for values in series {
        let values: Vec<String> = values.iter().map(|value| format!("{value:.2}")).collect();
        println!("    bar [{}]", values.join(", "));
    }
    println!("```");
}
