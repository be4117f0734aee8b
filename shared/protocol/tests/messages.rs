//! Every message of every conversation: golden bytes, round trip, declared length, and mutated bytes.

use barnraise_protocol::access::{
    AccessDescription, AccessMode, AccessRefusal, PublicKey, Signature, UnixTime,
};
use barnraise_protocol::average;
use barnraise_protocol::bulk::{self, Pull, Transfer};
use barnraise_protocol::codec::{Density, Sparsity, TensorCodec};
use barnraise_protocol::commitment::Commitment;
use barnraise_protocol::contribute::{self, DeviceKind, Join, Report, RunProgress};
use barnraise_protocol::dataset::{
    DataStream, ImageShape, LabelledImages, Manifest, SampleKind, Samples, ShardEntry, TokenSequences,
    TokenShape,
};
use barnraise_protocol::evidence;
use barnraise_protocol::framing::{self, HEADER_BYTES};
use barnraise_protocol::gradient::{self, ContributionRefusal, Offer};
use barnraise_protocol::matchmaking;
use barnraise_protocol::receipt::{Receipt, SignedReceipt};
use barnraise_protocol::reduce;
use barnraise_protocol::run::{
    self, Augmentation, DataSpec, DecayDescription, GradientCodec, HostedExperts, LocalSteps,
    OptimizerDescription, Preset, RunDescription, RunIdentity, ScheduleDescription, Scheme, SignedRun,
    SlowLinks, Synchronous, TopK,
};
use barnraise_protocol::shard::{self, ShardId};
use barnraise_protocol::state::{self, StateHeader};
use barnraise_protocol::{DisplayName, PROTOCOL_VERSION, Refusal, RefusalReason, Sha256Hash};
use proptest::prelude::*;

use crate::golden::{check, hex};

const HASH: Sha256Hash = Sha256Hash([0xab; 32]);
const TRANSFER: Transfer = Transfer { n_bytes: 300, sha256: HASH };

fn hash_hex() -> String {
    "ab".repeat(32)
}

fn description() -> RunDescription {
    let entry = ShardEntry { n_samples: 5, n_bytes: 40, sha256: HASH };
    RunDescription {
        identity: RunIdentity { run_id: "r".into(), title: "t".into(), purpose: "p".into() },
        model: Preset::Mlp { hidden: Vec::new() }.model(300),
        data: DataSpec {
            manifest: Manifest {
                name: "d".into(),
                samples: SampleKind::Images {
                    shape: ImageShape { height: 28, width: 28, channels: 1 },
                    class_names: vec!["a".into()],
                },
                shards: vec![entry],
                gallery: entry,
                frozen: Vec::new(),
                preprocessing: None,
                stream: None,
            },
            shuffle_buffer_samples: 2000,
            augmentation: None,
        },
        scheme: Scheme::Synchronous(synchronous()),
        access: AccessDescription::open(PublicKey([0xcd; 32])),
    }
}

/// Plain SGD at the rate 1.
const OPTIMIZER: &str = "00000000000000000000";
const SCHEDULE: &str = "0000803f0000";

fn synchronous() -> Synchronous {
    Synchronous {
        target_batch_size: 1024,
        micro_batch_size: 64,
        contribution_samples_max: 8192,
        gradient_codec: GradientCodec::F16,
        slow_links: None,
        state_codec: TensorCodec::F32,
        delayed_updates: false,
        optimizer: OptimizerDescription::plain_sgd(),
        schedule: ScheduleDescription::constant(1.0),
        local_steps: None,
        recomputed: false,
    }
}

