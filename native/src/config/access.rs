//! `[access]`: who may take part in a run.

use std::path::PathBuf;
use std::time::Duration;

use barnraise_protocol::access::{AccessMode, PublicKey};
use libp2p::Multiaddr;
use libp2p::multiaddr::Protocol;
use serde::{Deserialize, Serialize};

use super::Invalid;

/// `[access]`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AccessSection {
    /// Open to all peers, to those with an invitation, or to those on a list.
    pub mode: AccessMode,
    /// Address of the page as others see it, for links. Without a slash at its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page: Option<String>,
    /// Whether the page takes the codes of rooms, which `barnraise invite --room` makes.
    pub room: bool,
    /// Lifetime of a token. Peers renew it by themselves.
    #[serde(with = "humantime_serde")]
    pub token_lifetime: Duration,
    /// How far clocks may differ: `N` of DeDLOC appendix I.5.
    #[serde(with = "humantime_serde")]
    pub clock_tolerance: Duration,
    /// Interval at which revocations are fetched.
    #[serde(with = "humantime_serde")]
    pub poll_interval: Duration,
    /// Another backbone that grants access to this run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub authority: Option<Multiaddr>,
    /// The identity provider of a run with a list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oidc: Option<OidcSection>,
}

/// `[access.oidc]`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OidcSection {
    /// Issuer URL of an OpenID Connect provider, with its metadata at `/.well-known/openid-configuration` below.
    pub issuer: String,
    /// Id of this run at the provider. Its redirect address there: `/login/callback` below `access.page`.
    pub client_id: String,
    /// A file with the client secret; a public client has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_secret_file: Option<PathBuf>,
}

impl Default for AccessSection {
    fn default() -> Self {
        Self {
            mode: AccessMode::Open,
            page: None,
            room: false,
            token_lifetime: Duration::from_secs(24 * 3600),
            clock_tolerance: Duration::from_secs(30),
            poll_interval: Duration::from_secs(5),
            authority: None,
            oidc: None,
        }
    }
}

pub(super) fn validate(access: &AccessSection) -> Result<(), Invalid> {
    let seconds = |key, got: Duration, min: u64, max: u64, want| {
        let good = (Duration::from_secs(min)..=Duration::from_secs(max)).contains(&got);
        Invalid::check(key, good, want, format!("{got:?}"))
    };
    seconds("access.token_lifetime", access.token_lifetime, 3, 366 * 24 * 3600, "3s to 366 days")?;
    seconds("access.clock_tolerance", access.clock_tolerance, 1, 600, "1s to 10m")?;
    seconds("access.poll_interval", access.poll_interval, 1, 30, "1s to 30s, so that a minute is kept")?;
    if let Some(page) = &access.page {
        let good = is_web(page) && !page.ends_with('/');
        Invalid::check("access.page", good, "http:// or https:// with a host, no slash at its end", page)?;
    }
    if let Some(authority) = &access.authority {
        let has_key = match authority.iter().last() {
            Some(Protocol::P2p(peer)) => PublicKey::of_peer_id(&peer.to_bytes()).is_some(),
            _ => false,
        };
        let want = "it ends with /p2p/<peer id>; `barnraise id` prints a backbone's own";
        Invalid::check("access.authority", has_key, want, authority)?;
    }
    let may_have_rooms = access.mode == AccessMode::Invitation && access.authority.is_none();
    let want = "false, or mode = \"invitation\" without another authority";
    Invalid::check("access.room", !access.room || may_have_rooms, want, access.room)?;
    match &access.oidc {
        Some(oidc) => {
            Invalid::check(
                "access.oidc",
                is_web(&oidc.issuer),
                "an issuer with http:// or https://",
                &oidc.issuer,
            )?;
            Invalid::check("access.oidc", !oidc.client_id.is_empty(), "a client id", "\"\"")?;
            Invalid::check(
                "access.page",
                access.page.is_some(),
                "the page's address, to come back to",
                "(not given)",
            )
        }
        None if access.mode == AccessMode::Allowlist && access.authority.is_none() => Err(Invalid::new(
            "access.mode",
            "an identity provider in [access.oidc], or an authority",
            "allowlist",
        )),
        None => Ok(()),
    }
}

fn is_web(address: &str) -> bool {
    let uri: Result<axum::http::Uri, _> = address.parse();
    uri.is_ok_and(|uri| {
        matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some_and(|host| !host.is_empty())
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn what_cannot_work_is_named() {
        let oidc = || OidcSection {
            issuer: "https://id.example".into(),
            client_id: "barn".into(),
            client_secret_file: None,
        };
        let good = AccessSection {
            mode: AccessMode::Allowlist,
            page: Some("https://barn.example".into()),
            oidc: Some(oidc()),
            ..AccessSection::default()
        };
        assert_eq!(validate(&good), Ok(()));
        assert_eq!(validate(&AccessSection::default()), Ok(()));
        let room = AccessSection { mode: AccessMode::Invitation, room: true, ..AccessSection::default() };
        assert_eq!(validate(&room), Ok(()));
        type AccessEdit = fn(&mut AccessSection);
        let broken: [(&str, AccessEdit); 10] = [
            ("access.room", |access| access.room = true),
            ("access.mode", |access| access.oidc = None),
            ("access.page", |access| access.page = None),
            ("access.page", |access| access.page = Some("barn.example".into())),
            ("access.page", |access| access.page = Some("https://barn.example/".into())),
            ("access.token_lifetime", |access| access.token_lifetime = Duration::from_secs(1)),
            ("access.clock_tolerance", |access| access.clock_tolerance = Duration::ZERO),
            ("access.poll_interval", |access| access.poll_interval = Duration::from_secs(60)),
            ("access.authority", |access| {
                access.authority = Some("/ip4/192.0.2.1/tcp/4001".parse().unwrap());
            }),
            ("access.oidc", |access| access.oidc.as_mut().unwrap().issuer = "id".into()),
        ];
        for (key, break_it) in broken {
            let mut access = good.clone();
            break_it(&mut access);
            assert_eq!(validate(&access).unwrap_err().key, key);
        }
    }
}
