//! The database of contributions behind the journal, on SQLite and on a real PostgreSQL server: nothing lost,
//! nothing counted twice, wherever a crash comes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use barnraise_native::host::contributions::{
    AggregatorWork, Batch, Issuer, Question, Recorder, Recording, Relayed, Store, WorkMeter,
};
use barnraise_native::storage::Storage;
use barnraise_native::storage::journal::{Journal, JournalEntry};
use barnraise_protocol::DisplayName;
use barnraise_protocol::access::{KeyPair, UnixTime};
use barnraise_protocol::api::{Contributions, ContributionsQuery};
use barnraise_protocol::bulk::Transfer;
use barnraise_protocol::codec::TensorCodec;
use barnraise_protocol::gradient::Offer;
use barnraise_protocol::receipt::Receipt;
use barnraise_swarm::AddressGroup;
use barnraise_tests::postgres::{Postgres, certified};
use barnraise_tests::process::HANG;
use libp2p::PeerId;

const RUN: &str = "barn";
/// Of the journal that is filled here.
const N_EPOCHS: u64 = 6;
const PER_EPOCH: u32 = 4;

fn key(seed: u8) -> KeyPair {
    KeyPair::from_seed(&[seed; 32])
}

fn peer_id(seed: u8) -> PeerId {
    PeerId::from_bytes(&key(seed).public().to_peer_id()).unwrap()
}

/// Contribution `id` of peer `seed`: as many samples as its number says.
fn receipt(seed: u8, id: u64) -> Receipt {
    Receipt {
        run_id: RUN.into(),
        peer: key(seed).public(),
        reducer: key(1).public(),
        contribution_id: id,
        epoch: id / 10,
        n_samples: id as u32,
        n_bytes: 1000,
        milliseconds: 700,
        issued_at: UnixTime(1_800_000_000),
    }
}

fn batch(receipts: Vec<Receipt>) -> Batch {
    Batch { receipts, ..Batch::default() }
}

fn question(offset: u32, limit: u32, peer: Option<PeerId>) -> Question {
    let peer = peer.map(|peer| peer.to_string());
    ContributionsQuery { offset: Some(offset), limit: Some(limit), peer }.try_into().unwrap()
}

/// A run's folder, and the database server, if the database is not in the folder.
struct RunFolder {
    folder: tempfile::TempDir,
    server: Option<Postgres>,
}

impl RunFolder {
    fn file() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), server: None }
    }

    /// `None` where there is no server to be had, which is said.
    fn server() -> Option<Self> {
        match Postgres::start() {
            Ok(server) => Some(Self { server: Some(server), ..Self::file() }),
            Err(error) => {
                println!("SKIPPED: no PostgreSQL server here: {error:#}");
                None
            }
        }
    }

    fn both() -> Vec<Self> {
        [Some(Self::file()), Self::server()].into_iter().flatten().collect()
    }

    async fn open(&self) -> Store {
        self.open_for(RUN, 1).await
    }

    async fn open_for(&self, run_id: &str, aggregator: u8) -> Store {
        let url = self.server.as_ref().map(Postgres::url);
        Store::open(self.folder.path(), url.as_deref(), run_id, peer_id(aggregator)).await.unwrap()
    }

    fn journal(&self) -> Journal {
        journal(self.folder.path())
    }

    /// Life of a process that finds the run at `epoch`, runs `tell` and stops at once.
    async fn live(&self, epoch: u64, tell: impl FnOnce(&Recorder)) -> Store {
        let (recording, recorder) = recording(self.open().await, self.journal(), epoch).await;
        tell(&recorder);
        recording.run(std::future::ready(())).await;
        self.open().await
    }
}

fn journal(folder: &Path) -> Journal {
    Journal::new(Storage::open_shared(&folder.join("journal-of-run")).unwrap())
}

async fn recording(store: Store, journal: Journal, epoch: u64) -> (Recording, Recorder) {
    let work = Arc::new(WorkMeter::default());
    work.worked(Duration::from_secs(2));
    work.averaged(1000);
    work.stepped();
    let refused = Box::new(|| BTreeMap::from([("epoch", 3), ("rate", 1)]));
    Recording::new(store, journal, Issuer::new(RUN, key(1)), epoch, refused, work).await.unwrap()
}

