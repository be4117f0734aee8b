//! Fuzz targets of all decoders: any bytes give a message or an error, never a panic, and never more data than came. A
//! decoded message is encoded and decoded again, and must be the same.

use std::fmt::Debug;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use barnraise_fuzz::arbitrary::{self, Arbitrary};
use barnraise_fuzz::{fuzz, value};
use futures::executor::block_on;
use futures::io::{AsyncRead, AsyncWrite};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::access::AccessToken;
use crate::average::{CHUNK_VALUES, MemberSet};
use crate::codec::{Density, Sparsity, WARMUP_DENSITY};
use crate::commitment::{Commitment, SampleId, encode_samples};
use crate::dataset::{
    ImageShape, Manifest, RatingShape, RowTargets, SampleKind, Samples, ShardEntry, TableShape, TableTarget,
    TokenShape,
};
use crate::dht::backbone::{BACKBONE_ADDRESSES_MAX, BackboneAnnouncement};
use crate::dht::experts::{EXPERT_ADDRESSES_MAX, read_branch, read_host};
use crate::dht::progress::BackboneProgress;
use crate::dht::shards::{HOLDER_ADDRESSES_MAX, Holder};
use crate::dht::{
    CLOSEST_MAX, KEYS_MAX, NodeToPeer, PeerToNode, RECORDS_MAX, Record, RecordName, SUBKEYS_MAX, UnixMillis,
};
use crate::evidence::{AnswerEvidence, ContributionEvidence, Evidence};
use crate::matchmaking::ModelVersion;
use crate::receipt::SignedReceipt;
use crate::{
    DisplayName, Sha256Hash, TensorCodec, access, average, bulk, contribute, dht, evidence, experts, framing,
    gradient, matchmaking, model, reduce, run, sampled, shard, state,
};

/// Decodes a message, if the bytes are one, and checks its round trip.
fn message<M: Serialize + DeserializeOwned + PartialEq + Debug>(
    payload: &[u8],
    bytes_max: usize,
) -> Option<M> {
    let message: M = framing::decode_payload(payload).ok()?;
    let frame = match framing::encode(&message, bytes_max) {
        Ok(frame) => frame,
        Err(error) => panic!("{} bytes came, and do not fit into {bytes_max}: {error}", payload.len()),
    };
    assert!(frame.len() - framing::HEADER_BYTES <= payload.len(), "its encoding is the shortest there is");
    let again: M = framing::decode(&frame, bytes_max).unwrap();
    // A message with a NaN is not equal to itself.
    let is_itself = |message: &M, other: &M| message == other;
    if is_itself(&message, &message) {
        assert_eq!(again, message);
    }
    assert_eq!(framing::encode(&again, bytes_max).unwrap(), frame);
    Some(message)
}

/// Both directions of a conversation.
fn messages<A, B>(payload: &[u8], bytes_max: usize)
where
    A: Serialize + DeserializeOwned + PartialEq + Debug,
    B: Serialize + DeserializeOwned + PartialEq + Debug,
{
    let payload = &payload[..payload.len().min(bytes_max)];
    message::<A>(payload, bytes_max);
    message::<B>(payload, bytes_max);
}

/// A stream that yields these bytes and ends.
struct InputStream<'b>(&'b [u8]);

impl AsyncRead for InputStream<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let n_bytes = self.0.len().min(buffer.len());
        let (now, later) = self.0.split_at(n_bytes);
        buffer[..n_bytes].copy_from_slice(now);
        self.0 = later;
        Poll::Ready(Ok(n_bytes))
    }
}

impl AsyncWrite for InputStream<'_> {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[test]
fn frames() {
    fuzz!("frames", |frame| {
        const BYTES_MAX: usize = 4096;
        type FramedMessage = (String, Vec<u32>);
        let whole = framing::decode::<FramedMessage>(frame, BYTES_MAX);
        let read = block_on(framing::read::<FramedMessage, _>(&mut InputStream(frame), BYTES_MAX));
        if let Ok(message) = whole {
            let again = framing::encode(&message, BYTES_MAX).unwrap();
            assert!(again.len() <= frame.len());
            assert_eq!(framing::decode::<FramedMessage>(&again, BYTES_MAX).unwrap(), message);
            assert_eq!(read.unwrap(), message);
        }
    });
}

