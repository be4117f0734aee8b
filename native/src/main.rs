//! The `barnraise` binary: reads the command line and starts what it asks for.

use std::io::Write;
use std::pin::pin;

use barnraise_native::cli::{Cli, CliCommand};
use barnraise_native::config::{self, TelemetrySection};
use barnraise_native::host::access::command;
use barnraise_native::host::admin;
use barnraise_native::host::identity::identity;
use barnraise_native::host::page::PageSource;
use barnraise_native::host::run::BackboneAddresses;
use barnraise_native::peer::args::{ExpertsArgs, HostArgs, JoinArgs};
use barnraise_native::peer::{self, display};
use barnraise_native::serve::{self, RunSource, ServeArgs, ServingAddresses};
use barnraise_native::{devices, exported, logging, top};
use barnraise_relay::server::{operator_page, page_address, run_file};
use barnraise_relay::signals;
use clap::Parser;
use display::Display;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

fn main() -> anyhow::Result<()> {
    let cli = Cli::parse();
    let display = Display::new();
    let traces = logging::start(cli.log_format, display.clone(), &telemetry(&cli.command)?)?;
    barnraise_relay::install_crypto_provider();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let ended = match cli.command {
        CliCommand::Serve(args) => runtime.block_on(serve(args)),
        CliCommand::Init(args) => config::init::run_at_terminal(&args),
        CliCommand::Config(args) => config::command::run(&args).map(|text| say(&text)),
        CliCommand::Id(args) => identity(&args.config).map(|peer| say(&format!("{peer}\n"))),
        CliCommand::Join(args) => runtime.block_on(join(*args, &display)),
        CliCommand::Experts(args) => match *args {
            ExpertsArgs { verb: Some(verb), .. } => {
                peer::experts::command::operate(verb).map(|text| say(&text))
            }
            ExpertsArgs { host: Some(host), .. } => runtime.block_on(host_experts(host, &display)),
            // The command line wants one of the two.
            ExpertsArgs { host: None, verb: None } => Ok(()),
        },
        CliCommand::Devices(args) => {
            runtime.block_on(devices::check(&args, |line| display.say(line))).map(|text| say(&text))
        }
        CliCommand::Evidence(args) => runtime.block_on(peer::evidence::check(args)).map(|text| say(&text)),
        CliCommand::Progress(args) => runtime.block_on(peer::progress::run(args)).map(|text| say(&text)),
        CliCommand::Run(args) => admin::command::operate(args).map(|text| say(&text)),
        CliCommand::Peers(args) => admin::command::peers(args).map(|text| say(&text)),
        CliCommand::Allow(args) => runtime.block_on(command::allow(args)).map(|text| say(&text)),
        CliCommand::Invite(args) => runtime.block_on(command::invite(args)).map(|text| say(&text)),
        CliCommand::Revoke(args) => runtime.block_on(command::revoke(args)).map(|text| say(&text)),
        CliCommand::Receipts(args) => peer::receipts::verify(&args.file).map(|text| say(&text)),
        CliCommand::Export(args) => {
            runtime.block_on(exported::export(&args)).map(|text| say(&text)).map_err(Into::into)
        }
        CliCommand::Generate(args) => {
            exported::generate(&args, &mut std::io::stdout().lock()).map_err(Into::into)
        }
        CliCommand::Predict(args) => {
            exported::predict(&args, &mut std::io::stdout().lock()).map_err(Into::into)
        }
        CliCommand::Evaluate(args) => exported::evaluate(&args).map(|text| say(&text)).map_err(Into::into),
        CliCommand::Top(args) => top::run(&args).map(|text| say(&text)),
        CliCommand::Relay(args) => runtime.block_on(run_file(&args.config)).map_err(anyhow::Error::from),
    };
    // Blocking requests that wait for their timeout do not delay the end.
    runtime.shutdown_background();
    traces.finish();
    ended
}

/// Reads the collector of traces from the configuration of a run, before anything is logged.
fn telemetry(command: &CliCommand) -> anyhow::Result<TelemetrySection> {
    match command {
        // A process has one collector: that of its first run.
        CliCommand::Serve(args) => Ok(match args.source()? {
            RunSource::Named(mut configs) => configs.swap_remove(0).telemetry,
            RunSource::Folder(_) => TelemetrySection::default(),
        }),
        _ => Ok(TelemetrySection::default()),
    }
}

