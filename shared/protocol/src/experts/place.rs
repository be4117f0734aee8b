//! Where an expert stands: its layer, and its place on the layer's grid (Learning@home §3.2).
//!
//! Nothing here is allocated: a place has at most [`DIMENSIONS_MAX`] indices.

use std::fmt;

use serde::de::{Error, SeqAccess, Visitor};
use serde::ser::SerializeSeq;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Most dimensions of a grid, the paper's d.
pub const DIMENSIONS_MAX: usize = 4;
/// Most places along a dimension, the paper's M. All next indices of a prefix fit into one dictionary of the DHT.
pub const GRID_SIDE_MAX: u16 = 512;

/// A layer of experts within the model. Layers are numbered in the order of the model's graph, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LayerId(pub u16);

/// The first indices of some experts, none to all of them; the empty prefix is that of every expert of a layer.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct ExpertPrefix {
    /// Those from `n_indices` on are 0.
    indices: [u16; DIMENSIONS_MAX],
    n_indices: u8,
}

/// Unique identifier of an expert within its layer: the indices `u_0` to `u_{d-1}` of its place, at least one. Shown as
/// `3.17.5`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "ExpertPrefix", into = "ExpertPrefix")]
pub struct ExpertUid(ExpertPrefix);

/// Where an expert stands: its layer, and its place there.
pub type ExpertPlace = (LayerId, ExpertUid);

/// A copy of an expert, below [`COPIES_MAX`](super::leases::COPIES_MAX): 0 is the expert itself, the others are its replicas.
pub type ExpertCopy = (ExpertPlace, u8);

/// Places along each dimension of a layer's grid; at least one dimension, each side 1 to [`GRID_SIDE_MAX`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GridShape {
    sides: [u16; DIMENSIONS_MAX],
    n_dimensions: u8,
}

/// Indices, or sides, that are no place on a grid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PlaceError {
    /// Too few or too many dimensions.
    #[error("{got} dimensions, a grid has 1 to {DIMENSIONS_MAX}")]
    Dimensions {
        /// What came.
        got: usize,
    },
    /// An index beyond the largest grid.
    #[error("index {got}, at most {max} is possible", max = GRID_SIDE_MAX - 1)]
    Index {
        /// What came.
        got: u16,
    },
    /// A dimension without places, or with too many.
    #[error("{got} places along a dimension, 1 to {GRID_SIDE_MAX} are possible")]
    Side {
        /// What came.
        got: u16,
    },
}

impl ExpertPrefix {
    /// The prefix of every expert of a layer.
    pub const EMPTY: Self = Self { indices: [0; DIMENSIONS_MAX], n_indices: 0 };

    /// A prefix of these indices.
    ///
    /// # Errors
    /// More than [`DIMENSIONS_MAX`] indices, or one that is not below [`GRID_SIDE_MAX`].
    pub fn new(indices: &[u16]) -> Result<Self, PlaceError> {
        let mut prefix = Self::EMPTY;
        for &index in indices {
            prefix = prefix.then(index)?;
        }
        Ok(prefix)
    }

    /// This prefix, longer by one index.
    ///
    /// # Errors
    /// As for [`Self::new`].
    pub fn then(mut self, index: u16) -> Result<Self, PlaceError> {
        if index >= GRID_SIDE_MAX {
            return Err(PlaceError::Index { got: index });
        }
        let at = self.len();
        *self.indices.get_mut(at).ok_or(PlaceError::Dimensions { got: at + 1 })? = index;
        self.n_indices += 1;
        Ok(self)
    }

    /// The indices.
    pub fn indices(&self) -> &[u16] {
        self.indices.get(..self.len()).unwrap_or_default()
    }

    /// Number of indices.
    pub fn len(&self) -> usize {
        usize::from(self.n_indices)
    }

    /// Whether it is the prefix of every expert.
    pub fn is_empty(&self) -> bool {
        self.n_indices == 0
    }
}

impl PartialOrd for ExpertPrefix {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ExpertPrefix {
    /// That of the indices, as of words.
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.indices().cmp(other.indices())
    }
}

impl fmt::Display for ExpertPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, index) in self.indices().iter().enumerate() {
            let separator = if at == 0 { "" } else { "." };
            write!(f, "{separator}{index}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for ExpertPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({self})")
    }
}

impl Serialize for ExpertPrefix {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut indices = serializer.serialize_seq(Some(self.len()))?;
        self.indices().iter().try_for_each(|index| indices.serialize_element(index))?;
        indices.end()
    }
}

