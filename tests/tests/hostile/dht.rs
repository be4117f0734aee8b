//! Ten thousand records of one key, and records of clocks that lie.

use std::time::Duration;

use barnraise_protocol::access::KeyPair;
use barnraise_protocol::dht::{self, Name, PeerToNode, Purpose, Record, Refusal, UnixMillis};
use barnraise_tests::client::{Client, within};
use barnraise_tests::doorway::Doorway;
use libp2p::Multiaddr;

use super::RUN;
use super::siege::{End, Siege};

const N_RECORDS: u32 = 10_000;
const RECORDS_OF_MESSAGE: u32 = 250;
const HOUR: Duration = Duration::from_secs(3600);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_records_of_one_key_and_lying_clocks_cost_the_others_nothing() {
    let mut siege = Siege::of(RUN, false).await;
    let doorway = Doorway::open([127, 0, 0, 2].into(), &siege.tcp()).await.unwrap();
    let address = doorway.address();
    let flood = ten_thousand();
    siege.endures(&["quota", "record_rate"], End::Refused, || send_all(address.clone(), flood.clone())).await;
    let kept = siege.metric("barnraise_dht_stored_records").await;
    assert!(kept <= 110.0, "{kept} records are kept, 100 of one key may be");
    siege.endures(&["wrong_time"], End::Refused, || lie_about_the_time(address.clone())).await;
    siege.endures(&["forged"], End::Blocked, || sign_for_others(address.clone())).await;
    let kept = siege.metric("barnraise_dht_stored_records").await;
    assert!(kept <= 110.0, "{kept} records");
    siege.has_trained().await;
}

fn now() -> UnixMillis {
    let since_1970 = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    UnixMillis(u64::try_from(since_1970.as_millis()).unwrap())
}

fn record(key: &KeyPair, number: u32, expires_at: UnixMillis) -> Record {
    let name = Name::value(&number.to_le_bytes()).owned_by(key.public());
    Record::sign(key, name, None, number.to_le_bytes().to_vec(), expires_at).unwrap()
}

/// Signed beforehand: who attacks takes no more of the machine than it must.
fn ten_thousand() -> Vec<Record> {
    let key = KeyPair::from_seed(&[66; 32]);
    (0..N_RECORDS).map(|number| record(&key, number, now().after(HOUR))).collect()
}

/// All of them, by one peer after the other as each has sent what it may.
async fn send_all(backbone: Multiaddr, records: Vec<Record>) {
    loop {
        let Some(mut sender) = Sender::connect(&backbone).await else { continue };
        for batch in records.chunks(RECORDS_OF_MESSAGE as usize) {
            let verdicts = sender.store(batch.to_vec()).await;
            let busy = |verdict: &Result<(), Refusal>| matches!(verdict, Err(Refusal::Busy));
            let good = |verdict: &Result<(), Refusal>| {
                matches!(verdict, Ok(()) | Err(Refusal::Quota { .. } | Refusal::Busy))
            };
            assert!(verdicts.iter().all(good), "{verdicts:?}");
            if verdicts.iter().all(busy) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// Records of a day that is over, and of one that is years ahead.
async fn lie_about_the_time(backbone: Multiaddr) {
    let key = KeyPair::from_seed(&[67; 32]);
    let (past, future) = (now().before(HOUR), now().after(24 * 365 * HOUR));
    let records = [past, future].map(|expires_at| record(&key, 1, expires_at));
    loop {
        let Some(mut sender) = Sender::connect(&backbone).await else { continue };
        for _ in 0..200 {
            let verdicts = sender.store(records.to_vec()).await;
            let refused = |verdict: &Result<(), Refusal>| {
                matches!(verdict, Err(Refusal::Expired { .. } | Refusal::TooFar { .. }))
            };
            assert!(verdicts.iter().all(refused), "{verdicts:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// Records of others with a signature that is not theirs, until the peer is disconnected; then under another name.
async fn sign_for_others(backbone: Multiaddr) {
    let mut forged = record(&KeyPair::from_seed(&[68; 32]), 1, now().after(HOUR));
    forged.value = b"something else".to_vec();
    loop {
        let Some(mut sender) = Sender::connect(&backbone).await else { continue };
        while let Some(verdicts) = sender.try_store(vec![forged.clone()]).await {
            assert_eq!(verdicts, [Err(Refusal::Signature)]);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

struct Sender {
    _client: Client,
    stream: barnraise_relay::libp2p::Stream,
}

impl Sender {
    /// Somebody new, as soon as the address may have another connection.
    async fn connect(backbone: &Multiaddr) -> Option<Self> {
        let connected = async {
            let client = Client::connect(backbone.clone()).await.ok()?;
            let stream = client.open(dht::PROTOCOL).await.ok()?;
            Some(Self { _client: client, stream })
        };
        let connected = connected.await;
        if connected.is_none() {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        connected
    }

    async fn store(&mut self, records: Vec<Record>) -> Vec<Result<(), Refusal>> {
        self.try_store(records).await.expect("an answer")
    }

    async fn try_store(&mut self, records: Vec<Record>) -> Option<Vec<Result<(), Refusal>>> {
        let n_records = records.len();
        let question = PeerToNode::Store { records, purpose: Purpose::Replica };
        let answer = within("the DHT", dht::ask(&mut self.stream, &question)).await.unwrap();
        Some(answer.ok()?.stored(n_records).unwrap())
    }
}
