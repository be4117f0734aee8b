//! The development commands: `cargo xtask demo`, `test`, `check`, `build`, `dist`, `bench`, `fuzz`, `mutants`, `audit`.
//!
//! Drives cargo, wasm-bindgen and the package manager. It knows nothing of training, is
//! never part of what is shipped, and never depends on a heavy crate: `cargo xtask` must start
//! within seconds on a machine that has built nothing yet.

mod asset_file;
mod assets;
mod audit;
mod build;
mod check;
mod compress;
mod demo;
mod dist;
mod fuzz;
mod lanes;
mod lints;
mod mutants;
mod packages;
mod process;
mod setup;
mod test_run;
mod toolchain;
mod wasm;
mod workspace;

#[cfg(test)]
mod arrows;
#[cfg(test)]
mod book;
#[cfg(test)]
mod modules;
#[cfg(test)]
mod promises;
#[cfg(test)]
mod spawning;
#[cfg(test)]
mod words;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};

use crate::build::NativeProfile;
use crate::fuzz::FuzzArgs;
use crate::workspace::Workspace;

#[derive(Debug, Parser)]
#[command(name = "cargo xtask", about = "Builds, shows, checks and tests Barnraise")]
struct XtaskCli {
    #[command(subcommand)]
    command: XtaskCommand,
}

#[derive(Debug, Subcommand)]
enum XtaskCommand {
    /// Install what a build needs and this machine lacks
    Setup {
        /// Also what the browser tests need
        #[arg(long)]
        tests: bool,
    },
    /// Build the browser modules, the web folder and the native binary
    Build(BuildArgs),
    /// Build everything, start a backbone on loopback and print the address of its page
    Demo(DemoArgs),
    /// Pack the programs, the page inside, with examples, documents and all licences: for machines without a toolchain
    Dist {
        /// Of what the tests are run with, which is quick to build
        #[arg(long)]
        dev: bool,
    },
    /// Format, clippy with warnings as errors, unit tests: the quick one
    Check,
    /// Install what is missing, check, build, and run every test, browsers included
    Test {
        /// A test that is skipped because something is not installed is a failure
        #[arg(long)]
        strict: bool,
    },
    /// Run the benchmarks; arguments are passed on
    Bench {
        /// For the benchmark program
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Ask the databases of advisories about all dependencies, and `deny.toml` about licences and sources
    Audit,
    /// Change the code of a folder in one small way at a time, and list the changes that no test notices
    Mutants {
        /// Of one member that is tested natively, such as shared/protocol or native/src/storage; a file will do
        #[arg(required = true)]
        folders: Vec<PathBuf>,
    },
    /// Run libFuzzer on each fuzz target for a while, beginning with the corpora in the repository
    Fuzz(FuzzArgs),
}

#[derive(Debug, Args)]
struct BuildArgs {
    /// To be served to others: native binary with full optimization and the page inside, web folder
    /// compressed with all effort (minutes, once)
    #[arg(long, conflicts_with = "dev")]
    release: bool,
    /// Quick to build (the default)
    #[arg(long)]
    dev: bool,
    /// No native binary: only what a backbone serves
    #[arg(long)]
    web_only: bool,
}

#[derive(Debug, Args)]
struct DemoArgs {
    /// Port of the page on loopback
    #[arg(long, default_value_t = 8080)]
    port: u16,
    /// Everything optimized, compressed with all effort
    #[arg(long)]
    release: bool,
}

fn profile(is_release: bool) -> NativeProfile {
    if is_release { NativeProfile::Release } else { NativeProfile::Dev }
}

fn main() -> ExitCode {
    match run(XtaskCli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Without a stack, which would hide what was told before it.
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: XtaskCommand) -> Result<()> {
    let workspace = Workspace::locate()?;
    match command {
        XtaskCommand::Setup { tests } => {
            let toolchain = setup::for_build()?;
            if tests {
                toolchain.ensure_clippy()?;
                setup::for_tests()?;
            }
            Ok(())
        }
        XtaskCommand::Build(args) => {
            let profile = profile(args.release);
            if args.web_only {
                return build::web(&workspace, setup::for_build()?, profile);
            }
            build::everything(&workspace, profile)
        }
        XtaskCommand::Demo(args) => demo::run(&workspace, args.port, profile(args.release)),
        XtaskCommand::Dist { dev } => {
            dist::run(&workspace, if dev { NativeProfile::Tests } else { NativeProfile::Release })
        }
        XtaskCommand::Check => check::run(&workspace),
        XtaskCommand::Test { strict } => test_run::run(&workspace, strict),
        XtaskCommand::Bench { args } => build::bench(&workspace, &args),
        XtaskCommand::Audit => audit::run(&workspace),
        XtaskCommand::Mutants { folders } => mutants::run(&workspace, &folders),
        XtaskCommand::Fuzz(args) => fuzz::run(&workspace, &args),
    }
}
