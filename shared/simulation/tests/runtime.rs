//! Async code on the simulated clock and network.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use barnraise_simulation::{Latency, Moment, Network, NodeBandwidth, NodeId, Runtime, StreamEnd, seeds};
use futures::{AsyncReadExt as _, AsyncWriteExt as _};

const ONE: NodeId = NodeId(0);
const OTHER: NodeId = NodeId(1);
const THIRD: NodeId = NodeId(2);

/// When what was read by whom.
type Log = Rc<RefCell<Vec<(u64, String)>>>;

fn ms(millis: u64) -> Moment {
    Duration::from_millis(millis)
}

fn runtime(latency_ms: u64) -> Runtime {
    Runtime::new(1, Network::new(3, Latency::Constant(ms(latency_ms))))
}

/// Reads all, and says when it had how much.
fn read(runtime: &Runtime, node: NodeId, mut stream: StreamEnd, log: &Log) {
    let (network, log) = (runtime.network().clone(), Rc::clone(log));
    runtime.tasks().spawn(node, async move {
        let mut bytes = Vec::new();
        let said = match stream.read_to_end(&mut bytes).await {
            Ok(n) => format!("{n} bytes"),
            Err(error) => error.kind().to_string(),
        };
        log.borrow_mut().push((network.now().as_millis() as u64, said));
    });
}

fn write(runtime: &Runtime, node: NodeId, mut stream: StreamEnd, n_bytes: usize) {
    runtime.tasks().spawn(node, async move {
        // It may be cut off.
        let _ = stream.write_all(&vec![7; n_bytes]).await;
        let _ = stream.close().await;
    });
}

#[test]
fn streams_share_a_link_and_take_the_latency() {
    let mut runtime = runtime(50);
    let log = Log::default();
    runtime.network().change(|network| network.set_bandwidth(ONE, NodeBandwidth::new(100_000.0, 1e9)));
    for to in [OTHER, THIRD] {
        let (near, far) = runtime.network().stream(ONE, to);
        write(&runtime, ONE, near, 50_000);
        read(&runtime, to, far, &log);
    }
    runtime.run();
    // Together 100 kB at 100 kB/s.
    let log = log.borrow();
    assert_eq!(log.len(), 2);
    assert!(log.iter().all(|(at, said)| (1000..=1060).contains(at) && said == "50000 bytes"), "{log:?}");
}

#[test]
fn a_partition_stops_a_stream_until_it_heals() {
    let mut runtime = runtime(50);
    let log = Log::default();
    let (near, far) = runtime.network().stream(ONE, OTHER);
    runtime.network().change(|network| network.set_bandwidth(ONE, NodeBandwidth::new(100_000.0, 1e9)));
    write(&runtime, ONE, near, 100_000);
    read(&runtime, OTHER, far, &log);
    let network = runtime.network().clone();
    runtime.at(ms(500), async move { network.change(|network| network.partition([ONE])) });
    let network = runtime.network().clone();
    runtime.at(ms(2500), async move { network.change(Network::heal) });
    runtime.run();
    let log = log.borrow();
    assert!(log.len() == 1 && (3040..=3060).contains(&log[0].0) && log[0].1 == "100000 bytes", "{log:?}");
}

#[test]
fn a_killed_node_ends_its_streams_and_a_silent_one_does_not() {
    for is_killed in [true, false] {
        let mut runtime = runtime(10);
        let log = Log::default();
        let (near, far) = runtime.network().stream(ONE, OTHER);
        runtime.network().change(|network| network.set_bandwidth(ONE, NodeBandwidth::new(100_000.0, 1e9)));
        write(&runtime, ONE, near, 200_000);
        read(&runtime, OTHER, far, &log);
        let (network, tasks) = (runtime.network().clone(), runtime.tasks().clone());
        runtime.at(ms(500), async move {
            match is_killed {
                true => tasks.kill(ONE),
                false => network.change(|network| network.take_down(ONE)),
            }
        });
        runtime.run();
        let log = log.borrow();
        match is_killed {
            // What was in its buffers still came.
            true => assert!(log.len() == 1 && (500..900).contains(&log[0].0), "{log:?}"),
            false => assert!(log.is_empty(), "{log:?}"),
        }
    }
}

