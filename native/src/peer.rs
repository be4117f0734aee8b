//! `barnraise join`: this machine contributes to a run until it is stopped.
//!
//! `barnraise-contributor` drives the contribution, as in a tab. This module has the network, the clock, the cache on
//! disk, the terminal and the signals around it. It listens only for peers that want shards, and for backbones for which
//! it averages parts.

mod address;
pub mod args;
mod cache;
mod choice;
mod claim;
pub mod display;
pub mod evidence;
pub mod experts;
mod find;
mod home;
pub mod newest;
mod own_access;
mod platform;
pub mod progress;
pub mod receipts;
mod reducing;
mod sampled;
mod sharing;
mod tokens;

use std::cell::RefCell;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail, ensure};
use barnraise_contributor::{
    COMMANDS_MAX, Config, ContributorCommand, ContributorEvent, Credentials, contribute,
};
use barnraise_learning::{ComputeDevice, DeviceChoice, open_device};
use barnraise_protocol::Sha256Hash;
use barnraise_swarm::activity::{Activity, Contribution, Interruption};
use barnraise_swarm::backoff::Backoff;
use barnraise_swarm::pacing::PacingSettings;
use bytesize::ByteSize;
use futures::channel::mpsc;
use futures::future::BoxFuture;
use libp2p::Multiaddr;
use libp2p::identity::Keypair;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::config::cache_folder;
use crate::host::access;
use crate::host::access::rooms::RoomCode;
use crate::host::run::LocalHostSetup;
use args::{CACHE_SIZE_DEFAULT, JoinAddress, JoinArgs, JoinLink, OPERATOR_DEFAULT};
use cache::ShardCache;
use display::Display;
use experts::HostSetup;
use experts::beside::HostBeside;
use platform::{ListenConfig, NativePlatform, PageDoors};
use receipts::ReceiptFile;
use reducing::Reducing;
use sampled::Participation;
use sharing::Sharing;