#[test]
fn run_messages() {
    let max = run::MESSAGE_BYTES_MAX;
    check(&run::ContributorToBackbone::Describe, max, "00");
    check(&run::BackboneToContributor::Refused(Refusal::unavailable("no")), max, "010c026e6f");
    check(&run::BackboneToContributor::Newer { speaks: "/x".into() }, max, "02022f78");
    let (key, entry) = ("cd".repeat(32), format!("0528{}", hash_hex()));
    let data = format!("0164001c1c0101016101{entry}{entry}000000d00f00");
    // A name, no parts, three blocks of a name, an operation, no inputs and nothing shared, the loss, the seed, weights that
    // are drawn, and no hosted experts.
    let blocks = ["06706978656c73 1f 0000", "07666c617474656e 1d 0000", "03666331 02010100 0000"].concat();
    let model = format!("066c696e656172 00 03 {blocks} 00 ac02 00 00");
    let golden =
        format!("00017201740170 {model} {data} 00800840804001000000 {OPTIMIZER} {SCHEDULE} 0000 00{key}");
    let golden = golden.replace(' ', "");
    let signed = |signature| {
        run::BackboneToContributor::Description(Box::new(SignedRun { run: description(), signature }))
    };
    check(&signed(None), max, &format!("{golden}00"));
    check(&signed(Some(Signature::from([7; 64]))), max, &format!("{golden}01{}", "07".repeat(64)));
}

#[test]
fn hosted_experts() {
    let (optimizer, schedule) = (OptimizerDescription::plain_sgd(), ScheduleDescription::constant(1.0));
    let hosted = HostedExperts { optimizer, schedule, codec: TensorCodec::F16 };
    check(&Some(hosted), 64, &format!("01{OPTIMIZER}{SCHEDULE}01"));
    check(&None::<HostedExperts>, 64, "00");
}

#[test]
fn changes_of_pictures() {
    let augmentation =
        Augmentation { crop_padding: 4, flip: true, brightness: 0.5, contrast: 0.25, cutout: 300 };
    check(&Some(augmentation), 64, "0104010000003f0000803eac02");
    check(&None::<Augmentation>, 64, "00");
}

#[test]
fn choices_within_synchronous_training() {
    let plain = format!("00800840804001000000{OPTIMIZER}{SCHEDULE}0000");
    check(&Scheme::Synchronous(synchronous()), 256, &plain);
    let slow_links = Some(SlowLinks { below_bytes_per_second: 300, codec: GradientCodec::Int8 });
    check(
        &Synchronous { slow_links, ..synchronous() },
        256,
        &format!("80084080400101ac02020000{OPTIMIZER}{SCHEDULE}0000"),
    );
    let sgd = OptimizerDescription::SgdMomentum { momentum: 0.5, nesterov: true, weight_decay: 0.0 };
    let adam = OptimizerDescription::Adam { beta1: 0.5, beta2: 0.25, epsilon: 1.0, weight_decay: 2.0 };
    let cosine = DecayDescription::Cosine { epochs: 300, floor: 0.5 };
    for (optimizer, decay, hex) in [
        (sgd, DecayDescription::Constant, "000000003f01000000000000803f0300"),
        (adam, cosine, "010000003f0000803e0000803f000000400000803f0301ac020000003f"),
        (
            sgd,
            DecayDescription::Linear { epochs: 1, floor: 0.0 },
            "000000003f01000000000000803f03020100000000",
        ),
        (sgd, DecayDescription::Step { every: 2, factor: 0.5 }, "000000003f01000000000000803f0303020000003f"),
    ] {
        let schedule = ScheduleDescription { peak: 1.0, warmup_epochs: 3, decay };
        let local_steps = Some(LocalSteps { steps: 16, optimizer, schedule });
        let golden = format!("800840804001000000{OPTIMIZER}{SCHEDULE}0110{hex}00");
        check(&Synchronous { local_steps, ..synchronous() }, 256, &golden);
        let golden = format!("800840804001000000{}0000", &hex);
        check(&Synchronous { optimizer, schedule, ..synchronous() }, 256, &golden);
    }
    let lamb = OptimizerDescription::Lamb { beta1: 0.5, beta2: 0.25, epsilon: 1.0, weight_decay: 2.0 };
    check(&lamb, 64, "020000003f0000803e0000803f00000040");
    let lars = OptimizerDescription::Lars { momentum: 0.5, trust_coefficient: 0.25, weight_decay: 2.0 };
    check(&lars, 64, "030000003f0000803e00000040");
}

