//! Table 1 for real: peers in network namespaces, whose links the kernel shapes, average by our own code.
//!
//! Each peer is a process with a node of its own. Links are slower and the vector is smaller than in the paper, so
//! that two cores can carry it: what is compared are ratios. Needs root, iproute2 and nftables.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use barnraise_simulation::NodeBandwidth;
use barnraise_tests::lan::Internet;
use clap::Args;

use super::round::Sharing;
use super::table1::{RESNET50_VALUES, Setup, compare, job, plan_of, setups};
use crate::averaging::{OurPeers, Swarm};

/// What a queue of the paper's links holds at their rates: a slower link's holds as many bytes, or connections by the
/// dozen would have room for a packet each.
const QUEUED: Duration = Duration::from_millis(100);
/// An average that is farther off is none.
const ERROR_MAX: f64 = 1e-4;

#[derive(Debug, Clone, Args)]
pub(super) struct ShapedArgs {
    /// Only these setups: A, B, C, D
    #[arg(long, value_delimiter = ',', default_value = "A,B,C,D")]
    setups: Vec<String>,
    /// So many times as slow as the paper's are the links
    #[arg(long, default_value_t = 10)]
    slower: u32,
    /// So many times as short as the paper's is the vector
    #[arg(long, default_value_t = 4)]
    shorter: u32,
    /// Measurements of each, of which the table has the median
    #[arg(long, default_value_t = 1)]
    rounds: usize,
}

/// Prints and draws the table.
pub(super) fn run(args: &ShapedArgs, folder: &Path) -> Result<()> {
    let n_values = RESNET50_VALUES / u64::from(args.shorter.max(1));
    let mut measured = Vec::new();
    for setup in setups() {
        if !args.setups.contains(&setup.letter()) {
            continue;
        }
        let rates: Vec<f64> = setup.rates.iter().map(|rate| rate * 1e9 / f64::from(args.slower)).collect();
        let n = rates.len() as u64;
        let equal: Vec<u64> = (0..n).map(|peer| n_values * (peer + 1) / n - n_values * peer / n).collect();
        let served = (0..rates.len()).map(|peer| if peer == setup.server { n_values } else { 0 }).collect();
        let links: Vec<NodeBandwidth> =
            rates.iter().map(|rate| NodeBandwidth::new(rate / 8.0, rate / 8.0)).collect();
        // As connections that know nothing of one another share links.
        let (plan, _) = plan_of(&links, job(n_values), Sharing::Equal)?;
        let planned = plan.roles.iter().map(|role| role.part.end - role.part.start).collect();
        let mut seconds = [0.0; 3];
        for (seconds, parts) in seconds.iter_mut().zip([equal, served, planned]) {
            *seconds = average(&setup, &rates, n_values, &parts, args)?;
            eprintln!("{}: {seconds:.2} s", setup.name);
        }
        measured.push((setup, seconds));
    }
    let title = "Table 1, on shaped links";
    compare(&measured, folder, "table1-shaped.svg", title)
}

/// Median seconds of a round among peers of these links, which average these parts.
fn average(setup: &Setup, rates: &[f64], n_values: u64, parts: &[u64], args: &ShapedArgs) -> Result<f64> {
    let mut internet = Internet::new()?;
    let mut commands = Vec::new();
    let mut hosts = Vec::new();
    for last in 1..=rates.len() {
        let host = internet.public_host(u8::try_from(last)?)?;
        let [program, prefix @ ..] = host.prefix();
        let mut command = Command::new(program);
        command.args(prefix).arg(std::env::current_exe()?);
        command.args([
            "averaging-peer",
            &n_values.to_string(),
            "f32",
            "--patient",
            "--listen",
            &host.address,
        ]);
        commands.push(command);
        hosts.push(host);
    }
    let mut peers = OurPeers::introduce(commands, parts).context(setup.name)?;
    // Only then, so that introductions take no minutes.
    for (host, rate) in hosts.iter().zip(rates) {
        internet.shape(host, *rate as u64, QUEUED * args.slower)?;
    }
    let mut seconds = Vec::new();
    for _ in 0..args.rounds.max(1) {
        let round = peers.round()?;
        ensure!(round.error < ERROR_MAX, "{}: the average is off by {}", setup.name, round.error);
        seconds.push(round.seconds);
    }
    Ok(crate::ratio::Spread::of(&seconds).median)
}
