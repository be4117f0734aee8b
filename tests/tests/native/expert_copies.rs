//! A host with room takes a copy of an expert that many rows wait for, averages it with the expert, and gives it up for a place that
//! nobody has.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use barnraise_native::host::access::signing_key;
use barnraise_protocol::bulk::Transfer;
use barnraise_protocol::codec::TensorCodec;
use barnraise_protocol::experts::leases::{
    self, ExpertLease, ExpertLoad, LeaseAnswer, LeaseAsk, LeaseQuestion, LeaseVerdict, LeasingHost,
};
use barnraise_protocol::experts::{
    self, ExpertPass, ExpertPlace, ExpertRequest, ExpertRequestError, ExpertUid, LayerId, PreparedRequest,
};
use barnraise_relay::load_or_create_keypair;
use barnraise_swarm::experts::leases::COPIED_ROWS;
use barnraise_tests::client::{TestClient, within};
use barnraise_tests::hosted;
use barnraise_tests::process::{BackboneProcess, HANG, TestRun, metric};
use libp2p::identity::Keypair;

use super::experts::{started_together, uids, wait_for};

/// A host by hand, which has all places.
struct LoadedHost {
    client: TestClient,
    run_id: String,
    leases: Vec<ExpertLease>,
}

impl LoadedHost {
    async fn begin(backbone: &BackboneProcess) -> Self {
        let client = TestClient::connect(backbone.tcp().unwrap()).await.unwrap();
        let run_id = client.describe().await.unwrap().identity.run_id;
        let mut host = Self { client, run_id, leases: Vec::new() };
        let taking = async {
            while host.leases.len() < 8 {
                let n_vacant = 8 - host.leases.len() as u8;
                let (_, vacant) = host.ask(Vec::new(), n_vacant).await;
                host.leases.extend(vacant);
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        };
        tokio::time::timeout(HANG, taking).await.expect("eight places");
        host
    }

    async fn ask(
        &self,
        asks: Vec<LeaseAsk>,
        n_vacant: u8,
    ) -> (Vec<LeaseVerdict<ExpertLease>>, Vec<ExpertLease>) {
        let (run_id, host) = (self.run_id.clone(), LeasingHost::new(8, []));
        let question = LeaseQuestion::Lease { run_id, host, asks, n_vacant };
        let mut stream = self.client.open(leases::PROTOCOL).await.unwrap();
        let key = self.client.key().unwrap();
        let asking = leases::ask(&mut stream, &question, &key);
        match within("leases", asking).await.unwrap() {
            Ok(LeaseAnswer::Leased { asked, vacant, .. }) => (asked, vacant),
            // It has just begun.
            _ => (Vec::new(), Vec::new()),
        }
    }

    /// Renews all, and says that many rows wait for one, until the backbone counts so many experts with a host, and copies.
    async fn renew_until(&self, loaded: ExpertPlace, backbone: &BackboneProcess, want: [f64; 2]) {
        let renew = |lease: &ExpertLease| {
            let n_waiting = if lease.place == loaded { COPIED_ROWS } else { 0 };
            LeaseAsk::Renew { lease: lease.clone(), load: ExpertLoad { n_waiting, ..ExpertLoad::default() } }
        };
        let counted = async {
            loop {
                self.ask(self.leases.iter().map(renew).collect(), 0).await;
                let metrics = backbone.metrics().await.unwrap();
                let counts = ["barnraise_experts_hosted", "barnraise_expert_copies"];
                if counts.map(|name| metric(&metrics, name).unwrap()) == want {
                    return;
                }
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        };
        tokio::time::timeout(HANG, counted).await.expect("the backbone counts them");
    }
}

#[tokio::test]
async fn a_host_takes_a_copy_of_a_loaded_expert_and_gives_it_up_for_a_vacant_place() {
    let (mut runs, backbones) = started_together(1).await;
    let backbone = &backbones[0];
    let mut loaded = LoadedHost::begin(backbone).await;
    let (busy, other) = (loaded.leases[0].place, loaded.leases.pop().unwrap());
    loaded.leases.push(other.clone());
    let host = runs[0].host_experts("copies", &[&backbone.page(), "--experts", "1"]).unwrap();
    loaded.renew_until(busy, backbone, [8.0, 1.0]).await;
    let serves = async |place: ExpertPlace| {
        let uid = place.1.to_string();
        while !uids(&host).contains(&uid) {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), serves(busy)).await.expect("it serves the copy");
    loaded.leases.pop();
    let ExpertLease { place, copy, term, .. } = other;
    loaded.ask(vec![LeaseAsk::Release { place, copy, term, to: None }], 0).await;
    loaded.renew_until(busy, backbone, [8.0, 0.0]).await;
    tokio::time::timeout(Duration::from_secs(20), serves(place)).await.expect("it serves the place");
}

/// The layer of experts of [`hosted::RUN`].
const LAYER: LayerId = LayerId(0);
const RUN_ID: &str = "copied-experts";
/// Requests that a trainer has open at a time: those of two batches are at the device, the others wait.
const N_OPEN: usize = 6;

/// A trainer by hand, of one expert at one host.
struct TrainerByHand {
    client: TestClient,
    uid: ExpertUid,
    n_requests: AtomicU64,
}

impl TrainerByHand {
    /// Of the host whose files are in this folder.
    async fn of(backbone: &BackboneProcess, run: &TestRun, folder: &str, uid: ExpertUid) -> Self {
        let keypair = load_or_create_keypair(&run.folder().join(folder).join("identity.key")).unwrap();
        let key = signing_key(&keypair).unwrap().public();
        let by_hand = TestClient::connect(backbone.tcp().unwrap()).await.unwrap();
        let host = hosted::announced(&by_hand, (RUN_ID, LAYER), Some(key)).await.unwrap();
        let client = hosted::client_of(&host, Keypair::generate_ed25519()).await.unwrap();
        Self { client, uid, n_requests: AtomicU64::new(0) }
    }

    /// Rows of ones, and what comes back for them.
    async fn ask(&self, n_rows: u32, gradient: Option<f32>) -> Result<Vec<f32>, ExpertRequestError> {
        let request = ExpertRequest {
            run_id: RUN_ID.to_owned(),
            request_id: self.n_requests.fetch_add(1, Ordering::Relaxed),
            layer: LAYER,
            uid: self.uid,
            pass: ExpertPass::Forward,
            n_steps: u64::MAX,
            n_rows,
            input_values: 16,
            output_values: 16,
            codec: TensorCodec::F32,
            transfer: Transfer::of(&[]),
        };
        let n_values = 16 * n_rows as usize;
        let gradients = gradient.map(|gradient| vec![gradient; n_values]);
        let prepared = PreparedRequest::new(request, &vec![1.0; n_values], gradients.as_deref()).unwrap();
        let mut stream = self.client.open(experts::PROTOCOL).await.unwrap();
        let answer = within("an expert", experts::ask(&mut stream, &prepared)).await.unwrap()?;
        Ok(prepared.decode(&answer).unwrap())
    }

    /// Has as many rows wait as make a copy worth while.
    async fn load(&self) {
        let asking = (0..N_OPEN).map(|_| async {
            loop {
                // A host that is busy is asked again.
                if self.ask(COPIED_ROWS, None).await.is_err() {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        });
        futures::future::join_all(asking).await;
    }
}

#[tokio::test]
async fn two_hosts_answer_for_one_loaded_expert_and_become_one_again() {
    // A wide expert, so that a test has more rows than its host computes.
    let wide = hosted::RUN.replace("units = 32,", "units = 4096,");
    assert_ne!(wide, hosted::RUN);
    let mut run = TestRun::new(&format!("[run]\nid = \"{RUN_ID}\"\n{wide}")).unwrap();
    let backbone = run.backbone().await.unwrap();
    let page = backbone.page();
    let first = run.host_experts("first", &[&page, "--experts", "8"]).unwrap();
    wait_for(&first, "Hosting 8 experts").await;
    let uid = ExpertUid::new(&[3]).unwrap();
    let of_first = TrainerByHand::of(&backbone, &run, "first", uid).await;
    let second = run.host_experts("second", &[&page, "--experts", "1"]).unwrap();
    let copied = wait_for(&second, "Hosting 1 experts");
    let copied = tokio::select! {
        said = copied => said,
        () = of_first.load() => unreachable!("it goes on for ever"),
    };
    assert!(copied.contains("layer 0: 3"), "{copied}");

    // Trainers of the two want opposite things.
    let of_second = TrainerByHand::of(&backbone, &run, "second", uid).await;
    let (mut farthest, began) = (0.0_f32, Instant::now());
    loop {
        of_first.ask(1, Some(0.01)).await.unwrap();
        of_second.ask(1, Some(-0.01)).await.unwrap();
        let (one, other) = (of_first.ask(1, None).await.unwrap(), of_second.ask(1, None).await.unwrap());
        let apart = one.iter().zip(&other).map(|(a, b)| (a - b).powi(2)).sum::<f32>().sqrt();
        if began.elapsed() > Duration::from_secs(10) && apart < farthest / 2.0 {
            println!("{apart} apart, after {farthest}, in {:?}", began.elapsed());
            break;
        }
        farthest = farthest.max(apart);
        assert!(began.elapsed() < 2 * HANG, "{apart} apart, {farthest} at most");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    first.kill().await.unwrap();
    second.kill().await.unwrap();
}
