//! Prints the best sizes of groups by collaboration size and failure rate: the quantities of DeDLOC's Figure
//! 8.
//!
//! `cargo run --release -p barnraise-planning --example group_size`

use barnraise_planning::groups::size::{GroupSizeError, best_group_size};

fn main() -> Result<(), GroupSizeError> {
    let rates = [0.0001, 0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5];
    print!("{:>6}", "peers");
    rates.iter().for_each(|rate| print!("{:>16}", format!("{}%", rate * 100.0)));
    println!("\n{:>6}{}", "", format!("{:>16}", "m (iterations)").repeat(rates.len()));
    for n_peers in [8, 16, 32, 64, 128, 256, 512, 1024] {
        print!("{n_peers:>6}");
        for rate in rates {
            let best = best_group_size(n_peers, rate)?;
            print!("{:>16}", format!("{} ({:.1})", best.size, best.iterations));
        }
        println!();
    }
    Ok(())
}
