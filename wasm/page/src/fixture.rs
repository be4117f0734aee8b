//! Test data of this crate.

use barnraise_messages::{DeviceChoice, PeerToPage};
use barnraise_protocol::access::{AccessDescription, PublicKey, Signature, UnixTime};
use barnraise_protocol::api::{LiveProgress, RunStatus};
use barnraise_protocol::bulk::Transfer;
use barnraise_protocol::codec::TensorCodec;
use barnraise_protocol::columns::{Column, ColumnContent, DataColumns, RatingColumns, Scale, TableColumns};
use barnraise_protocol::contribute::{DeviceKind, RunProgress};
use barnraise_protocol::dataset::{
    ImageShape, Manifest, RatingShape, SampleKind, ShardEntry, TableShape, TableTarget, TokenShape,
};
use barnraise_protocol::hash::Sha256Hash;
use barnraise_protocol::receipt::{Receipt, SignedReceipt};
use barnraise_protocol::run::model::HostedExperts;
use barnraise_protocol::run::model::presets::{Albert, Swav, SwavTrunk};
use barnraise_protocol::run::{
    DataSpec, GradientCodec, ModelAverage, ModelExchange, OptimizerDescription, Preset, RunDescription,
    RunIdentity, Sampled, ScheduleDescription, Scheme, Synchronous,
};

use crate::preflight::{Capabilities, WebGpu};
use crate::state::{PageEvent, PageState};

pub(crate) const ORIGIN: &str = "http://127.0.0.1:4000";

/// Of the fixture's run.
pub(crate) const N_PARAMETERS: u64 = 61_706;

pub(crate) fn page() -> PageState {
    let capabilities = Capabilities { secure: true, web_gpu: WebGpu::Adapter };
    let mut page = PageState::new(capabilities, DeviceChoice::Auto, ORIGIN.into(), None);
    page.run = Some(run());
    page.n_parameters = N_PARAMETERS;
    page
}

pub(crate) fn run() -> RunDescription {
    let entry = ShardEntry { n_samples: 10, n_bytes: 10, sha256: Sha256Hash([0; 32]) };
    RunDescription {
        identity: RunIdentity {
            run_id: "garments".into(),
            title: "A model that knows garments".into(),
            purpose: "For everybody.".into(),
        },
        model: Preset::LeNet.model(1),
        data: DataSpec {
            manifest: Manifest {
                name: "Fashion-MNIST".into(),
                samples: SampleKind::Images {
                    shape: ImageShape { height: 28, width: 28, channels: 1 },
                    class_names: ["T-shirt", "Trouser", "Pullover"].map(String::from).into(),
                },
                shards: vec![entry],
                gallery: entry,
                frozen: Vec::new(),
                preprocessing: None,
                stream: None,
            },
            shuffle_buffer_samples: 1000,
            augmentation: None,
        },
        scheme: Scheme::Synchronous(Synchronous {
            target_batch_size: 4096,
            micro_batch_size: 64,
            contribution_samples_max: 4096,
            gradient_codec: GradientCodec::F16,
            slow_links: None,
            state_codec: TensorCodec::F16,
            delayed_updates: false,
            optimizer: OptimizerDescription::plain_sgd(),
            schedule: ScheduleDescription::constant(0.5),
            local_steps: None,
            recomputed: false,
        }),
        access: AccessDescription::open(PublicKey([1; 32])),
    }
}

/// A page of a run without a server.
pub(crate) fn sampled_page() -> PageState {
    let mut page = page();
    if let Some(run) = &mut page.run {
        run.scheme = Scheme::Sampled(Sampled {
            sample_size: 3,
            n_aggregators: 2,
            success_fraction: 0.75,
            average: ModelAverage::Mean,
            exchange: ModelExchange::Sample,
            ping_timeout_ms: 2000,
            activity_window: 20,
            round_estimate_ms: 10_000,
            micro_batch_size: 64,
            local_passes: 1,
            local_shards: 1,
            state_codec: TensorCodec::F16,
            optimizer: OptimizerDescription::plain_sgd(),
            schedule: ScheduleDescription::constant(0.5),
        });
    }
    page
}

/// A page on which a run learns from text.
pub(crate) fn text_page() -> PageState {
    let mut page = page();
    if let Some(run) = &mut page.run {
        run.data.manifest.samples =
            SampleKind::Tokens(TokenShape { length: 64, vocabulary: 4000, mask: Some(1) });
        run.model.graph =
            Preset::Albert(Albert { embedding: 64, hidden: 128, heads: 4, inner: 512, layers: 4 }).graph();
    }
    page
}

