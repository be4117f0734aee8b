//! DeDLOC: averaging among unequal peers, in virtual time, with the plans that the real peers make.
//!
//! Rates are nominal and transfers are fluids, so what is compared with the paper are ratios.

mod fleet;
mod round;
mod table;

use anyhow::Result;
use barnraise_planning::{Peer, PeerId, Situation, Updates, Work};
use clap::{Args, ValueEnum};

use self::fleet::Fleet;
use self::round::Round;
use self::table::{chart, print_table};
use super::fluid::Link;

/// ResNet-50 (He et al., 2016): 25,557,032 parameters, sent as f32.
const RESNET50_VALUES: u64 = 25_557_032;
/// ALBERT-large (Lan et al., 2020): 17.7 million parameters.
const ALBERT_LARGE_VALUES: u64 = 17_683_968;
/// Samples in a step of the ALBERT experiments.
const ALBERT_BATCH: u64 = 4096;
/// The paper's slowdown of unequal peers without balancing, from which the speed of one GPU follows here.
const SLOWDOWN_OF_UNEQUAL: f64 = 2.5;
/// Peers of the scaling experiment.
const PEERS: [usize; 6] = [4, 8, 16, 32, 64, 128];

#[derive(Debug, Clone, Args)]
pub(crate) struct DedlocArgs {
    /// Which of the paper's experiments
    #[arg(value_enum)]
    experiment: Experiment,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Experiment {
    /// Table 1: seconds of one averaging, by all-reduce, by a parameter server and by our plan
    Table1,
    /// Figure 4: steps per hour of equal and unequal fleets
    Fleets,
    /// Figure 5: seconds of a step with 4 to 128 peers
    Scaling,
}

/// Prints an experiment as a table and a chart in Markdown.
pub(crate) fn run(args: &DedlocArgs) -> Result<()> {
    match args.experiment {
        Experiment::Table1 => table1(),
        Experiment::Fleets => fleets(),
        Experiment::Scaling => scaling(),
    }
}

fn table1() -> Result<()> {
    let fast = vec![Link::symmetric(1.0); 8];
    let slow = vec![Link::symmetric(0.2); 16];
    let with = |more: &[Link]| [&slow[..], more].concat();
    // Name, links, the peer that serves, and the paper's seconds.
    let setups = [
        ("A: 8 × 1 Gbit/s", fast.clone(), 0, [1.19, 4.73, 1.20]),
        ("B: 16 × 0.2 Gbit/s", slow.clone(), 0, [5.3, 39.6, 5.3]),
        ("C: A + B", with(&fast), 16, [5.69, 14.1, 2.96]),
        ("D: B + 1 × 2.5 Gbit/s", with(&[Link::symmetric(2.5)]), 16, [5.3, 3.22, 3.18]),
    ];
    let n_bytes = 4.0 * RESNET50_VALUES as f64;
    let (mut rows, mut names, mut bars) = (Vec::new(), Vec::new(), Vec::new());
    for (name, links, server, paper) in setups {
        let all_reduce = Round::all_reduce(links.clone(), n_bytes).seconds();
        let served = Round::parameter_server(links.clone(), server, n_bytes).seconds();
        let ours = planned(&links)?.seconds();
        rows.push(vec![
            name.to_owned(),
            format!("{all_reduce:.2}"),
            format!("{served:.2}"),
            format!("{ours:.2}"),
            format!("{:.2} ({:.2})", all_reduce / ours, paper[0] / paper[2]),
            format!("{:.2} ({:.2})", served / ours, paper[1] / paper[2]),
        ]);
        names.push(name.split(':').next().unwrap_or(name).to_owned());
        bars.push(all_reduce / ours);
    }
    let header = ["Setup", "AR, s", "PS, s", "Ours, s", "AR / ours (paper)", "PS / ours (paper)"];
    print_table(&header, &rows);
    chart("All-reduce by ours", "times as long", &names, &[bars]);
    Ok(())
}

/// The plan for peers who all contribute: computing takes longer than averaging.
fn planned(links: &[Link]) -> Result<Round> {
    let work = Work {
        vector_bytes: 4 * RESNET50_VALUES,
        n_values: RESNET50_VALUES,
        target_batch_size: 32_768,
        part_values_min: 1,
        updates: Updates::Delayed,
    };
    let peers = links.iter().enumerate().map(|(index, link)| peer(index, *link, 1.0)).collect();
    let plan = Situation::new(peers, &[], work)?.plan()?;
    Ok(Round::of_plan(&plan, links.to_vec(), 4.0 * RESNET50_VALUES as f64))
}

fn peer(index: usize, link: Link, samples_per_s: f64) -> Peer {
    Peer {
        // In the order of the links.
        id: PeerId(index.to_be_bytes().to_vec()),
        samples_per_s,
        download_bytes_per_s: link.down,
        upload_bytes_per_s: link.up,
        is_reachable: true,
        receives: true,
    }
}

fn fleets() -> Result<()> {
    let links = |counts: &[(usize, f64)]| -> Vec<Link> {
        counts.iter().flat_map(|&(n, rate)| vec![Link::symmetric(rate); n]).collect()
    };
    let unequal = links(&[(4, 0.2), (8, 0.1), (4, 0.05)]);
    let speed = Fleet::speed_for_slowdown(&unequal, SLOWDOWN_OF_UNEQUAL);
    let equal = Fleet::new(links(&[(16, 25.0)]), &[speed; 16]);
    let unbalanced = Fleet::new(unequal.clone(), &[speed; 16]);
    let helpers = [&unequal[..], &links(&[(4, 1.0)])].concat();
    let mut speeds = vec![speed; 16];
    speeds.extend([0.0; 4]);
    let helped = Fleet::new(helpers.clone(), &speeds);
    let part_time = [&helpers[..], &links(&[(8, 0.1)])].concat();
    speeds.extend([speed; 8]);
    let crowded = Fleet::new(part_time, &speeds);

    let base = 1.0 / equal.planned_step_s()?;
    // Half of the time with the part-time peers, half without.
    let varying = 0.5 * (1.0 / helped.planned_step_s()? + 1.0 / crowded.planned_step_s()?);
    let measured = [
        ("High bandwidth: 16 × 25 Gbit/s", base, "1"),
        ("Heterogeneous, equal parts", 1.0 / unbalanced.equal_step_s(), "0.40 (taken from the paper)"),
        ("Heterogeneous, our plan", 1.0 / unbalanced.planned_step_s()?, "0.59"),
        ("and 4 helpers without a GPU, 1 Gbit/s", 1.0 / helped.planned_step_s()?, "over 0.64"),
        ("and 8 part-time peers, 0.1 Gbit/s", varying, "0.74"),
    ];
    let row = |(name, rate, paper): &(&str, f64, &str)| {
        vec![
            (*name).to_owned(),
            format!("{:.0}", rate * 3600.0),
            format!("{:.2}", rate / base),
            (*paper).to_owned(),
        ]
    };
    print_table(
        &["Fleet", "Steps/h", "Of high bandwidth", "Paper"],
        &measured.iter().map(row).collect::<Vec<_>>(),
    );
    let names: Vec<String> =
        ["high", "equal parts", "planned", "helpers", "part-time"].map(String::from).into();
    chart("Speed", "of high bandwidth", &names, &[measured.iter().map(|(_, rate, _)| rate / base).collect()]);
    Ok(())
}

fn scaling() -> Result<()> {
    let unequal = |n: usize| -> Vec<Link> {
        let rates = [0.2, 0.1, 0.1, 0.05];
        (0..n).map(|index| Link::symmetric(rates[index % rates.len()])).collect()
    };
    let speed = Fleet::speed_for_slowdown(&unequal(16), SLOWDOWN_OF_UNEQUAL);
    let (mut rows, mut planned) = (Vec::new(), Vec::new());
    for n in PEERS {
        let fleet = Fleet::new(unequal(n), &vec![speed; n]);
        let (equal_s, planned_s) = (fleet.equal_step_s(), fleet.planned_step_s()?);
        rows.push(vec![
            n.to_string(),
            format!("{equal_s:.1}"),
            format!("{planned_s:.1}"),
            format!("{:.2}", equal_s / planned_s),
        ]);
        planned.push(planned_s);
    }
    print_table(&["Peers", "Equal parts, s a step", "Our plan, s a step", "Times as fast"], &rows);
    chart("A step", "seconds", &PEERS.map(|n| n.to_string()), &[planned]);
    Ok(())
}
