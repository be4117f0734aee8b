//! A run and its native peer through stops, signals and crashes.

use barnraise_protocol::api::RunStatus;
use barnraise_tests::process::TestRun;
use tokio::net::TcpSocket;

use super::SMALL;

#[tokio::test]
async fn a_native_peer_trains_and_leaves_at_ctrl_c_with_all_of_its_work_counted() {
    let mut test_run = TestRun::new(SMALL).unwrap();
    let backbone = test_run.backbone().await.unwrap();
    let joined = test_run.join(&[&backbone.page()]).unwrap();
    let progress = backbone.wait_for_epoch(4).await.unwrap();
    assert_eq!(progress.n_contributors, 1);
    joined.interrupt().unwrap();
    let given = joined.end().await.unwrap();
    assert!(given.status.success(), "{given:?}");
    assert!(given.n_samples >= 4 * 256, "{given:?}");
    assert_eq!(backbone.samples_counted().await.unwrap(), given.n_samples, "{given:?}");
}

#[tokio::test]
async fn a_peer_leaves_by_itself_after_its_samples() {
    let mut test_run = TestRun::new(SMALL).unwrap();
    let backbone = test_run.backbone().await.unwrap();
    let address = backbone.tcp().unwrap().to_string();
    let joined = test_run.join(&[&address, "--samples", "600"]).unwrap();
    let given = joined.end().await.unwrap();
    assert!(given.status.success(), "{given:?}");
    assert!(given.n_samples >= 600, "{given:?}");
    assert_eq!(backbone.samples_counted().await.unwrap(), given.n_samples, "{given:?}");
}

#[tokio::test]
async fn what_cannot_be_joined_says_why() {
    let mut test_run = TestRun::new(SMALL).unwrap();
    let backbone = test_run.backbone().await.unwrap();
    let no_run = format!("{}/elsewhere", backbone.page());
    for (address, device, want) in
        [(no_run.as_str(), "cpu", "no run at"), (&backbone.page(), "cuda", "--device cuda was asked for")]
    {
        let joined = test_run.join(&[address, "--device", device]).unwrap();
        let given = joined.end().await.unwrap();
        assert_eq!(given.status.code(), Some(1), "{address}: {given:?}");
        assert!(given.log.contains(want), "{address}: {given:?}");
    }
}

/// A machine that boots before its network does, or while the backbone is being started again.
#[tokio::test]
async fn what_may_pass_is_waited_for_and_told_once() {
    let mut test_run = TestRun::new(SMALL).unwrap();
    // A port of its own, known before anybody listens there. While it is held here the system gives it to nobody who
    // asks for any port, and the backbone, which asks for this one, may listen.
    let held = TcpSocket::new_v4().unwrap();
    held.set_reuseaddr(true).unwrap();
    held.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let free = held.local_addr().unwrap();
    test_run = test_run.at(&free.to_string());
    let page = format!("http://{free}");
    let key = test_run.storage().with_file_name("peer.key").display().to_string();
    let joined = test_run.join(&[&page, "--identity", &key]).unwrap();
    joined.wait_for_log(&format!("No connection (cannot reach {page}/api/run")).await.unwrap();
    // The key is that one's for as long as it lives.
    let second = test_run.join(&[&page, "--identity", &key]).unwrap().end().await.unwrap();
    assert_eq!(second.status.code(), Some(1), "{second:?}");
    assert!(second.log.contains("is in use by another program"), "{second:?}");

    let backbone = test_run.backbone().await.unwrap();
    backbone.wait_for_epoch(1).await.unwrap();
    let log = joined.log().unwrap();
    assert_eq!(log.matches("No connection").count(), 1, "{log}");
    // What is computed is handed in when the terminal is closed, too.
    joined.hang_up().unwrap();
    let given = joined.end().await.unwrap();
    assert!(given.status.success() && given.n_samples >= 256, "{given:?}");
    assert_eq!(backbone.samples_counted().await.unwrap(), given.n_samples, "{given:?}");
}

#[tokio::test]
async fn sigterm_stores_a_checkpoint_from_which_a_restart_resumes() {
    let mut test_run = TestRun::new(SMALL).unwrap();
    let backbone = test_run.backbone().await.unwrap();
    let joined = test_run.join(&[&backbone.page()]).unwrap();
    backbone.wait_for_epoch(3).await.unwrap();
    joined.interrupt().unwrap();
    let given = joined.end().await.unwrap();
    assert_eq!(backbone.samples_counted().await.unwrap(), given.n_samples, "{given:?}");
    // What it handed in when it left may have made another step.
    let before = backbone.status_at_rest().await.unwrap();
    assert!(backbone.terminate().await.unwrap().success());

    let backbone = test_run.backbone().await.unwrap();
    let after = backbone.status().await.unwrap();
    assert_eq!(after.progress.epoch, before.progress.epoch);
    // The accuracy may come between the two looks.
    let step = |status: &RunStatus| {
        status.history.last().map(|point| (point.epoch, point.n_samples_total, point.train_loss))
    };
    assert_eq!(step(&after), step(&before));
    assert_eq!(after.addresses, before.addresses);
    assert_eq!(backbone.samples_counted().await.unwrap(), given.n_samples);
}

