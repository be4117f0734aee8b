//! A contributor and a backbone in memory: both halves of every conversation, also with cut streams, corrupt data and
//! a backbone that vanishes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod backbone;
#[path = "contribute/pacing.rs"]
mod pacing;
#[path = "contribute/sampled.rs"]
mod sampled;

use std::cell::RefCell;
use std::rc::Rc;

use barnraise_contributor::{
    COMMANDS_MAX, Config, ContributorCommand, ContributorEvent, Credentials, Platform, contribute, trainer,
};
use barnraise_learning::{ComputeDevice, ModelError, ParameterLayout, Precision};
use barnraise_protocol::access::{AccessDescription, AccessMode};
use barnraise_protocol::bulk::CHUNK_BYTES;
use barnraise_protocol::codec::Density;
use barnraise_protocol::error::{NewerThanRun, OlderThanRun};
use barnraise_protocol::evidence::ContributionEvidence;
use barnraise_protocol::gradient::Accepted;
use barnraise_protocol::run::{
    self, Augmentation, DecayDescription, GradientCodec, LocalSteps, OptimizerDescription, Preset,
    ScheduleDescription, SlowLinks, TopK,
};
use barnraise_protocol::shard::{self, ShardId};
use barnraise_protocol::state;
use barnraise_swarm::activity::{Activity, Contribution, Interruption};
use barnraise_swarm::recomputation::Difference;
use futures::channel::mpsc;
use tokio::task::LocalSet;

use backbone::peers::{HolderBehaviour, PlatformWithPeers};
use backbone::{
    InMemoryBackbone, MICRO_BATCH, SLOW_CODEC, TestPlatform, contributor_key, shard as samples_of,
};

/// More than any test computes: the epoch goes on for ever.
const ENDLESS: u32 = 10_000_000;
/// Messages and chunk headers around the bytes of a transfer.
const OVERHEAD_BYTES: u64 = 4096;

/// Handle of a test on the running contributor.
struct Script {
    backbone: Rc<InMemoryBackbone>,
    commands: mpsc::Sender<ContributorCommand>,
    events: Rc<RefCell<Vec<ContributorEvent>>>,
}

impl Script {
    fn send(&mut self, command: ContributorCommand) {
        self.commands.try_send(command).unwrap();
    }

    /// Waits for something to happen until `condition` holds.
    async fn until(&self, mut condition: impl FnMut(&Self) -> bool) {
        while !condition(self) {
            self.backbone.happened.notified().await;
        }
    }

    async fn until_event(&self, wanted: impl Fn(&ContributorEvent) -> bool) {
        self.until(|script| script.events.borrow().iter().any(&wanted)).await;
    }

    async fn until_computed(&self) {
        self.until_event(
            |event| matches!(event, ContributorEvent::Contribution(given) if given.n_samples_computed > 0),
        )
        .await;
    }

    fn n_samples_computed(&self) -> u64 {
        let computed = |event: &ContributorEvent| match event {
            ContributorEvent::Contribution(given) => Some(given.n_samples_computed),
            _ => None,
        };
        self.events.borrow().iter().rev().find_map(computed).unwrap_or(0)
    }

    fn activities(&self) -> Vec<Activity> {
        let activity = |event: &ContributorEvent| match event {
            ContributorEvent::Activity(activity) => Some(activity.clone()),
            _ => None,
        };
        self.events.borrow().iter().filter_map(activity).collect()
    }
}

/// Runs a contributor concurrently with `script`; when the script ends, the contributor delivers and ends.
fn play<T>(
    backbone: &Rc<InMemoryBackbone>,
    platform: &Rc<TestPlatform>,
    script: impl AsyncFnOnce(Script) -> T,
) -> (T, Contribution) {
    play_on(backbone, &**platform, script)
}

fn play_on<T>(
    backbone: &Rc<InMemoryBackbone>,
    platform: &impl Platform,
    script: impl AsyncFnOnce(Script) -> T,
) -> (T, Contribution) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let (commands, receiver) = mpsc::channel(COMMANDS_MAX);
    let events = Rc::<RefCell<Vec<ContributorEvent>>>::default();
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

