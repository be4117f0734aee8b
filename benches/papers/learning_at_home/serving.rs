//! Experts on another process that are called, beside hivemind's server of experts and beside PyTorch alone.

use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use barnraise_protocol::bulk::Transfer;
use barnraise_protocol::codec::TensorCodec;
use barnraise_protocol::dht::experts::ExpertHost;
use barnraise_protocol::experts::{
    self, ExpertPass, ExpertRefusal, ExpertRequest, ExpertRequestError, ExpertUid, LayerId, PreparedRequest,
};
use barnraise_tests::client::TestClient;
use barnraise_tests::hosted::{announced, client_of};
use barnraise_tests::process::TestRun;
use clap::Args;
use futures::future::try_join_all;
use libp2p::identity::Keypair;
use serde_json::json;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::python;
use crate::ratio::{Spread, ratios, short, table};

const SCRIPT: &str = include_str!("../../hivemind_experts.py");
const RUN_ID: &str = "serving";
/// Values of a row.
const WIDTH: u32 = 1024;
const EXPERTS: usize = 4;
/// Processes of hivemind's server that take calls: as many as there are clients at most.
const HANDLERS: usize = 4;
const WARM_UP_CALLS: usize = 3;
/// Clients of the host.
const KEYS: usize = 4;
/// Without an answer for so long something hangs.
const PATIENCE: Duration = Duration::from_secs(120);

/// How often, and how long.
#[derive(Debug, Clone, Args)]
pub(crate) struct ServingArgs {
    /// Rounds, in each of which everything is measured once
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Seconds of a measurement
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    /// Only ours
    #[arg(long)]
    alone: bool,
}

/// What the clients do.
struct Calls {
    name: &'static str,
    layer: LayerId,
    /// hivemind's name of the kind of expert.
    expert: &'static str,
    n_rows: u32,
    n_clients: usize,
    with_backward: bool,
}

const NOTHING: LayerId = LayerId(0);
const FEED_FORWARD: LayerId = LayerId(1);

static CALLS: [Calls; 4] = [
    Calls {
        name: "calls of one row, one after the other, nothing to compute",
        layer: NOTHING,
        expert: "nop",
        n_rows: 1,
        n_clients: 1,
        with_backward: false,
    },
    Calls {
        name: "of 64 rows, four at once, nothing to compute",
        layer: NOTHING,
        expert: "nop",
        n_rows: 64,
        n_clients: 4,
        with_backward: false,
    },
    Calls {
        name: "of 256 rows, two at once, feed-forward, forward",
        layer: FEED_FORWARD,
        expert: "ffn",
        n_rows: 256,
        n_clients: 2,
        with_backward: false,
    },
    Calls {
        name: "the same forward, and then backward with a step of Adam",
        layer: FEED_FORWARD,
        expert: "ffn",
        n_rows: 256,
        n_clients: 2,
        with_backward: true,
    },
];

/// Experts that compute as little as there is, a norm of a row, and hivemind's feed-forward ones.
fn sections() -> String {
    format!(
        r#"
[run]
id = "{RUN_ID}"

[model.kind.graph]
name = "experts that are called"
loss = "classification"
parts = [
    {{ name = "nothing", blocks = [{{ name = "norm", op = {{ layer-norm = {{}} }} }}] }},
    {{ name = "feed-forward", blocks = [
        {{ name = "up", op = {{ dense = {{ units = 4096 }} }} }},
        {{ name = "act", op = "gelu-tanh" }},
        {{ name = "down", op = {{ dense = {{ units = {WIDTH} }} }} }},
        {{ name = "sum", op = "add", from = ["down", "input"] }},
        {{ name = "norm", op = {{ layer-norm = {{}} }} }},
    ] }},
]
blocks = [
    {{ name = "flat", op = "flatten" }},
    {{ name = "first", op = {{ dense = {{ units = {WIDTH} }} }} }},
    {{ name = "one", op = {{ experts = {{ part = "nothing", side = {EXPERTS}, active = 1 }} }} }},
    {{ name = "two", op = {{ experts = {{ part = "feed-forward", side = {EXPERTS}, active = 1 }} }} }},
    {{ name = "fc", op = {{ dense = {{ units = "classes" }} }} }},
]

[model.experts]
schedule = {{ peak = 0.001 }}

[data]
shuffle_buffer_samples = 1000

[scheme.synchronous]
target_batch_size = 64
micro_batch_size = 32
schedule = {{ peak = 0.001 }}
"#
    )
}