fn entry(seed: u8, id: u64, epoch: u64) -> JournalEntry {
    let payload = vec![0; 8];
    let offer = Offer {
        contribution_id: id,
        epoch,
        n_samples: 64,
        loss: 1.0,
        n_values: 2,
        codec: TensorCodec::F32,
        transfer: Transfer::of(&payload),
    };
    let (milliseconds, accepted_at) = (500, UnixTime(1_800_000_000));
    JournalEntry {
        peer: key(seed).public().to_peer_id(),
        group: AddressGroup::UNKNOWN,
        offer,
        milliseconds,
        accepted_at,
        payload: payload.into(),
        samples: None,
    }
}

/// Contributions of two peers in every epoch.
async fn fill(journal: &Journal) -> Vec<JournalEntry> {
    let mut entries = Vec::new();
    for epoch in 0..N_EPOCHS {
        for sequence in 0..PER_EPOCH {
            let id = epoch * 100 + u64::from(sequence);
            let entry = entry(2 + (sequence % 2) as u8, id, epoch);
            journal.append(epoch, sequence, &entry).await.unwrap();
            entries.push(entry);
        }
    }
    entries
}

fn receipts(entries: &[JournalEntry]) -> Vec<Receipt> {
    let issuer = Issuer::new(RUN, key(1));
    entries.iter().map(|entry| issuer.receipt(entry).unwrap()).collect()
}

fn copy(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            std::fs::create_dir(&to).unwrap();
            copy(&entry.path(), &to);
        } else {
            std::fs::copy(entry.path(), to).unwrap();
        }
    }
}

/// How many contributions of each epoch a journal has.
async fn kept(journal: &Journal) -> Vec<u32> {
    let mut kept = Vec::new();
    for epoch in 0..N_EPOCHS {
        let (mut entries, mut n_kept) = (journal.entries(epoch).await.unwrap(), 0);
        while entries.next().await.unwrap().is_some() {
            n_kept += 1;
        }
        kept.push(n_kept);
    }
    kept
}

async fn shown(store: &Store) -> Contributions {
    store.contributions(&question(0, 100, None)).await.unwrap()
}

/// Everything that was filled in, once, and its sums.
async fn assert_complete(store: &Store, what: &str) {
    let shown = shown(store).await;
    let n = N_EPOCHS * u64::from(PER_EPOCH);
    assert_eq!((shown.totals.n_contributions, shown.totals.n_samples), (n, 64 * n), "{what}");
    assert_eq!((shown.totals.n_bytes, shown.totals.seconds), (8 * n, n / 2), "{what}");
    assert_eq!(shown.n_contributors, 2, "{what}");
    let of_peers: Vec<(u64, u64)> = shown
        .contributors
        .iter()
        .map(|totals| (totals.totals.n_contributions, totals.totals.n_samples))
        .collect();
    assert_eq!(of_peers, [(n / 2, 32 * n); 2], "{what}");
    assert!(shown.contributors.iter().all(|totals| totals.last_epoch == N_EPOCHS - 1), "{what}");
}

#[tokio::test]
async fn a_convicted_peer_is_not_on_the_leaderboard() {
    for place in RunFolder::both() {
        let store = place.open().await;
        store.record(&batch(vec![receipt(2, 10), receipt(3, 10)])).await.unwrap();
        for _ in 0..2 {
            store.convict(key(2).public(), 7).await.unwrap();
        }
        let named = |shown: Contributions| {
            shown.contributors.into_iter().map(|totals| totals.peer).collect::<Vec<String>>()
        };
        assert_eq!(named(shown(&place.open().await).await), [peer_id(3).to_string()]);
        // Of one run it is.
        let other = place.open_for("another", 1).await;
        other.record(&batch(vec![receipt(2, 10)])).await.unwrap();
        assert_eq!(named(shown(&other).await), [peer_id(2).to_string()]);
    }
}