/// The contributor reports both versions at once, before it computes anything.
#[test]
fn a_run_of_a_newer_version_is_left_with_the_reason() {
    let backbone = InMemoryBackbone::new(3, 64);
    backbone.speaks.set("/barnraise/run/999");
    let platform = TestPlatform::new(&backbone);
    let (reason, given) = play(&backbone, &platform, async |mut script| {
        script.send(ContributorCommand::Start);
        let is_broken =
            |event: &ContributorEvent| matches!(event, ContributorEvent::Activity(Activity::Broken { .. }));
        script.until_event(is_broken).await;
        let activities = script.activities();
        let Some(Activity::Broken { reason }) = activities.last() else { panic!("{activities:?}") };
        reason.clone()
    });
    let Interruption::OlderThanRun(OlderThanRun { ours, theirs }) = &reason else { panic!("{reason:?}") };
    assert_eq!((&ours[..], &theirs[..]), (run::PROTOCOL, "/barnraise/run/999"));
    for part in ["older than the run", run::PROTOCOL, "/barnraise/run/999", "reload"] {
        assert!(reason.to_string().contains(part), "{part} is missing in: {reason}");
    }
    assert_eq!(given.n_samples_computed, 0);
}

#[test]
fn a_run_of_the_version_before_is_waited_for() {
    let backbone = InMemoryBackbone::new(3, 64);
    let [.., before] = run::OLDER_PROTOCOLS;
    backbone.speaks.set(before);
    let platform = TestPlatform::new(&backbone);
    play(&backbone, &platform, async |mut script| {
        script.send(ContributorCommand::Start);
        let names_both = |event: &ContributorEvent| {
            matches!(event, ContributorEvent::Activity(Activity::Reconnecting {
                reason: Interruption::NewerThanRun(NewerThanRun { ours, theirs }), ..
            }) if theirs == before && ours == run::PROTOCOL)
        };
        script.until_event(names_both).await;
        // Its operator updates it.
        script.backbone.speaks.set(run::PROTOCOL);
        script.until(|script| script.backbone.epoch() >= 1).await;
    });
}

