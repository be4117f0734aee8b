//! Reads and replaces the lines of a session description (SDP) that the libp2p WebRTC specification uses. Pure.

/// A line that is missing in an offer.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SdpError {
    /// No SHA-256 fingerprint of a certificate.
    #[error("no SHA-256 fingerprint of a certificate")]
    Fingerprint,
    /// No user fragment and password of ICE.
    #[error("no user fragment and password")]
    Credentials,
}

/// The offer with `ufrag` as user fragment and password. The listener identifies the dialer by it, since it never
/// sees the offer.
pub(crate) fn with_credentials(offer: &str, ufrag: &str) -> Result<String, SdpError> {
    let mut n_replaced = 0;
    let lines = offer.lines().map(|line| {
        let name = ["a=ice-ufrag:", "a=ice-pwd:"].into_iter().find(|name| line.starts_with(name));
        n_replaced += usize::from(name.is_some());
        name.map_or_else(|| format!("{line}\r\n"), |name| format!("{name}{ufrag}\r\n"))
    });
    let replaced: String = lines.collect();
    if n_replaced < 2 { Err(SdpError::Credentials) } else { Ok(replaced) }
}

/// The SHA-256 fingerprint of the certificate in the description.
pub(super) fn fingerprint(description: &str) -> Result<[u8; 32], SdpError> {
    let mut lines = description.lines();
    let written = lines.find_map(|line| line.strip_prefix("a=fingerprint:sha-256 "));
    let written = written.ok_or(SdpError::Fingerprint)?;
    let bytes: Option<Vec<u8>> =
        written.trim().split(':').map(|byte| u8::from_str_radix(byte, 16).ok()).collect();
    bytes.and_then(|bytes| bytes.try_into().ok()).ok_or(SdpError::Fingerprint)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const OFFER: &str = "v=0\r\nm=application 9 UDP/DTLS/SCTP webrtc-datachannel\r\na=ice-ufrag:abcd\r\n\
        a=ice-pwd:secret\r\na=ice-options:trickle\r\na=fingerprint:sha-256 00:01:02:03:04:05:06:07:08:09:\
        0A:0B:0C:0D:0E:0F:10:11:12:13:14:15:16:17:18:19:1A:1B:1C:1D:1E:FF\r\na=setup:actpass\r\n";

    #[test]
    fn credentials_are_replaced_and_nothing_else() {
        let replaced = with_credentials(OFFER, "libp2p+webrtc+v1/x").unwrap();
        let want = OFFER.replace("abcd", "libp2p+webrtc+v1/x").replace("secret", "libp2p+webrtc+v1/x");
        assert_eq!(replaced, want);
        assert_eq!(with_credentials("v=0\r\na=ice-ufrag:abcd\r\n", "x"), Err(SdpError::Credentials));
    }

    #[test]
    fn the_fingerprint_is_read_or_missed() {
        let found = fingerprint(OFFER).unwrap();
        assert_eq!((found[0], found[10], found[31]), (0, 10, 255));
        for broken in [
            OFFER.replace("sha-256", "sha-1"),
            OFFER.replace(":FF", ""),
            OFFER.replace(":FF", ":FG"),
            OFFER.replace(":FF", ":FF:00"),
            String::new(),
        ] {
            assert_eq!(fingerprint(&broken), Err(SdpError::Fingerprint), "{broken}");
        }
    }
}