#[tokio::test]
async fn a_contribution_counts_once_and_the_sums_are_those_of_the_rows() {
    for place in RunFolder::both() {
        let store = place.open().await;
        let first = vec![receipt(2, 10), receipt(2, 11), receipt(3, 10)];
        assert_eq!(store.record(&batch(first.clone())).await.unwrap(), 3);
        assert_eq!(store.record(&batch(first)).await.unwrap(), 0);
        // A name above 2^63, an old one, and the same twice in one batch.
        let huge = Receipt { contribution_id: u64::MAX, n_samples: 5, ..receipt(4, 12) };
        let second = vec![receipt(3, 11), receipt(3, 10), receipt(4, 12), receipt(4, 12), huge.clone(), huge];
        assert_eq!(store.record(&batch(second)).await.unwrap(), 3);
        let shown = shown(&store).await;
        let given =
            |totals: &barnraise_protocol::api::AcceptedTotals| (totals.n_contributions, totals.n_samples);
        assert_eq!((given(&shown.totals), shown.n_contributors), ((6, 10 + 11 + 10 + 11 + 12 + 5), 3));
        assert_eq!((shown.totals.n_bytes, shown.totals.seconds), (6000, 4));
        let rows: Vec<_> =
            shown.contributors.iter().map(|totals| (totals.peer.clone(), given(&totals.totals))).collect();
        let mut equals = [(peer_id(2).to_string(), (2, 21)), (peer_id(3).to_string(), (2, 21))];
        equals.sort();
        assert_eq!(rows[..2], equals, "where samples are equal, by the name");
        assert_eq!(rows[2], (peer_id(4).to_string(), (2, 17)));
        assert_eq!(shown.contributors[2].last_epoch, 1);
    }
}

#[tokio::test]
async fn the_leaderboard_is_read_in_pages_and_one_peer_by_itself() {
    for place in RunFolder::both() {
        let store = place.open().await;
        let receipts = (2..=12).map(|seed| receipt(seed, u64::from(seed)));
        store.record(&batch(receipts.collect())).await.unwrap();
        for (offset, limit, want) in
            [(0, 3, &[12, 11, 10][..]), (3, 3, &[9, 8, 7]), (9, 5, &[3, 2]), (11, 5, &[]), (0, 0, &[])]
        {
            let shown = store.contributions(&question(offset, limit, None)).await.unwrap();
            let peers: Vec<String> = shown.contributors.into_iter().map(|totals| totals.peer).collect();
            let want: Vec<String> = want.iter().map(|seed| peer_id(*seed).to_string()).collect();
            assert_eq!(peers, want, "{offset} {limit}");
        }
        let asked = store.contributions(&question(0, 1, Some(peer_id(5)))).await.unwrap();
        assert_eq!(asked.peer.map(|totals| totals.totals.n_samples), Some(5));
        // Those with 6 to 12 samples gave more.
        assert_eq!(asked.rank, Some(8));
        let stranger = store.contributions(&question(0, 1, Some(PeerId::random()))).await.unwrap();
        assert_eq!((stranger.peer, stranger.rank, stranger.contributors.len()), (None, None, 1));
    }
}