async fn serve(args: ServeArgs) -> anyhow::Result<()> {
    let source = args.source()?;
    let (shutdown, _signals) = shutdown_at_signal("storing a checkpoint; once more to quit at once")?;
    let (listening, here) = oneshot::channel();
    let page = PageSource::chosen(args.web_root);
    let mut running = Box::pin(serve::serve(source, page, listening, shutdown.clone()));
    let mut here = pin!(here);
    tokio::select! {
        ended = &mut running => return ended,
        Ok(here) = &mut here => say(&announcement(&here)),
        // Nothing was accepted yet that could be lost.
        () = shutdown.cancelled() => return Ok(()),
    }
    running.await
}

async fn join(args: JoinArgs, display: &Display) -> anyhow::Result<()> {
    let totals = Box::pin(peer::run(args, display)).await?;
    say(&format!("{totals}.\n"));
    Ok(())
}

async fn host_experts(args: HostArgs, display: &Display) -> anyhow::Result<()> {
    let hosted = Box::pin(peer::experts::run(args, display)).await;
    display.finish();
    hosted
}

/// A token that the first signal cancels, while the handle lives; `answer` is logged then.
fn shutdown_at_signal(answer: &'static str) -> anyhow::Result<(CancellationToken, AbortOnDropHandle<()>)> {
    let shutdown = CancellationToken::new();
    let cancel = shutdown.clone();
    let signals = signals::listen(move || {
        tracing::info!("{answer}");
        cancel.cancel();
    })?;
    Ok((shutdown, signals))
}

fn announcement(open: &ServingAddresses) -> String {
    let page = page_address(open.http);
    if let [alone] = &open.runs[..] {
        let mut text = addresses("Contributors are expected at", alone);
        text.push_str(&format!("A machine without a browser: barnraise join http://{page}\n"));
        text.push_str(&format!("Open http://{page}/ and press Start.\n"));
        return text;
    }
    let mut text = String::new();
    for run in &open.runs {
        let id = &run.run_id;
        text.push_str(&addresses(&format!("Contributors of {id} are expected at"), run));
        text.push_str(&format!("A machine without a browser: barnraise join http://{page}/run/{id}\n"));
        text.push_str(&format!("Its page: http://{page}/run/{id}/\n"));
    }
    text.push_str(&format!("Open http://{page}/ and choose a run.\n"));
    text
}

fn addresses(title: &str, here: &BackboneAddresses) -> String {
    let lines = here.addresses.iter().map(|address| format!("  {address}\n"));
    let operator = here.operator.map(operator_page);
    [format!("{title}\n")].into_iter().chain(lines).chain(operator).collect()
}

/// Prints to standard output; a closed one is no reason to stop.
fn say(text: &str) {
    let mut output = std::io::stdout().lock();
    let _ = output.write_all(text.as_bytes()).and_then(|()| output.flush());
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn the_page_and_every_address_are_announced() {
        let here = |run_id: &str| BackboneAddresses {
            run_id: run_id.into(),
            operator: Some("127.0.0.1:8082".parse().unwrap()),
            addresses: vec!["/ip4/127.0.0.1/tcp/4001".parse().unwrap()],
        };
        let http = "0.0.0.0:8080".parse().unwrap();
        let text = announcement(&ServingAddresses { http, runs: vec![here("a")] });
        assert!(text.ends_with("\nOpen http://127.0.0.1:8080/ and press Start.\n"), "{text}");
        assert!(text.contains("\n  /ip4/127.0.0.1/tcp/4001\n"), "{text}");
        assert!(text.contains("\nThe operator's page: http://127.0.0.1:8082/addresses"), "{text}");
        let text = announcement(&ServingAddresses { http, runs: vec![here("a"), here("b")] });
        for part in
            ["of a are expected at\n  /ip4/", "of b are expected", "join http://127.0.0.1:8080/run/b\n"]
        {
            assert!(text.contains(part), "{part} is missing in {text}");
        }
        assert!(text.ends_with("\nOpen http://127.0.0.1:8080/ and choose a run.\n"), "{text}");
    }
}
