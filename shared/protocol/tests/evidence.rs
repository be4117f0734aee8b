//! Commitments and evidence: no peer can change what a contributor signed.

use barnraise_protocol::access::{KeyPair, PublicKey};
use barnraise_protocol::bulk::Transfer;
use barnraise_protocol::commitment::{
    Commitment, CommitmentError, SampleId, encode_samples, list_bytes, rounding_seed,
};
use barnraise_protocol::dataset::{Manifest, ShardEntry};
use barnraise_protocol::evidence::{
    self, ContributionEvidence, ENTRIES_MAX, EvidenceEntry, EvidenceError, EvidenceHeader, EvidenceRequest,
    EvidenceResponse,
};
use barnraise_protocol::gradient::Offer;
use barnraise_protocol::run::{
    DataSpec, DecayDescription, GradientCodec, LocalSteps, MESSAGE_BYTES_MAX, OptimizerDescription,
    RunDescription, ScheduleDescription, Scheme, Synchronous, TopK, run_hash,
};
use barnraise_protocol::{ConversationError, Refusal, Sha256Hash, TensorCodec};
use proptest::prelude::*;
use tokio_util::compat::TokioAsyncReadCompatExt;

use crate::fixture;

const N_PARAMETERS: usize = 6;

fn run() -> RunDescription {
    let run = fixture::run();
    let shard = |n_samples| ShardEntry { n_samples, ..run.data.manifest.gallery };
    let manifest = Manifest { shards: vec![shard(3), shard(2)], ..run.data.manifest.clone() };
    let scheme = Synchronous {
        gradient_codec: GradientCodec::F32,
        state_codec: TensorCodec::F16,
        contribution_samples_max: 4,
        recomputed: true,
        ..run.synchronous().unwrap().clone()
    };
    RunDescription {
        data: DataSpec { manifest, shuffle_buffer_samples: 4, augmentation: None },
        scheme: Scheme::Synchronous(scheme),
        ..run
    }
}

fn samples(of: &[(u32, u32)]) -> Vec<u8> {
    let samples: Vec<_> = of.iter().map(|&(shard, index)| SampleId { shard, index }).collect();
    encode_samples(&samples, &run().data.manifest)
}

/// Signed for a list, which has a byte for each sample.
fn sign(run: &RunDescription, offer: &Offer, state: (Sha256Hash, u64), samples: &[u8]) -> Commitment {
    let list = (samples.len() as u32, samples);
    Commitment::sign(&key(), run_hash(run).unwrap(), offer, state, list).unwrap()
}

fn key() -> KeyPair {
    KeyPair::from_seed(&[5; 32])
}

fn evidence() -> ContributionEvidence {
    let run = run();
    let gradient = TensorCodec::F32.encode(&[0.5; N_PARAMETERS]).unwrap();
    let parameters = TensorCodec::F16.encode(&[2.0; N_PARAMETERS]).unwrap();
    let offer = Offer {
        contribution_id: 9,
        epoch: 7,
        n_samples: 3,
        loss: 1.5,
        n_values: N_PARAMETERS as u64,
        codec: TensorCodec::F32,
        transfer: Transfer::of(&gradient),
    };
    let samples = samples(&[(1, 1), (0, 2), (0, 0)]);
    let state = (Sha256Hash::of(&parameters), 7);
    let commitment = sign(&run, &offer, state, &samples);
    let header = EvidenceHeader { peer: key().public(), run, offer, commitment };
    ContributionEvidence { header, samples, gradient, parameters }
}

#[test]
fn evidence_travels_and_says_what_was_signed() {
    let evidence = evidence();
    let decoded = ContributionEvidence::decode(&evidence.encode().unwrap()).unwrap();
    assert_eq!(decoded, evidence);
    let claim = decoded.verify(N_PARAMETERS).unwrap();
    assert_eq!(claim.samples[0], SampleId { shard: 1, index: 1 });
    assert_eq!((claim.samples.len(), claim.gradient[5], claim.parameters[5]), (3, 0.5, 2.0));
}

/// The format in storage, on the wire, and in files of `barnraise evidence`: header, samples, gradient, parameters. The
/// signature covers the hash of the run, the offer and the rest of the commitment.
#[test]
fn golden_bytes() {
    let bytes = evidence().encode().unwrap();
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, GOLDEN);
}

