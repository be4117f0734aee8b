//! Kills a real `barnraise serve` at random moments of its writing, again and again. After each restart, every
//! acknowledged contribution must count exactly once: in the model, in the database and in the receipts.
//!
//! The model shows which contributions it has. Each contribution moves one value, by its weight in the step, and no other
//! one moves that value for thousands of contributions. Whether an offer without an answer counts is read from the model,
//! and database and receipts must agree with it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use barnraise_native::host::contributions::{Question, Store};
use barnraise_protocol::access::ContributorToBackbone as Up;
use barnraise_protocol::api::ContributionsQuery;
use barnraise_protocol::bulk::{BulkError, Transfer};
use barnraise_protocol::contribute::BackboneToContributor;
use barnraise_protocol::framing::FrameError;
use barnraise_protocol::gradient::{ContributionRefusal, Offer};
use barnraise_protocol::receipt::Receipt;
use barnraise_protocol::run::RunDescription;
use barnraise_protocol::{ConversationError, TensorCodec};
use barnraise_swarm::random::SplitMix64;
use futures::future::{try_join, try_join_all};
use libp2p::identity::Keypair;
use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId};

use crate::client::{ContributeSession, TestClient, n_parameters};
use crate::process::{BackboneProcess, TestRun};

/// By invitation, where a contribution weighs what it has. Checkpoints come often, and the journal is cut behind them.
const RUN: &str = r#"
[run]
id = "killed"

[model]
kind = { mlp = { hidden = [8] } }

[data]
shuffle_buffer_samples = 1000

[scheme.synchronous]
target_batch_size = 256
micro_batch_size = 32
gradient_codec = "f32"
state_codec = "f32"
optimizer = { kind = "sgd-momentum", momentum = 0.0 }
schedule = { peak = 0.25, warmup_steps = 0, decay = { kind = "constant" } }
contribution_samples_max = 1024
samples_per_second_max = 4000000000
collect_timeout = "2s"

[storage]
checkpoint_every_epochs = 3
keep_checkpoints = 2

[network]
upnp = false

[access]
mode = "invitation"

[evaluation]
every_epochs = 1000000
"#;
const LEARNING_RATE: f64 = 0.25;
const N_CONTRIBUTORS: u64 = 3;
/// From the first answer on, the backbone lives at most so long.
const LIFE_MAX: Duration = Duration::from_millis(1500);
/// One start of so many is cut short, at most so long after it began.
const CUT_STARTS: usize = 6;
const START_MAX: Duration = Duration::from_millis(900);
/// Far below what the smallest contribution moves a value by, and far above what rounding does.
const TOLERANCE: f64 = 1e-3;
/// Folders of the journal after a clean stop: what two checkpoints need, and what was set aside.
const STEPS_KEPT_MAX: usize = 12;
/// Transfers of a contribution that may be cut in a row.
const CUT_MAX: u32 = 20;
/// Before something is offered again that is not wanted yet.
const AGAIN: Duration = Duration::from_millis(2);

/// Counts of a test with kills.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KillOutcome {
    /// Kills of a backbone that accepted contributions.
    pub n_kills: u64,
    /// Kills of one that was starting.
    pub n_cut_starts: u64,
    /// Contributions that were acknowledged.
    pub n_acknowledged: u64,
    /// Those that were answered only when they were offered again, after a kill.
    pub n_answered_later: u64,
    /// Those that were never answered and count, and that were never answered and do not.
    pub n_unanswered: (u64, u64),
    /// Steps that were made.
    pub n_steps: u64,
}

impl fmt::Display for KillOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { n_kills, n_cut_starts, n_acknowledged, n_answered_later, n_unanswered, n_steps } = self;
        let (counts, does_not) = n_unanswered;
        write!(
            f,
            "{n_kills} kills while contributing, {n_cut_starts} while starting; {n_acknowledged} contributions \
             acknowledged in {n_steps} steps, {n_answered_later} of them only when they were offered again; of those that \
             nobody answered {counts} count and {does_not} do not"
        )
    }
}

