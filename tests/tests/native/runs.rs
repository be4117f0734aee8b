//! Several runs in one process, each at its own address.

use std::time::Duration;

use barnraise_protocol::api::{Room, RunStatus, Runs};
use barnraise_tests::process::{HANG, TestRun};

use super::SMALL;

/// The small run under another id, with further sections.
fn named(id: &str, sections: &str) -> String {
    format!("{}\n{sections}\n", SMALL.replace("test-run", id))
}

#[tokio::test]
async fn each_run_of_a_process_is_listed_and_joined_at_its_own_address() {
    let mut test_run = TestRun::new(SMALL).unwrap();
    test_run.add_run(&named("second-run", "")).unwrap();
    test_run.add_run(&named("hidden-run", "[network]\nlisted = false")).unwrap();
    let mut backbone = test_run.backbone().await.unwrap();

    let (status, list) = backbone.answer("/api/runs").await.unwrap();
    let Runs { runs, takes_codes } = serde_json::from_str(&list).unwrap();
    let ids: Vec<&str> = runs.iter().map(|run| run.id.as_str()).collect();
    assert_eq!((status, ids, takes_codes), (200, vec!["test-run", "second-run"], false));
    assert_eq!(backbone.answer("/api/run").await.unwrap().0, 404);
    assert_eq!(backbone.answer("/").await.unwrap().0, 307);
    let hidden = backbone.answer("/run/hidden-run/api/run").await.unwrap().1;
    assert_eq!(serde_json::from_str::<RunStatus>(&hidden).unwrap().run.identity.run_id, "hidden-run");

    let given = test_run.join(&[&backbone.page()]).unwrap().end().await.unwrap();
    assert_eq!(given.status.code(), Some(1), "{given:?}");
    assert!(given.log.contains("several runs are at"), "{given:?}");
    assert!(given.log.contains("/run/second-run") && !given.log.contains("hidden-run"), "{given:?}");

    for id in ["test-run", "second-run"] {
        backbone.look_at(id);
        let given = test_run.join(&[&backbone.page(), "--samples", "600"]).unwrap().end().await.unwrap();
        assert!(given.status.success() && given.n_samples >= 600, "{id}: {given:?}");
        assert_eq!(backbone.samples_counted().await.unwrap(), given.n_samples, "{id}: {given:?}");
    }
    assert!(backbone.terminate().await.unwrap().success());
}

#[tokio::test]
async fn runs_that_share_what_is_their_own_are_refused_before_anything_starts() {
    let mut test_run = TestRun::new(SMALL).unwrap();
    test_run.add_run(SMALL).unwrap();
    let error = test_run.backbone().await.unwrap_err().to_string();
    assert!(error.contains("two runs have the id `test-run`"), "{error}");
    assert!(!test_run.storage().exists(), "nothing was made");
}

#[tokio::test]
async fn the_runs_of_a_folder_start_change_and_end_with_its_files() {
    let mut test_run = TestRun::new(SMALL).unwrap().with_run_folder().unwrap();
    let first = test_run.write_run("a", &named("first-run", "")).unwrap();
    let mut backbone = test_run.backbone().await.unwrap();
    backbone.wait_for_runs(&["first-run"]).await.unwrap();
    let at_root = backbone.page();
    let given = test_run.join(&[&at_root, "--samples", "300"]).unwrap().end().await.unwrap();
    assert!(given.status.success(), "one that is alone is at the root: {given:?}");

    test_run.write_run("b", &named("second-run", "")).unwrap();
    backbone.wait_for_runs(&["first-run", "second-run"]).await.unwrap();
    backbone.look_at("second-run");
    let given = test_run.join(&[&backbone.page(), "--samples", "300"]).unwrap().end().await.unwrap();
    assert!(given.status.success(), "{given:?}");
    let counted = backbone.samples_counted().await.unwrap();

    test_run.write_run("c", "[run]\nname = \"no key\"").unwrap();
    backbone.wait_for_log("the run is not started").await.unwrap();
    test_run.write_run("d", &named("first-run", "")).unwrap();
    backbone.wait_for_log("two runs have the id `first-run`").await.unwrap();
    assert!(backbone.log().unwrap().contains("c.toml"), "a file with a mistake is named");

    let titled = named("second-run", "").replace("[run]", "[run]\ntitle = \"Another title\"");
    test_run.write_run("b", &titled).unwrap();
    backbone.wait_for_log("its file has changed").await.unwrap();
    let is_changed = async {
        // Between its end and its start it has no status.
        while !backbone.status().await.is_ok_and(|status| status.run.identity.title == "Another title") {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(HANG, is_changed).await.unwrap();
    backbone.wait_for_runs(&["first-run", "second-run"]).await.unwrap();
    assert_eq!(backbone.status().await.unwrap().run.identity.title, "Another title");
    assert_eq!(backbone.samples_counted().await.unwrap(), counted, "it goes on where it was");

    std::fs::remove_file(first).unwrap();
    // The file with the same id takes its place.
    test_run.write_run("d", &named("third-run", "")).unwrap();
    backbone.wait_for_runs(&["second-run", "third-run"]).await.unwrap();
    assert_eq!(backbone.answer("/run/first-run/api/run").await.unwrap().0, 404);
    assert!(backbone.terminate().await.unwrap().success());
}

#[tokio::test]
async fn the_code_of_a_room_lets_somebody_into_a_run_that_is_not_listed() {
    let mut test_run = TestRun::new(SMALL).unwrap();
    let private =
        "[network]\nlisted = false\n[access]\nmode = \"invitation\"\nroom = true\npoll_interval = \"1s\"";
    let config = test_run.add_run(&named("class-run", private)).unwrap();
    let mut backbone = test_run.backbone().await.unwrap();
    let list: Runs = serde_json::from_str(&backbone.answer("/api/runs").await.unwrap().1).unwrap();
    assert!(list.takes_codes && list.runs.len() == 1, "{list:?}");

    let code = test_run.run(&["invite", "--room", "--uses", "1", "--config", &config]).await.unwrap();
    let code = code.trim();
    assert_eq!(code.len(), "K7M-4PQ".len(), "{code}");
    let (status, room) = backbone.answer(&format!("/api/rooms/{}", code.to_lowercase())).await.unwrap();
    assert_eq!(status, 200, "{room}");
    let room: Room = serde_json::from_str(&room).unwrap();
    assert_eq!((room.run.as_str(), room.invitation.len()), ("class-run", 32));
    for wrong in ["000-000", "nonsense", "K7M-4PQ-5"] {
        assert_eq!(backbone.answer(&format!("/api/rooms/{wrong}")).await.unwrap().0, 404, "{wrong}");
    }

    // A machine without a browser types it, too: at the address of the list, which names no run.
    let list = backbone.page();
    let given =
        test_run.join(&[&list, "--invitation", code, "--samples", "300"]).unwrap().end().await.unwrap();
    backbone.look_at("class-run");
    assert!(given.status.success() && given.n_samples >= 300, "{given:?}");
    let used_up = backbone.answer(&format!("/api/rooms/{code}")).await.unwrap();
    assert_eq!(used_up.0, 404, "its one place is taken");
    assert!(!test_run.logs().unwrap().contains(code), "a code is in no log");
}
