//! The checks of a configuration that its types cannot make.
//!
//! Pure. Each part reports its first invalid value, with the wanted one.

use std::time::Duration;

use barnraise_protocol::access::AccessMode;
use barnraise_protocol::run::model::presets::{Gpt, GptFamily, Preset};
use barnraise_relay::server::is_host_name;
use libp2p::multiaddr::Protocol;

use super::{Invalid, NetworkSection, Precision, RunConfig, StorageSection, as_written};

const LICENSE_CHARS_MAX: usize = 64;
/// Two files for each, as large as the model.
const KEEP_MODELS_MAX: usize = 8;

/// The first mistake of each part.
pub(super) fn mistakes(config: &RunConfig) -> Vec<Invalid> {
    let parts = [
        license(config),
        adapters(config),
        family(config),
        config.scheme.validate(),
        // Of data and model that do not fit each other the first check says more.
        data(config).and_then(|()| super::description::validate(config)),
        config.scheme.validate_in(config),
        config.aggregators.validate(),
        storage(&config.storage),
        network(&config.network),
        config.limits.validate(config.network.contributors_max),
        config.conversations.validate(),
        config.dht.validate(),
        config.contributions.validate(),
        super::access::validate(&config.access),
        device(config),
        super::hosting::validate(config),
        Invalid::check_range("evaluation.every_epochs", config.evaluation.every_epochs, 1..=1_000_000),
        config.telemetry.validate(),
        operations(config),
    ];
    parts.into_iter().filter_map(Result::err).collect()
}

/// What this program was built without.
fn operations(config: &RunConfig) -> Result<(), Invalid> {
    let asked = [
        ("storage.objects", config.storage.objects.is_some()),
        ("contributions.database", config.contributions.database.is_some()),
        ("access.oidc", config.access.oidc.is_some()),
        ("telemetry.otlp", config.telemetry.otlp.is_some()),
    ];
    let want = "a program that `cargo xtask build --release` has built: this one is without it";
    asked.into_iter().try_for_each(|(key, is_asked)| {
        Invalid::check(key, cfg!(feature = "operations") || !is_asked, want, "(given)")
    })
}

fn storage(storage: &StorageSection) -> Result<(), Invalid> {
    let every = storage.checkpoint_every_epochs;
    Invalid::check_range("storage.checkpoint_every_epochs", every, 1..=1_000_000)?;
    Invalid::check_range("storage.keep_checkpoints", storage.keep_checkpoints, 1..=1000)?;
    Invalid::check_range("storage.keep_models", storage.keep_models.len(), 0..=KEEP_MODELS_MAX)?;
    for age in &storage.keep_models {
        let allowed = Duration::from_secs(1)..=Duration::from_secs(366 * 24 * 3600);
        Invalid::check_duration("storage.keep_models", *age, allowed)?;
    }
    Ok(())
}

fn network(network: &NetworkSection) -> Result<(), Invalid> {
    Invalid::check("network.listen", !network.listen.is_empty(), "at least one address", "[]")?;
    Invalid::check_range("network.http_connections", network.http_connections(), 1..=1_000_000)?;
    let timeout = Duration::from_secs(20)..=Duration::from_secs(3600);
    Invalid::check_duration("network.http_timeout", network.http_timeout, timeout)?;
    let per_minute = network.http_requests_per_address_and_minute;
    let name = "network.http_requests_per_address_and_minute";
    Invalid::check_range(name, per_minute, 60..=10_000_000)?;
    Invalid::check_range("network.contributors_max", network.contributors_max, 1..=1_000_000)?;
    for name in &network.operator_names {
        let want = "each is a name without a port, such as \"backbone.internal\"";
        Invalid::check("network.operator_names", is_host_name(name), want, format!("{name:?}"))?;
    }
    for relay in &network.relays {
        let good = matches!(relay.iter().last(), Some(Protocol::P2p(_)));
        Invalid::check("network.relays", good, "each ends with /p2p/<peer id>", relay)?;
    }
    for peer in &network.dht_peers {
        let good = matches!(peer.iter().last(), Some(Protocol::P2p(_)));
        Invalid::check("network.dht_peers", good, "each ends with /p2p/<peer id>", peer)?;
    }
    Ok(())
}

