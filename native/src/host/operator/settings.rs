//! Settings of a run that can be changed while it trains, and why the others cannot.
//!
//! Keys of the run's description are fixed: contributors and other backbones hold the description already, compare it,
//! and sign it in a run with recomputation. Changes are stored in the run's folder and survive restarts, until they are
//! reset to the value of the configuration file. Pure.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use barnraise_swarm::collection::CollectionLimits;
use serde::{Deserialize, Deserializer, Serialize};

const RATE_FACTOR: RangeInclusive<f64> = 1e-4..=100.0;
const COLLECT_TIMEOUT_SECONDS: RangeInclusive<f64> = 0.1..=3600.0;
const GRADIENT_NORM: RangeInclusive<f64> = 1e-9..=1e20;
const SAMPLES_PER_SECOND: RangeInclusive<u32> = 1..=u32::MAX;
const CHECKPOINT_EVERY_EPOCHS: RangeInclusive<u64> = 1..=1_000_000;
const STREAM_WEIGHT: RangeInclusive<f64> = 0.0..=1e9;

const DESCRIBED: &str = "it is in the run's description, which contributors and other backbones hold: change it in the \
    file of every backbone and start them again";

/// Fixed keys of the configuration, and why they are fixed.
const FIXED: [(&str, &str); 19] = [
    ("title", DESCRIBED),
    ("purpose", DESCRIBED),
    ("target_batch_size", DESCRIBED),
    ("micro_batch_size", DESCRIBED),
    ("shuffle_buffer_samples", DESCRIBED),
    ("gradient_codec", DESCRIBED),
    ("slow_links", DESCRIBED),
    ("state_codec", DESCRIBED),
    ("delayed_updates", DESCRIBED),
    ("local_steps", DESCRIBED),
    ("recomputation", DESCRIBED),
    ("compression", DESCRIBED),
    ("contribution_samples_max", DESCRIBED),
    ("id", "a run has its id for as long as it lives"),
    ("model", "a run has its model for as long as it lives: give another run another id and folder"),
    ("seed", "a run has its seed for as long as it lives"),
    ("optimizer", "its state is of that optimizer: change it in the file, with another folder"),
    ("schedule", "change `learning_rate_factor`, which multiplies it, or the file"),
    ("aggregation", "contributions of an epoch are kept for the one or the other: change it in the file"),
];

/// Changed settings; `None` is the value of the configuration file.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Multiplies the learning rate of the schedule.
    pub learning_rate_factor: Option<f64>,
    /// `scheme.synchronous.collect_timeout`.
    pub collect_timeout_seconds: Option<f64>,
    /// `scheme.synchronous.samples_per_second_max`.
    pub samples_per_second_max: Option<u32>,
    /// `scheme.synchronous.gradient_norm_max`.
    pub gradient_norm_max: Option<f64>,
    /// `network.contributors_max`.
    pub contributors_max: Option<u32>,
    /// `storage.checkpoint_every_epochs`.
    pub checkpoint_every_epochs: Option<u64>,
    /// Weights of the sources of a stream, by their names; without an entry it is that of the file.
    pub stream_weights: BTreeMap<String, f64>,
}

/// A requested change: an absent key stays as it is, a null resets it to the value of the file.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SettingsChange {
    #[serde(deserialize_with = "given")]
    learning_rate_factor: Option<Option<f64>>,
    #[serde(deserialize_with = "given")]
    collect_timeout_seconds: Option<Option<f64>>,
    #[serde(deserialize_with = "given")]
    samples_per_second_max: Option<Option<u32>>,
    #[serde(deserialize_with = "given")]
    gradient_norm_max: Option<Option<f64>>,
    #[serde(deserialize_with = "given")]
    contributors_max: Option<Option<u32>>,
    #[serde(deserialize_with = "given")]
    checkpoint_every_epochs: Option<Option<u64>>,
    /// Of the sources that are named.
    #[serde(deserialize_with = "given")]
    stream_weights: Option<Option<BTreeMap<String, Option<f64>>>>,
}

/// All settings in force.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EffectiveSettings {
    /// Factor of the scheduled learning rate; 1 unless it was changed.
    pub learning_rate_factor: f64,
    /// `scheme.synchronous.collect_timeout`, in seconds.
    pub collect_timeout_seconds: f64,
    /// `scheme.synchronous.samples_per_second_max`.
    pub samples_per_second_max: u32,
    /// `scheme.synchronous.gradient_norm_max`.
    pub gradient_norm_max: f64,
    /// `network.contributors_max`.
    pub contributors_max: u32,
    /// Optimizer steps between two checkpoints.
    pub checkpoint_every_epochs: u64,
    /// `data.text.sources.weight` of a stream, by the names of the sources; empty where the data are none.
    pub stream_weights: BTreeMap<String, f64>,
}

