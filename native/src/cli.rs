//! The command line of `barnraise`.
//!
//! It only parses: no file is read before [`ServeArgs::configs`] is called, and nothing is started
//! here. The arguments of a command are beside the command.

use std::path::PathBuf;

use barnraise_relay::LogFormat;
use clap::{Args, Parser, Subcommand};

use crate::config::command::ConfigArgs;
use crate::config::init::InitArgs;
use crate::devices::DevicesArgs;
use crate::exported::{EvaluateArgs, ExportArgs, GenerateArgs, PredictArgs};
use crate::host::access::command::{AllowArgs, InviteArgs, RevokeArgs};
use crate::host::admin::command::{OperateArgs, PeersArgs};
use crate::peer::args::{EvidenceArgs, ExpertsArgs, JoinArgs, ProgressArgs, ReceiptsArgs};
use crate::serve::ServeArgs;
use crate::top::TopArgs;

/// Train a model in the open, on computers that people lend.
#[derive(Debug, Parser)]
#[command(name = "barnraise", version, max_term_width = 100)]
pub struct Cli {
    /// Format of log lines on standard error; RUST_LOG filters them
    #[arg(long, global = true, env = "BARNRAISE_LOG_FORMAT", default_value = "text")]
    pub log_format: LogFormat,
    /// What to do.
    #[command(subcommand)]
    pub command: CliCommand,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum CliCommand {
    /// Run a backbone: serve the page, collect gradients, make the optimizer steps
    Serve(ServeArgs),
    /// Ask a few questions, and write the file of a run
    Init(InitArgs),
    /// Print example configurations, and check one before it is used
    Config(ConfigArgs),
    /// Print the peer id of a run's backbone, for the [aggregators] of the other backbones
    Id(IdArgs),
    /// Contribute to a run with this machine
    Join(Box<JoinArgs>),
    /// Host experts of a run's model on this machine
    Experts(Box<ExpertsArgs>),
    /// List what this machine can compute on, and check that it computes what the processor does
    Devices(DevicesArgs),
    /// Print the progress of a run, from the records of its backbones in the DHT
    Progress(ProgressArgs),
    /// Operate a run while it trains: pause, resume, set, export, rollback
    Run(OperateArgs),
    /// List the contributors of a run, and block peers
    Peers(PeersArgs),
    /// Change the allowlist of a run
    Allow(AllowArgs),
    /// Make an invitation to a run, and print its link
    Invite(InviteArgs),
    /// Revoke access to a run
    Revoke(RevokeArgs),
    /// Check receipts of contributions, and add them up
    Receipts(ReceiptsArgs),
    /// Recompute the evidence of a run against the peers that it convicted
    Evidence(EvidenceArgs),
    /// Write the newest model of a run into a folder that other programs load
    Export(ExportArgs),
    /// Go on with a text by an exported model
    Generate(GenerateArgs),
    /// Predict from new data by an exported model
    Predict(PredictArgs),
    /// Evaluate an exported model on data
    Evaluate(EvaluateArgs),
    /// Run a relay, through which peers find and reach each other
    Relay(RelayArgs),
    /// Watch a run in the terminal
    Top(TopArgs),
}

/// `barnraise id`
#[derive(Debug, Args)]
pub struct IdArgs {
    /// The run, as in run.example.toml; its key is created if it is missing
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
}

/// `barnraise relay`
#[derive(Debug, Args)]
pub struct RelayArgs {
    /// The relay, as in relay.example.toml
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use std::path::Path;

    use barnraise_protocol::access::PublicKey;
    use bytesize::ByteSize;
    use clap::CommandFactory;

    use super::*;
    use crate::config::{Device, LinkSpeed, Precision, RunConfig, cache_folder};
    use crate::peer::args::{CACHE_SIZE_DEFAULT, JoinAddress, JoinLink, RunName, SHARE_DEFAULT};

    fn serve(args: &[&str]) -> Result<ServeArgs, clap::Error> {
        match Cli::try_parse_from([&["barnraise", "serve"], args].concat())?.command {
            CliCommand::Serve(args) => Ok(args),
            _ => panic!("serve was asked for"),
        }
    }

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_run_is_operated_by_its_file_or_by_address_and_token() {
        let good = |args: &[&str]| Cli::try_parse_from([&["barnraise"][..], args].concat()).is_ok();
        assert!(good(&["run", "show", "--config", "run.toml"]));
        assert!(good(&["run", "pause", "--reason", "r", "--url", "http://h", "--token-file", "t"]));
        assert!(good(&["peers", "block", "12D3KooW", "--reason", "r", "--config", "run.toml", "--json"]));
        assert!(good(&["peers", "hide", "12D3KooW", "--config", "run.toml"]));
        assert!(!good(&["peers", "unhide", "--config", "run.toml"]), "without a peer");
        assert!(!good(&["run", "show"]));
        assert!(!good(&["run", "show", "--url", "http://h"]), "without a token");
        assert!(!good(&["run", "pause", "--config", "run.toml"]), "without a reason");
    }

