//! The whole as a visitor meets it: the real page in real Chromium, with a real backbone behind it.
//!
//! Two processors carry everything, so the tests take turns. Each waits for what the page or the
//! run says of itself; how long that takes decides nothing, short of a hang.

#[path = "browser/support.rs"]
mod support;

#[path = "browser/access.rs"]
mod access;
#[path = "browser/bulk.rs"]
mod bulk;
#[path = "browser/contributing.rs"]
mod contributing;
#[path = "browser/devices.rs"]
mod devices;
#[path = "browser/enduring.rs"]
mod enduring;
#[path = "browser/experts.rs"]
mod experts;
#[path = "browser/harness.rs"]
mod harness;
#[path = "browser/limits.rs"]
mod limits;
#[path = "browser/looks.rs"]
mod looks;
#[path = "browser/moved.rs"]
mod moved;
#[path = "browser/newcomer.rs"]
mod newcomer;
#[path = "browser/offline.rs"]
mod offline;
#[path = "browser/photos.rs"]
mod photos;
#[path = "browser/preflight.rs"]
mod preflight;
#[path = "browser/private.rs"]
mod private;
#[path = "browser/receipts.rs"]
mod receipts;
#[path = "browser/runs.rs"]
mod runs;
#[path = "browser/sampled.rs"]
mod sampled;
#[path = "browser/stalled.rs"]
mod stalled;
#[path = "browser/states.rs"]
mod states;
#[path = "browser/streams.rs"]
mod streams;
#[path = "browser/tables.rs"]
mod tables;
#[path = "browser/tabs.rs"]
mod tabs;
#[path = "browser/texts.rs"]
mod texts;
#[path = "browser/transports.rs"]
mod transports;
#[path = "browser/trouble.rs"]
mod trouble;
#[path = "browser/upgraded.rs"]
mod upgraded;
#[path = "browser/visiting.rs"]
mod visiting;
