//! The configuration against its example, and mistakes in it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::*;

use barnraise_learning::{Decay, OptimizerSpec};
use barnraise_protocol::codec::Density;
use barnraise_protocol::run::{GradientCodec, TopK};
use bytesize::ByteSize;

use crate::data::file::DataFile;
use crate::data::sets::NamedSet;

/// With every key.
const REFERENCE: &str = include_str!("../../run.reference.toml");
/// With those that an operator decides.
const EXAMPLE: &str = include_str!("../../run.example.toml");
/// Two screens of a terminal.
const EXAMPLE_LINES_MAX: usize = 86;

fn parse(text: &str) -> Result<RunConfig, ConfigError> {
    RunConfig::parse(text, Path::new("run.toml"))
}

fn error(text: &str) -> String {
    parse(text).unwrap_err().to_string()
}

/// The sections by name: those of the file, and `scheme.synchronous`.
fn sections(table: &toml::Table) -> Vec<(String, toml::Table)> {
    let section = |(name, section): (&String, &toml::Value)| {
        let keys = section.as_table().unwrap();
        match (name.as_str(), keys.iter().next()) {
            ("scheme", Some((kind, keys))) => (format!("{name}.{kind}"), keys.as_table().unwrap().clone()),
            _ => (name.clone(), keys.clone()),
        }
    };
    table.iter().map(section).collect()
}

#[test]
fn the_examples_are_the_defaults() {
    assert_eq!(parse(REFERENCE).unwrap(), RunConfig::default());
    assert_eq!(parse(EXAMPLE).unwrap(), RunConfig::default());
}

#[test]
fn what_an_operator_decides_fits_two_screens() {
    let n_lines = EXAMPLE.lines().count();
    assert!(n_lines <= EXAMPLE_LINES_MAX, "{n_lines} lines");
    // What is switched off in it is explained in full, too.
    let switched_off = EXAMPLE.lines().filter_map(|line| line.strip_prefix("# ")?.split_once(" = "));
    let keys: Vec<&str> = switched_off.map(|(key, _)| key).filter(|key| !key.contains(' ')).collect();
    assert!(keys.len() > 4, "{keys:?}");
    for key in keys {
        assert!(REFERENCE.contains(&format!("# {key} = ")), "{key}");
    }
}

#[test]
fn the_reference_shows_every_key() {
    let written = toml::Table::try_from(RunConfig::default()).unwrap();
    let example: toml::Table = REFERENCE.parse().unwrap();
    let keys = |table: &toml::Table| -> Vec<(String, String)> {
        let section = |(name, section): (String, toml::Table)| {
            section.into_iter().map(|(key, _)| (name.clone(), key)).collect::<Vec<_>>()
        };
        sections(table).into_iter().flat_map(section).collect()
    };
    assert_eq!(keys(&written), keys(&example));
    for optional in [
        "# folder = ",
        "# license = ",
        "# cache = ",
        "# objects = ",
        "# memory = ",
        "# operator = ",
        "# database = ",
        "# text = ",
        "# otlp = ",
        "# http_connections = 8192\n",
        "# connections = 1024\n",
        "# connections_per_address = 256\n",
        "# pending_handshakes = 256\n",
        "# silence = \"10s\"\n",
        "# gather_timeout = \"6s\"\n",
        "# reducer_timeout = \"12s\"\n",
        "# deadline = \"1m\"\n",
        "# [scheme.synchronous.slow_links]\n# below_bytes_per_second = 625_000\n# codec = { top-k = { density = 0.01, warmup_epochs = 0 } }\n",
        "# [scheme.synchronous.recomputation]\n# share = 0.05\n# tolerance = 0.05\n",
    ] {
        assert!(REFERENCE.contains(optional), "{optional}");
    }
}

#[test]
fn the_example_of_text_is_a_run() {
    let config = parse(include_str!("../../text.example.toml")).unwrap();
    let DataSource::Text(text) = config.data_source() else { panic!("no text") };
    assert_eq!((text.sources.len(), text.sources[0].weight, text.sources[1].weight), (2, 9.0, 1.0));
    assert_eq!((text.sources[1].field.as_str(), text.seed), ("text", config.model.seed));
}