/// Calls experts of a host.
struct Caller {
    /// Each has a key of its own: a host bounds what one key asks in a minute.
    clients: Arc<Vec<TestClient>>,
    case: &'static Calls,
    number: usize,
    rows: Vec<f32>,
    gradients: Vec<f32>,
}

static REQUESTS: AtomicU64 = AtomicU64::new(1);

impl Caller {
    fn new(clients: Arc<Vec<TestClient>>, case: &'static Calls, number: usize) -> Self {
        let n_values = case.n_rows * WIDTH;
        let rows = (0..n_values).map(|at| (at as f32 * 0.37).sin()).collect();
        Self { clients, case, number, rows, gradients: vec![1e-3; n_values as usize] }
    }

    /// Rows that came back: none where the host is busy, after the pause that it wants.
    async fn call(&self, at: usize) -> Result<u64> {
        let expert = ((self.number + at) % EXPERTS) as u16;
        let client = &self.clients[(self.number + at) % self.clients.len()];
        let mut passes = vec![(ExpertPass::Forward, None)];
        if self.case.with_backward {
            passes.push((ExpertPass::Backward, Some(&self.gradients[..])));
        }
        for (pass, gradients) in passes {
            if let Some(pause) = self.pass(client, expert, pass, gradients).await? {
                tokio::time::sleep(pause).await;
                return Ok(0);
            }
        }
        Ok(self.case.n_rows.into())
    }

    /// Returns how long the host wants to be left alone, where it is busy.
    async fn pass(
        &self,
        client: &TestClient,
        expert: u16,
        pass: ExpertPass,
        gradients: Option<&[f32]>,
    ) -> Result<Option<Duration>> {
        let request = ExpertRequest {
            run_id: RUN_ID.to_owned(),
            request_id: REQUESTS.fetch_add(1, Ordering::Relaxed),
            layer: self.case.layer,
            uid: ExpertUid::new(&[expert])?,
            pass,
            n_steps: 0,
            n_rows: self.case.n_rows,
            input_values: WIDTH,
            output_values: WIDTH,
            codec: TensorCodec::F32,
            transfer: Transfer::of(&[]),
        };
        let prepared = PreparedRequest::new(request, &self.rows, gradients)?;
        let mut stream = client.open(experts::PROTOCOL).await?;
        match experts::ask(&mut stream, &prepared).await {
            Err(ExpertRequestError::Refused(ExpertRefusal::Busy { retry_after_ms })) => {
                Ok(Some(Duration::from_millis(retry_after_ms.into())))
            }
            answer => {
                prepared.decode(&answer?)?;
                Ok(None)
            }
        }
    }

    async fn calls(self: Arc<Self>, until: Instant) -> Result<u64> {
        let mut n_rows = 0;
        for at in 0.. {
            if Instant::now() >= until {
                break;
            }
            n_rows += self.call(at).await?;
        }
        Ok(n_rows)
    }
}

/// Rows a second.
async fn measured(host: &ExpertHost, case: &'static Calls, length: Duration) -> Result<f64> {
    // Connections that nobody uses end while others are measured.
    let connected = (0..KEYS).map(|_| client_of(host, Keypair::generate_ed25519()));
    let clients = Arc::new(try_join_all(connected).await?);
    let callers: Vec<Arc<Caller>> =
        (0..case.n_clients).map(|number| Arc::new(Caller::new(Arc::clone(&clients), case, number))).collect();
    for at in 0..WARM_UP_CALLS {
        try_join_all(callers.iter().map(|caller| caller.call(at))).await?;
    }
    let began = Instant::now();
    let tasks = callers.into_iter().map(|caller| tokio::spawn(caller.calls(began + length)));
    let mut n_rows = 0;
    for task in tasks.collect::<Vec<_>>() {
        n_rows += tokio::time::timeout(length + PATIENCE, task).await.context("a call hangs")???;
    }
    Ok(n_rows as f64 / began.elapsed().as_secs_f64())
}

