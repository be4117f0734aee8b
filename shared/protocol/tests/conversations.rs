//! Both sides of each conversation against each other, and against dishonest or vanishing peers.

use std::future::ready;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use barnraise_protocol::access::{KeyPair, UnixTime};
use barnraise_protocol::bulk::{
    self, BulkError, CHUNK_BYTES, Partial, Pull, Transfer, WINDOW_CHUNKS, Withdrawn,
};
use barnraise_protocol::codec::TensorCodec;
use barnraise_protocol::commitment::Commitment;
use barnraise_protocol::dataset::{
    DatasetError, ImageShape, LabelledImages, Manifest, SHARD_BYTES_MAX, SHARDS_MAX, SampleKind, Samples,
    ShardEntry, TokenSequences, TokenShape,
};
use barnraise_protocol::framing;
use barnraise_protocol::gradient::{self, ContributionRefusal, Offer, PreparedContribution};
use barnraise_protocol::matchmaking::ModelVersion;
use barnraise_protocol::model::{self, Fetched, ModelRequest, ModelResponse, StepHeader};
use barnraise_protocol::receipt::Receipt;
use barnraise_protocol::run::{self, SignedRun};
use barnraise_protocol::shard::{self, ShardId};
use barnraise_protocol::state::{self, StateHeader};
use barnraise_protocol::{ConversationError, Refusal, Sha256Hash};
use futures::FutureExt as _;
use futures::io::{AsyncReadExt, AsyncWriteExt};
use tokio_util::compat::{Compat, TokioAsyncReadCompatExt};

use crate::fixture;

type MemoryStream = Compat<tokio::io::DuplexStream>;

/// Two ends of a stream with a small buffer, so that credit matters.
fn pair() -> (MemoryStream, MemoryStream) {
    let (a, b) = tokio::io::duplex(8 * 1024);
    (a.compat(), b.compat())
}

fn noise(n_bytes: usize) -> Vec<u8> {
    let mut state = 1u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..n_bytes).map(|_| next()).collect()
}

#[tokio::test]
async fn bytes_of_every_length_arrive_whole() {
    for n_bytes in [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, CHUNK_BYTES * 40 + 7] {
        let bytes = noise(n_bytes);
        let (mut a, mut b) = pair();
        let mut partial = Partial::new(Transfer::of(&bytes), u64::MAX).unwrap();
        let mut seen = 0;
        let (served, pulled) = futures::join!(
            bulk::serve(&mut a, &bytes, |_| {}),
            bulk::pull(&mut b, &mut partial, |here| seen = here),
        );
        served.unwrap();
        assert_eq!(pulled.unwrap(), bytes);
        assert_eq!(seen, n_bytes as u64);
    }
}

#[tokio::test]
async fn a_cut_transfer_goes_on_where_it_ended() {
    let bytes = noise(CHUNK_BYTES * 20);
    let mut partial = Partial::new(Transfer::of(&bytes), u64::MAX).unwrap();
    let (mut a, mut b) = pair();
    let holder = async {
        // Half of a chunk after seven whole ones, then the stream ends.
        let mut sent = 0;
        let result = bulk::serve(&mut a, &bytes, |n| sent = n);
        futures::pin_mut!(result);
        loop {
            let step = futures::future::poll_fn(|cx| {
                let _ = result.as_mut().poll(cx);
                std::task::Poll::Ready(())
            });
            step.await;
            tokio::task::yield_now().await;
            if partial_bytes() > (7 * CHUNK_BYTES) as u64 {
                break;
            }
        }
    };
    static HERE: AtomicU64 = AtomicU64::new(0);
    fn partial_bytes() -> u64 {
        HERE.load(Ordering::SeqCst)
    }
    let puller = bulk::pull(&mut b, &mut partial, |here| HERE.store(here, Ordering::SeqCst));
    let cut = tokio::select! { () = holder => None, result = puller => Some(result) };
    assert!(cut.is_none(), "the stream was cut before the transfer ended");
    let kept = partial.n_bytes();
    assert!(kept > 0 && kept < bytes.len() as u64, "{kept} bytes were kept");

    let (mut a, mut b) = pair();
    let mut sent = 0;
    let (served, pulled) =
        futures::join!(bulk::serve(&mut a, &bytes, |n| sent = n), bulk::pull(&mut b, &mut partial, |_| {}));
    served.unwrap();
    assert_eq!(pulled.unwrap(), bytes);
    assert_eq!(sent, (bytes.len() as u64).next_multiple_of(CHUNK_BYTES as u64) - kept, "only the rest");
}

#[tokio::test]
async fn of_bytes_with_another_hash_nothing_is_kept() {
    let bytes = noise(CHUNK_BYTES * 3);
    let mut partial = Partial::new(Transfer::of(&bytes), u64::MAX).unwrap();
    let (mut a, mut b) = pair();
    let mut wrong = bytes.clone();
    wrong[CHUNK_BYTES * 2] ^= 1;
    let (served, pulled) =
        futures::join!(bulk::serve(&mut a, &wrong, |_| {}), bulk::pull(&mut b, &mut partial, |_| {}));
    served.unwrap();
    assert!(matches!(pulled, Err(BulkError::Hash { .. })));
    assert_eq!(partial.n_bytes(), 0, "nothing of it can be trusted");

    // The conversation can go on: the same bytes come once more.
    let (mut a, mut b) = pair();
    let (served, pulled) =
        futures::join!(bulk::serve(&mut a, &bytes, |_| {}), bulk::pull(&mut b, &mut partial, |_| {}));
    served.unwrap();
    assert_eq!(pulled.unwrap(), bytes);
}

