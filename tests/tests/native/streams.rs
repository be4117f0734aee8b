//! A run on a stream: it trains before its sources are read, keeps a window of them, and goes on where it was.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};

use barnraise_protocol::Sha256Hash;
use barnraise_protocol::dataset::DataStream;
use barnraise_protocol::shard;
use barnraise_protocol::streamed::{StreamWindow, WINDOWS_KEPT};
use barnraise_tests::client::{TestClient, within};
use barnraise_tests::process::{BackboneProcess, TestRun, metric};

const WINDOW: u32 = 8;
/// Bytes of the source that come before the rest is released: more than a window, and far less than all.
const FIRST_BYTES: usize = 128 * 1024;

/// A server of one file, which holds back all but its first bytes until it is told otherwise.
struct HoldingServer {
    address: String,
    state: Arc<(Mutex<Served>, Condvar)>,
}

#[derive(Default)]
struct Served {
    is_released: bool,
    n_whole: usize,
}

impl HoldingServer {
    fn start(content: Vec<u8>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}/verses.jsonl", listener.local_addr().unwrap());
        let state = Arc::<(Mutex<Served>, Condvar)>::default();
        let (content, shared) = (Arc::new(content), Arc::clone(&state));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (content, shared) = (Arc::clone(&content), Arc::clone(&shared));
                // A reader that has enough hangs up.
                std::thread::spawn(move || serve(stream.unwrap(), &content, &shared).ok());
            }
        });
        Self { address, state }
    }

    fn release(&self) {
        self.state.0.lock().unwrap().is_released = true;
        self.state.1.notify_all();
    }

    fn n_whole(&self) -> usize {
        self.state.0.lock().unwrap().n_whole
    }
}

fn serve(
    mut stream: TcpStream,
    content: &[u8],
    (served, released): &(Mutex<Served>, Condvar),
) -> std::io::Result<()> {
    let mut request = [0; 4096];
    let _ = stream.read(&mut request)?;
    let n_bytes = content.len();
    write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {n_bytes}\r\nconnection: close\r\n\r\n")?;
    let (first, rest) = content.split_at(FIRST_BYTES);
    stream.write_all(first)?;
    let waiting = served.lock().unwrap();
    drop(released.wait_while(waiting, |served| !served.is_released).unwrap());
    stream.write_all(rest)?;
    served.lock().unwrap().n_whole += 1;
    Ok(())
}

fn sections(address: &str, sha256: Sha256Hash) -> String {
    let tokenizer =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/learning/tests/tokenizers/byte-level.json");
    format!(
        r#"
[run]
id = "streamed"

[model]
kind = {{ gpt = {{ width = 16, layers = 1, heads = 2 }} }}

[data]
shard_samples = 50
shuffle_buffer_samples = 150

[data.text]
tokenizer = {tokenizer:?}
sequence_tokens = 16

[data.text.stream]
window_shards = {WINDOW}
held_out_sequences = 16

[[data.text.sources]]
path = {{ url = "{address}", sha256 = "{sha256}" }}
weight = 3.0

[[data.text.sources]]
path = "house.txt"

[scheme.synchronous]
target_batch_size = 64
micro_batch_size = 16
optimizer = {{ kind = "adam" }}
schedule = {{ peak = 0.003, warmup_steps = 5, decay = {{ kind = "constant" }} }}

[scheme.synchronous.recomputation]
share = 0.5
tolerance = 0.02

[evaluation]
every_epochs = 5

[network]
operator = "127.0.0.1:0"
upnp = false
"#
    )
}

async fn window(backbone: &BackboneProcess) -> (DataStream, StreamWindow) {
    let data = backbone.status().await.unwrap().run.data.manifest.stream.unwrap();
    let client = TestClient::connect(backbone.tcp().unwrap()).await.unwrap();
    let mut stream = client.open(shard::PROTOCOL).await.unwrap();
    let window = within("window", shard::fetch_window(&mut stream, &data)).await.unwrap().unwrap();
    (data, window)
}

/// Notes the hash of each shard; one that had another hash before is a defect.
fn note(seen: &mut BTreeMap<u32, Sha256Hash>, window: &StreamWindow) {
    assert!(window.shards.len() <= (WINDOW * WINDOWS_KEPT) as usize);
    for (number, hash) in window.hashes() {
        assert_eq!(*seen.entry(number).or_insert(hash), hash, "shard {number}");
    }
}

#[tokio::test]
async fn a_run_trains_before_its_sources_are_read_and_goes_on_where_it_was() {
    let line = |n: u32| format!("{{\"text\": \"Verse {n}: {} sheep went over the fence.\"}}\n", n % 97);
    let verses: String = (0..20_000).map(line).collect();
    assert!(verses.len() > 8 * FIRST_BYTES);
    let server = HoldingServer::start(verses.clone().into_bytes());
    let mut test_run = TestRun::new(&sections(&server.address, Sha256Hash::of(verses.as_bytes()))).unwrap();
    test_run.write("house.txt", &"This is the cat that lay in the house. ".repeat(2000)).unwrap();

    let backbone = test_run.backbone().await.unwrap();
    let (data, first) = window(&backbone).await;
    assert_eq!((data.window_shards, first.first_drawn, first.shards.len()), (WINDOW, 0, WINDOW as usize));
    let mut seen = BTreeMap::new();
    note(&mut seen, &first);
    let joined = test_run.join(&[&backbone.page()]).unwrap();
    let trained = backbone.wait_for_epoch(3).await.unwrap();
    assert!(trained.train_loss.is_some());
    assert_eq!(server.n_whole(), 0, "the source is not read yet");

    server.release();
    // 40 steps of 64 samples are 51 shards.
    let mut epoch = 40;
    let before = loop {
        backbone.wait_for_epoch(epoch).await.unwrap();
        let (_, moved) = window(&backbone).await;
        note(&mut seen, &moved);
        if moved.end() > 51 {
            break moved;
        }
        epoch += 1;
    };
    assert!(before.first_drawn > first.end());
    let recomputed = "barnraise_contributions_recomputed_total{outcome=\"same\"}";
    assert!(metric(&backbone.metrics().await.unwrap(), recomputed).unwrap() > 0.0);
    backbone.kill().await.unwrap();

    let backbone = test_run.backbone().await.unwrap();
    let (same, after) = window(&backbone).await;
    note(&mut seen, &after);
    assert_eq!(same, data);
    assert!(after.end() >= before.end(), "{} < {}", after.end(), before.end());
    let epoch = backbone.status().await.unwrap().progress.epoch;
    assert!(epoch >= 40);
    backbone.wait_for_epoch(epoch + 20).await.unwrap();
    joined.interrupt().unwrap();
    let given = joined.end().await.unwrap();
    assert!(given.status.success(), "{given:?}");
    let (_, end) = window(&backbone).await;
    note(&mut seen, &end);
    assert!(end.end() > after.end());
}
