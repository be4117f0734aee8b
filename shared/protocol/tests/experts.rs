//! Experts: golden bytes of the conversation and of the records, and both sides of it, honest and not.

use std::time::Duration;

use barnraise_protocol::Sha256Hash;
use barnraise_protocol::access::{AccessMode, AccessRefusal, KeyPair, Signature, TokenRefusal};
use barnraise_protocol::bulk::{self, BulkError, CHUNK_BYTES, Transfer};
use barnraise_protocol::codec::{CodecError, Density, Sparsity, TensorCodec};
use barnraise_protocol::dht::experts::{
    self as records, AnnouncedExpert, EXPERT_ADDRESSES_MAX, ExpertHost, LIFETIME,
};
use barnraise_protocol::dht::{ADDRESS_BYTES_MAX, Record, Subkey, UnixMillis};
use barnraise_protocol::experts::checkpoints::CheckpointVersion;
use barnraise_protocol::experts::*;
use barnraise_protocol::framing::{self, FrameError};
use barnraise_protocol::receipt::RUN_ID_BYTES_MAX;
use futures::io::AsyncWriteExt;
use proptest::prelude::*;
use tokio_util::compat::{Compat, TokioAsyncReadCompatExt as _};

use crate::golden::{self, Message, hex};

const NOW: UnixMillis = UnixMillis(1_795_000_000_000);
const HOUR: Duration = Duration::from_secs(3600);

const VERSION: CheckpointVersion = CheckpointVersion { term: 7, n_steps: 300 };

fn signer() -> AnswerSigner {
    AnswerSigner { key: KeyPair::from_seed(&[3; 32]), model: Sha256Hash([4; 32]) }
}

type ExpertStream = Compat<tokio::io::DuplexStream>;

/// Two ends of a stream with a buffer smaller than a chunk.
fn pair() -> (ExpertStream, ExpertStream) {
    let (a, b) = tokio::io::duplex(8 * 1024);
    (a.compat(), b.compat())
}

fn uid(indices: &[u16]) -> ExpertUid {
    ExpertUid::new(indices).unwrap()
}

fn request() -> ExpertRequest {
    ExpertRequest {
        run_id: "barn".into(),
        request_id: 300,
        layer: LayerId(2),
        uid: uid(&[3, 300]),
        pass: ExpertPass::Forward,
        n_steps: 0,
        n_rows: 2,
        input_values: 3,
        output_values: 5,
        codec: TensorCodec::F32,
        transfer: Transfer { n_bytes: 24, sha256: Sha256Hash([0xab; 32]) },
    }
}

fn check(message: &impl Message, golden: &str) {
    golden::check(message, MESSAGE_BYTES_MAX, golden);
}

#[test]
fn golden_bytes() {
    let hash = "ab".repeat(32);
    check(&request(), &format!("046261726eac02020203ac02000002030500 18{hash}").replace(' ', ""));
    let codec = TensorCodec::Int8;
    let backward = ExpertRequest { pass: ExpertPass::Backward, n_steps: 300, codec, ..request() };
    check(&backward, &format!("046261726eac02020203ac0201ac02020305 0218{hash}").replace(' ', ""));
    let transfer = request().transfer;
    let rows = HostToTrainer::Rows { version: VERSION, transfer, signature: Signature::from([0xcd; 64]) };
    check(&rows, &format!("0007ac0218{hash}{}", "cd".repeat(64)));
    check(&uid(&[3, 300]), "0203ac02");
    check(&LayerId(300), "ac02");
    for (refusal, golden) in [
        (ExpertRefusal::Unknown, "0100"),
        (ExpertRefusal::Busy { retry_after_ms: 300 }, "0101ac02"),
        (ExpertRefusal::Duplicate, "0102"),
        (ExpertRefusal::NotFinite, "0103"),
        (ExpertRefusal::Shape { want: 300, got: 3 }, "0104ac0203"),
        (ExpertRefusal::Draining, "0105"),
        (ExpertRefusal::TooLarge { max: 3, got: 300 }, "010603ac02"),
        (ExpertRefusal::Codec { got: TensorCodec::Int4 }, "010703"),
        (ExpertRefusal::Bytes { want: 3, got: 300 }, "010803ac02"),
        (ExpertRefusal::InProgress { retry_after_ms: 300 }, "0109ac02"),
        (ExpertRefusal::Failed, "010a"),
        (ExpertRefusal::NoAccess(AccessRefusal::Needed { mode: AccessMode::Invitation }), "010b0001"),
        (ExpertRefusal::NoAccess(AccessRefusal::Token(TokenRefusal::Revoked)), "010b0104"),
    ] {
        check(&HostToTrainer::Refused(refusal), golden);
    }
}