/// The sender has to keep no more than that for one that reads slowly.
#[tokio::test]
async fn no_more_is_asked_for_than_may_be_under_way() {
    let n_chunks = 3 * WINDOW_CHUNKS;
    let bytes = noise(CHUNK_BYTES * n_chunks as usize);
    let mut partial = Partial::new(Transfer::of(&bytes), u64::MAX).unwrap();
    let (mut a, mut b) = pair();
    let holder = async {
        let (mut n_asked, mut most) = (0, 0);
        for (number, chunk) in (0..).zip(bytes.chunks(CHUNK_BYTES)) {
            // All that is asked for as long as no more comes.
            loop {
                for _ in 0..10 {
                    tokio::task::yield_now().await;
                }
                match framing::read(&mut a, 64).now_or_never() {
                    Some(Ok(Pull::Chunks { first, count })) => {
                        assert_eq!(first, n_asked);
                        n_asked += count;
                    }
                    None => break,
                    Some(other) => panic!("{other:?}"),
                }
            }
            let under_way = n_asked - number;
            assert!((1..=WINDOW_CHUNKS).contains(&under_way), "{under_way} at chunk {number}");
            most = most.max(under_way);
            let header = [number, CHUNK_BYTES as u32];
            a.write_all(&header.map(u32::to_le_bytes).concat()).await.unwrap();
            a.write_all(chunk).await.unwrap();
        }
        assert_eq!((n_asked, most), (n_chunks, WINDOW_CHUNKS));
        let done: Pull = framing::read(&mut a, 64).await.unwrap();
        assert_eq!(done, Pull::Done);
    };
    let ((), pulled) = futures::join!(holder, bulk::pull(&mut b, &mut partial, |_| {}));
    assert_eq!(pulled.unwrap(), bytes);
}

#[tokio::test]
async fn a_holder_refuses_pulls_out_of_range_and_without_end() {
    let bytes = noise(CHUNK_BYTES * 3);
    for (first, count) in [(0, 4), (3, 1), (u32::MAX, 2), (0, 0), (0, WINDOW_CHUNKS + 1)] {
        let (mut a, mut b) = pair();
        framing::write(&mut b, &Pull::Chunks { first, count }, 64).await.unwrap();
        let error = bulk::serve(&mut a, &bytes, |_| {}).await.unwrap_err();
        assert!(matches!(error, BulkError::BadPull { .. }), "{first}+{count}: {error}");
    }
    let (mut a, b) = pair();
    let (mut reader, mut writer) = b.split();
    let greedy = async {
        for _ in 0..100 {
            if framing::write(&mut writer, &Pull::Chunks { first: 2, count: 1 }, 64).await.is_err() {
                break;
            }
        }
    };
    let drain = async {
        let mut sink = vec![0; 4096];
        while reader.read(&mut sink).await.is_ok_and(|n| n > 0) {}
    };
    let mut n_served = 0;
    let error = tokio::select! {
        result = bulk::serve(&mut a, &bytes, |_| n_served += 1) => result.unwrap_err(),
        _ = async { futures::join!(greedy, drain) } => panic!("served without end"),
    };
    assert!(matches!(error, BulkError::RepeatedPulls), "{error}");
    assert_eq!(n_served, 3 * 2 + WINDOW_CHUNKS, "all of them twice, and what may be under way");
}

#[tokio::test]
async fn a_transfer_over_the_limit_is_refused_before_it_starts() {
    let transfer = Transfer { n_bytes: u64::MAX, sha256: Sha256Hash([0; 32]) };
    assert!(matches!(Partial::new(transfer, 1024), Err(BulkError::TooLarge { max: 1024, .. })));
    assert!(Partial::new(transfer, u64::MAX).is_err());
}

#[tokio::test]
async fn parameters_are_fetched_epoch_after_epoch_on_one_stream() {
    let epoch = AtomicU64::new(5);
    let values = |epoch: u64| vec![epoch as f32; 50_000];
    let lookup = |wanted: Option<u64>| {
        let newest = epoch.load(Ordering::SeqCst);
        if wanted.is_some_and(|wanted| wanted != newest) {
            return Err(Refusal::Stale { epoch: 9, newest: 7 });
        }
        let bytes: Arc<[u8]> = TensorCodec::F16.encode(&values(newest)).unwrap().into();
        let transfer = Transfer::of(&bytes);
        Ok((StateHeader { epoch: newest, n_values: 50_000, codec: TensorCodec::F16, transfer }, bytes))
    };
    let (mut a, mut b) = pair();
    let client = async {
        for want in [5, 6] {
            epoch.store(want, Ordering::SeqCst);
            let mut partial = None;
            let state =
                state::fetch(&mut b, 50_000, TensorCodec::F16, &mut partial, |_, _| {}).await.unwrap();
            assert_eq!((state.epoch, state.values()), (want, values(want)));
            assert!(partial.is_none());
        }
        let mut partial = None;
        let error =
            state::fetch(&mut b, 49_999, TensorCodec::F16, &mut partial, |_, _| {}).await.unwrap_err();
        assert!(matches!(error, ConversationError::Mismatch { want: 49_999, got: 50_000, .. }), "{error}");
        drop(b);
    };
    let (served, ()) = futures::join!(state::serve(&mut a, |epoch| ready(lookup(epoch)), || {}), client);
    // The client left after an announcement that it did not pull: a cut stream, not a clean end.
    assert!(served.is_err());
}