#[test]
fn choices_within_a_description() {
    for (mode, golden) in
        [(AccessMode::Open, "00"), (AccessMode::Invitation, "01"), (AccessMode::Allowlist, "02")]
    {
        check(&mode, 64, golden);
    }
    let density = Density::from_share(0.01).unwrap();
    let corrected = TopK { momentum: 0.5, masking: true, clip_norm: Some(1.0), ..TopK::plain(density, 300) };
    check(&GradientCodec::TopK(corrected), 64, "04904eac020000003f01010000803f");
    check(&GradientCodec::Int4, 64, "03");
    check(&TensorCodec::TopK(Sparsity { density, warmup_epochs: 300 }), 64, "04904eac02");
}

#[test]
fn what_a_text_run_adds_to_the_description() {
    let tokens = SampleKind::Tokens(TokenShape { length: 64, vocabulary: 300, mask: Some(1) });
    check(&tokens, 64, "0140ac020101");
    let unmasked = SampleKind::Tokens(TokenShape { length: 64, vocabulary: 300, mask: None });
    check(&unmasked, 64, "0140ac0200");
    let stream = DataStream { sources: Sha256Hash([0xab; 32]), shard_samples: 300, window_shards: 256 };
    check(&stream, 64, &format!("{}ac028002", "ab".repeat(32)));
}

#[test]
fn state_messages() {
    let max = state::MESSAGE_BYTES_MAX;
    check(&state::ContributorToBackbone::GetLatest, max, "00");
    check(&state::ContributorToBackbone::GetEpoch(300), max, "01ac02");
    let header = StateHeader { epoch: 7, n_values: 75, codec: TensorCodec::F32, transfer: TRANSFER };
    let golden = format!("00074b00ac02{}", hash_hex());
    check(&state::BackboneToContributor::Found(header), max, &golden);
    let stale = Refusal::Stale { epoch: 300, newest: 301 };
    check(&state::BackboneToContributor::Refused(stale), max, "010aac02ad02");
}

#[test]
fn shard_messages() {
    let max = shard::MESSAGE_BYTES_MAX;
    check(&shard::ContributorToBackbone::Get(ShardId::Numbered(300)), max, "0000ac02");
    check(&shard::ContributorToBackbone::Get(ShardId::Gallery), max, "0001");
    check(&shard::ContributorToBackbone::Get(ShardId::Streamed(300)), max, "0002ac02");
    check(&shard::ContributorToBackbone::Get(ShardId::Window), max, "0003");
    check(&shard::ContributorToBackbone::Get(ShardId::Preprocessing), max, "0004");
    // As the manifest has it.
    check(&Some(TRANSFER), max, &format!("01ac02{}", hash_hex()));
    check(&shard::BackboneToContributor::Found(TRANSFER), max, &format!("00ac02{}", hash_hex()));
    check(&shard::BackboneToContributor::Refused(Refusal::NoShard), max, "010b");
}

#[test]
fn contribute_messages() {
    use contribute::{BackboneToContributor as Down, ContributorToBackbone as Up, MESSAGE_BYTES_MAX as MAX};
    let join =
        Join { run_id: "r".into(), device: DeviceKind::BrowserCpu, device_name: "d".into(), name: None };
    check(&Up::Join(join.clone()), MAX, "00017201016400");
    for (device, byte) in [
        (DeviceKind::BrowserWebGpu, "00"),
        (DeviceKind::BrowserCpu, "01"),
        (DeviceKind::NativeCpu, "02"),
        (DeviceKind::NativeWgpu, "03"),
        (DeviceKind::NativeCuda, "04"),
    ] {
        check(&device, 64, byte);
    }
    let named = Join { name: DisplayName::new("Ada").ok(), ..join };
    check(&Up::Join(named), MAX, "0001720101640103416461");
    let report = Report { epoch: 1, contribution_id: 300, n_samples: 64, samples_per_second: 1.0 };
    check(&Up::Report(report), MAX, "0101ac02400000803f");
    let progress = RunProgress {
        epoch: 2,
        n_samples: 3,
        target_batch_size: 4,
        n_contributors: 5,
        samples_per_second: 0.0,
        train_loss: None,
        test_accuracy: Some(1.0),
    };
    check(&Down::Welcome(progress), MAX, "00020304050000000000010000803f");
    check(&Down::EpochStarted(9), MAX, "0109");
    check(&Down::GradientDue(9), MAX, "0209");
    check(&Down::Progress(progress), MAX, "03020304050000000000010000803f");
    check(&Down::Refused(Refusal::Paused { reason: RefusalReason::of("x") }), MAX, "04000178");
    check(&Down::OtherBackbones(vec!["/a".into(), "/b".into()]), MAX, "0502022f61022f62");
}

