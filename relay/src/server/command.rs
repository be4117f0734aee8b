//! `barnraise relay` and `barnraise-relay`: from the file to the signal that ends it.

use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;

use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::{RelayConfig, RelayConfigError, RelayError, ServerAddresses, run};
use crate::signals;

/// Why the command failed.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// There is no usable configuration.
    #[error(transparent)]
    Config(#[from] RelayConfigError),
    /// The relay ended other than by being told to.
    #[error(transparent)]
    Relay(#[from] RelayError),
    /// It could not be told to end.
    #[error("cannot listen for signals: {0}")]
    Signals(std::io::Error),
}

/// Runs the relay of this file until Ctrl-C or SIGTERM; prints its addresses to standard output.
/// Needs what [`run`] needs.
///
/// # Errors
/// An unusable file, or any error that keeps the relay from starting.
pub async fn run_file(path: &Path) -> Result<(), CommandError> {
    let config = RelayConfig::load(path)?;
    let shutdown = CancellationToken::new();
    let cancel = shutdown.clone();
    let _signals = signals::listen(move || {
        tracing::info!("closing connections; once more to quit at once");
        cancel.cancel();
    })
    .map_err(CommandError::Signals)?;
    let (listening, here) = oneshot::channel();
    let mut running = Box::pin(run(config, listening, shutdown));
    tokio::select! {
        ended = &mut running => return Ok(ended?),
        Ok(here) = here => {
            // Nobody has to read it.
            let mut output = std::io::stdout().lock();
            let _ = output.write_all(announcement(&here).as_bytes()).and_then(|()| output.flush());
        }
    }
    Ok(running.await?)
}

fn announcement(here: &ServerAddresses) -> String {
    let addresses: String = here.addresses.iter().map(|address| format!("  {address}\n")).collect();
    format!("Peers are expected at\n{addresses}{}", operator_page(here.http))
}

/// The line that says where an operator looks.
#[must_use]
pub fn operator_page(http: SocketAddr) -> String {
    format!("The operator's page: http://{}/addresses, /healthz, /readyz, /metrics\n", page_address(http))
}

/// An address that a program on this machine can open.
#[must_use]
pub fn page_address(mut http: SocketAddr) -> SocketAddr {
    if http.ip().is_unspecified() {
        http.set_ip(IpAddr::V4(Ipv4Addr::LOCALHOST));
    }
    http
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn the_page_and_every_address_are_announced() {
        let here = ServerAddresses {
            http: "0.0.0.0:8081".parse().unwrap(),
            addresses: vec!["/ip4/127.0.0.1/tcp/4101".parse().unwrap()],
        };
        let text = announcement(&here);
        assert!(text.starts_with("Peers are expected at\n  /ip4/127.0.0.1/tcp/4101\n"), "{text}");
        assert!(text.contains("\nThe operator's page: http://127.0.0.1:8081/addresses"), "{text}");
    }
}
