//! Any bytes as an encoded tensor: finite values or an error.
#![no_main]

use barnraise_protocol::TensorCodec;
use barnraise_protocol::codec::{Sparsity, WARMUP_DENSITY};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u16, &[u8])| {
    let (n_values, bytes) = input;
    let top_k = TensorCodec::TopK(Sparsity { density: WARMUP_DENSITY, warmup_epochs: 0 });
    for codec in [TensorCodec::F32, TensorCodec::F16, TensorCodec::Int8, TensorCodec::Int4, top_k] {
        if let Ok(values) = codec.decode(bytes, n_values.into()) {
            assert_eq!(values.len(), usize::from(n_values));
            assert!(values.iter().all(|value| value.is_finite()));
        }
    }
});