#[test]
fn the_largest_request_fits_into_a_message() {
    let largest = ExpertRequest {
        run_id: "r".repeat(RUN_ID_BYTES_MAX),
        request_id: u64::MAX,
        layer: LayerId(u16::MAX),
        uid: uid(&[511; 4]),
        n_rows: u32::MAX,
        input_values: u32::MAX,
        output_values: u32::MAX,
        transfer: Transfer { n_bytes: u64::MAX, ..request().transfer },
        ..request()
    };
    framing::encode(&largest, MESSAGE_BYTES_MAX).unwrap();
    assert!(matches!(largest.check(), Err(ExpertRefusal::TooLarge { .. })));
    let named = ExpertRequest { run_id: "r".repeat(RUN_ID_BYTES_MAX + 1), ..request() };
    assert_eq!(named.check(), Err(ExpertRefusal::Unknown));
}

#[test]
fn what_is_wrong_with_a_request_is_said() {
    assert_eq!(request().check(), Ok(()));
    let sparse = Sparsity { density: Density::from_share(0.1).unwrap(), warmup_epochs: 0 };
    for got in [TensorCodec::Int4, TensorCodec::TopK(sparse)] {
        assert_eq!(ExpertRequest { codec: got, ..request() }.check(), Err(ExpertRefusal::Codec { got }));
    }
    let shape = Err(ExpertRefusal::Shape { want: 1, got: 0 });
    assert_eq!(ExpertRequest { n_rows: 0, ..request() }.check(), shape);
    assert_eq!(ExpertRequest { input_values: 0, ..request() }.check(), shape);
    assert_eq!(ExpertRequest { output_values: 0, ..request() }.check(), shape);
    let backward = ExpertRequest { pass: ExpertPass::Backward, ..request() };
    assert_eq!(backward.check(), Err(ExpertRefusal::Bytes { want: 64, got: 24 }));
    assert_eq!((request().answer_bytes(), backward.answer_bytes()), (40, 24));
    // A tensor of the request, and one of the answer, at the limit and above.
    let max = TENSOR_BYTES_MAX as u64;
    let values = (TENSOR_BYTES_MAX / 4) as u32;
    let of = |input_values: u32, output_values: u32| {
        let transfer = Transfer { n_bytes: 4 * u64::from(input_values), ..request().transfer };
        ExpertRequest { n_rows: 1, input_values, output_values, transfer, ..request() }.check()
    };
    assert_eq!(of(values, values), Ok(()));
    assert_eq!(of(values + 1, 1), Err(ExpertRefusal::TooLarge { max, got: max + 4 }));
    assert_eq!(of(1, values + 1), Err(ExpertRefusal::TooLarge { max, got: max + 4 }));
    let overflow = ExpertRequest { n_rows: u32::MAX, input_values: u32::MAX, ..request() };
    assert!(matches!(overflow.check(), Err(ExpertRefusal::TooLarge { .. })));
}

/// A host that computes `2 x` in a forward pass, and three times the gradient in a backward pass.
async fn host(mut stream: ExpertStream) -> ExpertTensors {
    let request = receive(&mut stream).await.unwrap();
    let bytes = receive_tensors(&mut stream, &request).await.unwrap();
    let tensors = request.decode(&bytes).unwrap();
    let rows: Vec<f32> = match &tensors.gradients {
        None => tensors.inputs.iter().map(|value| 2.0 * value).collect(),
        Some(gradients) => gradients.iter().map(|value| 3.0 * value).collect(),
    };
    let rows = request.answer(&signer(), VERSION, &rows).unwrap();
    reply(&mut stream, &rows).await.unwrap();
    tensors
}