#[tokio::test]
async fn after_sigkill_nothing_accepted_is_lost_and_the_peer_goes_on_by_itself() {
    let mut test_run = TestRun::new(SMALL).unwrap();
    let mut backbone = test_run.backbone().await.unwrap();
    let joined = test_run.join(&[&backbone.page()]).unwrap();
    // Between two checkpoints, right behind one, and from the journal alone.
    for epochs in [2, 6, 11] {
        let epoch = backbone.wait_for_epoch(0).await.unwrap().epoch;
        let shown = backbone.wait_for_epoch(epoch + epochs).await.unwrap();
        backbone.kill().await.unwrap();
        backbone = test_run.backbone().await.unwrap();
        let resumed = backbone.status().await.unwrap();
        assert!(resumed.progress.epoch >= shown.epoch, "{resumed:?}");
    }
    let epoch = backbone.wait_for_epoch(0).await.unwrap().epoch;
    backbone.wait_for_epoch(epoch + 3).await.unwrap();
    joined.interrupt().unwrap();
    let given = joined.end().await.unwrap();
    assert!(given.status.success(), "{given:?}");
    assert_eq!(backbone.samples_counted().await.unwrap(), given.n_samples, "{given:?}");
}

/// A disk that forgets costs what it forgot: neither the run, nor what can still be read, nor an epoch.
#[tokio::test]
async fn a_damaged_entry_of_the_journal_costs_its_own_samples_and_no_epoch_comes_twice() {
    let sections = SMALL.replace("checkpoint_every_epochs = 7", "checkpoint_every_epochs = 1000000");
    assert_ne!(sections, SMALL);
    let mut test_run = TestRun::new(&sections).unwrap();
    let backbone = test_run.backbone().await.unwrap();
    let joined = test_run.join(&[&backbone.page()]).unwrap();
    let shown = backbone.wait_for_epoch(5).await.unwrap();
    backbone.kill().await.unwrap();
    drop(joined);
    let journal = test_run.storage().join("journal");
    let entry = journal.join("000000000003/00000000.grad");
    let mut bytes = std::fs::read(&entry).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&entry, bytes).unwrap();

    let backbone = test_run.backbone().await.unwrap();
    let epoch = backbone.status().await.unwrap().progress.epoch;
    assert!(epoch > shown.epoch, "{epoch} after {}", shown.epoch);
    assert!(backbone.log().unwrap().contains("a step cannot be repeated"));
    assert!(journal.join("corrupt/000000000003-00000000.grad").exists());
    let _joined = test_run.join(&[&backbone.page()]).unwrap();
    let shown = backbone.wait_for_epoch(epoch + 3).await.unwrap();
    backbone.kill().await.unwrap();
    let backbone = test_run.backbone().await.unwrap();
    let resumed = backbone.status().await.unwrap();
    assert!(resumed.progress.epoch >= shown.epoch, "{resumed:?}");
}

/// Between a crash and the restart the operator edits what contributions may be: what was acknowledged stays.
#[tokio::test]
async fn an_edited_file_after_sigkill_costs_nothing_that_was_acknowledged() {
    let sections = SMALL.replace("checkpoint_every_epochs = 7", "checkpoint_every_epochs = 1000000");
    let mut test_run = TestRun::new(&sections).unwrap();
    let backbone = test_run.backbone().await.unwrap();
    // Five steps, and a part of the sixth.
    let joined = test_run.join(&[&backbone.page(), "--samples", "1400"]).unwrap();
    let given = joined.end().await.unwrap();
    assert!(given.status.success() && given.n_samples >= 1400, "{given:?}");
    let epoch = backbone.status().await.unwrap().progress.epoch;
    backbone.kill().await.unwrap();
    let edit = |sections: &mut toml::Table| {
        let scheme = sections["scheme"]["synchronous"].as_table_mut().unwrap();
        let mut set = |key: &str, value: toml::Value| scheme.insert(key.into(), value);
        set("gradient_codec", "int8".into());
        set("contribution_samples_max", 32.into());
        set("gradient_norm_max", 0.001.into());
    };
    test_run.configure(edit).unwrap();
    let backbone = test_run.backbone().await.unwrap();
    // What was shown before may be half a second old.
    assert!(backbone.status().await.unwrap().progress.epoch >= epoch);
    assert_eq!(backbone.samples_counted().await.unwrap(), given.n_samples, "{given:?}");
    assert!(!test_run.storage().join("journal/corrupt").exists());
}