const GOLDEN: &str = "260200006e7a1cdd29b0b78fd13af4c5598feff4ef2a97166e3ca6f2e4fbfccd80505bf1017201740170054c654e6574000c05636f6e763103060505010102020101010101000005706f6f6c310402020202000000000572656c75310b000005636f6e763203100505010100000101010101000005706f6f6c320402020202000000000572656c75320b000007666c617474656e1d000003666331020078010100000572656c75330b000003666332020054010100000572656c75340b0000036663330201010000000001000001640001010101016102030107070707070707070707070707070707070707070707070707070707070707070201070707070707070707070707070707070707070707070707070707070707070701010707070707070707070707070707070707070707070707070707070707070707000000040000800840040000010000000000000000000000cdcccc3d000000010001010101010101010101010101010101010101010101010101010101010101010907030000c03f0600189ba54d57656313e94dc021212d7e07524183ae6401113a0eac079e75d7301d3361c4c67e722d64db1ca9064b3ad6c327bc4a68c7fa9cd4b036e0890cc284ed120718434e3451334bba952b860f9ca9c2f8daf99d6ea362e1a77f0903ada5f90333030863ea3199416722bbcecd35a45cbb9d4b5d0a81650f9a6a018675653f1e74fb3ee93e00b67f24484ca2ce9f82dcdede4f192b1ed8b82f5ccceab95a3383f2040402000000003f0000003f0000003f0000003f0000003f0000003f004000400040004000400040";

#[test]
fn nobody_can_change_what_a_peer_signed_for() {
    type EvidenceChange = fn(&mut ContributionEvidence);
    let forged: [(&str, EvidenceChange); 11] = [
        ("another peer", |e| e.header.peer = KeyPair::from_seed(&[6; 32]).public()),
        ("another run", |e| e.header.run.identity.run_id = "s".into()),
        ("other data", |e| e.header.run.data.manifest.shards[0].sha256 = Sha256Hash([2; 32])),
        ("more samples", |e| e.header.offer.n_samples = 2),
        ("another epoch", |e| e.header.offer.epoch = 8),
        ("another loss", |e| e.header.offer.loss = 1.0),
        ("parameters of another epoch", |e| e.header.commitment.parameters_epoch = 6),
        ("another gradient", |e| e.gradient[0] ^= 1),
        ("other parameters", |e| e.parameters[0] ^= 1),
        ("other samples", |e| e.samples = samples(&[(1, 0), (0, 2), (0, 0)])),
        ("another gradient with its hash", |e| {
            e.gradient[0] ^= 1;
            e.header.offer.transfer = Transfer::of(&e.gradient);
        }),
    ];
    for (what, change) in forged {
        let mut forged = evidence();
        change(&mut forged);
        assert!(forged.verify(N_PARAMETERS).is_err(), "{what}");
    }
}

#[test]
fn parameters_are_of_the_epoch_or_of_the_one_before_where_updates_are_delayed() {
    let signed = |parameters_epoch, delayed_updates| {
        let mut evidence = evidence();
        evidence.header.run.synchronous_mut().unwrap().delayed_updates = delayed_updates;
        let state = (evidence.header.commitment.parameters, parameters_epoch);
        let header = &evidence.header;
        evidence.header.commitment = sign(&header.run, &header.offer, state, &evidence.samples);
        evidence.verify(N_PARAMETERS).is_ok()
    };
    assert!(signed(7, false) && signed(7, true) && signed(6, true));
    assert!(!signed(6, false) && !signed(5, true) && !signed(8, true));
}

/// ContributionEvidence of parameters that are `late` epochs stale, with `n_listed` samples, of which `n_offered` are claimed.
fn is_evidence(
    local_steps: Option<LocalSteps>,
    delayed_updates: bool,
    late: u64,
    (n_listed, n_offered): (usize, u32),
) -> bool {
    let mut evidence = evidence();
    let header = &mut evidence.header;
    header.run.synchronous_mut().unwrap().local_steps = local_steps;
    header.run.synchronous_mut().unwrap().delayed_updates = delayed_updates;
    header.offer.n_samples = n_offered;
    evidence.samples = samples(&[(1, 1), (0, 2), (0, 0), (0, 1), (1, 0)][..n_listed]);
    let state = (header.commitment.parameters, header.offer.epoch - late - u64::from(delayed_updates));
    header.commitment = sign(&header.run, &header.offer, state, &evidence.samples);
    evidence.verify(N_PARAMETERS).is_ok()
}

