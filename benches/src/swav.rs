//! What a model learns from pictures without their labels: `cargo xtask bench swav`.
//!
//! The run of a configuration in one process, with no network: the samples of each step are computed one after the other.
//! Beside the loss stands what the features are good for, the share of held-out pictures whose nearest labelled
//! neighbours vote for what they are, which the backbone shows as accuracy.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use barnraise_learning::{ComputeDevice, DataShape, Optimizer, Trainer};
use barnraise_native::config::RunConfig;
use barnraise_native::data::sets::{Dataset, FileSpecs, GARMENTS};
use barnraise_protocol::dataset::LabelledImages;
use barnraise_protocol::run::Preset;
use clap::Args;

use crate::order::SampleOrder;
use crate::ratio;

/// Labelled pictures that vote, and held-out ones that they vote on: as many as a backbone takes.
const REFERENCE_SAMPLES: usize = 5000;
const TEST_SAMPLES: usize = 2000;

#[derive(Debug, Args)]
pub(crate) struct SwavArgs {
    /// The run
    #[arg(long, default_value = "native/swav.example.toml")]
    config: PathBuf,
    /// Optimizer steps
    #[arg(long, default_value_t = 300)]
    steps: u64,
    /// Steps between two looks at the features
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..))]
    every: u64,
    /// First weights and order of the samples
    #[arg(long, value_delimiter = ',', default_value = "1")]
    seeds: Vec<u64>,
}

/// Prints the curves.
pub(crate) async fn learn(args: &SwavArgs) -> Result<()> {
    let config = RunConfig::load(&args.config)?;
    if !matches!(config.model.kind, Preset::Swav(_)) {
        bail!("{} is no run that learns from pictures without their labels", args.config.display());
    }
    let data = Dataset::load(&config.data_sources(), &FileSpecs::fashion_mnist())?;
    let mut rows = vec![["seed", "steps", "loss", "accuracy of neighbours"].map(str::to_owned).to_vec()];
    for &seed in &args.seeds {
        train(&config, seed, args, &data, &mut rows).await.with_context(|| format!("seed {seed}"))?;
    }
    println!("{}\n\n{}", args.config.display(), ratio::table(&rows));
    Ok(())
}

async fn train(
    config: &RunConfig,
    seed: u64,
    args: &SwavArgs,
    data: &Dataset,
    rows: &mut Vec<Vec<String>>,
) -> Result<()> {
    let scheme = config.synchronous().context("swav is measured in the synchronous scheme")?;
    let mut model = config.model_spec();
    model.seed = seed;
    let shape = DataShape::Images { shape: data.shape, n_classes: GARMENTS.len() };
    let mut trainer = Trainer::new(&model, shape, ComputeDevice::cpu())?;
    let layout = trainer.layout().clone();
    let mut parameters = layout.initial_parameters(seed);
    let mut optimizer = Optimizer::new(scheme.optimizer, &layout)?;
    let mut order = SampleOrder::new(data.train.labels.len(), seed);
    let (reference, test) = (first(&data.train, REFERENCE_SAMPLES), first(&data.test, TEST_SAMPLES));
    for epoch in 0..=args.steps {
        trainer.load_parameters(&parameters)?;
        trainer.on_epoch(epoch);
        if epoch % args.every == 0 || epoch == args.steps {
            let found = trainer.evaluate_neighbours(&reference, &test).await?;
            eprintln!("seed {seed}, step {epoch}: loss {:.3}, accuracy {:.3}", found.loss, found.accuracy);
            let numbers = [format!("{:.3}", found.loss), format!("{:.3}", found.accuracy)];
            rows.push([seed.to_string(), epoch.to_string()].into_iter().chain(numbers).collect());
        }
        if epoch == args.steps {
            break;
        }
        while u64::from(trainer.n_samples()) < u64::from(scheme.target_batch_size) {
            let batch = order.batch(&data.train, scheme.micro_batch_size as usize);
            trainer.accumulate_crops(&batch.images, epoch).await?;
        }
        let mean = trainer.take_mean_gradient().await?.context("a step without samples")?;
        optimizer.step(&mut parameters, &mean.values, scheme.schedule.learning_rate(epoch))?;
    }
    Ok(())
}

fn first(of: &LabelledImages, n: usize) -> LabelledImages {
    let n = n.min(of.labels.len());
    let n_values = of.images.len() / of.labels.len().max(1);
    LabelledImages { images: of.images[..n * n_values].to_vec(), labels: of.labels[..n].to_vec() }
}
