//! Models of ratings.

use crate::run::model::Size;
use crate::run::model::graph::{Block, Graph, ITEM, Loss, USER};
use crate::run::model::operation::{Embedding, Initial, Operation};

/// Bound of the first factors: their products begin near zero, beside the mean rating.
const FACTOR_BOUND: f32 = 0.1;

/// A rating is the dot product of the factors of user and item, plus a bias of each, plus the mean (Koren et al. 2009,
/// eq. 4).
pub(super) fn matrix_factorization(factors: u32) -> Graph {
    let table = |name: &str, rows: Size, width: u32, bound: f32, of: &str| {
        let initial = Initial::Uniform(bound);
        Block::new(name, Operation::Embedding(Embedding { rows, width, initial })).from(&[of])
    };
    let blocks = vec![
        table("user_factors", Size::Users, factors, FACTOR_BOUND, USER),
        table("item_factors", Size::Items, factors, FACTOR_BOUND, ITEM),
        Block::new("product", Operation::DotProduct).from(&["user_factors", "item_factors"]),
        table("user_bias", Size::Users, 1, 0.0, USER),
        table("item_bias", Size::Items, 1, 0.0, ITEM),
        Block::new("sum", Operation::Add).from(&["product", "user_bias", "item_bias"]),
        Block::new("mean", Operation::Bias),
    ];
    Graph {
        name: format!("matrix factorization, {factors} factors"),
        parts: Vec::new(),
        blocks,
        loss: Loss::Regression,
    }
}