/// Why a change is refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SettingError {
    /// The value is out of range.
    #[error("{key} = {got}: {want} is wanted")]
    Range {
        /// Name of the setting.
        key: &'static str,
        /// The allowed range.
        want: String,
        /// The requested value.
        got: String,
    },
    /// The setting is fixed.
    #[error("{key} cannot be changed while the run goes on: {why}")]
    Fixed {
        /// Name of the setting.
        key: String,
        /// The reason.
        why: &'static str,
    },
    /// All backbones of a run must have the same value.
    #[error(
        "{0} has to be the same for all backbones of a run, and is not sent to the others: only a run with one can change it"
    )]
    SharedByBackbones(&'static str),
    /// No source of the stream has this name.
    #[error("stream_weights.{got}: {}", sources_wanted(known))]
    NoSource {
        /// The name that came.
        got: String,
        /// Names of the sources; none where the data are no stream.
        known: Vec<String>,
    },
    /// No source would be read any more.
    #[error("stream_weights would be 0 for all sources: one above 0 is wanted, or `barnraise run pause`")]
    NoWeight,
    /// The key is unknown, or the value has another type.
    #[error("{0}")]
    Shape(String),
    /// The request names no setting.
    #[error("no setting is named")]
    Nothing,
}

fn sources_wanted(known: &[String]) -> String {
    match known {
        [] => "the data of this run are no stream".to_owned(),
        known => format!("there is no such source; there are {}", known.join(", ")),
    }
}

fn given<'de, T: Deserialize<'de>, D: Deserializer<'de>>(value: D) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(value).map(Some)
}

impl SettingsChange {
    /// Parses the body of a request.
    ///
    /// # Errors
    /// A key is unknown or fixed, or a value has another type.
    pub fn of(value: &serde_json::Value) -> Result<Self, SettingError> {
        let keys = value.as_object().ok_or_else(|| SettingError::Shape("an object is wanted".into()))?;
        for key in keys.keys() {
            if let Some((_, why)) = FIXED.iter().find(|(fixed, _)| fixed == key) {
                return Err(SettingError::Fixed { key: key.clone(), why });
            }
        }
        if keys.is_empty() {
            return Err(SettingError::Nothing);
        }
        Self::deserialize(value).map_err(|error| SettingError::Shape(error.to_string()))
    }
}

impl Settings {
    /// Checks and applies a change. `file` has the values of the configuration file; `is_alone` says that no other backbone
    /// aggregates the run.
    ///
    /// # Errors
    /// The first setting that cannot be changed like that.
    pub fn changed(
        &self,
        change: &SettingsChange,
        file: &EffectiveSettings,
        is_alone: bool,
    ) -> Result<Self, SettingError> {
        let shared = [
            ("learning_rate_factor", change.learning_rate_factor.is_some()),
            ("checkpoint_every_epochs", change.checkpoint_every_epochs.is_some()),
            ("stream_weights", change.stream_weights.is_some()),
        ];
        if let Some((key, _)) = shared.iter().find(|(_, is_changed)| *is_changed && !is_alone) {
            return Err(SettingError::SharedByBackbones(key));
        }
        // Stream slots were allocated for this many at the start.
        let contributors = 1..=file.contributors_max;
        check("learning_rate_factor", change.learning_rate_factor, RATE_FACTOR)?;
        check("collect_timeout_seconds", change.collect_timeout_seconds, COLLECT_TIMEOUT_SECONDS)?;
        check("samples_per_second_max", change.samples_per_second_max, SAMPLES_PER_SECOND)?;
        check("gradient_norm_max", change.gradient_norm_max, GRADIENT_NORM)?;
        check("contributors_max", change.contributors_max, contributors)?;
        check("checkpoint_every_epochs", change.checkpoint_every_epochs, CHECKPOINT_EVERY_EPOCHS)?;
        Ok(Self {
            learning_rate_factor: change.learning_rate_factor.unwrap_or(self.learning_rate_factor),
            collect_timeout_seconds: change.collect_timeout_seconds.unwrap_or(self.collect_timeout_seconds),
            samples_per_second_max: change.samples_per_second_max.unwrap_or(self.samples_per_second_max),
            gradient_norm_max: change.gradient_norm_max.unwrap_or(self.gradient_norm_max),
            contributors_max: change.contributors_max.unwrap_or(self.contributors_max),
            checkpoint_every_epochs: change.checkpoint_every_epochs.unwrap_or(self.checkpoint_every_epochs),
            stream_weights: self.weights_changed(change, file)?,
        })
    }