fn images(n_classes: usize) -> SampleKind {
    let class_names = (0..n_classes).map(|i| i.to_string()).collect();
    SampleKind::Images { shape: ImageShape { height: 2, width: 2, channels: 1 }, class_names }
}

fn manifest() -> (Manifest, Vec<u8>) {
    let labels = (0..30_000u32).map(|i| (i % 10) as u8).collect();
    let shard = Samples::Images(LabelledImages { images: noise(4 * 30_000), labels });
    let (bytes, entry) = shard.encode().unwrap();
    (fixture::manifest(images(10), entry), bytes)
}

#[tokio::test]
async fn a_shard_arrives_whole_and_a_poisoned_one_is_refused() {
    let (manifest, bytes) = manifest();
    let mut poisoned = bytes.clone();
    poisoned[1000] ^= 0x40;
    for (served_bytes, honest) in [(bytes.clone(), true), (poisoned, false)] {
        let (mut a, mut b) = pair();
        let served_bytes: Arc<[u8]> = served_bytes.into();
        let entry = manifest.shards[0];
        let announced = Transfer { n_bytes: u64::from(entry.n_bytes), sha256: entry.sha256 };
        let lookup = |id| {
            let found = (announced, served_bytes.clone());
            async move { if id == ShardId::Numbered(0) { Ok(found) } else { Err(Refusal::NoShard) } }
        };
        let client = async {
            let mut partial = None;
            let fetched =
                shard::fetch(&mut b, ShardId::Numbered(0), entry.transfer(), &mut partial, |_| {}).await;
            if honest {
                let shard = Samples::decode(&fetched.unwrap(), &entry, &manifest).unwrap();
                assert_eq!(shard.n_samples(), 30_000);
                let other = ShardId::Numbered(7);
                let refused =
                    shard::fetch(&mut b, other, entry.transfer(), &mut None, |_| {}).await.unwrap_err();
                assert_eq!(refused.to_string(), "no such shard");
            } else {
                assert!(matches!(fetched, Err(ConversationError::Bulk(BulkError::Hash { .. }))));
            }
            b.close().await.unwrap();
        };
        let (served, ()) = futures::join!(shard::serve(&mut a, lookup, || {}), client);
        served.unwrap();
    }
}

#[test]
fn a_manifest_says_which_bytes_are_there() {
    let (manifest, bytes) = manifest();
    let preprocessing = Some(Transfer::of(b"preprocessing"));
    let manifest = Manifest { preprocessing, ..manifest };
    for (id, want) in [
        (ShardId::Numbered(0), Some(Transfer::of(&bytes))),
        (ShardId::Numbered(1), None),
        (ShardId::Gallery, Some(Transfer::of(&bytes))),
        (ShardId::Preprocessing, preprocessing),
        (ShardId::Streamed(0), None),
        (ShardId::Window, None),
    ] {
        assert_eq!(id.transfer(&manifest), want, "{id:?}");
    }
}

#[test]
fn a_shard_is_checked_against_its_manifest() {
    let (mut manifest, bytes) = manifest();
    let entry = manifest.shards[0];
    let mut fewer = entry;
    fewer.n_samples -= 1;
    let short = Samples::decode(&bytes, &fewer, &manifest).unwrap_err();
    assert!(matches!(short, DatasetError::Length { .. }), "{short}");
    manifest.samples = images(5);
    let label = Samples::decode(&bytes, &entry, &manifest).unwrap_err();
    assert!(matches!(label, DatasetError::Label { n_classes: 5, .. }), "{label}");
    manifest.samples = images(0);
    assert!(manifest.validate().is_err());
}