#[test]
fn access() {
    fuzz!("access", |payload| {
        messages::<access::ContributorToBackbone, access::BackboneToContributor>(
            payload,
            access::MESSAGE_BYTES_MAX,
        );
        if let Ok(token) = AccessToken::decode(payload) {
            assert_eq!(AccessToken::decode(&token.encode().unwrap()).unwrap(), token);
        }
    });
}

#[test]
fn average() {
    fuzz!("average", |payload| {
        messages::<average::Join, average::ReducerToMember>(payload, average::MESSAGE_BYTES_MAX);
        if let Some(set) = message::<MemberSet>(payload, average::MESSAGE_BYTES_MAX) {
            let members = || (0..=matchmaking::MEMBERS_MAX).filter(|at| set.contains(*at));
            assert_eq!(members().count(), set.n_members() as usize);
            assert_eq!(members().collect::<MemberSet>(), set);
        }
    });
}

#[test]
fn contribute() {
    fuzz!("contribute", |payload| {
        messages::<contribute::ContributorToBackbone, contribute::BackboneToContributor>(
            payload,
            contribute::MESSAGE_BYTES_MAX,
        );
    });
}

#[test]
fn gradient() {
    fuzz!("gradient", |payload| {
        messages::<gradient::ContributorToBackbone, gradient::BackboneToContributor>(
            payload,
            gradient::MESSAGE_BYTES_MAX,
        );
    });
}

#[test]
fn sampled() {
    fuzz!("sampled", |payload| {
        messages::<sampled::DiallerToAcceptor, sampled::AcceptorToDialler>(
            payload,
            sampled::MESSAGE_BYTES_MAX,
        );
        let run = Sha256Hash([0; 32]);
        if let Some(sampled::DiallerToAcceptor::Meet(view, digest)) =
            message(&payload[..payload.len().min(sampled::MESSAGE_BYTES_MAX)], sampled::MESSAGE_BYTES_MAX)
        {
            for membership in &view.memberships {
                assert!(!membership.supersedes(membership));
                let _ = membership.verify(run);
                let _ = digest.has_membership(sampled::PeerPrefix::of(&membership.peer), membership.counter);
            }
            for proof in &view.activity {
                let _ = digest.has_activity(proof.peer, 1, proof.round);
            }
        }
    });
}

#[test]
fn experts() {
    fuzz!("experts", |payload| {
        messages::<experts::ExpertRequest, experts::HostToTrainer>(payload, experts::MESSAGE_BYTES_MAX);
        // As a host reads it, with a tensor after it.
        let mut stream = InputStream(payload);
        let Ok(request) = block_on(experts::receive(&mut stream)) else { return };
        let tensors = block_on(experts::receive_tensors(&mut stream, &request));
        if request.check().is_err() {
            tensors.unwrap_err();
            return;
        }
        let grid = experts::GridShape::new(&[experts::GRID_SIDE_MAX; 2]).unwrap();
        assert_eq!(grid.contains(&request.uid), request.uid.indices().len() == 2);
        assert!(request.transfer.n_bytes.max(request.answer_bytes()) <= experts::TENSOR_BYTES_MAX as u64);
        if let Ok(bytes) = tensors {
            assert_eq!(bulk::Transfer::of(&bytes), request.transfer);
            if let Ok(tensors) = request.decode(&bytes) {
                assert!(tensors.inputs.iter().all(|value| value.is_finite()));
                assert_eq!(tensors.gradients.is_some(), request.pass == experts::ExpertPass::Backward);
            }
        }
    });
}