    fn weights_changed(
        &self,
        change: &SettingsChange,
        file: &EffectiveSettings,
    ) -> Result<BTreeMap<String, f64>, SettingError> {
        let mut weights = self.stream_weights.clone();
        match &change.stream_weights {
            None => return Ok(weights),
            Some(None) => weights.clear(),
            Some(Some(changes)) => {
                for (name, weight) in changes {
                    if !file.stream_weights.contains_key(name) {
                        let known = file.stream_weights.keys().cloned().collect();
                        return Err(SettingError::NoSource { got: name.clone(), known });
                    }
                    check("stream_weights", Some(*weight), STREAM_WEIGHT)?;
                    match weight {
                        Some(weight) => weights.insert(name.clone(), *weight),
                        None => weights.remove(name),
                    };
                }
            }
        }
        match weights_over(&weights, &file.stream_weights).values().any(|weight| *weight > 0.0) {
            false if !file.stream_weights.is_empty() => Err(SettingError::NoWeight),
            _ => Ok(weights),
        }
    }

    /// The same for a backbone among others: what all of them must have alike is that of the file.
    #[must_use]
    pub fn among_others(self) -> Self {
        Self {
            learning_rate_factor: None,
            checkpoint_every_epochs: None,
            stream_weights: BTreeMap::new(),
            ..self
        }
    }

    /// The settings in force: these over the values of `file`. The file's present limit of contributors is not exceeded.
    pub fn over(&self, file: &EffectiveSettings) -> EffectiveSettings {
        EffectiveSettings {
            learning_rate_factor: self.learning_rate_factor.unwrap_or(file.learning_rate_factor),
            collect_timeout_seconds: self.collect_timeout_seconds.unwrap_or(file.collect_timeout_seconds),
            samples_per_second_max: self.samples_per_second_max.unwrap_or(file.samples_per_second_max),
            gradient_norm_max: self.gradient_norm_max.unwrap_or(file.gradient_norm_max),
            contributors_max: self.contributors_max.unwrap_or(u32::MAX).min(file.contributors_max),
            checkpoint_every_epochs: self.checkpoint_every_epochs.unwrap_or(file.checkpoint_every_epochs),
            stream_weights: weights_over(&self.stream_weights, &file.stream_weights),
        }
    }
}

impl EffectiveSettings {
    /// The values of the configuration file.
    pub fn of(
        limits: &CollectionLimits,
        checkpoint_every_epochs: u64,
        stream_weights: BTreeMap<String, f64>,
    ) -> Self {
        Self {
            learning_rate_factor: 1.0,
            collect_timeout_seconds: limits.collect_timeout.as_secs_f64(),
            samples_per_second_max: limits.samples_per_second_max,
            gradient_norm_max: limits.gradient_norm_max.into(),
            contributors_max: u32::try_from(limits.contributors_max).unwrap_or(u32::MAX),
            checkpoint_every_epochs,
            stream_weights,
        }
    }

    /// The limits of a collection round.
    pub fn limits(&self) -> CollectionLimits {
        CollectionLimits {
            samples_per_second_max: self.samples_per_second_max,
            // It was checked to be in range.
            collect_timeout: Duration::try_from_secs_f64(self.collect_timeout_seconds).unwrap_or_default(),
            contributors_max: self.contributors_max as usize,
            gradient_norm_max: self.gradient_norm_max as f32,
        }
    }
}

/// The weights of the file, but those that are changed. A name that the file does not have any more is of no effect.
fn weights_over(changed: &BTreeMap<String, f64>, file: &BTreeMap<String, f64>) -> BTreeMap<String, f64> {
    let now = |(name, weight): (&String, &f64)| (name.clone(), *changed.get(name).unwrap_or(weight));
    file.iter().map(now).collect()
}