fn device(config: &RunConfig) -> Result<(), Invalid> {
    Invalid::check(
        "device.contributes",
        !config.device.contributes || config.access.mode == AccessMode::Open,
        "false, unless [access] is open: a backbone has no invitation to its own run",
        config.device.contributes,
    )?;
    let is_half = config.device.contributes && config.device.precision != Precision::F32;
    let good = !is_half || !config.scheme.needs_single_precision(config);
    let want = "\"f32\" where the backbone contributes to a run that recomputes contributions";
    Invalid::check("device.precision", good, want, as_written(&config.device.precision))
}

fn data(config: &RunConfig) -> Result<(), Invalid> {
    config.data.validate(&config.model.kind.graph().loss, &as_written(&config.model.kind))
}

/// Adapters need weights to add to.
fn adapters(config: &RunConfig) -> Result<(), Invalid> {
    let Some(adapters) = &config.model.adapters else { return Ok(()) };
    let want = "`start_from` beside it, with the weights that stay as they are";
    Invalid::check("model.adapters", config.model.start_from.is_some(), want, as_written(adapters))
}

/// What only Llama has would say nothing of GPT-2.
fn family(config: &RunConfig) -> Result<(), Invalid> {
    let Preset::Gpt(gpt) = &config.model.kind else { return Ok(()) };
    let plain = Gpt::new(gpt.family, gpt.width, gpt.layers, gpt.heads);
    let Gpt { inner, dropout, epsilon, experts, .. } = *gpt;
    let is_plain = *gpt == Gpt { inner, dropout, epsilon, experts, ..plain };
    let want = "`family = \"llama\"` beside `key_value_heads`, `theta`, `rotary_scaling`, `attention_bias` and `untied`";
    Invalid::check(
        "model.kind",
        gpt.family == GptFamily::Llama || is_plain,
        want,
        as_written(&config.model.kind),
    )
}

fn license(config: &RunConfig) -> Result<(), Invalid> {
    let Some(license) = &config.model.license else { return Ok(()) };
    let known = |c: char| c.is_ascii_alphanumeric() || "-.+".contains(c);
    let good = (1..=LICENSE_CHARS_MAX).contains(&license.len()) && license.chars().all(known);
    let want = "an SPDX id, such as \"mit\" or \"cc-by-4.0\", or \"LicenseRef-\" and a name of your own";
    let is_known = good && super::license::is_known(license);
    Invalid::check("model.license", is_known, want, format!("{license:?}"))
}

