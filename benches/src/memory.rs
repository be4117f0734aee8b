//! `memory`: what a parameter costs a backbone and who contributes, a native peer or a tab, in bytes, by the size of the model.
//!
//! Real processes on this machine train a GPT-2 on a few sentences, one sequence at a time. What they hold between
//! computations is the least that is seen once they have made some steps; the most is what the system saw. That of a model of no size is
//! subtracted. A tab is all processes of Chromium that run pages.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use barnraise_tests::artifacts;
use barnraise_tests::browser::{Graphics, Tab};
use barnraise_tests::load::ProcessUsage;
use barnraise_tests::pause::descendants;
use barnraise_tests::process::{BackboneProcess, PeerProcess, TestRun};
use barnraise_tests::sentences;
use clap::Args;

use crate::ratio::table;

/// Steps of the model of no size, each of which takes milliseconds.
const STEPS_OF_NONE: u64 = 300;
/// Steps after which nothing new is allocated.
const FIRST_STEPS: u64 = 3;
/// Between two looks at a process.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Bytes of the sentences.
const TEXT_BYTES: usize = 6000;

/// A page takes so long to be ready, and a tab to make the steps of a large model.
const PAGE_READY_MAX: Duration = Duration::from_secs(120);
const STEPS_MAX: Duration = Duration::from_secs(3600);

#[derive(Debug, Args)]
pub(crate) struct MemoryArgs {
    /// Only these models: 10, 30, 124, 350 million parameters
    #[arg(long, value_delimiter = ',', default_value = "10,124,350")]
    millions: Vec<u32>,
    /// Optimizer steps of each
    #[arg(long, default_value_t = 8)]
    steps: u64,
    /// A tab on the processor contributes, in place of a native peer
    #[arg(long)]
    tab: bool,
}

/// Who contributes.
enum Contributor {
    Peer(PeerProcess),
    Tab(Tab),
}

impl Contributor {
    async fn start(test_run: &mut TestRun, backbone: &BackboneProcess, is_tab: bool) -> Result<Self> {
        if !is_tab {
            return Ok(Self::Peer(test_run.join(&[&backbone.page()])?));
        }
        let tab =
            Tab::open("memory", Graphics::NoAdapter, &format!("{}/?device=cpu", backbone.page())).await?;
        tab.until("doing() === 'idle' && !element('toggle').disabled", PAGE_READY_MAX).await?;
        tab.click("#toggle").await?;
        Ok(Self::Tab(tab))
    }

    /// What its processes take together.
    fn usage(&self) -> Result<[u64; 2]> {
        let pids = match self {
            Self::Peer(peer) => vec![peer.pid()?],
            Self::Tab(tab) => descendants(u32::try_from(tab.process_id()?)?, "--type=renderer")?,
        };
        let usages = pids.into_iter().filter_map(|pid| ProcessUsage::of(pid).ok());
        Ok(usages.fold([0; 2], |[now, most], usage| [now + usage.rss_kib, most + usage.rss_max_kib]))
    }

    async fn end(self) -> Result<()> {
        match self {
            Self::Peer(peer) => {
                peer.interrupt()?;
                let ended = peer.end().await?;
                ensure!(ended.status.success(), "{ended:?}");
                Ok(())
            }
            Self::Tab(tab) => tab.close().await,
        }
    }
}

/// What a process held, in bytes.
#[derive(Debug, Clone, Copy)]
struct Held {
    standing: f64,
    most: f64,
}

/// Both sides of a run, and its parameters.
struct Measured {
    n_parameters: f64,
    backbone: Held,
    contributor: Held,
    seconds: f64,
}

/// `memory`
pub(crate) async fn measure(args: &MemoryArgs) -> Result<()> {
    ensure!(args.steps > FIRST_STEPS, "more than {FIRST_STEPS} steps are wanted");
    let least = of_model(8, 1, STEPS_OF_NONE, args.tab).await?;
    let contributor = if args.tab { "tab" } else { "native peer" };
    let head = ["parameters, M", "process", "standing, bytes each", "most, bytes each", "seconds a step"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for &millions in &args.millions {
        let (width, layers) = match millions {
            10 => (384, 6),
            30 => (512, 10),
            124 => (768, 17),
            350 => (1024, 28),
            other => anyhow::bail!("10, 30, 124 or 350 million, not {other}"),
        };
        let measured = of_model(width, layers, args.steps, args.tab).await?;
        let n = measured.n_parameters;
        let both = [
            ("backbone", measured.backbone, least.backbone),
            (contributor, measured.contributor, least.contributor),
        ];
        for (process, held, without) in both {
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
        "without a model: backbone {}, {contributor} {}",
        mib(least.backbone.standing),
        mib(least.contributor.standing)
    );
    Ok(())
}

async fn of_model(width: u32, layers: u32, steps: u64, is_tab: bool) -> Result<Measured> {
    let model = format!("kind = {{ gpt = {{ width = {width}, layers = {layers}, heads = 4 }} }}");
    let sections = format!(
        "[model]\n{model}\n[data]\nshard_samples = 100\nshuffle_buffer_samples = 16\n[data.text]\nname = \"Rhymes\"\n\
         vocabulary = 100\nsequence_tokens = 16\nsources = [{{ path = \"house.txt\" }}]\n\
         [scheme.synchronous]\ntarget_batch_size = 4\nmicro_batch_size = 1\ncontribution_samples_max = 4\n\
         [evaluation]\nevery_epochs = 1000000\n"
    );
    let mut test_run = TestRun::new(&sections)?.with_page(artifacts::web_root()?);
    test_run.write("house.txt", &sentences::text()[..TEXT_BYTES])?;
    let backbone = test_run.backbone().await?;
    let contributor = Contributor::start(&mut test_run, &backbone, is_tab).await?;
    let began = std::time::Instant::now();
    let mut least = [u64::MAX; 2];
    let mut most = [0; 2];
    loop {
        let epoch = backbone.status().await?.progress.epoch;
        let of_backbone = ProcessUsage::of(backbone.pid()?)?;
        let usages = [[of_backbone.rss_kib, of_backbone.rss_max_kib], contributor.usage()?];
        for (at, [now, highest]) in usages.into_iter().enumerate() {
            if epoch >= FIRST_STEPS {
                least[at] = least[at].min(now);
            }
            most[at] = most[at].max(highest);
        }
        if epoch >= steps {
            break;
        }
        ensure!(began.elapsed() < STEPS_MAX, "{epoch} steps only");
        tokio::time::sleep(LOOK_EVERY).await;
    }
    let seconds = began.elapsed().as_secs_f64();
    contributor.end().await?;
    let status = backbone.status().await?;
    let n_parameters = barnraise_learning::ParameterLayout::of_run(&status.run)?.n_parameters() as f64;
    backbone.terminate().await.context("the backbone")?;
    let held = |at: usize| Held { standing: least[at] as f64 * 1024.0, most: most[at] as f64 * 1024.0 };
    Ok(Measured { n_parameters, backbone: held(0), contributor: held(1), seconds })
}