#[tokio::test]
async fn an_expert_computes_for_a_trainer() {
    for (n_rows, row_values) in [(1, 1), (3, 5), (1024, 256), (TENSOR_BYTES_MAX as u32 / 4 / 512, 256)] {
        for codec in [TensorCodec::F32, TensorCodec::F16, TensorCodec::Int8] {
            let n_values = (n_rows * row_values) as usize;
            let inputs: Vec<f32> = (0..n_values).map(|at| (at % 100) as f32).collect();
            let gradients: Vec<f32> = (0..n_values).map(|at| (at % 10) as f32).collect();
            let of_rows = ExpertRequest {
                n_rows,
                input_values: row_values,
                output_values: row_values,
                codec,
                ..request()
            };
            for gradients in [None, Some(&gradients[..])] {
                let prepared = PreparedRequest::new(of_rows.clone(), &inputs, gradients).unwrap();
                assert_eq!(prepared.request().check(), Ok(()));
                let (mut ours, theirs) = pair();
                let (asked, computed) = futures::join!(ask(&mut ours, &prepared), host(theirs));
                let rows = asked.unwrap();
                assert_eq!(rows.version, VERSION);
                assert!(prepared.signed(signer().key.public(), &rows).is_signed("barn", signer().model));
                assert_eq!(computed.gradients.is_some(), gradients.is_some());
                let rows = prepared.decode(&rows).unwrap();
                let (given, factor) = gradients.map_or((&inputs[..], 2.0), |gradients| (gradients, 3.0));
                let tolerance = if codec == TensorCodec::Int8 { 2.0 } else { 0.0 };
                let is_near = |(got, want): (&f32, &f32)| (got - factor * want).abs() <= tolerance;
                assert!(rows.len() == n_values && rows.iter().zip(given).all(is_near), "{codec:?}");
            }
        }
    }
}

#[test]
fn tensors_of_another_length_and_values_that_are_not_finite_are_not_sent() {
    let six = [1.0; 6];
    assert!(matches!(PreparedRequest::new(request(), &six[..5], None), Err(CodecError::Length { .. })));
    assert!(matches!(PreparedRequest::new(request(), &six, Some(&six)), Err(CodecError::Length { .. })));
    let nan = [1.0, f32::NAN, 1.0, 1.0, 1.0, 1.0];
    assert_eq!(PreparedRequest::new(request(), &nan, None), Err(CodecError::NotFinite { index: 1 }));
    let prepared = PreparedRequest::new(request(), &six, None).unwrap();
    let answer = |rows: &[f32]| prepared.request().answer(&signer(), VERSION, rows).map(drop);
    assert_eq!(answer(&six), Err(ExpertRefusal::Failed));
    assert_eq!(answer(&[f32::NAN; 10]), Err(ExpertRefusal::NotFinite));
    // Another peer may send it all the same.
    let mut bytes = prepared.bytes().to_vec();
    bytes[4..8].copy_from_slice(&f32::INFINITY.to_le_bytes());
    assert_eq!(prepared.request().decode(&bytes), Err(ExpertRefusal::NotFinite));
    let short = prepared.request().decode(&bytes[..20]);
    assert_eq!(short, Err(ExpertRefusal::Bytes { want: 24, got: 20 }));
    let signature = Signature::from([0; 64]);
    let bytes = f32::NAN.to_le_bytes().repeat(10);
    let rows = ExpertRows { version: VERSION, signature, transfer: Transfer::of(&bytes), bytes };
    assert_eq!(prepared.decode(&rows), Err(CodecError::NotFinite { index: 0 }));
}

/// A request of eight chunks.
fn large() -> PreparedRequest {
    let n_values = CHUNK_BYTES * 2;
    let request =
        ExpertRequest { n_rows: 64, input_values: n_values as u32 / 64, output_values: 1, ..request() };
    PreparedRequest::new(request, &vec![1.0; n_values], None).unwrap()
}