#[test]
fn a_shard_of_text_is_checked_token_by_token() {
    let ids: Vec<u32> = (0..400).map(|i| 3 + i % 50).collect();
    let tokens = |ids: &[u32]| Samples::Tokens(TokenSequences { length: 8, ids: ids.to_vec() });
    let shape = TokenShape { length: 8, vocabulary: 53, mask: Some(1) };
    let decoded = |samples: &Samples, shape| {
        let (bytes, entry) = samples.encode().unwrap();
        let manifest = fixture::manifest(SampleKind::Tokens(shape), entry);
        manifest.validate()?;
        Samples::decode(&bytes, &entry, &manifest)
    };
    assert_eq!(decoded(&tokens(&ids), shape), Ok(tokens(&ids)));
    let fewer = TokenShape { vocabulary: 52, ..shape };
    assert_eq!(decoded(&tokens(&ids), fewer), Err(DatasetError::Token { token: 52, vocabulary: 52 }));
    let longer = TokenShape { length: 9, ..shape };
    assert!(matches!(decoded(&tokens(&ids), longer), Err(DatasetError::Length { want: 1350, got: 1200 })));
    // The mask is what the model is to see in place of a token, and no token.
    let mut masked = ids.clone();
    masked[7] = 1;
    assert!(matches!(decoded(&tokens(&masked), shape), Err(DatasetError::Token { token: 1, .. })));
    let unmasked = TokenShape { mask: None, ..shape };
    assert_eq!(decoded(&tokens(&masked), unmasked), Ok(tokens(&masked)));
    let bad = [
        TokenShape { length: 3, ..shape },
        TokenShape { vocabulary: 1, ..unmasked },
        TokenShape { mask: Some(53), ..shape },
        TokenShape { vocabulary: (1 << 24) + 1, ..shape },
    ];
    // The third byte of a token counts.
    let many = TokenShape { vocabulary: 1 << 24, ..unmasked };
    let large: Vec<u32> = ids.iter().map(|id| id * 300_001).collect();
    assert_eq!(decoded(&tokens(&large), many), Ok(tokens(&large)));
    for shape in bad {
        assert!(matches!(decoded(&tokens(&ids), shape), Err(DatasetError::Manifest(_))));
    }
}

#[tokio::test]
async fn an_offer_is_pulled_and_answered() {
    assert_eq!(
        (ContributionRefusal::Busy.kind(), ContributionRefusal::Commitment(String::new()).kind()),
        ("busy", "account")
    );
    let values = vec![0.25f32; 40_000];
    let bytes = TensorCodec::Int8.encode(&values).unwrap();
    let offer = Offer {
        contribution_id: 9,
        epoch: 2,
        n_samples: 64,
        loss: 1.5,
        n_values: 40_000,
        codec: TensorCodec::Int8,
        transfer: Transfer::of(&bytes),
    };
    let reducer = KeyPair::from_seed(&[7; 32]);
    let receipt = Receipt {
        run_id: "r".into(),
        peer: KeyPair::from_seed(&[8; 32]).public(),
        reducer: reducer.public(),
        contribution_id: 9,
        epoch: 2,
        n_samples: 64,
        n_bytes: offer.transfer.n_bytes,
        milliseconds: 1500,
        issued_at: UnixTime(1_800_000_000),
    };
    let receipt = receipt.sign(&reducer).unwrap();
    let refusal = ContributionRefusal::Epoch { want: 3, got: 2 };
    let (mut a, mut b) = pair();
    let aggregator = async {
        use gradient::{BackboneToContributor as Down, ContributorToBackbone as Up};
        let Up::Offer(got, ..) = framing::read(&mut a, gradient::MESSAGE_BYTES_MAX).await.unwrap();
        framing::write(&mut a, &Down::Wanted, 1024).await.unwrap();
        let mut partial = Partial::new(got.transfer, 1 << 20).unwrap();
        let pulled = bulk::pull(&mut a, &mut partial, |_| {}).await.unwrap();
        assert_eq!(got.codec.decode(&pulled, 40_000).unwrap(), values);
        framing::write(&mut a, &Down::Accepted(receipt.clone()), 1024).await.unwrap();
        let Up::Offer(..) = framing::read(&mut a, gradient::MESSAGE_BYTES_MAX).await.unwrap();
        framing::write(&mut a, &Down::Refused(refusal.clone()), 1024).await.unwrap();
    };
    let contributor = async {
        let prepared = PreparedContribution { offer, commitment: None, bytes, samples: Vec::new() };
        assert_eq!(gradient::offer(&mut b, &prepared, |_| {}).await.unwrap(), Ok(receipt.clone()));
        assert_eq!(gradient::offer(&mut b, &prepared, |_| {}).await.unwrap(), Err(refusal.clone()));
    };
    futures::join!(aggregator, contributor);
}

