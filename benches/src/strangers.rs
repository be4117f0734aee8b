//! `strangers`: what one machine with many keys costs an open run as it is shipped: each attack, with few keys and with
//! many, in windows that alternate with baseline windows.
//!
//! The contributors are three tabs and two native peers that compute for a small share of the time, on processors that are
//! not the backbone's; the attacker uses the backbone's while the backbone is idle.

use std::time::Duration;

use anyhow::Result;
use barnraise_tests::attack::Attack;
use barnraise_tests::open_run::{MeasurementWindow, OpenRun, RUN, baseline_accuracy};
use clap::Args;

use crate::ratio::{Spread, short, table};

#[derive(Debug, Args)]
pub(crate) struct StrangerArgs {
    /// Keys of the machine
    #[arg(long, value_delimiter = ',', default_value = "1,64,1000")]
    keys: Vec<usize>,
    /// Only attacks whose name has this in it
    #[arg(long, default_value = "")]
    only: String,
    /// Windows under each attack
    #[arg(long, default_value_t = 2)]
    turns: usize,
    /// Seconds of a window
    #[arg(long, default_value_t = 30)]
    seconds: u64,
    /// Percent of the time for which each contributor computes
    #[arg(long, default_value_t = 5)]
    percent: u8,
    /// No comparison of accuracies, which trains as many steps again without the attacker
    #[arg(long)]
    no_accuracy: bool,
}

/// `strangers`
pub(crate) async fn compare(args: &StrangerArgs) -> Result<()> {
    for &n_keys in &args.keys {
        with_keys(args, n_keys).await?;
    }
    Ok(())
}

async fn with_keys(args: &StrangerArgs, n_keys: usize) -> Result<()> {
    let length = Duration::from_secs(args.seconds);
    let mut open_run = OpenRun::start(RUN, args.percent).await?;
    let heading = [
        "",
        "samples/s, baseline",
        "samples/s under attack",
        "ratio",
        "acts",
        "RSS at most, MiB, baseline",
        "under attack",
        "folder, KiB a step, baseline",
        "under attack",
        "honest samples of it",
        "credit",
    ];
    let mut rows = vec![heading.map(String::from).to_vec()];
    let mut baseline = vec![open_run.measure_baseline(length).await?];
    for attack in Attack::ALL.into_iter().filter(|attack| attack.to_string().contains(&args.only)) {
        let (mut attacked, mut sums) = (Vec::new(), [0; 3]);
        for _ in 0..args.turns {
            let (window, machine) = open_run.measure_attack(attack, n_keys, length).await?;
            let counts = open_run.recover(machine).await;
            attacked.push(window);
            baseline.push(open_run.measure_baseline(length).await?);
            let of_it = [counts.n_acts, counts.n_worked, counts.n_credited];
            sums.iter_mut().zip(of_it).for_each(|(sum, of_it)| *sum += of_it);
        }
        let around = &baseline[baseline.len() - args.turns - 1..];
        let row = row(attack, (around, &attacked), &open_run.speeds().ratios(attack as usize), sums);
        println!("{n_keys} keys: {}", row.join(" | "));
        rows.push(row);
    }
    println!("\n{n_keys} keys, median [min to max] of {} windows of {} s", args.turns, args.seconds);
    println!("baseline windows differ by {:.1} %\n", 100.0 * open_run.speeds().noise());
    println!("{}", table(&rows));
    let (accuracy, epoch) = open_run.leave().await?;
    print!("accuracy after {epoch} steps, all attacks in turn: {:.2} %", 100.0 * accuracy);
    if !args.no_accuracy {
        let baseline = baseline_accuracy(RUN, epoch).await?;
        print!("; without the attacker: {:.2} %", 100.0 * baseline);
    }
    println!();
    Ok(())
}

fn row(
    attack: Attack,
    (baseline, attacked): (&[MeasurementWindow], &[MeasurementWindow]),
    ratios: &[f64],
    [n_acts, n_worked, n_credited]: [u64; 3],
) -> Vec<String> {
    let spread = |windows: &[MeasurementWindow], of: fn(&MeasurementWindow) -> f64| {
        Spread::of(&windows.iter().map(of).collect::<Vec<_>>()).to_string()
    };
    let rss = |windows: &[MeasurementWindow]| {
        let most = windows.iter().map(|window| window.rss_max_kib).max().unwrap_or_default();
        short(most as f64 / 1024.0)
    };
    let grown = |windows: &[MeasurementWindow]| {
        let n_steps: u64 = windows.iter().map(|window| window.n_steps).sum();
        let n_bytes: i64 = windows.iter().map(|window| window.grown_bytes).sum();
        short(n_bytes as f64 / 1024.0 / n_steps.max(1) as f64)
    };
    vec![
        attack.to_string(),
        spread(baseline, |window| window.speed),
        spread(attacked, |window| window.speed),
        Spread::of(ratios).to_string(),
        n_acts.to_string(),
        rss(baseline),
        rss(attacked),
        grown(baseline),
        grown(attacked),
        n_worked.to_string(),
        n_credited.to_string(),
    ]
}
