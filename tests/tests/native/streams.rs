//! A run on a stream: it trains before its sources are read, keeps a window of them, and goes on where it was.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use barnraise_learning::tokenizer::Tokenizer;
use barnraise_native::host::operator::view::RunView;
use barnraise_protocol::Sha256Hash;
use barnraise_protocol::dataset::{DataStream, Samples};
use barnraise_protocol::shard::{self, ShardId};
use barnraise_protocol::streamed::{GRACE_SHARDS_MIN, StreamWindow, StreamedShard};
use barnraise_tests::client::{TestClient, within};
use barnraise_tests::pause::Paused;
use barnraise_tests::process::{BackboneProcess, HANG, PeerProcess, TestRun, metric};

use super::aggregators::{TwoAggregators, agreed, leave, wait_for_log};

const WINDOW: u32 = 8;
/// Where the verses are, of a run that has them in its folder.
const LOCAL: &str = "\"verses.jsonl\"";
const HOUSE: &str = "This is the cat that lay in the house. ";
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

fn tokenizer() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/learning/tests/tokenizers/byte-level.json")
}

fn verses() -> String {
    let line = |n: u32| format!("{{\"text\": \"Verse {n}: {} sheep went over the fence.\"}}\n", n % 97);
    (0..20_000).map(line).collect()
}

fn sections(verses: &str) -> String {
    sections_of(verses, "[network]\noperator = \"127.0.0.1:0\"\nupnp = false\n")
}

/// `verses`: where they are, in TOML.
fn sections_of(verses: &str, network: &str) -> String {
    let tokenizer = tokenizer();
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
path = {verses}
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

{network}
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
    assert!(window.shards.len() <= (WINDOW + GRACE_SHARDS_MIN) as usize);
    for StreamedShard { number, entry } in &window.shards {
        assert_eq!(*seen.entry(*number).or_insert(entry.sha256), entry.sha256, "shard {number}");
    }
}

/// Share of the sequences of a shard in which a text has this word.
async fn share(backbone: &BackboneProcess, number: u32, word: &str) -> f64 {
    let manifest = backbone.status().await.unwrap().run.data.manifest;
    let (data, window) = window(backbone).await;
    let entry = window.entry(number).unwrap();
    let client = TestClient::connect(backbone.tcp().unwrap()).await.unwrap();
    let mut stream = client.open(shard::PROTOCOL).await.unwrap();
    let mut partial = None;
    let fetched =
        shard::fetch(&mut stream, ShardId::Streamed(number), entry.transfer(), &mut partial, |_| ());
    let bytes = within("shard", fetched).await.unwrap().unwrap();
    let Samples::Tokens(tokens) = Samples::decode(&bytes, entry, &manifest).unwrap() else {
        panic!("no text")
    };
    let tokenizer = Tokenizer::read(&std::fs::read(tokenizer()).unwrap()).unwrap();
    let has_word = |ids: &&[u32]| tokenizer.decode(ids).unwrap().contains(word);
    tokens.sequences().filter(has_word).count() as f64 / f64::from(data.shard_samples)
}