#[tokio::test]
async fn a_contributor_learns_that_its_contribution_is_recomputed() {
    use gradient::{BackboneToContributor as Down, ContributorToBackbone as Up, OfferStage};
    let (bytes, samples) = (vec![1; 8], vec![3; 5000]);
    let (n_values, codec, transfer) = (2, TensorCodec::F32, Transfer::of(&bytes));
    let offer = Offer { contribution_id: 1, epoch: 2, n_samples: 3, loss: 1.0, n_values, codec, transfer };
    let key = KeyPair::from_seed(&[8; 32]);
    let list = (5000, &*samples);
    let commitment = Commitment::sign(&key, transfer.sha256, &offer, (transfer.sha256, 2), list).unwrap();
    let refusal = ContributionRefusal::Repeated("again".into());
    for has_commitment in [true, false] {
        let (mut a, mut b) = pair();
        let aggregator = async {
            // The list is longer than any other message may be.
            let Up::Offer(got, _, list) = framing::read(&mut a, 5000 + 1024).await.unwrap();
            assert_eq!(list, samples);
            framing::write(&mut a, &Down::Wanted, 1024).await.unwrap();
            let mut partial = Partial::new(got.transfer, 8).unwrap();
            bulk::pull(&mut a, &mut partial, |_| {}).await.unwrap();
            for n_left in [2, 2] {
                framing::write(&mut a, &Down::Checking { n_left }, 1024).await.unwrap();
            }
            framing::write(&mut a, &Down::Refused(refusal.clone()), 1024).await.unwrap();
        };
        let contributor = async {
            let commitment = has_commitment.then(|| commitment.clone());
            let (offer, bytes, samples) = (offer.clone(), bytes.clone(), samples.clone());
            let prepared = PreparedContribution { offer, commitment, bytes, samples };
            let mut stages = Vec::new();
            let answer = gradient::offer(&mut b, &prepared, |stage| stages.push(stage)).await;
            match has_commitment {
                true => assert_eq!(answer.unwrap(), Err(refusal.clone())),
                // A run without commitments recomputes nothing.
                false => assert!(matches!(answer, Err(ConversationError::Unexpected(_)))),
            }
            let n_checking = stages.iter().filter(|stage| **stage == OfferStage::Checking(2)).count();
            assert_eq!(n_checking, if has_commitment { 2 } else { 0 });
        };
        futures::join!(aggregator, contributor);
    }
}

/// A source whose bytes are gone after a number of them.
struct Going(Vec<u8>, u64);

impl bulk::ChunkSource for Going {
    fn n_bytes(&self) -> u64 {
        self.0.len() as u64
    }

    async fn read(&self, range: std::ops::Range<u64>) -> Result<Vec<u8>, Withdrawn> {
        if range.end > self.1 {
            Err(Withdrawn::because("it made way for a newer one"))
        } else {
            bulk::in_memory(&self.0, range)
        }
    }
}

#[tokio::test]
async fn a_puller_of_withdrawn_bytes_gets_the_reason_and_starts_over() {
    let values = vec![1.0f32; 100_000];
    let bytes = TensorCodec::F32.encode(&values).unwrap();
    let header = |epoch| state::StateHeader {
        epoch,
        n_values: 100_000,
        codec: TensorCodec::F32,
        transfer: Transfer::of(&bytes),
    };
    let mut partial = None;
    let (mut a, mut b) = pair();
    let lookup = |_| Ok((header(3), Going(bytes.clone(), 200_000)));
    let fetching = async {
        let fetched = state::fetch(&mut b, 100_000, TensorCodec::F32, &mut partial, |_, _| {}).await;
        let error = fetched.unwrap_err();
        assert!(matches!(&error, ConversationError::Bulk(BulkError::Withdrawn(_))), "{error}");
        assert!(error.to_string().contains("it made way for a newer one"), "{error}");
    };
    let (served, ()) = futures::join!(state::serve(&mut a, |epoch| ready(lookup(epoch)), || {}), fetching);
    assert!(served.is_err() && partial.is_none(), "nothing of it is asked for again");
}

/// Gives a checkpoint, or leaves after so many bytes of its answer.
async fn donor(mut stream: MemoryStream, checkpoint: Vec<u8>, leaves_after: Option<u64>) {
    let lookup = |request: ModelRequest| {
        assert_eq!(request, ModelRequest::Checkpoint { is_shared: true });
        let found = (ModelResponse::Checkpoint(Transfer::of(&checkpoint)), checkpoint.clone());
        async move { found }
    };
    match leaves_after {
        None => model::serve(&mut stream, lookup, || ()).await.unwrap(),
        Some(n_bytes) => {
            let (mut ours, theirs) = pair();
            let serving = async {
                let _ = model::serve(&mut ours, lookup, || ()).await;
            };
            let (mut from, mut to) = theirs.split();
            let (mut asked, answered) = stream.split();
            let mut answered = answered;
            let ask = futures::io::copy(&mut asked, &mut to);
            let mut limited = (&mut from).take(n_bytes);
            let answer = futures::io::copy(&mut limited, &mut answered);
            futures::pin_mut!(serving, ask, answer);
            futures::future::select(futures::future::select(serving, ask), answer).await;
        }
    }
}

#[tokio::test]
async fn a_checkpoint_goes_on_with_another_donor_where_the_first_one_left() {
    let checkpoint = noise(CHUNK_BYTES * 9 + 5);
    let mut partial = None;
    let max = checkpoint.len() as u64;
    let mut here = 0;
    for leaves_after in [Some(CHUNK_BYTES as u64 * 4), Some(CHUNK_BYTES as u64 * 3)] {
        let (mut behind, ahead) = pair();
        let fetching = async {
            let fetched = model::fetch_checkpoint(&mut behind, true, max, &mut partial).await;
            drop(behind);
            fetched
        };
        let (fetched, ()) = futures::join!(fetching, donor(ahead, checkpoint.clone(), leaves_after));
        fetched.unwrap_err();
        let now = partial.as_ref().map_or(0, Partial::n_bytes);
        assert!(now > here, "{now} bytes are kept, {here} were before");
        here = now;
    }
    assert!(here < max);
    let (mut behind, ahead) = pair();
    let fetching = async {
        let fetched = model::fetch_checkpoint(&mut behind, true, max, &mut partial).await;
        drop(behind);
        fetched
    };
    let (fetched, ()) = futures::join!(fetching, donor(ahead, checkpoint.clone(), None));
    assert_eq!(fetched.unwrap(), checkpoint);
    assert!(partial.is_none());
}

