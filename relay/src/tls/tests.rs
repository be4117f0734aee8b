//! Handshakes in memory: honest ones, and those of a peer that claims another peer's id.

use futures::{AsyncReadExt as _, AsyncWriteExt as _};
use rcgen::{CertificateParams, CustomExtension, KeyPair, PublicKeyData as _};
use rustls::CipherSuite;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::version::TLS12;
use tokio::io::DuplexStream;
use tokio_util::compat::{Compat, TokioAsyncReadCompatExt as _};

use super::*;

type Pipe = Compat<DuplexStream>;

fn pipe() -> (Pipe, Pipe) {
    let (near, far) = tokio::io::duplex(64 * 1024);
    (near.compat(), far.compat())
}

fn security(keypair: &Keypair) -> Security {
    Security::tls_or_noise(keypair, noise::Config::new(keypair).unwrap()).unwrap()
}

/// What the libp2p extension holds: a key, and its signature.
fn signed_key(keypair: &Keypair, message: &[u8]) -> Vec<u8> {
    let (public, signature) = (keypair.public().encode_protobuf(), keypair.sign(message).unwrap());
    let octets = |bytes: &[u8]| [&[4, u8::try_from(bytes.len()).unwrap()][..], bytes].concat();
    let content = [octets(&public), octets(&signature)].concat();
    assert!(content.len() < 128, "one byte of length");
    [&[0x30, u8::try_from(content.len()).unwrap()][..], &content[..]].concat()
}

fn params(extension: Option<Vec<u8>>) -> CertificateParams {
    let oid = [1, 3, 6, 1, 4, 1, 53594, 1, 1];
    let extension = extension.map(|content| CustomExtension::from_oid_content(&oid, content));
    let mut params = CertificateParams::default();
    params.custom_extensions.extend(extension);
    params
}

fn binding(key: &KeyPair) -> Vec<u8> {
    [&b"libp2p-tls-handshake:"[..], &key.subject_public_key_info()].concat()
}

fn honest_params(keypair: &Keypair, key: &KeyPair) -> CertificateParams {
    params(Some(signed_key(keypair, &binding(key))))
}

fn self_signed(params: &CertificateParams, key: &KeyPair) -> CertificateDer<'static> {
    params.self_signed(key).unwrap().der().clone()
}

fn certified(certificates: Vec<CertificateDer<'static>>, key: &KeyPair) -> Arc<CertifiedKey> {
    let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
    Arc::new(CertifiedKey::new(certificates, ring::sign::any_ecdsa_type(&key).unwrap()))
}

/// The answer of an honest node to a client that dials it with `config`.
async fn answered(config: ClientConfig) -> Result<PeerId, SecurityError> {
    let (near, far) = pipe();
    let dialling = TlsConnector::from(Arc::new(config)).connect(nobody(), far);
    let listener = security(&Keypair::generate_ed25519());
    let (answered, _dialled) = tokio::join!(listener.upgrade_inbound(near, TLS), dialling);
    answered.map(|(peer, _)| peer)
}

/// Likewise to a server that it dials.
async fn dialled(config: ServerConfig) -> Result<PeerId, SecurityError> {
    let (near, far) = pipe();
    let answering = TlsAcceptor::from(Arc::new(config)).accept(far);
    let dialer = security(&Keypair::generate_ed25519());
    let (dialled, _answered) = tokio::join!(dialer.upgrade_outbound(near, TLS), answering);
    dialled.map(|(peer, _)| peer)
}

/// The peer ids that both sides of a handshake with this certificate see.
async fn known_as(certified: Arc<CertifiedKey>) -> [Result<PeerId, SecurityError>; 2] {
    let answered = answered(client_config(Arc::clone(&certified)).unwrap()).await;
    [answered, dialled(server_config(certified).unwrap()).await]
}

#[tokio::test]
async fn a_certificate_that_the_peer_signed_attests_it() {
    let (keypair, key) = (Keypair::generate_ed25519(), KeyPair::generate().unwrap());
    let certificate = self_signed(&honest_params(&keypair, &key), &key);
    for known in known_as(certified(vec![certificate], &key)).await {
        assert_eq!(known.unwrap(), keypair.public().to_peer_id());
    }
}

