//! `shards`: what a backbone gives away of the data, with native peers that pass shards on and with peers that do
//! not. Everything is real processes on this machine; peers begin with empty folders.

use std::time::Duration;

use anyhow::{Result, ensure};
use barnraise_tests::process::{PeerProcess, TestRun, metric};
use clap::Args;

use crate::ratio::table;

/// Longer than anything takes.
const HANG: Duration = Duration::from_secs(3600);
const CONFIG: &str = r#"
[run]
id = "shards"

[model]
kind = { mlp = { hidden = [32] } }

[data]
shuffle_buffer_samples = 2000

[scheme.synchronous]
target_batch_size = 4096
micro_batch_size = 64

[network]
operator = "127.0.0.1:0"

[evaluation]
every_epochs = 1000
"#;

#[derive(Debug, Args)]
pub(crate) struct ShardArgs {
    /// Native peers
    #[arg(long, default_value_t = 8)]
    peers: usize,
    /// Samples that each contributes; the training set has 60,000
    #[arg(long, default_value_t = 60_000)]
    samples: u64,
    /// Samples in a shard
    #[arg(long, default_value_t = 500)]
    shard_samples: usize,
    /// What each peer gives away, a second
    #[arg(long, default_value = "512KiB")]
    share: String,
    /// What each peer keeps
    #[arg(long, default_value = "2GiB")]
    keep: String,
}

/// Cost of one group of peers to the backbone.
struct Cost {
    n_shards: usize,
    data_bytes: f64,
    given_shards: f64,
    given_bytes: f64,
    seconds: f64,
}

/// `shards`: the same peers without sharing and with it.
pub(crate) async fn compare(args: &ShardArgs) -> Result<()> {
    let head = ["data", "MB given by the backbone", "times each shard", "times fewer bytes", "seconds"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    let mut before = None;
    for (name, share) in [("from the backbone alone", "0"), ("passed on by peers", &args.share[..])] {
        let cost = measure(args, share).await?;
        let ratio = before.map_or(1.0, |bytes: f64| bytes / cost.given_bytes);
        before = before.or(Some(cost.given_bytes));
        rows.push(vec![
            name.to_owned(),
            format!("{:.1}", cost.given_bytes / 1e6),
            format!("{:.2}", cost.given_shards / cost.n_shards as f64),
            format!("{ratio:.2}"),
            format!("{:.0}", cost.seconds),
        ]);
        println!("{name}: {} shards of {:.1} MB in all", cost.n_shards, cost.data_bytes / 1e6);
    }
    println!("{}", table(&rows));
    Ok(())
}

async fn measure(args: &ShardArgs, share: &str) -> Result<Cost> {
    let shards = format!("[data]\nshard_samples = {}\n", args.shard_samples);
    let sections = CONFIG.replace("[data]\n", &shards);
    let mut test_run = TestRun::new(&sections)?;
    let backbone = test_run.backbone().await?;
    let manifest = backbone.status().await?.run.data.manifest;
    let (page, samples) = (backbone.page(), args.samples.to_string());
    let began = std::time::Instant::now();
    let mut peers: Vec<PeerProcess> = Vec::new();
    for n in 0..args.peers {
        let cache = test_run.storage().join(format!("peer-{n}")).display().to_string();
        let size = ["--cache-size", &args.keep];
        let options = ["--cache", &cache, "--share", share, "--samples", &samples];
        peers.push(test_run.join(&[&[&page[..]][..], &options, &size].concat())?);
    }
    let everybody = |n_contributors: u32| n_contributors as usize == args.peers;
    backbone.wait_for("everybody joined", |progress| everybody(progress.n_contributors)).await?;
    let leaving = async {
        while backbone.status().await?.progress.n_contributors > 0 {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(HANG, leaving).await??;
    let seconds = began.elapsed().as_secs_f64();
    let metrics = backbone.metrics().await?;
    for peer in peers {
        let given = peer.end().await?;
        ensure!(given.status.success(), "{given:?}");
        println!("{}", given.said.trim());
    }
    Ok(Cost {
        n_shards: manifest.shards.len(),
        data_bytes: manifest.shards.iter().map(|entry| f64::from(entry.n_bytes)).sum(),
        given_shards: metric(&metrics, "barnraise_shards_sent_total")?,
        given_bytes: metric(&metrics, "barnraise_shard_bytes_sent_total")?,
        seconds,
    })
}