/// A name is shown once its peer has contributed, as it is now, unless an operator hid it.
#[tokio::test]
async fn contributors_are_called_what_they_want_and_convicted_ones_have_no_place() {
    for place in RunFolder::both() {
        let store = place.open().await;
        let name = |text: &str| DisplayName::new(text).unwrap();
        let ada = name("Ada <b>Lovelace</b>");
        assert!(!store.call(peer_id(2), Some(&ada), 1).await.unwrap(), "it has contributed nothing");
        assert!(store.call(peer_id(2), None, 1).await.unwrap(), "there is nothing to be kept");
        store.record(&batch(vec![receipt(2, 10), receipt(3, 11)])).await.unwrap();
        let names = |shown: Contributions| -> Vec<Option<String>> {
            shown.contributors.into_iter().map(|totals| totals.name.map(String::from)).collect()
        };
        // Another question each time: what is asked again at once is answered as before.
        let asked = Cell::new(10);
        let all = || {
            asked.set(asked.get() + 1);
            question(0, asked.get(), Some(peer_id(2)))
        };
        assert_eq!(names(store.contributions(&all()).await.unwrap()), [None, None]);
        assert!(store.call(peer_id(2), Some(&ada), 2).await.unwrap());
        assert!(store.call(peer_id(2), Some(&ada), 3).await.unwrap(), "the same again");
        let shown = store.contributions(&all()).await.unwrap();
        assert_eq!(shown.rank, Some(2));
        assert_eq!(shown.peer.clone().unwrap().name, Some(ada));
        assert_eq!(names(shown), [None, Some("Ada <b>Lovelace</b>".to_owned())]);
        assert!(store.call(peer_id(2), Some(&name("Countess")), 4).await.unwrap());
        assert_eq!(names(store.contributions(&all()).await.unwrap())[1].as_deref(), Some("Countess"));

        let again = question(0, 9, None);
        assert_eq!(names(store.contributions(&again).await.unwrap())[1].as_deref(), Some("Countess"));
        assert!(store.set_hidden(peer_id(2), true).await.unwrap());
        assert_eq!(names(store.contributions(&again).await.unwrap()), [None, None], "at once");
        assert!(!store.set_hidden(peer_id(9), true).await.unwrap(), "it has contributed nothing");
        assert!(store.set_hidden(peer_id(3), true).await.unwrap(), "before it has a name");
        assert!(store.call(peer_id(3), Some(&name("Rude")), 4).await.unwrap());
        assert_eq!(names(store.contributions(&all()).await.unwrap()), [None, None]);
        assert_eq!(store.hidden_names().await.unwrap().len(), 2);
        for peer in [2, 3] {
            assert!(store.set_hidden(peer_id(peer), false).await.unwrap());
            assert!(!store.set_hidden(peer_id(peer), false).await.unwrap(), "it is shown");
        }
        let shown = names(store.contributions(&again).await.unwrap());
        assert_eq!(shown, [Some("Rude".to_owned()), Some("Countess".to_owned())]);
        assert!(store.call(peer_id(3), None, 5).await.unwrap());

        assert!(store.call(peer_id(2), None, 5).await.unwrap());
        assert_eq!(names(store.contributions(&all()).await.unwrap()), [None, None]);

        store.convict(key(2).public(), 1).await.unwrap();
        let shown = store.contributions(&all()).await.unwrap();
        assert!(shown.rank.is_none() && shown.peer.is_some(), "{shown:?}");
        assert_eq!(shown.contributors.len(), 1);
        let other = store.contributions(&question(0, 10, Some(peer_id(3)))).await.unwrap();
        assert_eq!(other.rank, Some(1));
    }
}

/// The server accepts only TLS, and clients accept only the server's certificate.
#[tokio::test]
async fn a_server_that_cannot_prove_its_name_is_not_spoken_to() {
    let server = match Postgres::start_with_tls() {
        Ok(server) => server,
        Err(error) => return println!("SKIPPED: no PostgreSQL server here: {error:#}"),
    };
    let folder = tempfile::tempdir().unwrap();
    let open = async |host: &str, options: &str| {
        let url = server.url_at(host, options);
        Store::open(folder.path(), Some(&url), RUN, peer_id(1)).await
    };
    let (authority, _, _) = certified("localhost").unwrap();
    let stranger = folder.path().join("stranger.pem");
    std::fs::write(&stranger, authority).unwrap();
    let full = |authority: &Path| format!("sslmode=verify-full&sslrootcert={}", authority.display());

    let store = open("localhost", &full(&server.authority())).await.unwrap();
    assert_eq!(store.record(&batch(vec![receipt(2, 10)])).await.unwrap(), 1);
    assert_eq!(store.contributions(&question(0, 9, None)).await.unwrap().totals.n_samples, 10);
    // By another name than its own, by nobody's authority, and without TLS.
    let refused = [
        ("127.0.0.1", full(&server.authority())),
        ("localhost", full(&stranger)),
        ("localhost", "sslmode=verify-full".to_owned()),
        ("localhost", "sslmode=disable".to_owned()),
    ];
    for (host, options) in refused {
        let error = open(host, &options).await.expect_err(&options).to_string();
        assert!(error.contains(host) && !error.contains("postgres@"), "{options}: {error}");
    }
}

