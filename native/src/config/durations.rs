//! Serde of a list of durations in humantime syntax: `["10m", "1h"]`.

use std::time::Duration;

use humantime_serde::Serde;
use serde::{Deserialize, Deserializer, Serializer};

pub(super) fn serialize<S: Serializer>(durations: &[Duration], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(durations.iter().map(Serde::from))
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Duration>, D::Error> {
    let durations = Vec::<Serde<Duration>>::deserialize(deserializer)?;
    Ok(durations.into_iter().map(Serde::into_inner).collect())
}
