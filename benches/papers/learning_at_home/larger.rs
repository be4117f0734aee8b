//! A model that no process holds: experts of a billion parameters over processes that have a few of them each, trained some
//! steps. Processes of the program, as people start them.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use barnraise_learning::graph::ResolvedGraph;
use barnraise_learning::{DataShape, ParameterLayout};
use barnraise_tests::load::ProcessUsage;
use barnraise_tests::process::{BackboneProcess, PeerProcess, TestRun};
use clap::Args;

use crate::ratio::table;

/// Between two looks at the processes.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Without an end by then something stands still.
const PATIENCE: Duration = Duration::from_secs(1800);

/// How large it is.
#[derive(Debug, Clone, Args)]
pub(crate) struct LargerArgs {
    /// Processes that host experts
    #[arg(long, default_value_t = 20)]
    hosts: usize,
    /// Experts of each, of 25 million parameters: 1024 to 4096 to 4096 to 1024, with Adam
    #[arg(long, default_value_t = 2)]
    experts: usize,
    /// Optimizer steps of the trunk
    #[arg(long, default_value_t = 20)]
    steps: u64,
}

fn sections(n_experts: usize) -> String {
    format!(
        r#"
[run]
id = "larger"

[model.kind.graph]
name = "{n_experts} experts for garments"
loss = "classification"
parts = [{{ name = "expert", blocks = [
    {{ name = "fc1", op = {{ dense = {{ units = 4096, initial = "he" }} }} }},
    {{ name = "norm1", op = {{ layer-norm = {{}} }} }},
    {{ name = "act1", op = "relu" }},
    {{ name = "fc2", op = {{ dense = {{ units = 4096, initial = "he" }} }} }},
    {{ name = "norm2", op = {{ layer-norm = {{}} }} }},
    {{ name = "act2", op = "relu" }},
    {{ name = "fc3", op = {{ dense = {{ units = 1024 }} }} }},
] }}]
blocks = [
    {{ name = "flat", op = "flatten" }},
    {{ name = "first", op = {{ dense = {{ units = 1024, initial = "he" }} }} }},
    {{ name = "act", op = "relu" }},
    {{ name = "moe", op = {{ experts = {{ part = "expert", side = {n_experts}, active = 2 }} }} }},
    {{ name = "sum", op = "add", from = ["moe", "act"] }},
    {{ name = "fc", op = {{ dense = {{ units = "classes" }} }} }},
]

[model.experts]
schedule = {{ peak = 0.0003 }}

[data]
shuffle_buffer_samples = 1000

[scheme.synchronous]
target_batch_size = 64
micro_batch_size = 32
contribution_samples_max = 64
schedule = {{ peak = 0.001 }}

[evaluation]
every_epochs = 1000000
"#
    )
}

/// The most that each process held so far, in MiB.
struct Peaks {
    backbone: u64,
    trainer: u64,
    hosts: Vec<u64>,
}

impl Peaks {
    fn look(
        &mut self,
        backbone: &BackboneProcess,
        trainer: &PeerProcess,
        hosts: &[PeerProcess],
    ) -> Result<()> {
        let peak = |pid| Ok::<_, anyhow::Error>(ProcessUsage::of(pid)?.rss_max_kib / 1024);
        self.backbone = peak(backbone.pid()?)?;
        self.trainer = peak(trainer.pid()?)?;
        self.hosts = hosts.iter().map(|host| peak(host.pid()?)).collect::<Result<_>>()?;
        Ok(())
    }
}

/// Prints what the processes held, and what was learned.
pub(super) async fn measure(args: &LargerArgs) -> Result<()> {
    let n_experts = args.hosts * args.experts;
    let mut test_run = TestRun::new(&sections(n_experts))?;
    let backbone = test_run.backbone().await?;
    let (page, of_each) = (backbone.page(), args.experts.to_string());
    let mut hosts = Vec::new();
    for number in 0..args.hosts {
        let host = test_run.host_experts(&format!("host-{number}"), &[&page, "--experts", &of_each])?;
        host.wait_for_log("Hosting").await?;
        hosts.push(host);
    }
    let run = backbone.status().await?.run;
    let graph = ResolvedGraph::of_model(&run.model, DataShape::of(&run.data.manifest.samples))?;
    let of_experts: usize =
        graph.hosted().iter().map(|(_, body)| body.n_experts * body.graph.layout().n_parameters()).sum();
    let of_trunk = ParameterLayout::of_run(&run)?.n_parameters();
    let trainer = test_run.join(&[&page])?;
    let (began, mut peaks) = (Instant::now(), Peaks { backbone: 0, trainer: 0, hosts: Vec::new() });
    loop {
        peaks.look(&backbone, &trainer, &hosts)?;
        let progress = backbone.status().await?.progress;
        if progress.epoch >= args.steps {
            break;
        }
        ensure!(began.elapsed() < PATIENCE, "no {} steps: {progress:?}", args.steps);
        tokio::time::sleep(LOOK_EVERY).await;
    }
    let seconds = began.elapsed().as_secs_f64();
    let losses: Vec<f32> =
        backbone.status().await?.history.iter().filter_map(|point| point.train_loss).collect();
    let millions = |n: usize| format!("{:.1}", n as f64 / 1e6);
    let largest = peaks.hosts.iter().max().copied().unwrap_or_default();
    println!(
        "{}",
        table(&[
            ["", "parameters, M", "most memory of a process, MiB"].map(str::to_owned).to_vec(),
            vec![
                format!("{} hosts, {} experts", args.hosts, n_experts),
                millions(of_experts),
                largest.to_string()
            ],
            vec!["trainer".to_owned(), millions(of_trunk), peaks.trainer.to_string()],
            vec!["backbone".to_owned(), millions(of_trunk), peaks.backbone.to_string()],
        ])
    );
    let at = |losses: &[f32]| losses.iter().sum::<f32>() / losses.len().max(1) as f32;
    let few = losses.len().min(3);
    println!(
        "{} steps in {seconds:.0} s; loss of the first {few} steps {:.2}, of the last {few} {:.2} (ln 10 is 2.30)",
        losses.len(),
        at(&losses[..few]),
        at(&losses[losses.len() - few..]),
    );
    trainer.kill().await?;
    for host in hosts {
        host.kill().await?;
    }
    backbone.terminate().await?;
    Ok(())
}
