//! Any datagram of anybody, before it is known who sends it.

use std::net::SocketAddr;
use std::sync::OnceLock;
use std::time::Duration;

use barnraise_fuzz::fuzz;

use super::challenge::Challenge;
use super::client_hello::{is_dtls, put_known_group_first};
use crate::webrtc::greeting::ufrag_of;

#[test]
fn client_hello() {
    fuzz!("client_hello", |datagram| {
        let _ = is_dtls(datagram);
        let mut changed = datagram.to_vec();
        put_known_group_first(&mut changed);
        let sorted = |bytes: &[u8]| {
            let mut bytes = bytes.to_vec();
            bytes.sort_unstable();
            bytes
        };
        assert_eq!(sorted(&changed), sorted(datagram), "bytes change their places and nothing else");
        let mut again = changed.clone();
        put_known_group_first(&mut again);
        assert_eq!(again, changed, "the one that is first is known now");
    });
}

#[test]
fn greeting() {
    fuzz!("greeting", |datagram| {
        static CHALLENGE: OnceLock<Challenge> = OnceLock::new();
        let challenge = CHALLENGE.get_or_init(|| Challenge::new().unwrap());
        let (now, from) = (Duration::from_secs(1000), SocketAddr::from(([203, 0, 113, 7], 1)));
        assert!(!challenge.is_answered(now, from, datagram), "a guess is no answer");
        if let Some(question) = challenge.ask(now, from, datagram) {
            assert!(question.len() <= datagram.len(), "nobody is sent more than came");
            assert!(!challenge.is_answered(now, from, &question), "an echo is no answer");
        }
        if let Some(name) = ufrag_of(datagram) {
            assert!(
                name.len() <= 256 && !name.contains(['\r', '\n', ' ']),
                "{name:?} goes into a description"
            );
        }
    });
}
