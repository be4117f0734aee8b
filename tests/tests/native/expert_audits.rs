//! A host whose expert answers something else than its own checkpoint gives is found out, with evidence that others can check.

use barnraise_contributor::hosting::StoredExpert;
use barnraise_learning::ComputeDevice;
use barnraise_learning::hosted::{HostedExpert, HostedLayer};
use barnraise_native::host::access::signing_key;
use barnraise_protocol::access::KeyPair;
use barnraise_protocol::bulk::Transfer;
use barnraise_protocol::codec::TensorCodec;
use barnraise_protocol::experts::audits::{self, AuditError, AuditOffer, AuditRefusal, KeptAnswer};
use barnraise_protocol::experts::checkpoints::{self, CheckpointVersion, ExpertCheckpoint, OfferOutcome};
use barnraise_protocol::experts::leases::{
    self, ExpertLease, LeaseAnswer, LeaseAskError, LeaseQuestion, LeaseRefusal, LeasingHost,
};
use barnraise_protocol::experts::{self, AnswerSigner, ExpertPass, ExpertRequest, PreparedRequest};
use barnraise_protocol::run::RunDescription;
use barnraise_swarm::experts::serving::CountedState;
use barnraise_tests::client::{TestClient, within};
use barnraise_tests::process::{BackboneProcess, HANG, metric};
use libp2p::identity::Keypair;
use tokio_util::compat::TokioAsyncReadCompatExt as _;

use super::experts::started_together;

const INPUTS: [f32; 32] = [0.5; 32];

/// A host by hand, with one expert as it begins.
struct HostByHand {
    keypair: Keypair,
    client: TestClient,
    key: KeyPair,
    run: RunDescription,
    lease: ExpertLease,
    expert: HostedExpert,
}

async fn question(
    client: &TestClient,
    run: &RunDescription,
    n_vacant: u8,
) -> Result<LeaseAnswer, LeaseAskError> {
    let (run_id, host) = (run.identity.run_id.clone(), LeasingHost::new(1, Vec::new()));
    let question = LeaseQuestion::Lease { run_id, host, asks: Vec::new(), n_vacant };
    let mut stream = client.open(leases::PROTOCOL).await.unwrap();
    within("leases", leases::ask(&mut stream, &question, &client.key().unwrap())).await.unwrap()
}

impl HostByHand {
    async fn begin(backbone: &BackboneProcess) -> Self {
        let keypair = Keypair::generate_ed25519();
        let key = signing_key(&keypair).unwrap();
        let client = TestClient::connect_as(keypair.clone(), backbone.tcp().unwrap()).await.unwrap();
        let run = client.describe().await.unwrap();
        let leased = async {
            loop {
                // A backbone that has just begun does not grant at once.
                if let Ok(LeaseAnswer::Leased { mut vacant, .. }) = question(&client, &run, 1).await
                    && let Some(lease) = vacant.pop()
                {
                    return lease;
                }
                tokio::time::sleep(std::time::Duration::from_millis(200)).await;
            }
        };
        let lease = tokio::time::timeout(HANG, leased).await.expect("a vacant place");
        let layer = HostedLayer::of_run(&run).unwrap().remove(0);
        let number = usize::try_from(layer.grid.number(&lease.place.1).unwrap()).unwrap();
        let expert = HostedExpert::new(&run.model, &layer.body, number, &ComputeDevice::cpu()).unwrap();
        let host = Self { keypair, client, key, run, lease, expert };
        host.give_checkpoint().await;
        host
    }

    fn version(&self) -> CheckpointVersion {
        CheckpointVersion { term: self.lease.term, n_steps: self.expert.n_steps() }
    }

    /// To the backbone, which keeps it, as there are no other hosts.
    async fn give_checkpoint(&self) {
        let (state, term) = (self.expert.state(), self.lease.term);
        let bytes = StoredExpert { term, state, counted: CountedState::default() }.seal().unwrap();
        let made = (self.lease.clone(), self.expert.n_steps(), Transfer::of(&bytes));
        let run_id = &self.run.identity.run_id;
        let checkpoint = ExpertCheckpoint::sign(&self.key, run_id, made).unwrap();
        let mut stream = self.client.open(checkpoints::PROTOCOL).await.unwrap();
        let offered = checkpoints::offer(&mut stream, run_id, &checkpoint, &bytes.into()).await.unwrap();
        assert_eq!(offered, OfferOutcome::Kept);
    }