#[test]
fn the_example_of_swav_is_a_run() {
    let config = parse(include_str!("../../swav.example.toml")).unwrap();
    let DataSource::Named(named) = config.data_source() else { panic!("no set") };
    assert_eq!(named.set, NamedSet::FashionMnist);
    assert!(matches!(config.synchronous().unwrap().optimizer, OptimizerSpec::Lars { .. }));
    let shape = barnraise_protocol::dataset::ImageShape { height: 28, width: 28, channels: 1 };
    let data = barnraise_learning::DataShape::Images { shape, n_classes: 10 };
    let layout = barnraise_learning::ParameterLayout::of(&config.model_spec(), data).unwrap();
    assert!(layout.batch_samples_max() >= config.synchronous().unwrap().micro_batch_size as usize);
    let error = error("[model]\nkind = { swav = { trunk = { convolutions = [8] }, hidden = 8 } }");
    assert!(error.contains("line 2") && error.contains("projection"), "{error}");
}

#[test]
fn an_empty_file_is_the_defaults_and_dev_differs_only_in_folders() {
    assert_eq!(parse("").unwrap(), RunConfig::default());
    let mut dev = RunConfig::dev(Path::new("/cache/barnraise"));
    dev.validate().unwrap();
    assert_eq!(dev.data_sources().cache, Path::new("/cache/barnraise/fashion-mnist"));
    dev.storage.folder = RunConfig::default().storage.folder;
    dev.data.cache = None;
    assert_eq!(dev, RunConfig::default());
}

#[test]
fn what_is_written_reads_back() {
    let mut config = RunConfig::default();
    config.model.kind = Preset::Mlp { hidden: vec![256, 128] };
    let density = Density::from_share(0.005).unwrap();
    let plain = TopK::plain(density, 40);
    let top_k = TopK { momentum: 0.5, masking: true, clip_norm: Some(2.5), ..plain };
    config.synchronous_mut().unwrap().gradient_codec = GradientCodec::TopK(top_k);
    config.synchronous_mut().unwrap().optimizer =
        OptimizerSpec::SgdMomentum { momentum: 0.0, nesterov: false, weight_decay: 0.5 };
    config.synchronous_mut().unwrap().schedule.decay = Decay::Cosine { steps: 100, floor: 0.0 };
    config.data.folder = Some("data".into());
    config.device.kind = Device::Wgpu;
    config.device.precision = Precision::Bf16;
    config.synchronous_mut().unwrap().collect_timeout = Duration::from_millis(2500);
    config.synchronous_mut().unwrap().aggregation = AggregationKind::CenteredClip;
    config.synchronous_mut().unwrap().gradient_norm_max = 0.1;
    assert_eq!(parse(&toml::to_string(&config).unwrap()).unwrap(), config);
    assert_eq!(config.data_sources().named.as_deref(), Some(Path::new("data")));
}

#[test]
fn durations_and_sizes_are_readable() {
    let config =
        parse("[scheme.synchronous]\ncollect_timeout = \"1m 30s\"\n[contributions]\nin_flight_bytes_max = \"1.5 GiB\"").unwrap();
    assert_eq!(config.synchronous().unwrap().collect_timeout, Duration::from_secs(90));
    assert_eq!(config.contributions.in_flight_bytes_max, ByteSize::mib(1536));
    let config =
        parse("[aggregators]\nupload_per_second = \"3 MiB\"\ndownload_per_second = 4000000").unwrap();
    assert_eq!(config.aggregators.upload_per_second, LinkSpeed::Fixed(ByteSize::mib(3)));
    assert_eq!(config.aggregators.download_per_second, LinkSpeed::Fixed(ByteSize(4_000_000)));
}

