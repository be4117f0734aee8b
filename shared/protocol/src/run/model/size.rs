//! Sizes of a graph that may follow from the data.

use std::fmt;

use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};

/// A size: a number, or what the data has of something, so that one graph serves data of many sizes.
///
/// In TOML an integer or a name, such as `120` or `"classes"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Size {
    /// This many.
    Fixed(u32),
    /// Classes of the labels.
    Classes,
    /// Values that are predicted of a sample, in a regression.
    Targets,
    /// Ids of the vocabulary.
    Vocabulary,
    /// Tokens of a sequence.
    Length,
    /// Users who rated.
    Users,
    /// Items that were rated.
    Items,
}

/// [`Size`] where the format knows no types.
#[derive(Serialize, Deserialize)]
enum BinarySize {
    Fixed(u32),
    Classes,
    Targets,
    Vocabulary,
    Length,
    Users,
    Items,
}

/// Those that follow from the data, with their names.
const NAMES: [(Size, &str); 6] = [
    (Size::Classes, "classes"),
    (Size::Targets, "targets"),
    (Size::Vocabulary, "vocabulary"),
    (Size::Length, "length"),
    (Size::Users, "users"),
    (Size::Items, "items"),
];

impl From<u32> for Size {
    fn from(size: u32) -> Self {
        Self::Fixed(size)
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self, NAMES.iter().find(|(size, _)| size == self)) {
            (Self::Fixed(size), _) => write!(f, "{size}"),
            (_, Some((_, name))) => f.write_str(name),
            (_, None) => Ok(()),
        }
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            return match self {
                Self::Fixed(size) => serializer.serialize_u32(*size),
                named => serializer.collect_str(named),
            };
        }
        let binary = match *self {
            Self::Fixed(size) => BinarySize::Fixed(size),
            Self::Classes => BinarySize::Classes,
            Self::Targets => BinarySize::Targets,
            Self::Vocabulary => BinarySize::Vocabulary,
            Self::Length => BinarySize::Length,
            Self::Users => BinarySize::Users,
            Self::Items => BinarySize::Items,
        };
        binary.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            return deserializer.deserialize_any(SizeVisitor);
        }
        Ok(match BinarySize::deserialize(deserializer)? {
            BinarySize::Fixed(size) => Self::Fixed(size),
            BinarySize::Classes => Self::Classes,
            BinarySize::Targets => Self::Targets,
            BinarySize::Vocabulary => Self::Vocabulary,
            BinarySize::Length => Self::Length,
            BinarySize::Users => Self::Users,
            BinarySize::Items => Self::Items,
        })
    }
}

struct SizeVisitor;

impl Visitor<'_> for SizeVisitor {
    type Value = Size;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number, or one of")?;
        NAMES.iter().try_for_each(|(_, name)| write!(f, " `{name}`"))
    }

    fn visit_u64<E: de::Error>(self, size: u64) -> Result<Size, E> {
        let fixed = u32::try_from(size).map(Size::Fixed);
        fixed.map_err(|_| E::invalid_value(de::Unexpected::Unsigned(size), &self))
    }

    fn visit_i64<E: de::Error>(self, size: i64) -> Result<Size, E> {
        let fixed = u32::try_from(size).map(Size::Fixed);
        fixed.map_err(|_| E::invalid_value(de::Unexpected::Signed(size), &self))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Size, E> {
        let named = NAMES.iter().find(|(_, name)| *name == text).map(|(size, _)| *size);
        named.ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
    }
}