/// Contributes until the user, `--samples` or the run ends it; returns the totals, in a sentence without its full stop.
///
/// Not `Send`: for `Runtime::block_on`, on a runtime whose worker threads drive the network while this thread
/// computes.
///
/// # Errors
/// The device or the key cannot be opened; at the first attempt, there is no run at the address; or the run refuses this
/// peer for good. Temporary failures, such as a network that is not up yet, are retried.
pub async fn run(args: JoinArgs, display: &Display) -> anyhow::Result<String> {
    let of_no_use = of_no_use_when_sampled(&args);
    let identity = args.identity.as_deref().map(barnraise_relay::lock_keypair).transpose()?;
    let keypair = match &identity {
        Some(identity) => identity.keypair.clone(),
        None => Keypair::generate_ed25519(),
    };
    let mut receipts = args.receipts.as_deref().map(ReceiptFile::open).transpose()?;
    if receipts.as_ref().is_some_and(ReceiptFile::is_torn) {
        display.say("The last line of the file of receipts is torn. It is left as it is, and the next one is a line of its own.");
    }
    let choice = DeviceChoice::from(args.device);
    let device = open_device(choice).await.with_context(|| format!("--device {choice} was asked for"))?;
    let of_host = device.clone();
    let device = device.with_precision(args.precision.into())?;
    display.say(&format!("Computing on {}, as peer {}.", device.name(), keypair.public().to_peer_id()));

    let (mut commands, received) = mpsc::channel(COMMANDS_MAX);
    let pacing = PacingSettings { duty: args.throttle, ..PacingSettings::default() };
    for command in
        [ContributorCommand::Pacing(pacing), ContributorCommand::Name(args.name), ContributorCommand::Start]
    {
        commands.try_send(command).context("a new channel is full")?;
    }
    let leaving = CancellationToken::new();
    let leave = {
        let (mut commands, display, leaving) = (commands.clone(), display.clone(), leaving.clone());
        move || {
            display.say("Leaving: what is finished is delivered first. Once more to quit at once.");
            commands.close_channel();
            leaving.cancel();
        }
    };
    let _signals = barnraise_relay::signals::listen(leave)?;

    let resolving = resolve_link(args.address, args.invitation, display);
    let Some(resolved) = leaving.run_until_cancelled(Box::pin(resolving)).await else {
        display.finish();
        return Ok(display::summary(&Contribution::default()));
    };
    let (address, invitation) = resolved?;
    let page = PageOfRun::open(args.page, args.share).await?;
    let relays = args.relay.clone();
    let doors = ListenConfig { listen: args.listen, relays: args.relay };
    let hosting = args.host_experts.map(|n_room| {
        let setup = HostSetup {
            address: address.clone(),
            run: args.run.clone(),
            invitation: invitation.clone(),
            n_room: u32::try_from(n_room).unwrap_or(u32::MAX),
            device: of_host,
            folder: args.cache.as_ref().map_or_else(experts::default_folder, |cache| cache.join("experts")),
            identity: None,
            // The ports of --listen are the contributor's.
            doors: ListenConfig { listen: Vec::new(), relays: doors.relays.clone() },
            operator: OPERATOR_DEFAULT,
        };
        let mut commands = commands.clone();
        HostBeside::start(setup, display.clone(), leaving.child_token(), move || commands.close_channel())
    });
    let hosting = hosting.transpose()?;
    let config = config(device.clone(), &keypair, invitation)?;
    let credentials = config.credentials.clone();
    let folder = args.cache.unwrap_or_else(shard_folder);
    let cache = ShardCache::new(folder, args.cache_size.as_u64());
    // Records are signed; without an Ed25519 key its shards come from the backbone alone.
    let key = access::signing_key(&keypair).ok();
    let sharing = key.map(|key| Sharing::new(cache.clone(), key, args.share.as_u64()));
    if sharing.as_ref().is_some_and(Sharing::serves) {
        display.say(&format!(
            "Shards of the data are passed on to other peers, at most {} a second.",
            args.share
        ));
    }
    let reducing = args.reduce.map(|speed| Reducing::new(speed, display.clone()));
    let way = (address.clone(), args.run.clone());
    let mut platform =
        NativePlatform::new(address, args.run, keypair.clone(), cache.clone()).with_listen_config(doors);
    if let Some(sharing) = sharing.clone() {
        platform = platform.with_sharing(sharing);
    }
    if let Some(reducing) = reducing.clone() {
        display.say(
            "Parts of the average are computed for the run's backbones, where they can dial this machine.",
        );
        platform = platform.with_reducing(reducing);
    }
    platform = platform.with_page(page.as_ref().map(PageOfRun::doors).transpose()?);
    let only_sampled =
        [("--data", args.data.is_some()), ("--test", args.test.is_some()), ("--page", page.is_some())];
    let only_sampled = only_sampled.into_iter().find_map(|(option, is_given)| is_given.then_some(option));
    let watch = RefCell::new(StopRule::new(commands, args.samples, only_sampled));
    let given = contribute(&platform, config, received, |event| {
        if matches!(event, ContributorEvent::Described(_)) && platform.is_participant() {
            // It was found as one of a run without a server.
            watch.borrow_mut().fail(Interruption::other(
                "the peer that was found describes another run than the wanted one",
            ));
        }
        watch.borrow_mut().on_event(&event, platform.is_mistake());
        if let (Some(file), ContributorEvent::Receipt(receipt)) = (&mut receipts, &event)
            && let Err(error) = file.append(receipt)
        {
            display.say(&format!("A receipt could not be kept: {error}"));
        }
        display.on_event(&event, platform.elapsed());
    });
    let given = Box::pin(given).await;
    display.finish();
    let hosted = match hosting {
        Some(hosting) => hosting.leave().await,
        None => Ok(()),
    };
    let watch = watch.into_inner();
    if watch.is_sampled && !leaving.is_cancelled() {
        if !of_no_use.is_empty() {
            display.say(&format!("This run has no server: {} do nothing in it.", of_no_use.join(", ")));
        }
        // Without an Ed25519 key nobody takes part.
        let sharing = sharing.context("members of this run sign with an Ed25519 key")?;
        let (listener, _certificates) = page.map(|page| (page.listener, page.certificates)).unzip();
        let (platform, key, seed, data) = (&platform, &keypair, seed(&keypair), args.data);
        let participation = Participation {
            platform,
            way,
            credentials,
            key,
            cache,
            data,
            test: args.test,
            page: listener,
            device,
            pacing,
            sharing,
            relays,
            seed,
            display,
            leaving,
        };
        let n_rounds = Box::pin(participation.take_part()).await?;
        return Ok(format!("{n_rounds} rounds were trained here"));
    }
    let passed_on = sharing.map_or(0, |sharing| sharing.n_bytes_passed_on());
    if passed_on > 0 {
        display.say(&format!("{} of shards were passed on to other peers.", ByteSize(passed_on)));
    }
    let (n_parts, n_bytes) = reducing.map_or((0, 0), |reducing| reducing.given());
    if n_parts > 0 {
        let n_bytes = ByteSize(n_bytes);
        display.say(&format!("{n_parts} parts were averaged for the backbones, of {n_bytes} of gradients."));
    }
    match watch.failure {
        Some(reason) if given.n_accepted == 0 => bail!(reason),
        Some(reason) => bail!("{reason}; until then {}", display::summary(&given)),
        None => hosted.map(|()| display::summary(&given)),
    }
}

