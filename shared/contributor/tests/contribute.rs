//! A contributor and a whole backbone in memory: both halves of every conversation, and what happens
//! when streams are cut, data is corrupt or the backbone vanishes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod backbone;
#[path = "contribute/conduct.rs"]
mod conduct;

use std::cell::RefCell;
use std::rc::Rc;

use barnraise_contributor::{
    COMMANDS_MAX, Command, Config, Credentials, Event, Platform, contribute, trainer,
};
use barnraise_learning::ComputeDevice;
use barnraise_protocol::TensorCodec;
use barnraise_protocol::access::AccessDescription;
use barnraise_protocol::bulk::CHUNK_BYTES;
use barnraise_protocol::codec::{Density, Sparsity};
use barnraise_protocol::evidence::Evidence;
use barnraise_protocol::gradient::Accepted;
use barnraise_protocol::run::{
    self, Compression, InnerDecay, InnerOptimizer, InnerSchedule, LocalSteps, SlowLinks,
};
use barnraise_protocol::shard::{self, ShardId};
use barnraise_protocol::state;
use barnraise_swarm::activity::{Activity, Contribution};
use barnraise_swarm::recomputation::Difference;
use futures::channel::mpsc;
use tokio::task::LocalSet;

use backbone::peers::{Manner, WithPeers};
use backbone::{Backbone, MICRO_BATCH, SLOW_CODEC, TestPlatform, contributor_key, shard as samples_of};

/// More than any test computes: the epoch goes on for ever.
const ENDLESS: u32 = 1_000_000_000;
/// Messages and chunk headers around the bytes of a transfer.
const OVERHEAD_BYTES: u64 = 4096;

/// What a test sees and does while the contributor runs.
struct Script {
    backbone: Rc<Backbone>,
    commands: mpsc::Sender<Command>,
    events: Rc<RefCell<Vec<Event>>>,
}

impl Script {
    fn send(&mut self, command: Command) {
        self.commands.try_send(command).unwrap();
    }

    /// Waits for something to happen until `condition` holds.
    async fn until(&self, mut condition: impl FnMut(&Self) -> bool) {
        while !condition(self) {
            self.backbone.happened.notified().await;
        }
    }

    async fn until_event(&self, wanted: impl Fn(&Event) -> bool) {
        self.until(|script| script.events.borrow().iter().any(&wanted)).await;
    }

    async fn until_computed(&self) {
        self.until_event(|event| matches!(event, Event::Contribution(given) if given.n_samples_computed > 0))
            .await;
    }

    fn n_samples_computed(&self) -> u64 {
        let computed = |event: &Event| match event {
            Event::Contribution(given) => Some(given.n_samples_computed),
            _ => None,
        };
        self.events.borrow().iter().rev().find_map(computed).unwrap_or(0)
    }

    fn activities(&self) -> Vec<Activity> {
        let activity = |event: &Event| match event {
            Event::Activity(activity) => Some(activity.clone()),
            _ => None,
        };
        self.events.borrow().iter().filter_map(activity).collect()
    }
}

/// Runs a contributor beside `script`; when the script ends, the contributor delivers and ends.
fn play<T>(
    backbone: &Rc<Backbone>,
    platform: &Rc<TestPlatform>,
    script: impl AsyncFnOnce(Script) -> T,
) -> (T, Contribution) {
    play_on(backbone, &**platform, script)
}

fn play_on<T>(
    backbone: &Rc<Backbone>,
    platform: &impl Platform,
    script: impl AsyncFnOnce(Script) -> T,
) -> (T, Contribution) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let (commands, receiver) = mpsc::channel(COMMANDS_MAX);
    let events = Rc::<RefCell<Vec<Event>>>::default();
    let scene = Script { backbone: Rc::clone(backbone), commands, events: Rc::clone(&events) };
    let config = Config {
        device: ComputeDevice::cpu(),
        is_device_free: true,
        first_contribution_id: 1,
        seed: 7,
        credentials: Credentials { key: Some(contributor_key()), invitation: None },
    };
    let contributor = contribute(platform, config, receiver, |event| {
        events.borrow_mut().push(event);
        backbone.happened.notify_one();
    });
    let both = futures::future::join(script(scene), contributor);
    LocalSet::new().block_on(&runtime, Box::pin(both))
}

