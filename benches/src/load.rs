//! `load` and `soak`: what sessions of tabs cost a relay, and whether it gives back what they took.
//!
//! The relay is a process of its own, `barnraise relay`; everything else, the tabs and the node behind the
//! relay, is this process, on the same processors. How much of them each took is printed.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use barnraise_tests::load::{ProcessUsage, RelayedTarget, SessionPool, TransportKind, relay_toml};
use barnraise_tests::process::{RelayProcess, TestRun, metric};
use clap::Args;

use crate::ratio::{Spread, short, table};

/// After the last circuit: connections are closed, and the relay gives back what they held.
const LEAVING: Duration = Duration::from_secs(5);
/// Longer than anything that is waited for takes.
const HANG: Duration = Duration::from_secs(300);
/// What one that moves something moves.
const MOVING_BYTES_PER_SECOND: u64 = 1024 * 1024;

#[derive(Debug, Args)]
pub(crate) struct LoadArgs {
    /// Sessions, half of them on WebTransport and half on WebSocket
    #[arg(long, default_value_t = 2000)]
    sessions: usize,
    /// Share of them that move 1 MiB/s each
    #[arg(long, default_value_t = 0.01)]
    moving: f64,
    /// Seconds that they do
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Milliseconds between two messages to each session, as a backbone sends its progress
    #[arg(long, default_value_t = 500)]
    heartbeat_ms: u64,
}

#[derive(Debug, Args)]
pub(crate) struct SoakArgs {
    /// How long
    #[arg(long, default_value_t = 10.0)]
    minutes: f64,
    /// Sessions that stay; a quarter as many come, move 1 MiB/s and leave, over and over
    #[arg(long, default_value_t = 100)]
    sessions: usize,
    /// Seconds between two looks at the memory
    #[arg(long, default_value_t = 10)]
    every: u64,
}

/// A relay, a node behind it, and when it began.
struct RelayUnderLoad {
    _test_run: TestRun,
    relay: RelayProcess,
    target: RelayedTarget,
}

impl RelayUnderLoad {
    async fn set(n_sessions: usize, heartbeat: Duration) -> Result<Self> {
        barnraise_relay::install_crypto_provider();
        let mut test_run = TestRun::new("")?;
        let n_sessions = u32::try_from(n_sessions)?;
        let relay = test_run.relay_here(&relay_toml(n_sessions)).await?;
        let target = RelayedTarget::start(relay.tcp()?.clone(), n_sessions, heartbeat).await?;
        Ok(Self { _test_run: test_run, relay, target })
    }

    async fn gather(&self, transport: TransportKind, n_sessions: usize) -> Result<SessionPool> {
        SessionPool::gather(transport, n_sessions, self.relay.addresses(), self.target.circuit()).await
    }

    fn usage(&self) -> Result<ProcessUsage> {
        ProcessUsage::of(self.relay.pid()?)
    }

    async fn metric(&self, name: &str) -> Result<f64> {
        metric(&self.relay.metrics().await?, name)
    }

    /// Waits until nobody is left, and what belonged to the last ones is freed.
    async fn until_left(&self) -> Result<()> {
        self.until_carried(0).await?;
        tokio::time::sleep(LEAVING).await;
        Ok(())
    }