/// Where the page of a run is to be shown. The port is taken before anything is trained.
struct PageOfRun {
    listener: TcpListener,
    /// With the certificates that browsers are shown, which are new each time.
    certificates: TempDir,
}

impl PageOfRun {
    async fn open(at: Option<SocketAddr>, share: ByteSize) -> anyhow::Result<Option<Self>> {
        let Some(at) = at else { return Ok(None) };
        ensure!(share.as_u64() > 0, "--page hands out the run's data, and --share 0 does not");
        let listener = TcpListener::bind(at).await;
        let listener = listener.with_context(|| format!("--page: the page cannot be shown at {at}"))?;
        let certificates = tempfile::tempdir().context("--page: there is no place for certificates")?;
        Ok(Some(Self { listener, certificates }))
    }

    fn doors(&self) -> anyhow::Result<PageDoors> {
        let ip = self.listener.local_addr()?.ip();
        Ok(PageDoors { ip, certificates: self.certificates.path().to_owned() })
    }
}

/// Options that were given, and that do nothing in a run without a server.
fn of_no_use_when_sampled(args: &JoinArgs) -> Vec<&'static str> {
    let options = [
        ("--samples", args.samples.is_some()),
        ("--receipts", args.receipts.is_some()),
        ("--name", args.name.is_some()),
        ("--reduce", args.reduce.is_some()),
        ("--relay", !args.relay.is_empty() && args.page.is_none()),
        ("--host-experts", args.host_experts.is_some()),
    ];
    options.into_iter().filter_map(|(option, is_given)| is_given.then_some(option)).collect()
}

/// Starts a host of experts for the backbone of this process.
///
/// # Errors
/// The system starts no thread.
pub(crate) fn start_local_host(
    setup: LocalHostSetup,
) -> anyhow::Result<BoxFuture<'static, anyhow::Result<()>>> {
    let LocalHostSetup { addresses, invitation, n_room, listen, folder, device, leaving } = setup;
    let listed: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    let mut addresses = address::to_dial(&listed);
    // Others reach the host through the backbone at the address that it has dialled itself.
    addresses.sort_by_key(platform::is_loopback);
    let host = HostSetup {
        address: JoinAddress::Here(addresses),
        run: None,
        invitation,
        n_room,
        device,
        folder,
        identity: None,
        doors: ListenConfig { listen, relays: Vec::new() },
        operator: OPERATOR_DEFAULT,
    };
    let hosting = HostBeside::start(host, Display::in_log(), leaving, || ())?;
    Ok(Box::pin(hosting.ended()))
}

/// Runs a contributor to the backbone of this process, at one of `addresses`, on its own thread until the process ends.
///
/// # Errors
/// No thread can be started, or no address is one that a native peer dials. Later errors are logged.
pub(crate) fn run_local_contributor(
    addresses: &[Multiaddr],
    device: ComputeDevice,
    keypair: Keypair,
) -> anyhow::Result<()> {
    let listed: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    let address = address::to_dial(&listed).into_iter().next();
    let address = address.context("the backbone has no QUIC or TCP address that it could contribute to")?;
    // A runtime of its own: it contributes until the process exits, and the process's runtime ends before.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let contributing = move || {
        let given = runtime.block_on(contribute_to(address, device, keypair));
        match given {
            Ok(given) => tracing::info!("this backbone no longer contributes: {}", display::summary(&given)),
            Err(error) => tracing::error!(%error, "this backbone cannot contribute"),
        }
    };
    std::thread::Builder::new().name("contributor".to_owned()).spawn(contributing)?;
    Ok(())
}

