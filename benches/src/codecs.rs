//! How fast gradients are encoded and decoded, beside a copy of as many f32 values: `cargo xtask bench codecs`.
//!
//! One thread, buffers that are there already, values as gradients have them. Each round measures everybody in
//! turn, so that the ratios are of one moment.

use std::hint::black_box;
use std::time::Instant;

use anyhow::{Context, Result};
use barnraise_protocol::TensorCodec;
use barnraise_protocol::codec::{Density, Sparsity};
use barnraise_swarm::compression::keep_largest;
use barnraise_swarm::random::SplitMix64;
use clap::Args;

use crate::ratio::{self, Spread};

#[derive(Debug, Args)]
pub(crate) struct CodecArgs {
    /// Values of the gradient
    #[arg(long, default_value_t = 10_000_000)]
    values: usize,
    /// Measurements of each
    #[arg(long, default_value_t = 9)]
    rounds: usize,
}

/// Something that reads or writes all values once.
struct CodecRun {
    name: String,
    bytes_per_value: f64,
    seconds: Vec<f64>,
    run: Box<dyn FnMut() -> Result<()>>,
}

/// Prints the table.
pub(crate) fn compare(args: &CodecArgs) -> Result<()> {
    let gradient = gradient(args.values);
    let mut contenders = vec![copy(&gradient)];
    for (name, codec) in codecs()? {
        let mut values = gradient.clone();
        if let TensorCodec::TopK(sparsity) = codec {
            contenders.push(selection(name, &gradient, sparsity.n_sent_max(args.values, 0)));
            keep_largest(&mut values, sparsity.n_sent_max(args.values, 0));
        }
        contenders.extend(both_ways(name, codec, values)?);
    }
    // The first touches memory that nobody has used.
    for round in 0..=args.rounds {
        for contender in &mut contenders {
            let began = Instant::now();
            (contender.run)()?;
            if round > 0 {
                contender.seconds.push(began.elapsed().as_secs_f64());
            }
        }
    }
    println!("{}", table(&contenders, args.values));
    Ok(())
}

fn codecs() -> Result<[(&'static str, TensorCodec); 6]> {
    let top_k = |share| {
        let density = Density::from_share(share).context("a density")?;
        anyhow::Ok(TensorCodec::TopK(Sparsity { density, warmup_epochs: 0 }))
    };
    Ok([
        ("f32", TensorCodec::F32),
        ("f16", TensorCodec::F16),
        ("int8", TensorCodec::Int8),
        ("int4", TensorCodec::Int4),
        ("top 1 %", top_k(0.01)?),
        ("top 0.1 %", top_k(0.001)?),
    ])
}

/// Sums of uniform numbers of every sign, of magnitudes that differ from part to part as those of layers do.
fn gradient(n_values: usize) -> Vec<f32> {
    let mut random = SplitMix64::new(1);
    let mut uniform = || random.next_u64() as f32 / u64::MAX as f32 - 0.5;
    let value = |index: usize| (uniform() + uniform() + uniform()) * 1e-3 / (1 + index / 4096 % 16) as f32;
    (0..n_values).map(value).collect()
}

fn copy(gradient: &[f32]) -> CodecRun {
    let (from, mut to) = (gradient.to_vec(), gradient.to_vec());
    let run = move || {
        to.copy_from_slice(black_box(&from));
        black_box(&mut to);
        Ok(())
    };
    CodecRun { name: "memcpy of f32".into(), bytes_per_value: 4.0, seconds: Vec::new(), run: Box::new(run) }
}

/// With the copy that it works on.
fn selection(name: &str, gradient: &[f32], n_kept: usize) -> CodecRun {
    let (from, mut to) = (gradient.to_vec(), gradient.to_vec());
    let run = move || {
        to.copy_from_slice(black_box(&from));
        keep_largest(&mut to, n_kept);
        black_box(&mut to);
        Ok(())
    };
    CodecRun {
        name: format!("{name}, choose"),
        bytes_per_value: 4.0,
        seconds: Vec::new(),
        run: Box::new(run),
    }
}

fn both_ways(name: &str, codec: TensorCodec, values: Vec<f32>) -> Result<[CodecRun; 2]> {
    let encoded = codec.encode(&values)?;
    let bytes_per_value = encoded.len() as f64 / values.len() as f64;
    let (mut bytes, mut decoded) = (encoded.clone(), values.clone());
    let encode = move || {
        codec.encode_into(black_box(&values), &mut bytes)?;
        black_box(&mut bytes);
        Ok(())
    };
    let decode = move || {
        codec.decode_into(black_box(&encoded), &mut decoded)?;
        black_box(&mut decoded);
        Ok(())
    };
    let contender = |way: &str, run| CodecRun {
        name: format!("{name}, {way}"),
        bytes_per_value,
        seconds: Vec::new(),
        run,
    };
    Ok([contender("encode", Box::new(encode)), contender("decode", Box::new(decode))])
}

fn table(contenders: &[CodecRun], n_values: usize) -> String {
    let header = ["", "bytes a value", "GB/s of f32", "of memcpy's speed"].map(str::to_owned);
    let mut rows = vec![header.to_vec()];
    let reference = contenders.first().map_or(&[][..], |copy| &copy.seconds);
    for contender in contenders {
        let speeds: Vec<f64> =
            contender.seconds.iter().map(|seconds| 4.0 * n_values as f64 / seconds / 1e9).collect();
        rows.push(vec![
            contender.name.clone(),
            format!("{:.3}", contender.bytes_per_value),
            Spread::of(&speeds).to_string(),
            ratio::ratios(&contender.seconds, reference).to_string(),
        ]);
    }
    ratio::table(&rows)
}