#[test]
fn late_local_steps_count_less_the_later_they_are() {
    let optimizer = OptimizerDescription::SgdMomentum { momentum: 0.0, nesterov: false, weight_decay: 0.0 };
    let schedule = ScheduleDescription { peak: 0.1, warmup_epochs: 0, decay: DecayDescription::Constant };
    let steps = Some(LocalSteps { steps: 2, optimizer, schedule });
    for delayed in [false, true] {
        for (late, n_offered) in [(0, 4), (1, 2), (2, 1)] {
            assert!(is_evidence(steps, delayed, late, (4, n_offered)), "{late} epochs late");
            assert!(!is_evidence(steps, delayed, late, (4, n_offered + 1)), "{late} epochs late, and more");
        }
        assert!(!is_evidence(steps, delayed, 3, (4, 1)), "too late");
        assert!(!is_evidence(None, delayed, 1, (4, 2)), "without local steps");
        assert!(is_evidence(steps, delayed, 2, (1, 1)), "one counts in any case");
        assert!(!is_evidence(steps, delayed, 0, (0, 1)), "of nothing");
        assert!(!is_evidence(steps, delayed, 1, (5, 2)), "more than a contribution has");
    }
}

#[test]
fn a_list_of_other_samples_is_refused() {
    let check = |list: &[u8]| {
        let evidence = evidence();
        let state = (evidence.header.commitment.parameters, 7);
        let commitment = sign(&evidence.header.run, &evidence.header.offer, state, list);
        commitment.samples(list, &evidence.header.run.data.manifest)
    };
    let ids = [(0, 0), (0, 0), (1, 1)].map(|(shard, index)| SampleId { shard, index });
    assert_eq!(check(&samples(&[(0, 0), (0, 0), (1, 1)])), Ok(ids.to_vec()));
    let (evidence, shorter) = (evidence(), samples(&[(0, 0), (0, 0)]));
    let manifest = &evidence.header.run.data.manifest;
    let refused = evidence.header.commitment.samples(&shorter, manifest);
    assert_eq!(refused, Err(CommitmentError::Length { n_samples: 3, want: 3, got: 2 }));
    let refused = evidence.header.commitment.samples(&samples(&[(0, 0), (0, 0), (0, 0)]), manifest);
    assert_eq!(refused, Err(CommitmentError::Samples));
    // No position is that of a missing sample: the first one of the next shard is another sample.
    for nowhere in [(2, 0), (0, 3), (1, 2), (1, u32::MAX), (u32::MAX, 1)] {
        let list = samples(&[(0, 0), nowhere, (1, 1)]);
        let refused = evidence.header.commitment.samples(&list, manifest);
        assert_eq!(refused, Err(CommitmentError::Length { n_samples: 3, want: 3, got: 2 }), "{nowhere:?}");
    }
    for place in [5, 255] {
        let (n_samples, list) = (5, [place, 0, 1]);
        assert_eq!(check(&list), Err(CommitmentError::NoSample { place: place.into(), n_samples }));
    }
}

/// Shards of these sizes.
fn manifest(sizes: &[u32]) -> Manifest {
    let run = fixture::run();
    let shards =
        sizes.iter().map(|&n_samples| ShardEntry { n_samples, ..run.data.manifest.gallery }).collect();
    Manifest { shards, ..run.data.manifest }
}

#[test]
fn a_sample_takes_as_few_bytes_as_the_data_allow() {
    let bytes = |sizes: &[u32]| list_bytes(1024, &manifest(sizes));
    assert_eq!((bytes(&[1]), bytes(&[256]), bytes(&[256, 1])), (1024, 1024, 2048));
    // Fashion-MNIST: a contribution that fills a step of the default run names its samples in 2 KiB.
    assert_eq!((bytes(&[500; 120]), bytes(&[65_536]), bytes(&[65_536, 1])), (2048, 2048, 3072));
}