#[tokio::test]
async fn a_host_refuses_before_the_tensor_is_there() {
    let prepared = large();
    for refusal in
        [ExpertRefusal::Busy { retry_after_ms: 20 }, ExpertRefusal::Unknown, ExpertRefusal::Draining]
    {
        // The host drops the stream at once, or reads on for a while.
        for reads_on in [false, true] {
            let (mut ours, mut theirs) = pair();
            let host = async {
                receive(&mut theirs).await.unwrap();
                refuse(&mut theirs, refusal.clone()).await.unwrap();
                if reads_on {
                    let mut first = [0; 16];
                    futures::io::AsyncReadExt::read_exact(&mut theirs, &mut first).await.unwrap();
                }
                drop(theirs);
            };
            let (asked, ()) = futures::join!(ask(&mut ours, &prepared), host);
            match asked {
                Err(ExpertRequestError::Refused(got)) => assert_eq!(got, refusal),
                other => panic!("{other:?}"),
            }
        }
    }
}

#[tokio::test]
async fn a_host_that_answers_otherwise_is_found_out() {
    let prepared = large();
    let bytes = [0; 256];
    let rows = |n_bytes: u64| HostToTrainer::Rows {
        version: VERSION,
        transfer: Transfer { n_bytes, ..Transfer::of(&bytes) },
        signature: Signature::from([0; 64]),
    };
    let converse = async |answer: HostToTrainer, is_early: bool, chunk: Vec<u8>| {
        let (mut ours, mut theirs) = pair();
        let host = async {
            let request = receive(&mut theirs).await.unwrap();
            if !is_early {
                receive_tensors(&mut theirs, &request).await.unwrap();
            }
            framing::write(&mut theirs, &answer, MESSAGE_BYTES_MAX).await.unwrap();
            let _ = theirs.write_all(&chunk).await;
            let _ = theirs.close().await;
            theirs
        };
        let (asked, _theirs) = futures::join!(ask(&mut ours, &prepared), host);
        asked
    };
    let good = bulk::packed(0, &bytes);
    assert_eq!(converse(rows(256), false, good.clone()).await.unwrap().bytes, bytes);
    assert!(matches!(converse(rows(256), true, good).await, Err(ExpertRequestError::Early)));
    let longer = converse(rows(u64::MAX), false, vec![]).await;
    assert!(matches!(longer, Err(ExpertRequestError::AnswerBytes { want: 256, got: u64::MAX })));
    let wrong = converse(rows(256), false, bulk::packed(0, &[1; 256])).await;
    assert!(matches!(wrong, Err(ExpertRequestError::Bulk(BulkError::Hash { .. }))));
    let other = converse(rows(256), false, bulk::packed(1, &bytes)).await;
    assert!(matches!(other, Err(ExpertRequestError::Bulk(BulkError::WrongChunk { .. }))));
    let cut = converse(rows(256), false, bulk::packed(0, &bytes)[..99].to_vec()).await;
    assert!(matches!(cut, Err(ExpertRequestError::Bulk(BulkError::Io(_)))));
    // One that vanishes.
    let (mut ours, theirs) = pair();
    drop(theirs);
    assert!(ask(&mut ours, &prepared).await.is_err());
}