#[test]
fn gradient_messages() {
    use gradient::{BackboneToContributor as Down, ContributorToBackbone as Up, MESSAGE_BYTES_MAX as MAX};
    let offer = Offer {
        contribution_id: 1,
        epoch: 2,
        n_samples: 3,
        loss: 1.0,
        n_values: 4,
        codec: TensorCodec::Int8,
        transfer: TRANSFER,
    };
    let commitment = Commitment {
        parameters: HASH,
        parameters_epoch: 2,
        samples: HASH,
        n_samples: 6,
        signature: Signature::from([0x33; 64]),
    };
    let golden = format!("000102030000803f0402ac02{}", hash_hex());
    check(&Up::Offer(offer.clone(), None, Vec::new()), MAX, &format!("{golden}0000"));
    let committed = format!("{golden}01{}02{}06{}", hash_hex(), hash_hex(), "33".repeat(64));
    check(&Up::Offer(offer, Some(commitment), vec![7, 0, 9, 0]), MAX, &format!("{committed}0407000900"));
    check(&Down::Checking { n_left: 2 }, MAX, "0302");
    check(&Down::Wanted, MAX, "00");
    let receipt = Receipt {
        run_id: "r".into(),
        peer: PublicKey([0x11; 32]),
        reducer: PublicKey([0x22; 32]),
        contribution_id: 1,
        epoch: 2,
        n_samples: 3,
        n_bytes: 300,
        milliseconds: 4,
        issued_at: UnixTime(5),
    };
    let signature = Signature::from([0x33; 64]);
    let (peer, reducer, signed) = ("11".repeat(32), "22".repeat(32), "33".repeat(64));
    let golden = format!("010172{peer}{reducer}010203ac020405{signed}");
    check(&Down::Accepted(SignedReceipt { receipt, signature }), MAX, &golden);
    let refusals = [
        (ContributionRefusal::Epoch { want: 1, got: 2 }, "000102"),
        (ContributionRefusal::Length { want: 1, got: 2 }, "010102"),
        (ContributionRefusal::Bytes { want: 1, got: 2 }, "020102"),
        (ContributionRefusal::Codec { want: TensorCodec::F16, got: TensorCodec::F32 }, "030100"),
        (ContributionRefusal::Samples { max: 1, got: 2 }, "040102"),
        (ContributionRefusal::Rate { max: 1, got: 2 }, "050102"),
        (ContributionRefusal::NotFinite { index: 3 }, "0603"),
        (ContributionRefusal::Duplicate { contribution_id: 3 }, "0703"),
        (ContributionRefusal::Transfer("x".into()), "080178"),
        (ContributionRefusal::NotJoined, "09"),
        (ContributionRefusal::Storage, "0a"),
        (ContributionRefusal::Busy, "0b"),
        (ContributionRefusal::NoAccess(Refusal::Convicted), "0c03"),
        (ContributionRefusal::Norm { max: 1.0, got: 2.0 }, "0d0000803f00000040"),
        (ContributionRefusal::Commitment("x".into()), "0e0178"),
        (ContributionRefusal::Repeated("x".into()), "0f0178"),
        (ContributionRefusal::TooFew { min: 1, got: 2 }, "100102"),
        (ContributionRefusal::TooMany { epoch: 3 }, "1103"),
    ];
    for (refusal, golden) in refusals {
        check(&Down::Refused(refusal), MAX, &format!("02{golden}"));
    }
}

#[test]
fn evidence_messages() {
    use evidence::{EvidenceEntry, EvidenceRequest, EvidenceResponse, MESSAGE_BYTES_MAX as MAX};
    let peer = PublicKey([0x11; 32]);
    check(&EvidenceRequest::List, MAX, "00");
    check(&EvidenceRequest::Get(peer), MAX, &format!("01{}", "11".repeat(32)));
    let listed = EvidenceResponse::Listed(vec![EvidenceEntry { peer, transfer: TRANSFER }]);
    check(&listed, MAX, &format!("0001{}ac02{}", "11".repeat(32), hash_hex()));
    check(&EvidenceResponse::Found(TRANSFER), MAX, &format!("01ac02{}", hash_hex()));
    check(&EvidenceResponse::Refused(Refusal::unavailable("x")), MAX, "020c0178");
}