#[test]
fn expert_leases() {
    use experts::leases::{self, ExpertLease, Grantors, LeaseAnswer, LeaseQuestion, PLACES_MAX};

    fuzz!("expert_leases", |payload| {
        messages::<LeaseQuestion, LeaseAnswer>(payload, leases::MESSAGE_BYTES_MAX);
        let read = block_on(leases::receive(&mut InputStream(payload)));
        if let Ok(Some(question)) = read
            && question.check("barn").is_ok()
        {
            let n_places = match &question {
                LeaseQuestion::Lease { asks, n_vacant, .. } => asks.len() + usize::from(*n_vacant),
                LeaseQuestion::Vote { asks, .. } => asks.len(),
                LeaseQuestion::Keepers { places, .. } | LeaseQuestion::Holders { places, .. } => places.len(),
            };
            assert!(n_places <= PLACES_MAX);
        }
        if let Some(lease) = message::<ExpertLease>(payload, payload.len()) {
            let grantors = Grantors::new([access::PublicKey([7; 32])]).unwrap();
            lease.verify("barn", &grantors).unwrap_err();
        }
    });
}

#[test]
fn expert_checkpoints() {
    use dht::checkpoints::CheckpointRecord;
    use experts::checkpoints::{self, CheckpointAnswer, CheckpointQuestion};

    fuzz!("expert_checkpoints", |payload| {
        messages::<CheckpointQuestion, CheckpointAnswer>(payload, checkpoints::MESSAGE_BYTES_MAX);
        message::<CheckpointRecord>(payload, payload.len());
        let key = access::KeyPair::from_seed(&[9; 32]);
        let name = RecordName::dictionary(b"barn");
        let value = payload[..payload.len().min(dht::record::VALUE_BYTES_MAX)].to_vec();
        let owner = Some(dht::Subkey::of_owner(key.public()));
        let record = Record::sign(&key, name, owner, value, UnixMillis(1)).unwrap();
        if let Some(read) = CheckpointRecord::read(&record) {
            assert_eq!(read.checkpoint.lease.holder, key.public());
            assert!(read.keepers.len() <= dht::checkpoints::RECORD_KEEPERS_MAX);
        }
    });
}

#[test]
fn expert_audits() {
    use experts::audits::{self, ANSWERS_MAX, AuditOffer, AuditReply};

    fuzz!("expert_audits", |payload| {
        messages::<AuditOffer, AuditReply>(payload, audits::MESSAGE_BYTES_MAX);
        // As a backbone reads it, with an answer after it: nobody signs by chance.
        let mut stream = InputStream(payload);
        let Ok(offer) = block_on(audits::receive(&mut stream)) else { return };
        assert!(offer.answers.len() <= ANSWERS_MAX);
        block_on(audits::take(&mut stream, (&offer, Sha256Hash([7; 32])), 0)).unwrap_err();
    });
}

#[test]
fn run() {
    fuzz!("run", |payload| {
        message::<run::ContributorToBackbone>(payload, run::MESSAGE_BYTES_MAX);
        let answer = message::<run::BackboneToContributor>(payload, run::MESSAGE_BYTES_MAX);
        if let Some(run::BackboneToContributor::Description(described)) = answer {
            let _ = described.is_signed();
            let run = described.run;
            let _ = run.synchronous().map(|scheme| scheme.check_recomputable(&run.model.graph));
            if run.data.manifest.validate().is_ok() {
                let raw =
                    run.data.manifest.shards.iter().map(|entry| run.data.manifest.raw_bytes(entry)).max();
                assert!(raw.unwrap() <= crate::dataset::SHARD_RAW_BYTES_MAX);
            }
        }
    });
}

#[test]
fn shard() {
    fuzz!("shard", |payload| {
        messages::<shard::ContributorToBackbone, shard::BackboneToContributor>(
            payload,
            shard::MESSAGE_BYTES_MAX,
        );
    });
}

#[test]
fn matchmaking() {
    fuzz!("matchmaking", |payload| {
        messages::<matchmaking::Hello, matchmaking::HelloResponse>(payload, matchmaking::MESSAGE_BYTES_MAX);
        message::<matchmaking::MatchmakingMessage>(payload, matchmaking::MESSAGE_BYTES_MAX);
    });
}

#[test]
fn model() {
    fuzz!("model", |payload| {
        messages::<model::ModelRequest, model::ModelResponse>(payload, model::MESSAGE_BYTES_MAX);
    });
}

