//! Any head of a request that a proxy passes on.

use std::net::IpAddr;

use barnraise_fuzz::fuzz;

use super::*;

#[test]
fn forwarded_head() {
    fuzz!("forwarded_head", |bytes| {
        let mut socket = futures::io::Cursor::new(bytes);
        let Ok(head) = futures::executor::block_on(read_head(&mut socket)) else { return };
        assert!(bytes.starts_with(&head) && head.len() < HEAD_BYTES_MAX + 2048);
        let (here, proxy) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([192, 0, 2, 1]));
        let proxies = TrustedProxies::new(&["10.0.0.0/8".parse().unwrap()]);
        let _ = proxies.visitor(here, forwarded_for(&head).into_iter());
        assert_eq!(
            proxies.visitor(proxy, forwarded_for(&head).into_iter()),
            proxy,
            "whom nobody trusts is itself"
        );
    });
}