    #[test]
    fn a_host_of_experts_is_started_or_operated() {
        let good = |args: &[&str]| Cli::try_parse_from([&["barnraise", "experts"], args].concat()).is_ok();
        assert!(good(&["http://h"]) && good(&["http://h", "--experts", "4", "--operator", "127.0.0.1:8083"]));
        for operated in [
            &["show", "--json"][..],
            &["drain", "--limit", "2m"],
            &["move", "0", "3.17", "--folder", "d"],
            &["freeze", "0"],
            &["unfreeze", "0"],
        ] {
            assert!(good(operated), "{operated:?}");
        }
        for wrong in
            [&[][..], &["http://h", "drain"], &["move", "0"], &["freeze", "first"], &["--experts", "4"]]
        {
            assert!(!good(wrong), "{wrong:?}");
        }
    }

    #[test]
    fn a_run_is_a_file_or_dev_and_not_both() {
        assert!(serve(&[]).is_err());
        assert!(serve(&["--dev", "--config", "x"]).is_err());
        assert!(serve(&["--config", "does-not-exist.toml"]).unwrap().configs().is_err());
    }

    #[test]
    fn several_runs_are_served_by_one_process() {
        let args = serve(&["--config", "a.toml", "--config", "b.toml"]).unwrap();
        assert_eq!(args.config, [Path::new("a.toml"), Path::new("b.toml")]);
        let folder = tempfile::tempdir().unwrap();
        let files: Vec<String> = ["a", "b"]
            .map(|id| {
                let path = folder.path().join(format!("{id}.toml"));
                std::fs::write(&path, format!("[run]\nid = \"{id}\"")).unwrap();
                path.display().to_string()
            })
            .into();
        let configs = serve(&["--config", &files[0], "--config", &files[1], "--data-dir", "/d"]);
        let configs = configs.unwrap().configs().unwrap();
        let folders = configs.iter().map(|config| config.storage.folder.clone());
        assert!(folders.eq([Path::new("/d/a"), Path::new("/d/b")]));
    }

    #[test]
    fn the_command_line_wins_over_the_configuration() {
        let args = ["--dev", "--device", "wgpu", "--http", "127.0.0.1:0", "--data-dir", "/d"];
        let listen = ["--listen", "/ip4/127.0.0.1/tcp/0", "--listen", "/ip4/127.0.0.1/tcp/1"];
        let config = serve(&[&args[..], &listen].concat()).unwrap().configs().unwrap().remove(0);
        assert_eq!(config.device.kind, Device::Wgpu);
        assert_eq!(config.network.http.port(), 0);
        assert_eq!(config.network.listen.len(), 2);
        assert_eq!(config.data_cache(), Path::new("/d"));
        assert_eq!(config.storage.folder, Path::new("/d/fashion-mnist"));
        assert_eq!(serve(&["--dev"]).unwrap().configs().unwrap(), [RunConfig::dev(&cache_folder())]);
    }

    #[test]
    fn a_run_is_named_by_its_id_and_perhaps_by_its_authority() {
        let key = PublicKey([0xab; 32]);
        let named = |authority| RunName { id: "a-run".into(), authority };
        assert_eq!("a-run".parse(), Ok(named(None)));
        assert_eq!(format!("a-run@{key}").parse(), Ok(named(Some(key))));
        let error = "a-run@abab".parse::<RunName>().unwrap_err().to_string();
        assert!(error.contains("64 hexadecimal digits"), "{error}");
    }

