//! Audits of experts: what a host signs, what a trainer shows a backbone, and evidence that others can check.

use barnraise_protocol::Sha256Hash;
use barnraise_protocol::access::{ConvictedWork, KeyPair, UnixTime};
use barnraise_protocol::bulk::Transfer;
use barnraise_protocol::codec::TensorCodec;
use barnraise_protocol::evidence::{AnswerEvidence, AnswerHeader, Evidence, EvidenceError};
use barnraise_protocol::experts::audits::{
    self, ANSWERS_MAX, AuditError, AuditOffer, AuditRefusal, AuditReply, KeptAnswer, MESSAGE_BYTES_MAX,
    OfferedAnswer,
};
use barnraise_protocol::experts::checkpoints::{CheckpointVersion, ExpertCheckpoint};
use barnraise_protocol::experts::leases::{ExpertLease, LeaseGrant};
use barnraise_protocol::experts::{
    AnswerSigner, DIMENSIONS_MAX, ExpertPass, ExpertPlace, ExpertRequest, ExpertRows, ExpertUid, LayerId,
    PreparedRequest, SignedAnswer, model_hash, parameters_hash,
};
use barnraise_protocol::framing;
use barnraise_protocol::receipt::RUN_ID_BYTES_MAX;
use barnraise_protocol::run::{
    HostedExperts, ModelSpec, OptimizerDescription, RunDescription, ScheduleDescription,
};
use tokio_util::compat::{Compat, TokioAsyncReadCompatExt as _};

use crate::{fixture, golden};

const VERSION: CheckpointVersion = CheckpointVersion { term: 7, n_steps: 300 };
const RUN_ID: &str = "barn";
const STATE: &[u8] = b"parameters and optimizer";

type AuditStream = Compat<tokio::io::DuplexStream>;

fn pair() -> (AuditStream, AuditStream) {
    let (a, b) = tokio::io::duplex(8 * 1024);
    (a.compat(), b.compat())
}

fn key(at: u8) -> KeyPair {
    KeyPair::from_seed(&[at; 32])
}

fn run() -> RunDescription {
    let mut run = fixture::run();
    run.identity.run_id = RUN_ID.into();
    run
}

fn model() -> Sha256Hash {
    model_hash(&run()).unwrap()
}

fn place() -> ExpertPlace {
    (LayerId(2), ExpertUid::new(&[3, 300]).unwrap())
}

fn request() -> PreparedRequest {
    let request = ExpertRequest {
        run_id: RUN_ID.into(),
        request_id: 300,
        layer: place().0,
        uid: place().1,
        pass: ExpertPass::Forward,
        n_steps: 0,
        n_rows: 2,
        input_values: 3,
        output_values: 1,
        codec: TensorCodec::F32,
        transfer: Transfer::of(&[]),
    };
    PreparedRequest::new(request, &[0.5; 6], None).unwrap()
}

/// What the host 9 gave to the request.
fn kept() -> KeptAnswer {
    let request = request();
    let rows = TensorCodec::F32.encode(&[2.0, 3.0]).unwrap();
    let signature = signature_of(&rows);
    let transfer = Transfer::of(&rows);
    let rows = ExpertRows { version: VERSION, signature, transfer, bytes: rows };
    let signed = request.signed(key(9).public(), &rows);
    KeptAnswer { signed, inputs: request.into_bytes(), answer: rows.bytes }
}

/// As a host sends it.
fn signature_of(rows: &[u8]) -> barnraise_protocol::access::Signature {
    let values = TensorCodec::F32.decode(rows, 2).unwrap();
    let prepared =
        request().request().answer(&AnswerSigner { key: key(9), model: model() }, VERSION, &values).unwrap();
    let (mut ours, mut theirs) = pair();
    let read = futures::executor::block_on(async {
        let sending = barnraise_protocol::experts::reply(&mut theirs, &prepared);
        let reading = framing::read(&mut ours, 512);
        futures::join!(sending, reading).1
    });
    match read.unwrap() {
        barnraise_protocol::experts::HostToTrainer::Rows { signature, version, .. } => {
            assert_eq!(version, VERSION);
            signature
        }
        other => panic!("{other:?}"),
    }
}

