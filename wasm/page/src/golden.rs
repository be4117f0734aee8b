//! Golden JSON of stored data and of backbones' answers. Pages of other builds read both, so neither may change.
#![allow(clippy::unwrap_used)]

use std::fmt::Debug;

use barnraise_messages::{DisplayName, TransportKind};
use barnraise_protocol::Sha256Hash;
use barnraise_protocol::access::AccessMode;
use barnraise_protocol::api::{
    AcceptedTotals, AggregatorTotals, Contributions, ContributorTotals, DataKind, DeviceCount,
    EvaluationPoint, HistoryPoint, InvitationTarget, LiveProgress, ModelFile, Models, RefusalCount,
    RelayTotals, Room, RunStatus, RunSummary, Runs,
};
use barnraise_protocol::codec::Density;
use barnraise_protocol::contribute::DeviceKind;
use barnraise_protocol::run::{
    DecayDescription, GradientCodec, LocalSteps, OptimizerDescription, ScheduleDescription, SlowLinks, TopK,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::browser_totals::BrowserTotals;
use crate::fixture;
use crate::kept::KeptRun;
use crate::limits::{Change, DataUsage, Hardware, Settings};

fn check<T: Serialize + DeserializeOwned + PartialEq + Debug>(value: &T, golden: &str) {
    let golden: String = golden.lines().map(str::trim_start).collect();
    assert_eq!(serde_json::to_string(value).unwrap(), golden);
    assert_eq!(serde_json::from_str::<T>(&golden).unwrap(), *value);
}

/// In the local storage and in the answer of `GET /api/run`, beside the number of parameters.
#[test]
fn descriptions_of_runs() {
    check(&fixture::run(), RUN);
    let kept = KeptRun { run: fixture::run(), n_parameters: fixture::N_PARAMETERS };
    check(&kept, &r#"{"run":RUN,"n_parameters":61706}"#.replace("RUN", RUN));
    let schedule = ScheduleDescription {
        peak: 0.5,
        warmup_epochs: 2,
        decay: DecayDescription::Cosine { epochs: 3, floor: 0.25 },
    };
    let adam = OptimizerDescription::Adam { beta1: 0.5, beta2: 0.25, epsilon: 1.0, weight_decay: 0.0 };
    let mut run = fixture::text_page().run.unwrap();
    let scheme = run.synchronous_mut().unwrap();
    let plain = TopK::plain(Density::from_share(0.01).unwrap(), 0);
    let corrected = TopK { momentum: 0.5, masking: true, clip_norm: Some(1.0), ..plain };
    scheme.gradient_codec = GradientCodec::TopK(corrected);
    scheme.slow_links = Some(SlowLinks { below_bytes_per_second: 300, codec: GradientCodec::Int8 });
    scheme.local_steps = Some(LocalSteps { steps: 16, optimizer: adam, schedule });
    check(&run, TEXT_RUN);
    check(&fixture::swav_page().run.unwrap().model, SWAV);
}

const RUN: &str = r#"{"identity":{"run_id":"garments","title":"A model that knows garments","purpose":"For everybody."},"model":{"graph":{"name":"LeNet","parts":[],"blocks":[{"name":"conv1","op":{"convolution":{"maps":6,"kernel":[5,5],"stride":[1,1],"padding":[2,2],"dilation":[1,1],"groups":1,"bias":true,"initial":"he"}},"from":[],"shares":null},{"name":"pool1","op":{"max-pool":{"kernel":[2,2],"stride":[2,2],"padding":[0,0]}},"from":[],"shares":null},{"name":"relu1","op":"relu","from":[],"shares":null},{"name":"conv2","op":{"convolution":{"maps":16,"kernel":[5,5],"stride":[1,1],"padding":[0,0],"dilation":[1,1],"groups":1,"bias":true,"initial":"he"}},"from":[],"shares":null},{"name":"pool2","op":{"max-pool":{"kernel":[2,2],"stride":[2,2],"padding":[0,0]}},"from":[],"shares":null},{"name":"relu2","op":"relu","from":[],"shares":null},{"name":"flatten","op":"flatten","from":[],"shares":null},{"name":"fc1","op":{"dense":{"units":120,"bias":true,"initial":"he"}},"from":[],"shares":null},{"name":"relu3","op":"relu","from":[],"shares":null},{"name":"fc2","op":{"dense":{"units":84,"bias":true,"initial":"he"}},"from":[],"shares":null},{"name":"relu4","op":"relu","from":[],"shares":null},{"name":"fc3","op":{"dense":{"units":"classes","bias":true,"initial":"lecun"}},"from":[],"shares":null}],"loss":"classification"},"seed":1,"weights":"Drawn","hosted":null},"data":{"manifest":{"name":"Fashion-MNIST","samples":{"Images":{"shape":{"height":28,"width":28,"channels":1},"class_names":["T-shirt","Trouser","Pullover"]}},"shards":[{"n_samples":10,"n_bytes":10,"sha256":"0000000000000000000000000000000000000000000000000000000000000000"}],"gallery":{"n_samples":10,"n_bytes":10,"sha256":"0000000000000000000000000000000000000000000000000000000000000000"},"frozen":[],"preprocessing":null,"stream":null},"shuffle_buffer_samples":1000,"augmentation":null},"scheme":{"synchronous":{"target_batch_size":4096,"micro_batch_size":64,"contribution_samples_max":4096,"gradient_codec":"f16","slow_links":null,"state_codec":"f16","delayed_updates":false,"optimizer":{"sgd-momentum":{"momentum":0.0,"nesterov":false,"weight_decay":0.0}},"schedule":{"peak":0.5,"warmup_epochs":0,"decay":"constant"},"local_steps":null,"recomputed":false}},"access":{"mode":"open","authority":"0101010101010101010101010101010101010101010101010101010101010101"}}"#;
const TEXT_RUN: &str = r#"{"identity":{"run_id":"garments","title":"A model that knows garments","purpose":"For everybody."},"model":{"graph":{"name":"ALBERT, one layer of 128 units applied 4 times","parts":[{"name":"layer","blocks":[{"name":"attention.query","op":{"dense":{"units":128,"bias":true,"initial":"lecun"}},"from":["input"],"shares":null},{"name":"attention.key","op":{"dense":{"units":128,"bias":true,"initial":"lecun"}},"from":["input"],"shares":null},{"name":"attention.value","op":{"dense":{"units":128,"bias":true,"initial":"lecun"}},"from":["input"],"shares":null},{"name":"attention","op":{"attention":{"heads":4,"key_value_heads":0,"causal":false,"rotary":null,"dropout":0.0}},"from":["attention.query","attention.key","attention.value"],"shares":null},{"name":"attention.dense","op":{"dense":{"units":128,"bias":true,"initial":"lecun"}},"from":[],"shares":null},{"name":"attention.add","op":"add","from":["attention.dense","input"],"shares":null},{"name":"attention.LayerNorm","op":{"layer-norm":{"epsilon":0.000001,"bias":true}},"from":[],"shares":null},{"name":"ffn","op":{"dense":{"units":512,"bias":true,"initial":"lecun"}},"from":[],"shares":null},{"name":"activation","op":"gelu","from":[],"shares":null},{"name":"ffn_output","op":{"dense":{"units":128,"bias":true,"initial":"lecun"}},"from":[],"shares":null},{"name":"add","op":"add","from":["ffn_output","attention.LayerNorm"],"shares":null},{"name":"full_layer_layer_norm","op":{"layer-norm":{"epsilon":0.000001,"bias":true}},"from":[],"shares":null}]}],"blocks":[{"name":"albert.embeddings.word_embeddings","op":{"embedding":{"rows":"vocabulary","width":64,"initial":{"uniform":0.034641016}}},"from":[],"shares":null},{"name":"albert.embeddings.position_embeddings","op":{"positions":{"initial":{"uniform":0.034641016}}},"from":[],"shares":null},{"name":"albert.embeddings.LayerNorm","op":{"layer-norm":{"epsilon":0.000001,"bias":true}},"from":[],"shares":null},{"name":"albert.encoder.embedding_hidden_mapping_in","op":{"dense":{"units":128,"bias":true,"initial":"lecun"}},"from":[],"shares":null},{"name":"albert.encoder.albert_layer_groups.0.albert_layers.0","op":{"repeat":{"part":"layer","times":4,"first":0,"share":true}},"from":[],"shares":null},{"name":"masked","op":"pick-masked","from":[],"shares":null},{"name":"predictions.dense","op":{"dense":{"units":64,"bias":true,"initial":"lecun"}},"from":[],"shares":null},{"name":"predictions.activation","op":"gelu","from":[],"shares":null},{"name":"predictions.LayerNorm","op":{"layer-norm":{"epsilon":0.000001,"bias":true}},"from":[],"shares":null},{"name":"predictions","op":{"unembedding":{"bias":true}},"from":[],"shares":"albert.embeddings.word_embeddings"}],"loss":"masked-language-model"},"seed":1,"weights":"Drawn","hosted":null},"data":{"manifest":{"name":"Fashion-MNIST","samples":{"Tokens":{"length":64,"vocabulary":4000,"mask":1}},"shards":[{"n_samples":10,"n_bytes":10,"sha256":"0000000000000000000000000000000000000000000000000000000000000000"}],"gallery":{"n_samples":10,"n_bytes":10,"sha256":"0000000000000000000000000000000000000000000000000000000000000000"},"frozen":[],"preprocessing":null,"stream":null},"shuffle_buffer_samples":1000,"augmentation":null},"scheme":{"synchronous":{"target_batch_size":4096,"micro_batch_size":64,"contribution_samples_max":4096,"gradient_codec":{"top-k":{"density":0.01,"warmup_epochs":0,"momentum":0.5,"masking":true,"clip_norm":1.0}},"slow_links":{"below_bytes_per_second":300,"codec":"int8"},"state_codec":"f16","delayed_updates":false,"optimizer":{"sgd-momentum":{"momentum":0.0,"nesterov":false,"weight_decay":0.0}},"schedule":{"peak":0.5,"warmup_epochs":0,"decay":"constant"},"local_steps":{"steps":16,"optimizer":{"adam":{"beta1":0.5,"beta2":0.25,"epsilon":1.0,"weight_decay":0.0}},"schedule":{"peak":0.5,"warmup_epochs":2,"decay":{"cosine":{"epochs":3,"floor":0.25}}}},"recomputed":false}},"access":{"mode":"open","authority":"0101010101010101010101010101010101010101010101010101010101010101"}}"#;
const SWAV: &str = r#"{"graph":{"name":"SwAV, 2 convolutions and 64 prototypes","parts":[],"blocks":[{"name":"conv1","op":{"convolution":{"maps":16,"kernel":[3,3],"stride":[1,1],"padding":[1,1],"dilation":[1,1],"groups":1,"bias":true,"initial":"he"}},"from":[],"shares":null},{"name":"pool1","op":{"max-pool":{"kernel":[2,2],"stride":[2,2],"padding":[0,0]}},"from":[],"shares":null},{"name":"relu1","op":"relu","from":[],"shares":null},{"name":"conv2","op":{"convolution":{"maps":32,"kernel":[3,3],"stride":[1,1],"padding":[1,1],"dilation":[1,1],"groups":1,"bias":true,"initial":"he"}},"from":[],"shares":null},{"name":"pool2","op":{"max-pool":{"kernel":[2,2],"stride":[2,2],"padding":[0,0]}},"from":[],"shares":null},{"name":"relu2","op":"relu","from":[],"shares":null},{"name":"avgpool","op":{"global-pool":"average"},"from":[],"shares":null},{"name":"projection_head.0","op":{"dense":{"units":64,"bias":true,"initial":"lecun"}},"from":[],"shares":null},{"name":"projection_head.1","op":{"batch-norm":{"epsilon":0.00001,"momentum":0.1,"running":false}},"from":[],"shares":null},{"name":"projection_head.2","op":"relu","from":[],"shares":null},{"name":"projection_head.3","op":{"dense":{"units":32,"bias":true,"initial":"lecun"}},"from":[],"shares":null},{"name":"prototypes","op":{"cosine":{"units":64}},"from":[],"shares":null}],"loss":{"swav":{"features":"avgpool","small_crops":4,"small_side":14,"queue_samples":0,"queue_after":0,"frozen_epochs":1}}},"seed":1,"weights":"Drawn","hosted":null}"#;

#[test]
fn what_a_browser_keeps() {
    let mut kept = BrowserTotals::default();
    kept.add(fixture::receipt("garments", 1));
    kept.add(fixture::receipt("garments", 2));
    check(&kept, KEPT);
    check(&fixture::receipt("garments", 1), RECEIPT);
    check(
        &DataUsage::default().with(20_000, 300).waived(20_000),
        r#"{"day":20000,"bytes":300,"is_waived":true}"#,
    );
    check(&DisplayName::new("Ada").unwrap(), r#""Ada""#);
    check(&("wifi".to_owned(), TransportKind::WebTransport), r#"["wifi","web-transport"]"#);
    check(&("".to_owned(), TransportKind::WebRtc), r#"["","webrtc"]"#);
    check(&("".to_owned(), TransportKind::WebSocket), r#"["","web-socket"]"#);
    let hardware = Hardware { is_phone: true, is_small: false };
    let settings = Settings::of(hardware).with(Change::CapMb(Some(50)), hardware);
    let golden: Value = serde_json::from_str(SETTINGS).unwrap();
    assert_eq!(settings.to_value(), golden);
    assert_eq!(Settings::read(&golden, Hardware::default()), settings);
}

const KEPT: &str = r#"{"garments":{"n_samples":128,"n_contributions":2,"n_bytes":2000,"milliseconds":3000,"last":{"receipt":{"run_id":"garments","peer":"0202020202020202020202020202020202020202020202020202020202020202","reducer":"0101010101010101010101010101010101010101010101010101010101010101","contribution_id":2,"epoch":9,"n_samples":64,"n_bytes":1000,"milliseconds":1500,"issued_at":2},"signature":["0303030303030303030303030303030303030303030303030303030303030303","0303030303030303030303030303030303030303030303030303030303030303"]}}}"#;
const RECEIPT: &str = r#"{"receipt":{"run_id":"garments","peer":"0202020202020202020202020202020202020202020202020202020202020202","reducer":"0101010101010101010101010101010101010101010101010101010101010101","contribution_id":1,"epoch":9,"n_samples":64,"n_bytes":1000,"milliseconds":1500,"issued_at":1},"signature":["0303030303030303030303030303030303030303030303030303030303030303","0303030303030303030303030303030303030303030303030303030303030303"]}"#;
const SETTINGS: &str = r#"{"duty":50,"battery":"charging","heeds_heat":true,"on_metered":false,"cap_mb":50,"is_scheduled":false,"schedule":{"days":127,"from":1320,"until":420},"only_away":false,"in_background":false,"keeps_screen_on":false,"version":1}"#;

#[test]
fn answers_of_backbones() {
    let step = HistoryPoint { epoch: 8, n_samples_total: 4096, train_loss: Some(0.5), test_accuracy: None };
    let devices = [
        DeviceKind::BrowserWebGpu,
        DeviceKind::BrowserCpu,
        DeviceKind::NativeCpu,
        DeviceKind::NativeWgpu,
        DeviceKind::NativeCuda,
    ];
    let devices = devices.map(|device| DeviceCount { device, n_contributors: 2 }).to_vec();
    let status = RunStatus {
        addresses: vec!["/ip4/127.0.0.1/tcp/1".into()],
        history: vec![step],
        devices: devices[..1].to_vec(),
        paused: Some("new data".into()),
        majority_accuracy: Some(0.25),
        ..fixture::status()
    };
    check(&status, &STATUS.replace("RUN", RUN));
    let live = LiveProgress {
        steps: vec![step],
        evaluation: Some(EvaluationPoint { epoch: 8, test_accuracy: 0.5 }),
        devices,
        ..fixture::live()
    };
    check(&live, LIVE);
    let given = AcceptedTotals { n_contributions: 1, n_samples: 64, n_bytes: 1000, seconds: 2 };
    let one = ContributorTotals {
        peer: "12D3".into(),
        name: DisplayName::new("Ada").ok(),
        totals: given,
        last_epoch: 7,
    };
    let contributions = Contributions {
        totals: given,
        n_contributors: 1,
        contributors: vec![one.clone()],
        peer: Some(one),
        rank: Some(1),
        aggregators: vec![AggregatorTotals { peer: "12D4".into(), n_steps: 3, n_bytes: 4, seconds: 5 }],
        relays: vec![RelayTotals { peer: "12D5".into(), n_contributions: 1, n_bytes: 2, seconds: 3 }],
        refused: vec![RefusalCount { reason: "epoch".into(), n: 2 }],
    };
    check(&contributions, CONTRIBUTIONS);
    let file = ModelFile { epoch: 7, age_seconds: 8, n_bytes: 9 };
    check(&Models { latest: Some(file), earlier: vec![file] }, MODELS);
    let run = |access, data| RunSummary {
        id: "garments".into(),
        title: "t".into(),
        purpose: "p".into(),
        access,
        data,
        epoch: 7,
        n_contributors: 2,
        test_accuracy: Some(0.5),
        is_paused: true,
    };
    let runs = [
        run(AccessMode::Open, DataKind::Images),
        run(AccessMode::Invitation, DataKind::Text),
        run(AccessMode::Allowlist, DataKind::Text),
    ];
    check(&Runs { runs: runs.into(), takes_codes: true }, RUNS);
    check(&InvitationTarget { run: "garments".into() }, r#"{"run":"garments"}"#);
    let room = Room { run: "garments".into(), invitation: "code".into() };
    check(&room, r#"{"run":"garments","invitation":"code"}"#);
    let hash = Sha256Hash([0xab; 32]);
    check(&hash, &format!("\"{}\"", "ab".repeat(32)));
}

const STATUS: &str = r#"{"run":RUN,"n_parameters":61706,"addresses":["/ip4/127.0.0.1/tcp/1"],"progress":{"epoch":9,"n_samples":1024,"target_batch_size":4096,"n_contributors":3,"samples_per_second":500.0,"train_loss":0.7,"test_accuracy":0.8},"history":[{"epoch":8,"n_samples_total":4096,"train_loss":0.5,"test_accuracy":null}],"devices":[{"device":"browser-web-gpu","n_contributors":2}],"paused":"new data","majority_accuracy":0.25}"#;
const LIVE: &str = r#"{"progress":{"epoch":9,"n_samples":1024,"target_batch_size":4096,"n_contributors":3,"samples_per_second":500.0,"train_loss":0.7,"test_accuracy":0.8},"steps":[{"epoch":8,"n_samples_total":4096,"train_loss":0.5,"test_accuracy":null}],"evaluation":{"epoch":8,"test_accuracy":0.5},"devices":[{"device":"browser-web-gpu","n_contributors":2},{"device":"browser-cpu","n_contributors":2},{"device":"native-cpu","n_contributors":2},{"device":"native-wgpu","n_contributors":2},{"device":"native-cuda","n_contributors":2}],"paused":null}"#;
const CONTRIBUTIONS: &str = r#"{"totals":{"n_contributions":1,"n_samples":64,"n_bytes":1000,"seconds":2},"n_contributors":1,"contributors":[{"peer":"12D3","name":"Ada","n_contributions":1,"n_samples":64,"n_bytes":1000,"seconds":2,"last_epoch":7}],"peer":{"peer":"12D3","name":"Ada","n_contributions":1,"n_samples":64,"n_bytes":1000,"seconds":2,"last_epoch":7},"rank":1,"aggregators":[{"peer":"12D4","n_steps":3,"n_bytes":4,"seconds":5}],"relays":[{"peer":"12D5","n_contributions":1,"n_bytes":2,"seconds":3}],"refused":[{"reason":"epoch","n":2}]}"#;
const MODELS: &str = r#"{"latest":{"epoch":7,"age_seconds":8,"n_bytes":9},"earlier":[{"epoch":7,"age_seconds":8,"n_bytes":9}]}"#;
const RUNS: &str = r#"{"runs":[{"id":"garments","title":"t","purpose":"p","access":"open","data":"images","epoch":7,"n_contributors":2,"test_accuracy":0.5,"is_paused":true},{"id":"garments","title":"t","purpose":"p","access":"invitation","data":"text","epoch":7,"n_contributors":2,"test_accuracy":0.5,"is_paused":true},{"id":"garments","title":"t","purpose":"p","access":"allowlist","data":"text","epoch":7,"n_contributors":2,"test_accuracy":0.5,"is_paused":true}],"takes_codes":true}"#;