#[test]
fn average_messages() {
    use average::{Finished, Join, JoinRefusal, ReducerToMember};
    let max = average::MESSAGE_BYTES_MAX;
    let members = [0, 2, 70].into_iter().collect();
    let behind = [1, 200].into_iter().collect();
    let join = Join { group: HASH, part: 300, attempt: 1, n_samples: 300, behind, is_whole: true };
    // Position 200 is bit 8 of the last of four words.
    check(&join, max, &format!("{}ac0201ac02020000800201", hash_hex()));
    let finished = Finished { members, n_samples: 300, behind, is_whole: false };
    for (message, golden) in [
        (ReducerToMember::Granted { window_chunks: 8 }, "0008"),
        (ReducerToMember::Refused(JoinRefusal::UnknownGroup), "0100"),
        (ReducerToMember::Refused(JoinRefusal::NotAMember), "0101"),
        (ReducerToMember::Refused(JoinRefusal::NotReducer { part: 2, attempt: 1 }), "01020201"),
        (ReducerToMember::Refused(JoinRefusal::Duplicate), "0103"),
        (ReducerToMember::Refused(JoinRefusal::Busy), "0104"),
        (ReducerToMember::Refused(JoinRefusal::Weight { want: 2, got: 300 }), "010502ac02"),
        (ReducerToMember::Refused(JoinRefusal::Behind), "0106"),
        (ReducerToMember::Finished(finished), "0205400000ac02020000800200"),
    ] {
        check(&message, max, golden);
    }
}

#[test]
fn pulls() {
    check(&Pull::Chunks { first: 300, count: 8 }, 64, "00ac0208");
    check(&Pull::Done, 64, "01");
    // Index, length, CRC-32, bytes.
    assert_eq!(hex(&bulk::packed(300, b"ab")), "2c010000020000006162");
}

/// Shards as backbones store and serve them: this version reads those that any version compressed.
#[test]
fn shards() {
    let decode = |shard: &[u8], samples: SampleKind, n_samples| {
        let n_bytes = shard.len() as u32;
        let entry = ShardEntry { n_samples, n_bytes, sha256: Sha256Hash::of(shard) };
        Samples::decode(shard, &entry, &Manifest { samples, ..description().data.manifest })
    };
    let shape = ImageShape { height: 1, width: 2, channels: 1 };
    let kind = SampleKind::Images { shape, class_names: vec!["a".into(), "b".into()] };
    let pictures = Samples::Images(LabelledImages { images: vec![1, 2, 3, 250], labels: vec![1, 0] });
    assert_eq!(decode(&bytes(PICTURES), kind, 2), Ok(pictures));
    let kind = SampleKind::Tokens(TokenShape { length: 4, vocabulary: 70_001, mask: Some(1) });
    let text = Samples::Tokens(TokenSequences { length: 4, ids: vec![3, 4, 300, 70_000] });
    assert_eq!(decode(&bytes(TEXT), kind, 1), Ok(text));
}

/// Pictures row by row, then the labels.
const PICTURES: &str = "78da636462fec5c8000003120102";
/// The lower two bytes of each token, then the third ones.
const TEXT: &str = "78da63666061d0612c1064606060040004b500b7";

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len() / 2).map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap()).collect()
}