#[test]
fn what_cannot_be_recomputed_is_no_evidence() {
    type EvidenceChange = fn(&mut ContributionEvidence);
    let cases: [(&str, EvidenceChange); 6] = [
        ("a run without commitments", |e| e.header.run.synchronous_mut().unwrap().recomputed = false),
        ("another codec", |e| e.header.offer.codec = TensorCodec::F16),
        ("more values than the model has", |e| e.header.offer.n_values = u64::MAX),
        ("more samples than count", |e| e.header.run.synchronous_mut().unwrap().contribution_samples_max = 2),
        ("a sparse codec", |e| {
            let density = barnraise_protocol::codec::Density::from_share(0.5).unwrap();
            let sparsity = barnraise_protocol::codec::Sparsity { density, warmup_epochs: 0 };
            let codec = GradientCodec::TopK(TopK::plain(sparsity.density, sparsity.warmup_epochs));
            e.header.run.synchronous_mut().unwrap().gradient_codec = codec;
            e.header.offer.codec = codec.encoding();
        }),
        ("local steps by adam", |e| {
            let optimizer =
                OptimizerDescription::Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.0 };
            let schedule =
                ScheduleDescription { peak: 0.1, warmup_epochs: 0, decay: DecayDescription::Constant };
            e.header.run.synchronous_mut().unwrap().local_steps =
                Some(LocalSteps { steps: 2, optimizer, schedule });
        }),
    ];
    for (what, change) in cases {
        let mut forged = evidence();
        change(&mut forged);
        let state = (forged.header.commitment.parameters, 7);
        // A dishonest peer signs its claim too.
        forged.header.commitment = sign(&forged.header.run, &forged.header.offer, state, &forged.samples);
        assert!(forged.verify(N_PARAMETERS).is_err(), "{what}");
    }
}

#[tokio::test]
async fn evidence_is_listed_and_pulled() {
    let bytes = evidence().encode().unwrap();
    let listed = EvidenceEntry { peer: key().public(), transfer: Transfer::of(&bytes) };
    let (a, b) = tokio::io::duplex(1 << 16);
    let (mut a, mut b) = (a.compat(), b.compat());
    let lookup = async |request| match request {
        EvidenceRequest::List => (EvidenceResponse::Listed(vec![listed]), None),
        EvidenceRequest::Get(peer) if peer == listed.peer => {
            (EvidenceResponse::Found(listed.transfer), Some(bytes.clone()))
        }
        EvidenceRequest::Get(_) => (EvidenceResponse::Refused(Refusal::unavailable("nothing")), None),
    };
    let giving = evidence::serve(&mut a, lookup, || ());
    let asking = async {
        assert_eq!(evidence::list(&mut b).await.unwrap(), [listed]);
        let pulled = evidence::fetch(&mut b, listed, 1 << 20).await.unwrap();
        assert_eq!(ContributionEvidence::decode(&pulled).unwrap(), evidence());
        let other = EvidenceEntry { peer: PublicKey([0; 32]), ..listed };
        let refused = evidence::fetch(&mut b, other, 1 << 20).await.unwrap_err();
        assert!(matches!(refused, ConversationError::Refused(_)), "{refused}");
        // ContributionEvidence larger than the run's is not pulled.
        assert!(evidence::fetch(&mut b, listed, 10).await.is_err());
        drop(b);
    };
    let (_, ()) = futures::join!(giving, asking);
}

#[tokio::test]
async fn another_piece_than_was_listed_is_not_pulled() {
    let (a, b) = tokio::io::duplex(1 << 16);
    let (mut a, mut b) = (a.compat(), b.compat());
    let lookup = async |_| (EvidenceResponse::Found(Transfer::of(b"another")), Some(b"another".to_vec()));
    let giving = evidence::serve(&mut a, lookup, || ());
    let asking = async {
        let listed = EvidenceEntry { peer: key().public(), transfer: Transfer::of(b"other") };
        let refused = evidence::fetch(&mut b, listed, 1 << 20).await.unwrap_err();
        drop(b);
        refused
    };
    let (_, refused) = futures::join!(giving, asking);
    assert!(matches!(refused, ConversationError::Mismatch { want: 5, got: 7, .. }), "{refused}");
}