#[test]
fn a_reset_is_an_error_at_both_ends() {
    let mut runtime = runtime(10);
    let log = Log::default();
    let (near, far) = runtime.network().stream(ONE, OTHER);
    read(&runtime, ONE, near, &log);
    read(&runtime, OTHER, far, &log);
    let network = runtime.network().clone();
    runtime.at(ms(30), async move { network.reset(OTHER, ONE) });
    runtime.run();
    assert_eq!(*log.borrow(), vec![(30, "connection reset".to_owned()); 2]);
}

#[test]
fn a_writer_without_a_reader_learns_it() {
    let mut runtime = runtime(10);
    let (mut near, far) = runtime.network().stream(ONE, OTHER);
    let log = Log::default();
    let (written, network) = (Rc::clone(&log), runtime.network().clone());
    runtime.tasks().spawn(ONE, async move {
        let error = near.write_all(&[0; 1_000_000]).await.unwrap_err();
        written.borrow_mut().push((network.now().as_millis() as u64, error.kind().to_string()));
    });
    runtime.at(ms(20), async move { drop(far) });
    runtime.run();
    assert_eq!(*log.borrow(), [(30, "broken pipe".to_owned())]);
}

#[test]
fn a_stopped_processor_stalls_its_tasks() {
    let mut runtime = runtime(0);
    let log = Log::default();
    for (node, said) in [(ONE, "one"), (OTHER, "other")] {
        let (network, log) = (runtime.network().clone(), Rc::clone(&log));
        runtime.tasks().spawn(node, async move {
            network.sleep(ms(10)).await;
            log.borrow_mut().push((network.now().as_millis() as u64, said.to_owned()));
        });
    }
    // The first did not even begin to sleep.
    let cpu = runtime.tasks().cpu(ONE);
    cpu.stop_until(ms(500));
    runtime.at(ms(100), async move { cpu.go_on_at(ms(200)) });
    runtime.run();
    assert_eq!(*log.borrow(), [(10, "other".to_owned()), (210, "one".to_owned())]);
}

/// All that is read, when and by whom, over a lossy network.
fn history(seed: u64) -> Vec<(u64, String)> {
    let network = Network::new(3, Latency::Uniform(ms(5), ms(200))).with_loss(0.1);
    let mut runtime = Runtime::new(seed, network);
    let log = Log::default();
    for (from, to) in [(ONE, OTHER), (OTHER, THIRD), (THIRD, ONE), (ONE, THIRD)] {
        let (near, far) = runtime.network().stream(from, to);
        let n_bytes = runtime.network().draw(|random| random.below(200_000));
        write(&runtime, from, near, n_bytes);
        read(&runtime, to, far, &log);
    }
    runtime.run();
    log.take()
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in seeds(0..5) {
        let one = history(seed);
        assert_eq!(one.len(), 4);
        assert_eq!(one, history(seed));
        assert_ne!(one, history(seed + 1));
    }
}

/// On an executor whose clock is another one, here of another runtime.
#[test]
fn a_network_follows_the_clock_of_another_executor() {
    let mut outer = runtime(0);
    let clock = outer.network().clone();
    let inner = {
        let clock = clock.clone();
        let network = Network::new(2, Latency::Constant(ms(30)));
        barnraise_simulation::VirtualNetwork::following(5, network, move || clock.now())
    };
    let driven = inner.clone();
    outer.tasks().spawn(ONE, async move { driven.drive(|at| clock.sleep_until(at)).await });
    let log = Log::default();
    let (mut near, far) = inner.stream(ONE, OTHER);
    let network = outer.network().clone();
    outer.tasks().spawn(ONE, async move {
        network.sleep(ms(100)).await;
        near.write_all(b"hello").await.unwrap();
    });
    read(&outer, OTHER, far, &log);
    outer.run();
    assert_eq!(*log.borrow(), [(130, "5 bytes".to_owned())]);
}
