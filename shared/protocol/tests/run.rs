//! What a contributor of an older version is told, and which compressions there are.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use barnraise_protocol::codec::{Density, Sparsity};
use barnraise_protocol::run::{
    self, Compression, CompressionError, InnerDecay, InnerOptimizer, InnerSchedule, LocalSteps, ModelKind,
    NotRecomputable, RECOMPUTED_STEPS_MAX, is_recomputable,
};
use barnraise_protocol::{ConversationError, TensorCodec};
use tokio_util::compat::TokioAsyncReadCompatExt;

#[tokio::test]
async fn whoever_asks_in_an_older_version_learns_which_one_is_wanted() {
    let (a, b) = tokio::io::duplex(1024);
    let (mut a, mut b) = (a.compat(), b.compat());
    // The question and a refusal have been the same in all versions.
    let (told, heard) = futures::join!(run::answer_before(&mut a), run::describe(&mut b));
    told.unwrap();
    let Err(ConversationError::Refused(reason)) = heard else { panic!("{heard:?}") };
    assert!(reason.contains(run::PROTOCOL), "{reason}");
    assert!(!run::PROTOCOLS_BEFORE.contains(&run::PROTOCOL));
}

#[test]
fn momentum_and_clipping_are_for_sparse_gradients() {
    let sparsity = Sparsity { density: Density::from_share(0.01).unwrap(), warmup_epochs: 0 };
    let top_k = TensorCodec::TopK(sparsity);
    let full = Compression { momentum: 0.9, masking: true, clip_norm: Some(1.0) };
    assert_eq!(full.check(top_k), Ok(()));
    assert_eq!(full.check(TensorCodec::Int4), Err(CompressionError::Codec(TensorCodec::Int4)));
    assert_eq!(Compression::default().check(TensorCodec::F16), Ok(()));
    for momentum in [-0.1, 1.0, f32::NAN] {
        let error = Compression { momentum, ..full }.check(top_k);
        assert!(matches!(error, Err(CompressionError::Momentum(_))), "{momentum}");
    }
    for norm in [0.0, -1.0, f32::INFINITY, f32::NAN] {
        let error = Compression { clip_norm: Some(norm), ..full }.check(top_k);
        assert!(matches!(error, Err(CompressionError::ClipNorm(_))), "{norm}");
    }
}

#[test]
fn few_local_steps_without_adam_are_recomputed() {
    let sgd = InnerOptimizer::Sgd { momentum: 0.9, nesterov: false, weight_decay: 0.0 };
    let adam = InnerOptimizer::Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.0 };
    let schedule = InnerSchedule { peak: 0.1, warmup_epochs: 0, decay: InnerDecay::Constant };
    let of = |steps, optimizer| {
        let steps = LocalSteps { steps, optimizer, schedule };
        is_recomputable(&ModelKind::LeNet, TensorCodec::Int8, Some(&steps))
    };
    assert_eq!(of(RECOMPUTED_STEPS_MAX, sgd), Ok(()));
    let too_many = RECOMPUTED_STEPS_MAX + 1;
    assert_eq!(of(too_many, sgd), Err(NotRecomputable::LocalSteps(too_many)));
    assert_eq!(of(1, adam), Err(NotRecomputable::LocalSteps(1)));
    let said = NotRecomputable::LocalSteps(1).to_string();
    assert!(said.contains("by adam; at most 32 by sgd-momentum"), "{said}");
}