#[tokio::test]
async fn a_step_of_another_model_or_length_is_refused_before_it_is_pulled() {
    let model = ModelVersion { n_samples_total: 7, epoch: 3, hash: Sha256Hash::of(b"model") };
    let mean = noise(4 * 10);
    let good = StepHeader {
        epoch: 3,
        before: model.hash,
        nonce: 9,
        n_samples: 5,
        loss: 0.5,
        members: vec![vec![1; 38]],
        transfer: Transfer::of(&mean),
    };
    for (header, is_good) in [
        (good.clone(), true),
        (StepHeader { epoch: 4, ..good.clone() }, false),
        (StepHeader { before: Sha256Hash::of(b"other"), ..good.clone() }, false),
        (StepHeader { loss: f32::NAN, ..good.clone() }, false),
        (StepHeader { members: vec![vec![1; 38]; 256], ..good.clone() }, true),
        (StepHeader { members: vec![vec![1; 38]; 257], ..good.clone() }, false),
        (StepHeader { members: vec![vec![1; 64]], ..good.clone() }, true),
        (StepHeader { members: vec![vec![1; 65]], ..good.clone() }, false),
        (StepHeader { transfer: Transfer { n_bytes: u64::MAX, ..good.transfer }, ..good.clone() }, false),
    ] {
        let (mut behind, mut ahead) = pair();
        let fetching = async {
            let fetched = model::fetch_step(&mut behind, model, 10).await;
            drop(behind);
            fetched
        };
        let lookup = |_| async { (ModelResponse::Step(header.clone()), mean.clone()) };
        let (fetched, _) = futures::join!(fetching, model::serve(&mut ahead, lookup, || ()));
        match fetched {
            Ok(Fetched::Step(got, bytes)) => assert!(is_good && got == header && bytes == mean),
            other => assert!(!is_good, "{other:?}"),
        }
    }
}

/// A state of this epoch, of 50,000 values, and its bytes.
fn state_of(epoch: u64) -> (StateHeader, Vec<u8>) {
    let bytes = TensorCodec::F32.encode(&vec![epoch as f32; 50_000]).unwrap();
    let transfer = Transfer::of(&bytes);
    (StateHeader { epoch, n_values: 50_000, codec: TensorCodec::F32, transfer }, bytes)
}

/// The partial state of a contributor whose stream ended after half of it.
async fn half_of(state: &(StateHeader, Vec<u8>)) -> Option<state::PartialState> {
    let mut partial = None;
    let (a, mut b) = pair();
    let (mut ours, mut theirs) = a.split();
    let holder = async {
        let _: state::ContributorToBackbone = framing::read(&mut ours, 64).await.unwrap();
        framing::write(&mut theirs, &state::BackboneToContributor::Found(state.0.clone()), 1024)
            .await
            .unwrap();
        for (index, chunk) in (0u32..3).zip(state.1.chunks(CHUNK_BYTES)) {
            let header = [index, CHUNK_BYTES as u32];
            theirs.write_all(&header.map(u32::to_le_bytes).concat()).await.unwrap();
            theirs.write_all(chunk).await.unwrap();
        }
        drop((ours, theirs));
    };
    let fetching = state::fetch(&mut b, 50_000, TensorCodec::F32, &mut partial, |_, _| {});
    let ((), fetched) = futures::join!(holder, fetching);
    assert!(fetched.is_err() && partial.is_some());
    partial
}

#[tokio::test]
async fn parameters_go_on_where_they_were_cut_as_long_as_they_are_the_same() {
    let (old, new) = (state_of(3), state_of(4));
    // The header is that of the epoch, and its bytes are others: what is kept of it is of no use.
    let same_epoch = (StateHeader { epoch: 3, ..new.0.clone() }, new.1.clone());
    let kept = 3 * CHUNK_BYTES as u64;
    for (now, is_gone, first) in [(&old, false, kept), (&new, true, 0), (&same_epoch, false, 0)] {
        let mut partial = half_of(&old).await;
        let (mut a, mut b) = pair();
        let lookup = |wanted: Option<u64>| match wanted {
            Some(3) if is_gone => Err(Refusal::Stale { epoch: 3, newest: 4 }),
            Some(3) | None => Ok((now.0.clone(), now.1.clone())),
            Some(other) => panic!("epoch {other} was never cut"),
        };
        let mut heard = Vec::new();
        let fetching = async {
            let on_progress = |here, all| heard.push((here, all));
            let state = state::fetch(&mut b, 50_000, TensorCodec::F32, &mut partial, on_progress).await;
            drop(b);
            state.unwrap()
        };
        let (_, state) = futures::join!(state::serve(&mut a, |epoch| ready(lookup(epoch)), || {}), fetching);
        assert_eq!((state.epoch, state.sha256), (now.0.epoch, now.0.transfer.sha256));
        assert_eq!(heard[0], (first, now.0.transfer.n_bytes), "what is there already is not pulled again");
        assert!(partial.is_none());
    }
}

