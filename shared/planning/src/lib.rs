//! Plans an averaging round: the linear program of roles (DeDLOC §3.2, appendix B) and the groups (appendix C).
//!
//! Pure: measurements come in, a plan goes out. It never measures, opens a connection or decides when a round
//! begins, and it depends on no other crate of ours. (The solver times itself, and nothing reads the times;
//! on `wasm32-unknown-unknown` there is no clock for it, so a tab receives its plan and never makes one.)
//!
//! ```
//! use barnraise_planning::{MeasuredPeer, PeerId, PlanningProblem, RoundWorkload, Updates};
//!
//! let peer = |name: &str, samples_per_s, bytes_per_s, is_reachable| MeasuredPeer {
//!     id: PeerId(name.into()),
//!     samples_per_s,
//!     download_bytes_per_s: bytes_per_s,
//!     upload_bytes_per_s: bytes_per_s,
//!     is_reachable,
//!     receives: true,
//! };
//! let peers = vec![
//!     peer("tab", 20.0, 2e6, false),
//!     peer("laptop", 60.0, 5e6, true),
//!     peer("server", 0.0, 1e8, true),
//! ];
//! let work = RoundWorkload {
//!     vector_bytes: 400_000,
//!     n_values: 200_000,
//!     target_batch_size: 256,
//!     part_values_min: 1000,
//!     updates: Updates::Delayed,
//! };
//! let plan = PlanningProblem::new(peers, &[], work)?.plan()?;
//! assert!(plan.roles.iter().all(|role| role.part.is_empty() || role.peer != PeerId("tab".into())));
//! assert_eq!(plan.steps_per_s, 80.0 / 256.0);
//! # Ok::<(), barnraise_planning::PlanError>(())
//! ```
//!
//! # How to use it in a run
//!
//! *Measurements.* Samples per second: a peer's samples divided by the time that it computed them, as it
//! reports them, smoothed over a few epochs; 0 without an accelerator. Download and upload:
//! bytes of gradients divided by the time in which they moved, the greatest of the last few rounds, because a transfer
//! that waits for another peer does not measure the link (`barnraise_swarm::bandwidth`). Reachable: the result of the
//! node's address tests; a peer behind a relay counts as not reachable, since its parts would
//! cross the relay. `receives`: peers that train or keep the model. Pair limits: only for pairs that
//! were measured to be slower than both their links. The vector's bytes are those of the codec in use.
//!
//! *Planners.* Every peer plans, from the same records (appendix B). Each peer publishes its measurements, signed,
//! under the run and the epoch. When the round begins, the records that expire after it are the peers. Peers with
//! the same records have the same plan, to the last bit, in any order of arrival. A hash of the sorted
//! records names the plan. A reducer refuses parts that are sent under another name, and answers with its own.
//! Measurements should be published with two or three digits. More digits are noise; the plan is stable against
//! noise far below that, but not against changes by per cents.
//!
//! *Frequency.* When a peer joins or leaves, and otherwise a few times per minute at most (the paper: about
//! twice). [`PlanningProblem::replan`] keeps the current plan unless another one is faster by more than a given gain, for
//! example a tenth. `None` means that the plan stays.
//!
//! *In a round* whose contributors are known, [`PlanningProblem::plan_for`] divides the vector for them.
//! Where planning fails, [`PlanningProblem::equal_parts`] needs no solver. A peer that falls back must tell the others,
//! because two plans in one round are worse than a slow one.
//!
//! *Many peers*, or peers that fail often: [`groups::size::group_size_up_to`] gives the group size and
//! [`groups::groups`] the members, and each group plans on its own.

mod averaging;
mod change;
mod error;
mod linear;
mod parts;
mod peer;
mod plan;
mod problem;
mod relaxation;
mod search;

pub mod groups;

pub use change::is_worth_changing;
pub use error::PlanError;
pub use peer::PeerId;
pub use plan::{AveragingPlan, Bottleneck, PeerRole};
pub use problem::{MeasuredPeer, PEERS_MAX, PairLimit, PlanningProblem, RoundWorkload, Updates};
pub use relaxation::Relaxation;
pub use search::EXHAUSTIVE_MAX;