#[test]
fn reduce() {
    fuzz!("reduce", |payload| {
        messages::<reduce::Offer, reduce::BackboneToReducer>(payload, reduce::MESSAGE_BYTES_MAX);
        let offer = framing::decode_payload::<reduce::Offer>(payload);
        if let Ok(reducer) = offer.map(|offer| offer.reducer)
            && reducer.check().is_ok()
        {
            assert!(reducer.addresses.len() <= matchmaking::REDUCER_ADDRESSES_MAX);
            let longest = reducer.addresses.iter().map(Vec::len).max().unwrap_or(0);
            assert!(longest <= matchmaking::REDUCER_ADDRESS_BYTES_MAX);
        }
    });
}

#[test]
fn state() {
    fuzz!("state", |payload| {
        messages::<state::ContributorToBackbone, state::BackboneToContributor>(
            payload,
            state::MESSAGE_BYTES_MAX,
        );
    });
}

#[test]
fn receipt() {
    fuzz!("receipt", |payload| {
        if let Some(receipt) = message::<SignedReceipt>(payload, gradient::MESSAGE_BYTES_MAX) {
            let _ = receipt.verify();
        }
    });
}

#[test]
fn display_name() {
    fuzz!("display_name", |payload| {
        if let Some(name) = message::<DisplayName>(payload, 1024) {
            assert!(name.as_str().len() <= crate::display_name::NAME_BYTES_MAX);
            assert_eq!(DisplayName::new(name.as_str()).unwrap(), name);
        }
        if let Ok(name) =
            std::str::from_utf8(payload).map_err(drop).and_then(|text| DisplayName::new(text).map_err(drop))
        {
            assert!(name.as_str().chars().count() <= crate::display_name::NAME_CHARS_MAX);
            assert_eq!(DisplayName::try_from(name.as_str().to_owned()).unwrap(), name);
        }
    });
}

#[test]
fn dht() {
    fuzz!("dht", |payload| {
        let payload = &payload[..payload.len().min(dht::MESSAGE_BYTES_MAX)];
        if let Some(question) = message::<PeerToNode>(payload, dht::MESSAGE_BYTES_MAX)
            && question.check().is_ok()
        {
            match &question {
                PeerToNode::Find(keys) | PeerToNode::Get { keys, .. } => assert!(keys.len() <= KEYS_MAX),
                PeerToNode::Store { records, .. } | PeerToNode::Put(records) => {
                    assert!(records.len() <= RECORDS_MAX);
                    records.iter().for_each(check);
                }
            }
        }
        let asked = [RecordName::value(b"fuzz").key(), RecordName::dictionary(b"fuzz").key()];
        let Some(answer) = message::<NodeToPeer>(payload, dht::MESSAGE_BYTES_MAX) else { return };
        if let Ok(found) = answer.found(&asked) {
            assert!(found.answers.len() <= asked.len());
            for (position, (answer, key)) in found.answers.iter().zip(&asked).enumerate() {
                assert!(answer.records.len() <= SUBKEYS_MAX);
                assert!(answer.records.iter().all(|record| record.name.key() == *key));
                let n_closest = found.closest(position).count();
                assert!(n_closest <= CLOSEST_MAX && n_closest == answer.closest.len());
            }
            found.answers.iter().flat_map(|answer| &answer.records).for_each(check);
        }
    });
}

fn check(record: &Record) {
    const NOW: UnixMillis = UnixMillis(1_795_000_000_000);
    if record.check(NOW, Duration::from_secs(3600)).is_ok() {
        assert!(record.value.len() <= dht::record::VALUE_BYTES_MAX);
        assert!(record.expires_at > NOW && record.expires_at <= NOW.after(Duration::from_secs(3600)));
        assert_eq!(record.owner().is_some(), record.signature.is_some());
    }
    let encoded = framing::encode(record, usize::MAX).unwrap();
    assert!(encoded.len() - framing::HEADER_BYTES <= record.n_bytes(), "a record takes what it counts for");
    if let Some(backbone) = BackboneAnnouncement::read(record) {
        assert!(backbone.addresses.len() <= BACKBONE_ADDRESSES_MAX);
    }
    let _ = BackboneProgress::read(record);
    assert!(read_branch(record).is_none_or(|next| next < experts::GRID_SIDE_MAX));
    if let Some((last, host)) = read_host(record) {
        assert!(last < experts::GRID_SIDE_MAX && host.addresses.len() <= EXPERT_ADDRESSES_MAX);
    }
    if let Some(holder) = Holder::read(record) {
        assert!(holder.addresses.len() <= HOLDER_ADDRESSES_MAX);
        assert_eq!(holder.shards.iter().count(), holder.shards.len());
        assert_eq!(holder.shards.iter().collect::<dht::shards::ShardSet>(), holder.shards);
    }
}