#[tokio::test]
async fn a_shard_goes_on_where_it_was_cut_and_another_one_begins_anew() {
    let (manifest, bytes) = manifest();
    let entry = manifest.shards[0];
    assert_eq!(ShardId::Numbered(0).entry(&manifest), Some(&entry));
    assert_eq!(
        (ShardId::Numbered(1).entry(&manifest), ShardId::Gallery.entry(&manifest)),
        (None, Some(&entry))
    );
    let whole = Transfer { n_bytes: u64::from(entry.n_bytes), sha256: entry.sha256 };
    let cut = async |of: &[u8]| {
        let mut partial = Partial::new(Transfer::of(of), u64::MAX).unwrap();
        let (mut a, mut b) = pair();
        let holder = async {
            let chunk = &of[..CHUNK_BYTES];
            let header = [0, CHUNK_BYTES as u32];
            a.write_all(&header.map(u32::to_le_bytes).concat()).await.unwrap();
            a.write_all(chunk).await.unwrap();
            let _: Pull = framing::read(&mut a, 64).await.unwrap();
            drop(a);
        };
        let ((), pulled) = futures::join!(holder, bulk::pull(&mut b, &mut partial, |_| {}));
        assert!(pulled.is_err() && partial.n_bytes() == CHUNK_BYTES as u64);
        partial
    };
    for (of, first) in [(bytes.clone(), CHUNK_BYTES as u64), (noise(CHUNK_BYTES * 4), 0)] {
        let mut partial = Some(cut(&of).await);
        let (mut a, mut b) = pair();
        let shared: Arc<[u8]> = bytes.clone().into();
        let lookup = |_| {
            let found = (whole, shared.clone());
            async move { Ok(found) }
        };
        let mut heard = Vec::new();
        let fetching = async {
            let fetched =
                shard::fetch(&mut b, ShardId::Numbered(0), entry.transfer(), &mut partial, |here| {
                    heard.push(here);
                })
                .await;
            drop(b);
            fetched.unwrap()
        };
        let (_, fetched) = futures::join!(shard::serve(&mut a, lookup, || {}), fetching);
        assert_eq!(fetched, bytes);
        let here = (first + CHUNK_BYTES as u64).min(whole.n_bytes);
        assert_eq!(heard[0], here, "what is there already is not pulled again");
    }
}

#[test]
fn samples_are_put_together_one_by_one() {
    let images = |images: &[u8], labels: &[u8]| {
        Samples::Images(LabelledImages { images: images.to_vec(), labels: labels.to_vec() })
    };
    let three = images(&[1, 2, 3, 4, 5, 6], &[7, 8, 9]);
    let mut picked = three.none_of();
    for index in [2, 0, 3, 2] {
        picked.push(&three, index);
    }
    assert_eq!(picked, images(&[5, 6, 1, 2, 5, 6], &[9, 7, 9]), "there is no fourth one");
    let tokens = |length, ids: &[u32]| Samples::Tokens(TokenSequences { length, ids: ids.to_vec() });
    let text = tokens(3, &[1, 2, 3, 4, 5, 6]);
    let mut picked = text.none_of();
    for index in [1, 2, 0] {
        picked.push(&text, index);
    }
    assert_eq!(picked, tokens(3, &[4, 5, 6, 1, 2, 3]));
    // Nothing is taken of another length, or of another kind.
    picked.push(&tokens(2, &[1, 2]), 0);
    picked.push(&three, 0);
    assert_eq!(picked, tokens(3, &[4, 5, 6, 1, 2, 3]));
    let mut picked = three.none_of();
    picked.push(&text, 0);
    assert_eq!(picked.n_samples(), 0);
}