/// Any bytes decode to a message or an error: never a panic, never an allocation beyond their length.
fn decode_everything(bytes: &[u8]) {
    let _ = framing::decode::<run::ContributorToBackbone>(bytes, run::MESSAGE_BYTES_MAX);
    let _ = framing::decode::<run::BackboneToContributor>(bytes, run::MESSAGE_BYTES_MAX);
    let _ = framing::decode::<state::ContributorToBackbone>(bytes, state::MESSAGE_BYTES_MAX);
    let _ = framing::decode::<state::BackboneToContributor>(bytes, state::MESSAGE_BYTES_MAX);
    let _ = framing::decode::<shard::ContributorToBackbone>(bytes, shard::MESSAGE_BYTES_MAX);
    let _ = framing::decode::<shard::BackboneToContributor>(bytes, shard::MESSAGE_BYTES_MAX);
    let _ = framing::decode::<contribute::ContributorToBackbone>(bytes, contribute::MESSAGE_BYTES_MAX);
    let _ = framing::decode::<contribute::BackboneToContributor>(bytes, contribute::MESSAGE_BYTES_MAX);
    let _ = framing::decode::<average::Join>(bytes, average::MESSAGE_BYTES_MAX);
    let _ = framing::decode::<average::ReducerToMember>(bytes, average::MESSAGE_BYTES_MAX);
    let _ = framing::decode::<matchmaking::Hello>(bytes, matchmaking::MESSAGE_BYTES_MAX);
    let _ = framing::decode::<matchmaking::HelloResponse>(bytes, matchmaking::MESSAGE_BYTES_MAX);
    let _ = framing::decode::<matchmaking::MatchmakingMessage>(bytes, matchmaking::MESSAGE_BYTES_MAX);
    let _ = framing::decode::<reduce::Offer>(bytes, reduce::MESSAGE_BYTES_MAX);
    let _ = framing::decode::<reduce::BackboneToReducer>(bytes, reduce::MESSAGE_BYTES_MAX);
    let _ = framing::decode::<gradient::ContributorToBackbone>(bytes, gradient::MESSAGE_BYTES_MAX);
    let _ = framing::decode::<gradient::BackboneToContributor>(bytes, gradient::MESSAGE_BYTES_MAX);
    let _ = framing::decode::<evidence::EvidenceRequest>(bytes, evidence::MESSAGE_BYTES_MAX);
    let _ = framing::decode::<evidence::EvidenceResponse>(bytes, evidence::MESSAGE_BYTES_MAX);
    let _ = evidence::ContributionEvidence::decode(bytes).map(|evidence| evidence.verify(1000));
    let _ = evidence::AnswerEvidence::decode(bytes).map(|evidence| evidence.verify());
    let _ = framing::decode::<Pull>(bytes, 64);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_payload_is_decoded_or_refused(mut payload in proptest::collection::vec(any::<u8>(), 0..300)) {
        let length = (payload.len() as u32).to_le_bytes();
        payload.splice(0..0, [&[PROTOCOL_VERSION], length.as_slice()].concat());
        decode_everything(&payload);
    }

    #[test]
    fn any_bytes_are_a_shard_or_refused(
        bytes in proptest::collection::vec(any::<u8>(), 0..300),
        n_samples in 0u32..1000,
    ) {
        // The hash is right, so that what follows it is reached.
        let sha256 = Sha256Hash::of(&bytes);
        let entry = ShardEntry { n_samples, n_bytes: bytes.len() as u32, sha256 };
        let mut manifest = description().data.manifest;
        let _ = Samples::decode(&bytes, &entry, &manifest);
        manifest.samples = SampleKind::Tokens(TokenShape { length: 7, vocabulary: 100, mask: Some(1) });
        let _ = Samples::decode(&bytes, &entry, &manifest);
    }

    #[test]
    fn a_mutated_description_never_panics(at in 0usize..200, value: u8) {
        let message = run::BackboneToContributor::Description(Box::new(SignedRun { run: description(), signature: None }));
        let mut frame = framing::encode(&message, run::MESSAGE_BYTES_MAX).unwrap();
        let at = HEADER_BYTES + at % (frame.len() - HEADER_BYTES);
        frame[at] = value;
        let decoded = framing::decode::<run::BackboneToContributor>(&frame, run::MESSAGE_BYTES_MAX);
        if let Ok(run::BackboneToContributor::Description(mutated)) = decoded {
            let _ = mutated.run.data.manifest.validate();
            let _ = mutated.run.data.manifest.n_samples();
        }
    }
}