#[test]
fn records() {
    fuzz!("records", |payload| {
        if let Some(record) = message::<Record>(payload, dht::MESSAGE_BYTES_MAX) {
            check(&record);
        }
    });
}

#[test]
fn evidence() {
    fuzz!("evidence", |payload| {
        messages::<evidence::EvidenceRequest, evidence::EvidenceResponse>(
            payload,
            evidence::MESSAGE_BYTES_MAX,
        );
        if let Ok(evidence) = Evidence::decode(payload) {
            let again = evidence.encode().unwrap();
            assert_eq!(Evidence::decode(&again).unwrap().encode().unwrap(), again);
            assert_eq!(again[0], payload[0]);
        }
        if let Ok(evidence) = AnswerEvidence::decode(payload) {
            let again = AnswerEvidence::decode(&evidence.encode().unwrap()).unwrap();
            assert_eq!((&again.inputs, &again.answer), (&evidence.inputs, &evidence.answer));
            assert_eq!(again.checkpoint, evidence.checkpoint);
            evidence.verify().unwrap_err();
        }
        if let Ok(evidence) = ContributionEvidence::decode(payload) {
            let again = ContributionEvidence::decode(&evidence.encode().unwrap()).unwrap();
            assert_eq!((&again.samples, &again.gradient), (&evidence.samples, &evidence.gradient));
            assert_eq!(again.parameters, evidence.parameters);
            assert_eq!(again.encode().unwrap(), evidence.encode().unwrap());
            let n_parameters = evidence.header.offer.n_values as usize;
            if let Ok(claim) = evidence.verify(n_parameters) {
                assert_eq!(claim.gradient.len(), n_parameters);
                assert_eq!(claim.gradient.len(), claim.parameters.len());
            }
        }
    });
}

/// A data set, and a list of its samples as in a commitment.
#[derive(Debug, Arbitrary)]
struct SampleList<'i> {
    shards: Vec<u32>,
    n_samples: u8,
    list: &'i [u8],
}

#[test]
fn account_list() {
    fuzz!("account_list", |input| {
        let Some(SampleList { shards, n_samples, list }) = value(input) else { return };
        let sha256 = Sha256Hash::of(b"shard");
        let entry = |n_samples| ShardEntry { n_samples, n_bytes: 1, sha256 };
        let manifest = Manifest {
            name: String::new(),
            samples: SampleKind::Tokens(TokenShape { length: 4, vocabulary: 4, mask: Some(1) }),
            shards: shards.iter().copied().map(entry).collect(),
            gallery: entry(1),
            frozen: Vec::new(),
            preprocessing: None,
            stream: None,
        };
        let commitment = Commitment {
            parameters: sha256,
            parameters_epoch: 0,
            samples: Sha256Hash::of(list),
            n_samples: n_samples.into(),
            signature: [0; 64].into(),
        };
        let Ok(samples) = commitment.samples(list, &manifest) else { return };
        assert_eq!(samples.len(), usize::from(n_samples));
        let is_there =
            |sample: &SampleId| shards.get(sample.shard as usize).is_some_and(|n| sample.index < *n);
        assert!(samples.iter().all(is_there));
        assert_eq!(encode_samples(&samples, &manifest), list);
    });
}