/// Told at once and in the names of both, and not after an hour of computing for nobody.
#[test]
fn a_run_of_a_newer_version_is_left_with_the_reason() {
    let backbone = Backbone::new(3, 64);
    backbone.speaks.set("/barnraise/run/7");
    let platform = TestPlatform::new(&backbone);
    let (reason, given) = play(&backbone, &platform, async |mut script| {
        script.send(Command::Start);
        let is_broken = |event: &Event| matches!(event, Event::Activity(Activity::Broken { .. }));
        script.until_event(is_broken).await;
        let told = script.activities();
        let Some(Activity::Broken { reason }) = told.last() else { panic!("{told:?}") };
        reason.clone()
    });
    for part in [run::OLDER_HERE, run::PROTOCOL, "/barnraise/run/7", "reload"] {
        assert!(reason.contains(part), "{part} is missing in: {reason}");
    }
    assert_eq!(given.n_samples_computed, 0);
}

#[test]
fn a_run_of_the_version_before_is_waited_for() {
    let backbone = Backbone::new(3, 64);
    let [.., before] = run::PROTOCOLS_BEFORE;
    backbone.speaks.set(before);
    let platform = TestPlatform::new(&backbone);
    play(&backbone, &platform, async |mut script| {
        script.send(Command::Start);
        let names_both = |event: &Event| {
            matches!(event, Event::Activity(Activity::Reconnecting { reason, .. })
                if reason.contains("newer than the run") && reason.contains(before) && reason.contains(run::PROTOCOL))
        };
        script.until_event(names_both).await;
        // Its operator updates it.
        script.backbone.speaks.set(run::PROTOCOL);
        script.until(|script| script.backbone.epoch() >= 1).await;
    });
}

#[test]
fn two_epochs_are_trained_and_every_contribution_is_accounted_for() {
    let backbone = Backbone::new(3, 64);
    let platform = TestPlatform::new(&backbone);
    let ((activities, events), given) = play(&backbone, &platform, async |mut script| {
        script.send(Command::Start);
        script.until(|script| script.backbone.epoch() >= 2).await;
        let is_measured =
            |event: &Event| matches!(event, Event::Contribution(given) if given.samples_per_second > 0.0);
        script.until_event(is_measured).await;
        (script.activities(), Rc::clone(&script.events))
    });
    let receipts: Vec<Accepted> = events.borrow().iter().filter_map(accepted_by_receipt).collect();
    assert_eq!(receipts, *backbone.accepted.borrow(), "a receipt for each, in their order");
    assert!(given.n_accepted >= 2, "{given:?}");
    assert_eq!(given.n_samples_accepted, backbone.n_samples_accepted());
    assert!(given.n_samples_computed >= given.n_samples_accepted);
    assert_eq!((given.n_refused, given.last_refusal), (0, None));
    assert!(given.loss.unwrap().is_finite());
    assert!(given.bytes_down > 2 * backbone.state_bytes() && given.bytes_up > backbone.state_bytes() / 2);
    assert_eq!(activities[0], Activity::Idle);
    // The same data in the cache, under their hashes.
    assert!(!platform.cache.borrow().is_empty());
}

#[test]
fn a_cut_in_the_parameters_costs_no_chunk_twice() {
    let backbone = Backbone::new(1, ENDLESS);
    let platform = TestPlatform::new(&backbone);
    platform.cuts.borrow_mut().insert(state::PROTOCOL, 150_000);
    play(&backbone, &platform, async |mut script| {
        script.send(Command::Start);
        script.until_computed().await;
        let reconnecting = |activity: &Activity| matches!(activity, Activity::Reconnecting { .. });
        assert!(script.activities().iter().any(reconnecting));
    });
    let n_bytes = backbone.state_bytes();
    let n_read = platform.n_read(state::PROTOCOL);
    assert!(n_bytes > 150_000 && n_read >= n_bytes, "{n_read} of {n_bytes}");
    assert!(n_read < n_bytes + CHUNK_BYTES as u64 + OVERHEAD_BYTES, "{n_read} of {n_bytes}");
}

#[test]
fn a_cut_in_a_shard_costs_no_chunk_twice() {
    let backbone = Backbone::new(1, ENDLESS);
    let platform = TestPlatform::new(&backbone);
    platform.cuts.borrow_mut().insert(shard::PROTOCOL, 100_000);
    play(&backbone, &platform, async |mut script| {
        script.send(Command::Start);
        script.until_computed().await;
    });
    let n_bytes = backbone.shard_transfer(ShardId::Train(0)).0.n_bytes;
    let n_read = platform.n_read(shard::PROTOCOL);
    assert!(n_bytes > 100_000 && n_read >= n_bytes, "{n_read} of {n_bytes}");
    assert!(n_read < n_bytes + CHUNK_BYTES as u64 + OVERHEAD_BYTES, "{n_read} of {n_bytes}");
}

