//! `barnraise top`: a run, live, in a terminal. A program without `operations` has the command, and no view.

#[cfg(feature = "operations")]
mod screen;

use clap::Args;

#[cfg(feature = "operations")]
pub use self::screen::run;
use crate::peer::args::{JoinAddress, JoinAddressError};

/// `barnraise top`
#[derive(Debug, Args)]
pub struct TopArgs {
    /// The run: the address of its page, http://host:8080
    #[arg(value_parser = page)]
    pub address: String,
    /// The operator's page of its backbone, http://127.0.0.1:8082, for links, bandwidth and violations
    #[arg(long, value_name = "ADDRESS", value_parser = page)]
    pub operator: Option<String>,
    /// Print one frame as text and end
    #[arg(long)]
    pub once: bool,
}

/// Why an address is not that of a page.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum PageAddressError {
    #[error("http:// or https:// is wanted, got a multiaddress")]
    Multiaddress,
    #[error(transparent)]
    Join(#[from] JoinAddressError),
}

fn page(text: &str) -> Result<String, PageAddressError> {
    match text.parse::<JoinAddress>()? {
        JoinAddress::Page(page) => Ok(page),
        JoinAddress::Peer(_) | JoinAddress::Here(_) => Err(PageAddressError::Multiaddress),
    }
}

/// Says that this program was built without it.
///
/// # Errors
/// Always.
#[cfg(not(feature = "operations"))]
pub fn run(_: &TopArgs) -> anyhow::Result<String> {
    anyhow::bail!("this program was built without `top`: `cargo xtask build --release` builds one with it")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_watched_by_its_page() {
        assert_eq!(page("http://127.0.0.1:8080/"), Ok("http://127.0.0.1:8080".into()));
        assert!(page("/ip4/127.0.0.1/tcp/4001").is_err() && page("127.0.0.1:8080").is_err());
    }
}