#[test]
fn tensor() {
    fuzz!("tensor", |input| {
        let Some((n_values, bytes)) = value::<(u16, &[u8])>(input) else { return };
        let n_values = usize::from(n_values);
        let top_k = |density| TensorCodec::TopK(Sparsity { density, warmup_epochs: 0 });
        let dense = [TensorCodec::F32, TensorCodec::F16, TensorCodec::Int8, TensorCodec::Int4];
        for codec in
            dense.into_iter().chain([top_k(WARMUP_DENSITY), top_k(Density::from_share(1.0).unwrap())])
        {
            let Ok(values) = codec.decode(bytes, n_values) else { continue };
            assert_eq!(values.len(), n_values);
            assert!(values.iter().all(|value| value.is_finite()));
            // The scale of a block may have been larger than needed: encoding again may then lose precision.
            let Ok(again) = codec.encode(&values) else { continue };
            assert!(codec.encoded_len_at(n_values, 0).contains(&again.len()));
            let values_again = codec.decode(&again, n_values).unwrap();
            match codec {
                TensorCodec::F32 | TensorCodec::F16 => assert_eq!(again, bytes),
                TensorCodec::Int8 | TensorCodec::Int4 => assert_eq!(values_again.len(), n_values),
                // None of them is zero, which would not have been sent again.
                TensorCodec::TopK(_) if bytes[..COUNT_BYTES] == again[..COUNT_BYTES] => {
                    assert_eq!(places(bytes), places(&again), "{bytes:02x?}");
                }
                TensorCodec::TopK(_) => {}
            }
        }
    });
}

/// Bytes of the count at the beginning of a sparse tensor.
const COUNT_BYTES: usize = size_of::<u32>();

/// Encoded positions of the values of a sparse tensor. They have one encoding, down to the padding bits of the last byte.
fn places(sparse: &[u8]) -> Vec<u8> {
    let n_sent = u32::from_le_bytes(*sparse.first_chunk().unwrap());
    sparse[COUNT_BYTES + TensorCodec::Int8.encoded_len(n_sent as usize)..].to_vec()
}

#[derive(Debug, Arbitrary)]
struct Shard<'i> {
    n_samples: u16,
    side: u8,
    vocabulary: u32,
    kind: u8,
    bytes: &'i [u8],
}

#[test]
fn shard_bytes() {
    fuzz!("shard_bytes", |input| {
        let Some(Shard { n_samples, side, vocabulary, kind, bytes }) = value(input) else { return };
        let n_bytes = bytes.len() as u32;
        let entry = ShardEntry { n_samples: n_samples.into(), n_bytes, sha256: Sha256Hash::of(bytes) };
        let shape = ImageShape { height: side.into(), width: side.into(), channels: 1 };
        let names = |n: usize| vec![String::new(); n];
        let table = |target| SampleKind::Rows(TableShape { columns: names(side.into()), target });
        let samples = match kind % 5 {
            0 => SampleKind::Tokens(TokenShape { length: side.into(), vocabulary, mask: None }),
            1 => SampleKind::Images { shape, class_names: names(10) },
            2 => table(TableTarget::Class(names(10))),
            3 => table(TableTarget::Values(names(2))),
            _ => SampleKind::Ratings(RatingShape { n_users: side.into(), n_items: vocabulary }),
        };
        let manifest = Manifest {
            name: String::new(),
            samples,
            shards: vec![entry],
            gallery: entry,
            frozen: Vec::new(),
            preprocessing: None,
            stream: None,
        };
        match Samples::decode(bytes, &entry, &manifest) {
            Ok(Samples::Images(samples)) => {
                assert_eq!(samples.labels.len(), usize::from(n_samples));
                assert_eq!(samples.images.len(), usize::from(n_samples) * shape.n_values());
                assert!(samples.labels.iter().all(|&label| label < 10));
            }
            Ok(Samples::Tokens(tokens)) => {
                assert_eq!(tokens.ids.len(), usize::from(n_samples) * usize::from(side));
                assert!(tokens.ids.iter().all(|&id| id < vocabulary));
            }
            Ok(Samples::Rows(rows)) => {
                assert_eq!(rows.values.len(), usize::from(n_samples) * usize::from(side));
                assert!(rows.values.iter().all(|value| value.is_finite()));
                match rows.targets {
                    RowTargets::Classes(labels) => assert_eq!(labels.len(), usize::from(n_samples)),
                    RowTargets::Values { values, .. } => assert_eq!(values.len(), 2 * usize::from(n_samples)),
                }
            }
            Ok(Samples::Ratings(ratings)) => {
                assert_eq!(ratings.users.len(), usize::from(n_samples));
                assert_eq!(
                    (ratings.items.len(), ratings.ratings.len()),
                    (ratings.users.len(), ratings.users.len())
                );
                assert!(ratings.users.iter().all(|&user| user < side.into()));
                assert!(ratings.items.iter().all(|&item| item < vocabulary));
            }
            Err(_) => {}
        }
    });
}