#[test]
fn a_shard_that_peers_break_off_goes_on_elsewhere() {
    let backbone = Backbone::new(1, ENDLESS);
    let platform = TestPlatform::new(&backbone);
    let peers = WithPeers::new(&platform, &[Manner::BreaksOff(100_000); 2]);
    let ((), given) = play_on(&backbone, &peers, async |mut script| {
        script.send(Command::Start);
        script.until_computed().await;
    });
    let n_bytes = backbone.shard_transfer(ShardId::Train(0)).0.n_bytes;
    let from_peers = 2 * CHUNK_BYTES as u64;
    assert_eq!(given.shards.bytes_from_peers, from_peers, "a whole chunk of each");
    assert_eq!((given.shards.n_failed, given.shards.n_wrong), (2, 0));
    assert_eq!(given.shards.bytes_from_backbone, n_bytes - from_peers);
    assert!(platform.n_read(shard::PROTOCOL) < n_bytes - from_peers + OVERHEAD_BYTES);
}

#[test]
fn wrong_bytes_are_refused_and_whoever_sent_them_is_not_asked_again() {
    let backbone = Backbone::new(2, ENDLESS);
    let platform = TestPlatform::new(&backbone);
    let mut peers = WithPeers::new(&platform, &[Manner::Lies]);
    peers.room = backbone.shard_transfer(ShardId::Train(0)).0.n_bytes * 3 / 2;
    let ((), given) = play_on(&backbone, &peers, async |mut script| {
        script.send(Command::Start);
        // More than the first shard has.
        script.until(|script| script.n_samples_computed() > 300).await;
    });
    let liar = peers.liars.take();
    assert_eq!((peers.asked.take(), liar.len()), (liar, 1));
    assert_eq!((given.shards.n_failed, given.shards.n_wrong), (0, 1));
    assert!(given.shards.bytes_from_backbone > given.shards.bytes_from_peers, "{:?}", given.shards);
    assert_eq!(platform.cache.borrow().len(), 1, "the first made way for the second");
}

#[test]
fn peers_spare_the_backbone_its_shards() {
    let backbone = Backbone::new(2, ENDLESS);
    let platform = TestPlatform::new(&backbone);
    let peers = WithPeers::new(&platform, &[Manner::Honest]);
    let ((), given) = play_on(&backbone, &peers, async |mut script| {
        script.send(Command::Start);
        script.until(|script| script.n_samples_computed() > 300).await;
    });
    assert_eq!(given.shards.bytes_from_backbone, 0);
    assert_eq!(platform.n_read(shard::PROTOCOL), 0);
    assert!(given.shards.bytes_from_peers > backbone.shard_transfer(ShardId::Train(0)).0.n_bytes);
    assert_eq!(platform.cache.borrow().len(), 2);
}

#[test]
fn stopping_delivers_what_is_finished() {
    let backbone = Backbone::new(1, ENDLESS);
    let platform = TestPlatform::new(&backbone);
    let ((), given) = play(&backbone, &platform, async |mut script| {
        script.send(Command::Start);
        script.until_computed().await;
        script.send(Command::Stop);
        script.until(|script| script.activities().ends_with(&[Activity::Idle])).await;
        let delivered = script.backbone.n_samples_accepted();
        assert!(delivered > 0);
        let newest = script.events.borrow().iter().rev().find_map(|event| match event {
            Event::Contribution(given) => Some(given.clone()),
            _ => None,
        });
        assert!(newest.unwrap().n_samples_computed >= delivered);
    });
    assert_eq!(given.n_samples_computed, backbone.n_samples_accepted());
}

#[test]
fn a_corrupt_cached_shard_is_fetched_again_and_a_whole_one_is_not() {
    let backbone = Backbone::new(1, ENDLESS);
    let (transfer, bytes) = backbone.shard_transfer(ShardId::Train(0));
    for is_corrupt in [true, false] {
        let platform = TestPlatform::new(&backbone);
        let mut cached = bytes.to_vec();
        cached[1000] ^= u8::from(is_corrupt);
        platform.cache.borrow_mut().insert(transfer.sha256, cached);
        play(&backbone, &platform, async |mut script| {
            script.send(Command::Start);
            script.until_computed().await;
        });
        assert_eq!(platform.n_read(shard::PROTOCOL) > 0, is_corrupt);
        assert_eq!(platform.cache.borrow()[&transfer.sha256], bytes.to_vec());
    }
}

