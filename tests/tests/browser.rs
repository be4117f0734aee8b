//! The whole as a visitor meets it: the real page in real Chromium, with a real backbone behind it.
//!
//! Two processors carry everything, so the tests take turns. Each waits for what the page or the
//! run says of itself; how long that takes decides nothing, short of a hang.

#[path = "browser/village.rs"]
mod village;

#[path = "browser/access.rs"]
mod access;
#[path = "browser/bulk.rs"]
mod bulk;
#[path = "browser/contributing.rs"]
mod contributing;
#[path = "browser/devices.rs"]
mod devices;
#[path = "browser/harness.rs"]
mod harness;
#[path = "browser/moved.rs"]
mod moved;
#[path = "browser/preflight.rs"]
mod preflight;
#[path = "browser/trouble.rs"]
mod trouble;
#[path = "browser/visiting.rs"]
mod visiting;
#[path = "browser/ways.rs"]
mod ways;