#[test]
fn a_mistake_is_shown_with_its_line_and_what_was_wanted() {
    for (text, parts) in [
        (
            "[scheme.synchronous]\n\ntarget_batchsize = 3",
            &["line 3", "target_batchsize", "target_batch_size"][..],
        ),
        ("[scheme.synchronous]\ntarget_batch_size = \"x\"", &["line 2", "a whole number from 0"]),
        ("[scheme.synchronous]\ngradient_codec = { top-k = { density = 0.0 } }", &["line 2", "above 0"]),
        ("[model]\nkind = \"resnet\"", &["line 2", "resnet", "le-net"]),
        ("[scheme.synchronous]\ncollect_timeout = \"soon\"", &["line 2", "soon"]),
        ("[network]\nlisten = [\"127.0.0.1:4001\"]", &["line 2"]),
        ("[scheme.synchronous]\naggregation = \"median\"", &["line 2", "median", "centered-clip"]),
        ("[data]\nshard_samples = 0", &["line 2", "a whole number from 1"]),
        ("[scheme.synchronous]\noptimizer = { kind = \"adamw\" }", &["line 2", "adamw", "sgd-momentum"]),
        ("[aggregators]\npeers = [\"/ip4/192.0.2.1/tcp/4001\"]", &["line 2", "barnraise id"]),
        ("[scheme.synchronous]\naverage_codec = \"int4\"", &["line 2", "f32"]),
        ("[aggregators]\ngroup_members_max = 1", &["line 2", "group_members_max", "256"]),
        ("[aggregators]\ngroup_members_max = 257", &["line 2", "group_members_max", "256"]),
        ("[aggregators]\nreducers = \"all\"", &["line 2", "all", "anybody"]),
        ("[aggregators]\nreducers = \"named\"", &["line 2", "reducer_peers"]),
        ("[aggregators]\nreducer_peers = [\"nobody\"]", &["line 2", "no peer id"]),
        ("[aggregators]\nupload_per_second = \"fast\"", &["line 2", "fast", "\"auto\"", "12 MiB"]),
        ("[aggregators]\ndownload_per_second = \"1 B\"", &["line 2", "1.0 KiB"]),
        ("[aggregators]\npatience = \"1h\"", &["line 2", "aggregators.patience", "5m"]),
        ("[aggregators]\ndeadline = \"9s\"", &["line 2", "more than reducer_timeout, 12s"]),
        ("[device]\nprecision = \"mixed\"", &["line 2", "mixed", "bf16"]),
        ("[scheme]\nsynchronous = {}\nlocal = {}", &["line 3", "local", "`synchronous`"]),
        ("[scheme]", &["line 1", "[scheme.synchronous]"]),
        ("[scheme.synchronous]\nseed = 1", &["line 2", "seed", "target_batch_size"]),
        ("[scheme.decentralised]", &["line 1", "decentralised", "synchronous"]),
        ("[averaging]", &["line 1", "averaging", "scheme"]),
        ("[run]\nseed = 1", &["line 2", "seed", "purpose"]),
        ("[nonsense]", &["line 1", "nonsense", "storage"]),
        ("[run", &["line 1"]),
    ] {
        let error = error(text);
        for part in parts {
            assert!(error.contains(part), "{part} is missing in: {error}");
        }
    }
}

#[test]
fn a_value_that_cannot_work_is_shown_with_its_line() {
    let error = error("[scheme.synchronous]\n# a comment\nstate_codec = \"f16\"\ntarget_batch_size = 32\n");
    assert_eq!(
        error,
        "run.toml, line 4, column 1: scheme.synchronous.target_batch_size = 32: at least the micro batch size, 64, and at most \
         10000000, not 32\n 4 | target_batch_size = 32\n   | ^^^^^^^^^^^^^^^^^"
    );
}

#[test]
fn every_key_may_come_from_the_environment() {
    let table = toml::Table::try_from(RunConfig::default()).unwrap();
    let mut variables = Vec::new();
    for (section, keys) in sections(&table) {
        for (key, value) in keys {
            let name = format!("BARNRAISE__{}__{key}", section.replace('.', "__")).to_uppercase();
            variables.push((OsString::from(name), OsString::from(value.to_string())));
        }
    }
    assert!(variables.len() > 60, "{} keys", variables.len());
    let environment = Environment::of(variables, SECRETS).unwrap();
    let config: RunConfig = environment.apply(&toml::Table::new()).unwrap();
    assert_eq!(config, RunConfig::default());
}

