//! What two backbones send each other for a step, and what their run learns, by rank: `cargo xtask bench low-rank`.
//!
//! Two backbones on loopback, each with a native peer, train the same network on Fashion-MNIST, from the same first
//! weights, for as many optimizer steps. Bytes are those of one backbone's averagings that gave a mean, as it counts
//! them.

use anyhow::{Context, Result};
use barnraise_tests::process::{World, metric};
use clap::Args;

use crate::compression::accuracy_of;
use crate::ratio;

/// Optimizer steps that are waited for together: that long no wait is a hang.
const EPOCHS_AT_ONCE: u64 = 10;
/// Last steps whose training loss is shown, on average.
const LOSSES: usize = 20;

#[derive(Debug, Args)]
pub(crate) struct LowRankArgs {
    /// Optimizer steps of 1024 samples
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..=500))]
    epochs: u64,
    /// Ranks, 0 for whole means
    #[arg(long, value_delimiter = ',', default_value = "0,1,2,4")]
    ranks: Vec<usize>,
}

struct Outcome {
    accuracy: f32,
    loss: f32,
    n_averaged: f64,
    n_bytes_sent: f64,
}

/// Prints the table.
pub(crate) async fn compare(args: &LowRankArgs) -> Result<()> {
    let heading = [
        "rank",
        "accuracy, %",
        "training loss",
        "averagings",
        "bytes sent for each",
        "whole means, times that",
    ];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    let mut of_whole = None;
    for &rank in &args.ranks {
        let outcome = train(args.epochs, rank).await.with_context(|| format!("rank {rank}"))?;
        let bytes = outcome.n_bytes_sent / outcome.n_averaged;
        let whole = *of_whole.get_or_insert(bytes);
        rows.push(vec![
            if rank == 0 { "whole, f32".to_owned() } else { rank.to_string() },
            format!("{:.2}", 100.0 * outcome.accuracy),
            format!("{:.3}", outcome.loss),
            format!("{}", outcome.n_averaged),
            format!("{bytes:.0}"),
            ratio::short(whole / bytes),
        ]);
    }
    println!("MLP 784-256-10, {} steps of 1024 samples, 2 backbones\n\n{}", args.epochs, ratio::table(&rows));
    Ok(())
}

fn sections(epochs: u64, rank: usize) -> String {
    format!(
        r#"
[run]
model = {{ mlp = {{ hidden = [256] }} }}
target_batch_size = 1024
micro_batch_size = 64
optimizer = {{ kind = "sgd-momentum", momentum = 0.9 }}
schedule = {{ peak = 0.05, warmup_steps = 10, decay = {{ kind = "cosine", steps = {epochs}, floor = 0.0 }} }}

[aggregators]
rank = {rank}

[network]
operator = "127.0.0.1:0"
upnp = false

[evaluation]
every_epochs = {epochs}
"#
    )
}

async fn train(epochs: u64, rank: usize) -> Result<Outcome> {
    let sections = sections(epochs, rank);
    let (mut here, mut there) = (World::new(&sections)?, World::new(&sections)?);
    let id = there.command(&["id"]).await?;
    here.aggregate_with(&[format!("/p2p/{}", id.trim())])?;
    let one = here.backbone().await?;
    there.aggregate_with(&[one.tcp()?.to_string()])?;
    let other = there.backbone().await?;
    let peers = [here.join(&[&one.page()])?, there.join(&[&other.page()])?];
    for epoch in (0..epochs).step_by(EPOCHS_AT_ONCE as usize) {
        one.wait_for_epoch((epoch + EPOCHS_AT_ONCE).min(epochs)).await?;
    }
    let accuracy = accuracy_of(&one, epochs).await?;
    let metrics = one.metrics().await?;
    for peer in peers {
        peer.interrupt()?;
        peer.end().await?;
    }
    let status = one.status().await?;
    let losses = status.history.iter().filter(|point| point.epoch <= epochs);
    let losses: Vec<f32> = losses.filter_map(|point| point.train_loss).collect();
    let last = losses.get(losses.len().saturating_sub(LOSSES)..).unwrap_or_default();
    Ok(Outcome {
        accuracy,
        loss: last.iter().sum::<f32>() / last.len() as f32,
        n_averaged: metric(&metrics, "barnraise_averagings_total{outcome=\"averaged\"}")?,
        n_bytes_sent: metric(&metrics, "barnraise_averaging_bytes_total{direction=\"sent\"}")?,
    })
}
