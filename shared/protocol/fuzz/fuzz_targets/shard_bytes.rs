//! Any bytes as a compressed shard whose hash is right.
#![no_main]

use barnraise_protocol::Sha256Hash;
use barnraise_protocol::dataset::{ImageShape, Manifest, Shard, ShardEntry};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u16, u8, &[u8])| {
    let (n_samples, side, bytes) = input;
    let n_bytes = bytes.len() as u32;
    let entry = ShardEntry { n_samples: n_samples.into(), n_bytes, sha256: Sha256Hash::of(bytes) };
    let manifest = Manifest {
        name: String::new(),
        shape: ImageShape { height: side.into(), width: side.into(), channels: 1 },
        class_names: vec![String::new(); 10],
        shards: vec![entry],
        gallery: entry,
    };
    if let Ok(shard) = Shard::decode(bytes, &entry, &manifest) {
        assert_eq!(shard.labels.len(), usize::from(n_samples));
        assert_eq!(shard.images.len(), usize::from(n_samples) * manifest.shape.n_values());
    }
});