#[tokio::test]
async fn a_certificate_that_attests_nobody_is_refused() {
    let (keypair, key) = (Keypair::generate_ed25519(), KeyPair::generate().unwrap());
    let other_key = KeyPair::generate().unwrap();
    let honest = honest_params(&keypair, &key);
    let certificate = self_signed(&honest, &key);

    // A peer that claims another's id has everything but its signature.
    let mut stolen_name = signed_key(&keypair, &binding(&key));
    let in_signature = stolen_name.len() - 40;
    stolen_name[in_signature] ^= 1;
    let mut expired = honest.clone();
    expired.not_after = rcgen::date_time_ymd(2000, 1, 1);
    let mut early = honest.clone();
    early.not_before = rcgen::date_time_ymd(4000, 1, 1);
    let mut not_self_signed = certificate.to_vec();
    *not_self_signed.last_mut().unwrap() ^= 1;
    let mut twice_signed = honest.clone();
    twice_signed.custom_extensions.extend(honest.custom_extensions.clone());
    let mut unknown = CustomExtension::from_oid_content(&[1, 3, 6, 1, 4, 1, 53594, 1, 2], vec![4, 0]);
    unknown.set_criticality(true);
    let mut critical = honest.clone();
    critical.custom_extensions.push(unknown);

    let alone = |params: &CertificateParams| certified(vec![self_signed(params, &key)], &key);
    let refused = [
        ("no extension", alone(&params(None))),
        ("a wrong signature in the extension", alone(&params(Some(stolen_name)))),
        (
            "a signature for another certificate's key",
            alone(&params(Some(signed_key(&keypair, &binding(&other_key))))),
        ),
        ("an extension that is none", alone(&params(Some(vec![4, 3, 1, 2, 3])))),
        ("two extensions", alone(&twice_signed)),
        ("a critical extension that nobody knows", alone(&critical)),
        ("a certificate that has expired", alone(&expired)),
        ("a certificate of later", alone(&early)),
        ("a wrong signature under it", certified(vec![not_self_signed.into()], &key)),
        ("two certificates", certified(vec![certificate.clone(), certificate.clone()], &key)),
        ("another's certificate", certified(vec![certificate], &other_key)),
    ];
    for (what, certified) in refused {
        for known in known_as(certified).await {
            assert!(known.is_err(), "{what}: {known:?}");
        }
    }
}

#[tokio::test]
async fn a_dialer_without_a_certificate_is_refused() {
    let config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Verifier))
        .with_no_client_auth();
    let refused = answered(config).await;
    assert!(refused.is_err(), "{refused:?}");
}

#[tokio::test]
async fn older_tls_is_refused() {
    let (keypair, key) = (Keypair::generate_ed25519(), KeyPair::generate().unwrap());
    let certified = certified(vec![self_signed(&honest_params(&keypair, &key), &key)], &key);
    let all_suites = || Arc::new(ring::default_provider());
    let dialer = ClientConfig::builder_with_provider(all_suites())
        .with_protocol_versions(&[&TLS12])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Verifier))
        .with_client_cert_resolver(Arc::new(SingleCertAndKey::from(Arc::clone(&certified))));
    let refused = answered(dialer).await;
    assert!(refused.is_err(), "{refused:?}");
    let listener = ServerConfig::builder_with_provider(all_suites())
        .with_protocol_versions(&[&TLS12])
        .unwrap()
        .with_client_cert_verifier(Arc::new(Verifier))
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(certified)));
    let refused = dialled(listener).await;
    assert!(refused.is_err(), "{refused:?}");
}

/// The specification refuses peers that offer only other protocols; a peer that offers none is accepted.
#[tokio::test]
async fn a_peer_that_offers_only_other_protocols_is_refused() {
    let (keypair, key) = (Keypair::generate_ed25519(), KeyPair::generate().unwrap());
    let certified = certified(vec![self_signed(&honest_params(&keypair, &key), &key)], &key);
    let offering = |protocols: &[&[u8]]| {
        let protocols: Vec<Vec<u8>> = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        let mut dialer = client_config(Arc::clone(&certified)).unwrap();
        dialer.alpn_protocols.clone_from(&protocols);
        let mut listener = server_config(Arc::clone(&certified)).unwrap();
        listener.alpn_protocols = protocols;
        (dialer, listener)
    };
    let others: &[&[u8]] = &[b"h2", b"http/1.1"];
    let (dialer, listener) = offering(others);
    for known in [answered(dialer).await, dialled(listener).await] {
        assert!(known.is_err(), "{known:?}");
    }
    let (none, with_a_muxer): (&[&[u8]], &[&[u8]]) = (&[], &[b"/yamux/1.0.0", ALPN]);
    for protocols in [none, with_a_muxer] {
        let (dialer, listener) = offering(protocols);
        for known in [answered(dialer).await, dialled(listener).await] {
            assert_eq!(known.unwrap(), keypair.public().to_peer_id(), "{protocols:?}");
        }
    }
}