    /// Waits until at most so many circuits are carried.
    async fn until_carried(&self, n_circuits: usize) -> Result<()> {
        let empty = async {
            while self.metric("barnraise_relay_circuits").await? > n_circuits as f64 {
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
            anyhow::Ok(())
        };
        tokio::time::timeout(HANG, empty).await.context("circuits of those who left are still carried")?
    }
}

/// `load`.
pub(crate) async fn load(args: &LoadArgs) -> Result<()> {
    let under_load = RelayUnderLoad::set(args.sessions, Duration::from_millis(args.heartbeat_ms)).await?;
    let mut log = Log::begin(&under_load)?;
    let half = args.sessions / 2;
    let webtransport = under_load.gather(TransportKind::WebTransport, half).await?;
    log.look(&under_load, &format!("{half} more by WebTransport"), half)?;
    let websocket = under_load.gather(TransportKind::WebSocket, args.sessions - half).await?;
    log.look(&under_load, &format!("{} more by WebSocket", args.sessions - half), args.sessions - half)?;
    let pool = webtransport.joined_by(websocket);
    let n_moving = ((args.sessions as f64 * args.moving).round() as usize).max(1);
    let (heard, from) = (pool.heartbeats(), Instant::now());
    let moved = pool.pull(n_moving, MOVING_BYTES_PER_SECOND, Duration::from_secs(args.seconds)).await?;
    let seconds = from.elapsed().as_secs_f64();
    let n_heard = pool.heartbeats().iter().sum::<u64>() - heard.iter().sum::<u64>();
    let silent = pool.heartbeats().iter().zip(&heard).filter(|(now, before)| now <= before).count();
    log.look(&under_load, &format!("{n_moving} of them moved 1 MiB/s for {} s", args.seconds), 0)?;
    let (dropped, mut failures) = (pool.dropped(), pool.failures().to_vec());
    drop(pool);
    under_load.until_left().await?;
    log.look(&under_load, "all left", 0)?;
    // What the allocator keeps is used again: a second pool should not need more.
    let again = under_load.gather(TransportKind::WebTransport, half).await?;
    let again = again.joined_by(under_load.gather(TransportKind::WebSocket, args.sessions - half).await?);
    log.look(&under_load, &format!("{} came once more", args.sessions), 0)?;
    failures.extend_from_slice(again.failures());
    drop(again);
    under_load.until_left().await?;
    log.look(&under_load, "all left", 0)?;
    log.print();
    let rates: Vec<f64> = moved.iter().map(|&n_bytes| n_bytes as f64 / seconds / 1_048_576.0).collect();
    println!("MiB/s of each that moved something: {}", Spread::of(&rates));
    println!("messages heard: {} a second, by all but {silent} sessions", short(n_heard as f64 / seconds));
    println!("attempts that had to be made again: {}; sessions dropped: {}", failures.len(), dropped.len());
    for reason in failures.iter().chain(&dropped).take(20) {
        println!("  {reason}");
    }
    Ok(())
}

/// `soak`.
pub(crate) async fn soak(args: &SoakArgs) -> Result<()> {
    let n_guests = (args.sessions / 4).max(2);
    let under_load = RelayUnderLoad::set(args.sessions + n_guests, Duration::from_millis(500)).await?;
    let half = args.sessions / 2;
    let staying = under_load.gather(TransportKind::WebTransport, half).await?;
    let staying = staying.joined_by(under_load.gather(TransportKind::WebSocket, args.sessions - half).await?);
    let from = Instant::now();
    let until = Duration::from_secs_f64(args.minutes * 60.0);
    let coming_and_going = async {
        let mut n_guests_seen = 0;
        while from.elapsed() < until {
            let guests = under_load.gather(TransportKind::WebTransport, n_guests / 2).await?;
            let guests =
                guests.joined_by(under_load.gather(TransportKind::WebSocket, n_guests - n_guests / 2).await?);
            guests.pull(n_guests / 4 + 1, MOVING_BYTES_PER_SECOND, Duration::from_secs(2)).await?;
            ensure!(guests.dropped().is_empty(), "guests were dropped: {:?}", guests.dropped());
            n_guests_seen += n_guests;
            drop(guests);
            under_load.until_carried(args.sessions).await?;
        }
        anyhow::Ok(n_guests_seen)
    };
    let looking = async {
        let mut samples: Vec<(f64, f64)> = Vec::new();
        let mut ticks = tokio::time::interval(Duration::from_secs(args.every.max(1)));
        while from.elapsed() < until {
            ticks.tick().await;
            let usage = under_load.usage()?;
            samples.push((from.elapsed().as_secs_f64() / 60.0, usage.rss_kib as f64 / 1024.0));
        }
        anyhow::Ok(samples)
    };
    let (n_guests_seen, samples) = tokio::try_join!(coming_and_going, looking)?;
    let dropped = staying.dropped();
    let carried = under_load.metric("barnraise_relay_circuit_bytes_sum").await?;
    let mut rows = vec![["minute", "RSS of the relay, MiB"].map(String::from).to_vec()];
    let mut next = 0.0;
    for (minute, mib) in &samples {
        if *minute >= next {
            rows.push(vec![format!("{minute:.1}"), format!("{mib:.1}")]);
            next = minute.floor() + 1.0;
        }
    }
    println!("\n{}", table(&rows));
    let settled: Vec<(f64, f64)> = samples.iter().copied().skip(samples.len() / 5).collect();
    println!(
        "{} sessions stayed, {} of them were dropped; {n_guests_seen} came and went; their circuits carried {} MiB",
        staying.sessions().len(),
        dropped.len(),
        short(carried / 1_048_576.0)
    );
    println!("slope of the RSS after the first fifth: {:.3} MiB a minute", slope(&settled));
    Ok(())
}

/// Of the line closest to the points, by least squares.
fn slope(points: &[(f64, f64)]) -> f64 {
    let n = points.len() as f64;
    let (mean_x, mean_y) = (
        points.iter().map(|point| point.0).sum::<f64>() / n,
        points.iter().map(|point| point.1).sum::<f64>() / n,
    );
    let covariance: f64 = points.iter().map(|(x, y)| (x - mean_x) * (y - mean_y)).sum();
    covariance / points.iter().map(|(x, _)| (x - mean_x).powi(2)).sum::<f64>()
}

/// What the relay took at each step.
struct Log {
    rows: Vec<Vec<String>>,
    last: ProcessUsage,
    own_cpu: Duration,
    since: Instant,
}

impl Log {
    fn begin(under_load: &RelayUnderLoad) -> Result<Self> {
        let heading = [
            "",
            "seconds",
            "RSS of the relay, MiB",
            "most so far, MiB",
            "KiB for each new session",
            "open files",
            "its processor, s",
            "processor of the others, s",
        ];
        let mut log = Self {
            rows: vec![heading.map(String::from).to_vec()],
            last: ProcessUsage::default(),
            own_cpu: Duration::ZERO,
            since: Instant::now(),
        };
        log.look(under_load, "nobody", 0)?;
        Ok(log)
    }