#[test]
fn matchmaking_messages() {
    use barnraise_protocol::matchmaking::{
        AggregatorStatus, Hello, HelloRefusal, HelloResponse, MESSAGE_BYTES_MAX, MatchmakingMessage,
        ModelVersion, Proposal, ProposedMember, ProposedReducer, Ready, Reducer,
    };
    let max = MESSAGE_BYTES_MAX;
    let hash = hash_hex();
    check(&Hello { run_id: "barn".into(), recipe: HASH }, max, &format!("046261726e{hash}"));
    check(&HelloResponse::Welcome, max, "00");
    let other_run = HelloRefusal::OtherRun { here: RefusalReason::of("x"), asked: RefusalReason::of("y") };
    for (refusal, golden) in
        [(HelloRefusal::NotNamed, "0100"), (other_run, "010101780179"), (HelloRefusal::OtherRecipe, "0102")]
    {
        check(&HelloResponse::Refused(refusal), max, golden);
    }
    let model = ModelVersion { n_samples_total: 300, epoch: 7, hash: HASH };
    let standing = AggregatorStatus {
        model,
        n_samples: 5,
        n_contributors: 2,
        samples_per_second: 1.0,
        is_closing: true,
        ready: Some(Ready { n_samples: 5, loss: 0.5 }),
        is_busy: false,
        download_bytes_per_s: 2.0,
        upload_bytes_per_s: 4.0,
        is_reachable: true,
    };
    let golden = format!("00ac0207{hash}05020000803f0101050000003f00000000400000804001");
    check(&MatchmakingMessage::Status(standing), max, &golden);
    let members = vec![ProposedMember { peer: vec![1, 2], n_samples: 5, n_reduced: 300 }];
    let reducers = vec![ProposedReducer { peer: vec![3], n_reduced: 300 }];
    let proposal =
        Proposal { model, nonce: 9, group_size: 300, members, reducers, check_seed: 300, loss: 0.5 };
    check(&MatchmakingMessage::Addresses(vec!["/a".into()]), max, "0201022f61");
    let golden = format!("01ac0207{hash}09ac020102010205ac02010103ac02ac020000003f");
    check(&MatchmakingMessage::Proposal(proposal), max, &golden);
    let reducer = Reducer {
        peer: vec![3],
        download_bytes_per_s: 2.0,
        upload_bytes_per_s: 4.0,
        addresses: vec![vec![4, 5]],
    };
    assert_eq!(reducer.check(), Ok(()));
    assert_eq!(Reducer { addresses: vec![vec![0; 128]; 4], ..reducer.clone() }.check(), Ok(()));
    for bad in [
        Reducer { addresses: vec![vec![]; 5], ..reducer.clone() },
        Reducer { addresses: vec![vec![0; 129]], ..reducer.clone() },
        Reducer { download_bytes_per_s: f32::NAN, ..reducer.clone() },
        Reducer { upload_bytes_per_s: 0.0, ..reducer.clone() },
    ] {
        assert!(bad.check().is_err(), "{bad:?}");
    }
    check(&MatchmakingMessage::Reducers(vec![reducer]), max, "03010103000000400000804001020405");
}

#[test]
fn reduce_messages() {
    use barnraise_protocol::matchmaking::Reducer;
    use barnraise_protocol::reduce::{
        BackboneToReducer, MESSAGE_BYTES_MAX, Offer, ReducerRound, RoundMember,
    };
    let max = MESSAGE_BYTES_MAX;
    let reducer = Reducer {
        peer: vec![3],
        download_bytes_per_s: 2.0,
        upload_bytes_per_s: 4.0,
        addresses: vec![vec![4, 5]],
    };
    check(&Offer { run_id: "r".into(), reducer }, max, "01720103000000400000804001020405");
    check(&BackboneToReducer::Welcome, max, "00");
    let round = ReducerRound {
        name: vec![7, 8],
        members: vec![RoundMember { peer: vec![3], n_samples: 0, receives: false, n_reduced: 300 }],
        n_values: 300,
        codec: TensorCodec::F16,
        patience_ms: 1,
        reducer_timeout_ms: 2,
        deadline_ms: 300,
    };
    check(&BackboneToReducer::Round(round), max, "020207080101030000ac02ac02010102ac02");
    check(&BackboneToReducer::KeepAlive, max, "03");
}

