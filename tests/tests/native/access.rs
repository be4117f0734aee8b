//! Who may take part: by invitation, and for those on a list who sign in at a real identity provider.

use barnraise_native::host::access::{signing_key, store::Store};
use barnraise_protocol::access::{
    self, AccessMode, AccessToken, BackboneToContributor as Down, ContributorToBackbone as Up, KeyPair,
    Nonce, RelayedRequest, RelayedResponse, SignedRequest,
};
use barnraise_protocol::bulk::Transfer;
use barnraise_protocol::contribute::BackboneToContributor;
use barnraise_protocol::gradient::{ContributionRefusal, Offer};
use barnraise_protocol::run::RunDescription;
use barnraise_protocol::shard::ShardId;
use barnraise_protocol::{TensorCodec, framing};
use barnraise_tests::client::{TestClient, n_parameters};
use barnraise_tests::process::{BackboneProcess, TestRun};
use barnraise_tests::provider::{self, Provider};
use barnraise_tests::visitor::Visitor;
use libp2p::identity::Keypair;

use super::SMALL;

/// A run by invitation, whose tokens last so long.
fn by_invitation(token_lifetime: &str) -> String {
    let access =
        format!("mode = \"invitation\"\ntoken_lifetime = \"{token_lifetime}\"\npoll_interval = \"1s\"");
    format!("{SMALL}\n[access]\n{access}\n")
}

/// The code in what `barnraise invite` printed.
fn code_of(link: &str) -> String {
    let code = link.trim().split_once("/#invitation=").expect("a link").1;
    assert_eq!(code.len(), 32, "{link}");
    code.to_owned()
}

/// What each gated conversation answers to this client: `Ok` where it is held, else the reason.
async fn conversations(client: &TestClient, run: &RunDescription) -> Vec<(&'static str, Result<(), String>)> {
    let plain = |error: anyhow::Error| error.to_string();
    let state = client.state(run).await.map(drop).map_err(plain);
    let shard = client.shard(run, ShardId::Numbered(0)).await.map(drop).map_err(plain);
    let mut session = client.join(&run.identity.run_id, "by hand").await.unwrap();
    let session = match session.receive().await.unwrap() {
        BackboneToContributor::Refused(refusal) => Err(refusal.to_string()),
        _ => Ok(()),
    };
    let bytes = vec![0; n_parameters(run).unwrap() as usize * 4];
    let (contribution_id, n_samples, loss, codec) = (1, 1, 1.0, TensorCodec::F32);
    let (n_values, transfer) = (n_parameters(run).unwrap(), Transfer::of(&bytes));
    let offer = Offer { contribution_id, epoch: 0, n_samples, loss, n_values, codec, transfer };
    let gradient = match client.offer(&offer, &bytes).await.unwrap() {
        Err(ContributionRefusal::NoAccess(refusal)) => Err(refusal.to_string()),
        _ => Ok(()),
    };
    vec![("state", state), ("shard", shard), ("contribute", session), ("gradient", gradient)]
}

async fn granted(client: &TestClient, question: &Up) -> AccessToken {
    match client.ask(question).await.unwrap() {
        Down::Granted(token) => *token,
        other => panic!("{other:?}"),
    }
}

async fn refusal(client: &TestClient, question: &Up) -> String {
    client.ask(question).await.unwrap_err().to_string()
}

/// Waits until the session's peer has no access any more; returns the reason.
async fn ended(mut session: barnraise_tests::client::ContributeSession) -> String {
    loop {
        if let BackboneToContributor::Refused(refusal) = session.receive().await.unwrap() {
            return refusal.to_string();
        }
    }
}

