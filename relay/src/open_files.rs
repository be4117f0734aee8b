//! Checks that the system's limit on open files fits the configured number of connections.
//!
//! It only warns: raising the limit is up to the operator.

/// Beside the connections: listeners, certificates, storage, the operator's page.
const OTHER_FILES: u64 = 128;

/// Warns where `connections` may meet the system's limit on open files. Each connection over TCP, WebSocket
/// or WebRTC takes one; QUIC and WebTransport share their listener's socket.
pub fn warn_about_open_files(connections: u32) {
    let wanted = u64::from(connections) + OTHER_FILES;
    // Elsewhere than on Linux nobody can tell.
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    if let Some(allowed) = soft_limit(&limits).filter(|&allowed| allowed < wanted) {
        tracing::warn!(
            connections,
            allowed,
            wanted,
            "limits.connections may need more open files than this process may have: \
             raise it with `ulimit -n {wanted}`, or LimitNOFILE={wanted} for systemd"
        );
    }
}

/// The soft limit on open files in a text like that of `/proc/self/limits`; `None` where there is none.
fn soft_limit(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    // "unlimited" is no number.
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_read_as_linux_writes_it() {
        let limits = "Limit                     Soft Limit           Hard Limit           Units     \n\
                      Max processes             95866                95866                processes \n\
                      Max open files            1024                 524288               files     \n";
        assert_eq!(soft_limit(limits), Some(1024));
        assert_eq!(
            soft_limit("Max open files            unlimited            unlimited            files"),
            None
        );
        assert_eq!(soft_limit(""), None);
    }
}