    /// What a trainer has that was told `rows` by it.
    async fn told(&self, rows: &[f32]) -> KeptAnswer {
        let (layer, uid) = self.lease.place;
        let request = ExpertRequest {
            run_id: self.run.identity.run_id.clone(),
            request_id: 1,
            layer,
            uid,
            pass: ExpertPass::Forward,
            n_steps: 0,
            n_rows: 2,
            input_values: 16,
            output_values: 16,
            codec: TensorCodec::F16,
            transfer: Transfer::of(&[]),
        };
        let prepared = PreparedRequest::new(request, &INPUTS, None).unwrap();
        let signer = AnswerSigner { key: self.key.clone(), model: experts::model_hash(&self.run).unwrap() };
        let (ours, theirs) = tokio::io::duplex(64 * 1024);
        let (mut ours, mut theirs) = (ours.compat(), theirs.compat());
        let host = async {
            let request = experts::receive(&mut theirs).await.unwrap();
            experts::receive_tensors(&mut theirs, &request).await.unwrap();
            let rows = request.answer(&signer, self.version(), rows).unwrap();
            experts::reply(&mut theirs, &rows).await.unwrap();
        };
        let (answer, ()) = futures::join!(experts::ask(&mut ours, &prepared), host);
        let answer = answer.unwrap();
        let signed = prepared.signed(self.key.public(), &answer);
        KeptAnswer { signed, inputs: prepared.into_bytes(), answer: answer.bytes }
    }

    async fn honest_rows(&self) -> Vec<f32> {
        self.expert.forward(&INPUTS).await.unwrap()
    }
}

async fn show(trainer: &TestClient, run_id: &str, answer: &KeptAnswer) -> Result<(), AuditError> {
    let offer = AuditOffer { run_id: run_id.to_owned(), answers: vec![answer.offered()] };
    let mut stream = trainer.open(audits::PROTOCOL).await.unwrap();
    let showing = async {
        let wanted = audits::offer(&mut stream, &offer).await?;
        assert_eq!(wanted, Some(0), "its checkpoint is of the very step");
        audits::give(&mut stream, answer).await
    };
    within("an audit", showing).await.unwrap()
}

async fn audited(backbone: &BackboneProcess, outcome: &str) {
    let name = format!("barnraise_expert_audits_total{{outcome=\"{outcome}\"}}");
    let found = async {
        while metric(&backbone.metrics().await.unwrap(), &name).unwrap() < 1.0 {
            tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        }
    };
    tokio::time::timeout(HANG, found).await.expect(outcome);
}

#[tokio::test]
async fn a_host_whose_answer_is_not_what_its_checkpoint_gives_is_convicted_at_all_backbones() {
    let (mut runs, backbones) = started_together(2).await;
    let (here, there) = (&backbones[0], &backbones[1]);
    let liar = HostByHand::begin(here).await;
    let honest = HostByHand::begin(here).await;
    let run_id = liar.run.identity.run_id.clone();

    // An honest one, in f16.
    let trainer = TestClient::connect(here.tcp().unwrap()).await.unwrap();
    let rows = honest.honest_rows().await;
    show(&trainer, &run_id, &honest.told(&rows).await).await.unwrap();
    audited(here, "same").await;

    // Nobody can say that a host has said something.
    let mut made_up = honest.told(&rows).await;
    made_up.answer[1] ^= 0x10;
    made_up.signed.answer = Transfer::of(&made_up.answer);
    let refused = show(&trainer, &run_id, &made_up).await;
    assert!(matches!(refused, Err(AuditError::Refused(AuditRefusal::Forged))), "{refused:?}");
    let other = show(&trainer, "another", &honest.told(&rows).await).await;
    assert!(matches!(other, Err(AuditError::Refused(AuditRefusal::Unknown))), "{other:?}");

    // A lie that a trainer would take: half of what the expert gives.
    let half: Vec<f32> = liar.honest_rows().await.iter().map(|value| value / 2.0).collect();
    show(&trainer, &run_id, &liar.told(&half).await).await.unwrap();
    audited(here, "wrong").await;
    let shut_out = async |backbone: &BackboneProcess, host: &HostByHand| {
        let client = TestClient::connect_as(host.keypair.clone(), backbone.tcp().unwrap()).await.unwrap();
        let answer = question(&client, &host.run, 1).await;
        matches!(answer, Err(LeaseAskError::Refused(LeaseRefusal::NoAccess)))
    };
    assert!(shut_out(here, &liar).await && !shut_out(here, &honest).await);
    // The other backbone computes the evidence itself.
    let convicted_there = async {
        while !shut_out(there, &liar).await {
            tokio::time::sleep(std::time::Duration::from_millis(500)).await;
        }
    };
    tokio::time::timeout(HANG, convicted_there).await.expect("the evidence convinces the other backbone");
    for backbone in [here, there] {
        let said = runs[0].run(&["evidence", &backbone.page()]).await.unwrap();
        assert!(said.contains("is not what its checkpoint gives"), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    let peers = runs[0].command(&["peers", "list"]).await.unwrap();
    assert!(peers.contains("is not what its checkpoint gives"), "{peers}");
}
