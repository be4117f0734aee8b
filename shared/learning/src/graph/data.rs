//! The data that a graph is computed on: its inputs, and the sizes that follow from it.

use barnraise_protocol::dataset::{ImageShape, RatingShape, TokenShape};
use barnraise_protocol::run::model::Size;
use barnraise_protocol::run::model::graph::{INPUT, ITEM, USER};

use super::error::GraphError;
use super::shape::ValueShape;
use crate::data_shape::{DataShape, RowTarget};

/// What a graph is computed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GraphData {
    /// Pictures, each of one class: the input is `[channels, height, width]`.
    Images {
        /// Of each picture.
        shape: ImageShape,
        /// Classes.
        n_classes: usize,
    },
    /// Sequences of tokens: the input is `[length]` ids.
    Tokens {
        /// Tokens of a sequence.
        length: usize,
        /// Ids.
        vocabulary: usize,
        /// Tokens of a sequence that are masked, in masked language modelling; none where the vocabulary has no mask.
        n_masked: usize,
    },
    /// Ratings of items by users: the inputs `user` and `item` are one id each, the target is one value.
    Ratings {
        /// Users.
        n_users: usize,
        /// Items.
        n_items: usize,
    },
    /// Rows of a table: the input is `[n_values]`.
    Rows {
        /// Values of a row.
        n_values: usize,
        /// What is to be told of a row.
        target: RowTarget,
    },
}

/// An input of a graph.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GraphInput {
    /// Its name in the graph.
    pub name: &'static str,
    /// Of one sample.
    pub shape: ValueShape,
}

impl From<DataShape> for GraphData {
    fn from(data: DataShape) -> Self {
        match data {
            DataShape::Images { shape, n_classes } => Self::Images { shape, n_classes },
            DataShape::Tokens(TokenShape { length, vocabulary, mask }) => {
                let (length, vocabulary) = (length.into(), vocabulary as usize);
                let n_masked = mask.map_or(0, |_| crate::masking::masked_per_sequence(length));
                Self::Tokens { length, vocabulary, n_masked }
            }
            DataShape::Rows { n_columns, target } => Self::Rows { n_values: n_columns, target },
            DataShape::Ratings(RatingShape { n_users, n_items }) => {
                Self::Ratings { n_users: n_users as usize, n_items: n_items as usize }
            }
        }
    }
}

impl GraphData {
    /// The inputs, in the order in which a batch has them.
    ///
    /// # Errors
    /// Data without content.
    pub fn inputs(&self) -> Result<Vec<GraphInput>, GraphError> {
        let input = |name, shape| GraphInput { name, shape };
        let id = |rows| ValueShape::Ids { shape: Vec::new(), rows };
        let some = |size: usize, what| if size == 0 { Err(GraphError::Data(what)) } else { Ok(size) };
        Ok(match *self {
            Self::Images { shape, .. } => {
                some(shape.n_values(), "pixels")?;
                let dims = [shape.channels, shape.height, shape.width].map(usize::from);
                vec![input(INPUT, ValueShape::Values(dims.to_vec()))]
            }
            Self::Tokens { length, vocabulary, .. } => {
                let (length, rows) = (some(length, "tokens")?, some(vocabulary, "vocabulary")?);
                vec![input(INPUT, ValueShape::Ids { shape: vec![length], rows })]
            }
            Self::Ratings { n_users, n_items } => {
                vec![input(USER, id(some(n_users, "users")?)), input(ITEM, id(some(n_items, "items")?))]
            }
            Self::Rows { n_values, .. } => {
                vec![input(INPUT, ValueShape::Values(vec![some(n_values, "columns")?]))]
            }
        })
    }

    /// What the data has of something; `None` where it has nothing of that kind.
    pub fn size(&self, size: Size) -> Option<usize> {
        let got = match (size, *self) {
            (Size::Fixed(size), _) => size as usize,
            (Size::Classes, Self::Images { n_classes, .. }) => n_classes,
            (Size::Classes, Self::Rows { target: RowTarget::Class(n_classes), .. }) => n_classes,
            (Size::Targets, Self::Rows { target: RowTarget::Values(n_values), .. }) => n_values,
            (Size::Targets, Self::Ratings { .. }) => 1,
            (Size::Vocabulary, Self::Tokens { vocabulary, .. }) => vocabulary,
            (Size::Length, Self::Tokens { length, .. }) => length,
            (Size::Users, Self::Ratings { n_users, .. }) => n_users,
            (Size::Items, Self::Ratings { n_items, .. }) => n_items,
            _ => return None,
        };
        Some(got)
    }

    /// In words, for an error.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Images { .. } => "pictures",
            Self::Tokens { .. } => "text",
            Self::Ratings { .. } => "ratings",
            Self::Rows { .. } => "tables",
        }
    }
}