#[tokio::test]
async fn a_run_by_invitation_takes_the_invited_in_each_conversation_and_nobody_else() {
    let mut test_run = TestRun::new(&by_invitation("1h")).unwrap();
    let backbone = test_run.backbone().await.unwrap();
    let client = TestClient::connect(backbone.tcp().unwrap()).await.unwrap();
    // What is trained, and what access it needs, is for everybody to see.
    let run = client.describe().await.unwrap();
    assert_eq!(run.access.mode, AccessMode::Invitation);
    assert_eq!(backbone.status().await.unwrap().run.access, run.access);
    for (conversation, answer) in conversations(&client, &run).await {
        let reason = answer.expect_err(conversation);
        assert!(reason.contains("this run is by invitation"), "{conversation}: {reason}");
    }
    for code in ["", "guessed", &"x".repeat(10_000)] {
        assert!(client.ask(&Up::Redeem { code: code.into() }).await.is_err(), "{code}");
    }
    let reason = refusal(&client, &Up::Claim).await;
    assert!(reason.contains("it takes no login"), "{reason}");

    let code = code_of(&test_run.command(&["invite", "--uses", "2"]).await.unwrap());
    let token = granted(&client, &Up::Redeem { code: code.clone() }).await;
    for (conversation, answer) in conversations(&client, &run).await {
        assert_eq!(answer, Ok(()), "{conversation}");
    }
    // The same peer uses the same invitation once, however often it asks.
    assert_eq!(granted(&client, &Up::Redeem { code: code.clone() }).await, token);
    // A token is its peer's: another one cannot show it.
    let thief = TestClient::connect(backbone.tcp().unwrap()).await.unwrap();
    let reason = refusal(&thief, &Up::Present(Box::new(token))).await;
    assert!(reason.contains("the access token is for the key"), "{reason}");
    for (conversation, answer) in conversations(&thief, &run).await {
        assert!(answer.is_err(), "{conversation}");
    }

    let joined = test_run.join(&[&backbone.page()]).unwrap().end().await.unwrap();
    assert_eq!(joined.status.code(), Some(1), "{joined:?}");
    assert!(joined.log.contains("this run is by invitation"), "{joined:?}");
    let link = format!("{}/#invitation={code}", backbone.page());
    let joined = test_run.join(&[&link, "--samples", "600"]).unwrap().end().await.unwrap();
    assert!(joined.status.success() && joined.n_samples >= 600, "{joined:?}");
    // Two uses, two peers. A connection in which nothing was said for a minute is closed: this one is new.
    let third = TestClient::connect(backbone.tcp().unwrap()).await.unwrap();
    let reason = refusal(&third, &Up::Redeem { code }).await;
    assert!(reason.contains("as often as it may be"), "{reason}");
}

#[tokio::test]
async fn a_token_is_renewed_in_time_and_training_never_stops() {
    let mut test_run = TestRun::new(&by_invitation("18s")).unwrap();
    let backbone = test_run.backbone().await.unwrap();
    let link = test_run.command(&["invite"]).await.unwrap();
    let code = code_of(&link);
    let joined = test_run.join(&[&backbone.page(), "--invitation", &code]).unwrap();
    let store = Store::open(&test_run.storage()).await.unwrap();
    let mut tokens = std::collections::BTreeSet::new();
    let mut epoch = 0;
    // Each token lasts 18 seconds, and a third of that is there to renew it: the third one is of somebody who has renewed
    // twice, the second time what was renewed.
    while tokens.len() < 3 {
        epoch = backbone.wait_for_epoch(epoch + 1).await.unwrap().epoch;
        let now = barnraise_native::host::clock::system_clock()();
        tokens.extend(store.tokens(now).await.unwrap().into_iter().map(|issued| issued.token_id));
    }
    joined.interrupt().unwrap();
    let given = joined.end().await.unwrap();
    assert!(given.status.success(), "{given:?}");
    assert!(!given.log.contains("could not be renewed") && !given.log.contains("No connection"), "{given:?}");
    let log = backbone.log().unwrap();
    assert_eq!(log.matches("contributor joined").count(), 1, "{log}");
    assert_eq!(backbone.samples_counted().await.unwrap(), given.n_samples, "{given:?}");
}

