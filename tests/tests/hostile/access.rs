//! Signed requests that are replayed, of another time, or not signed by their named signer.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use barnraise_native::host::access::signing_key;
use barnraise_protocol::access::{
    self, AccessError, AccessToken, BackboneToContributor as Down, ContributorToBackbone as Up, KeyPair,
    Nonce, PublicKey, RelayedRequest, SignedRequest, UnixTime,
};
use barnraise_protocol::framing::{self, HEADER_BYTES};
use barnraise_relay::libp2p::identity::Keypair;
use barnraise_tests::client::TestClient;
use barnraise_tests::source_proxy::SourceProxy;
use libp2p::Multiaddr;

use super::RUN;
use super::attacked_run::{AttackEnd, AttackedRun, invitation};

const BY_INVITATION: &str = "\n[access]\nmode = \"invitation\"\ntoken_lifetime = \"1h\"\n";
const HOUR_S: u64 = 3600;
const BETWEEN_REQUESTS: Duration = Duration::from_millis(20);
const BETWEEN_DIALS: Duration = Duration::from_millis(200);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replayed_forged_and_untimely_requests_cost_the_others_nothing() {
    let mut attacked = AttackedRun::of(&format!("{RUN}{BY_INVITATION}"), true).await;
    let code = invitation(&mut attacked.test_run).await;
    let proxy = SourceProxy::open([127, 0, 0, 2].into(), &attacked.tcp()).await.unwrap();
    let member = AccessMember::join(proxy.address(), code).await;
    attacked.endures(&["wrong_time"], AttackEnd::Refused, || member.clone().sends_wrong_times()).await;
    attacked.endures(&["replayed"], AttackEnd::Blocked, || member.clone().repeats()).await;
    attacked.endures(&["forged"], AttackEnd::Blocked, || member.clone().forges()).await;
    attacked.has_trained().await;
}

/// A peer with access, which makes requests of its own.
#[derive(Clone)]
struct AccessMember {
    address: Multiaddr,
    keypair: Keypair,
    key: Arc<KeyPair>,
    token: AccessToken,
    authority: PublicKey,
}

impl AccessMember {
    async fn join(address: Multiaddr, code: String) -> Self {
        let keypair = Keypair::generate_ed25519();
        let client = TestClient::connect_as(keypair.clone(), address.clone()).await.unwrap();
        let authority = client.describe().await.unwrap().access.authority;
        let Down::Granted(token) = client.ask(&Up::Redeem { code }).await.unwrap() else {
            panic!("the invitation is good");
        };
        let key = Arc::new(signing_key(&keypair).unwrap());
        Self { address, keypair, key, token: *token, authority }
    }

    /// A valid request, dated `after_s` seconds from now.
    fn request(&self, after_s: i64) -> SignedRequest {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let mut nonce = [0; 16];
        nonce.copy_from_slice(&now.as_nanos().to_le_bytes());
        let payload = framing::encode(&RelayedRequest::Renew, 64).unwrap()[HEADER_BYTES..].to_vec();
        let time = UnixTime(now.as_secs().checked_add_signed(after_s).unwrap());
        SignedRequest::sign(&self.key, self.token.clone(), self.authority, time, Nonce(nonce), payload)
            .unwrap()
    }

    /// As soon as its address may have another connection.
    async fn dial(&self) -> Option<TestClient> {
        let client = TestClient::connect_as(self.keypair.clone(), self.address.clone()).await.ok();
        if client.is_none() {
            tokio::time::sleep(BETWEEN_DIALS).await;
        }
        client
    }

    /// Requests of hours ago, and of hours to come. Each is refused, and nothing else follows.
    async fn sends_wrong_times(self) {
        loop {
            let Some(client) = self.dial().await else { continue };
            for hours in [-5, 5].into_iter().cycle().take(1000) {
                let answer = ask(&client, self.request(hours * HOUR_S as i64)).await;
                assert!(answer.expect("it is listened to").is_err());
                tokio::time::sleep(BETWEEN_REQUESTS).await;
            }
        }
    }

    /// The same request over and over, which is answered once.
    async fn repeats(self) {
        loop {
            let Some(client) = self.dial().await else { continue };
            let honest = self.request(0);
            if let Some(answer) = ask(&client, honest.clone()).await {
                assert!(matches!(answer, Ok(Down::Relayed(_))), "{answer:?}");
            }
            until_blocked(&client, &honest).await;
        }
    }

    /// Requests that were changed after signing.
    async fn forges(self) {
        loop {
            let Some(client) = self.dial().await else { continue };
            let mut forged = self.request(0);
            forged.payload.push(0);
            until_blocked(&client, &forged).await;
        }
    }
}

/// Sends what is refused, until it is not listened to any more.
async fn until_blocked(client: &TestClient, request: &SignedRequest) {
    while let Some(answer) = ask(client, request.clone()).await {
        assert!(answer.is_err(), "{answer:?}");
        tokio::time::sleep(BETWEEN_REQUESTS).await;
    }
    tokio::time::sleep(BETWEEN_DIALS).await;
}

/// `None` where the peer is not listened to.
async fn ask(client: &TestClient, request: SignedRequest) -> Option<Result<Down, AccessError>> {
    let mut stream = client.open(access::PROTOCOL).await.ok()?;
    match access::ask(&mut stream, &Up::Relay(Box::new(request))).await {
        Err(AccessError::Frame(_)) => None,
        answer => Some(answer),
    }
}
