//! A run whose disk fills up while it trains, on a file system of its own.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use barnraise_protocol::access::{BackboneToContributor as Down, ContributorToBackbone as Up};
use barnraise_tests::client::TestClient;
use barnraise_tests::process::{BackboneProcess, HANG, TestRun, metric};
use libp2p::identity::Keypair;

use super::SMALL;
use super::credits::receipts;

/// Room for the run with what it wants to have free, and not for much more.
const SIZE: &str = "40m";

/// A file system in memory. Mounting it takes root, or sudo without a password: without either this test fails and says
/// so, because nothing else fills a disk as a disk fills.
struct MountedDisk(PathBuf);

fn as_root(program: &str, args: &[&str]) {
    let is_root = std::fs::metadata("/proc/self").is_ok_and(|about| {
        use std::os::unix::fs::MetadataExt as _;
        about.uid() == 0
    });
    let mut command = if is_root { Command::new(program) } else { Command::new("sudo") };
    if !is_root {
        command.args(["-n", program]);
    }
    let output = command.args(args).output().unwrap();
    assert!(output.status.success(), "{program} {args:?} takes root, or sudo without a password: {output:?}");
}

impl MountedDisk {
    fn at(folder: &Path) -> Self {
        std::fs::create_dir_all(folder).unwrap();
        let place = folder.to_str().unwrap();
        as_root("mount", &["-t", "tmpfs", "-o", &format!("size={SIZE},mode=0777"), "tmpfs", place]);
        Self(folder.to_owned())
    }
}

impl Drop for MountedDisk {
    fn drop(&mut self) {
        as_root("umount", &["--lazy", self.0.to_str().unwrap()]);
    }
}

/// Writes until nothing more fits.
fn fill(folder: &Path) -> PathBuf {
    let path = folder.join("somebody-elses");
    let mut file = File::create(&path).unwrap();
    while file.write_all(&[7; 4096]).is_ok() {}
    path
}