pub(super) fn text(key: &'static str, got: &str, chars_max: usize) -> Result<(), Invalid> {
    let n_chars = got.chars().count();
    let good = !got.trim().is_empty() && n_chars <= chars_max;
    Invalid::check(key, good, format!("1 to {chars_max} characters"), format!("({n_chars} characters)"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use std::path::PathBuf;

    use barnraise_learning::{Decay, OptimizerSpec, ScheduleSpec};
    use barnraise_protocol::TensorCodec;
    use barnraise_protocol::codec::WARMUP_DENSITY;
    use barnraise_protocol::run::Augmentation;
    use barnraise_protocol::run::model::presets::Albert;
    use barnraise_protocol::run::{GradientCodec, SlowLinks, TopK};
    use bytesize::ByteSize;

    use super::super::LocalStepsSection;
    use super::*;
    use crate::config::{IdxSection, PicturesSection, RecomputationSection, SynchronousSection, TextSection};
    use crate::data::sets::NamedSet;

    type ConfigEdit = fn(&mut RunConfig);

    fn local_steps(steps: u32, optimizer: OptimizerSpec) -> LocalStepsSection {
        LocalStepsSection { steps, optimizer, schedule: ScheduleSpec::constant(0.05) }
    }

    fn sparse() -> TopK {
        TopK::plain(WARMUP_DENSITY, 1)
    }

    fn top_k(of: TopK) -> GradientCodec {
        GradientCodec::TopK(of)
    }

    fn slow_links(below_bytes_per_second: u64, codec: GradientCodec) -> Option<SlowLinks> {
        Some(SlowLinks { below_bytes_per_second, codec })
    }

    fn recomputation(share: f64, tolerance: f32) -> Option<RecomputationSection> {
        Some(RecomputationSection { share, tolerance })
    }

    #[test]
    fn as_many_local_steps_are_taken_as_a_target_batch_has() {
        let mut config = RunConfig::default();
        config.synchronous_mut().unwrap().local_steps = Some(local_steps(16, OptimizerSpec::adam()));
        assert_eq!(config.validate(), Ok(()));
        config.synchronous_mut().unwrap().contribution_samples_max = 512;
        let error = config.validate().unwrap_err().to_string();
        assert!(error.contains("1 to 8") && error.contains("a contribution of 512"), "{error}");
    }

    #[test]
    fn a_few_local_steps_are_recomputed() {
        let sgd = OptimizerSpec::SgdMomentum { momentum: 0.9, nesterov: false, weight_decay: 0.0 };
        let mut config = RunConfig::default();
        config.synchronous_mut().unwrap().recomputation = recomputation(0.1, 0.02);
        config.synchronous_mut().unwrap().local_steps = Some(local_steps(2, sgd));
        config.synchronous_mut().unwrap().gradient_codec = GradientCodec::Int8;
        assert_eq!(config.validate(), Ok(()));
    }

    fn albert() -> Preset {
        Preset::Albert(Albert { embedding: 8, hidden: 16, heads: 2, inner: 32, layers: 2 })
    }

    fn text() -> TextSection {
        toml::from_str("name = \"Rhymes\"\nsources = [{ path = \"rhymes.txt\" }]").unwrap()
    }

    fn of_text(config: &mut RunConfig) -> &mut TextSection {
        config.model.kind = albert();
        config.data.text.insert(text())
    }

    fn of_pictures(config: &mut RunConfig) -> &mut PicturesSection {
        config.data.pictures.insert(toml::from_str("folder = \"photos\"").unwrap())
    }

    fn of_idx(config: &mut RunConfig) -> &mut IdxSection {
        config.data.idx.insert(toml::from_str("pictures = \"p\"\nlabels = \"l\"").unwrap())
    }

    #[test]
    fn text_is_for_a_transformer() {
        let mut config = RunConfig::default();
        of_text(&mut config);
        assert_eq!(config.validate(), Ok(()));
        config.data.text = None;
        assert_eq!(config.validate().unwrap_err().key, "model.kind");
        config.data.set = NamedSet::Books;
        assert_eq!(config.validate(), Ok(()));
        config.data.text = Some(toml::from_str("vocabulary = 2000").unwrap());
        assert_eq!(config.validate(), Ok(()));
    }

    #[test]
    fn every_set_has_a_model_that_suits_it() {
        let factors = Preset::MatrixFactorization { factors: 4 };
        for (set, kind) in [
            (NamedSet::FashionMnist, Preset::LeNet),
            (NamedSet::Mnist, Preset::LeNet),
            (NamedSet::Cifar10, Preset::LeNet),
            (NamedSet::Movielens100k, factors),
            (NamedSet::Books, albert()),
        ] {
            let mut config = RunConfig::default();
            config.data.set = set;
            config.model.kind = kind;
            assert_eq!(config.validate(), Ok(()), "{set:?}");
        }
    }

    #[test]
    fn idx_files_are_pictures() {
        let mut config = RunConfig::default();
        *of_idx(&mut config) =
            IdxSection { height: 12, width: 16, channels: 3, ..of_idx(&mut config).clone() };
        assert_eq!(config.validate(), Ok(()));
    }

    #[test]
    fn a_model_that_guesses_masked_tokens_needs_a_tokenizer_that_masks() {
        let mut config = RunConfig::default();
        let tokenizers =
            std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/learning/tests/tokenizers");
        let tokenizer = |name: &str| Some(tokenizers.join(name));
        of_text(&mut config).tokenizer = tokenizer("word-piece.json");
        assert_eq!(config.validate(), Ok(()));
        of_text(&mut config).tokenizer = tokenizer("byte-level.json");
        let error = config.validate().unwrap_err();
        assert!(error.key == "model.kind" && error.want.contains("needs a mask token"), "{error}");
        config.model.kind = Preset::Gpt(Gpt::new(GptFamily::Gpt2, 16, 1, 2));
        assert_eq!(config.validate(), Ok(()));
        for family in [GptFamily::Llama, GptFamily::Gpt2] {
            let gpt = Gpt { untied: true, dropout: 0.1, ..Gpt::new(family, 16, 1, 2) };
            config.model.kind = Preset::Gpt(gpt);
            assert_eq!(config.validate().is_ok(), family == GptFamily::Llama);
        }
        let error = config.validate().unwrap_err();
        assert!(error.key == "model.kind" && error.want.contains("llama"), "{error}");
    }

    #[test]
    fn every_check_names_its_key() {
        let cases: [(&str, ConfigEdit); 43] = [
            ("device.precision", |c| (c.device.contributes, c.device.precision) = (true, Precision::F16)),
            ("run.id", |c| c.run.id = "No spaces".into()),
            ("run.id", |c| c.run.id = String::new()),
            ("run.title", |c| c.run.title = " ".into()),
            ("run.purpose", |c| c.run.purpose = "x".repeat(501)),
            ("model.kind", |c| c.model.kind = Preset::Mlp { hidden: vec![u32::MAX] }),
            ("data.shuffle_buffer_samples", |c| c.data.shuffle_buffer_samples = 1),
            ("contributions.aggregation_bytes_max", |c| {
                c.contributions.aggregation_bytes_max = ByteSize::kib(1);
            }),
            ("contributions.in_flight_bytes_max", |c| c.contributions.in_flight_bytes_max = ByteSize::kib(1)),
            ("model.kind", |c| c.model.kind = albert()),
            ("model.kind", |c| {
                c.data.text = Some(text());
            }),
            ("data.text.vocabulary", |c| of_text(c).vocabulary = 3),
            ("data.text.tokenizer", |c| of_text(c).tokenizer = Some("none.json".into())),
            ("data.text.sequence_tokens", |c| of_text(c).sequence_tokens = 3),
            ("data.text.held_out", |c| of_text(c).held_out = f64::NAN),
            ("data.text.sources", |c| of_text(c).sources.clear()),
            ("data.text.sources", |c| of_text(c).sources[0].weight = 0.0),
            ("data.text.sources", |c| {
                of_text(c);
                c.data.set = NamedSet::Books;
            }),
            ("data.set", |c| {
                of_idx(c);
                c.data.set = NamedSet::Mnist;
            }),
            ("data.idx", |c| {
                of_idx(c);
                c.data.text = Some(text());
            }),
            ("data.idx.held_out_pictures", |c| of_idx(c).held_out_labels = Some(PathBuf::from("l").into())),
            ("data.idx.classes", |c| of_idx(c).classes.push("alone".into())),
            ("data.idx.channels", |c| of_idx(c).channels = 4),
            ("data.pictures", |c| of_pictures(c).archive = Some(PathBuf::from("photos.zip").into())),
            ("data.pictures", |c| of_pictures(c).folder = None),
            ("data.pictures.broken", |c| of_pictures(c).broken = f64::NAN),
            ("data.augment", |c| {
                of_pictures(c);
                c.data.augment = Some(Augmentation { crop_padding: 17, ..Augmentation::default() });
            }),
            ("data.augment", |c| {
                of_text(c);
                c.data.augment = Some(Augmentation { flip: true, ..Augmentation::default() });
            }),
            ("data.base_urls", |c| c.data.base_urls.push("ftp://x".into())),
            ("storage.keep_checkpoints", |c| c.storage.keep_checkpoints = 0),
            ("storage.keep_models", |c| c.storage.keep_models = vec![Duration::ZERO]),
            ("storage.keep_models", |c| c.storage.keep_models = vec![Duration::from_secs(60); 9]),
            ("model.license", |c| c.model.license = Some("two words".into())),
            ("model.license", |c| c.model.license = Some("my-own-terms".into())),
            ("data.folder", |c| {
                of_text(c);
                c.data.folder = Some("pictures".into());
            }),
            ("network.listen", |c| c.network.listen.clear()),
            ("network.operator_names", |c| c.network.operator_names = vec!["backbone:8082".into()]),
            ("evaluation.every_epochs", |c| c.evaluation.every_epochs = 0),
            ("limits.connections", |c| c.limits.connections = Some(0)),
            ("limits.block_duration", |c| c.limits.block_duration = Duration::ZERO),
            ("conversations.per_peer", |c| c.conversations.per_peer = 0),
            ("dht.records", |c| c.dht.records = 0),
            ("contributions.database", |c| c.contributions.database = Some("mysql://h/d".into())),
        ];
        assert_eq!(RunConfig::default().validate(), Ok(()));
        for (key, break_it) in cases {
            let mut config = RunConfig::default();
            break_it(&mut config);
            assert_eq!(config.validate().unwrap_err().key, key);
        }
    }

    #[test]
    fn every_check_of_the_scheme_names_its_key() {
        type SchemeEdit = fn(&mut SynchronousSection);
        let cases: [(&str, SchemeEdit); 26] = [
            ("micro_batch_size", |s| s.micro_batch_size = 0),
            ("target_batch_size", |s| s.target_batch_size = 1),
            ("optimizer", |s| {
                s.optimizer =
                    OptimizerSpec::SgdMomentum { momentum: 1.5, nesterov: false, weight_decay: 0.0 };
            }),
            ("schedule", |s| {
                s.schedule = ScheduleSpec { peak: f32::NAN, warmup_steps: 0, decay: Decay::Constant };
            }),
            ("local_steps", |s| s.local_steps = Some(local_steps(0, OptimizerSpec::adam()))),
            ("local_steps", |s| s.local_steps = Some(local_steps(1, OptimizerSpec::lamb()))),
            ("local_steps", |s| s.local_steps = Some(local_steps(17, OptimizerSpec::adam()))),
            ("slow_links", |s| s.slow_links = slow_links(0, GradientCodec::Int8)),
            ("slow_links", |s| s.slow_links = slow_links(1, GradientCodec::F16)),
            ("recomputation", |s| {
                s.recomputation = recomputation(0.1, 0.02);
                s.slow_links = slow_links(1, GradientCodec::Int4);
            }),
            ("recomputation", |s| s.recomputation = recomputation(1.5, 0.02)),
            ("recomputation", |s| s.recomputation = recomputation(0.1, 1.0)),
            ("recomputation", |s| {
                s.recomputation = recomputation(0.1, 0.02);
                s.gradient_codec = GradientCodec::Int4;
            }),
            ("recomputation", |s| {
                s.recomputation = recomputation(0.1, 0.02);
                s.local_steps = Some(local_steps(2, OptimizerSpec::adam()));
            }),
            ("state_codec", |s| s.state_codec = TensorCodec::Int4),
            ("gradient_codec", |s| {
                s.gradient_codec = top_k(TopK { clip_norm: Some(0.0), ..sparse() });
            }),
            ("gradient_codec", |s| s.gradient_codec = top_k(TopK { momentum: 1.0, ..sparse() })),
            ("gradient_codec", |s| s.gradient_codec = top_k(TopK { masking: true, ..sparse() })),
            ("slow_links", |s| {
                s.slow_links = slow_links(1, top_k(TopK { momentum: 0.9, ..sparse() }));
            }),
            ("optimizer", |s| s.gradient_codec = top_k(TopK { momentum: 0.9, ..sparse() })),
            ("average_codec", |s| s.average_codec = TensorCodec::Int4),
            ("collect_timeout", |s| s.collect_timeout = Duration::ZERO),
            ("contribution_samples_max", |s| s.contribution_samples_max = 3),
            ("samples_per_second_max", |s| s.samples_per_second_max = 0),
            ("gradient_norm_max", |s| s.gradient_norm_max = 0.0),
            ("gradient_norm_max", |s| s.gradient_norm_max = f32::NAN),
        ];
        for (key, break_it) in cases {
            let mut config = RunConfig::default();
            break_it(config.synchronous_mut().unwrap());
            assert_eq!(config.validate().unwrap_err().key, format!("scheme.synchronous.{key}"));
        }
    }

    #[test]
    fn each_part_tells_its_own_mistake() {
        let mut config = RunConfig::default();
        config.run.id = String::new();
        config.network.listen.clear();
        config.evaluation.every_epochs = 0;
        let keys: Vec<&str> = mistakes(&config).iter().map(|mistake| mistake.key).collect();
        assert_eq!(keys, ["run.id", "network.listen", "evaluation.every_epochs"]);
    }
}
