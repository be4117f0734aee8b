//! MovieLens 100K (Harper and Konstan 2015): what 943 people gave 1,682 films, 100,000 ratings from 1 to 5.

use barnraise_protocol::dataset::RatingShape;

use super::spec::{FileSpec, hex, spec};

/// Display name.
pub(super) const NAME: &str = "MovieLens 100K";
/// People and films.
pub(super) const SHAPE: RatingShape = RatingShape { n_users: 943, n_items: 1682 };
/// The columns of the file, which has no head.
pub(super) const HEAD: &str = "user\titem\trating\ttime\n";

/// The file with the ratings.
pub(super) fn specs() -> Vec<FileSpec> {
    vec![spec("u.data", 1_979_173, hex("06416e597f82b7342361e41163890c81036900f418ad91315590814211dca490"))]
}
