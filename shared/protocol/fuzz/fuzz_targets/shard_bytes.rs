//! Any bytes as a compressed shard whose hash is right: of pictures, and of text.
#![no_main]

use barnraise_protocol::Sha256Hash;
use barnraise_protocol::dataset::{ImageShape, Manifest, SampleKind, Samples, ShardEntry, TokenShape};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u16, u8, u16, bool, &[u8])| {
    let (n_samples, side, vocabulary, is_text, bytes) = input;
    let n_bytes = bytes.len() as u32;
    let entry = ShardEntry { n_samples: n_samples.into(), n_bytes, sha256: Sha256Hash::of(bytes) };
    let shape = ImageShape { height: side.into(), width: side.into(), channels: 1 };
    let samples = match is_text {
        true => SampleKind::Tokens(TokenShape { length: side.into(), vocabulary }),
        false => SampleKind::Images { shape, class_names: vec![String::new(); 10] },
    };
    let manifest = Manifest { name: String::new(), samples, shards: vec![entry], gallery: entry };
    match Samples::decode(bytes, &entry, &manifest) {
        Ok(Samples::Images(samples)) => {
            assert_eq!(samples.labels.len(), usize::from(n_samples));
            assert_eq!(samples.images.len(), usize::from(n_samples) * shape.n_values());
        }
        Ok(Samples::Tokens(tokens)) => {
            assert_eq!(tokens.ids.len(), usize::from(n_samples) * usize::from(side));
            assert!(tokens.ids.iter().all(|&id| id < vocabulary));
        }
        Err(_) => {}
    }
});