#[test]
fn a_backbone_that_vanishes_is_found_again() {
    let backbone = Backbone::new(3, 64);
    let platform = TestPlatform::new(&backbone);
    let ((), given) = play(&backbone, &platform, async |mut script| {
        script.send(Command::Start);
        script.until(|script| script.backbone.epoch() >= 1).await;
        script.backbone.vanish();
        script.until_event(|event| matches!(event, Event::Activity(Activity::Reconnecting { .. }))).await;
        let epoch = script.backbone.epoch();
        script.backbone.come_back();
        script.until(|script| script.backbone.epoch() >= epoch + 2).await;
    });
    assert_eq!(given.n_samples_accepted, backbone.n_samples_accepted());
}

#[test]
fn predictions_and_the_gallery_need_no_contributing() {
    let backbone = Backbone::new(1, ENDLESS);
    let platform = TestPlatform::new(&backbone);
    let ((), given) = play(&backbone, &platform, async |mut script| {
        script.send(Command::Predict { request: 9, pixels: vec![0; 784] });
        script.send(Command::LoadGallery);
        script.until_event(|event| matches!(event, Event::Gallery { .. })).await;
        script.until_event(|event| matches!(event, Event::Prediction { .. })).await;
        for event in script.events.borrow().iter() {
            match event {
                Event::Prediction { request, epoch, probabilities } => {
                    assert_eq!((*request, *epoch, probabilities.len()), (9, 0, 4));
                    assert!((probabilities.iter().sum::<f32>() - 1.0).abs() < 1e-5);
                }
                Event::Gallery { images, labels } => assert_eq!(images.len(), labels.len() * 784),
                Event::Failed { message } => panic!("{message}"),
                _ => {}
            }
        }
        // Bytes that are no image are refused, and the next request is served.
        script.send(Command::Predict { request: 10, pixels: vec![0; 3] });
        script.until_event(|event| matches!(event, Event::Failed { .. })).await;
        script.send(Command::Predict { request: 11, pixels: vec![255; 784] });
        script.until_event(|event| matches!(event, Event::Prediction { request: 11, .. })).await;
    });
    assert_eq!((given.n_samples_computed, backbone.n_samples_accepted()), (0, 0));
}

/// A visit with a backbone, and what the next one without it is told.
fn without_a_backbone(between: impl FnOnce(&TestPlatform)) -> Vec<Event> {
    let backbone = Backbone::new(1, ENDLESS);
    let platform = TestPlatform::new(&backbone);
    let ask = async |script: &mut Script| {
        script.send(Command::Predict { request: 1, pixels: vec![9; 784] });
        script.send(Command::LoadGallery);
        let is_answer = |event: &Event| matches!(event, Event::Prediction { .. } | Event::Failed { .. });
        let is_gallery = |event: &Event| matches!(event, Event::Gallery { .. });
        script.until_event(is_answer).await;
        script
            .until(|script| {
                let events = script.events.borrow();
                let n_failed = events.iter().filter(|event| matches!(event, Event::Failed { .. })).count();
                events.iter().any(is_gallery) || n_failed >= 1
            })
            .await;
        script.events.borrow().clone()
    };
    let (first, _) = play(&backbone, &platform, async |mut script| ask(&mut script).await);
    assert!(!first.iter().any(|event| matches!(event, Event::Failed { .. })), "{first:?}");
    backbone.vanish();
    between(&platform);
    let (second, _) = play(&backbone, &platform, async |mut script| ask(&mut script).await);
    let answer =
        |events: &[Event]| events.iter().find(|event| matches!(event, Event::Prediction { .. })).cloned();
    assert!(answer(&second).is_none() || answer(&second) == answer(&first), "the same model");
    second
}

#[test]
fn a_visitor_without_a_backbone_is_answered_by_the_model_that_was_kept() {
    let told = without_a_backbone(|_| ());
    assert!(told.iter().any(|event| matches!(event, Event::Prediction { .. })), "{told:?}");
    assert!(told.iter().any(|event| matches!(event, Event::Gallery { .. })), "{told:?}");
}

