//! A page as the tests of this crate like to have it.

use barnraise_messages::DeviceChoice;
use barnraise_protocol::access::{AccessDescription, PublicKey, Signature, UnixTime};
use barnraise_protocol::api::{LiveProgress, RunStatus};
use barnraise_protocol::codec::TensorCodec;
use barnraise_protocol::contribute::Progress;
use barnraise_protocol::dataset::{ImageShape, Manifest, SampleKind, ShardEntry, TokenShape};
use barnraise_protocol::hash::Sha256Hash;
use barnraise_protocol::receipt::{Receipt, SignedReceipt};
use barnraise_protocol::run::{Compression, ModelKind, ModelSpec, RunDescription};

use crate::state::{Capabilities, Page, WebGpu};

pub(crate) const ORIGIN: &str = "http://127.0.0.1:4000";

pub(crate) fn page() -> Page {
    let capabilities = Capabilities { secure: true, web_gpu: WebGpu::Adapter };
    let mut page = Page::new(capabilities, DeviceChoice::Auto, ORIGIN.into(), None);
    page.run = Some(run());
    page
}

pub(crate) fn run() -> RunDescription {
    let entry = ShardEntry { n_samples: 10, n_bytes: 10, sha256: Sha256Hash([0; 32]) };
    RunDescription {
        run_id: "garments".into(),
        title: "A model that knows garments".into(),
        purpose: "For everybody.".into(),
        access: AccessDescription::open(PublicKey([1; 32])),
        model: ModelSpec { kind: ModelKind::LeNet, seed: 1 },
        n_parameters: 61_706,
        target_batch_size: 4096,
        micro_batch_size: 64,
        shuffle_buffer_samples: 1000,
        gradient_codec: TensorCodec::F16,
        slow_links: None,
        compression: Compression::default(),
        delayed_updates: false,
        local_steps: None,
        state_codec: TensorCodec::F16,
        contribution_samples_max: 4096,
        recomputed: false,
        manifest: Manifest {
            name: "Fashion-MNIST".into(),
            samples: SampleKind::Images {
                shape: ImageShape { height: 28, width: 28, channels: 1 },
                class_names: ["T-shirt", "Trouser", "Pullover"].map(String::from).into(),
            },
            shards: vec![entry],
            gallery: entry,
        },
    }
}

/// A page on which a run learns from text.
pub(crate) fn text_page() -> Page {
    let mut page = page();
    if let Some(run) = &mut page.run {
        run.manifest.samples = SampleKind::Tokens(TokenShape { length: 64, vocabulary: 4000 });
        run.model.kind = ModelKind::Albert { embedding: 64, hidden: 128, heads: 4, inner: 512, layers: 4 };
    }
    page
}

/// A page on which a run learns from pictures without their labels.
pub(crate) fn swav_page() -> Page {
    let mut page = page();
    if let Some(run) = &mut page.run {
        run.model.kind = ModelKind::Swav {
            maps: vec![16, 32],
            hidden: 64,
            projection: 32,
            prototypes: 64,
            small_crops: 4,
            small_side: 14,
            queue_samples: 0,
            queue_after: 0,
            frozen_epochs: 1,
        };
    }
    page
}

pub(crate) fn progress() -> Progress {
    Progress {
        epoch: 9,
        n_samples: 1024,
        target_batch_size: 4096,
        n_contributors: 3,
        samples_per_second: 500.0,
        train_loss: Some(0.7),
        test_accuracy: Some(0.8),
    }
}

pub(crate) fn status() -> RunStatus {
    RunStatus {
        run: run(),
        addresses: vec![],
        progress: progress(),
        history: vec![],
        devices: vec![],
        paused: None,
    }
}

/// What is heard of a run in which nothing new has happened.
pub(crate) fn live() -> LiveProgress {
    LiveProgress { progress: progress(), steps: vec![], evaluation: None, devices: vec![], paused: None }
}

/// For 64 samples, issued at second `id`. What the page is told was verified by the worker.
pub(crate) fn receipt(run_id: &str, id: u64) -> SignedReceipt {
    let receipt = Receipt {
        run_id: run_id.into(),
        peer: PublicKey([2; 32]),
        reducer: PublicKey([1; 32]),
        contribution_id: id,
        epoch: 9,
        n_samples: 64,
        n_bytes: 1000,
        milliseconds: 1500,
        issued_at: UnixTime(id),
    };
    SignedReceipt { receipt, signature: Signature::from([3; 64]) }
}
