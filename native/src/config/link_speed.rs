//! The speed of a link in a configuration: measured, or fixed.

use std::fmt;
use std::str::FromStr;

use bytesize::ByteSize;
use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

const AUTO: &str = "auto";

/// Bytes per second of one direction of a link.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LinkSpeed {
    /// Measured by averagings; [`LinkSpeed::UNMEASURED`] until one of them has.
    #[default]
    Auto,
    /// Fixed; measurements are ignored.
    Fixed(ByteSize),
}

impl LinkSpeed {
    /// Assumed speed of a link before it was measured.
    pub const UNMEASURED: ByteSize = ByteSize::mib(12);
}

/// A text that is no speed.
#[derive(Debug, thiserror::Error)]
#[error("want \"{AUTO}\" or a size such as \"12 MiB\", got {got:?}: {reason}")]
pub struct LinkSpeedError {
    got: String,
    /// In the words of `bytesize`, which has no other error.
    reason: String,
}

impl FromStr for LinkSpeed {
    type Err = LinkSpeedError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == AUTO {
            return Ok(Self::Auto);
        }
        let speed = text.parse::<ByteSize>().map(Self::Fixed);
        speed.map_err(|reason| LinkSpeedError { got: text.to_owned(), reason })
    }
}

impl fmt::Display for LinkSpeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str(AUTO),
            Self::Fixed(speed) => fmt::Display::fmt(speed, f),
        }
    }
}

impl Serialize for LinkSpeed {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for LinkSpeed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(OfText)
    }
}

/// Deserializes a text, or a number of bytes.
struct OfText;

impl Visitor<'_> for OfText {
    type Value = LinkSpeed;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{AUTO}\" or bytes per second, such as \"12 MiB\"")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<LinkSpeed, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_u64<E: Error>(self, bytes_per_s: u64) -> Result<LinkSpeed, E> {
        Ok(LinkSpeed::Fixed(ByteSize(bytes_per_s)))
    }

    fn visit_i64<E: Error>(self, bytes_per_s: i64) -> Result<LinkSpeed, E> {
        match u64::try_from(bytes_per_s) {
            Ok(bytes_per_s) => self.visit_u64(bytes_per_s),
            Err(_) => Err(E::invalid_value(Unexpected::Signed(bytes_per_s), &self)),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[derive(Debug, Serialize, Deserialize)]
    struct Section {
        speed: LinkSpeed,
    }

    fn read(value: &str) -> Result<LinkSpeed, String> {
        let section = toml::from_str::<Section>(&format!("speed = {value}"));
        section.map(|section| section.speed).map_err(|error| error.message().to_owned())
    }

    #[test]
    fn it_is_measured_or_a_size_and_nothing_else() {
        assert_eq!(read("\"auto\""), Ok(LinkSpeed::Auto));
        assert_eq!(read("\"12 MiB\""), Ok(LinkSpeed::Fixed(ByteSize::mib(12))));
        assert_eq!(read("125000"), Ok(LinkSpeed::Fixed(ByteSize(125_000))));
        for wrong in ["\"fast\"", "\"12 parsecs\"", "-1", "1.5", "true", "\"\""] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
        let error = read("\"fast\"").unwrap_err();
        assert!(error.contains("\"auto\"") && error.contains("12 MiB") && error.contains("fast"), "{error}");
    }

    #[test]
    fn what_is_written_reads_back() {
        for speed in
            [LinkSpeed::Auto, LinkSpeed::Fixed(ByteSize::kib(64)), LinkSpeed::Fixed(ByteSize(1_000_001))]
        {
            let written = toml::to_string(&Section { speed }).unwrap();
            let read = toml::from_str::<Section>(&written).unwrap().speed;
            match (speed, read) {
                // Sizes are written with one digit after the point.
                (LinkSpeed::Fixed(speed), LinkSpeed::Fixed(read)) => {
                    assert!(read.as_u64().abs_diff(speed.as_u64()) < speed.as_u64() / 20, "{written}");
                }
                (speed, read) => assert_eq!(read, speed),
            }
        }
    }
}