async fn contribute_to(
    address: Multiaddr,
    device: ComputeDevice,
    keypair: Keypair,
) -> anyhow::Result<Contribution> {
    tracing::info!(device = device.name(), peer = %keypair.public().to_peer_id(), "this backbone contributes too");
    let (mut commands, received) = mpsc::channel(COMMANDS_MAX);
    commands.try_send(ContributorCommand::Start).context("a new channel is full")?;
    let config = config(device, &keypair, None)?;
    // It fetches shards from the backbone of this process only.
    let cache = ShardCache::new(shard_folder(), CACHE_SIZE_DEFAULT.as_u64());
    let platform =
        NativePlatform::new(JoinAddress::Peer(address), None, keypair, cache).without_other_backbones();
    let on_event = |event: ContributorEvent| match event {
        ContributorEvent::Refused { refusal } => tracing::warn!(%refusal, "while contributing"),
        ContributorEvent::Failed { message } => tracing::warn!(message, "while contributing"),
        ContributorEvent::Activity(Activity::NotAdmitted { reason } | Activity::Broken { reason }) => {
            tracing::error!(%reason, "while contributing");
        }
        _ => {}
    };
    Ok(Box::pin(contribute(&platform, config, received, on_event)).await)
}

/// Address of the run, and the code of an invitation. For a room code, the page of the run is asked for both.
async fn resolve_link(
    link: JoinLink,
    invitation: Option<String>,
    display: &Display,
) -> anyhow::Result<(JoinAddress, Option<String>)> {
    let invitation = invitation.or(link.invitation);
    let code = invitation.as_deref().and_then(|code| code.parse::<RoomCode>().ok());
    let (JoinAddress::Page(page), Some(code)) = (&link.address, code) else {
        return Ok((link.address, invitation));
    };
    let mut backoff = Backoff::new(micros());
    let mut told = None;
    loop {
        match address::room(page, code).await {
            Ok((address, invitation)) => return Ok((address, Some(invitation))),
            Err(error) if error.is_mistake() => return Err(error.into()),
            Err(error) => {
                let reason = error.to_string();
                if told.as_ref() != Some(&reason) {
                    display.say(&format!("{reason}. It is tried again, less and less often."));
                    told = Some(reason);
                }
                tokio::time::sleep(backoff.next_delay()).await;
            }
        }
    }
}

/// Default folder for cached shards.
fn shard_folder() -> PathBuf {
    cache_folder().join("peer")
}

/// Configuration of a native contributor.
///
/// # Errors
/// The system's random number generator failed.
fn config(device: ComputeDevice, keypair: &Keypair, invitation: Option<String>) -> anyhow::Result<Config> {
    Ok(Config {
        device,
        // The user chose it.
        is_device_free: false,
        first_contribution_id: first_contribution_id()?,
        seed: seed(keypair),
        // Without an Ed25519 key it takes part in open runs.
        credentials: Credentials { key: access::signing_key(keypair).ok(), invitation },
    })
}

/// Ends the contribution after `--samples` samples, or when it cannot go on.
struct StopRule {
    commands: mpsc::Sender<ContributorCommand>,
    samples: Option<u64>,
    was_described: bool,
    /// The run has no server, so that this participant takes part in another way.
    is_sampled: bool,
    /// An option for such runs alone.
    only_sampled: Option<&'static str>,
    failure: Option<Interruption>,
}

impl StopRule {
    fn new(
        commands: mpsc::Sender<ContributorCommand>,
        samples: Option<u64>,
        only_sampled: Option<&'static str>,
    ) -> Self {
        Self { commands, samples, was_described: false, is_sampled: false, only_sampled, failure: None }
    }

    /// - `is_mistake`: whether the last attempt failed because the address or the run was named wrongly
    fn on_event(&mut self, event: &ContributorEvent, is_mistake: bool) {
        match event {
            ContributorEvent::Described(_) => self.on_described(),
            ContributorEvent::Activity(
                Activity::NotAdmitted { reason: Interruption::Sampled }
                | Activity::Broken { reason: Interruption::Sampled },
            ) => {
                self.is_sampled = true;
                self.commands.close_channel();
            }
            ContributorEvent::Activity(Activity::NotAdmitted { reason } | Activity::Broken { reason }) => {
                self.fail(reason.clone());
            }
            // A user who mistyped the address should not wait for ever.
            ContributorEvent::Activity(Activity::Reconnecting { reason, .. })
                if is_mistake && !self.was_described =>
            {
                self.fail(reason.clone());
            }
            ContributorEvent::Contribution(given)
                if self.samples.is_some_and(|samples| given.n_samples_accepted >= samples) =>
            {
                self.commands.close_channel();
            }
            _ => {}
        }
    }