#[tokio::test]
async fn what_expires_or_is_revoked_ends_conversations_that_are_under_way() {
    let mut test_run = TestRun::new(&by_invitation("15s")).unwrap();
    let backbone = test_run.backbone().await.unwrap();
    let code = code_of(&test_run.command(&["invite", "--uses", "9"]).await.unwrap());
    let keypair = Keypair::generate_ed25519();
    let client = TestClient::connect_as(keypair.clone(), backbone.tcp().unwrap()).await.unwrap();
    let run = client.describe().await.unwrap();
    granted(&client, &Up::Redeem { code: code.clone() }).await;
    let session = client.join(&run.identity.run_id, "by hand").await.unwrap();
    let reason = ended(session).await;
    assert!(reason.contains("expired"), "{reason}");
    assert!(client.state(&run).await.is_err());

    // No token ends by itself any more, however long the commands take.
    assert!(backbone.terminate().await.unwrap().success());
    test_run.configure(|config| config["access"]["token_lifetime"] = "1h".into()).unwrap();
    let backbone = test_run.backbone().await.unwrap();
    let client = TestClient::connect_as(keypair, backbone.tcp().unwrap()).await.unwrap();
    granted(&client, &Up::Redeem { code: code.clone() }).await;
    let session = client.join(&run.identity.run_id, "by hand").await.unwrap();
    let listed = test_run.command(&["allow", "list"]).await.unwrap();
    let peer = client.peer_id().to_string();
    assert!(listed.contains(&peer), "{listed}");
    let said = test_run.command(&["revoke", &peer, "--with-invitation"]).await.unwrap();
    assert!(said.starts_with("1 token"), "{said}");
    let reason = ended(session).await;
    assert!(reason.contains("access was revoked"), "{reason}");
    let reason = refusal(&client, &Up::Redeem { code: code.clone() }).await;
    assert!(reason.contains("access was revoked"), "{reason}");
    // The invitation went with it, for others too.
    let other = TestClient::connect(backbone.tcp().unwrap()).await.unwrap();
    assert!(other.ask(&Up::Redeem { code }).await.is_err());
}

/// Renews through any backbone, by a request to the run's authority.
async fn renew(client: &TestClient, key: &KeyPair, run: &RunDescription, token: &AccessToken) -> AccessToken {
    let payload = framing::encode(&RelayedRequest::Renew, 1024).unwrap()[framing::HEADER_BYTES..].to_vec();
    let now = barnraise_native::host::clock::system_clock()();
    let (asked, nonce) = (run.access.authority, Nonce([7; 16]));
    let request = SignedRequest::sign(key, token.clone(), asked, now, nonce, payload).unwrap();
    let question = Up::Relay(Box::new(request));
    let Down::Relayed(response) = client.ask(&question).await.unwrap() else { panic!("no response") };
    let authority = access::Authority { key: asked, run_id: run.identity.run_id.clone() };
    response.verify(&authority, asked, nonce, now).unwrap();
    let reason = refusal(client, &question).await;
    assert!(reason.contains("nonce of the request was used"), "{reason}");
    match framing::decode_payload(&response.payload).unwrap() {
        RelayedResponse::Renewed(token) => *token,
        RelayedResponse::Refused(refusal) => panic!("{refusal}"),
    }
}

#[tokio::test]
async fn another_backbone_takes_the_authoritys_word_and_carries_requests_to_it() {
    let mut test_run = TestRun::new(&by_invitation("1h")).unwrap();
    let authority = test_run.backbone().await.unwrap();
    let at = authority.tcp().unwrap();
    let follows = format!("{}authority = \"{at}\"\n", by_invitation("1h"));
    let mut second = TestRun::new(&follows).unwrap();
    let follower = second.backbone().await.unwrap();

    let keypair = Keypair::generate_ed25519();
    let key = signing_key(&keypair).unwrap();
    let there = TestClient::connect_as(keypair.clone(), at).await.unwrap();
    let here = TestClient::connect_as(keypair, follower.tcp().unwrap()).await.unwrap();
    let run = here.describe().await.unwrap();
    assert_eq!(run.access, there.describe().await.unwrap().access);
    let code = code_of(&test_run.command(&["invite"]).await.unwrap());
    let reason = refusal(&here, &Up::Redeem { code: code.clone() }).await;
    assert!(reason.contains("is granted at /ip4/127.0.0.1/"), "{reason}");
    let token = granted(&there, &Up::Redeem { code }).await;
    assert!(here.state(&run).await.is_err());
    here.ask(&Up::Present(Box::new(token.clone()))).await.unwrap();
    here.state(&run).await.unwrap();
    let renewed = renew(&here, &key, &run, &token).await;
    assert_eq!(renewed.claims.peer, key.public());

    let session = here.join(&run.identity.run_id, "by hand").await.unwrap();
    test_run.command(&["revoke", &here.peer_id().to_string()]).await.unwrap();
    let reason = ended(session).await;
    assert!(reason.contains("access was revoked"), "{reason}");
    let reason = refusal(&here, &Up::Present(Box::new(token))).await;
    assert!(reason.contains("access was revoked"), "{reason}");
}