/// A page on which a run learns from a table.
pub(crate) fn table_page() -> PageState {
    let mut page = page();
    if let Some(run) = &mut page.run {
        let columns = ["length", "colour=red", "colour=white"].map(String::from).into();
        let target = TableTarget::Class(["daisy", "rose"].map(String::from).into());
        run.data.manifest.samples = SampleKind::Rows(TableShape { columns, target });
        run.model.graph = Preset::Mlp { hidden: vec![8] }.graph();
    }
    page
}

/// A page of a run without a server that learns from a table, whose columns are known.
pub(crate) fn sampled_table_page() -> PageState {
    sampled_page_of(table_page(), table_columns())
}

/// A page of a run without a server that learns from ratings, whose columns are known.
pub(crate) fn sampled_rating_page() -> PageState {
    sampled_page_of(rating_page(), rating_columns())
}

/// A page of a run without a server that learns what that of another page does.
fn sampled_page_of(other: PageState, columns: DataColumns) -> PageState {
    let mut page = sampled_page();
    if let (Some(run), Some(other)) = (&mut page.run, other.run) {
        run.data.manifest.samples = other.data.manifest.samples;
        run.data.manifest.preprocessing = Some(Transfer::of(b"columns"));
        run.model = other.model;
    }
    page.on_event(0.0, PageEvent::ColumnsKnown(Box::new(columns)));
    page
}

/// A page of a run without a server that learns from text.
pub(crate) fn sampled_text_page() -> PageState {
    let mut page = sampled_page();
    if let Some(run) = &mut page.run {
        run.data.manifest.samples =
            SampleKind::Tokens(TokenShape { length: 16, vocabulary: 100, mask: None });
        run.data.manifest.preprocessing = Some(Transfer::of(b"tokenizer"));
    }
    page
}

/// Its columns.
pub(crate) fn table_columns() -> DataColumns {
    let scale = |mean, deviation| Scale { mean, deviation };
    let words = [("red", scale(0.25, 0.5)), ("white", scale(0.75, 0.5))];
    let words = words.map(|(word, scale)| (word.to_owned(), scale)).into();
    let column = |name: &str, content| Column { name: name.into(), content };
    let columns = vec![
        column("length", ColumnContent::Number(scale(2.0, 4.0))),
        column("colour", ColumnContent::Words(words)),
    ];
    DataColumns::Table(TableColumns { target: "kind".into(), columns })
}

/// A page on which a run learns from ratings.
pub(crate) fn rating_page() -> PageState {
    let mut page = page();
    if let Some(run) = &mut page.run {
        run.data.manifest.samples = SampleKind::Ratings(RatingShape { n_users: 9, n_items: 2 });
        run.model.graph = Preset::MatrixFactorization { factors: 4 }.graph();
    }
    page
}

/// Its columns.
pub(crate) fn rating_columns() -> DataColumns {
    DataColumns::Ratings(RatingColumns {
        user: "user".into(),
        item: "film".into(),
        rating: "stars".into(),
        range: [1.0, 5.0],
        items: ["Jaws", "Psycho"].map(String::from).into(),
    })
}

/// A page on which a run learns from pictures without their labels.
pub(crate) fn swav_page() -> PageState {
    let mut page = page();
    if let Some(run) = &mut page.run {
        run.model.graph = Preset::Swav(Swav {
            trunk: SwavTrunk::Convolutions(vec![16, 32]),
            hidden: 64,
            projection: 32,
            prototypes: 64,
            small_crops: 4,
            small_side: 14,
            queue_samples: 0,
            queue_after: 0,
            frozen_epochs: 1,
        })
        .graph();
    }
    page
}

/// A page of an open run whose experts are on other peers.
pub(crate) fn hosted_page() -> PageState {
    let mut page = page();
    if let Some(run) = &mut page.run {
        run.model.hosted = Some(HostedExperts {
            optimizer: OptimizerDescription::plain_sgd(),
            schedule: ScheduleDescription::constant(0.1),
            codec: TensorCodec::F16,
        });
    }
    page
}

/// The worker is ready, on the processor.
pub(crate) fn ready() -> PageEvent {
    PageEvent::FromPeer(PeerToPage::Ready {
        identity: vec![7; 32],
        peer_id: "12D3".into(),
        device: DeviceKind::BrowserCpu,
        device_name: String::new(),
    })
}

pub(crate) fn progress() -> RunProgress {
    RunProgress {
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
        n_parameters: N_PARAMETERS,
        addresses: vec![],
        progress: progress(),
        history: vec![],
        devices: vec![],
        paused: None,
        majority_accuracy: None,
    }
}

/// An event of a run without news.
pub(crate) fn live() -> LiveProgress {
    LiveProgress { progress: progress(), steps: vec![], evaluation: None, devices: vec![], paused: None }
}

/// A receipt for 64 samples, issued at second `id`. The worker has verified the page's receipts.
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