#[test]
fn a_kept_model_that_is_broken_answers_nothing() {
    let told = without_a_backbone(|platform| {
        let mut model = platform.model.borrow_mut();
        *model.as_mut().and_then(|model| model.last_mut()).unwrap() ^= 1;
    });
    assert!(!told.iter().any(|event| matches!(event, Event::Prediction { .. })), "{told:?}");
    let is_told =
        |event: &Event| matches!(event, Event::Failed { message } if message.contains("nobody is there"));
    assert!(told.iter().any(is_told), "{told:?}");
}

#[test]
fn a_contributor_that_was_woken_finds_its_backbone_at_once() {
    let backbone = Backbone::new(3, 64);
    let platform = TestPlatform::new(&backbone);
    let ((), given) = play(&backbone, &platform, async |mut script| {
        script.send(Command::Start);
        script.until(|script| script.backbone.epoch() >= 1).await;
        // A connection that lasted is left alone.
        script.send(Command::Woke);
        let epoch = script.backbone.epoch();
        script.until(|script| script.backbone.epoch() >= epoch + 2).await;
        let lost = |event: &Event| matches!(event, Event::Activity(Activity::Reconnecting { .. }));
        assert!(!script.events.borrow().iter().any(lost));
        script.backbone.vanish();
        script.until_event(lost).await;
        script.backbone.come_back();
        script.send(Command::Woke);
        let epoch = script.backbone.epoch();
        script.until(|script| script.backbone.epoch() > epoch).await;
    });
    assert_eq!(given.n_samples_accepted, backbone.n_samples_accepted());
}

#[test]
fn a_run_that_lies_about_its_model_is_not_joined() {
    let backbone = Backbone::new(1, 64);
    backbone.description.borrow_mut().n_parameters += 1;
    let platform = TestPlatform::new(&backbone);
    play(&backbone, &platform, async |mut script| {
        script.send(Command::Start);
        script.until_event(|event| matches!(event, Event::Activity(Activity::Broken { .. }))).await;
    });
    assert_eq!(platform.n_read(barnraise_protocol::contribute::PROTOCOL), 0);
}

#[test]
fn a_receipt_in_a_name_that_did_not_sign_it_is_said_and_not_kept() {
    let backbone = Backbone::new(3, 64);
    backbone.is_forging.set(true);
    let platform = TestPlatform::new(&backbone);
    let (events, given) = play(&backbone, &platform, async |mut script| {
        script.send(Command::Start);
        let is_said = |event: &Event| matches!(event, Event::Failed { message } if message.contains("not signed by its reducer"));
        script.until_event(is_said).await;
        Rc::clone(&script.events)
    });
    assert!(events.borrow().iter().filter_map(accepted_by_receipt).next().is_none());
    assert_eq!(given.n_samples_accepted, backbone.n_samples_accepted(), "it counts all the same");
}

fn accepted_by_receipt(event: &Event) -> Option<Accepted> {
    match event {
        Event::Receipt(receipt) => Some(receipt.accepted()),
        _ => None,
    }
}

fn top_k(share: f64, warmup_epochs: u32) -> TensorCodec {
    TensorCodec::TopK(Sparsity { density: Density::from_share(share).unwrap(), warmup_epochs })
}

#[test]
fn gradients_are_sent_as_the_run_says() {
    let plain = Compression::default();
    let corrected = Compression { momentum: 0.9, masking: true, clip_norm: Some(5.0) };
    for (codec, compression, at_least) in [
        (TensorCodec::Int4, plain, 7),
        // A quarter of the values in the first two epochs, then 1 %.
        (top_k(0.01, 2), corrected, 7),
        (top_k(0.01, 0), corrected, 180),
    ] {
        let backbone = Backbone::with_codec(3, 64, codec, compression);
        let platform = TestPlatform::new(&backbone);
        let ((), given) = play(&backbone, &platform, async |mut script| {
            script.send(Command::Start);
            script.until(|script| script.backbone.epoch() >= 4).await;
        });
        assert_eq!((given.n_refused, given.last_refusal), (0, None), "{codec:?}");
        let n_values = backbone.state_bytes() as usize / 4;
        for offer in &*backbone.offers.borrow() {
            assert_eq!(offer.codec, codec);
            let lengths = codec.encoded_len_at(n_values, offer.epoch);
            assert!(lengths.contains(&(offer.transfer.n_bytes as usize)), "{offer:?}");
            assert!(offer.transfer.n_bytes < backbone.state_bytes() / at_least, "{offer:?}");
        }
    }
}