/// Somebody signs in at the provider as `name` and agrees to all it asks; where the way ends.
fn sign_in(visitor: &mut Visitor, url: &str, name: &str) -> barnraise_tests::visitor::VisitedPage {
    let page = visitor.open(url).unwrap();
    assert!(page.text.contains("Sign-in"), "{page:?}");
    let page = visitor.send(&page, &[("login", name), ("password", "any")]).unwrap();
    assert!(page.text.contains("Continue"), "{page:?}");
    visitor.send(&page, &[]).unwrap()
}

struct ListedRun {
    test_run: TestRun,
    backbone: BackboneProcess,
    _provider: Provider,
}

/// A run for those on its list, and its identity provider.
async fn listed() -> ListedRun {
    let (mut test_run, provider) = provider::listed(SMALL).await.unwrap();
    let backbone = test_run.backbone().await.unwrap();
    ListedRun { test_run, backbone, _provider: provider }
}

#[tokio::test(flavor = "multi_thread")]
async fn those_on_the_list_sign_in_train_and_lose_access_with_their_name() {
    let ListedRun { mut test_run, backbone, _provider } = listed().await;
    let identity = test_run.storage().join("joined.key");
    let peer = barnraise_relay::load_or_create_keypair(&identity).unwrap().public().to_peer_id();
    let said = test_run.command(&["allow", "add", "alice", "bob"]).await.unwrap();
    assert!(said.contains("alice is on the list now"), "{said}");
    let key = identity.display().to_string();
    let joined = test_run.join(&[&backbone.page(), "--identity", &key]).unwrap();
    joined.wait_for_log("Sign in at http://").await.unwrap();
    let log = joined.log().unwrap();
    let url = log.split_once("Sign in at ").unwrap().1.split_whitespace().next().unwrap();
    assert!(url.starts_with(&format!("{}/login?peer={peer}&ticket=", backbone.page())), "{url}");

    // Not on the list: signed in, and told so.
    let refused = sign_in(&mut Visitor::new(), url, "mallory");
    assert_eq!(refused.status, 403, "{refused:?}");
    assert!(refused.text.contains("mallory is not on the list"), "{refused:?}");

    let mut alice = Visitor::new();
    let page = sign_in(&mut alice, url, "alice");
    // Nothing is bound before she has seen whose key it is and agreed.
    assert!(page.status == 200 && page.text.contains(&peer.to_string()), "{page:?}");
    assert!(page.text.contains("<strong>alice</strong>"), "{page:?}");
    assert_eq!(backbone.status().await.unwrap().progress.n_contributors, 0);
    // Another browser cannot agree in her place.
    let stolen = Visitor::new().send(&page, &[]).unwrap();
    assert_eq!(stolen.status, 400, "{stolen:?}");
    let done = alice.send(&page, &[]).unwrap();
    assert!(done.status == 200 && done.text.contains("may take part now"), "{done:?}");
    // Once, and not again with the same page.
    assert_eq!(alice.send(&page, &[]).unwrap().status, 400);

    backbone.wait_for_epoch(2).await.unwrap();
    let said = test_run.command(&["allow", "list"]).await.unwrap();
    assert!(said.contains("alice  has access as"), "{said}");
    let said = test_run.command(&["allow", "remove", "alice"]).await.unwrap();
    assert!(said.contains("1 token was taken back"), "{said}");
    let given = joined.end().await.unwrap();
    assert!(!given.status.success() && given.log.contains("samples were accepted"), "{given:?}");
    assert!(given.log.contains("alice is not on the list"), "{given:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_login_is_tied_to_its_browser_its_state_and_its_peer() {
    let ListedRun { mut test_run, backbone, _provider } = listed().await;
    test_run.command(&["allow", "add", "--by", "email", "alice@example.org"]).await.unwrap();
    let page = backbone.page();
    for (path, status) in [
        ("/login", 400),
        ("/login?peer=nobody", 400),
        // The hash of an RSA key.
        ("/login?peer=QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N", 400),
        ("/login/callback", 400),
        ("/login/callback?state=made-up&code=made-up", 400),
        ("/login/confirm", 405),
    ] {
        let answer = Visitor::new().open(&format!("{page}{path}")).unwrap();
        assert_eq!(answer.status, status, "{path}: {answer:?}");
    }
    let client = TestClient::connect(backbone.tcp().unwrap()).await.unwrap();
    let Down::SignIn { url } = client.ask(&Up::Claim).await.unwrap() else { panic!("granted") };
    let here = format!("{page}/login?peer={}&ticket=", client.peer_id());
    assert!(url.starts_with(&here), "{url}");
    // Who knows the peer id alone, or has a ticket for a peer of their own, begins no login for it.
    let other = TestClient::connect(backbone.tcp().unwrap()).await.unwrap();
    let Down::SignIn { url: others } = other.ask(&Up::Claim).await.unwrap() else { panic!("granted") };
    let stolen = others.split_once("&ticket=").unwrap().1;
    for ticket in ["", "0123456789abcdef0123456789abcdef", stolen] {
        let answer = Visitor::new().open(&format!("{here}{ticket}")).unwrap();
        assert!(answer.status == 400 && answer.text.contains("was given"), "{answer:?}");
    }
    let mut alice = Visitor::new();
    let confirm = sign_in(&mut alice, &url, "alice");
    let tie = alice.set_cookies.iter().find(|cookie| cookie.starts_with("barnraise_login=")).unwrap();
    assert!(tie.contains("HttpOnly") && tie.contains("SameSite=Lax") && tie.contains("Path=/login"), "{tie}");
    assert!(matches!(client.ask(&Up::Claim).await.unwrap(), Down::SignIn { .. }));
    alice.send(&confirm, &[]).unwrap();
    let token = granted(&client, &Up::Claim).await;
    assert_eq!(token.claims.user, "alice");
    // From now on it is hers, even if somebody else signs in where her own peer leads them.
    test_run.command(&["allow", "add", "bob"]).await.unwrap();
    let mut bob = Visitor::new();
    let confirm = sign_in(&mut bob, &url, "bob");
    let answer = bob.send(&confirm, &[]).unwrap();
    assert!(answer.status == 403 && answer.text.contains("stays theirs"), "{answer:?}");
    assert_eq!(granted(&client, &Up::Claim).await.claims.user, "alice");
    let run = client.describe().await.unwrap();
    for (conversation, answer) in conversations(&client, &run).await {
        assert_eq!(answer, Ok(()), "{conversation}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_among_several_has_its_login_at_its_own_address() {
    let (mut test_run, _provider) = provider::listed_at(SMALL, "/run/test-run").await.unwrap();
    test_run.add_run(&SMALL.replace("test-run", "second-run")).unwrap();
    let mut backbone = test_run.backbone().await.unwrap();
    backbone.look_at("test-run");
    test_run.command(&["allow", "add", "alice"]).await.unwrap();
    let client = TestClient::connect(backbone.tcp().unwrap()).await.unwrap();
    let peer = client.peer_id();
    let Down::SignIn { url } = client.ask(&Up::Claim).await.unwrap() else { panic!("granted") };
    assert!(url.starts_with(&backbone.page()), "{url}");
    let mut alice = Visitor::new();
    let page = sign_in(&mut alice, &url, "alice");
    assert!(page.status == 200 && page.text.contains(&peer.to_string()), "{page:?}");
    let done = alice.send(&page, &[]).unwrap();
    assert!(done.status == 200 && done.text.contains("may take part now"), "{done:?}");
}