fn checkpoint() -> ExpertCheckpoint {
    let holder = key(9).public();
    let leased = ((place(), 0), holder, VERSION.term);
    let grant = LeaseGrant::sign(&key(1), RUN_ID, leased, UnixTime(1_795_000_030)).unwrap();
    let lease = ExpertLease { place: place(), copy: 0, holder, term: VERSION.term, grants: vec![grant] };
    ExpertCheckpoint::sign(&key(9), RUN_ID, (lease, VERSION.n_steps, Transfer::of(STATE))).unwrap()
}

fn evidence() -> AnswerEvidence {
    let run = run();
    let KeptAnswer { signed, inputs, answer } = kept();
    let header = AnswerHeader { run, answer: signed, checkpoint: checkpoint() };
    AnswerEvidence { header, inputs, answer, checkpoint: STATE.to_vec() }
}

#[test]
fn golden_bytes() {
    let check = |reply: AuditReply, hex: &str| golden::check(&reply, MESSAGE_BYTES_MAX, hex);
    check(AuditReply::Wanted { index: 3 }, "0003");
    check(AuditReply::Nothing, "01");
    check(AuditReply::Taken, "02");
    for (refusal, hex) in [
        (AuditRefusal::Unknown, "0300"),
        (AuditRefusal::Busy, "0301"),
        (AuditRefusal::NoAccess, "0302"),
        (AuditRefusal::Forged, "0303"),
    ] {
        check(AuditReply::Refused(refusal), hex);
    }
    let host = key(9).public();
    let offered = format!("{}020203ac0207ac02", golden::hex(&host.0));
    let offer = AuditOffer { run_id: RUN_ID.into(), answers: vec![kept().offered()] };
    golden::check(&offer, MESSAGE_BYTES_MAX, &format!("046261726e01{offered}"));
    let KeptAnswer { signed, inputs, answer } = kept();
    let transfer = |bytes: &[u8]| format!("{:02x}{}", bytes.len(), golden::hex(&Sha256Hash::of(bytes).0));
    // Host, place, pass, version, sizes, codec, tensors, signature.
    let wanted = format!(
        "{}020203ac020007ac0202030100{}{}{SIGNATURE}",
        golden::hex(&host.0),
        transfer(&inputs),
        transfer(&answer)
    );
    golden::check(&signed, MESSAGE_BYTES_MAX, &wanted);
}

/// By the key of seed 9: written once, so that what is signed stays the same.
const SIGNATURE: &str = "09e7664d6b41537f9ca107d4dbb661b19b9ab3fbb1ff1311925cf2c93b8b089e\
                         b6d2a7e5367ced3b4ff177a5704540ddda51be0dcb1c8f0113732ea26777a604";

#[test]
fn the_largest_offer_fits_into_a_message() {
    let largest = OfferedAnswer {
        host: key(9).public(),
        place: (LayerId(u16::MAX), ExpertUid::new(&[511; DIMENSIONS_MAX]).unwrap()),
        version: CheckpointVersion { term: u64::MAX, n_steps: u64::MAX },
    };
    let offer = AuditOffer { run_id: "r".repeat(RUN_ID_BYTES_MAX), answers: vec![largest; ANSWERS_MAX] };
    framing::encode(&offer, MESSAGE_BYTES_MAX).unwrap();
}

#[test]
fn what_a_host_signed_cannot_be_changed() {
    let signed = kept().signed;
    assert!(signed.is_signed(RUN_ID, model()) && !signed.is_signed("shed", model()));
    assert!(!signed.is_signed(RUN_ID, Sha256Hash([1; 32])), "of another model");
    let changes: [fn(&mut SignedAnswer); 11] = [
        |signed| signed.host = key(8).public(),
        |signed| signed.place.0 = LayerId(3),
        |signed| signed.place.1 = ExpertUid::new(&[3, 301]).unwrap(),
        |signed| signed.pass = ExpertPass::Backward,
        |signed| signed.version.n_steps += 1,
        |signed| signed.version.term += 1,
        |signed| signed.n_rows += 1,
        |signed| signed.input_values += 1,
        |signed| signed.output_values += 1,
        |signed| signed.codec = TensorCodec::F16,
        |signed| std::mem::swap(&mut signed.inputs, &mut signed.answer),
    ];
    for (at, change) in changes.into_iter().enumerate() {
        let mut changed = signed.clone();
        change(&mut changed);
        assert!(!changed.is_signed(RUN_ID, model()), "{at}");
    }
}