    fn look(&mut self, under_load: &RelayUnderLoad, what: &str, n_new: usize) -> Result<()> {
        let (usage, own) = (under_load.usage()?, ProcessUsage::of(std::process::id())?);
        let mib = |kib: u64| format!("{:.1}", kib as f64 / 1024.0);
        let grown = usage.rss_kib.saturating_sub(self.last.rss_kib) as f64 / n_new.max(1) as f64;
        self.rows.push(vec![
            what.to_owned(),
            short(self.since.elapsed().as_secs_f64()),
            mib(usage.rss_kib),
            mib(usage.rss_max_kib),
            if n_new > 0 { short(grown) } else { String::new() },
            usage.n_files.to_string(),
            short((usage.cpu - self.last.cpu).as_secs_f64()),
            short((own.cpu - self.own_cpu).as_secs_f64()),
        ]);
        println!("{}", self.rows.last().map(|row| row.join(" | ")).unwrap_or_default());
        (self.last, self.own_cpu, self.since) = (usage, own.cpu, Instant::now());
        Ok(())
    }

    fn print(&self) {
        println!("\n{}", table(&self.rows));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slope_is_that_of_the_line() {
        assert_eq!(slope(&[(0.0, 1.0), (1.0, 3.0), (2.0, 5.0)]), 2.0);
        assert_eq!(slope(&[(0.0, 4.0), (1.0, 4.0)]), 0.0);
    }
}
