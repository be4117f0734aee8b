//! Honest contributors, which rest between two offers as long as computing would take, and count accepted offers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use barnraise_protocol::TensorCodec;
use barnraise_protocol::access::ContributorToBackbone as Ask;
use barnraise_protocol::bulk::Transfer;
use barnraise_protocol::gradient::{ContributionRefusal, Offer};
use barnraise_protocol::run::RunDescription;
use barnraise_tests::client::{TestClient, n_parameters};
use barnraise_tests::process::HANG;
use libp2p::Multiaddr;
use tokio::sync::watch;
use tokio::task::JoinSet;

const N_CONTRIBUTORS: usize = 2;
const SAMPLES_OF_OFFER: u32 = 32;
/// Between two offers: what a small device takes to compute one.
const REST: Duration = Duration::from_millis(20);

/// The honest contributors; they go when dropped.
pub(super) struct HonestContributors {
    /// Offers that were accepted.
    accepted: watch::Receiver<u64>,
    _tasks: JoinSet<()>,
}

impl HonestContributors {
    /// They join, each with the code of an invitation where there is one, and have had something accepted.
    pub(super) async fn join(address: &Multiaddr, invitation: Option<&str>) -> Self {
        let (counter, accepted) = watch::channel(0);
        let counter = Arc::new(counter);
        let mut tasks = JoinSet::new();
        let mut contributors = Vec::new();
        for number in 0..N_CONTRIBUTORS {
            contributors.push(HonestContributor::join(address, invitation, number).await);
        }
        for mut contributor in contributors {
            let counter = Arc::clone(&counter);
            tasks.spawn(async move {
                loop {
                    contributor.offer_one().await;
                    counter.send_modify(|accepted| *accepted += 1);
                    tokio::time::sleep(REST).await;
                }
            });
        }
        let mut honest = Self { accepted, _tasks: tasks };
        honest.time_of(1).await;
        honest
    }

    /// How many offers a second are accepted, over the next `n_offers`.
    pub(super) async fn speed(&mut self, n_offers: u64) -> f64 {
        n_offers as f64 / self.time_of(n_offers).await.as_secs_f64()
    }

    async fn time_of(&mut self, n_offers: u64) -> Duration {
        let (before, from) = (*self.accepted.borrow_and_update(), Instant::now());
        let reached = self.accepted.wait_for(|accepted| *accepted >= before + n_offers);
        let reached = tokio::time::timeout(HANG, reached).await;
        reached.expect("the honest are not accepted any more").expect("they offer for ever");
        from.elapsed()
    }
}

struct HonestContributor {
    number: usize,
    client: TestClient,
    run: RunDescription,
    gradient: Vec<u8>,
    offer: Offer,
}

impl HonestContributor {
    async fn join(address: &Multiaddr, invitation: Option<&str>, number: usize) -> Self {
        let client = TestClient::connect(address.clone()).await.unwrap();
        if let Some(code) = invitation {
            client.ask(&Ask::Redeem { code: code.to_owned() }).await.unwrap();
        }
        let run = client.describe().await.unwrap();
        let mut session = client.join(&run.identity.run_id, &format!("honest {number}")).await.unwrap();
        // It listens for as long as it is spoken to.
        tokio::spawn(async move { while session.receive().await.is_ok() {} });
        let gradient = vec![0; n_parameters(&run).unwrap() as usize * 4];
        let offer = Offer {
            contribution_id: 0,
            epoch: client.state(&run).await.unwrap().epoch,
            n_samples: SAMPLES_OF_OFFER,
            loss: 1.0,
            n_values: n_parameters(&run).unwrap(),
            codec: TensorCodec::F32,
            transfer: Transfer::of(&gradient),
        };
        Self { number, client, run, gradient, offer }
    }

    /// Until it is accepted, for whichever epoch.
    async fn offer_one(&mut self) {
        self.offer.contribution_id += 1;
        // The same gradient counts once: each has another first value.
        let first = 1e-3 * (1 + self.offer.contribution_id % 4096) as f32 + self.number as f32;
        self.gradient[..4].copy_from_slice(&first.to_le_bytes());
        self.offer.transfer = Transfer::of(&self.gradient);
        loop {
            match self.client.offer(&self.offer, &self.gradient).await.unwrap() {
                Ok(_) => return,
                Err(ContributionRefusal::Epoch { want, .. }) => self.offer.epoch = want,
                // Parameters would be fetched now; who computes nothing needs to know only which they are.
                Err(ContributionRefusal::Busy | ContributionRefusal::Storage) => {
                    self.offer.epoch = self.client.state(&self.run).await.unwrap().epoch;
                }
                Err(refusal) => panic!("an honest offer is refused: {refusal}"),
            }
        }
    }
}
