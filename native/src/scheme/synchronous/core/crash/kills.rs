//! A process that is killed at any moment, with its own folder and database on a real disk.
//!
//! The process is this test program, started again as a backbone with its contributors: it prints each acknowledged
//! contribution until it is killed. All of them must be there afterwards.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use barnraise_swarm::random::SplitMix64;

use super::*;

const FOLDER: &str = "BARNRAISE_TEST_KILLED_FOLDER";
const FROM: &str = "BARNRAISE_TEST_KILLED_FROM";
/// Acknowledgements that are waited for before a kill, at most.
const ACKNOWLEDGED_MAX: usize = 12;
/// And how long after the last of them it comes, at most: several times as long as one takes.
const LATER_MAX: Duration = Duration::from_millis(40);

#[tokio::test]
#[ignore = "the process that is killed; the test below starts it"]
async fn the_one_that_is_killed() {
    let Ok(folder) = std::env::var(FOLDER) else { return };
    let folder = Path::new(&folder);
    let world = CrashHarness::new("killed");
    let store = world.store(folder).await;
    let mut alive = world.start(Storage::open(folder).unwrap(), &store).await.unwrap();
    for id in number(FROM, 0).. {
        alive.contribute(&world, id).await.unwrap().unwrap();
        let mut out = std::io::stdout().lock();
        // The test runner may have begun a line.
        writeln!(out, "\nacknowledged {id}").unwrap();
        out.flush().unwrap();
        drop(out);
        if id % 5 == 0 {
            alive.recording.catch_up().await.unwrap();
        }
    }
}

fn start(folder: &Path, from: u64) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([
        "--exact",
        "scheme::synchronous::core::crash::kills::the_one_that_is_killed",
        "--ignored",
        "--nocapture",
    ]);
    command.env(FOLDER, folder).env(FROM, from.to_string());
    command.stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().unwrap()
}

/// Kills it some time after `n_acknowledged` acknowledgements; returns the first contribution that is not acknowledged.
fn kill(mut child: Child, n_acknowledged: usize, later: Duration, mut next: u64) -> u64 {
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut hear = |line: std::io::Result<String>| {
        if let Some(id) = line.unwrap().strip_prefix("acknowledged ") {
            assert_eq!(id.parse::<u64>().unwrap(), next);
            next += 1;
            return true;
        }
        false
    };
    let mut n_heard = 0;
    while n_heard < n_acknowledged {
        let line = lines.next().expect("it ended by itself");
        n_heard += usize::from(hear(line));
    }
    // A moment that no line tells: in the middle of a write, a sync or a step. Whenever it is, the outcome is the same.
    let begun = Instant::now();
    while begun.elapsed() < later {
        std::hint::spin_loop();
    }
    child.kill().unwrap();
    child.wait().unwrap();
    // Lines that it printed before it died.
    for line in lines {
        hear(line);
    }
    next
}

#[tokio::test]
async fn a_process_that_is_killed_at_any_moment_loses_and_doubles_nothing() {
    let (n_kills, seed) = (number("KILLS", 25), number("KILL_SEED", 7));
    println!("{n_kills} kills from KILL_SEED={seed}");
    let folder = tempfile::tempdir().unwrap();
    let mut random = SplitMix64::new(seed);
    let mut next = 0;
    for _ in 0..n_kills {
        let n_acknowledged = random.below(ACKNOWLEDGED_MAX + 1);
        let later = LATER_MAX.mul_f64(random.below(1000) as f64 / 1000.0);
        next = kill(start(folder.path(), next), n_acknowledged, later, next);
    }
    let world = CrashHarness::new("killed");
    let store = world.store(folder.path()).await;
    let mut alive = world.start(Storage::open(folder.path()).unwrap(), &store).await.unwrap();
    let n = (next + PER_STEP).next_multiple_of(PER_STEP);
    for id in next..n {
        alive.contribute(&world, id).await.unwrap().unwrap();
    }
    alive.reaches(n / PER_STEP).await;
    world.all_counted(&mut alive, folder.path(), n, &format!("KILL_SEED={seed}")).await;
    println!("{n} contributions");
    alive.stop().await;
    store.close().await;
}
