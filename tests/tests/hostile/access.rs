//! Signed requests that were made before, at another time, or not by whom they say.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use barnraise_native::access::signing_key;
use barnraise_protocol::ConversationError;
use barnraise_protocol::access::{
    self, AccessToken, BackboneToContributor as Down, ContributorToBackbone as Up, KeyPair, Nonce, PublicKey,
    RelayedRequest, SignedRequest, UnixTime,
};
use barnraise_protocol::framing::{self, HEADER_BYTES};
use barnraise_relay::libp2p::identity::Keypair;
use barnraise_tests::client::Client;
use barnraise_tests::doorway::Doorway;
use libp2p::Multiaddr;

use super::RUN;
use super::siege::{End, Siege, invitation};

const BY_INVITATION: &str = "\n[access]\nmode = \"invitation\"\ntoken_lifetime = \"1h\"\n";
const HOUR_S: u64 = 3600;
const BETWEEN_REQUESTS: Duration = Duration::from_millis(20);
const BETWEEN_DIALS: Duration = Duration::from_millis(200);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replayed_forged_and_untimely_requests_cost_the_others_nothing() {
    let mut siege = Siege::of(&format!("{RUN}{BY_INVITATION}"), true).await;
    let code = invitation(&mut siege.world).await;
    let doorway = Doorway::open([127, 0, 0, 2].into(), &siege.tcp()).await.unwrap();
    let member = Member::join(doorway.address(), code).await;
    siege.endures(&["wrong_time"], End::Refused, || member.clone().lies_about_the_time()).await;
    siege.endures(&["replayed"], End::Blocked, || member.clone().repeats()).await;
    siege.endures(&["forged"], End::Blocked, || member.clone().forges()).await;
    siege.has_trained().await;
}

/// Somebody with access, and with requests of its own.
#[derive(Clone)]
struct Member {
    address: Multiaddr,
    keypair: Keypair,
    key: Arc<KeyPair>,
    token: AccessToken,
    authority: PublicKey,
}

impl Member {
    async fn join(address: Multiaddr, code: String) -> Self {
        let keypair = Keypair::generate_ed25519();
        let client = Client::connect_as(keypair.clone(), address.clone()).await.unwrap();
        let authority = client.describe().await.unwrap().access.authority;
        let Down::Granted(token) = client.ask(&Up::Redeem { code }).await.unwrap() else {
            panic!("the invitation is good");
        };
        let key = Arc::new(signing_key(&keypair).unwrap());
        Self { address, keypair, key, token: *token, authority }
    }

    /// One that would be answered, made so many seconds from now.
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
    async fn dial(&self) -> Option<Client> {
        let client = Client::connect_as(self.keypair.clone(), self.address.clone()).await.ok();
        if client.is_none() {
            tokio::time::sleep(BETWEEN_DIALS).await;
        }
        client
    }

    /// Requests of hours ago, and of hours to come. Each is refused, and nothing else follows.
    async fn lies_about_the_time(self) {
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

    /// What it signed says something else now.
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
async fn until_blocked(client: &Client, request: &SignedRequest) {
    while let Some(answer) = ask(client, request.clone()).await {
        assert!(answer.is_err(), "{answer:?}");
        tokio::time::sleep(BETWEEN_REQUESTS).await;
    }
    tokio::time::sleep(BETWEEN_DIALS).await;
}

/// `None` where the peer is not listened to.
async fn ask(client: &Client, request: SignedRequest) -> Option<Result<Down, ConversationError>> {
    let mut stream = client.open(access::PROTOCOL).await.ok()?;
    match access::ask(&mut stream, &Up::Relay(Box::new(request))).await {
        Err(ConversationError::Frame(_)) => None,
        answer => Some(answer),
    }
}