/// Several runs, and several backbones of one run, may have one database.
#[tokio::test]
async fn runs_and_backbones_share_a_server() {
    let Some(place) = RunFolder::server() else { return };
    let (one, two, other) =
        (place.open().await, place.open_for(RUN, 9).await, place.open_for("shed", 9).await);
    let work = |n_bytes| AggregatorWork { n_steps: 1, n_bytes, microseconds: 2_500_000 };
    let refused = BTreeMap::from([("epoch", 2)]);
    let carried = Relayed { n_contributions: 1, n_bytes: 50, microseconds: 700_000 };
    let by = |receipts, n_bytes| Batch {
        reduced: BTreeMap::new(),
        relayed: BTreeMap::from([(peer_id(20).to_string(), carried)]),
        receipts,
        work: work(n_bytes),
        refused: refused.clone(),
        recorded_before: Some(n_bytes),
    };
    let (of_one, of_two) = (by(vec![receipt(2, 10), receipt(3, 10)], 7), by(vec![receipt(3, 11)], 8));
    let (a, b) = tokio::join!(one.record(&of_one), two.record(&of_two));
    assert_eq!((a.unwrap(), b.unwrap()), (2, 1));
    // The contributor went to another backbone after its acknowledgement was lost.
    assert_eq!(two.record(&by(vec![receipt(2, 10)], 9)).await.unwrap(), 0);
    let shown = shown(&one).await;
    assert_eq!((shown.totals.n_contributions, shown.n_contributors), (3, 2));
    assert_eq!(shown.refused[0].n, 6);
    let [relay] = &shown.relays[..] else { panic!("{:?}", shown.relays) };
    assert_eq!((relay.n_contributions, relay.n_bytes, relay.seconds), (3, 150, 2));
    assert_eq!(relay.peer, peer_id(20).to_string());
    let aggregators: Vec<_> = shown
        .aggregators
        .iter()
        .map(|totals| (totals.peer.clone(), totals.n_steps, totals.n_bytes, totals.seconds))
        .collect();
    assert_eq!(aggregators, [(peer_id(9).to_string(), 2, 17, 5), (peer_id(1).to_string(), 1, 7, 2)]);
    assert_eq!((one.recorded_before().await.unwrap(), two.recorded_before().await.unwrap()), (7, 9));
    assert_eq!(other.contributions(&question(0, 10, None)).await.unwrap(), Contributions::default());
}

/// The process dies after it wrote any number of contributions, in batches of any kind, and starts again.
#[tokio::test]
async fn a_crash_at_any_point_neither_loses_nor_doubles() {
    let filled = RunFolder::file();
    let entries = fill(&filled.journal()).await;
    for n_written in 0..=entries.len() {
        let place = RunFolder::file();
        copy(filled.folder.path(), place.folder.path());
        let store = place.open().await;
        for receipts in receipts(&entries[..n_written]).chunks(5) {
            let newest = receipts.last().map(|receipt| receipt.epoch);
            store.record(&Batch { recorded_before: newest, ..batch(receipts.to_vec()) }).await.unwrap();
        }
        store.close().await;
        let store = place.live(N_EPOCHS, |_| ()).await;
        assert_complete(&store, &format!("{n_written} written before the crash")).await;
        // And once more: there is nothing left to do.
        assert_complete(&place.live(N_EPOCHS, |_| ()).await, "started again").await;
    }
}

#[tokio::test]
async fn a_server_that_crashes_loses_nothing_and_the_journal_waits_for_it() {
    let Some(mut place) = RunFolder::server() else { return };
    let entries = fill(&place.journal()).await;
    let (recording, recorder) = recording(place.open().await, place.journal(), N_EPOCHS).await;
    receipts(&entries).into_iter().for_each(|receipt| recorder.on_accepted(receipt));
    recorder.forget_before(N_EPOCHS - 1);
    place.server.as_mut().unwrap().crash().unwrap();
    // It cannot write anything, and ends.
    recording.run(std::future::ready(())).await;
    assert_eq!(kept(&place.journal()).await, [PER_EPOCH; N_EPOCHS as usize], "nothing is forgotten");
    place.server.as_mut().unwrap().resume().unwrap();
    let store = place.live(N_EPOCHS, |recorder| recorder.forget_before(N_EPOCHS - 1)).await;
    assert_complete(&store, "after the server came back").await;
    assert_eq!(kept(&place.journal()).await, [0, 0, 0, 0, 0, PER_EPOCH], "what is recorded is forgotten");
    assert_complete(&place.live(N_EPOCHS, |_| ()).await, "from a journal that was cut").await;
}