#[test]
fn with_delayed_updates_batches_are_computed_while_a_gradient_is_on_its_way() {
    let backbone = Backbone::new(3, 64);
    backbone.description.borrow_mut().delayed_updates = true;
    backbone.is_holding.set(true);
    let platform = TestPlatform::new(&backbone);
    let ((), given) = play(&backbone, &platform, async |mut script| {
        script.send(Command::Start);
        script.until(|script| script.backbone.n_held.get() > 0).await;
        let before = script.n_samples_computed();
        script.until(|script| script.n_samples_computed() >= before + 3 * u64::from(MICRO_BATCH)).await;
        script.backbone.release();
        script.until(|script| script.backbone.epoch() >= 6).await;
    });
    assert_eq!((given.n_refused, given.last_refusal), (0, None));
    let epochs: Vec<u64> = backbone.offers.borrow().iter().map(|offer| offer.epoch).collect();
    assert!(epochs.is_sorted() && epochs.contains(&5), "{epochs:?}");
    assert_eq!(given.n_samples_accepted, backbone.n_samples_accepted());
}

/// Ways of three batches.
fn local_steps() -> Option<LocalSteps> {
    let schedule = InnerSchedule { peak: 0.001, warmup_epochs: 2, decay: InnerDecay::Constant };
    let optimizer = InnerOptimizer::Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.0 };
    Some(LocalSteps { steps: 3, optimizer, schedule })
}

#[test]
fn local_steps_are_contributed_as_gradients_are_also_a_round_behind() {
    for (is_delayed, codec) in [(false, TensorCodec::F16), (false, top_k(0.01, 0)), (true, TensorCodec::Int8)]
    {
        let backbone = Backbone::with_codec(3, 96, codec, Compression::default());
        backbone.description.borrow_mut().local_steps = local_steps();
        backbone.description.borrow_mut().delayed_updates = is_delayed;
        let platform = TestPlatform::new(&backbone);
        let ((), given) = play(&backbone, &platform, async |mut script| {
            script.send(Command::Start);
            script.until(|script| script.backbone.epoch() >= 5).await;
        });
        assert_eq!((given.n_refused, given.last_refusal), (0, None), "{codec:?}");
        assert_eq!(given.n_samples_accepted, backbone.n_samples_accepted());
        assert!(given.loss.unwrap().is_finite());
    }
}

#[test]
fn a_way_that_ends_in_no_number_is_refused_before_it_is_sent() {
    let backbone = Backbone::new(3, 64);
    let diverging = LocalSteps {
        steps: 100,
        optimizer: InnerOptimizer::Sgd { momentum: 0.0, nesterov: false, weight_decay: 0.0 },
        schedule: InnerSchedule { peak: 1e37, warmup_epochs: 0, decay: InnerDecay::Constant },
    };
    backbone.description.borrow_mut().local_steps = Some(diverging);
    let platform = TestPlatform::new(&backbone);
    let ((), given) = play(&backbone, &platform, async |mut script| {
        script.send(Command::Start);
        let is_refused = |event: &Event| matches!(event, Event::Contribution(given) if given.n_refused > 0);
        script.until_event(is_refused).await;
    });
    assert_eq!((given.n_accepted, backbone.offers.borrow().len()), (0, 0));
    assert!(given.last_refusal.unwrap().contains("not finite"));
}

#[test]
fn an_epoch_that_ends_early_takes_nothing_from_who_keeps_what_is_late() {
    let backbone = Backbone::with_codec(3, ENDLESS, top_k(0.01, 0), Compression::default());
    let platform = TestPlatform::new(&backbone);
    let ((), given) = play(&backbone, &platform, async |mut script| {
        script.send(Command::Start);
        for _ in 0..3 {
            script.until(|script| script.backbone.n_samples_of_epoch() > 0).await;
            script.backbone.end_epoch();
        }
        script.until(|script| script.backbone.n_samples_of_epoch() > 0).await;
    });
    assert!(given.n_accepted > 0, "what was computed last was delivered: {given:?}");
    assert!(given.n_samples_accepted < given.n_samples_computed, "{given:?}");
    assert_eq!(given.n_refused, 0);
}