#[test]
fn a_manifest_keeps_within_its_limits() {
    let entry = ShardEntry { n_samples: 1, n_bytes: 1, sha256: Sha256Hash([1; 32]) };
    let of = |samples: SampleKind, entry: ShardEntry, n_shards: usize| {
        let manifest = fixture::manifest(samples, entry);
        Manifest { shards: vec![entry; n_shards], ..manifest }.validate().is_ok()
    };
    let text = |length, vocabulary| SampleKind::Tokens(TokenShape { length, vocabulary, mask: Some(1) });
    for (n_classes, is_good) in [(0, false), (1, true), (256, true), (257, false)] {
        assert_eq!(of(images(n_classes), entry, 1), is_good, "{n_classes} classes");
    }
    for (length, is_good) in [(3, false), (4, true), (1024, true), (1025, false)] {
        assert_eq!(of(text(length, 4), entry, 1), is_good, "sequences of {length}");
    }
    assert!(!of(text(4, 1), entry, 1) && of(text(4, 2), entry, 1));
    for (n_shards, is_good) in [(0, false), (1, true), (SHARDS_MAX, true), (SHARDS_MAX + 1, false)] {
        assert_eq!(of(images(1), entry, n_shards), is_good, "{n_shards} shards");
    }
    for (n_bytes, is_good) in [(0, false), (SHARD_BYTES_MAX, true), (SHARD_BYTES_MAX + 1, false)] {
        assert_eq!(of(images(1), ShardEntry { n_bytes, ..entry }, 1), is_good, "{n_bytes} bytes");
    }
    // A sequence of 1024 tokens is 3 KiB: the most that a shard decompresses to are 21,845.
    let many = 21_845;
    for (n_samples, is_good) in [(0, false), (many, true), (many + 1, false)] {
        assert_eq!(of(text(1024, 4), ShardEntry { n_samples, ..entry }, 1), is_good, "{n_samples} samples");
    }
    for (height, width, channels) in [(0, 1, 1), (1, 0, 1), (1, 1, 0)] {
        let shape = ImageShape { height, width, channels };
        assert!(!of(SampleKind::Images { shape, class_names: vec!["a".into()] }, entry, 1), "{shape:?}");
    }
    assert_eq!(ImageShape { height: 2, width: 3, channels: 5 }.n_values(), 30);
    // What is too large is refused before it is decompressed, and the largest is not.
    let (bytes, entry) =
        Samples::Tokens(TokenSequences { length: 1024, ids: vec![3; 1024] }).encode().unwrap();
    let manifest = fixture::manifest(text(1024, 4), entry);
    let decoded = |n_samples| Samples::decode(&bytes, &ShardEntry { n_samples, ..entry }, &manifest);
    assert_eq!(decoded(many), Err(DatasetError::Length { want: 3072 * 21_845, got: 3072 }));
    assert!(matches!(decoded(many + 1), Err(DatasetError::Manifest(_))));
}

#[tokio::test]
async fn parameters_in_another_codec_or_length_are_not_pulled() {
    let (header, _) = state_of(3);
    let halved = header.transfer.n_bytes / 2;
    let bytes = |n_bytes| Transfer { n_bytes, ..header.transfer };
    for announced in [
        StateHeader { codec: TensorCodec::F16, ..header.clone() },
        StateHeader { transfer: bytes(halved), ..header.clone() },
        StateHeader { codec: TensorCodec::F16, transfer: bytes(halved), ..header.clone() },
    ] {
        let (mut a, mut b) = pair();
        let lookup = |_| Ok((announced.clone(), Vec::new()));
        let fetching = async {
            let fetched = state::fetch(&mut b, 50_000, TensorCodec::F32, &mut None, |_, _| {}).await;
            drop(b);
            fetched
        };
        let (_, fetched) =
            futures::join!(state::serve(&mut a, |epoch| ready(lookup(epoch)), || {}), fetching);
        assert!(matches!(fetched, Err(ConversationError::Mismatch { .. })), "{announced:?}: {fetched:?}");
    }
}

#[test]
fn a_manifest_says_what_its_samples_are() {
    let (pictures, _) = manifest();
    assert_eq!(pictures.image_shape(), Some(ImageShape { height: 2, width: 2, channels: 1 }));
    assert_eq!(pictures.class_names()[9], "9");
    let text = SampleKind::Tokens(TokenShape { length: 8, vocabulary: 53, mask: Some(1) });
    let text = Manifest { samples: text, ..pictures };
    assert_eq!((text.image_shape(), text.class_names().len()), (None, 0));
}

#[tokio::test]
async fn a_run_is_described_on_request() {
    let description = fixture::run();
    let (mut a, mut b) = pair();
    let asking = async {
        let heard = run::describe(&mut b).await.unwrap();
        let mut rest = Vec::new();
        b.read_to_end(&mut rest).await.unwrap();
        assert!(rest.is_empty(), "the stream is closed after one answer");
        heard
    };
    let described = SignedRun { run: description.clone(), signature: None };
    let (answered, heard) = futures::join!(run::answer(&mut a, &described), asking);
    answered.unwrap();
    assert_eq!(heard, description);
}

#[tokio::test]
async fn a_description_that_is_handed_on_has_the_word_of_its_authority() {
    let (authority, other) = (KeyPair::from_seed(&[1; 32]), KeyPair::from_seed(&[2; 32]));
    let mut of_authority = fixture::run();
    of_authority.access.authority = authority.public();
    let signed = SignedRun::by(&authority, of_authority.clone()).unwrap();
    assert!(signed.is_signed());
    let (mut a, mut b) = pair();
    let (answered, heard) = futures::join!(run::answer(&mut a, &signed), run::describe_signed(&mut b));
    answered.unwrap();
    let heard = heard.unwrap();
    assert!(heard.is_signed());
    assert_eq!(heard, signed);

    // Who has not the key has not the word, nor that for another run.
    let by_another = SignedRun::by(&other, of_authority.clone()).unwrap();
    assert!(by_another.signature.is_none() && !by_another.is_signed());
    let mut changed = signed.clone();
    changed.run.identity.title.push('!');
    assert!(!changed.is_signed());
    let mut taken_over = signed;
    taken_over.run.access.authority = other.public();
    assert!(!taken_over.is_signed());
}