    #[test]
    fn a_run_is_joined_by_page_or_by_multiaddress() {
        let parse = |text: &str| text.parse::<JoinAddress>();
        assert_eq!(parse("http://127.0.0.1:8080/"), Ok(JoinAddress::Page("http://127.0.0.1:8080".into())));
        let address = "/ip4/127.0.0.1/tcp/4001/p2p/12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN";
        assert_eq!(parse(address), Ok(JoinAddress::Peer(address.parse().unwrap())));
        for wrong in [
            "",
            "/ip4/127.0.0.1/tcp/4001",
            "127.0.0.1:8080",
            "ftp://host/",
            "http://",
            "/ip4/127.0.0.1/nonsense",
            "host",
        ] {
            let error = parse(wrong).unwrap_err().to_string();
            assert!(error.contains(&format!("{wrong:?}")), "{error}");
        }
        let cli =
            Cli::try_parse_from(["barnraise", "join", "https://h", "--device", "cuda", "--samples", "9"]);
        let CliCommand::Join(args) = cli.unwrap().command else { panic!("join was asked for") };
        assert_eq!((args.device, args.samples), (Device::Cuda, Some(9)));
        assert_eq!((args.share, args.cache_size), (SHARE_DEFAULT, CACHE_SIZE_DEFAULT));
        let cli =
            Cli::try_parse_from(["barnraise", "join", "https://h", "--share", "0", "--cache-size", "5GiB"]);
        let CliCommand::Join(args) = cli.unwrap().command else { panic!("join was asked for") };
        assert_eq!((args.share, args.cache_size), (ByteSize(0), ByteSize::gib(5)));
        assert!(Cli::try_parse_from(["barnraise", "join", "https://h", "--share", "63KiB"]).is_err());
        let cli = Cli::try_parse_from(["barnraise", "join", "https://h", "--reduce", "12MiB"]);
        let CliCommand::Join(args) = cli.unwrap().command else { panic!("join was asked for") };
        assert_eq!(args.reduce, Some(LinkSpeed::Fixed(ByteSize::mib(12))));
        let cli = Cli::try_parse_from(["barnraise", "join", "https://h", "--reduce", "auto"]);
        let CliCommand::Join(args) = cli.unwrap().command else { panic!("join was asked for") };
        assert_eq!(args.reduce, Some(LinkSpeed::Auto));
        for wrong in ["0", "fast"] {
            assert!(Cli::try_parse_from(["barnraise", "join", "https://h", "--reduce", wrong]).is_err());
        }

        let cli = Cli::try_parse_from(["barnraise", "join", "https://h", "--throttle", "20"]);
        let CliCommand::Join(args) = cli.unwrap().command else { panic!("join was asked for") };
        assert_eq!(args.throttle.percent(), 20);
        for nonsense in ["4", "101", "half", "-5", "256"] {
            let throttle = format!("--throttle={nonsense}");
            assert!(
                Cli::try_parse_from(["barnraise", "join", "https://h", &throttle]).is_err(),
                "{nonsense}"
            );
        }
        assert_eq!(args.precision, Precision::F32);
        let cli = Cli::try_parse_from(["barnraise", "join", "https://h", "--precision", "f16"]);
        let CliCommand::Join(args) = cli.unwrap().command else { panic!("join was asked for") };
        assert_eq!(args.precision, Precision::F16);
    }

    #[test]
    fn the_tolerance_of_evidence_is_a_part_of_a_gradient() {
        for nonsense in ["NaN", "inf", "-0.1", "1", "half"] {
            let tolerance = format!("--tolerance={nonsense}");
            let error = Cli::try_parse_from(["barnraise", "evidence", "https://h", &tolerance]).unwrap_err();
            assert!(error.to_string().contains("want 0 or more, and below 1"), "{error}");
        }
        let cli = Cli::try_parse_from(["barnraise", "evidence", "https://h", "--tolerance", "0"]);
        let CliCommand::Evidence(evidence) = cli.unwrap().command else { panic!("evidence was asked for") };
        assert_eq!(evidence.tolerance.to_bits(), 0.0_f32.to_bits());
    }

    #[test]
    fn the_link_of_an_invitation_is_an_address_with_its_code() {
        let link: JoinLink = "http://h:1/#invitation=abc".parse().unwrap();
        assert_eq!(link.address, JoinAddress::Page("http://h:1".into()));
        assert_eq!(link.invitation.as_deref(), Some("abc"));
        let link: JoinLink = "https://h/run/a-run/#invitation=abc".parse().unwrap();
        assert_eq!(link.address, JoinAddress::Page("https://h/run/a-run".into()), "one run of several");
        assert_eq!(link.invitation.as_deref(), Some("abc"));
        let plain: JoinLink =
            "/ip4/127.0.0.1/tcp/1/p2p/12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN".parse().unwrap();
        assert_eq!(plain.invitation, None);
        assert_eq!("https://h/#".parse::<JoinLink>().unwrap().invitation, None);
        for wrong in ["https://h/#invite=abc", "https://h/#abc", "https://h/#invitation=", "https://h/#main"]
        {
            let error = wrong.parse::<JoinLink>().unwrap_err().to_string();
            assert!(error.contains(wrong) && error.contains("invitation=CODE"), "{error}");
        }
        let run = ["--config", "run.toml"];
        for (args, is_good) in [
            (&["invite", "--uses", "0"][..], false),
            (&["invite", "--expires", "0s"], false),
            (&["invite", "--uses", "3", "--expires", "12h"], true),
            (&["invite", "--room"], true),
            (&["invite", "--room", "--uses", "3"], true),
            (&["allow", "add"], false),
            (&["allow", "add", "--by", "email", "a@b"], true),
            (&["allow", "list"], true),
            (&["revoke", "alice", "--with-invitation"], true),
        ] {
            let parsed = Cli::try_parse_from([&["barnraise"], args, &run].concat());
            assert_eq!(parsed.is_ok(), is_good, "{args:?}");
        }
    }
}