#[tokio::test]
async fn a_trainer_gives_the_answer_that_is_wanted() {
    let (kept, mut other) = (kept(), kept());
    other.signed.version.n_steps = 1;
    let offer = AuditOffer { run_id: RUN_ID.into(), answers: vec![other.offered(), kept.offered()] };
    let (mut ours, mut theirs) = pair();
    let backbone = async {
        let offer = audits::receive(&mut theirs).await.unwrap();
        let taken = audits::take(&mut theirs, (&offer, model()), 1).await.unwrap();
        audits::reply(&mut theirs, AuditReply::Taken).await.unwrap();
        taken
    };
    let trainer = async {
        let wanted = audits::offer(&mut ours, &offer).await.unwrap();
        assert_eq!(wanted, Some(1));
        audits::give(&mut ours, &kept).await.unwrap();
    };
    let (taken, ()) = futures::join!(backbone, trainer);
    assert_eq!(taken, kept);
}

#[tokio::test]
async fn a_trainer_cannot_give_another_answer_or_make_one_up() {
    let honest = kept();
    let mut unsigned = kept();
    unsigned.signed.signature = [7; 64].into();
    let mut other = kept();
    other.signed.version.n_steps += 1;
    let mut longer = kept();
    longer.inputs.push(0);
    let mut changed = kept();
    changed.answer[0] ^= 1;
    for (at, given) in [unsigned, other, longer, changed].into_iter().enumerate() {
        let offer = AuditOffer { run_id: RUN_ID.into(), answers: vec![honest.offered()] };
        let (mut ours, mut theirs) = pair();
        let backbone = async {
            let offer = audits::receive(&mut theirs).await.unwrap();
            let taken = audits::take(&mut theirs, (&offer, model()), 0).await;
            drop(theirs);
            taken
        };
        let trainer = async {
            audits::offer(&mut ours, &offer).await.unwrap();
            audits::give(&mut ours, &given).await
        };
        let (taken, gave) = futures::join!(backbone, trainer);
        gave.unwrap_err();
        match (at, taken.unwrap_err()) {
            (0 | 1, AuditError::Refused(AuditRefusal::Forged)) | (2 | 3, AuditError::Bulk(_)) => {}
            (at, error) => panic!("{at}: {error}"),
        }
    }
}

#[tokio::test]
async fn replies_that_do_not_belong_to_an_offer_are_found_out() {
    let offer = AuditOffer { run_id: RUN_ID.into(), answers: vec![kept().offered()] };
    let replied = async |reply: AuditReply| {
        let (mut ours, mut theirs) = pair();
        let (offered, _) =
            futures::join!(audits::offer(&mut ours, &offer), audits::reply(&mut theirs, reply));
        offered
    };
    assert_eq!(replied(AuditReply::Nothing).await.unwrap(), None);
    for reply in [AuditReply::Wanted { index: 1 }, AuditReply::Taken] {
        assert!(matches!(replied(reply).await, Err(AuditError::Unexpected)));
    }
    let refused = replied(AuditReply::Refused(AuditRefusal::Busy)).await;
    assert!(matches!(refused, Err(AuditError::Refused(AuditRefusal::Busy))));
    let many = AuditOffer { answers: vec![kept().offered(); ANSWERS_MAX + 1], ..offer };
    let (mut ours, mut theirs) = pair();
    framing::write(&mut ours, &many, MESSAGE_BYTES_MAX).await.unwrap();
    assert!(matches!(audits::receive(&mut theirs).await, Err(AuditError::Unexpected)));
}

#[test]
fn evidence_says_what_the_host_signed_twice() {
    let evidence = evidence();
    let contents = evidence.verify().unwrap();
    assert_eq!((contents.inputs, contents.answer), (vec![0.5; 6], vec![2.0, 3.0]));
    let encoded = Evidence::Answer(Box::new(evidence.clone())).encode().unwrap();
    let decoded = Evidence::decode(&encoded).unwrap();
    assert_eq!(decoded, Evidence::Answer(Box::new(evidence)));
    assert_eq!(decoded.peer(), key(9).public());
    assert_eq!(decoded.work(), ConvictedWork::ExpertAnswer { n_steps: 300 });
    for at in 0..encoded.len().min(200) {
        let mut changed = encoded.clone();
        changed[at] ^= 0x55;
        match Evidence::decode(&changed) {
            Ok(Evidence::Answer(changed)) => drop(changed.verify()),
            Ok(Evidence::Contribution(changed)) => drop(changed.verify(9)),
            Err(_) => {}
        }
        Evidence::decode(&encoded[..at]).unwrap_err();
    }
}

