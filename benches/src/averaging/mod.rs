//! `averaging`: a vector averaged by a group of peers on this machine, beside hivemind's.
//!
//! Every peer is a process, ours and theirs, and all parts are equal. The clock runs from the word that begins a
//! round, to peers that are connected and know their group, until the last of them has the average. Who is slower
//! is run on the same machine right after the other, over and over. Memory is that of all processes of a swarm
//! while it averages, shared pages divided among those who share them, for each peer.

mod memory;
mod ours;
mod theirs;

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, ensure};
use barnraise_protocol::TensorCodec;
use clap::{Args, ValueEnum};
use serde::Deserialize;
use serde::de::DeserializeOwned;

pub(crate) use self::ours::{OurPeers, PeerArgs, peer};
use crate::ratio::{Spread, short, table};

/// How values travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Codec {
    F32,
    F16,
    Int8,
}

impl Codec {
    fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Int8 => "int8",
        }
    }

    fn ours(self) -> TensorCodec {
        match self {
            Self::F32 => TensorCodec::F32,
            Self::F16 => TensorCodec::F16,
            Self::Int8 => TensorCodec::Int8,
        }
    }
}

#[derive(Debug, Clone, Args)]
pub(crate) struct AveragingArgs {
    /// Peers of a group; each number is a swarm of its own
    #[arg(long, value_delimiter = ',', default_value = "4,8,16")]
    peers: Vec<usize>,
    /// Millions of values
    #[arg(long, value_delimiter = ',', default_value = "1,10,25")]
    millions: Vec<usize>,
    /// How values travel
    #[arg(long, value_delimiter = ',', default_value = "f32,f16,int8")]
    codecs: Vec<Codec>,
    /// Measurements of each
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Only ours
    #[arg(long)]
    alone: bool,
}

/// Task of one swarm.
#[derive(Debug, Clone, Copy)]
struct AveragingTask {
    n_peers: usize,
    n_values: usize,
    codec: Codec,
}

/// Result of one round.
#[derive(Debug, Deserialize)]
pub(crate) struct RoundResult {
    pub(crate) seconds: f64,
    /// Greatest distance of a value from the mean that it ought to be.
    pub(crate) error: f64,
    /// Peers with an average.
    n_averaged: usize,
}

/// Measurements of a swarm.
#[derive(Debug, Default)]
struct AveragingMeasurement {
    seconds: Vec<f64>,
    error: f64,
    /// Bytes for each peer.
    memory: f64,
}

/// A swarm that does a round when it is told to.
pub(crate) trait Swarm {
    fn round(&mut self) -> Result<RoundResult>;
    /// The processes whose descendants, themselves included, are the swarm.
    fn processes(&self) -> Vec<u32>;
}

/// Runs both in turn for each task, and prints how much faster ours is.
pub(crate) fn compare(args: &AveragingArgs) -> Result<()> {
    let heading = [
        "peers",
        "values, M",
        "codec",
        "ours, s",
        "hivemind, s",
        "times as fast",
        "ours, MB a peer",
        "hivemind, MB a peer",
        "memory",
        "error, ours",
        "hivemind",
    ];
    let mut rows = vec![heading.map(String::from).to_vec()];
    for &n_peers in &args.peers {
        for &millions in &args.millions {
            for &codec in &args.codecs {
                let task = AveragingTask { n_peers, n_values: millions * 1_000_000, codec };
                let ours = measure(&mut ours::OurPeers::start(task)?, task, args.rounds)?;
                let theirs = match args.alone {
                    true => None,
                    false => Some(measure(&mut theirs::HivemindPeers::start(task)?, task, args.rounds)?),
                };
                rows.push(row(task, &ours, theirs.as_ref()));
                eprintln!("{}", rows.last().map(|row| row.join("  ")).unwrap_or_default());
            }
        }
    }
    println!("{}", table(&rows));
    Ok(())
}

fn measure(swarm: &mut dyn Swarm, task: AveragingTask, n_rounds: usize) -> Result<AveragingMeasurement> {
    let mut measured = AveragingMeasurement::default();
    // The first one warms up, and its memory is measured, which takes time.
    for round in 0..=n_rounds {
        let sampler = (round == 0).then(|| memory::Sampler::start(swarm.processes()));
        let outcome = swarm.round()?;
        ensure!(outcome.n_averaged == task.n_peers, "{} peers have an average", outcome.n_averaged);
        match sampler {
            Some(sampler) => measured.memory = sampler.finish() / task.n_peers as f64,
            None => measured.seconds.push(outcome.seconds),
        }
        measured.error = measured.error.max(outcome.error);
    }
    Ok(measured)
}

fn row(
    task: AveragingTask,
    ours: &AveragingMeasurement,
    theirs: Option<&AveragingMeasurement>,
) -> Vec<String> {
    let median = |measured: &AveragingMeasurement| Spread::of(&measured.seconds).median;
    let of_theirs = |show: &dyn Fn(&AveragingMeasurement) -> String| theirs.map(show).unwrap_or_default();
    let megabytes = |bytes: f64| format!("{:.0}", bytes / 1e6);
    vec![
        task.n_peers.to_string(),
        (task.n_values / 1_000_000).to_string(),
        task.codec.name().to_owned(),
        Spread::of(&ours.seconds).to_string(),
        of_theirs(&|theirs| Spread::of(&theirs.seconds).to_string()),
        of_theirs(&|theirs| short(median(theirs) / median(ours))),
        megabytes(ours.memory),
        of_theirs(&|theirs| megabytes(theirs.memory)),
        of_theirs(&|theirs| format!("{:.0} %", 100.0 * ours.memory / theirs.memory)),
        format!("{:.1e}", ours.error),
        of_theirs(&|theirs| format!("{:.1e}", theirs.error)),
    ]
}

/// A process that answers each line of input with a line of JSON.
pub(crate) struct JsonProcess {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl JsonProcess {
    pub(crate) fn start(command: &mut Command) -> Result<Self> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let input = child.stdin.take().context("no standard input")?;
        let output = child.stdout.take().context("no standard output")?;
        Ok(Self { child, input, output: BufReader::new(output).lines() })
    }

    fn tell(&mut self, line: &str) -> Result<()> {
        writeln!(self.input, "{line}")?;
        Ok(self.input.flush()?)
    }

    pub(crate) fn answer<T: DeserializeOwned>(&mut self) -> Result<T> {
        loop {
            let line = self.output.next().context("a peer's process ended")??;
            if line.starts_with('{') {
                return Ok(serde_json::from_str(&line)?);
            }
        }
    }
}

impl Drop for JsonProcess {
    fn drop(&mut self) {
        for process in memory::descendants(&[self.child.id()]).into_iter().rev() {
            let _ = Command::new("kill").args(["-KILL", &process.to_string()]).stderr(Stdio::null()).status();
        }
        let _ = self.child.wait();
    }
}
