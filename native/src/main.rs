//! The `barnraise` binary: reads the command line and starts what it asks for.

use std::io::{IsTerminal, Write};
use std::pin::pin;

use barnraise_native::access::command;
use barnraise_native::backbone::{self, Listening};
use barnraise_native::cli::{Cli, Command, JoinArgs, ServeArgs};
use barnraise_native::peer::{self, display};
use barnraise_relay::server::{LOG_DEFAULT, operator_page, page_address, run_file};
use barnraise_relay::signals;
use clap::Parser;
use display::Display;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

fn main() -> anyhow::Result<()> {
    let cli = Cli::parse();
    let display = Display::new();
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(LOG_DEFAULT));
    let has_colours = std::io::stderr().is_terminal();
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(has_colours)
        .with_writer(display.clone())
        .init();
    barnraise_relay::install_crypto_provider();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let ended = match cli.command {
        Command::Serve(args) => runtime.block_on(serve(args)),
        Command::Id(args) => backbone::identity(&args.config).map(|peer| say(&format!("{peer}\n"))),
        Command::Join(args) => runtime.block_on(join(args, &display)),
        Command::Evidence(args) => runtime.block_on(peer::evidence::check(args)).map(|text| say(&text)),
        Command::Progress(args) => runtime.block_on(peer::progress::run(args)).map(|text| say(&text)),
        Command::Allow(args) => runtime.block_on(command::allow(args)).map(|text| say(&text)),
        Command::Invite(args) => runtime.block_on(command::invite(args)).map(|text| say(&text)),
        Command::Revoke(args) => runtime.block_on(command::revoke(args)).map(|text| say(&text)),
        Command::Receipts(args) => peer::receipts::verify(&args.file).map(|text| say(&text)),
        Command::Relay(args) => runtime.block_on(run_file(&args.config)).map_err(anyhow::Error::from),
    };
    // A request that is still waiting for its timeout keeps nobody waiting.
    runtime.shutdown_background();
    ended
}

async fn serve(args: ServeArgs) -> anyhow::Result<()> {
    let config = args.config()?;
    let shutdown = shutdown_at_signal("storing a checkpoint; once more to quit at once")?;
    let (listening, here) = oneshot::channel();
    let mut running = Box::pin(backbone::run(config, args.web_root, listening, shutdown.clone()));
    let mut here = pin!(here);
    tokio::select! {
        ended = &mut running => return ended,
        Ok(here) = &mut here => say(&announcement(&here)),
        // Nothing was promised to anyone yet.
        () = shutdown.cancelled() => return Ok(()),
    }
    running.await
}

async fn join(args: JoinArgs, display: &Display) -> anyhow::Result<()> {
    let given = Box::pin(peer::run(args, display)).await?;
    say(&format!("{}.\n", display::summary(&given)));
    Ok(())
}

/// Cancelled by the first signal, which is answered with what happens then.
fn shutdown_at_signal(answer: &'static str) -> anyhow::Result<CancellationToken> {
    let shutdown = CancellationToken::new();
    let cancel = shutdown.clone();
    signals::listen(move || {
        tracing::info!("{answer}");
        cancel.cancel();
    })?;
    Ok(shutdown)
}

fn announcement(here: &Listening) -> String {
    let page = page_address(here.http);
    let mut text = "Contributors are expected at\n".to_owned();
    for address in &here.addresses {
        text.push_str(&format!("  {address}\n"));
    }
    text.extend(here.operator.map(operator_page));
    text.push_str(&format!("A machine without a browser: barnraise join http://{page}\n"));
    text.push_str(&format!("Open http://{page}/ and press Start.\n"));
    text
}

/// On standard output; one that nobody reads is no reason to stop.
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
        let here = Listening {
            http: "0.0.0.0:8080".parse().unwrap(),
            operator: Some("127.0.0.1:8082".parse().unwrap()),
            addresses: vec!["/ip4/127.0.0.1/tcp/4001".parse().unwrap()],
        };
        let text = announcement(&here);
        assert!(text.ends_with("\nOpen http://127.0.0.1:8080/ and press Start.\n"), "{text}");
        assert!(text.contains("\n  /ip4/127.0.0.1/tcp/4001\n"), "{text}");
        assert!(text.contains("\nThe operator's page: http://127.0.0.1:8082/addresses"), "{text}");
    }
}