/// Kills a backbone `n_kills` times, at moments that `seed` chooses, and looks at it after each.
///
/// # Errors
/// Something that was acknowledged is lost or counts twice, or a restart does not train on; the seed, the kill and the log
/// are in the error. The run's folder is kept then.
pub async fn kill(n_kills: u64, seed: u64) -> Result<KillOutcome> {
    let mut test_run = TestRun::new(RUN)?;
    let killed = KillTest::run(&mut test_run, n_kills, seed).await;
    killed.map_err(|error| {
        let (log, folder) = (test_run.newest_log(), test_run.keep());
        error.context(format!(
            "KILL_SEED={seed}, its folder is {}, its log ends with\n{log}",
            folder.display()
        ))
    })
}

/// One contributor, with its unanswered and acknowledged contributions.
struct KillContributor {
    keypair: Keypair,
    next: u64,
    /// Offered, and not answered.
    unanswered: Option<Offer>,
    /// Offered again after a kill, when its epoch was over.
    uncertain: Vec<Offer>,
    /// The newest that was acknowledged.
    last: Option<(Offer, Receipt)>,
    /// All that were acknowledged since they were last compared with the model.
    given: Vec<Receipt>,
}

/// A contributor's connection to the backbone.
struct ContributorLink {
    client: TestClient,
    /// Kept open: a contributor without a session may offer nothing.
    _session: ContributeSession,
    epoch: u64,
}

/// The contributors, and the model and totals that are expected.
struct KillTest {
    contributors: Vec<KillContributor>,
    code: String,
    run: RunDescription,
    /// The parameters as they have to be after all steps before `settled`.
    expected: Vec<f64>,
    settled: u64,
    /// Samples, by contribution, of epochs that are not settled.
    open: BTreeMap<u64, Vec<(u64, u32)>>,
    /// Of each contributor, what it gave: contributions and samples.
    totals: Vec<(u64, u64)>,
    /// Peers and numbers of those that the database was not asked for yet.
    names: Vec<(Vec<u8>, u64)>,
    outcome: KillOutcome,
}

impl KillContributor {
    fn peer(&self) -> PeerId {
        PeerId::from(self.keypair.public())
    }

    async fn connect(&self, address: &Multiaddr, code: &str, run_id: &str) -> Result<ContributorLink> {
        let client = TestClient::connect_as(self.keypair.clone(), address.clone()).await?;
        client.ask(&Up::Redeem { code: code.to_owned() }).await?;
        let mut session = client.join(run_id, "to be killed").await?;
        let BackboneToContributor::Welcome(progress) = session.receive().await? else {
            bail!("it is not welcome")
        };
        Ok(ContributorLink { client, _session: session, epoch: progress.epoch })
    }

    /// Contributes once more; its receipt.
    async fn contribute(&mut self, link: &mut ContributorLink, n_parameters: u64) -> Result<Receipt> {
        let id = self.next;
        self.next += N_CONTRIBUTORS;
        let mut n_cut = 0;
        loop {
            let (offer, bytes) = offer(id, link.epoch, n_parameters)?;
            self.unanswered = Some(offer.clone());
            let answer = match link.client.offer(&offer, &bytes).await {
                // A round that has enough without it does not wait for its transfer: it is offered again.
                Err(error) if n_cut < CUT_MAX && is_cut(&error) => {
                    n_cut += 1;
                    tokio::time::sleep(AGAIN).await;
                    continue;
                }
                answer => answer?,
            };
            self.unanswered = None;
            match answer {
                Ok(signed) => {
                    signed.verify()?;
                    self.acknowledged(offer, signed.receipt.clone())?;
                    return Ok(signed.receipt);
                }
                Err(ContributionRefusal::Epoch { want, .. }) if want >= link.epoch => {
                    link.epoch = want;
                    tokio::time::sleep(AGAIN).await;
                }
                // It does not wait for the round, as a contributor would.
                Err(ContributionRefusal::Busy | ContributionRefusal::TooMany { .. }) => {
                    tokio::time::sleep(AGAIN).await;
                }
                Err(refusal) => bail!("contribution {id}: {refusal}"),
            }
        }
    }

    fn acknowledged(&mut self, offer: Offer, receipt: Receipt) -> Result<()> {
        let told = (receipt.contribution_id, receipt.epoch, receipt.n_samples);
        let want = (offer.contribution_id, offer.epoch, offer.n_samples);
        ensure!(told == want, "a receipt of {told:?} for {want:?}");
        self.given.push(receipt.clone());
        self.last = Some((offer, receipt));
        Ok(())
    }