#[test]
fn two_epochs_are_trained_and_every_contribution_has_a_receipt() {
    let backbone = InMemoryBackbone::new(3, 64);
    let platform = TestPlatform::new(&backbone);
    let ((activities, events), given) = play(&backbone, &platform, async |mut script| {
        script.send(ContributorCommand::Start);
        script.until(|script| script.backbone.epoch() >= 2).await;
        let is_measured = |event: &ContributorEvent| matches!(event, ContributorEvent::Contribution(given) if given.samples_per_second > 0.0);
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
    let backbone = InMemoryBackbone::new(1, ENDLESS);
    let platform = TestPlatform::new(&backbone);
    platform.cuts.borrow_mut().insert(state::PROTOCOL, 150_000);
    play(&backbone, &platform, async |mut script| {
        script.send(ContributorCommand::Start);
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
    let backbone = InMemoryBackbone::new(1, ENDLESS);
    let platform = TestPlatform::new(&backbone);
    platform.cuts.borrow_mut().insert(shard::PROTOCOL, 100_000);
    play(&backbone, &platform, async |mut script| {
        script.send(ContributorCommand::Start);
        script.until_computed().await;
    });
    let n_bytes = backbone.shard_transfer(ShardId::Numbered(0)).0.n_bytes;
    let n_read = platform.n_read(shard::PROTOCOL);
    assert!(n_bytes > 100_000 && n_read >= n_bytes, "{n_read} of {n_bytes}");
    assert!(n_read < n_bytes + CHUNK_BYTES as u64 + OVERHEAD_BYTES, "{n_read} of {n_bytes}");
}

#[test]
fn a_shard_that_peers_break_off_goes_on_elsewhere() {
    let backbone = InMemoryBackbone::new(1, ENDLESS);
    let platform = TestPlatform::new(&backbone);
    let peers = PlatformWithPeers::new(&platform, &[HolderBehaviour::BreaksOff(100_000); 2]);
    let ((), given) = play_on(&backbone, &peers, async |mut script| {
        script.send(ContributorCommand::Start);
        script.until_computed().await;
    });
    let n_bytes = backbone.shard_transfer(ShardId::Numbered(0)).0.n_bytes;
    let from_peers = 2 * CHUNK_BYTES as u64;
    assert_eq!(given.shards.bytes_from_peers, from_peers, "a whole chunk of each");
    assert_eq!((given.shards.n_failed, given.shards.n_wrong), (2, 0));
    assert_eq!(given.shards.bytes_from_backbone, n_bytes - from_peers);
    assert!(platform.n_read(shard::PROTOCOL) < n_bytes - from_peers + OVERHEAD_BYTES);
}

#[test]
fn wrong_bytes_are_refused_and_their_sender_is_not_asked_again() {
    let backbone = InMemoryBackbone::new(2, ENDLESS);
    let platform = TestPlatform::new(&backbone);
    let mut peers = PlatformWithPeers::new(&platform, &[HolderBehaviour::WrongBytes]);
    peers.room = backbone.shard_transfer(ShardId::Numbered(0)).0.n_bytes * 3 / 2;
    let ((), given) = play_on(&backbone, &peers, async |mut script| {
        script.send(ContributorCommand::Start);
        // More than the first shard has.
        script.until(|script| script.n_samples_computed() > 300).await;
    });
    let senders = peers.wrong_senders.take();
    assert_eq!((peers.asked.take(), senders.len()), (senders, 1));
    assert_eq!((given.shards.n_failed, given.shards.n_wrong), (0, 1));
    assert!(given.shards.bytes_from_backbone > given.shards.bytes_from_peers, "{:?}", given.shards);
    assert_eq!(platform.cache.borrow().len(), 1, "the first was evicted for the second");
}

#[test]
fn peers_spare_the_backbone_its_shards() {
    let backbone = InMemoryBackbone::new(2, ENDLESS);
    let platform = TestPlatform::new(&backbone);
    let peers = PlatformWithPeers::new(&platform, &[HolderBehaviour::Honest]);
    let ((), given) = play_on(&backbone, &peers, async |mut script| {
        script.send(ContributorCommand::Start);
        script.until(|script| script.n_samples_computed() > 300).await;
    });
    assert_eq!(given.shards.bytes_from_backbone, 0);
    assert_eq!(platform.n_read(shard::PROTOCOL), 0);
    assert!(given.shards.bytes_from_peers > backbone.shard_transfer(ShardId::Numbered(0)).0.n_bytes);
    assert_eq!(platform.cache.borrow().len(), 2);
}

#[test]
fn stopping_delivers_what_is_finished() {
    let backbone = InMemoryBackbone::new(1, ENDLESS);
    let platform = TestPlatform::new(&backbone);
    let ((), given) = play(&backbone, &platform, async |mut script| {
        script.send(ContributorCommand::Start);
        script.until_computed().await;
        script.send(ContributorCommand::Stop);
        script.until(|script| script.activities().ends_with(&[Activity::Idle])).await;
        let delivered = script.backbone.n_samples_accepted();
        assert!(delivered > 0);
        let newest = script.events.borrow().iter().rev().find_map(|event| match event {
            ContributorEvent::Contribution(given) => Some(given.clone()),
            _ => None,
        });
        assert!(newest.unwrap().n_samples_computed >= delivered);
    });
    assert_eq!(given.n_samples_computed, backbone.n_samples_accepted());
}

#[test]
fn a_corrupt_cached_shard_is_fetched_again_and_a_whole_one_is_not() {
    let backbone = InMemoryBackbone::new(1, ENDLESS);
    let (transfer, bytes) = backbone.shard_transfer(ShardId::Numbered(0));
    for is_corrupt in [true, false] {
        let platform = TestPlatform::new(&backbone);
        let mut cached = bytes.to_vec();
        cached[1000] ^= u8::from(is_corrupt);
        platform.cache.borrow_mut().insert(transfer.sha256, cached);
        play(&backbone, &platform, async |mut script| {
            script.send(ContributorCommand::Start);
            script.until_computed().await;
        });
        assert_eq!(platform.n_read(shard::PROTOCOL) > 0, is_corrupt);
        assert_eq!(platform.cache.borrow()[&transfer.sha256], bytes.to_vec());
    }
}

#[test]
fn a_backbone_that_vanishes_is_found_again() {
    let backbone = InMemoryBackbone::new(3, 64);
    let platform = TestPlatform::new(&backbone);
    let ((), given) = play(&backbone, &platform, async |mut script| {
        script.send(ContributorCommand::Start);
        script.until(|script| script.backbone.epoch() >= 1).await;
        script.backbone.vanish();
        script
            .until_event(|event| matches!(event, ContributorEvent::Activity(Activity::Reconnecting { .. })))
            .await;
        let epoch = script.backbone.epoch();
        script.backbone.come_back();
        script.until(|script| script.backbone.epoch() >= epoch + 2).await;
    });
    assert_eq!(given.n_samples_accepted, backbone.n_samples_accepted());
}

#[test]
fn predictions_and_the_gallery_need_no_contributing() {
    let backbone = InMemoryBackbone::new(1, ENDLESS);
    let platform = TestPlatform::new(&backbone);
    let ((), given) = play(&backbone, &platform, async |mut script| {
        script.send(ContributorCommand::Predict { request: 9, pixels: vec![0; 784] });
        script.send(ContributorCommand::LoadGallery);
        script.until_event(|event| matches!(event, ContributorEvent::Gallery { .. })).await;
        script.until_event(|event| matches!(event, ContributorEvent::Prediction { .. })).await;
        for event in script.events.borrow().iter() {
            match event {
                ContributorEvent::Prediction { request, epoch, probabilities } => {
                    assert_eq!((*request, *epoch, probabilities.len()), (9, 0, 4));
                    assert!((probabilities.iter().sum::<f32>() - 1.0).abs() < 1e-5);
                }
                ContributorEvent::Gallery { images, labels } => assert_eq!(images.len(), labels.len() * 784),
                ContributorEvent::Failed { message } => panic!("{message}"),
                _ => {}
            }
        }
        // Bytes that are no image are refused, and the next request is served.
        script.send(ContributorCommand::Predict { request: 10, pixels: vec![0; 3] });
        script.until_event(|event| matches!(event, ContributorEvent::Failed { .. })).await;
        script.send(ContributorCommand::Predict { request: 11, pixels: vec![255; 784] });
        script.until_event(|event| matches!(event, ContributorEvent::Prediction { request: 11, .. })).await;
    });
    assert_eq!((given.n_samples_computed, backbone.n_samples_accepted()), (0, 0));
}

/// Events of a visit without a backbone, after a visit with one.
fn without_a_backbone(between: impl FnOnce(&TestPlatform)) -> Vec<ContributorEvent> {
    let backbone = InMemoryBackbone::new(1, ENDLESS);
    let platform = TestPlatform::new(&backbone);
    let ask = async |script: &mut Script| {
        script.send(ContributorCommand::Predict { request: 1, pixels: vec![9; 784] });
        script.send(ContributorCommand::LoadGallery);
        let is_answer = |event: &ContributorEvent| {
            matches!(event, ContributorEvent::Prediction { .. } | ContributorEvent::Failed { .. })
        };
        let is_gallery = |event: &ContributorEvent| matches!(event, ContributorEvent::Gallery { .. });
        script.until_event(is_answer).await;
        script
            .until(|script| {
                let events = script.events.borrow();
                let n_failed =
                    events.iter().filter(|event| matches!(event, ContributorEvent::Failed { .. })).count();
                events.iter().any(is_gallery) || n_failed >= 1
            })
            .await;
        script.events.borrow().clone()
    };
    let (first, _) = play(&backbone, &platform, async |mut script| ask(&mut script).await);
    assert!(!first.iter().any(|event| matches!(event, ContributorEvent::Failed { .. })), "{first:?}");
    backbone.vanish();
    between(&platform);
    let (second, _) = play(&backbone, &platform, async |mut script| ask(&mut script).await);
    let answer = |events: &[ContributorEvent]| {
        events.iter().find(|event| matches!(event, ContributorEvent::Prediction { .. })).cloned()
    };
    assert!(answer(&second).is_none() || answer(&second) == answer(&first), "the same model");
    second
}

#[test]
fn a_visitor_without_a_backbone_is_answered_by_the_cached_model() {
    let events = without_a_backbone(|_| ());
    assert!(events.iter().any(|event| matches!(event, ContributorEvent::Prediction { .. })), "{events:?}");
    assert!(events.iter().any(|event| matches!(event, ContributorEvent::Gallery { .. })), "{events:?}");
}

#[test]
fn a_damaged_cached_model_answers_nothing() {
    let events = without_a_backbone(|platform| {
        let mut model = platform.model.borrow_mut();
        *model.as_mut().and_then(|model| model.last_mut()).unwrap() ^= 1;
    });
    assert!(!events.iter().any(|event| matches!(event, ContributorEvent::Prediction { .. })), "{events:?}");
    let is_reported = |event: &ContributorEvent| matches!(event, ContributorEvent::Failed { message } if message.contains("nobody is there"));
    assert!(events.iter().any(is_reported), "{events:?}");
}

#[test]
fn a_contributor_that_was_woken_finds_its_backbone_at_once() {
    let backbone = InMemoryBackbone::new(3, 64);
    let platform = TestPlatform::new(&backbone);
    let ((), given) = play(&backbone, &platform, async |mut script| {
        script.send(ContributorCommand::Start);
        script.until(|script| script.backbone.epoch() >= 1).await;
        // A connection that lasted is left alone.
        script.send(ContributorCommand::Woke);
        let epoch = script.backbone.epoch();
        script.until(|script| script.backbone.epoch() >= epoch + 2).await;
        let lost = |event: &ContributorEvent| {
            matches!(event, ContributorEvent::Activity(Activity::Reconnecting { .. }))
        };
        assert!(!script.events.borrow().iter().any(lost));
        script.backbone.vanish();
        script.until_event(lost).await;
        script.backbone.come_back();
        script.send(ContributorCommand::Woke);
        let epoch = script.backbone.epoch();
        script.until(|script| script.backbone.epoch() > epoch).await;
    });
    assert_eq!(given.n_samples_accepted, backbone.n_samples_accepted());
}

#[test]
fn a_run_whose_model_is_too_large_to_hold_is_not_joined() {
    let backbone = InMemoryBackbone::new(1, 64);
    backbone.description.borrow_mut().model.graph = Preset::Mlp { hidden: vec![u32::MAX] }.graph();
    let platform = TestPlatform::new(&backbone);
    play(&backbone, &platform, async |mut script| {
        script.send(ContributorCommand::Start);
        script
            .until_event(|event| matches!(event, ContributorEvent::Activity(Activity::Broken { .. })))
            .await;
    });
    assert_eq!(platform.n_read(barnraise_protocol::contribute::PROTOCOL), 0);
}

#[test]
fn who_has_no_invitation_is_told_so_and_gets_no_gallery() {
    let backbone = InMemoryBackbone::new(1, 64);
    backbone.description.borrow_mut().access.mode = AccessMode::Invitation;
    let platform = TestPlatform::new(&backbone);
    play(&backbone, &platform, async |mut script| {
        script.send(ContributorCommand::LoadGallery);
        script.until_event(|event| matches!(event, ContributorEvent::NoGallery { .. })).await;
        script.send(ContributorCommand::Start);
        let is_shut_out = |event: &ContributorEvent| {
            matches!(
                event,
                ContributorEvent::Activity(Activity::NotAdmitted { reason: Interruption::NoInvitation })
            )
        };
        script.until_event(is_shut_out).await;
    });
    assert_eq!(platform.n_read(barnraise_protocol::contribute::PROTOCOL), 0);
}

#[test]
fn a_receipt_that_does_not_verify_is_reported_and_not_passed_on() {
    let backbone = InMemoryBackbone::new(3, 64);
    backbone.is_forging.set(true);
    let platform = TestPlatform::new(&backbone);
    let (events, given) = play(&backbone, &platform, async |mut script| {
        script.send(ContributorCommand::Start);
        let is_reported = |event: &ContributorEvent| matches!(event, ContributorEvent::Failed { message } if message.contains("not signed by its reducer"));
        script.until_event(is_reported).await;
        Rc::clone(&script.events)
    });
    assert!(events.borrow().iter().filter_map(accepted_by_receipt).next().is_none());
    assert_eq!(given.n_samples_accepted, backbone.n_samples_accepted(), "it counts nevertheless");
}

fn accepted_by_receipt(event: &ContributorEvent) -> Option<Accepted> {
    match event {
        ContributorEvent::Receipt(receipt) => Some(receipt.accepted()),
        _ => None,
    }
}

fn top_k(share: f64, warmup_epochs: u32) -> TopK {
    TopK::plain(Density::from_share(share).unwrap(), warmup_epochs)
}

#[test]
fn gradients_are_sent_as_the_run_says() {
    let corrected = |warmup_epochs| {
        let plain = top_k(0.01, warmup_epochs);
        GradientCodec::TopK(TopK { momentum: 0.9, masking: true, clip_norm: Some(5.0), ..plain })
    };
    for (codec, at_least) in [
        (GradientCodec::Int4, 7),
        // A quarter of the values in the first two epochs, then 1 %.
        (corrected(2), 7),
        (corrected(0), 180),
    ] {
        let backbone = InMemoryBackbone::with_codec(3, 64, codec);
        let platform = TestPlatform::new(&backbone);
        let ((), given) = play(&backbone, &platform, async |mut script| {
            script.send(ContributorCommand::Start);
            script.until(|script| script.backbone.epoch() >= 4).await;
        });
        assert_eq!((given.n_refused, given.last_refusal), (0, None), "{codec:?}");
        let n_values = backbone.state_bytes() as usize / 4;
        for offer in &*backbone.offers.borrow() {
            assert_eq!(offer.codec, codec.encoding());
            let lengths = offer.codec.encoded_len_at(n_values, offer.epoch);
            assert!(lengths.contains(&(offer.transfer.n_bytes as usize)), "{offer:?}");
            assert!(offer.transfer.n_bytes < backbone.state_bytes() / at_least, "{offer:?}");
        }
    }
}

#[test]
fn with_delayed_updates_batches_are_computed_while_a_gradient_is_on_its_way() {
    let backbone = InMemoryBackbone::new(3, 64);
    backbone.description.borrow_mut().synchronous_mut().unwrap().delayed_updates = true;
    backbone.is_holding.set(true);
    let platform = TestPlatform::new(&backbone);
    let ((), given) = play(&backbone, &platform, async |mut script| {
        script.send(ContributorCommand::Start);
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

/// Three local steps per contribution.
fn local_steps() -> Option<LocalSteps> {
    let schedule = ScheduleDescription { peak: 0.001, warmup_epochs: 2, decay: DecayDescription::Constant };
    let optimizer = OptimizerDescription::Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.0 };
    Some(LocalSteps { steps: 3, optimizer, schedule })
}

#[test]
fn local_steps_are_contributed_as_gradients_are_also_a_round_behind() {
    for (is_delayed, codec) in [
        (false, GradientCodec::F16),
        (false, GradientCodec::TopK(top_k(0.01, 0))),
        (true, GradientCodec::Int8),
    ] {
        let backbone = InMemoryBackbone::with_codec(3, 96, codec);
        backbone.description.borrow_mut().synchronous_mut().unwrap().local_steps = local_steps();
        backbone.description.borrow_mut().synchronous_mut().unwrap().delayed_updates = is_delayed;
        let platform = TestPlatform::new(&backbone);
        let ((), given) = play(&backbone, &platform, async |mut script| {
            script.send(ContributorCommand::Start);
            script.until(|script| script.backbone.epoch() >= 5).await;
        });
        assert_eq!((given.n_refused, given.last_refusal), (0, None), "{codec:?}");
        assert_eq!(given.n_samples_accepted, backbone.n_samples_accepted());
        assert!(given.loss.unwrap().is_finite());
    }
}

#[test]
fn a_trajectory_that_diverges_is_refused_before_it_is_sent() {
    let backbone = InMemoryBackbone::new(3, 64);
    let diverging = LocalSteps {
        steps: 4,
        optimizer: OptimizerDescription::SgdMomentum { momentum: 0.0, nesterov: false, weight_decay: 0.0 },
        schedule: ScheduleDescription { peak: 1e37, warmup_epochs: 0, decay: DecayDescription::Constant },
    };
    backbone.description.borrow_mut().synchronous_mut().unwrap().local_steps = Some(diverging);
    let platform = TestPlatform::new(&backbone);
    let ((), given) = play(&backbone, &platform, async |mut script| {
        script.send(ContributorCommand::Start);
        let is_refused = |event: &ContributorEvent| matches!(event, ContributorEvent::Contribution(given) if given.n_refused > 0);
        script.until_event(is_refused).await;
    });
    assert_eq!((given.n_accepted, backbone.offers.borrow().len()), (0, 0));
    assert!(given.last_refusal.unwrap().contains("not finite"));
}

#[test]
fn an_epoch_that_ends_early_takes_nothing_from_a_contributor_that_keeps_late_gradients() {
    let backbone = InMemoryBackbone::with_codec(3, ENDLESS, GradientCodec::TopK(top_k(0.01, 0)));
    let platform = TestPlatform::new(&backbone);
    let ((), given) = play(&backbone, &platform, async |mut script| {
        script.send(ContributorCommand::Start);
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

/// Recomputes a contribution from its commitment.
fn recomputed(evidence: &ContributionEvidence) -> Difference {
    recomputed_with(evidence, evidence.header.run.data.augmentation)
}

/// The same with pictures changed in this way.
fn recomputed_with(evidence: &ContributionEvidence, augmentation: Option<Augmentation>) -> Difference {
    let run = &evidence.header.run;
    let n_parameters = ParameterLayout::of_run(run).unwrap().n_parameters();
    let claim = evidence.verify(n_parameters).unwrap();
    let mut run = run.clone();
    run.data.augmentation = augmentation;
    let mut trainer = trainer(&run, run.synchronous().unwrap(), None, ComputeDevice::cpu()).unwrap();
    trainer.load_parameters(&claim.parameters).unwrap();
    trainer.on_epoch(evidence.header.commitment.parameters_epoch);
    for ids in claim.samples.chunks(MICRO_BATCH as usize) {
        let mut batch = samples_of(0).none_of();
        ids.iter().for_each(|id| batch.push(&samples_of(id.shard.into()), id.index as usize));
        let epoch = evidence.header.commitment.parameters_epoch;
        futures::executor::block_on(trainer.accumulate_samples(&batch, epoch)).unwrap();
    }
    let mean = futures::executor::block_on(trainer.take_mean_gradient()).unwrap().unwrap();
    let encoding = (evidence.header.offer.codec, evidence.header.commitment.rounding_seed());
    Difference::between(&claim.gradient, &mean.values, encoding, 1e-4).unwrap()
}

#[test]
fn mixed_precision_is_refused_where_contributions_are_recomputed() {
    let backbone = InMemoryBackbone::with_codec(3, 48, GradientCodec::F32);
    let mixed = ComputeDevice::cpu().with_precision(Precision::F16).unwrap();
    let refused = |recomputed| {
        let mut description = backbone.description.borrow_mut();
        description.synchronous_mut().unwrap().recomputed = recomputed;
        let trainer = trainer(&description, description.synchronous().unwrap(), None, mixed.clone());
        matches!(trainer, Err(ModelError::MixedPrecision))
    };
    assert!(refused(true) && !refused(false));
}

#[test]
fn contributions_match_their_commitments() {
    let optimizer = OptimizerDescription::SgdMomentum { momentum: 0.9, nesterov: true, weight_decay: 0.0 };
    let with_momentum = local_steps().map(|steps| LocalSteps { optimizer, ..steps });
    let augmentation =
        Some(Augmentation { crop_padding: 1, flip: true, brightness: 0.2, contrast: 0.2, cutout: 2 });
    for (is_delayed, codec, local_steps, augmentation) in [
        (false, GradientCodec::F32, None, None),
        (true, GradientCodec::F16, None, None),
        (false, GradientCodec::Int8, None, None),
        (false, GradientCodec::F32, with_momentum, None),
        (true, GradientCodec::Int8, with_momentum, None),
        (true, GradientCodec::F32, None, augmentation),
        (false, GradientCodec::F32, with_momentum, augmentation),
    ] {
        let backbone = InMemoryBackbone::with_codec(3, 48, codec);
        {
            let mut description = backbone.description.borrow_mut();
            description.synchronous_mut().unwrap().recomputed = true;
            description.synchronous_mut().unwrap().local_steps = local_steps;
            description.synchronous_mut().unwrap().delayed_updates = is_delayed;
            description.data.augmentation = augmentation;
        }
        let platform = TestPlatform::new(&backbone);
        let ((), given) = play(&backbone, &platform, async |mut script| {
            script.send(ContributorCommand::Start);
            script.until(|script| script.backbone.epoch() >= 3).await;
        });
        assert_eq!(given.n_refused, 0, "{given:?}");
        let evidence = backbone.evidence.borrow();
        assert!(evidence.len() >= 3, "{} contributions", evidence.len());
        for evidence in evidence.iter() {
            let difference = recomputed(evidence);
            let case = (codec, is_delayed, local_steps, augmentation);
            assert!(!difference.is_wrong(), "{case:?}: {difference:?}");
            if augmentation.is_some() {
                let of_unchanged = recomputed_with(evidence, None);
                assert!(of_unchanged.is_wrong(), "{case:?}: {of_unchanged:?}");
            }
        }
    }
}

#[test]
fn gradients_travel_as_the_uplink_allows() {
    for (below_bytes_per_second, is_slow) in [(u64::MAX, true), (1, false)] {
        let backbone = InMemoryBackbone::with_codec(3, 48, GradientCodec::F16);
        let slow = SlowLinks { below_bytes_per_second, codec: SLOW_CODEC };
        backbone.description.borrow_mut().synchronous_mut().unwrap().slow_links = Some(slow);
        let platform = TestPlatform::new(&backbone);
        let ((), given) = play(&backbone, &platform, async |mut script| {
            script.send(ContributorCommand::Start);
            script.until(|script| script.backbone.epoch() >= 3).await;
        });
        assert_eq!(given.n_refused, 0, "{given:?}");
        let offers = backbone.offers.borrow();
        let later = if is_slow { SLOW_CODEC } else { GradientCodec::F16 };
        assert_eq!(offers[0].codec, SLOW_CODEC.encoding(), "nothing was sent before it");
        assert!(
            offers.len() >= 3 && offers[1..].iter().all(|offer| offer.codec == later.encoding()),
            "{offers:?}"
        );
    }
}

#[test]
fn late_local_steps_are_offered_by_themselves_where_they_are_recomputed() {
    let backbone = InMemoryBackbone::with_codec(3, ENDLESS, GradientCodec::F16);
    {
        let mut description = backbone.description.borrow_mut();
        description.synchronous_mut().unwrap().recomputed = true;
        let optimizer =
            OptimizerDescription::SgdMomentum { momentum: 0.9, nesterov: true, weight_decay: 0.0 };
        description.synchronous_mut().unwrap().local_steps =
            local_steps().map(|steps| LocalSteps { optimizer, ..steps });
    }
    let platform = TestPlatform::new(&backbone);
    let n_taken = || backbone.evidence.borrow().len();
    let ((), given) = play(&backbone, &platform, async |mut script| {
        script.send(ContributorCommand::Start);
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
        let (offer, commitment) = (&evidence.header.offer, &evidence.header.commitment);
        if commitment.parameters_epoch < offer.epoch {
            assert_eq!(offer.n_samples, commitment.n_samples / 2);
            n_late += 1;
        }
        assert!(!recomputed(evidence).is_wrong());
    }
    assert!(n_late >= 2, "{n_late} of {}", n_taken());
}

/// A backbone may have counted an offer that was cut: at another backbone it would count twice.
#[test]
fn a_contribution_that_one_backbone_may_have_counted_is_not_offered_to_another() {
    for is_other in [false, true] {
        let backbone = InMemoryBackbone::new(3, 64);
        backbone.is_holding_answers.set(true);
        let platform = TestPlatform::new(&backbone);
        let cut = play(&backbone, &platform, async |mut script| {
            script.send(ContributorCommand::Start);
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

/// Whether it was offered by then or not, as long as the first backbone did not request it. Signed contributions are
/// signed again for the second backbone's description.
#[test]
fn a_contribution_for_one_backbone_counts_at_another() {
    for (is_offered, recomputed) in [(false, false), (true, false), (false, true), (true, true)] {
        let backbone = InMemoryBackbone::new(3, ENDLESS);
        backbone.description.borrow_mut().synchronous_mut().unwrap().recomputed = recomputed;
        backbone.is_holding.set(true);
        let platform = TestPlatform::new(&backbone);
        let (computed, given) = play(&backbone, &platform, async |mut script| {
            script.send(ContributorCommand::Start);
            match is_offered {
                true => script.until(|script| script.backbone.n_held.get() > 0).await,
                false => script.until_computed().await,
            }
            script.backbone.vanish();
            let is_away = |event: &ContributorEvent| {
                matches!(event, ContributorEvent::Activity(Activity::Reconnecting { .. }))
            };
            script.until_event(is_away).await;
            let computed = script.n_samples_computed();
            platform.name.set(1);
            backbone.description.borrow_mut().access =
                AccessDescription::open(barnraise_protocol::access::PublicKey([2; 32]));
            script.backbone.release();
            script.backbone.come_back();
            script.until(|script| script.backbone.n_samples_accepted() > 0).await;
            script.send(ContributorCommand::Stop);
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

/// Each backbone of a run has an authority of its own where none is configured. A contributor that changes backbones
/// keeps its shards and samples, and does not wait for another survey.
#[test]
fn another_backbone_of_the_run_is_the_same_run() {
    let backbone = InMemoryBackbone::new(3, ENDLESS);
    let platform = TestPlatform::new(&backbone);
    let (n_described, _) = play(&backbone, &platform, async |mut script| {
        script.send(ContributorCommand::Start);
        script.until_computed().await;
        backbone.vanish();
        script
            .until_event(|event| matches!(event, ContributorEvent::Activity(Activity::Reconnecting { .. })))
            .await;
        platform.name.set(1);
        backbone.description.borrow_mut().access =
            AccessDescription::open(barnraise_protocol::access::PublicKey([2; 32]));
        let computed = script.n_samples_computed();
        backbone.come_back();
        script.until(|script| script.n_samples_computed() > computed).await;
        let described = |event: &&ContributorEvent| matches!(event, ContributorEvent::Described(_));
        script.events.borrow().iter().filter(described).count()
    });
    assert_eq!(n_described, 1);
}