/// Kind, length of the header, then header, inputs, answer and checkpoint.
#[test]
fn golden_evidence() {
    let evidence = evidence();
    let encoded = Evidence::Answer(Box::new(evidence.clone())).encode().unwrap();
    let rest = [&evidence.inputs[..], &evidence.answer, STATE].concat();
    let (start, end) = encoded.split_at(encoded.len() - rest.len());
    assert_eq!(end, rest);
    assert_eq!((start[0], &start[1..5]), (1, &(start.len() as u32 - 5).to_le_bytes()[..]));
    assert_eq!(Sha256Hash::of(&start[5..]).to_string(), HEADER);
}

const HEADER: &str = "c8eaccda80f9c9344d769122867cd1c377486bf44a788819093a00412079b044";

#[test]
fn evidence_that_a_backbone_puts_together_convicts_nobody() {
    let changes: [fn(&mut AnswerEvidence); 9] = [
        |evidence| evidence.header.run.identity.run_id = "shed".into(),
        |evidence| evidence.header.run.model.seed += 1,
        |evidence| evidence.header.answer.version.n_steps += 1,
        |evidence| evidence.header.checkpoint.n_steps += 1,
        |evidence| evidence.header.checkpoint.lease.term += 1,
        |evidence| evidence.header.checkpoint.lease.holder = key(1).public(),
        |evidence| evidence.header.answer.pass = ExpertPass::Backward,
        |evidence| evidence.header.answer.signature = [1; 64].into(),
        |evidence| evidence.header.checkpoint.signature = [1; 64].into(),
    ];
    for (at, change) in changes.into_iter().enumerate() {
        let mut changed = evidence();
        change(&mut changed);
        assert!(matches!(changed.verify(), Err(EvidenceError::NotSigned)), "{at}");
    }
    type AnswerChange = fn(&mut AnswerEvidence);
    let changes: [(&str, AnswerChange); 3] = [
        ("request", |evidence| evidence.inputs[0] ^= 1),
        ("answer", |evidence| evidence.answer[0] ^= 1),
        ("checkpoint", |evidence| evidence.checkpoint[0] ^= 1),
    ];
    for (what, change) in changes {
        let mut changed = evidence();
        change(&mut changed);
        assert!(matches!(changed.verify(), Err(EvidenceError::Hash(got)) if got == what), "{what}");
    }
    // Two checkpoints of one step, or one of another host, are no evidence of an answer.
    let mut of_other = evidence();
    let (lease, transfer) = (of_other.header.checkpoint.lease.clone(), Transfer::of(STATE));
    of_other.header.checkpoint = ExpertCheckpoint::sign(&key(1), RUN_ID, (lease, 300, transfer)).unwrap();
    assert!(matches!(of_other.verify(), Err(EvidenceError::NotSigned)));
}

#[test]
fn a_run_goes_on_with_its_experts_where_its_words_change_and_how_they_learn() {
    let parameters_of = |change: fn(&mut RunDescription)| {
        let mut run = run();
        change(&mut run);
        (parameters_hash(&run).unwrap(), run.model)
    };
    let (own, model) = parameters_of(|_| {});
    let allowed: [fn(&mut RunDescription); 3] = [
        |run| run.identity.title = "Another title".into(),
        |run| run.data.shuffle_buffer_samples += 1,
        |run| run.data.manifest.name = "more of the same".into(),
    ];
    for change in allowed {
        let (hash, changed) = parameters_of(change);
        assert!(hash == own && changed.has_parameters_of(&model));
    }
    let (hash, changed) = parameters_of(|run| run.model.seed += 1);
    assert!(hash != own && !changed.has_parameters_of(&model));
    assert_ne!(parameters_of(|run| run.identity.run_id.push('2')).0, own);
    let mut learning_faster = model.clone();
    let schedule = ScheduleDescription::constant(0.5);
    let optimizer = OptimizerDescription::SgdMomentum { momentum: 0.9, nesterov: false, weight_decay: 0.0 };
    learning_faster.hosted = Some(HostedExperts { optimizer, schedule, codec: TensorCodec::F32 });
    let mut as_before = learning_faster.clone();
    as_before.hosted.as_mut().unwrap().schedule = ScheduleDescription::constant(0.1);
    assert!(learning_faster.has_parameters_of(&as_before));
    let of = |model: &ModelSpec| parameters_hash(&RunDescription { model: model.clone(), ..run() }).unwrap();
    assert_eq!(of(&learning_faster), of(&as_before));
}