fn check<T: PartialOrd + std::fmt::Display + Copy>(
    key: &'static str,
    change: Option<Option<T>>,
    want: RangeInclusive<T>,
) -> Result<(), SettingError> {
    match change.flatten() {
        Some(got) if !want.contains(&got) => {
            let want = format!("{} to {}", want.start(), want.end());
            Err(SettingError::Range { key, want, got: got.to_string() })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde_json::json;

    use super::*;

    fn file() -> EffectiveSettings {
        let limits = CollectionLimits {
            samples_per_second_max: 1000,
            collect_timeout: Duration::from_secs(5),
            contributors_max: 8,
            gradient_norm_max: 1000.0,
        };
        let weights = [("books", 1.0), ("web", 3.0)].map(|(name, weight)| (name.to_owned(), weight));
        EffectiveSettings::of(&limits, 10, weights.into())
    }

    #[test]
    fn what_is_named_changes_and_null_is_the_file_again() {
        let change = SettingsChange::of(&json!({"gradient_norm_max": 5, "contributors_max": 2})).unwrap();
        let settings = Settings::default().changed(&change, &file(), true).unwrap();
        let now = settings.over(&file());
        assert_eq!((now.gradient_norm_max, now.contributors_max), (5.0, 2));
        assert_eq!(now.limits().collect_timeout, Duration::from_secs(5));
        let back = SettingsChange::of(&json!({"gradient_norm_max": null})).unwrap();
        let settings = settings.changed(&back, &file(), true).unwrap();
        let now = settings.over(&file());
        assert_eq!((now.gradient_norm_max, now.contributors_max), (1000.0, 2));
    }

    #[test]
    fn a_file_that_allows_less_by_now_is_not_exceeded() {
        let settings = Settings { contributors_max: Some(8), ..Settings::default() };
        assert_eq!(settings.over(&EffectiveSettings { contributors_max: 3, ..file() }).contributors_max, 3);
    }

    #[test]
    fn what_cannot_be_says_why() {
        for (value, want) in [
            (json!({"target_batch_size": 5}), "description"),
            (json!({"learning_rate": 5}), "unknown field"),
            (json!({"contributors_max": "many"}), "invalid type"),
            (json!({"contributors_max": 1.5}), "invalid"),
            (json!({}), "no setting"),
            (json!([]), "an object"),
        ] {
            let error = SettingsChange::of(&value).unwrap_err().to_string();
            assert!(error.contains(want), "{value}: {error}");
        }
        for (value, is_alone, want) in [
            (json!({"contributors_max": 9}), true, "1 to 8"),
            (json!({"collect_timeout_seconds": 0}), true, "0.1 to 3600"),
            (json!({"gradient_norm_max": -1}), true, "is wanted"),
            (json!({"learning_rate_factor": 0.5}), false, "the same for all backbones"),
        ] {
            let change = SettingsChange::of(&value).unwrap();
            let error = Settings::default().changed(&change, &file(), is_alone).unwrap_err().to_string();
            assert!(error.contains(want), "{value}: {error}");
        }
    }

    /// The weights in force after one change, and another one.
    fn weights(changes: [serde_json::Value; 2]) -> Result<BTreeMap<String, f64>, String> {
        let mut settings = Settings::default();
        for value in changes {
            let change = SettingsChange::of(&value).map_err(|error| error.to_string())?;
            settings = settings.changed(&change, &file(), true).map_err(|error| error.to_string())?;
        }
        Ok(settings.over(&file()).stream_weights)
    }

    #[test]
    fn weights_change_by_the_names_of_their_sources() {
        let of = |books, web| Ok([("books".to_owned(), books), ("web".to_owned(), web)].into());
        let no_web = json!({"stream_weights": {"web": 0}});
        assert_eq!(weights([no_web.clone(), json!({"gradient_norm_max": 5})]), of(1.0, 0.0));
        assert_eq!(weights([no_web.clone(), json!({"stream_weights": {"books": 2.5}})]), of(2.5, 0.0));
        assert_eq!(weights([no_web.clone(), json!({"stream_weights": {"web": null}})]), of(1.0, 3.0));
        assert_eq!(weights([no_web.clone(), json!({"stream_weights": null})]), of(1.0, 3.0));
        for (value, want) in [
            (json!({"books": 0}), "0 for all sources"),
            (json!({"letters": 1}), "stream_weights.letters: there is no such source; there are books, web"),
            (json!({"books": -1}), "0 to 1000000000"),
            (json!({"books": "many"}), "invalid type"),
            (json!(3), "invalid type"),
        ] {
            let error = weights([no_web.clone(), json!({ "stream_weights": value })]).unwrap_err();
            assert!(error.contains(want), "{error}");
        }
        let change = SettingsChange::of(&no_web).unwrap();
        let whole = EffectiveSettings { stream_weights: BTreeMap::new(), ..file() };
        let error = Settings::default().changed(&change, &whole, true).unwrap_err().to_string();
        assert!(error.contains("no stream"), "{error}");
        let error = Settings::default().changed(&change, &file(), false).unwrap_err().to_string();
        assert!(error.contains("the same for all backbones"), "{error}");
        let kept = Settings::default().changed(&change, &file(), true).unwrap();
        assert_eq!(kept.among_others().over(&file()), file());
        let renamed = EffectiveSettings { stream_weights: [("letters".to_owned(), 2.0)].into(), ..file() };
        let kept = Settings::default().changed(&change, &file(), true).unwrap();
        assert_eq!(kept.over(&renamed).stream_weights, renamed.stream_weights);
    }
}
