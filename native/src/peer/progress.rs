//! `barnraise progress`: the progress of a run, from the DHT alone; no particular backbone has to be up.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::Context;
use barnraise_protocol::access::PublicKey;
use barnraise_protocol::dht::UnixMillis;
use barnraise_protocol::dht::progress::BackboneProgress;
use barnraise_relay::{Node, NodeConfig};
use libp2p::PeerId;
use libp2p::identity::Keypair;

use super::args::{ProgressArgs, RunName};
use super::find;

/// Digits of a model's hash that are shown.
const HASH_DIGITS: usize = 12;

/// Looks the run up through the DHT peer at the address. Returns the text to print.
///
/// # Errors
/// The peer does not answer, or finds no record of the run.
pub async fn run(args: ProgressArgs) -> anyhow::Result<String> {
    let node = Node::start(Keypair::generate_ed25519(), NodeConfig::default()).await?;
    let asking = async {
        let asked = node.dial(args.address.clone()).await.context("the peer of the DHT cannot be reached")?;
        Ok(find::progress_of(&node, asked, &args.run.id).await?)
    };
    let said: anyhow::Result<Vec<BackboneProgress>> = asking.await;
    node.shutdown().await;
    table(&args.run, said?, find::now())
}

/// A line for each backbone, and one for all of them.
fn table(run: &RunName, mut said: Vec<BackboneProgress>, now: UnixMillis) -> anyhow::Result<String> {
    let n_said = said.len();
    if let Some(authority) = run.authority {
        let of_authority = said.iter().find(|said| said.peer == authority);
        let named: Vec<PublicKey> = of_authority.map_or_else(Vec::new, |said| said.aggregators.clone());
        said.retain(|said| said.peer == authority || named.contains(&said.peer));
    }
    let n_others = n_said - said.len();
    if said.is_empty() {
        let id = &run.id;
        anyhow::bail!(
            "no progress record of the run `{id}` was found ({n_others} others are not its authority's)"
        );
    }
    said.sort_by_key(|said| (std::cmp::Reverse(said.progress.n_samples_total), said.peer));
    let mut text = String::new();
    for said in &said {
        line(&mut text, said, now)?;
    }
    let furthest = said.iter().map(|said| said.progress.epoch).max().unwrap_or(0);
    let n_contributors = said.iter().fold(0u64, |sum, said| sum + u64::from(said.progress.n_contributors));
    let speed: f64 = said.iter().map(|said| f64::from(said.progress.samples_per_second)).sum();
    let n_backbones = said.len();
    writeln!(
        text,
        "{n_backbones} up, epoch {furthest}, {n_contributors} contributors, {speed:.1} samples/s"
    )?;
    if n_others > 0 {
        writeln!(text, "{n_others} others are left out: the authority does not name them.")?;
    }
    Ok(text)
}

fn line(text: &mut String, said: &BackboneProgress, now: UnixMillis) -> std::fmt::Result {
    let peer = PeerId::from_bytes(&said.peer.to_peer_id());
    let peer = peer.map_or_else(|_| said.peer.to_string(), |peer| peer.to_string());
    let progress = &said.progress;
    let model = progress.model.map_or_else(|| "-".to_owned(), |hash| hash.to_string());
    let model = model.get(..HASH_DIGITS).unwrap_or(&model);
    let ago = Duration::from_millis(now.0.saturating_sub(said.reported_at.0)).as_secs();
    writeln!(
        text,
        "{peer}  epoch {}  model {model}  {} samples in it  {} for the next step  {} contributors  \
         {:.1} samples/s  {ago} s ago",
        progress.epoch,
        progress.n_samples_total,
        progress.n_samples,
        progress.n_contributors,
        progress.samples_per_second,
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use barnraise_protocol::Sha256Hash;
    use barnraise_protocol::access::KeyPair;
    use barnraise_protocol::dht::progress::LocalProgress;

    use super::*;

    const NOW: UnixMillis = UnixMillis(100_000);

    fn says(seed: u8, epoch: u64, aggregators: Vec<PublicKey>) -> BackboneProgress {
        let progress = LocalProgress {
            epoch,
            n_samples_total: epoch.saturating_mul(256),
            model: Some(Sha256Hash([seed; 32])),
            n_samples: 7,
            n_contributors: 2,
            samples_per_second: 1.5,
        };
        let peer = KeyPair::from_seed(&[seed; 32]).public();
        BackboneProgress { peer, progress, bytes_per_second: 1, aggregators, reported_at: UnixMillis(91_000) }
    }

    #[test]
    fn only_backbones_that_the_authority_names_are_shown() {
        let other = says(2, 9, Vec::new());
        let authority = says(1, 8, vec![other.peer]);
        let dishonest = says(3, u64::MAX, Vec::new());
        let run = RunName { id: "barn".into(), authority: Some(authority.peer) };
        let said = vec![dishonest, authority.clone(), other];
        let text = table(&run, said.clone(), NOW).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 4, "{text}");
        assert!(lines[0].contains("epoch 9  model 020202020202  2304 samples in it  7 for the next step"));
        assert!(lines[0].ends_with("2 contributors  1.5 samples/s  9 s ago"), "{text}");
        assert_eq!(lines[2], "2 up, epoch 9, 4 contributors, 3.0 samples/s");
        assert!(lines[3].starts_with("1 others"), "{text}");
        // Without its authority everybody is shown.
        let open = RunName { authority: None, ..run };
        assert_eq!(table(&open, said, NOW).unwrap().lines().count(), 4);
    }

    #[test]
    fn a_run_without_records_is_an_error() {
        let authority = KeyPair::from_seed(&[8; 32]).public();
        let run = RunName { id: "barn".into(), authority: Some(authority) };
        let error = table(&run, vec![says(1, 1, Vec::new())], NOW).unwrap_err().to_string();
        assert!(error.contains("`barn`") && error.contains("1 others"), "{error}");
    }
}