/// Computes it once more, from what its account says.
fn recomputed(evidence: &Evidence) -> Difference {
    let claim = evidence.claim().unwrap();
    let run = &evidence.header.run;
    let mut trainer = trainer(run, ComputeDevice::cpu()).unwrap();
    trainer.load_parameters(&claim.parameters).unwrap();
    trainer.on_epoch(evidence.header.account.parameters_epoch);
    for ids in claim.samples.chunks(MICRO_BATCH as usize) {
        let mut batch = samples_of(0).none_of();
        ids.iter().for_each(|id| batch.push(&samples_of(id.shard.into()), id.index as usize));
        let epoch = evidence.header.account.parameters_epoch;
        futures::executor::block_on(trainer.accumulate_samples(&batch, epoch)).unwrap();
    }
    let mean = futures::executor::block_on(trainer.take_mean_gradient()).unwrap().unwrap();
    Difference::between(&claim.gradient, &mean.values, evidence.header.offer.codec, 1e-4).unwrap()
}

#[test]
fn contributions_are_what_their_accounts_say() {
    let optimizer = InnerOptimizer::Sgd { momentum: 0.9, nesterov: true, weight_decay: 0.0 };
    let ways = local_steps().map(|steps| LocalSteps { optimizer, ..steps });
    for (is_delayed, codec, local_steps) in [
        (false, TensorCodec::F32, None),
        (true, TensorCodec::F16, None),
        (false, TensorCodec::Int8, None),
        (false, TensorCodec::F32, ways),
        (true, TensorCodec::Int8, ways),
    ] {
        let backbone = Backbone::with_codec(3, 48, codec, Compression::default());
        {
            let mut description = backbone.description.borrow_mut();
            description.recomputed = true;
            description.local_steps = local_steps;
            description.delayed_updates = is_delayed;
        }
        let platform = TestPlatform::new(&backbone);
        let ((), given) = play(&backbone, &platform, async |mut script| {
            script.send(Command::Start);
            script.until(|script| script.backbone.epoch() >= 3).await;
        });
        assert_eq!(given.n_refused, 0, "{given:?}");
        let evidence = backbone.evidence.borrow();
        assert!(evidence.len() >= 3, "{} contributions", evidence.len());
        for evidence in evidence.iter() {
            let difference = recomputed(evidence);
            let what = (codec, is_delayed, local_steps);
            assert!(!difference.is_wrong(), "{what:?}: {difference:?}");
        }
    }
}

#[test]
fn gradients_travel_as_the_uplink_allows() {
    for (below_bytes_per_second, is_slow) in [(u64::MAX, true), (1, false)] {
        let backbone = Backbone::with_codec(3, 48, TensorCodec::F16, Compression::default());
        let slow = SlowLinks { below_bytes_per_second, codec: SLOW_CODEC };
        backbone.description.borrow_mut().slow_links = Some(slow);
        let platform = TestPlatform::new(&backbone);
        let ((), given) = play(&backbone, &platform, async |mut script| {
            script.send(Command::Start);
            script.until(|script| script.backbone.epoch() >= 3).await;
        });
        assert_eq!(given.n_refused, 0, "{given:?}");
        let offers = backbone.offers.borrow();
        let later = if is_slow { SLOW_CODEC } else { TensorCodec::F16 };
        assert_eq!(offers[0].codec, SLOW_CODEC, "nothing was sent before it");
        assert!(offers.len() >= 3 && offers[1..].iter().all(|offer| offer.codec == later), "{offers:?}");
    }
}

#[test]
fn late_local_steps_are_offered_by_themselves_where_they_are_recomputed() {
    let backbone = Backbone::with_codec(3, ENDLESS, TensorCodec::F16, Compression::default());
    {
        let mut description = backbone.description.borrow_mut();
        description.recomputed = true;
        let optimizer = InnerOptimizer::Sgd { momentum: 0.9, nesterov: true, weight_decay: 0.0 };
        description.local_steps = local_steps().map(|steps| LocalSteps { optimizer, ..steps });
    }
    let platform = TestPlatform::new(&backbone);
    let n_taken = || backbone.evidence.borrow().len();
    let ((), given) = play(&backbone, &platform, async |mut script| {
        script.send(Command::Start);
        // The epoch ends before anything is offered.
        script.until(|script| script.backbone.n_samples_of_epoch() > 0).await;
        script.backbone.end_epoch();
        script.until(|_| n_taken() > 0).await;
        // And while something is.
        let n_before = n_taken();
        script.backbone.is_holding.set(true);
        script.until(|script| script.backbone.n_held.get() > 0).await;
        script.backbone.end_epoch();
        script.backbone.release();
        script.until(|_| n_taken() > n_before).await;
    });
    assert!(given.n_accepted >= 2, "{given:?}");
    let mut n_late = 0;
    for evidence in backbone.evidence.borrow().iter() {
        let (offer, account) = (&evidence.header.offer, &evidence.header.account);
        if account.parameters_epoch < offer.epoch {
            assert_eq!(offer.n_samples, account.n_samples / 2);
            n_late += 1;
        }
        assert!(!recomputed(evidence).is_wrong());
    }
    assert!(n_late >= 2, "{n_late} of {}", n_taken());
}