    /// After a kill: what was acknowledged keeps its receipt, what was not answered is offered again. Returns whether that
    /// was answered now.
    async fn come_back(&mut self, link: &mut ContributorLink, n_parameters: u64) -> Result<bool> {
        if let Some((offered, receipt)) = self.last.clone() {
            match again(link, &offered, n_parameters).await? {
                Ok(now) => ensure!(now == receipt, "another receipt than before: {now:?}, not {receipt:?}"),
                // It is known for as long as one may not have heard of it.
                Err(ContributionRefusal::Epoch { want, .. }) if want > receipt.epoch + 1 => {}
                Err(refusal) => bail!("its receipt is lost, {receipt:?}: {refusal}"),
            }
        }
        let Some(offered) = self.unanswered.take() else { return Ok(false) };
        match again(link, &offered, n_parameters).await? {
            Ok(receipt) => self.acknowledged(offered, receipt).map(|()| true),
            Err(ContributionRefusal::Epoch { .. }) => {
                self.uncertain.push(offered);
                Ok(false)
            }
            Err(refusal) => bail!("contribution {} offered again: {refusal}", offered.contribution_id),
        }
    }
}

/// Whether the backbone ended the stream.
fn is_cut(error: &anyhow::Error) -> bool {
    use ConversationError::{Bulk, Frame};
    use FrameError::{Closed, Io, Truncated};
    let is_cut = |error: &FrameError| matches!(error, Closed | Truncated { .. } | Io(_));
    match error.downcast_ref() {
        Some(Frame(error) | Bulk(BulkError::Frame(error))) => is_cut(error),
        Some(Bulk(BulkError::Io(_))) => true,
        _ => false,
    }
}

/// The same contribution once more.
async fn again(
    link: &ContributorLink,
    offered: &Offer,
    n_parameters: u64,
) -> Result<Result<Receipt, ContributionRefusal>> {
    let (offer, bytes) = offer(offered.contribution_id, offered.epoch, n_parameters)?;
    loop {
        match link.client.offer(&offer, &bytes).await? {
            Ok(signed) => {
                signed.verify()?;
                return Ok(Ok(signed.receipt));
            }
            Err(ContributionRefusal::Busy) => tokio::time::sleep(AGAIN).await,
            Err(refusal) => return Ok(Err(refusal)),
        }
    }
}

/// Of one to three passes.
fn n_samples(id: u64) -> u32 {
    32 + 32 * (id / N_CONTRIBUTORS % 3) as u32
}

fn index(id: u64, n_parameters: u64) -> usize {
    (id % n_parameters) as usize
}

fn offer(id: u64, epoch: u64, n_parameters: u64) -> Result<(Offer, Vec<u8>)> {
    let mut values = vec![0.0; usize::try_from(n_parameters)?];
    values[index(id, n_parameters)] = 1.0;
    let bytes = TensorCodec::F32.encode(&values)?;
    let offer = Offer {
        contribution_id: id,
        epoch,
        n_samples: n_samples(id),
        loss: 1.0,
        n_values: n_parameters,
        codec: TensorCodec::F32,
        transfer: Transfer::of(&bytes),
    };
    Ok((offer, bytes))
}

impl KillTest {
    async fn run(test_run: &mut TestRun, n_kills: u64, seed: u64) -> Result<KillOutcome> {
        barnraise_relay::install_crypto_provider();
        let mut random = SplitMix64::new(seed);
        let mut backbone = test_run.backbone().await?;
        let mut killing = Self::begin(test_run, &backbone).await?;
        let began = Instant::now();
        for kill in 1..=n_kills {
            let life = LIFE_MAX.mul_f64(random.below(1000) as f64 / 1000.0);
            let lived = killing.live(backbone, life, test_run).await;
            lived.with_context(|| format!("before kill {kill}"))?;
            killing.outcome.n_kills += 1;
            while random.below(CUT_STARTS) == 0 {
                let after = START_MAX.mul_f64(random.below(1000) as f64 / 1000.0);
                test_run.cut_start(after).await?;
                killing.outcome.n_cut_starts += 1;
            }
            backbone = test_run.backbone().await.with_context(|| format!("after kill {kill}"))?;
            if kill.is_multiple_of(100) {
                println!("{:.0} s: {}", began.elapsed().as_secs_f64(), killing.outcome);
            }
        }
        drop(killing.look(&backbone, test_run).await?);
        ensure!(backbone.terminate().await?.success(), "it does not end well");
        let n_steps_kept = std::fs::read_dir(test_run.storage().join("journal"))?.count();
        ensure!(n_steps_kept <= STEPS_KEPT_MAX, "the journal has {n_steps_kept} steps");
        Ok(killing.outcome)
    }

