//! What a run learns and what it sends, by codec: `cargo xtask bench compression`.
//!
//! A backbone and native peers on loopback train the same network on Fashion-MNIST, with each codec from the same first
//! weights, for as many optimizer steps. Bytes are those of the gradients, as the receipts have them.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use barnraise_tests::process::{BackboneProcess, PeerProcess, TestRun};
use clap::Args;

use crate::ratio;

/// Of micro-batches: what f32 after each of them would take is the yardstick.
const MICRO_BATCH: u64 = 64;
/// Optimizer steps that are waited for together: that long no wait is a hang.
const EPOCHS_AT_ONCE: u64 = 20;
/// How long an evaluation may take, and how often is looked.
const EVALUATION_MAX: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(200);

#[derive(Debug, Args)]
pub(crate) struct CompressionArgs {
    /// Optimizer steps of 1024 samples
    #[arg(long, default_value_t = 400, value_parser = clap::value_parser!(u64).range(1..=500))]
    epochs: u64,
    /// Peers on this machine
    #[arg(long, default_value_t = 2)]
    peers: usize,
    /// Only these codecs, named as in the table
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
}

/// Where momentum is applied.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Momentum {
    /// The backbone's optimizer.
    Optimizer,
    /// Contributors, before they choose what to send.
    Contributors,
    /// Contributors, in eight steps of their own; the outer optimizer goes where their mean got.
    LocalSteps,
}

/// A codec as an operator writes it.
const CODECS: [(&str, &str, Momentum); 7] = [
    ("f32", "\"f32\"", Momentum::Optimizer),
    ("f16", "\"f16\"", Momentum::Optimizer),
    ("int8", "\"int8\"", Momentum::Optimizer),
    ("int4", "\"int4\"", Momentum::Optimizer),
    ("top 1 %", "{ top-k = { density = 0.01, warmup_epochs = 30, momentum = 0.9 } }", Momentum::Contributors),
    (
        "top 0.1 %",
        "{ top-k = { density = 0.001, warmup_epochs = 40, momentum = 0.9 } }",
        Momentum::Contributors,
    ),
    ("top 1 % of 8 local steps", "{ top-k = { density = 0.01 } }", Momentum::LocalSteps),
];

struct CompressionOutcome {
    accuracy: f32,
    loss: f32,
    n_parameters: u64,
    n_samples: u64,
    n_bytes: u64,
}

/// Prints the table.
pub(crate) async fn compare(args: &CompressionArgs) -> Result<()> {
    let heading = [
        "gradients as",
        "accuracy, %",
        "training loss",
        "bytes up a sample",
        "f32 of each batch takes, times that",
    ];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    let is_wanted = |name: &str| args.only.is_empty() || args.only.iter().any(|wanted| wanted == name);
    for (name, codec, momentum) in CODECS.into_iter().filter(|(name, ..)| is_wanted(name)) {
        let outcome = train(args, codec, momentum).await.context(name)?;
        let bytes = outcome.n_bytes as f64 / outcome.n_samples as f64;
        let raw = 4.0 * outcome.n_parameters as f64 / MICRO_BATCH as f64;
        rows.push(vec![
            name.to_owned(),
            format!("{:.2}", 100.0 * outcome.accuracy),
            format!("{:.3}", outcome.loss),
            ratio::short(bytes),
            ratio::short(raw / bytes),
        ]);
    }
    let CompressionArgs { epochs, peers, .. } = args;
    println!("MLP 784-256-10, {epochs} steps of 1024 samples, {peers} peers\n\n{}", ratio::table(&rows));
    Ok(())
}

/// The run's file.
fn sections(epochs: u64, codec: &str, momentum: Momentum) -> String {
    let ours = if momentum == Momentum::Optimizer { 0.9 } else { 0.0 };
    let falling = |warmup_steps: u64| {
        let decay = format!("{{ kind = \"cosine\", steps = {epochs}, floor = 0.0 }}");
        format!("{{ peak = 0.05, warmup_steps = {warmup_steps}, decay = {decay} }}")
    };
    let (schedule, local_steps) = match momentum {
        Momentum::LocalSteps => {
            let inner = "optimizer = { kind = \"sgd-momentum\", momentum = 0.9 }";
            let local_steps =
                format!("[scheme.synchronous.local_steps]\nsteps = 8\n{inner}\nschedule = {}", falling(0));
            ("{ peak = 1.0 }".to_owned(), local_steps)
        }
        Momentum::Optimizer | Momentum::Contributors => (falling(10), String::new()),
    };
    format!(
        r#"
[model]
kind = {{ mlp = {{ hidden = [256] }} }}

[scheme.synchronous]
target_batch_size = 1024
micro_batch_size = {MICRO_BATCH}
gradient_codec = {codec}
optimizer = {{ kind = "sgd-momentum", momentum = {ours:?} }}
schedule = {schedule}

{local_steps}

[evaluation]
every_epochs = {epochs}
"#
    )
}

async fn train(args: &CompressionArgs, codec: &str, momentum: Momentum) -> Result<CompressionOutcome> {
    let epochs = args.epochs;
    let mut test_run = TestRun::new(&sections(epochs, codec, momentum))?;
    let backbone = test_run.backbone().await?;
    let join = |_| test_run.join(&[&backbone.page()]);
    let peers: Vec<PeerProcess> = (0..args.peers).map(join).collect::<Result<_>>()?;
    for epoch in (0..epochs).step_by(EPOCHS_AT_ONCE as usize) {
        backbone.wait_for_epoch((epoch + EPOCHS_AT_ONCE).min(epochs)).await?;
    }
    let accuracy = accuracy_of(&backbone, epochs).await?;
    for peer in peers {
        peer.interrupt()?;
        peer.end().await?;
    }
    let n_samples = backbone.samples_counted().await?;
    let given = backbone.contributions(n_samples).await?.totals;
    let status = backbone.status().await?;
    let losses = status.history.iter().filter(|point| point.epoch <= epochs);
    let losses: Vec<f32> = losses.filter_map(|point| point.train_loss).collect();
    let last = losses.get(losses.len().saturating_sub(20)..).unwrap_or_default();
    Ok(CompressionOutcome {
        accuracy,
        loss: last.iter().sum::<f32>() / last.len() as f32,
        n_parameters: status.n_parameters,
        n_samples,
        n_bytes: given.n_bytes,
    })
}

/// On held-out samples, of the parameters of `epoch`, once it is known.
pub(crate) async fn accuracy_of(backbone: &BackboneProcess, epoch: u64) -> Result<f32> {
    let began = Instant::now();
    while began.elapsed() < EVALUATION_MAX {
        let history = backbone.status().await?.history;
        let point = history.iter().find(|point| point.epoch == epoch);
        if let Some(accuracy) = point.and_then(|point| point.test_accuracy) {
            return Ok(accuracy);
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    bail!("epoch {epoch} was not evaluated within {EVALUATION_MAX:?}")
}