/// A transfer whose hash is that of `hashed`, so that matching bytes pass the check.
#[derive(Debug, Arbitrary)]
struct Pulled<'i> {
    n_bytes: u32,
    hashed: &'i [u8],
    stream: &'i [u8],
}

#[test]
fn bulk() {
    fuzz!("bulk", |input| {
        const BYTES_MAX: u64 = 256 * 1024;
        let Some(Pulled { n_bytes, hashed, stream }) = value(input) else { return };
        let transfer = bulk::Transfer { n_bytes: n_bytes.into(), sha256: Sha256Hash::of(hashed) };
        let Ok(mut partial) = bulk::Partial::new(transfer, BYTES_MAX) else {
            assert!(u64::from(n_bytes) > BYTES_MAX);
            return;
        };
        if let Ok(bytes) = block_on(bulk::pull(&mut InputStream(stream), &mut partial, |_| {})) {
            assert_eq!(bulk::Transfer::of(&bytes), transfer);
        }
        assert!(partial.n_bytes() <= n_bytes.into());
        // The serving side: any bytes as pulls.
        let _ = block_on(bulk::serve(&mut InputStream(stream), hashed, |_| {}));
    });
}

/// Answers of a peer that serves a state, a step, a checkpoint, a shard, a description, or evidence.
#[test]
fn donors() {
    fuzz!("donors", |stream| {
        const N_PARAMETERS: u64 = 5;
        let codec = TensorCodec::F32;
        let mut partial = None;
        let got =
            block_on(state::fetch(&mut InputStream(stream), N_PARAMETERS, codec, &mut partial, |_, _| {}));
        if let Ok(state) = got {
            assert_eq!(state.n_values() as u64, N_PARAMETERS);
            assert!(state.values().iter().all(|value| value.is_finite()));
        }
        let version = ModelVersion { n_samples_total: 0, epoch: 3, hash: Sha256Hash::of(b"model") };
        let _ = block_on(model::fetch_step(&mut InputStream(stream), version, N_PARAMETERS as usize));
        let got = block_on(model::fetch_checkpoint(&mut InputStream(stream), true, 1000, &mut None));
        assert!(got.map_or(0, |bytes| bytes.len()) <= 1000, "more than was wanted");
        let entry = ShardEntry { n_samples: 1, n_bytes: 9, sha256: Sha256Hash::of(b"shard") };
        let _ = block_on(shard::fetch(
            &mut InputStream(stream),
            shard::ShardId::Numbered(0),
            entry.transfer(),
            &mut None,
            |_| {},
        ));
        if let Ok(run) = block_on(run::describe(&mut InputStream(stream))) {
            run.data.manifest.validate().unwrap();
        }
        if let Ok(listed) = block_on(evidence::list(&mut InputStream(stream))) {
            assert!(listed.len() <= evidence::ENTRIES_MAX);
        }
    });
}

/// A chunk of an average on the wire.
#[test]
fn average_chunk() {
    fuzz!("average_chunk", |input| {
        let Some((index, n_values, stream)) = value::<(u32, u16, &[u8])>(input) else { return };
        let n_values = usize::from(n_values).min(CHUNK_VALUES);
        for codec in [TensorCodec::F32, TensorCodec::F16] {
            let (mut values, mut bytes) = (vec![0.0; n_values], Vec::new());
            let mut coming = InputStream(stream);
            let got = average::read_chunk(&mut coming, index, &mut values, codec, &mut bytes);
            if block_on(got).is_ok() {
                assert!(values.iter().all(|value| value.is_finite()));
                let mut packed = Vec::new();
                average::pack_chunk(index, &values, codec, &mut packed).unwrap();
                assert_eq!(packed[..], stream[..packed.len()]);
            }
        }
    });
}