#[test]
fn a_header_is_as_long_as_a_description_and_a_little_more() {
    let refused = |n_bytes: usize| {
        let length = u32::try_from(n_bytes).unwrap().to_le_bytes();
        ContributionEvidence::decode(&[&length[..], &vec![0xff; n_bytes]].concat()).unwrap_err()
    };
    let max = MESSAGE_BYTES_MAX + 8 * 1024;
    assert!(matches!(refused(max), EvidenceError::Header(_)), "it is looked at");
    for n_bytes in [max + 1, max + 1000] {
        assert!(matches!(refused(n_bytes), EvidenceError::Malformed("a huge header")), "{n_bytes}");
    }
}

#[tokio::test]
async fn more_than_may_be_listed_is_an_error() {
    let one = EvidenceEntry { peer: PublicKey([3; 32]), transfer: Transfer::of(&[]) };
    let listed = async |n_entries: usize| {
        let (a, b) = tokio::io::duplex(1 << 16);
        let (mut a, mut b) = (a.compat(), b.compat());
        let lookup = async |_| (EvidenceResponse::Listed(vec![one; n_entries]), None::<Vec<u8>>);
        let giving = evidence::serve(&mut a, lookup, || ());
        let asking = async {
            let listed = evidence::list(&mut b).await;
            drop(b);
            listed
        };
        futures::join!(giving, asking).1
    };
    assert_eq!(listed(ENTRIES_MAX).await.unwrap(), [one; ENTRIES_MAX]);
    let refused = listed(ENTRIES_MAX + 1).await;
    assert!(matches!(refused, Err(ConversationError::Mismatch { want: 64, got: 65, .. })), "{refused:?}");
}

#[test]
fn a_gradient_is_rounded_by_the_hashes_of_its_parameters_and_samples() {
    let seed = rounding_seed(Sha256Hash([1; 32]), Sha256Hash([2; 32]));
    assert_eq!(seed, 0xbcc3_6d7a_d3af_18f8, "as all peers round");
    let commitment = evidence().header.commitment;
    assert_eq!(commitment.rounding_seed(), rounding_seed(commitment.parameters, commitment.samples));
    let others = Commitment { samples: commitment.parameters, ..commitment.clone() };
    assert_ne!(commitment.rounding_seed(), others.rounding_seed());
}

proptest! {
    /// For any shards, a decoded list is the one that was encoded.
    #[test]
    fn lists_travel(sizes in prop::collection::vec(1u32..70_000, 1..20), seeds in prop::collection::vec(any::<u64>(), 0..50)) {
        let manifest = manifest(&sizes);
        let pick = |seed: &u64| {
            let shard = seed % sizes.len() as u64;
            let index = (seed >> 32) as u32 % sizes[shard as usize];
            SampleId { shard: shard as u32, index }
        };
        let list: Vec<SampleId> = seeds.iter().map(pick).collect();
        let bytes = encode_samples(&list, &manifest);
        prop_assert_eq!(bytes.len() as u64, list_bytes(list.len() as u32, &manifest));
        let (evidence, n) = (evidence(), list.len() as u32);
        let state = (evidence.header.commitment.parameters, 7);
        let run = run_hash(&evidence.header.run).unwrap();
        let commitment = Commitment::sign(&key(), run, &evidence.header.offer, state, (n, &bytes)).unwrap();
        prop_assert_eq!(commitment.samples(&bytes, &manifest), Ok(list));
    }

    /// Bytes that changed on the way are no evidence, or say the same of the same peer.
    #[test]
    fn mutated_evidence_convicts_nobody(at in 0usize..500, bit in 0u8..8) {
        let whole = evidence();
        let mut bytes = whole.encode().unwrap();
        let at = at % bytes.len();
        bytes[at] ^= 1 << bit;
        if let Ok(mutated) = ContributionEvidence::decode(&bytes) {
            prop_assert!(mutated.verify(N_PARAMETERS).is_err() || mutated == whole);
        }
    }

    #[test]
    fn any_bytes_are_evidence_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        match ContributionEvidence::decode(&bytes) {
            Ok(evidence) => prop_assert!(evidence.verify(N_PARAMETERS).is_err()),
            Err(EvidenceError::Malformed(_) | EvidenceError::Header(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
}
