//! A run that is operated while it trains: by the commands, over the admin API, through restarts.

use barnraise_native::host::operator::view::{
    AuditList, CheckpointCard, CheckpointList, PeerList, RunState, RunView,
};
use barnraise_native::storage::checkpoint;
use barnraise_protocol::contribute::RunProgress;
use barnraise_tests::client::TestClient;
use barnraise_tests::process::{BackboneProcess, TestRun};
use barnraise_tests::pypi;

use super::SMALL;

/// A run with an operator, whose checkpoints come often.
fn operated() -> String {
    let every_step =
        SMALL.replace("checkpoint_every_epochs = 7", "checkpoint_every_epochs = 2\nkeep_checkpoints = 500");
    format!("{every_step}\n[network]\noperator = \"127.0.0.1:0\"\nupnp = false\n")
}

async fn view(test_run: &mut TestRun, args: &[&str]) -> RunView {
    let text = test_run.command(&[&["run"][..], args, &["--json"]].concat()).await.unwrap();
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Why a command is refused.
async fn refused(test_run: &mut TestRun, args: &[&str]) -> String {
    test_run.command(args).await.unwrap_err().to_string()
}

async fn parameters(backbone: &BackboneProcess) -> (u64, Vec<f32>) {
    let client = TestClient::connect(backbone.tcp().unwrap()).await.unwrap();
    let run = client.describe().await.unwrap();
    let state = client.state(&run).await.unwrap();
    (state.epoch, state.parameters)
}

#[tokio::test]
async fn a_pause_is_told_keeps_what_was_given_and_holds_over_a_crash() {
    let mut test_run = TestRun::new(&operated()).unwrap();
    let backbone = test_run.backbone().await.unwrap();
    let joined = test_run.join(&[&backbone.page()]).unwrap();
    backbone.wait_for_epoch(2).await.unwrap();
    let paused = view(&mut test_run, &["pause", "--reason", "the data is looked at"]).await;
    assert_eq!(paused.state, RunState::Paused);
    joined.wait_for_log("the run is paused: the data is looked at").await.unwrap();
    backbone.kill().await.unwrap();

    let backbone = test_run.backbone().await.unwrap();
    // It is back, and delivered its pending contribution.
    backbone.wait_for("the contributor is back", |progress| progress.n_contributors == 1).await.unwrap();
    let told = backbone.status().await.unwrap().paused;
    assert_eq!(told.as_deref(), Some("the data is looked at"), "visitors hear of it, too");
    let text = test_run.command(&["run", "show"]).await.unwrap();
    assert!(text.contains("Paused since") && text.contains("the data is looked at"), "{text}");
    let after = view(&mut test_run, &["show"]).await;
    assert_eq!((after.state, after.epoch), (RunState::Paused, paused.epoch), "no step in a pause");
    let resumed = view(&mut test_run, &["resume"]).await;
    assert_eq!(resumed.state, RunState::Training);
    backbone.wait_for_epoch(paused.epoch + 2).await.unwrap();
    assert_eq!(backbone.status().await.unwrap().paused, None);
    joined.interrupt().unwrap();
    let given = joined.end().await.unwrap();
    assert_eq!(backbone.samples_counted().await.unwrap(), given.n_samples, "{given:?}");
}

#[tokio::test]
async fn a_run_goes_back_to_a_checkpoint_as_a_later_epoch_with_all_credit_kept() {
    let mut test_run = TestRun::new(&operated()).unwrap();
    let backbone = test_run.backbone().await.unwrap();
    let given = test_run.join(&[&backbone.page(), "--samples", "1100"]).unwrap().end().await.unwrap();
    let n_first = given.n_samples;
    assert_eq!(backbone.contributions(n_first).await.unwrap().totals.n_samples, n_first);
    // SIGTERM stores a checkpoint of just this model.
    assert!(backbone.terminate().await.unwrap().success());
    let backbone = test_run.backbone().await.unwrap();
    let (good_epoch, good) = parameters(&backbone).await;
    let joined = test_run.join(&[&backbone.page()]).unwrap();
    backbone.wait_for_epoch(good_epoch + 3).await.unwrap();

    let far = refused(&mut test_run, &["run", "rollback", "--epoch", "999"]).await;
    assert!(far.contains("goes back to an earlier checkpoint"), "{far}");
    // Of every second epoch there is one, and of that of the end: a contribution may be as large as four steps need.
    let odd = if good_epoch == 1 { 3 } else { 1 };
    let none = refused(&mut test_run, &["run", "rollback", "--epoch", &odd.to_string()]).await;
    assert!(none.contains(&format!("no checkpoint of epoch {odd} is kept")), "{none}");
    view(&mut test_run, &["pause", "--reason", "going back"]).await;
    let back = view(&mut test_run, &["rollback", "--epoch", &good_epoch.to_string()]).await;
    assert!(back.epoch > good_epoch + 3, "epochs never go back: {back:?}");
    let (epoch, values) = parameters(&backbone).await;
    assert_eq!(epoch, back.epoch);
    assert!(values == good, "the parameters are those of the checkpoint");
    backbone.kill().await.unwrap();

    let backbone = test_run.backbone().await.unwrap();
    let (epoch, values) = parameters(&backbone).await;
    assert!(epoch == back.epoch && values == good, "a crash right afterwards changes nothing");
    backbone.kill().await.unwrap();
    let newest = test_run.storage().join(format!("checkpoints/{:012}.ckpt", back.epoch));
    std::fs::write(&newest, b"damaged").unwrap();
    let backbone = test_run.backbone().await.unwrap();
    let (epoch, values) = parameters(&backbone).await;
    assert!(
        epoch == back.epoch && values == good,
        "what was rolled back does not come back by a damaged file"
    );
    view(&mut test_run, &["resume"]).await;
    backbone.wait_for_epoch(back.epoch + 2).await.unwrap();
    joined.interrupt().unwrap();
    let given = joined.end().await.unwrap();
    let contributions = backbone.contributions(n_first + given.n_samples).await.unwrap();
    assert_eq!(contributions.n_contributors, 2);
}

#[tokio::test]
async fn a_learning_rate_that_was_changed_is_repeated_as_it_was() {
    // No checkpoint on the way: a crash repeats all steps, those of before the change and those of after it.
    let rare = operated().replace("checkpoint_every_epochs = 2", "checkpoint_every_epochs = 1000");
    let mut test_run = TestRun::new(&rare).unwrap();
    let backbone = test_run.backbone().await.unwrap();
    let joined = test_run.join(&[&backbone.page()]).unwrap();
    backbone.wait_for_epoch(2).await.unwrap();
    let set = view(&mut test_run, &["set", "learning_rate_factor=0.1", "gradient_norm_max=500"]).await;
    assert!((set.learning_rate - 0.005).abs() < 1e-6, "{set:?}");
    assert_eq!((set.settings.gradient_norm_max, set.changed.contributors_max), (500.0, None));
    backbone.wait_for_epoch(set.epoch + 2).await.unwrap();
    joined.interrupt().unwrap();
    joined.end().await.unwrap();
    // What was given last is in a step, too: one that is under way has the samples of a step still.
    let is_at_rest = |progress: &RunProgress| {
        progress.n_contributors == 0 && progress.n_samples < u64::from(progress.target_batch_size)
    };
    backbone.wait_for("everybody left", is_at_rest).await.unwrap();
    let before = parameters(&backbone).await;
    backbone.kill().await.unwrap();
    let backbone = test_run.backbone().await.unwrap();
    assert!(parameters(&backbone).await == before, "the same steps at the same rates");
    let shown = view(&mut test_run, &["show"]).await;
    assert_eq!(shown.changed, set.changed, "what was set holds over a restart");
    let back = view(&mut test_run, &["set", "learning_rate_factor="]).await;
    assert_eq!((back.settings.learning_rate_factor, back.changed.learning_rate_factor), (1.0, None));
    for (setting, want) in [
        ("target_batch_size=9", "the run's description"),
        ("contributors_max=100000", "1 to 256"),
        ("colour=blue", "unknown field"),
    ] {
        let error = refused(&mut test_run, &["run", "set", setting]).await;
        assert!(error.contains(want), "{setting}: {error}");
    }
}

#[tokio::test]
async fn a_blocked_peer_reads_why_and_comes_back_when_it_may() {
    let mut test_run = TestRun::new(&operated()).unwrap();
    let backbone = test_run.backbone().await.unwrap();
    let joined = test_run.join(&[&backbone.page()]).unwrap();
    backbone.wait_for_epoch(1).await.unwrap();
    let peers = |text: &str| -> PeerList { serde_json::from_str(text).unwrap() };
    let list = peers(&test_run.command(&["peers", "list", "--json"]).await.unwrap());
    let [contributor] = &list.contributors[..] else { panic!("{list:?}") };
    let peer = contributor.peer.clone();
    test_run.command(&["peers", "block", &peer, "--reason", "it floods"]).await.unwrap();
    joined.wait_for_log("has blocked this peer: it floods").await.unwrap();
    backbone.wait_for("it is out", |progress| progress.n_contributors == 0).await.unwrap();
    backbone.kill().await.unwrap();
    let backbone = test_run.backbone().await.unwrap();
    let list = peers(&test_run.command(&["peers", "list", "--json"]).await.unwrap());
    assert_eq!((list.blocked.len(), list.blocked[0].reason.as_str()), (1, "it floods"));
    assert!(list.contributors.is_empty(), "not after a restart either: {list:?}");
    test_run.command(&["peers", "unblock", &peer]).await.unwrap();
    backbone.wait_for("it is back", |progress| progress.n_contributors == 1).await.unwrap();
    let again = refused(&mut test_run, &["peers", "unblock", &peer]).await;
    assert!(again.contains("not blocked"), "{again}");
    let text = test_run.command(&["run", "audit", "--json"]).await.unwrap();
    let audit: AuditList = serde_json::from_str(&text).unwrap();
    let said: Vec<(&str, &str)> =
        audit.entries.iter().map(|entry| (entry.verb.as_str(), entry.outcome.as_str())).collect();
    let want = [
        ("block", "begun"),
        ("block", "done"),
        ("unblock", "begun"),
        ("unblock", "done"),
        ("unblock", "begun"),
        ("unblock", "the peer is not blocked"),
    ];
    assert_eq!(said, want);
}

#[tokio::test]
async fn an_exported_checkpoint_is_whole_and_says_what_it_is() {
    let mut test_run = TestRun::new(&operated()).unwrap();
    let backbone = test_run.backbone().await.unwrap();
    test_run.join(&[&backbone.page(), "--samples", "1100"]).unwrap().end().await.unwrap();
    backbone.wait_for_epoch(1).await.unwrap();
    let file = test_run.folder().join("model.ckpt");
    let said = test_run.command(&["run", "export", "--output", &file.display().to_string()]).await.unwrap();
    let exported = checkpoint::decode(&std::fs::read(&file).unwrap()).unwrap();
    let card = std::fs::read_to_string(test_run.folder().join("model.ckpt.card.json")).unwrap();
    let card: CheckpointCard = serde_json::from_str(&card).unwrap();
    assert_eq!((card.epoch, card.run.as_str()), (exported.epoch, "test-run"));
    assert!(said.contains(&card.sha256), "{said}");
    let list = test_run.command(&["run", "checkpoints", "--json"]).await.unwrap();
    let list: CheckpointList = serde_json::from_str(&list).unwrap();
    assert!(list.checkpoints.iter().any(|kept| kept.epoch == card.epoch && kept.n_bytes == card.n_bytes));
}

#[tokio::test]
async fn one_of_several_backbones_says_what_it_cannot_do_alone() {
    let other = "/ip4/127.0.0.1/tcp/1/p2p/12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN";
    let mut test_run = TestRun::new(&operated()).unwrap();
    test_run.aggregate_with(&[other.to_owned()]).unwrap();
    let _backbone = test_run.backbone().await.unwrap();
    for (args, want) in [
        (&["run", "pause", "--reason", "r"][..], "pause each of them"),
        (&["run", "rollback", "--epoch", "0"], "a model with more samples"),
        (&["run", "set", "learning_rate_factor=0.5"], "the same for all backbones"),
    ] {
        let error = refused(&mut test_run, args).await;
        assert!(error.contains(want), "{args:?}: {error}");
    }
    let alone = view(&mut test_run, &["pause", "--reason", "r", "--alone"]).await;
    assert_eq!((alone.state, alone.n_other_backbones), (RunState::Paused, 1));
}

#[tokio::test]
async fn a_backbone_that_is_gone_is_said_to_be_not_running() {
    let mut test_run = TestRun::new(&operated()).unwrap();
    let address = test_run.storage().join("operator.address");
    let backbone = test_run.backbone().await.unwrap();
    view(&mut test_run, &["show"]).await;
    backbone.kill().await.unwrap();
    assert!(address.exists(), "a crash leaves it");
    let crashed = refused(&mut test_run, &["run", "show"]).await;
    assert!(crashed.contains("`test-run` is not running"), "{crashed}");
    let backbone = test_run.backbone().await.unwrap();
    view(&mut test_run, &["show"]).await;
    assert!(backbone.terminate().await.unwrap().success());
    assert!(!address.exists());
    let stopped = refused(&mut test_run, &["run", "show"]).await;
    assert!(stopped.contains("`test-run` is not running"), "{stopped}");
}

#[tokio::test]
async fn no_secret_is_in_any_log() {
    let access = "[access]\nmode = \"invitation\"\n";
    let mut test_run = TestRun::new(&format!("{}\n{access}", operated())).unwrap().with_log("trace");
    let backbone = test_run.backbone().await.unwrap();
    let link = test_run.command(&["invite"]).await.unwrap();
    let code = link.trim().split_once("#invitation=").unwrap().1.to_owned();
    let page = backbone.page();
    let given =
        test_run.join(&[&page, "--invitation", &code, "--samples", "300"]).unwrap().end().await.unwrap();
    assert!(given.status.success(), "{given:?}");
    test_run.command(&["run", "list"]).await.unwrap();
    let token = std::fs::read_to_string(test_run.storage().join("admin.token")).unwrap();
    let logs = test_run.logs().unwrap();
    assert!(logs.len() > 10_000, "it is logged at all: {} bytes", logs.len());
    for (what, secret) in [("the operator's token", token.trim()), ("an invitation", &code)] {
        // A part of it is a secret, too.
        let line = logs.lines().find(|line| line.contains(&secret[..16]));
        assert!(line.is_none(), "{what}: {line:?}");
    }
}

/// A program that knows only the API's description generates requests from it.
#[tokio::test]
async fn the_api_is_as_its_description_says_for_any_request() {
    let requirements = include_str!("../../schemathesis/requirements.txt");
    let venv = tokio::task::spawn_blocking(|| pypi::environment("schemathesis", requirements));
    let venv = match venv.await.unwrap() {
        Ok(venv) => venv,
        Err(error) => return println!("SKIPPED: the admin API is not fuzzed: {error:#}"),
    };
    let mut test_run = TestRun::new(&operated()).unwrap();
    let backbone = test_run.backbone().await.unwrap();
    // More than one contribution may have, so that it is two steps at least.
    test_run.join(&[&backbone.page(), "--samples", "1100"]).unwrap().end().await.unwrap();
    test_run.write("schemathesis.toml", "[parameters]\n\"path.run\" = \"test-run\"\n").unwrap();
    let token = std::fs::read_to_string(test_run.storage().join("admin.token")).unwrap();
    let description = format!("{}/admin/v1/openapi.json", backbone.operator().unwrap());
    let folder = test_run.folder().to_owned();
    let fuzzed = tokio::task::spawn_blocking(move || {
        let authorization = format!("Authorization: Bearer {}", token.trim());
        let checks = "not_a_server_error,status_code_conformance,content_type_conformance,\
            response_headers_conformance,response_schema_conformance,negative_data_rejection,\
            unsupported_method";
        let args = ["run", &description, "--header", &authorization, "--checks", checks];
        let how = ["--phases", "examples,coverage,fuzzing", "--max-examples", "25", "--seed", "7"];
        let how = [&how[..], &["--request-timeout", "60", "--continue-on-failure"]].concat();
        pypi::run(&venv, "schemathesis", &[&args[..], &how].concat(), &folder)
    });
    let (said, is_content) = fuzzed.await.unwrap().unwrap();
    assert!(is_content, "{said}");
    assert!(view(&mut test_run, &["show"]).await.epoch >= 2, "the backbone is well");
}