impl<'de> Deserialize<'de> for ExpertPrefix {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Indices;
        impl<'de> Visitor<'de> for Indices {
            type Value = ExpertPrefix;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "at most {DIMENSIONS_MAX} indices below {GRID_SIDE_MAX}")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut indices: A) -> Result<ExpertPrefix, A::Error> {
                let mut prefix = ExpertPrefix::EMPTY;
                while let Some(index) = indices.next_element()? {
                    prefix = prefix.then(index).map_err(A::Error::custom)?;
                }
                Ok(prefix)
            }
        }
        deserializer.deserialize_seq(Indices)
    }
}

impl ExpertUid {
    /// The expert at these indices.
    ///
    /// # Errors
    /// No index or too many, or one that is not below [`GRID_SIDE_MAX`].
    pub fn new(indices: &[u16]) -> Result<Self, PlaceError> {
        ExpertPrefix::new(indices)?.try_into()
    }

    /// The indices.
    pub fn indices(&self) -> &[u16] {
        self.0.indices()
    }

    /// The first `n_indices` of them, or all.
    #[must_use]
    pub fn prefix(&self, n_indices: usize) -> ExpertPrefix {
        let mut prefix = self.0;
        prefix.n_indices = prefix.len().min(n_indices) as u8;
        prefix.indices.iter_mut().skip(n_indices).for_each(|index| *index = 0);
        prefix
    }

    /// Its last index, and the prefix before.
    #[must_use]
    pub fn leaf(&self) -> (ExpertPrefix, u16) {
        let before = self.0.len().saturating_sub(1);
        (self.prefix(before), self.indices().last().copied().unwrap_or_default())
    }
}

impl TryFrom<ExpertPrefix> for ExpertUid {
    type Error = PlaceError;

    fn try_from(prefix: ExpertPrefix) -> Result<Self, PlaceError> {
        if prefix.is_empty() { Err(PlaceError::Dimensions { got: 0 }) } else { Ok(Self(prefix)) }
    }
}

impl From<ExpertUid> for ExpertPrefix {
    fn from(uid: ExpertUid) -> Self {
        uid.0
    }
}

impl fmt::Display for ExpertUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for ExpertUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl GridShape {
    /// A grid with these sides.
    ///
    /// # Errors
    /// No side or too many, or one out of its range.
    pub fn new(sides: &[u16]) -> Result<Self, PlaceError> {
        let mut shape = Self { sides: [1; DIMENSIONS_MAX], n_dimensions: sides.len() as u8 };
        if sides.is_empty() || sides.len() > DIMENSIONS_MAX {
            return Err(PlaceError::Dimensions { got: sides.len() });
        }
        if let Some(&got) = sides.iter().find(|side| !(1..=GRID_SIDE_MAX).contains(side)) {
            return Err(PlaceError::Side { got });
        }
        shape.sides.iter_mut().zip(sides).for_each(|(to, side)| *to = *side);
        Ok(shape)
    }

    /// Places along each dimension.
    pub fn sides(&self) -> &[u16] {
        self.sides.get(..self.n_dimensions()).unwrap_or_default()
    }

    /// Number of dimensions, d.
    pub fn n_dimensions(&self) -> usize {
        usize::from(self.n_dimensions)
    }

    /// Scores of one input of the gating function: the sum of the sides.
    pub fn n_scores(&self) -> usize {
        self.sides().iter().map(|side| usize::from(*side)).sum()
    }

    /// Number of places.
    pub fn n_places(&self) -> u64 {
        self.sides().iter().map(|side| u64::from(*side)).product()
    }

    /// Whether an expert with this uid stands on the grid.
    pub fn contains(&self, uid: &ExpertUid) -> bool {
        let fits = |(index, side): (&u16, &u16)| index < side;
        uid.indices().len() == self.n_dimensions() && uid.indices().iter().zip(self.sides()).all(fits)
    }

    /// Number of a place, the last dimension the fastest; `None` off the grid.
    pub fn number(&self, uid: &ExpertUid) -> Option<u64> {
        let next = |number: u64, (index, side): (&u16, &u16)| number * u64::from(*side) + u64::from(*index);
        self.contains(uid).then(|| uid.indices().iter().zip(self.sides()).fold(0, next))
    }