#[tokio::test]
async fn a_trainer_that_sends_otherwise_is_found_out() {
    let converse = async |request: ExpertRequest, chunk: Vec<u8>| {
        let (mut ours, mut theirs) = pair();
        let trainer = async {
            framing::write(&mut ours, &request, MESSAGE_BYTES_MAX).await.unwrap();
            let _ = ours.write_all(&chunk).await;
            let _ = ours.close().await;
            ours
        };
        let host = async {
            let request = receive(&mut theirs).await?;
            receive_tensors(&mut theirs, &request).await
        };
        futures::join!(host, trainer).0
    };
    let bytes = [0; 24];
    let good = ExpertRequest { transfer: Transfer::of(&bytes), ..request() };
    assert_eq!(converse(good.clone(), bulk::packed(0, &bytes)).await.unwrap(), bytes);
    let wrong = converse(good.clone(), bulk::packed(0, &[1; 24])).await;
    assert!(matches!(wrong, Err(ExpertRequestError::Bulk(BulkError::Hash { .. }))));
    let long = converse(good.clone(), bulk::packed(0, &[0; 25])).await;
    assert!(matches!(long, Err(ExpertRequestError::Bulk(BulkError::WrongChunk { .. }))));
    let cut = converse(good.clone(), bulk::packed(0, &bytes)[..20].to_vec()).await;
    assert!(matches!(cut, Err(ExpertRequestError::Bulk(BulkError::Io(_)))));
    // Nothing is read of a request that does not pass.
    let large = ExpertRequest { n_rows: u32::MAX, ..good };
    assert!(matches!(
        converse(large, vec![]).await,
        Err(ExpertRequestError::Refused(ExpertRefusal::TooLarge { .. }))
    ));
    let (mut ours, theirs) = pair();
    drop(theirs);
    assert!(matches!(receive(&mut ours).await, Err(ExpertRequestError::Frame(FrameError::Closed))));
}

fn owner() -> KeyPair {
    KeyPair::from_seed(&[7; 32])
}

fn announced(uids: &[&[u16]]) -> Vec<Record> {
    let expert = |indices: &&[u16]| AnnouncedExpert { uid: uid(indices), n_waiting: 3, n_steps: 300 };
    let experts: Vec<AnnouncedExpert> = uids.iter().map(expert).collect();
    records::announce(&owner(), ("barn", LayerId(2)), &experts, &[vec![6, 7]], NOW.after(LIFETIME)).unwrap()
}

#[test]
fn keys_and_values_of_experts_are_the_same_everywhere() {
    let key = |run_id: &str, layer: u16, prefix: &[u16]| {
        hex(&records::key(run_id, LayerId(layer), &ExpertPrefix::new(prefix).unwrap()).0)
    };
    let label = [&b"barnraise experts of barn\0"[..], &[2, 0, 44, 1]].concat();
    let name = barnraise_protocol::dht::RecordName::dictionary(&label);
    assert_eq!(key("barn", 2, &[300]), hex(&name.key().0));
    let all = [
        ("barn", 2, &[][..]),
        ("barn", 2, &[300]),
        ("barn", 2, &[300, 0]),
        ("barn", 3, &[]),
        ("shed", 2, &[]),
    ];
    let unique: std::collections::BTreeSet<String> =
        all.map(|(run, layer, prefix)| key(run, layer, prefix)).into();
    assert_eq!(unique.len(), all.len());
    let records = announced(&[&[300, 5]]);
    assert_eq!(hex(&records[0].value), "01020607 03 ac02".replace(' ', ""));
    let place = Subkey { owner: Some(owner().public()), label: vec![5, 0] };
    assert_eq!(records[0].subkey, Some(place));
    assert_eq!((records[1].subkey.clone(), records[1].value.len()), (Some(Subkey::new([44, 1])), 0));
    assert_eq!(records[1].signature, None);
}

#[test]
fn a_host_has_an_entry_for_each_expert_and_each_prefix_once() {
    let records = announced(&[&[3, 1, 4], &[3, 1, 5], &[3, 2, 4]]);
    assert!(records.iter().all(|record| record.check(NOW, HOUR) == Ok(())));
    let place = |record: &Record| (record.name.key(), record.subkey.clone().unwrap());
    let unique: std::collections::BTreeSet<_> = records.iter().map(place).collect();
    assert_eq!(unique.len(), records.len());
    let key = |prefix: &[u16]| records::key("barn", LayerId(2), &ExpertPrefix::new(prefix).unwrap());
    let under = |prefix: &[u16]| {
        let key = key(prefix);
        records.iter().filter(move |record| record.name.key() == key)
    };
    let branches = |prefix: &[u16]| under(prefix).map(records::read_branch).collect::<Option<Vec<u16>>>();
    assert_eq!(branches(&[]), Some(vec![3]));
    assert_eq!(branches(&[3]), Some(vec![1, 2]));
    let hosts = |prefix: &[u16]| under(prefix).map(records::read_host).collect::<Option<Vec<_>>>();
    let host = ExpertHost { peer: owner().public(), addresses: vec![vec![6, 7]], n_waiting: 3, n_steps: 300 };
    assert_eq!(hosts(&[3, 1]), Some(vec![(4, host.clone()), (5, host.clone())]));
    assert_eq!(hosts(&[3, 2]), Some(vec![(4, host)]));
    assert_eq!(records.len(), 1 + 2 + 3);
    // The kinds are not taken for each other.
    assert_eq!((hosts(&[]), branches(&[3, 1])), (None, None));
    // With one dimension, the root has the hosts.
    let of_one = announced(&[&[9]]);
    assert_eq!(of_one.len(), 1);
    assert_eq!(of_one[0].name.key(), key(&[]));
    assert_eq!(records::read_host(&of_one[0]).unwrap().0, 9);
}

