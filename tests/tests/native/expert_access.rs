//! Experts on other processes in a run by invitation: who was invited to host hosts, who was invited trains, and nobody else does
//! either.

use std::time::{Duration, UNIX_EPOCH};

use barnraise_native::host::access::signing_key;
use barnraise_native::host::access::store::Store;
use barnraise_protocol::access::{
    self, AccessToken, BackboneToContributor as Down, ContributorToBackbone as Up, PublicKey,
};
use barnraise_protocol::bulk::Transfer;
use barnraise_protocol::codec::TensorCodec;
use barnraise_protocol::dht::experts::{AnnouncedExpert, LIFETIME, announce};
use barnraise_protocol::dht::{self, UnixMillis};
use barnraise_protocol::experts::leases::{self, LeaseAskError, LeaseQuestion, LeaseRefusal, LeasingHost};
use barnraise_protocol::experts::{
    self, ExpertPass, ExpertRefusal, ExpertRequest, ExpertRequestError, ExpertUid, LayerId, PreparedRequest,
};
use barnraise_relay::{Node, NodeConfig};
use barnraise_tests::client::{TestClient, within};
use barnraise_tests::hosted;
use barnraise_tests::process::{BackboneProcess, HANG, TestRun, metric};
use futures::{FutureExt, StreamExt};
use libp2p::Multiaddr;
use libp2p::identity::Keypair;

use super::experts::{accuracy_of, wait_for};

const RUN_ID: &str = "hosted-experts";
const LAYER: LayerId = LayerId(0);
/// Short enough to be renewed while the test trains.
const ACCESS: &str = "\n[access]\nmode = \"invitation\"\ntoken_lifetime = \"60s\"\npoll_interval = \"1s\"\n";

fn now() -> UnixMillis {
    UnixMillis(0).after(UNIX_EPOCH.elapsed().unwrap())
}

async fn node(keypair: Keypair) -> Node {
    let listen = vec!["/ip4/127.0.0.1/tcp/0".parse().unwrap()];
    Node::start(keypair, NodeConfig { listen, ..NodeConfig::default() }).await.unwrap()
}

fn code_of(link: &str) -> &str {
    link.trim().split_once("/#invitation=").expect("a link").1
}

/// What the host says to one row for an expert.
async fn asked(client: &TestClient, index: u16, request_id: u64) -> Result<(), ExpertRefusal> {
    match try_to_ask(client, index, request_id).await {
        Ok(()) => Ok(()),
        Err(ExpertRequestError::Refused(refusal)) => Err(refusal),
        Err(error) => panic!("{error}"),
    }
}

/// Likewise; also where it says nothing.
async fn try_to_ask(client: &TestClient, index: u16, request_id: u64) -> Result<(), ExpertRequestError> {
    let request = ExpertRequest {
        run_id: RUN_ID.to_owned(),
        request_id,
        layer: LAYER,
        uid: ExpertUid::new(&[index]).unwrap(),
        pass: ExpertPass::Forward,
        n_steps: 0,
        n_rows: 1,
        input_values: 16,
        output_values: 16,
        codec: TensorCodec::F32,
        transfer: Transfer::of(&[]),
    };
    let prepared = PreparedRequest::new(request, &[0.5; 16], None).unwrap();
    let mut stream = client.open(experts::PROTOCOL).await.unwrap();
    within("an expert", experts::ask(&mut stream, &prepared)).await.unwrap().map(drop)
}

/// Asks the backbone for a place, with nothing else than a key.
async fn lease(client: &TestClient) -> LeaseRefusal {
    let host = LeasingHost::new(8, Vec::new());
    let question = LeaseQuestion::Lease { run_id: RUN_ID.to_owned(), host, asks: Vec::new(), n_vacant: 8 };
    let mut stream = client.open(leases::PROTOCOL).await.unwrap();
    match within("leases", leases::ask(&mut stream, &question, &client.key().unwrap())).await.unwrap() {
        Err(LeaseAskError::Refused(refusal)) => refusal,
        other => panic!("{other:?}"),
    }
}

async fn granted(client: &TestClient, code: &str) -> AccessToken {
    match client.ask(&Up::Redeem { code: code.to_owned() }).await.unwrap() {
        Down::Granted(token) => *token,
        other => panic!("{other:?}"),
    }
}