    /// The place with this number; `None` beyond the last one.
    pub fn uid(&self, number: u64) -> Option<ExpertUid> {
        let (mut indices, mut rest) = ([0; DIMENSIONS_MAX], number);
        for (index, side) in indices.iter_mut().zip(self.sides()).rev() {
            *index = (rest % u64::from(*side)) as u16;
            rest /= u64::from(*side);
        }
        let uid = ExpertUid::new(indices.get(..self.n_dimensions())?).ok()?;
        (rest == 0).then_some(uid)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde::de::value::U32Deserializer;

    use super::*;
    use crate::framing;

    fn uid(indices: &[u16]) -> ExpertUid {
        ExpertUid::new(indices).unwrap()
    }

    #[test]
    fn a_uid_is_one_to_four_small_indices() {
        assert_eq!(uid(&[3, 17, 5]).to_string(), "3.17.5");
        assert_eq!(uid(&[511; 4]).indices(), [511; 4]);
        assert_eq!(ExpertUid::new(&[]), Err(PlaceError::Dimensions { got: 0 }));
        assert_eq!(ExpertUid::new(&[0; 5]), Err(PlaceError::Dimensions { got: 5 }));
        assert_eq!(ExpertUid::new(&[1, 512]), Err(PlaceError::Index { got: 512 }));
        let (prefix, last) = uid(&[3, 17, 5]).leaf();
        assert_eq!((prefix.indices(), last), (&[3, 17][..], 5));
        assert_eq!(uid(&[3, 17, 5]).prefix(1), ExpertPrefix::new(&[3]).unwrap());
        assert_eq!(uid(&[3]).prefix(9), ExpertPrefix::new(&[3]).unwrap());
        assert_eq!(uid(&[4]).leaf(), (ExpertPrefix::EMPTY, 4));
    }

    #[test]
    fn no_more_indices_are_read_than_there_may_be() {
        let of = |bytes: &[u8]| framing::decode_payload::<ExpertUid>(bytes).ok();
        assert_eq!(of(&[3, 3, 17, 5]), Some(uid(&[3, 17, 5])));
        assert_eq!(of(&[1, 0xff, 0x03]), Some(uid(&[511])));
        for bad in [&[0][..], &[1, 0x80, 0x04], &[5, 1, 1, 1, 1, 1], &[0xff, 0xff, 0xff, 0xff, 0x0f, 1]] {
            assert_eq!(of(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn what_is_no_list_of_indices_is_told_what_is_wanted() {
        let number = U32Deserializer::<serde::de::value::Error>::new(7);
        let error = ExpertPrefix::deserialize(number).unwrap_err();
        let want = "invalid type: integer `7`, expected at most 4 indices below 512";
        assert_eq!(error.to_string(), want);
    }

    #[test]
    fn a_grid_has_sides_within_their_range() {
        assert_eq!(GridShape::new(&[]), Err(PlaceError::Dimensions { got: 0 }));
        assert_eq!(GridShape::new(&[2; 5]), Err(PlaceError::Dimensions { got: 5 }));
        assert_eq!(GridShape::new(&[2, 0]), Err(PlaceError::Side { got: 0 }));
        assert_eq!(GridShape::new(&[2, 513]), Err(PlaceError::Side { got: 513 }));
        let shape = GridShape::new(&[4, 3]).unwrap();
        assert_eq!((shape.n_scores(), shape.n_dimensions(), shape.n_places()), (7, 2, 12));
        assert_eq!(GridShape::new(&[512; 4]).unwrap().n_places(), 1 << 36);
        assert!(
            shape.contains(&uid(&[3, 2])) && !shape.contains(&uid(&[2, 3])) && !shape.contains(&uid(&[1]))
        );
        assert_eq!(shape.number(&uid(&[2, 1])), Some(7));
        assert_eq!((shape.uid(7), shape.uid(12)), (Some(uid(&[2, 1])), None));
        assert_eq!(GridShape::new(&[512; 4]).unwrap().uid((1 << 36) - 1), Some(uid(&[511; 4])));
    }

    proptest! {
        #[test]
        fn numbers_are_in_the_order_of_uids(sides in proptest::collection::vec(1u16..6, 1..4)) {
            let shape = GridShape::new(&sides).unwrap();
            let n_places: u64 = sides.iter().map(|side| u64::from(*side)).product();
            let uids: Vec<ExpertUid> = (0..n_places).map(|number| shape.uid(number).unwrap()).collect();
            prop_assert!(uids.is_sorted() && uids.iter().all(|uid| shape.contains(uid)));
            for (number, uid) in (0..).zip(&uids) {
                prop_assert_eq!(shape.number(uid), Some(number));
            }
        }
    }
}
