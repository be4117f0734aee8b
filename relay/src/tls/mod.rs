//! Security of plain TCP: TLS 1.3 as libp2p specifies it, or Noise with peers that know no TLS.
//!
//! TLS comes first because processors have instructions for AES-GCM, which no cipher of Noise in libp2p uses.
//! `libp2p-tls` makes and reads the certificates; it always asks for ChaCha20 first, so the configuration is
//! ours. Sessions are never resumed: each handshake proves both keys anew, and nothing is kept between them.

mod platform;
#[cfg(test)]
mod tests;
mod verifier;

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use futures::future::{BoxFuture, Either};
use futures::{AsyncRead, AsyncWrite, FutureExt as _};
use futures_rustls::{TlsAcceptor, TlsConnector, TlsStream};
use libp2p::core::upgrade::{InboundConnectionUpgrade, OutboundConnectionUpgrade, UpgradeInfo};
use libp2p::identity::Keypair;
use libp2p::{PeerId, noise};
use libp2p_tls::certificate;
use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;
use rustls::crypto::ring;
use rustls::crypto::ring::cipher_suite::{
    TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256,
};
use rustls::pki_types::ServerName;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::TLS13;
use rustls::{ClientConfig, CommonState, ServerConfig, SupportedCipherSuite};

use self::verifier::Verifier;

const TLS: &str = "/tls/1.0.0";
const NOISE: &str = "/noise";
/// What ALPN names where the muxer is negotiated after the handshake.
const ALPN: &[u8] = b"libp2p";

/// A stream that is secured by TLS or Noise.
pub(crate) type Secured<C> = Either<TlsStream<C>, noise::Output<C>>;
type Handshake<C> = BoxFuture<'static, Result<(PeerId, Secured<C>), SecurityError>>;

/// The security protocols that libp2p negotiates, the preferred one first.
#[derive(Clone)]
pub(crate) struct Security {
    tls: Option<Tls>,
    noise: noise::Config,
}

#[derive(Clone)]
struct Tls {
    connector: TlsConnector,
    acceptor: TlsAcceptor,
}

/// Why there is no TLS with a key pair.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TlsError {
    #[error(transparent)]
    Certificate(#[from] certificate::GenError),
    #[error(transparent)]
    Configuration(#[from] rustls::Error),
}

/// Why a handshake failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SecurityError {
    #[error("TLS handshake: {0}")]
    Tls(#[from] io::Error),
    #[error("TLS handshake: {0}")]
    Certificate(#[from] certificate::ParseError),
    #[error("TLS handshake: want one certificate, got {0}")]
    Certificates(usize),
    #[error("Noise handshake: {0}")]
    Noise(#[from] noise::Error),
}

impl Security {
    /// Noise alone, which browsers speak over WebSockets, and peers through a relay.
    pub(crate) fn noise(noise: noise::Config) -> Self {
        Self { tls: None, noise }
    }

    /// TLS first, then Noise.
    ///
    /// # Errors
    /// `keypair` cannot sign.
    pub(crate) fn tls_or_noise(keypair: &Keypair, noise: noise::Config) -> Result<Self, TlsError> {
        let (certificate, key) = certificate::generate(keypair)?;
        let certified = Arc::new(CertifiedKey::new(vec![certificate], ring::sign::any_ecdsa_type(&key)?));
        let connector = Arc::new(client_config(Arc::clone(&certified))?).into();
        let acceptor = Arc::new(server_config(certified)?).into();
        Ok(Self { tls: Some(Tls { connector, acceptor }), noise })
    }
}

impl UpgradeInfo for Security {
    type Info = &'static str;
    type InfoIter = Vec<Self::Info>;

    fn protocol_info(&self) -> Self::InfoIter {
        if self.tls.is_some() { vec![TLS, NOISE] } else { vec![NOISE] }
    }
}

impl<C> InboundConnectionUpgrade<C> for Security
where
    C: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    type Output = (PeerId, Secured<C>);
    type Error = SecurityError;
    type Future = Handshake<C>;

    fn upgrade_inbound(self, socket: C, protocol: Self::Info) -> Self::Future {
        async move {
            let Some(tls) = self.tls.filter(|_| protocol == TLS) else {
                let (peer, stream) = self.noise.upgrade_inbound(socket, NOISE).await?;
                return Ok((peer, Either::Right(stream)));
            };
            let stream = tls.acceptor.accept(socket).await?;
            let peer = attested(stream.get_ref().1)?;
            Ok((peer, Either::Left(stream.into())))
        }
        .boxed()
    }
}

impl<C> OutboundConnectionUpgrade<C> for Security
where
    C: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    type Output = (PeerId, Secured<C>);
    type Error = SecurityError;
    type Future = Handshake<C>;

    fn upgrade_outbound(self, socket: C, protocol: Self::Info) -> Self::Future {
        async move {
            let Some(tls) = self.tls.filter(|_| protocol == TLS) else {
                let (peer, stream) = self.noise.upgrade_outbound(socket, NOISE).await?;
                return Ok((peer, Either::Right(stream)));
            };
            let stream = tls.connector.connect(nobody(), socket).await?;
            let peer = attested(stream.get_ref().1)?;
            Ok((peer, Either::Left(stream.into())))
        }
        .boxed()
    }
}

/// An address, so that no name is sent (SNI), which the specification keeps for later versions.
fn nobody() -> ServerName<'static> {
    ServerName::IpAddress(IpAddr::V4(Ipv4Addr::UNSPECIFIED).into())
}

/// The peer id that the handshake's certificate attests.
fn attested(session: &CommonState) -> Result<PeerId, SecurityError> {
    match session.peer_certificates() {
        Some([one]) => Ok(certificate::parse(one)?.peer_id()),
        others => Err(SecurityError::Certificates(others.map_or(0, <[_]>::len))),
    }
}

fn client_config(certified: Arc<CertifiedKey>) -> Result<ClientConfig, rustls::Error> {
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Verifier))
        .with_client_cert_resolver(Arc::new(SingleCertAndKey::from(certified)));
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.resumption = Resumption::disabled();
    Ok(config)
}

fn server_config(certified: Arc<CertifiedKey>) -> Result<ServerConfig, rustls::Error> {
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])?
        .with_client_cert_verifier(Arc::new(Verifier))
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(certified)));
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.send_tls13_tickets = 0;
    Ok(config)
}

fn provider() -> Arc<CryptoProvider> {
    let mut provider = ring::default_provider();
    provider.cipher_suites = cipher_suites(platform::has_aes_instructions()).to_vec();
    Arc::new(provider)
}

/// In the order in which a dialer asks for them; a listener takes the first of the dialer's.
fn cipher_suites(has_aes_instructions: bool) -> [SupportedCipherSuite; 3] {
    if has_aes_instructions {
        [TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256]
    } else {
        [TLS13_CHACHA20_POLY1305_SHA256, TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384]
    }
}