async fn shown(test_run: &mut TestRun, args: &[&str]) -> RunView {
    let text = test_run.command(&[&["run"][..], args, &["--json"]].concat()).await.unwrap();
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Sum of the shares of a shard and of the `n_more` after it: of that number, or of a later one where the run is far beyond it.
async fn share_from(
    (backbone, joined): (&BackboneProcess, &PeerProcess),
    (number, n_more): (u32, u32),
    word: &str,
) -> f64 {
    window_from(backbone, number).await;
    // The window moves with the steps, and would be past what was read by the time that it is looked at.
    let _paused = Paused::new(vec![joined.pid().unwrap()]).unwrap();
    let (_, kept) = window(backbone).await;
    // A step may be under way, and the oldest ones are not kept behind it.
    let is_old = kept.first_drawn > number + GRACE_SHARDS_MIN / 2;
    let first = if is_old { kept.first_drawn } else { number };
    let mut sum = 0.0;
    for shard in first..=first + n_more {
        sum += share(backbone, shard, word).await;
    }
    sum
}

/// Waits until the window begins with this shard or a later one.
async fn window_from(backbone: &BackboneProcess, number: u32) -> StreamWindow {
    let moved = async {
        loop {
            let (_, window) = window(backbone).await;
            if window.first_drawn >= number {
                return window;
            }
            // It moves with the steps, and nothing tells of it.
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(HANG, moved).await.expect("the window moves")
}

async fn refused(backbone: &BackboneProcess, reason: &str) -> f64 {
    let name = format!("barnraise_contributions_refused_total{{reason=\"{reason}\"}}");
    metric(&backbone.metrics().await.unwrap(), &name).unwrap()
}

#[tokio::test]
async fn weights_that_are_set_are_those_of_later_shards_over_a_restart() {
    let mut test_run = TestRun::new(&sections(LOCAL)).unwrap();
    test_run.write("verses.jsonl", &verses()).unwrap();
    test_run.write("house.txt", &HOUSE.repeat(2000)).unwrap();
    let backbone = test_run.backbone().await.unwrap();
    let joined = test_run.join(&[&backbone.page()]).unwrap();
    let before = shown(&mut test_run, &["show"]).await;
    let file = BTreeMap::from([("house".to_owned(), 1.0), ("verses".to_owned(), 3.0)]);
    assert_eq!((before.settings.stream_weights, before.changed.stream_weights), (file, BTreeMap::new()));
    for (setting, want) in [
        ("stream_weights.letters=1", "there is no such source; there are house, verses"),
        ("stream_weights.house=-1", "0 to 1000000000 is wanted"),
        ("stream_weights.house=much", "invalid type"),
    ] {
        let error = test_run.command(&["run", "set", setting]).await.unwrap_err().to_string();
        assert!(error.contains(want), "{setting}: {error}");
    }
    let none = ["run", "set", "stream_weights.house=0", "stream_weights.verses=0"];
    let error = test_run.command(&none).await.unwrap_err().to_string();
    assert!(error.contains("one above 0 is wanted"), "{error}");

    // The window moves with the steps, and would be past what was read before by the time that it is looked at.
    let paused = Paused::new(vec![joined.pid().unwrap()]).unwrap();
    let set = shown(&mut test_run, &["set", "stream_weights.house=0"]).await;
    assert_eq!(set.settings.stream_weights["house"], 0.0);
    let (_, window) = window(&backbone).await;
    // One may be read already.
    let changed = window.end() + 1;
    assert!(share(&backbone, window.first_drawn, "cat").await > 0.0, "it is as it was");
    drop(paused);
    assert_eq!(share_from((&backbone, &joined), (changed, 0), "cat").await, 0.0);
    backbone.kill().await.unwrap();

    let backbone = test_run.backbone().await.unwrap();
    let text = test_run.command(&["run", "show"]).await.unwrap();
    assert!(text.contains("stream_weights.house      0 *\n"), "{text}");
    assert!(text.contains("stream_weights.verses     3\n"), "{text}");
    let after = self::window(&backbone).await.1.end() + 1;
    let of_house = share_from((&backbone, &joined), (after, 0), "cat").await;
    assert_eq!(of_house, 0.0, "what was set holds over a restart");
    let back = shown(&mut test_run, &["set", "stream_weights=", "gradient_norm_max=500"]).await;
    assert!(back.changed.stream_weights.is_empty(), "{back:?}");
    let after = self::window(&backbone).await.1.end() + 1;
    assert!(share_from((&backbone, &joined), (after, 1), "cat").await > 0.0);
    joined.interrupt().unwrap();
    assert!(joined.end().await.unwrap().status.success());
}

#[tokio::test]
async fn two_backbones_read_the_same_shards_and_one_with_another_file_is_told() {
    let mut two = TwoAggregators::of(&sections_of(LOCAL, "")).await;
    for test_run in [&two.one, &two.other] {
        test_run.write("verses.jsonl", &verses()).unwrap();
        test_run.write("house.txt", &HOUSE.repeat(2000)).unwrap();
    }
    let (one, other) = two.start().await;
    let joined = [two.one.join(&[&one.page()]).unwrap(), two.other.join(&[&other.page()]).unwrap()];
    let in_common = async {
        loop {
            let moved = window_from(&one, 3 * WINDOW).await;
            let theirs = window_from(&other, moved.first_drawn).await;
            assert_eq!(moved.first_difference(&theirs), None);
            // The windows move with the steps, and the second one is read later.
            if moved.end() > theirs.oldest() {
                return;
            }
        }
    };
    tokio::time::timeout(HANG, in_common).await.expect("they have shards in common");
    let error = two.one.command(&["run", "set", "stream_weights.house=0"]).await.unwrap_err().to_string();
    assert!(error.contains("stream_weights has to be the same for all backbones"), "{error}");
    assert!(leave(joined).await > 0);
    agreed([&one, &other]).await;
    for backbone in [&one, &other] {
        assert_eq!(refused(backbone, "account").await, 0.0);
        assert!(!backbone.log().unwrap().contains("another shard of the stream"));
    }
    assert!(other.terminate().await.unwrap().success());

    // A file that begins alike, and is another one behind its first mebibyte.
    let begins = verses();
    assert!(begins.len() > 1024 * 1024);
    let ends = |word: &str| format!("{begins}{}", format!("{{\"text\": \"{word}\"}}\n").repeat(20_000));
    let large = sections_of(LOCAL, "").replace("shard_samples = 50", "shard_samples = 5000");
    let mut two = TwoAggregators::of(&large.replace("window_shards = 8", "window_shards = 16")).await;
    two.one.write("verses.jsonl", &ends("The sheep are asleep.")).unwrap();
    two.other.write("verses.jsonl", &ends("The goats are not.")).unwrap();
    for test_run in [&two.one, &two.other] {
        test_run.write("house.txt", &HOUSE.repeat(2000)).unwrap();
    }
    let (one, _other) = two.start().await;
    wait_for_log(&one, "this aggregator has another shard of the stream").await;
}

#[tokio::test]
async fn a_run_trains_before_its_sources_are_read_and_goes_on_where_it_was() {
    let verses = verses();
    assert!(verses.len() > 8 * FIRST_BYTES);
    let server = HoldingServer::start(verses.clone().into_bytes());
    let (url, sha256) = (&server.address, Sha256Hash::of(verses.as_bytes()));
    let address = format!("{{ url = \"{url}\", sha256 = \"{sha256}\" }}");
    let mut test_run = TestRun::new(&sections(&address)).unwrap();
    test_run.write("house.txt", &HOUSE.repeat(2000)).unwrap();

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
    assert_eq!(refused(&backbone, "account").await, 0.0, "a window of eight shards loses nothing");
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