async fn until_paused(backbone: &BackboneProcess, is_paused: bool) -> String {
    let looking = async {
        loop {
            let status = backbone.status().await.unwrap();
            if status.paused.is_some() == is_paused {
                return status.paused.unwrap_or_default();
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let looked = tokio::time::timeout(HANG, looking).await;
    looked.unwrap_or_else(|_| panic!("paused is not {is_paused}:\n{}", backbone.log().unwrap()))
}

#[tokio::test]
async fn a_full_disk_pauses_a_run_which_says_so_everywhere_heals_and_loses_no_receipt() {
    let sections = format!("{SMALL}\n[network]\noperator = \"127.0.0.1:0\"\nupnp = false\n");
    let mut test_run = TestRun::new(&sections).unwrap();
    let mounted = MountedDisk::at(&test_run.storage());
    let mut backbone = test_run.backbone().await.unwrap();
    let file = test_run.storage().with_file_name("receipts.jsonl");
    let joined = test_run.join(&[&backbone.page(), "--receipts", file.to_str().unwrap()]).unwrap();
    let mut epoch = backbone.wait_for_epoch(9).await.unwrap().epoch;
    for _ in 0..2 {
        let filler = fill(&mounted.0);
        let reason = until_paused(&backbone, true).await;
        assert!(reason.contains("disk is full"), "{reason}");
        for ready in backbone.ready().await.unwrap() {
            assert!(ready.contains("disk is full"), "{ready}");
        }
        let metrics = backbone.metrics().await.unwrap();
        assert!(metric(&metrics, "barnraise_disk_refuses").unwrap() > 0.0);
        let wanted = metric(&metrics, "barnraise_disk_wanted_bytes").unwrap();
        assert!(metric(&metrics, "barnraise_disk_free_bytes").unwrap() < 2.0 * wanted);
        let shown = test_run.command(&["run", "show"]).await.unwrap();
        assert!(shown.contains("disk is full"), "{shown}");
        joined.wait_for_log("disk is full").await.unwrap();
        std::fs::remove_file(filler).unwrap();
        until_paused(&backbone, false).await;
        epoch = backbone.wait_for_epoch(epoch + 8).await.unwrap().epoch;
    }
    backbone.kill().await.unwrap();
    backbone = test_run.backbone().await.unwrap();
    epoch = backbone.wait_for_epoch(0).await.unwrap().epoch.max(epoch);
    backbone.wait_for_epoch(epoch + 2).await.unwrap();
    joined.interrupt().unwrap();
    let given = joined.end().await.unwrap();
    assert!(given.status.success(), "{given:?}");
    let receipts = receipts(&file);
    let n_samples: u64 = receipts.iter().map(|receipt| u64::from(receipt.n_samples)).sum();
    assert_eq!(n_samples, given.n_samples, "{given:?}");
    let shown = backbone.contributions(n_samples).await.unwrap();
    assert_eq!(shown.totals.n_contributions, receipts.len() as u64, "{shown:?}");
    assert_eq!(backbone.samples_counted().await.unwrap(), n_samples);
    // Nobody else says anything else after one more start.
    backbone.kill().await.unwrap();
    let backbone = test_run.backbone().await.unwrap();
    assert_eq!(backbone.contributions(n_samples).await.unwrap().contributors, shown.contributors);
    assert!(backbone.terminate().await.unwrap().success());
}

fn code_of(link: &str) -> String {
    link.trim().split_once("/#invitation=").expect("a link").1.to_owned()
}

/// Who asks the backbone to be let in by this code, and what it answers.
async fn redeem(backbone: &BackboneProcess, keypair: &Keypair, code: &str) -> Result<(), String> {
    let client = TestClient::connect_as(keypair.clone(), backbone.tcp().unwrap()).await.unwrap();
    match client.ask(&Up::Redeem { code: code.to_owned() }).await {
        Ok(Down::Granted(_)) => Ok(()),
        Ok(other) => panic!("{other:?}"),
        Err(refused) => Err(refused.to_string()),
    }
}

#[tokio::test]
async fn a_full_disk_lets_nobody_in_or_out_says_so_and_loses_no_invitation() {
    let sections = format!(
        "{SMALL}\n[network]\nupnp = false\n[access]\nmode = \"invitation\"\npoll_interval = \"1s\"\n"
    );
    let mut test_run = TestRun::new(&sections).unwrap();
    let mounted = MountedDisk::at(&test_run.storage());
    let mut backbone = test_run.backbone().await.unwrap();
    let [first, second, third] = std::array::from_fn(|_| Keypair::generate_ed25519());
    let code = code_of(&test_run.command(&["invite", "--uses", "2"]).await.unwrap());
    redeem(&backbone, &first, &code).await.unwrap();
    let revoked = first.public().to_peer_id().to_string();

    let filler = fill(&mounted.0);
    until_paused(&backbone, true).await;
    for _ in 0..3 {
        let refused = redeem(&backbone, &second, &code).await.unwrap_err();
        assert!(refused.contains("disk is full"), "{refused}");
    }
    // Who is in already stays, and is told nothing else.
    redeem(&backbone, &first, &code).await.unwrap();
    for command in [&["invite"][..], &["revoke", &revoked]] {
        let error = format!("{:#}", test_run.command(command).await.unwrap_err());
        assert!(error.contains("No space left") || error.contains("is full"), "{command:?}: {error}");
    }

    std::fs::remove_file(filler).unwrap();
    until_paused(&backbone, false).await;
    // The use that was not granted was not lost, and there is no other.
    redeem(&backbone, &second, &code).await.unwrap();
    let refused = redeem(&backbone, &third, &code).await.unwrap_err();
    assert!(refused.contains("as often as it may be"), "{refused}");
    let another = code_of(&test_run.command(&["invite"]).await.unwrap());
    redeem(&backbone, &third, &another).await.unwrap();
    assert!(test_run.command(&["revoke", &revoked]).await.unwrap().starts_with("1 token was taken back"));
    for _ in 0..2 {
        let refused = redeem(&backbone, &first, &another).await.unwrap_err();
        assert!(refused.contains("access was revoked"), "{refused}");
        backbone.kill().await.unwrap();
        backbone = test_run.backbone().await.unwrap();
        redeem(&backbone, &second, &code).await.unwrap();
    }
}
