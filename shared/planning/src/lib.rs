//! Who averages what: the linear program of roles (DeDLOC, section 3.2) and the groups (appendix C).
//!
//! Pure: measurements come in, a plan goes out. It never measures, opens a connection or decides when a round
//! begins, and it depends on no other crate of ours. (The solver times itself, and nothing reads the times;
//! on `wasm32-unknown-unknown` there is no clock for it, so a tab is sent its plan and never makes one.)
//!
//! ```
//! use barnraise_planning::{Peer, PeerId, Situation, Updates, Work};
//!
//! let peer = |name: &str, samples_per_s, bytes_per_s, is_reachable| Peer {
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
//! let work = Work {
//!     vector_bytes: 400_000,
//!     n_values: 200_000,
//!     target_batch_size: 256,
//!     part_values_min: 1000,
//!     updates: Updates::Delayed,
//! };
//! let plan = Situation::new(peers, &[], work)?.plan()?;
//! assert!(plan.roles.iter().all(|role| role.part.is_empty() || role.peer != PeerId("tab".into())));
//! assert_eq!(plan.steps_per_s, 80.0 / 256.0);
//! # Ok::<(), barnraise_planning::PlanError>(())
//! ```
//!
//! # How to use it in a run
//!
//! *What is measured.* Samples per second: the count of a peer's samples by the time it computed them, as it
//! already reports them, smoothed over a few epochs; 0 for one without an accelerator. Download and upload:
//! bytes of gradients by the time in which they moved, the greatest of the last few rounds, because a transfer
//! that waited for another peer says nothing of the link (`barnraise_swarm::bandwidth`). Reachable: what the node found
//! out when others tested its addresses; a peer behind a relay counts as not reachable, since its parts would
//! cross the relay. `receives`: everybody who trains or keeps the model. Pair limits: only for pairs that
//! were measured to be slower than both their links. The vector's bytes are those of the codec in use.
//!
//! *Who plans.* Everybody, from the same records (appendix B): each peer publishes its measurements, signed,
//! under the run and the epoch; when the round begins, those that expire after it are the peers. Whoever has
//! the same records has the same plan, to the last bit, in whichever order they came. A hash of the sorted
//! records names the plan: a reducer refuses parts that are sent under another name, and says which it has.
//! Measurements should be published with two or three digits: more are noise, and the plan is stable against
//! noise far below that, not against what moves by per cents.
//!
//! *How often.* When a peer joins or leaves, and else a few times per minute at most (the paper: about
//! twice). [`Situation::replan`] keeps the current plan unless another is faster by more than a given gain; a
//! tenth is a good beginning. `None` means: go on as before.
//!
//! *In a round* in which it turns out who has a gradient, [`Situation::plan_for`] divides the work for these.
//! Where planning fails, [`Situation::equal_parts`] needs no solver; whoever falls back must tell the others,
//! because two plans in one round are worse than a slow one.
//!
//! *Too many for one round*, or failing too often: [`groups::size::group_size_up_to`] says how many to a
//! group, [`groups::groups`] who, and each group plans for its own.

mod averaging;
mod change;
mod error;
mod linear;
mod parts;
mod plan;
mod relaxation;
mod search;
mod situation;

pub mod groups;

pub use change::is_worth_changing;
pub use error::PlanError;
pub use plan::{Limit, Plan, Role};
pub use relaxation::Relaxation;
pub use search::EXHAUSTIVE_MAX;
pub use situation::{PEERS_MAX, PairLimit, Peer, PeerId, Situation, Updates, Work};
