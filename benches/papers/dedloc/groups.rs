//! Figure 8: the best size of groups for collaborations of different sizes and failure rates.

use std::path::Path;

use anyhow::Result;
use barnraise_planning::groups::size::{best_group_size, expected_iterations};

use crate::papers::plot::{AxisScale, Bars, Labels, bars};
use crate::ratio::{short, table};

const RATES: [f64; 8] = [0.0001, 0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.3];
const PEERS: [usize; 8] = [8, 16, 32, 64, 128, 256, 512, 1024];
/// For which all sizes are shown.
const MANY: usize = 256;
const SIZES: [usize; 6] = [2, 4, 7, 16, 64, 256];

/// Prints and draws the figure.
pub(super) fn run(folder: &Path) -> Result<()> {
    let percent = |rate: f64| format!("{} %", short_percent(rate));
    let heading = |first: &str| [&[first.to_owned()][..], &RATES.map(percent)].concat();
    let mut rows = vec![heading("Best m (iterations); peers")];
    let mut drawn: Vec<Bars> = RATES.iter().map(|&rate| (percent(rate), Vec::new())).collect();
    for n in PEERS {
        let mut row = vec![n.to_string()];
        for (rate, (_, sizes)) in RATES.into_iter().zip(&mut drawn) {
            let best = best_group_size(n, rate)?;
            row.push(format!("{} ({})", best.size, short(best.iterations)));
            sizes.push(best.size as f64);
        }
        rows.push(row);
    }
    println!("{}", table(&rows));
    let mut rows = vec![heading(&format!("Expected iterations of {MANY}; m"))];
    for size in SIZES {
        let mut row = vec![size.to_string()];
        for rate in RATES {
            let iterations = expected_iterations(MANY, size, rate)?;
            row.push(if iterations < 1e4 { short(iterations) } else { format!("{iterations:.0e}") });
        }
        rows.push(row);
    }
    println!("{}", table(&rows));
    let labels = Labels { title: "Figure 8: best size of groups, by failure rate", x: "peers", y: "m" };
    bars(&folder.join("figure8.svg"), labels, &PEERS.map(|n| n.to_string()), &drawn, AxisScale::Logarithmic)
}

/// Without zeros that mean nothing.
fn short_percent(rate: f64) -> f64 {
    (rate * 1e6).round() / 1e4
}