/// An offer that is cut may have counted where it was made: elsewhere it would count once more.
#[test]
fn what_one_backbone_may_have_counted_is_not_offered_to_another() {
    for is_other in [false, true] {
        let backbone = Backbone::new(3, 64);
        backbone.is_holding_answers.set(true);
        let platform = TestPlatform::new(&backbone);
        let cut = play(&backbone, &platform, async |mut script| {
            script.send(Command::Start);
            script.until(|script| script.backbone.n_held.get() > 0).await;
            script.backbone.vanish();
            script.backbone.offers.take();
            platform.name.set(u8::from(is_other));
            script.backbone.release();
            script.backbone.come_back();
            script.until(|script| script.backbone.epoch() >= 2).await;
        });
        drop(cut);
        let ids: Vec<u64> = backbone.offers.borrow().iter().map(|offer| offer.contribution_id).collect();
        assert_eq!(ids.first() == Some(&1), !is_other, "{ids:?}");
    }
}

/// Whether it was offered by then or not, as long as the backbone before did not ask for it; and where contributions are
/// signed, for the description that the next one gives.
#[test]
fn what_was_computed_for_one_backbone_counts_at_another() {
    for (is_offered, recomputed) in [(false, false), (true, false), (false, true), (true, true)] {
        let backbone = Backbone::new(3, ENDLESS);
        backbone.description.borrow_mut().recomputed = recomputed;
        backbone.is_holding.set(true);
        let platform = TestPlatform::new(&backbone);
        let (computed, given) = play(&backbone, &platform, async |mut script| {
            script.send(Command::Start);
            match is_offered {
                true => script.until(|script| script.backbone.n_held.get() > 0).await,
                false => script.until_computed().await,
            }
            script.backbone.vanish();
            let is_away = |event: &Event| matches!(event, Event::Activity(Activity::Reconnecting { .. }));
            script.until_event(is_away).await;
            let computed = script.n_samples_computed();
            platform.name.set(1);
            backbone.description.borrow_mut().access =
                AccessDescription::open(barnraise_protocol::access::PublicKey([2; 32]));
            script.backbone.release();
            script.backbone.come_back();
            script.until(|script| script.backbone.n_samples_accepted() > 0).await;
            script.send(Command::Stop);
            script.until(|script| script.activities().ends_with(&[Activity::Idle])).await;
            computed
        });
        let accepted = backbone.accepted.borrow();
        assert!(computed > 0 && u64::from(accepted[0].n_samples) >= computed.min(256), "{accepted:?}");
        assert_eq!((given.n_refused, given.n_samples_computed), (0, backbone.n_samples_accepted()));
        let evidence = backbone.evidence.borrow();
        assert_eq!(evidence.len(), if recomputed { accepted.len() } else { 0 });
        assert!(evidence.iter().all(|evidence| !self::recomputed(evidence).is_wrong()));
    }
}

/// Each backbone of a run has an authority of its own where none is configured. What was fetched and drawn is not thrown
/// away for that, nor does a contributor that moves wait for a survey of the others' shards once more.
#[test]
fn another_backbone_of_the_run_is_the_same_run() {
    let backbone = Backbone::new(3, ENDLESS);
    let platform = TestPlatform::new(&backbone);
    let (n_described, _) = play(&backbone, &platform, async |mut script| {
        script.send(Command::Start);
        script.until_computed().await;
        backbone.vanish();
        script.until_event(|event| matches!(event, Event::Activity(Activity::Reconnecting { .. }))).await;
        platform.name.set(1);
        backbone.description.borrow_mut().access =
            AccessDescription::open(barnraise_protocol::access::PublicKey([2; 32]));
        let computed = script.n_samples_computed();
        backbone.come_back();
        script.until(|script| script.n_samples_computed() > computed).await;
        let described = |event: &&Event| matches!(event, Event::Described(_));
        script.events.borrow().iter().filter(described).count()
    });
    assert_eq!(n_described, 1);
}