#[test]
fn malformed_records_name_no_host_and_no_index() {
    let all = announced(&[&[3, 1]]);
    let (host, branch) = (&all[0], &all[1]);
    let labelled = |record: &Record, label: &[u8]| {
        let place = record.subkey.clone().map(|place| Subkey { label: label.to_vec(), ..place });
        Record { subkey: place, ..record.clone() }
    };
    for label in [&[][..], &[1], &[1, 0, 0], &[0, 2], &[255, 255]] {
        assert_eq!(records::read_host(&labelled(host, label)), None, "{label:?}");
        assert_eq!(records::read_branch(&labelled(branch, label)), None, "{label:?}");
    }
    assert_eq!(records::read_branch(&labelled(branch, &[255, 1])), Some(511));
    assert_eq!(records::read_branch(&Record { value: vec![0], ..branch.clone() }), None);
    assert_eq!(records::read_branch(&Record { subkey: None, ..branch.clone() }), None);
    for cut in 0..host.value.len() {
        let value = host.value[..cut].to_vec();
        assert_eq!(records::read_host(&Record { value, ..host.clone() }), None, "{cut} bytes");
    }
    let of = |addresses: Vec<Vec<u8>>| {
        let value = postcard::to_allocvec(&(addresses, 0u32, 0u64)).unwrap();
        records::read_host(&Record { value, ..host.clone() }).is_some()
    };
    assert!(of(vec![vec![0; ADDRESS_BYTES_MAX]; EXPERT_ADDRESSES_MAX]));
    assert!(!of(vec![vec![0; ADDRESS_BYTES_MAX + 1]]) && !of(vec![vec![]; EXPERT_ADDRESSES_MAX + 1]));
    // A host leaves out what is too much.
    let expert = AnnouncedExpert { uid: uid(&[1]), n_waiting: u32::MAX, n_steps: u64::MAX };
    let addresses = [vec![vec![1; ADDRESS_BYTES_MAX + 1]], vec![vec![2; ADDRESS_BYTES_MAX]; 9]].concat();
    let largest =
        records::announce(&owner(), ("barn", LayerId(2)), &[expert], &addresses, NOW.after(HOUR)).unwrap();
    assert_eq!(largest[0].check(NOW, HOUR), Ok(()));
    let (_, read) = records::read_host(&largest[0]).unwrap();
    assert_eq!(read.addresses, vec![vec![2; ADDRESS_BYTES_MAX]; EXPERT_ADDRESSES_MAX]);
}

proptest! {
    #[test]
    fn any_bytes_are_a_message_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(request) = framing::decode_payload::<ExpertRequest>(&bytes) {
            let _ = request.check();
        }
        let _ = framing::decode_payload::<HostToTrainer>(&bytes);
        let place = Some(Subkey { owner: Some(owner().public()), label: vec![1, 0] });
        let name = barnraise_protocol::dht::RecordName::dictionary(b"x");
        if let Some((_, host)) = records::read_host(&Record::new(name, place, bytes, NOW)) {
            prop_assert!(host.addresses.len() <= EXPERT_ADDRESSES_MAX);
        }
    }
}
