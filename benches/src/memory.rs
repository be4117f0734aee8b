//! `memory`: what a parameter costs a backbone and a native peer, in bytes, by the size of the model.
//!
//! Real processes on this machine train a GPT-2 on a few sentences, one sequence at a time. What they hold between
//! computations is the least that is seen once they have made some steps; the most is what the system saw. That of a model of no size is
//! subtracted.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use barnraise_tests::load::ProcessUsage;
use barnraise_tests::process::TestRun;
use barnraise_tests::sentences;
use clap::Args;

use crate::ratio::table;

/// Steps after which nothing new is allocated.
const FIRST_STEPS: u64 = 3;
/// Between two looks at a process.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Bytes of the sentences.
const TEXT_BYTES: usize = 6000;

#[derive(Debug, Args)]
pub(crate) struct MemoryArgs {
    /// Only these models: 10, 124, 350 million parameters
    #[arg(long, value_delimiter = ',', default_value = "10,124,350")]
    millions: Vec<u32>,
    /// Optimizer steps of each
    #[arg(long, default_value_t = 8)]
    steps: u64,
}

/// What a process held, in bytes.
#[derive(Debug, Clone, Copy)]
struct Held {
    standing: f64,
    most: f64,
}

/// Both processes of a run, and its parameters.
struct Measured {
    n_parameters: f64,
    backbone: Held,
    peer: Held,
    seconds: f64,
}

/// `memory`
pub(crate) async fn measure(args: &MemoryArgs) -> Result<()> {
    let least = of_model(8, 1, 300).await?;
    let head = ["parameters, M", "process", "standing, bytes each", "most, bytes each", "seconds a step"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for &millions in &args.millions {
        let (width, layers) = match millions {
            10 => (384, 6),
            124 => (768, 17),
            350 => (1024, 28),
            other => anyhow::bail!("10, 124 or 350 million, not {other}"),
        };
        let measured = of_model(width, layers, args.steps).await?;
        let n = measured.n_parameters;
        for (process, held, without) in
            [("backbone", measured.backbone, least.backbone), ("native peer", measured.peer, least.peer)]
        {
            let each = |held: f64, without: f64| format!("{:.1}", (held - without) / n);
            rows.push(vec![
                format!("{:.1}", n / 1e6),
                process.to_owned(),
                each(held.standing, without.standing),
                each(held.most, without.most),
                format!("{:.1}", measured.seconds / args.steps as f64),
            ]);
        }
        println!("{}", table(&rows));
    }
    let mib = |bytes: f64| format!("{:.0} MiB", bytes / f64::from(1 << 20));
    println!(
        "without a model: backbone {}, native peer {}",
        mib(least.backbone.standing),
        mib(least.peer.standing)
    );
    Ok(())
}

async fn of_model(width: u32, layers: u32, steps: u64) -> Result<Measured> {
    let model = format!("kind = {{ gpt = {{ width = {width}, layers = {layers}, heads = 4 }} }}");
    let sections = format!(
        "[model]\n{model}\n[data]\nshard_samples = 100\nshuffle_buffer_samples = 16\n[data.text]\nname = \"Rhymes\"\n\
         vocabulary = 100\nsequence_tokens = 16\nsources = [{{ path = \"house.txt\" }}]\n\
         [scheme.synchronous]\ntarget_batch_size = 4\nmicro_batch_size = 1\ncontribution_samples_max = 4\n\
         [evaluation]\nevery_epochs = 1000000\n"
    );
    let mut test_run = TestRun::new(&sections)?;
    test_run.write("house.txt", &sentences::text()[..TEXT_BYTES])?;
    let backbone = test_run.backbone().await?;
    let samples = (4 * steps).to_string();
    let peer = test_run.join(&[&backbone.page(), "--samples", &samples])?;
    let pids = [backbone.pid()?, peer.pid()?];
    let began = std::time::Instant::now();
    let mut least = [u64::MAX; 2];
    let mut most = [0; 2];
    while let Ok(usage) = ProcessUsage::of(pids[1]) {
        let usages = [ProcessUsage::of(pids[0])?, usage];
        let is_settled = backbone.status().await?.progress.epoch >= FIRST_STEPS;
        for (at, usage) in usages.iter().enumerate() {
            if is_settled && usage.rss_kib > 0 {
                least[at] = least[at].min(usage.rss_kib);
            }
            most[at] = most[at].max(usage.rss_max_kib);
        }
        tokio::time::sleep(LOOK_EVERY).await;
        if usages[1].rss_kib == 0 {
            break;
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    let ended = peer.end().await?;
    ensure!(ended.status.success(), "{ended:?}");
    let status = backbone.status().await?;
    ensure!(status.progress.epoch >= FIRST_STEPS, "too few steps: {:?}", status.progress);
    let n_parameters = barnraise_learning::ParameterLayout::of_run(&status.run)?.n_parameters() as f64;
    ensure!(least.iter().all(|kib| *kib < u64::MAX), "nothing was seen after {FIRST_STEPS} steps");
    backbone.terminate().await.context("the backbone")?;
    let held = |at: usize| Held { standing: least[at] as f64 * 1024.0, most: most[at] as f64 * 1024.0 };
    Ok(Measured { n_parameters, backbone: held(0), peer: held(1), seconds })
}