/// Contributors are elsewhere, or idle: steps of others fill the journal all the same.
#[tokio::test]
async fn a_journal_is_cut_where_nothing_is_accepted() {
    let place = RunFolder::file();
    let journal = place.journal();
    let (recording, recorder) = recording(place.open().await, journal.clone(), 0).await;
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(recording.run(async move {
        let _ = stopped.await;
    }));
    // What was there at the start is read anyhow: the second time tells.
    for first in [0, 4] {
        for epoch in first..first + 4 {
            journal.write_mean(epoch, 9, &vec![0.5].into()).await.unwrap();
        }
        recorder.forget_before(first + 3);
        let cut = async {
            while journal.mean(first + 2, 9).await.unwrap().is_some() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(HANG, cut).await.expect("the journal is never cut");
        assert!(journal.mean(first + 3, 9).await.unwrap().is_some());
    }
    stop.send(()).unwrap();
    running.await.unwrap();
}

#[tokio::test]
async fn what_does_not_fit_into_the_queue_comes_from_the_journal() {
    let place = RunFolder::file();
    let entries = fill(&place.journal()).await;
    // Somebody else's flood: of a few that are told again and again, and the queue is full before ours come.
    let flood = receipts(&entries[..1]);
    let store = place
        .live(0, |recorder| {
            for _ in 0..20_000 {
                recorder.on_accepted(flood[0].clone());
            }
            receipts(&entries).into_iter().for_each(|receipt| recorder.on_accepted(receipt));
        })
        .await;
    assert_complete(&store, "after an overflow").await;
}

#[tokio::test]
async fn a_run_that_goes_back_records_the_epochs_that_it_repeats() {
    let place = RunFolder::file();
    fill(&place.journal()).await;
    place.live(N_EPOCHS, |_| ()).await;
    // The step of epoch 2 was damaged, and taken back: the run is there again.
    for epoch in 3..N_EPOCHS {
        std::fs::remove_dir_all(place.folder.path().join(format!("journal-of-run/journal/{epoch:012}")))
            .unwrap();
    }
    let again = entry(2, 777, 3);
    place.journal().append(3, 0, &again).await.unwrap();
    let store = place.live(2, |_| ()).await;
    let n = N_EPOCHS * u64::from(PER_EPOCH);
    assert_eq!(shown(&store).await.totals.n_contributions, n + 1, "what was acknowledged stays credited");
    assert_eq!(store.recorded_before().await.unwrap(), 3);
}

#[tokio::test]
async fn refusals_and_work_are_added_to_those_of_earlier_processes() {
    let place = RunFolder::file();
    for n_processes in 1..=3 {
        let store = place.live(0, |_| ()).await;
        let shown = shown(&store).await;
        let refused: Vec<_> = shown.refused.iter().map(|count| (count.reason.as_str(), count.n)).collect();
        assert_eq!(refused, [("epoch", 3 * n_processes), ("rate", n_processes)]);
        let work = &shown.aggregators[0];
        assert_eq!(work.peer, peer_id(1).to_string());
        assert_eq!(
            (work.n_steps, work.n_bytes, work.seconds),
            (n_processes, 1000 * n_processes, 2 * n_processes)
        );
    }
}

#[test]
fn a_question_has_bounds() {
    let ask =
        |query: ContributionsQuery| Question::try_from(query).map(drop).map_err(|error| error.to_string());
    let default = ContributionsQuery::default();
    assert_eq!(ask(default.clone()), Ok(()));
    assert_eq!(ask(ContributionsQuery { limit: Some(100), offset: Some(10_000), ..default.clone() }), Ok(()));
    for (query, want) in [
        (ContributionsQuery { limit: Some(101), ..default.clone() }, "`limit` is 101, at most 100"),
        (ContributionsQuery { offset: Some(u32::MAX), ..default.clone() }, "`offset` is 4294967295"),
        (ContributionsQuery { peer: Some("x".repeat(1000)), ..default.clone() }, "`peer` is no peer id"),
        (ContributionsQuery { peer: Some("' OR 1=1".into()), ..default }, "`peer` is no peer id"),
    ] {
        let error = ask(query).unwrap_err();
        assert!(error.starts_with(want), "{error}");
    }
}
