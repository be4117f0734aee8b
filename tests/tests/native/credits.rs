//! What contributors are told, what their receipts say and what the leaderboard shows is the same, whenever
//! the backbone dies.

use std::collections::BTreeSet;
use std::path::Path;

use barnraise_protocol::DisplayName;
use barnraise_protocol::access::PublicKey;
use barnraise_protocol::receipt::{Receipt, SignedReceipt};
use barnraise_tests::process::TestRun;
use libp2p::PeerId;

use super::SMALL;

/// Those of a file, each verified.
pub(super) fn receipts(path: &Path) -> Vec<Receipt> {
    let text = std::fs::read_to_string(path).unwrap();
    let verified = |line: &str| {
        let signed: SignedReceipt = serde_json::from_str(line).unwrap();
        assert_eq!(signed.verify(), Ok(()));
        signed.receipt
    };
    text.lines().map(verified).collect()
}

fn peer_id(key: PublicKey) -> String {
    PeerId::from_bytes(&key.to_peer_id()).unwrap().to_string()
}

#[tokio::test]
async fn receipts_leaderboard_and_database_agree_through_sigkill() {
    let mut test_run = TestRun::new(SMALL).unwrap();
    let mut backbone = test_run.backbone().await.unwrap();
    let file = test_run.storage().with_file_name("receipts.jsonl");
    let joined =
        test_run.join(&[&backbone.page(), "--receipts", file.to_str().unwrap(), "--name", "Ada"]).unwrap();
    // Killed between two checkpoints and behind one, at any point of accepting or writing.
    for epochs in [2, 7, 3] {
        let epoch = backbone.wait_for_epoch(0).await.unwrap().epoch;
        backbone.wait_for_epoch(epoch + epochs).await.unwrap();
        backbone.kill().await.unwrap();
        backbone = test_run.backbone().await.unwrap();
    }
    let epoch = backbone.wait_for_epoch(0).await.unwrap().epoch;
    backbone.wait_for_epoch(epoch + 2).await.unwrap();
    joined.interrupt().unwrap();
    let given = joined.end().await.unwrap();
    assert!(given.status.success(), "{given:?}");

    let receipts = receipts(&file);
    let n_samples: u64 = receipts.iter().map(|receipt| u64::from(receipt.n_samples)).sum();
    assert_eq!(n_samples, given.n_samples, "a receipt for all that was accepted: {given:?}");
    let ids: BTreeSet<u64> = receipts.iter().map(|receipt| receipt.contribution_id).collect();
    assert_eq!(ids.len(), receipts.len(), "no receipt twice");
    let backbone_id = backbone.tcp().unwrap().to_string();
    assert!(receipts.iter().all(|receipt| backbone_id.ends_with(&peer_id(receipt.reducer))));

    let shown = backbone.contributions(n_samples).await.unwrap();
    assert_eq!(backbone.samples_counted().await.unwrap(), n_samples);
    assert_eq!((shown.n_contributors, shown.contributors.len()), (1, 1));
    let totals = &shown.contributors[0];
    assert_eq!((totals.peer.clone(), totals.totals), (peer_id(receipts[0].peer), shown.totals));
    assert_eq!(totals.name.as_ref().map(DisplayName::as_str), Some("Ada"));
    assert_eq!(totals.totals.n_contributions, receipts.len() as u64);
    assert_eq!(totals.totals.n_bytes, receipts.iter().map(|receipt| receipt.n_bytes).sum::<u64>());
    let milliseconds: u64 = receipts.iter().map(|receipt| u64::from(receipt.milliseconds)).sum();
    assert_eq!(totals.totals.seconds, milliseconds / 1000);
    assert_eq!(Some(totals.last_epoch), receipts.iter().map(|receipt| receipt.epoch).max());
    assert!(shown.aggregators[0].n_steps > 0 && shown.aggregators[0].n_bytes > 0, "{shown:?}");

    // Nothing changes by dying once more.
    backbone.kill().await.unwrap();
    let backbone = test_run.backbone().await.unwrap();
    assert_eq!(backbone.contributions(n_samples).await.unwrap().contributors, shown.contributors);
    // The same, as the command line adds it up.
    let said = test_run.run(&["receipts", file.to_str().unwrap()]).await.unwrap();
    let want = format!("test-run: {n_samples} samples in {} contributions of ", receipts.len());
    assert!(said.starts_with(&want) && said.lines().count() == 1, "{said}");
}
