//! Ten thousand records of one key, and records with wrong times.

use std::time::Duration;

use barnraise_protocol::access::KeyPair;
use barnraise_protocol::dht::{self, DhtRefusal, PeerToNode, Purpose, Record, RecordName, UnixMillis};
use barnraise_tests::client::{TestClient, within};
use barnraise_tests::source_proxy::SourceProxy;
use libp2p::Multiaddr;

use super::RUN;
use super::attacked_run::{AttackEnd, AttackedRun};

const N_RECORDS: u32 = 10_000;
const RECORDS_OF_MESSAGE: u32 = 250;
const HOUR: Duration = Duration::from_secs(3600);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_records_of_one_key_and_lying_clocks_cost_the_others_nothing() {
    let mut attacked = AttackedRun::of(RUN, false).await;
    let proxy = SourceProxy::open([127, 0, 0, 2].into(), &attacked.tcp()).await.unwrap();
    let address = proxy.address();
    let flood = ten_thousand();
    attacked
        .endures(&["quota", "record_rate"], AttackEnd::Refused, || send_all(address.clone(), flood.clone()))
        .await;
    let kept = attacked.metric("barnraise_dht_stored_records").await;
    assert!(kept <= 110.0, "{kept} records are kept, 100 of one key may be");
    attacked.endures(&["wrong_time"], AttackEnd::Refused, || send_wrong_times(address.clone())).await;
    attacked.endures(&["forged"], AttackEnd::Blocked, || sign_for_others(address.clone())).await;
    let kept = attacked.metric("barnraise_dht_stored_records").await;
    assert!(kept <= 110.0, "{kept} records");
    attacked.has_trained().await;
}

fn now() -> UnixMillis {
    let since_1970 = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    UnixMillis(u64::try_from(since_1970.as_millis()).unwrap())
}

fn record(key: &KeyPair, number: u32, expires_at: UnixMillis) -> Record {
    let name = RecordName::value(&number.to_le_bytes()).owned_by(key.public());
    Record::sign(key, name, None, number.to_le_bytes().to_vec(), expires_at).unwrap()
}

/// Signed beforehand, so that the attacker takes little of the machine's processor.
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
            let busy = |verdict: &Result<(), DhtRefusal>| matches!(verdict, Err(DhtRefusal::Busy));
            let good = |verdict: &Result<(), DhtRefusal>| {
                matches!(verdict, Ok(()) | Err(DhtRefusal::Quota { .. } | DhtRefusal::Busy))
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
async fn send_wrong_times(backbone: Multiaddr) {
    let key = KeyPair::from_seed(&[67; 32]);
    let (past, future) = (now().before(HOUR), now().after(24 * 365 * HOUR));
    let records = [past, future].map(|expires_at| record(&key, 1, expires_at));
    loop {
        let Some(mut sender) = Sender::connect(&backbone).await else { continue };
        for _ in 0..200 {
            let verdicts = sender.store(records.to_vec()).await;
            let refused = |verdict: &Result<(), DhtRefusal>| {
                matches!(verdict, Err(DhtRefusal::Expired { .. } | DhtRefusal::TooFar { .. }))
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
            assert_eq!(verdicts, [Err(DhtRefusal::Signature)]);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

struct Sender {
    _client: TestClient,
    stream: barnraise_relay::libp2p::Stream,
}

impl Sender {
    /// Somebody new, as soon as the address may have another connection.
    async fn connect(backbone: &Multiaddr) -> Option<Self> {
        let connected = async {
            let client = TestClient::connect(backbone.clone()).await.ok()?;
            let stream = client.open(dht::PROTOCOL).await.ok()?;
            Some(Self { _client: client, stream })
        };
        let connected = connected.await;
        if connected.is_none() {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        connected
    }

    async fn store(&mut self, records: Vec<Record>) -> Vec<Result<(), DhtRefusal>> {
        self.try_store(records).await.expect("an answer")
    }

    async fn try_store(&mut self, records: Vec<Record>) -> Option<Vec<Result<(), DhtRefusal>>> {
        let n_records = records.len();
        let question = PeerToNode::Store { records, purpose: Purpose::Replica };
        let answer = within("the DHT", dht::ask(&mut self.stream, &question)).await.unwrap();
        Some(answer.ok()?.stored(n_records).unwrap())
    }
}