#[test]
fn refusals_of_reducers() {
    use barnraise_protocol::matchmaking::ReducerError;
    use barnraise_protocol::reduce::{BackboneToReducer, MESSAGE_BYTES_MAX, OfferRefusal};
    let reason = || RefusalReason::of("x");
    let other_run = OfferRefusal::OtherRun { here: reason(), asked: RefusalReason::of("y") };
    for (refusal, golden) in [
        (OfferRefusal::Access(AccessRefusal::NoInvitation), "010003"),
        (OfferRefusal::Blocked { reason: reason() }, "01010178"),
        (OfferRefusal::Invalid(ReducerError::Addresses(300)), "010200ac02"),
        (OfferRefusal::Invalid(ReducerError::AddressBytes(300)), "010201ac02"),
        (OfferRefusal::Invalid(ReducerError::Speed(0.5)), "0102020000003f"),
        (other_run, "010301780179"),
        (OfferRefusal::OtherPeer, "0104"),
        (OfferRefusal::OneBackbone, "0105"),
        (OfferRefusal::Backbone, "0106"),
        (OfferRefusal::NoReducers, "0107"),
        (OfferRefusal::NotNamed { peer: reason() }, "01080178"),
        (OfferRefusal::WrongMean, "0109"),
        (OfferRefusal::Suspended { wait_s: 300 }, "010aac02"),
        (OfferRefusal::Full { n_reducers: 16 }, "010b10"),
    ] {
        check(&BackboneToReducer::Refused(refusal), MESSAGE_BYTES_MAX, golden);
    }
}

#[test]
fn model_messages() {
    use barnraise_protocol::matchmaking::ModelVersion;
    use barnraise_protocol::model::{
        MESSAGE_BYTES_MAX, ModelRefusal, ModelRequest, ModelResponse, StepHeader,
    };
    let max = MESSAGE_BYTES_MAX;
    let hash = hash_hex();
    let model = ModelVersion { n_samples_total: 300, epoch: 7, hash: HASH };
    check(&ModelRequest::StepAfter(model), max, &format!("00ac0207{hash}"));
    check(&ModelRequest::Checkpoint { is_shared: true }, max, "0101");
    let header = StepHeader {
        epoch: 7,
        before: HASH,
        nonce: 9,
        n_samples: 300,
        loss: 0.5,
        members: vec![vec![1, 2]],
        transfer: TRANSFER,
    };
    check(&ModelResponse::Step(header), max, &format!("0007{hash}09ac020000003f01020102ac02{hash}"));
    check(&ModelResponse::Checkpoint(TRANSFER), max, &format!("01ac02{hash}"));
    check(&ModelResponse::UpToDate, max, "02");
    let unknown = ModelRefusal::UnknownModel { epoch: 300, hash: HASH };
    check(&ModelResponse::Refused(unknown), max, &format!("0300ac02{hash}"));
    check(&ModelResponse::Refused(ModelRefusal::NoCheckpoint), max, "0301");
    let storage = ModelRefusal::Storage { reason: RefusalReason::of("x") };
    check(&ModelResponse::Refused(storage), max, "03020178");
}

#[test]
fn refusals() {
    let reason = || RefusalReason::of("x");
    let golden = [
        (Refusal::Paused { reason: reason() }, "000178"),
        (Refusal::Blocked { reason: reason() }, "010178"),
        (Refusal::Access(AccessRefusal::NoInvitation), "0203"),
        (Refusal::Convicted, "03"),
        (Refusal::OtherRun { here: reason(), asked: RefusalReason::of("y") }, "0401780179"),
        (Refusal::Full { n_contributors: 300 }, "05ac02"),
        (Refusal::Evicted, "06"),
        (Refusal::NotJoined, "07"),
        (Refusal::DeviceName, "08"),
        (Refusal::TooManySamples { max: 2, got: 300 }, "0902ac02"),
        (Refusal::Stale { epoch: 300, newest: 301 }, "0aac02ad02"),
        (Refusal::NoShard, "0b"),
        (Refusal::unavailable("x"), "0c0178"),
    ];
    for (refusal, bytes) in golden {
        check(&refusal, contribute::MESSAGE_BYTES_MAX, bytes);
    }
}
