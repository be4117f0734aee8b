//! The HTTP server of a site.

use std::io;
use std::net::SocketAddr;

use axum::serve::ListenerExt;
use barnraise_relay::{Node, tasks};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::Site;
use crate::config::NetworkSection;
use crate::host::http_listener::BoundedListener;
use crate::host::visitors::Visitors;

/// It is aborted on drop.
pub(crate) type Serving = AbortOnDropHandle<io::Result<()>>;

/// Serves a site with the limits of its network until `stop`; then open requests are answered still. `node` counts the violations
/// of visitors.
pub(crate) fn serve(
    site: Site,
    http: TcpListener,
    network: &NetworkSection,
    node: Option<Node>,
    stop: CancellationToken,
) -> Serving {
    let per_minute = network.http_requests_per_address_and_minute;
    let visitors = Visitors::new(&network.trusted_proxies, per_minute, node.clone());
    let routes = site.with_visitors(visitors).routes();
    let http = BoundedListener::new(http, network.http_connections(), network.http_timeout, node);
    let http = http.shared(&network.trusted_proxies).tap_io(|_| ());
    tasks::spawn("page", async move {
        let routes = routes.into_make_service_with_connect_info::<SocketAddr>();
        axum::serve(http, routes).with_graceful_shutdown(stop.cancelled_owned()).await
    })
}