/// Peers that have had a second token.
async fn n_renewed(
    test_run: &TestRun,
    ids: &mut std::collections::BTreeMap<PublicKey, Vec<[u8; 16]>>,
) -> usize {
    let store = Store::open(&test_run.storage()).await.unwrap();
    for issued in store.tokens(barnraise_native::host::clock::system_clock()()).await.unwrap() {
        let ids = ids.entry(issued.peer).or_default();
        if !ids.contains(&issued.token_id.0) {
            ids.push(issued.token_id.0);
        }
    }
    store.close().await;
    ids.values().filter(|ids| ids.len() >= 2).count()
}

/// A peer that nobody invited announces itself as the host of all experts.
async fn pretend(backbone: &BackboneProcess, node: &Node, keypair: &Keypair) {
    let experts: Vec<AnnouncedExpert> = (0..8)
        .map(|index| AnnouncedExpert { uid: ExpertUid::new(&[index]).unwrap(), n_waiting: 0, n_steps: 9 })
        .collect();
    let addresses: Vec<Vec<u8>> = node.addresses().iter().map(Multiaddr::to_vec).collect();
    let signing = signing_key(keypair).unwrap();
    let records = announce(&signing, (RUN_ID, LAYER), &experts, &addresses, now().after(LIFETIME)).unwrap();
    let peer = node.dial(backbone.tcp().unwrap()).await.unwrap();
    let mut stream = node.open(peer, dht::PROTOCOL).await.unwrap();
    for verdict in dht::put(&mut stream, records).await.unwrap() {
        verdict.unwrap();
    }
}