/// hivemind's server, and PyTorch, in a process that is told what to measure.
struct Theirs {
    /// Where its script is.
    _folder: TempDir,
    to: ChildStdin,
    from: Lines<BufReader<ChildStdout>>,
    process: Child,
}

impl Theirs {
    async fn start() -> Result<Self> {
        let python = tokio::task::spawn_blocking(|| python::environment(&python::HIVEMIND)).await??;
        let folder = tempfile::tempdir()?;
        let script = folder.path().join("hivemind_experts.py");
        std::fs::write(&script, SCRIPT)?;
        let mut command = Command::new(python);
        command.arg(script).args(["--experts", &EXPERTS.to_string(), "--handlers", &HANDLERS.to_string()]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut process = command.spawn()?;
        let to = process.stdin.take().context("no way to the script")?;
        let from = BufReader::new(process.stdout.take().context("no output of the script")?).lines();
        Ok(Self { _folder: folder, to, from, process })
    }

    /// Rows a second of the server, or of PyTorch without one.
    async fn measure(&mut self, case: &Calls, seconds: u64, is_alone: bool) -> Result<f64> {
        let case = json!({
            "expert": case.expert,
            "experts": EXPERTS,
            "rows": case.n_rows,
            "clients": case.n_clients,
            "backward": case.with_backward,
            "seconds": seconds,
            "alone": is_alone,
        });
        self.to.write_all(format!("{case}\n").as_bytes()).await?;
        self.to.flush().await?;
        let answer = tokio::time::timeout(PATIENCE, self.from.next_line()).await;
        let line = answer.context("hivemind hangs")??.context("hivemind's process has ended")?;
        serde_json::from_str(&line).with_context(|| format!("no measurement: {line}"))
    }
}

/// Prints rows a second of each, and ratios of the rounds.
pub(super) async fn measure(args: &ServingArgs) -> Result<()> {
    let mut test_run = TestRun::new(&sections())?;
    let backbone = test_run.backbone().await?;
    let n_hosted = (2 * EXPERTS).to_string();
    let host = test_run.host_experts("host", &[&backbone.page(), "--experts", &n_hosted])?;
    host.wait_for_log(&format!("Hosting {n_hosted} experts")).await?;
    let at_backbone = TestClient::connect(backbone.tcp()?).await?;
    let found = announced(&at_backbone, (RUN_ID, NOTHING), None).await?;
    let mut theirs = if args.alone { None } else { Some(Theirs::start().await?) };
    let mut rows = vec![
        ["rows a second", "Barnraise", "hivemind", "ratio", "PyTorch alone", "ratio"]
            .map(str::to_owned)
            .to_vec(),
    ];
    for case in &CALLS {
        let (mut ours, mut of_server, mut alone) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..args.rounds {
            ours.push(measured(&found, case, Duration::from_secs(args.seconds)).await?);
            let Some(theirs) = &mut theirs else { continue };
            of_server.push(theirs.measure(case, args.seconds, false).await?);
            if case.layer == FEED_FORWARD {
                alone.push(theirs.measure(case, args.seconds, true).await?);
            }
        }
        let beside = |theirs: &[f64]| match theirs {
            [] => [String::new(), String::new()],
            theirs => [Spread::of(theirs).to_string(), ratios(theirs, &ours).to_string()],
        };
        let cells =
            [[case.name.to_owned(), Spread::of(&ours).to_string()], beside(&of_server), beside(&alone)];
        rows.push(cells.concat());
        println!("{}: {} rows a second", case.name, short(Spread::of(&ours).median));
    }
    println!("{}", table(&rows));
    if let Some(Theirs { to, mut process, .. }) = theirs {
        // Its server and the processes of that end with it.
        drop(to);
        if tokio::time::timeout(PATIENCE, process.wait()).await.is_err() {
            process.kill().await?;
        }
    }
    host.kill().await?;
    let ended = backbone.terminate().await?;
    ensure!(ended.success(), "the backbone ended with {ended}");
    Ok(())
}