    fn on_described(&mut self) {
        self.was_described = true;
        if let Some(option) = self.only_sampled {
            self.fail(Interruption::other(format!(
                "{option} is for a run without a server: in this one backbones have the page, the data and the test"
            )));
        }
    }

    fn fail(&mut self, reason: Interruption) {
        self.failure.get_or_insert(reason);
        self.commands.close_channel();
    }
}

/// Id of the first contribution of this process, a random number: the same key must never use an id twice, and a clock
/// could be set back between two processes.
fn first_contribution_id() -> anyhow::Result<u64> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_err(|error| anyhow::anyhow!("no contribution can be named: {error}"))?;
    // Pages show receipts, and JavaScript has whole numbers up to 2^53: half of them leaves room to count.
    Ok(u64::from_le_bytes(bytes) >> 12)
}

fn micros() -> u64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since_1970.as_micros().try_into().unwrap_or(u64::MAX / 2)
}

/// Seed of the order of the samples, different for each peer and each process.
fn seed(keypair: &Keypair) -> u64 {
    let mut bytes = keypair.public().to_peer_id().to_bytes();
    bytes.extend(micros().to_le_bytes());
    Sha256Hash::of(&bytes).number()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct JoinLine {
        #[command(flatten)]
        args: JoinArgs,
    }

    #[test]
    fn what_does_nothing_without_a_server_is_named() {
        let given = |options: &[&str]| {
            let words = [&["join", "https://h"][..], options].concat();
            of_no_use_when_sampled(&JoinLine::try_parse_from(words).unwrap().args)
        };
        assert!(given(&["--throttle", "20", "--share", "0"]).is_empty());
        assert_eq!(given(&["--name", "anna", "--samples", "5"]), ["--samples", "--name"]);
    }

    fn watch(samples: Option<u64>) -> (StopRule, mpsc::Receiver<ContributorCommand>) {
        let (commands, received) = mpsc::channel(COMMANDS_MAX);
        (StopRule::new(commands, samples, None), received)
    }

    fn reconnecting() -> ContributorEvent {
        ContributorEvent::Activity(Activity::Reconnecting {
            retry_in_ms: 1000,
            reason: Interruption::other("refused"),
        })
    }

    #[test]
    fn an_address_that_is_none_ends_it_and_one_that_does_not_answer_does_not() {
        let (mut watch, _received) = watch(None);
        watch.on_event(&reconnecting(), false);
        assert!(!watch.commands.is_closed() && watch.failure.is_none(), "its network may come up later");
        watch.on_event(&reconnecting(), true);
        assert!(watch.commands.is_closed());
        assert_eq!(watch.failure, Some(Interruption::other("refused")));
    }

    /// With ids from the clock, two processes that begin in the same microsecond would collide, as would one that begins
    /// after the clock was set back.
    #[test]
    fn no_clock_decides_how_contributions_are_called() {
        let first: std::collections::BTreeSet<u64> =
            (0..1000).map(|_| first_contribution_id().unwrap()).collect();
        assert_eq!(first.len(), 1000);
        let ids: Vec<u64> = first.into_iter().collect();
        assert!(ids.windows(2).all(|pair| pair[1] - pair[0] > 1_000_000), "far apart");
        assert!(ids.iter().all(|id| *id <= u64::MAX / 2));
    }

    #[test]
    fn a_run_that_was_there_is_waited_for() {
        let (mut watch, _received) = watch(None);
        watch.was_described = true;
        // A proxy may say anything while the run is away.
        watch.on_event(&reconnecting(), true);
        assert!(!watch.commands.is_closed() && watch.failure.is_none());
        watch.on_event(&ContributorEvent::Activity(Activity::Broken { reason: Interruption::Silent }), false);
        assert!(watch.commands.is_closed());
        assert_eq!(watch.failure, Some(Interruption::Silent));
    }

    #[test]
    fn enough_samples_end_it() {
        let (mut watch, _received) = watch(Some(100));
        let given = |n_samples_accepted| {
            ContributorEvent::Contribution(Contribution { n_samples_accepted, ..Contribution::default() })
        };
        watch.on_event(&given(99), false);
        assert!(!watch.commands.is_closed());
        watch.on_event(&given(100), false);
        assert!(watch.commands.is_closed() && watch.failure.is_none());
    }
}