    /// At a run to which nobody contributed yet.
    async fn begin(test_run: &mut TestRun, backbone: &BackboneProcess) -> Result<Self> {
        let uses = N_CONTRIBUTORS.to_string();
        let link = test_run.command(&["invite", "--uses", &uses]).await?;
        let (_, code) = link.trim().split_once("/#invitation=").context("no link with an invitation")?;
        let code = code.to_owned();
        let contributor = |next| KillContributor {
            keypair: Keypair::generate_ed25519(),
            next,
            unanswered: None,
            uncertain: Vec::new(),
            last: None,
            given: Vec::new(),
        };
        let contributors: Vec<KillContributor> = (0..N_CONTRIBUTORS).map(contributor).collect();
        let run_id = backbone.status().await?.run.identity.run_id;
        let link = contributors[0].connect(&backbone.tcp()?, &code, &run_id).await?;
        let run = link.client.describe().await?;
        let state = link.client.state(&run).await?;
        ensure!(state.epoch == 0, "the run has begun");
        let expected = state.parameters.into_iter().map(f64::from).collect();
        let (open, totals) = (BTreeMap::new(), vec![(0, 0); contributors.len()]);
        let (settled, names, outcome) = (0, Vec::new(), KillOutcome::default());
        Ok(Self { contributors, code, run, expected, settled, open, totals, names, outcome })
    }

    /// Checks a backbone that has just started, contributes as fast as possible, and kills it after `life`, in the middle of
    /// its work.
    async fn live(&mut self, backbone: BackboneProcess, life: Duration, test_run: &TestRun) -> Result<()> {
        let mut links = self.look(&backbone, test_run).await?;
        let n_parameters = n_parameters(&self.run)?;
        let is_killed = AtomicBool::new(false);
        let contributors = self.contributors.iter_mut().zip(&mut links);
        let contributing = contributors.map(|(contributor, link)| async {
            loop {
                match contributor.contribute(link, n_parameters).await {
                    Err(_) if is_killed.load(Ordering::Relaxed) => return Ok(()),
                    contributed => contributed?,
                };
            }
        });
        let killing = async {
            tokio::time::sleep(life).await;
            is_killed.store(true, Ordering::Relaxed);
            backbone.kill().await
        };
        try_join(try_join_all(contributing), killing).await?;
        Ok(())
    }

    /// Checks that nothing is lost, and that the run trains on.
    async fn look(&mut self, backbone: &BackboneProcess, test_run: &TestRun) -> Result<Vec<ContributorLink>> {
        let address = backbone.tcp()?;
        let n_parameters = n_parameters(&self.run)?;
        let (code, run_id) = (&self.code, &self.run.identity.run_id);
        let connecting = self.contributors.iter().map(|it| it.connect(&address, code, run_id));
        let mut links = try_join_all(connecting).await?;
        for (contributor, link) in self.contributors.iter_mut().zip(&mut links) {
            let is_answered = contributor.come_back(link, n_parameters).await?;
            self.outcome.n_answered_later += u64::from(is_answered);
        }
        self.train_on(&mut links).await?;
        self.compare_ledger(backbone, test_run).await?;
        Ok(links)
    }