#[test]
fn the_environment_wins_over_the_file_and_over_dev() {
    let folder = tempfile::tempdir().unwrap();
    let (path, secret) = (folder.path().join("run.toml"), folder.path().join("database"));
    std::fs::write(&path, "[run]\nid = \"a\"\n[storage]\nfolder = \"here\"").unwrap();
    std::fs::write(&secret, "postgres://barn@db/runs\n").unwrap();
    let variables = |values: &[(&str, &str)]| {
        let values = values.iter().map(|(name, value)| (name.into(), value.into()));
        Environment::of(values, SECRETS).unwrap()
    };
    let environment = variables(&[
        ("BARNRAISE__RUN__ID", "b"),
        ("BARNRAISE__STORAGE__FOLDER", "there"),
        ("BARNRAISE__CONTRIBUTIONS__DATABASE_FILE", secret.to_str().unwrap()),
    ]);
    let config = RunConfig::load_in(&path, &environment).unwrap();
    assert_eq!((config.run.id.as_str(), config.storage.folder), ("b", folder.path().join("there")));
    assert_eq!(config.contributions.database.as_deref(), Some("postgres://barn@db/runs"));
    let dev = RunConfig::dev_in(Path::new("/cache"), &variables(&[("BARNRAISE__MODEL__SEED", "7")])).unwrap();
    assert_eq!((dev.model.seed, dev.storage.folder), (7, "/cache/dev-run".into()));
    let error = RunConfig::dev_in(Path::new("/cache"), &variables(&[("BARNRAISE__RUN__ID", "B")]));
    let error = error.unwrap_err().to_string();
    assert!(error.starts_with("the variable BARNRAISE__RUN__ID: run.id = \"B\""), "{error}");
}

#[test]
fn folders_are_relative_to_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.toml");
    std::fs::write(&path, "[storage]\nfolder = \"state\"\n[data]\ncache = \"/abs\"").unwrap();
    let config = RunConfig::load(&path).unwrap();
    assert_eq!(config.storage.folder, folder.path().join("state"));
    assert_eq!(config.data_cache(), Path::new("/abs"));
    let missing = RunConfig::load(&folder.path().join("none.toml")).unwrap_err().to_string();
    assert!(missing.contains("none.toml"), "{missing}");
}

#[test]
fn weights_to_begin_with_are_a_path_or_an_address_with_a_checksum() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.toml");
    let load = |start: &str| {
        std::fs::write(&path, format!("[model]\nstart_from = {start}")).unwrap();
        RunConfig::load(&path).map(|config| config.model.start_from.unwrap())
    };
    assert_eq!(
        load("\"here.safetensors\"").unwrap(),
        StartFrom::File(DataFile::Local(folder.path().join("here.safetensors")))
    );
    let there = load(&format!("{{ url = \"https://a.example/m\", sha256 = \"{}\" }}", Sha256Hash::of(b"m")));
    assert!(matches!(there.unwrap(), StartFrom::File(DataFile::Fetched(_))));
    assert!(load("\"https://a.example/m\"").unwrap_err().to_string().contains("sha256"));
    let of_hub = load("{ hub = \"barn/of-nobody\" }").unwrap_err().to_string();
    assert!(of_hub.contains("hf download barn/of-nobody --revision main"), "{of_hub}");
    assert!(load("{ hub = \"barn/owl\", sha256 = \"ab\" }").unwrap_err().to_string().contains("sha256"));
}

#[test]
fn the_cache_folder_follows_the_specification() {
    let of = |xdg: Option<&str>, home: Option<&str>| {
        cache_folder_from(xdg.map(OsString::from), home.map(OsString::from))
    };
    assert_eq!(of(Some("/x"), Some("/h")), Path::new("/x/barnraise"));
    assert_eq!(of(Some("x"), Some("/h")), Path::new("/h/.cache/barnraise"));
    assert_eq!(of(None, None), std::env::temp_dir().join("barnraise"));
}
