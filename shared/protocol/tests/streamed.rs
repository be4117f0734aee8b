//! Windows of a stream, and the lists of samples that name its shards.

use barnraise_protocol::access::KeyPair;
use barnraise_protocol::bulk::Transfer;
use barnraise_protocol::commitment::{
    Commitment, CommitmentError, SampleId, check_streamed, encode_streamed, list_bytes, names_streamed,
};
use barnraise_protocol::dataset::{DataStream, Manifest, SHARD_BYTES_MAX, ShardEntry};
use barnraise_protocol::gradient::Offer;
use barnraise_protocol::shard::{self, ShardId};
use barnraise_protocol::streamed::{SHARDS_KEPT_MAX, StreamWindow, StreamedShard, WindowError};
use barnraise_protocol::{Sha256Hash, TensorCodec};
use tokio_util::compat::TokioAsyncReadCompatExt;

use crate::fixture;

const DATA: DataStream = DataStream { sources: Sha256Hash([5; 32]), shard_samples: 3, window_shards: 2 };

fn streamed(number: u32, hash: u8) -> StreamedShard {
    StreamedShard { number, entry: ShardEntry { n_samples: 3, n_bytes: 300, sha256: Sha256Hash([hash; 32]) } }
}

fn window(numbers: impl IntoIterator<Item = u32>, first_drawn: u32) -> StreamWindow {
    StreamWindow {
        first_drawn,
        shards: numbers.into_iter().map(|number| streamed(number, number as u8)).collect(),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn golden_bytes_of_a_window() {
    let bytes = window([200, 201], 201).encode().unwrap();
    let (a, b) = ("c8".repeat(32), "c9".repeat(32));
    assert_eq!(hex(&bytes), format!("c90102c80103ac02{a}c90103ac02{b}"));
    assert_eq!(StreamWindow::decode(&bytes, &DATA).unwrap(), window([200, 201], 201));
}

#[test]
fn a_window_keeps_within_its_limits() {
    let decode = |window: &StreamWindow| StreamWindow::decode(&window.encode().unwrap(), &DATA);
    let refused = |window: &StreamWindow| matches!(decode(window), Err(WindowError::Invalid(_)));
    assert!(decode(&window(0..66, 64)).is_ok());
    assert!(decode(&window([3, 7], 4)).is_ok(), "one in the middle may be lost");
    assert!(refused(&window(0..67, 65)), "too many");
    assert!(refused(&window([1, 1], 0)) && refused(&window([2, 1], 0)));
    assert!(refused(&window([1, 2], 3)) && refused(&window([], 0)), "nothing to draw");
    let mut other = window([1, 2], 1);
    other.shards[0].entry.n_samples = 4;
    assert!(refused(&other));
    let of_bytes = |n_bytes| {
        let mut other = window([1, 2], 1);
        other.shards[1].entry.n_bytes = n_bytes;
        other
    };
    for n_bytes in [1, SHARD_BYTES_MAX] {
        assert!(decode(&of_bytes(n_bytes)).is_ok(), "{n_bytes}");
    }
    for n_bytes in [0, SHARD_BYTES_MAX + 1, u32::MAX] {
        assert!(refused(&of_bytes(n_bytes)), "{n_bytes}");
    }
    let bytes = window(0..4, 2).encode().unwrap();
    for place in 0..bytes.len() {
        assert!(StreamWindow::decode(&bytes[..place], &DATA).is_err());
        let mut mutated = bytes.clone();
        mutated[place] ^= 0xff;
        let _ = StreamWindow::decode(&mutated, &DATA);
    }
}

#[test]
fn a_small_window_has_a_grace_of_its_own() {
    let of = |window_shards| {
        let stream = DataStream { window_shards, ..DATA };
        (stream.grace_shards(), stream.shards_kept(), stream.step_shards_max())
    };
    assert_eq!(of(1), (64, 65, 16));
    assert_eq!(of(8), (64, 72, 16));
    assert_eq!(of(256), (256, 512, 64));
    assert_eq!(of(4096), (4096, SHARDS_KEPT_MAX, 1024));
    assert_eq!([0, 16, 17, 64].map(DataStream::window_shards_min), [1, 1, 68, 256]);
}

#[test]
fn a_window_finds_its_shards() {
    let window = window([3, 4, 6], 4);
    assert_eq!((window.oldest(), window.end()), (3, 7));
    assert!(window.drawn().eq([4, 6]));
    assert_eq!(window.entry(6), Some(&streamed(6, 6).entry));
    assert_eq!((window.entry(5), window.entry(7)), (None, None));
    let mut other = self::window([4, 5, 6, 7], 4);
    assert_eq!((window.first_difference(&other), other.first_difference(&window)), (None, None));
    other.shards[2].entry.sha256 = Sha256Hash([9; 32]);
    assert_eq!((window.first_difference(&other), other.first_difference(&window)), (Some(6), Some(6)));
}

#[test]
fn a_list_names_the_bytes_of_its_shards() {
    let samples =
        [(3, 2), (4, 0)].map(|(shard, index)| (SampleId { shard, index }, Sha256Hash([shard as u8; 32])));
    let list = encode_streamed(samples);
    let (a, b) = ("03".repeat(16), "04".repeat(16));
    assert_eq!(hex(&list), format!("0300000002000000{a}0400000000000000{b}"));
    let manifest = Manifest { shards: Vec::new(), stream: Some(DATA), ..fixture::run().data.manifest };
    manifest.validate().unwrap();
    assert_eq!(list_bytes(2, &manifest), list.len() as u64);
    assert_eq!(check_streamed(&list, &window([3, 4], 3)), Ok(()));
    let left = check_streamed(&list, &window([4, 5], 4));
    assert_eq!(left, Err(CommitmentError::NotInWindow { shard: 3, oldest: 4 }));
    let mut forged = window([3, 4], 3);
    forged.shards[1].entry.sha256 = Sha256Hash([9; 32]);
    assert_eq!(check_streamed(&list, &forged), Err(CommitmentError::NotInWindow { shard: 4, oldest: 3 }));
    assert!(names_streamed(&list, 4, Sha256Hash([4; 32])) && !names_streamed(&list, 4, Sha256Hash([9; 32])));
}

#[test]
fn a_list_names_samples_that_each_shard_has() {
    let manifest = Manifest { shards: Vec::new(), stream: Some(DATA), ..fixture::run().data.manifest };
    let hash = Sha256Hash([3; 32]);
    let offer = Offer {
        contribution_id: 9,
        epoch: 7,
        n_samples: 2,
        loss: 1.5,
        n_values: 1,
        codec: TensorCodec::F32,
        transfer: Transfer::of(&[]),
    };
    let read = |last: u32| {
        let ids = [(4, 0), (3, last)].map(|(shard, index)| SampleId { shard, index });
        let list = encode_streamed(ids.map(|id| (id, hash)));
        let commitment = Commitment::sign(&KeyPair::from_seed(&[5; 32]), hash, &offer, (hash, 7), (2, &list));
        (commitment.unwrap().samples(&list, &manifest), ids.to_vec())
    };
    for last in [0, 2] {
        let (samples, ids) = read(last);
        assert_eq!(samples, Ok(ids));
    }
    for index in [3, 4, u32::MAX] {
        assert_eq!(read(index).0, Err(CommitmentError::NoIndex { index, shard_samples: 3 }));
    }
}

#[tokio::test]
async fn a_window_is_pulled_and_is_one_of_the_stream() {
    let good = window([3, 4, 6], 4);
    for (data, is_good) in [(DATA, true), (DataStream { shard_samples: 4, ..DATA }, false)] {
        let (ours, theirs) = tokio::io::duplex(1024);
        let (mut ours, mut theirs) = (ours.compat(), theirs.compat());
        let bytes = good.encode().unwrap();
        let lookup = async |id| {
            assert_eq!(id, ShardId::Window);
            Ok((Transfer::of(&bytes), bytes.clone().into()))
        };
        let pulling = async {
            let pulled = shard::fetch_window(&mut ours, &data).await;
            drop(ours);
            pulled
        };
        let (pulled, _) = futures::join!(pulling, shard::serve(&mut theirs, lookup, || ()));
        match is_good {
            true => assert_eq!(pulled.unwrap(), good),
            false => assert!(pulled.is_err()),
        }
    }
}

#[test]
fn a_manifest_of_a_stream_lists_no_shards() {
    let of = |shards, stream| Manifest { shards, stream, ..fixture::run().data.manifest };
    let listed = fixture::run().data.manifest.shards;
    assert!(of(Vec::new(), Some(DATA)).validate().is_ok() && of(Vec::new(), None).validate().is_err());
    assert!(of(listed, Some(DATA)).validate().is_err());
    for wrong in [
        DataStream { window_shards: 0, ..DATA },
        DataStream { window_shards: 4097, ..DATA },
        DataStream { shard_samples: 0, ..DATA },
        DataStream { shard_samples: u32::MAX, ..DATA },
    ] {
        assert!(of(Vec::new(), Some(wrong)).validate().is_err(), "{wrong:?}");
    }
    assert_eq!(of(Vec::new(), Some(DATA)).n_samples(), 6);
}