#[tokio::test]
async fn who_was_invited_hosts_and_trains_and_nobody_else_does_either() {
    let operator = "\n[network]\noperator = \"127.0.0.1:0\"\nupnp = false\n";
    let sections = format!("[run]\nid = \"{RUN_ID}\"\n{}{ACCESS}{operator}", hosted::RUN);
    let mut test_run = TestRun::new(&sections).unwrap().with_log("info,barnraise=debug");
    let backbone = test_run.backbone().await.unwrap();
    let page = backbone.page();

    // Nobody's host, and one that was invited to contribute.
    let stranger = test_run.host_experts("stranger", &[&page]).unwrap().end().await.unwrap();
    assert_eq!(stranger.status.code(), Some(1), "{stranger:?}");
    assert!(stranger.log.contains("this run is by invitation"), "{stranger:?}");
    let link = test_run.command(&["invite", "--uses", "9"]).await.unwrap();
    let contributor = test_run
        .host_experts("contributor", &[&page, "--invitation", code_of(&link)])
        .unwrap()
        .end()
        .await
        .unwrap();
    assert_eq!(contributor.status.code(), Some(1), "{contributor:?}");
    assert!(contributor.log.contains("and not host its experts"), "{contributor:?}");
    let by_hand = TestClient::connect(backbone.tcp().unwrap()).await.unwrap();
    assert_eq!(lease(&by_hand).await, LeaseRefusal::NoAccess);
    granted(&by_hand, code_of(&link)).await;
    assert_eq!(lease(&by_hand).await, LeaseRefusal::MayNotHost);

    let host_link = test_run.command(&["invite", "--host", "--uses", "2"]).await.unwrap();
    let first = test_run.host_experts("first", &[&page, "--invitation", code_of(&host_link)]).unwrap();
    wait_for(&first, "Hosting 8 experts").await;
    let keypair =
        barnraise_relay::load_or_create_keypair(&test_run.folder().join("first/identity.key")).unwrap();
    let first_key = signing_key(&keypair).unwrap().public();
    let found = hosted::announced(&by_hand, (RUN_ID, LAYER), Some(first_key)).await.unwrap();

    // A client without access is refused; another's token is of no use to it.
    let member = Keypair::generate_ed25519();
    let at_backbone = TestClient::connect_as(member.clone(), backbone.tcp().unwrap()).await.unwrap();
    let token = granted(&at_backbone, code_of(&link)).await;
    let thief = hosted::client_of(&found, Keypair::generate_ed25519()).await.unwrap();
    let needed = access::AccessRefusal::Needed { mode: access::AccessMode::Invitation };
    assert_eq!(asked(&thief, 0, 1).await, Err(ExpertRefusal::NoAccess(needed.clone())));
    let stolen = thief.ask(&Up::Present(Box::new(token.clone()))).await.unwrap_err().to_string();
    assert!(stolen.contains("the access token is for the key"), "{stolen}");
    assert_eq!(asked(&thief, 0, 2).await, Err(ExpertRefusal::NoAccess(needed.clone())));
    let member = hosted::client_of(&found, member).await.unwrap();
    assert_eq!(asked(&member, 0, 1).await, Err(ExpertRefusal::NoAccess(needed)));
    member.ask(&Up::Present(Box::new(token))).await.unwrap();
    assert_eq!(asked(&member, 0, 2).await, Ok(()));

    // A peer that only says that it has the experts is asked for none, and shown no token.
    let keypair = Keypair::generate_ed25519();
    let pretender = node(keypair.clone()).await;
    let mut asked_for_experts = pretender.accept(experts::PROTOCOL).unwrap();
    let mut shown_tokens = pretender.accept(access::PROTOCOL).unwrap();
    pretend(&backbone, &pretender, &keypair).await;
    let trainer = test_run.join(&[&page, "--invitation", code_of(&link)]).unwrap();
    accuracy_of(&backbone, 0.7).await;
    wait_for(&first, "learned from").await;
    // Host and trainer get new tokens meanwhile, and the host sees those of the trainer.
    let mut renewed = std::collections::BTreeMap::new();
    while n_renewed(&test_run, &mut renewed).await < 2 {
        pretend(&backbone, &pretender, &keypair).await;
        let epoch = backbone.status().await.unwrap().progress.epoch;
        backbone.wait_for_epoch(epoch + 2).await.unwrap();
    }
    let before = super::experts::steps(&first);
    let stepped = async {
        while super::experts::steps(&first) <= before {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(HANG, stepped).await.expect("the experts learn with the new tokens");
    assert!(asked_for_experts.next().now_or_never().is_none(), "a pretender was asked");
    assert!(shown_tokens.next().now_or_never().is_none(), "a pretender was shown a token");

    // A client whose access was revoked is refused, and so is what it asks of the host that knew it.
    let token = granted(&at_backbone, code_of(&link)).await;
    member.ask(&Up::Present(Box::new(token.clone()))).await.unwrap();
    assert_eq!(asked(&member, 0, 3).await, Ok(()));
    let id = member.peer_id().to_string();
    test_run.command(&["revoke", &id]).await.unwrap();
    let refused = async {
        for request_id in 4.. {
            match try_to_ask(&member, 0, request_id).await {
                Ok(()) => tokio::time::sleep(Duration::from_millis(200)).await,
                Err(ExpertRequestError::Refused(ExpertRefusal::NoAccess(_))) => return,
                Err(ExpertRequestError::Refused(refusal)) => panic!("{refusal}"),
                // The stream of what is under way as the access ends is closed, in the request or in the answer.
                Err(_) => {}
            }
        }
    };
    tokio::time::timeout(HANG, refused).await.expect("a revoked client is refused");
    let refused = member.ask(&Up::Present(Box::new(token))).await.unwrap_err().to_string();
    assert!(refused.contains("access was revoked"), "{refused}");

    // A host whose access was revoked stops, and another one follows.
    let second = test_run.host_experts("second", &[&page, "--invitation", code_of(&host_link)]).unwrap();
    wait_for(&second, "Room for 16 experts").await;
    let id = libp2p::PeerId::from_bytes(&first_key.to_peer_id()).unwrap().to_string();
    test_run.command(&["revoke", &id]).await.unwrap();
    let revoked = first.end().await.unwrap();
    assert_eq!(revoked.status.code(), Some(1), "{revoked:?}");
    assert!(revoked.log.contains("may not take part any longer"), "{revoked:?}");
    wait_for(&second, "Hosting 8 experts").await;
    wait_for(&second, "learned from").await;
    // The trainer has shown the backbone some of what the host answered, and nothing was wrong with it.
    let audited = async {
        loop {
            let metrics = backbone.metrics().await.unwrap();
            let n_audits = |outcome: &str| {
                let name = format!("barnraise_expert_audits_total{{outcome=\"{outcome}\"}}");
                metric(&metrics, &name).unwrap()
            };
            assert_eq!(n_audits("wrong") + n_audits("far"), 0.0, "{metrics}");
            // So small experts move far within a minute: then there is nothing to say.
            if n_audits("same") + n_audits("near") + n_audits("unknown") >= 2.0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    };
    tokio::time::timeout(HANG, audited).await.expect("answers are computed once more");
    trainer.kill().await.unwrap();
    second.kill().await.unwrap();
}