#[tokio::test]
async fn no_session_is_resumed() {
    let (keypair, key) = (Keypair::generate_ed25519(), KeyPair::generate().unwrap());
    let of_peer = || certified(vec![self_signed(&honest_params(&keypair, &key), &key)], &key);
    let dialer = Arc::new(client_config(of_peer()).unwrap());
    let listener = Arc::new(server_config(of_peer()).unwrap());
    for _ in 0..3 {
        let (near, far) = pipe();
        let (answered, dialled) = tokio::join!(
            TlsAcceptor::from(Arc::clone(&listener)).accept(near),
            TlsConnector::from(Arc::clone(&dialer)).connect(nobody(), far),
        );
        let (mut answered, mut dialled) = (answered.unwrap(), dialled.unwrap());
        // A ticket for another session would come with the first bytes.
        tokio::join!(async { answered.write_all(b"x").await.unwrap() }, async {
            dialled.read_exact(&mut [0]).await.unwrap();
        });
        assert_eq!(dialled.get_ref().1.handshake_kind(), Some(rustls::HandshakeKind::Full));
        assert_eq!(answered.get_ref().1.handshake_kind(), Some(rustls::HandshakeKind::Full));
    }
}

#[test]
fn aes_comes_first_where_the_processor_has_it() {
    let suites = |has_aes| cipher_suites(has_aes).map(|suite| suite.suite());
    let (aes_128, aes_256) = (CipherSuite::TLS13_AES_128_GCM_SHA256, CipherSuite::TLS13_AES_256_GCM_SHA384);
    let chacha20 = CipherSuite::TLS13_CHACHA20_POLY1305_SHA256;
    assert_eq!(suites(true), [aes_128, aes_256, chacha20]);
    assert_eq!(suites(false), [chacha20, aes_128, aes_256]);
}

#[tokio::test]
async fn two_nodes_agree_on_what_the_processor_is_quick_at() {
    let (listener, dialer) = (security(&Keypair::generate_ed25519()), security(&Keypair::generate_ed25519()));
    let (near, far) = pipe();
    let handshakes = tokio::join!(listener.upgrade_inbound(near, TLS), dialer.upgrade_outbound(far, TLS));
    let first = cipher_suites(platform::has_aes_instructions())[0].suite();
    for (_, stream) in [handshakes.0.unwrap(), handshakes.1.unwrap()] {
        let Either::Left(stream) = stream else { panic!("TLS was asked for") };
        let session = stream.get_ref().1;
        assert_eq!(session.negotiated_cipher_suite().map(|suite| suite.suite()), Some(first));
        assert_eq!(session.alpn_protocol(), Some(ALPN));
    }
}

/// Each side sends more than fits into a record, and receives the other's bytes.
async fn talk<A, B>(a: A, b: B)
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    tokio::join!(say_and_hear(a), say_and_hear(b));
}

async fn say_and_hear<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S) {
    const N_BYTES: usize = 40_000;
    stream.write_all(&vec![7; N_BYTES]).await.unwrap();
    stream.flush().await.unwrap();
    let mut heard = vec![0; N_BYTES];
    stream.read_exact(&mut heard).await.unwrap();
    assert!(heard.iter().all(|&byte| byte == 7));
}

#[tokio::test]
async fn libp2p_tls_is_understood_and_understands() {
    let (ours, theirs) = (Keypair::generate_ed25519(), Keypair::generate_ed25519());
    let (our_id, their_id) = (ours.public().to_peer_id(), theirs.public().to_peer_id());
    let libp2p_tls = libp2p_tls::Config::new(&theirs).unwrap();

    let (near, far) = pipe();
    let ((them, near), (us, far)) = tokio::try_join!(
        async { security(&ours).upgrade_inbound(near, TLS).await.map_err(|error| error.to_string()) },
        async { libp2p_tls.clone().upgrade_outbound(far, TLS).await.map_err(|error| error.to_string()) },
    )
    .unwrap();
    assert_eq!((them, us), (their_id, our_id));
    talk(near, far).await;

    let (near, far) = pipe();
    let ((them, near), (us, far)) = tokio::try_join!(
        async { security(&ours).upgrade_outbound(near, TLS).await.map_err(|error| error.to_string()) },
        async { libp2p_tls.upgrade_inbound(far, TLS).await.map_err(|error| error.to_string()) },
    )
    .unwrap();
    assert_eq!((them, us), (their_id, our_id));
    talk(near, far).await;
}
