//! Arguments of the commands that change who may take part.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::super::store::IdentityKind;
use super::duration;

/// `barnraise allow`
#[derive(Debug, Args)]
pub struct AllowArgs {
    /// What to do with the list.
    #[command(subcommand)]
    pub action: AllowAction,
}

/// What to do with the list.
#[derive(Debug, Subcommand)]
pub enum AllowAction {
    /// Add people to the list
    Add(AddArgs),
    /// Remove people from the list, and revoke their access
    Remove(WhoArgs),
    /// Show the list, and the peers with access
    List(RunArgs),
}

/// A run on this machine.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// The run, as in run.example.toml
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
}

/// Identities at the run's identity provider.
#[derive(Debug, Args)]
pub struct WhoArgs {
    /// The run
    #[command(flatten)]
    pub run: RunArgs,
    /// Kind of the identifiers
    #[arg(long, default_value = "name")]
    pub by: IdentityKind,
    /// Names, addresses or subjects
    #[arg(required = true)]
    pub who: Vec<String>,
}

/// `barnraise allow add`
#[derive(Debug, Args)]
pub struct AddArgs {
    /// The identities
    #[command(flatten)]
    pub who: WhoArgs,
    /// Let them also host experts (`barnraise experts`); who is added again without it may no longer, once their token is
    /// renewed
    #[arg(long)]
    pub host: bool,
}

/// `barnraise invite`
#[derive(Debug, Args)]
pub struct InviteArgs {
    /// The run
    #[command(flatten)]
    pub run: RunArgs,
    /// Number of peers that may redeem it: 1 by default, 40 for a room
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub uses: Option<u32>,
    /// Lifetime: 7d by default, 8h for a room
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub expires: Option<Duration>,
    /// Print the short code of a room, to be typed on the page, in place of a link
    #[arg(long)]
    pub room: bool,
    /// Let the peers that redeem it also host experts (`barnraise experts`)
    #[arg(long, conflicts_with = "room")]
    pub host: bool,
}

/// `barnraise revoke`
#[derive(Debug, Args)]
pub struct RevokeArgs {
    /// The run
    #[command(flatten)]
    pub run: RunArgs,
    /// Also end the invitations that they redeemed
    #[arg(long)]
    pub with_invitation: bool,
    /// The peer id, or the user name
    pub who: String,
}