    /// Until the step that is open is made; then all of it and of those before is in the model, once.
    async fn train_on(&mut self, links: &mut [ContributorLink]) -> Result<()> {
        let n_parameters = n_parameters(&self.run)?;
        let open = links[0].client.state(&self.run).await?.epoch;
        let n = links.len();
        for turn in 0.. {
            let (contributor, link) = (&mut self.contributors[turn % n], &mut links[turn % n]);
            if contributor.contribute(link, n_parameters).await?.epoch > open {
                break;
            }
        }
        let state = links[0].client.state(&self.run).await?;
        ensure!(state.epoch == open + 1, "the model is of epoch {}, not {}", state.epoch, open + 1);
        for of in 0..n {
            let given = std::mem::take(&mut self.contributors[of].given);
            self.outcome.n_acknowledged += given.len() as u64;
            for Receipt { contribution_id, epoch, n_samples, .. } in given {
                self.counts(of, contribution_id, epoch, n_samples);
            }
        }
        self.settle(&state.parameters, state.epoch)?;
        self.outcome.n_steps = state.epoch;
        Ok(())
    }

    /// A contribution of that contributor counts in this epoch.
    fn counts(&mut self, of: usize, contribution_id: u64, epoch: u64, n_samples: u32) {
        self.open.entry(epoch).or_default().push((contribution_id, n_samples));
        let total = &mut self.totals[of];
        *total = (total.0 + 1, total.1 + u64::from(n_samples));
        self.names.push((self.contributors[of].peer().to_bytes(), contribution_id));
    }

    /// Compares the model with what is known of all steps before `epoch`.
    fn settle(&mut self, parameters: &[f32], epoch: u64) -> Result<()> {
        let n_parameters = n_parameters(&self.run)?;
        for of in 0..self.contributors.len() {
            for offer in std::mem::take(&mut self.contributors[of].uncertain) {
                let place = index(offer.contribution_id, n_parameters);
                if (f64::from(parameters[place]) - self.expected[place]).abs() < TOLERANCE {
                    self.outcome.n_unanswered.1 += 1;
                } else {
                    self.outcome.n_unanswered.0 += 1;
                    self.counts(of, offer.contribution_id, offer.epoch, offer.n_samples);
                }
            }
        }
        while let Some(entry) = self.open.first_entry().filter(|entry| *entry.key() < epoch) {
            let given = entry.remove();
            let all: u32 = given.iter().map(|(_, n_samples)| n_samples).sum();
            for (id, n_samples) in given {
                let moved = LEARNING_RATE * f64::from(n_samples) / f64::from(all);
                self.expected[index(id, n_parameters)] -= moved;
            }
        }
        for (place, (got, want)) in parameters.iter().zip(&mut self.expected).enumerate() {
            let off = f64::from(*got) - *want;
            ensure!(
                off.abs() < TOLERANCE,
                "value {place} of the model after epoch {epoch} is off by {off:.4}: what moves it was lost, or counts twice; \
                 compared up to epoch {} before",
                self.settled
            );
            // What rounding did adds up over thousands of steps.
            *want = f64::from(*got);
        }
        self.settled = epoch;
        Ok(())
    }

    /// Compares the database with the expected totals: through the page's API, and by opening the file.
    async fn compare_ledger(&mut self, backbone: &BackboneProcess, test_run: &TestRun) -> Result<()> {
        let (n, n_samples) = self.totals.iter().fold((0, 0), |all, of| (all.0 + of.0, all.1 + of.1));
        let shown = backbone.contributions(n_samples).await?;
        ensure!(shown.totals.n_contributions == n, "{:?}, not {n} contributions", shown.totals);
        let Some(Protocol::P2p(reducer)) = backbone.tcp()?.iter().last() else { bail!("no peer id") };
        let store = Store::open(&test_run.storage(), None, &self.run.identity.run_id, reducer).await?;
        let n_missing = store.n_missing(&self.names).await?;
        for (contributor, total) in self.contributors.iter().zip(&self.totals) {
            let peer = contributor.peer().to_string();
            let asked = ContributionsQuery { offset: None, limit: None, peer: Some(peer.clone()) };
            let of_peer = store.contributions(&Question::try_from(asked)?).await?.peer;
            let given = of_peer.map_or((0, 0), |of| (of.totals.n_contributions, of.totals.n_samples));
            ensure!(given == *total, "{peer} gave {total:?}, the database says {given:?}");
        }
        store.close().await;
        ensure!(n_missing == 0, "{n_missing} of the newest contributions are not in the database");
        self.names.clear();
        Ok(())
    }
}
