//! Hosts of experts: golden bytes of leases and checkpoints, what is signed, and both sides of the conversations, honest and not.

use std::sync::Arc;
use std::time::Duration;

use barnraise_protocol::Sha256Hash;
use barnraise_protocol::access::{KeyPair, PublicKey, UnixTime};
use barnraise_protocol::bulk::{Partial, Transfer};
use barnraise_protocol::dht::checkpoints::{self as records, CheckpointRecord, RECORD_KEEPERS_MAX};
use barnraise_protocol::dht::{Record, UnixMillis};
use barnraise_protocol::experts::checkpoints::{
    self, BYTES_PER_SECOND_MIN, CheckpointAnswer, CheckpointError, CheckpointQuestion, CheckpointRefusal,
    CheckpointVersion, ExpertCheckpoint, OfferOutcome, STEPS_MAX, TRANSFER_GRACE, TRANSFER_TIMEOUT,
    transfer_time,
};
use barnraise_protocol::experts::leases::{
    self, COPIES_MAX, CopyHolder, ExpertLease, ExpertLoad, FROZEN_MAX, GRANTORS_MAX, Grantors, GrantorsError,
    HOST_ADDRESS_BYTES_MAX, HOST_ADDRESSES_MAX, KEEPERS_MAX, KnownHost, LeaseAnswer, LeaseAsk, LeaseAskError,
    LeaseError, LeaseGrant, LeaseQuestion, LeaseRefusal, LeaseVerdict, LeasingHost, PLACES_MAX,
};
use barnraise_protocol::experts::{ExpertPlace, ExpertUid, LayerId};
use barnraise_protocol::framing;
use barnraise_protocol::receipt::RUN_ID_BYTES_MAX;
use tokio_util::compat::{Compat, TokioAsyncReadCompatExt as _};

use crate::golden::{self, Message, hex};

const NOW: UnixMillis = UnixMillis(1_795_000_000_000);
const EXPIRES: UnixTime = UnixTime(1_795_000_030);
const DAY: Duration = Duration::from_secs(24 * 3600);

type HostStream = Compat<tokio::io::DuplexStream>;

/// Two ends of a stream with a buffer smaller than a chunk.
fn pair() -> (HostStream, HostStream) {
    let (a, b) = tokio::io::duplex(8 * 1024);
    (a.compat(), b.compat())
}

fn key(at: u8) -> KeyPair {
    KeyPair::from_seed(&[at; 32])
}

fn place() -> ExpertPlace {
    (LayerId(2), ExpertUid::new(&[3, 300]).unwrap())
}

fn grantors(n: u8) -> Grantors {
    Grantors::new((1..=n).map(|at| key(at).public())).unwrap()
}

/// A lease of the host 9 with the grants of the first `n` backbones.
fn lease(n: u8, term: u64) -> ExpertLease {
    let holder = key(9).public();
    let grant = |at: u8| LeaseGrant::sign(&key(at), "barn", ((place(), 2), holder, term), EXPIRES).unwrap();
    ExpertLease { place: place(), copy: 2, holder, term, grants: (1..=n).map(grant).collect() }
}

fn checkpoint(term: u64, n_steps: u64, bytes: &[u8]) -> ExpertCheckpoint {
    ExpertCheckpoint::sign(&key(9), "barn", (lease(1, term), n_steps, Transfer::of(bytes))).unwrap()
}

/// As [`golden::check`], with gaps between the parts of what is expected.
fn check(message: &impl Message, bytes_max: usize, golden: &str) {
    golden::check(message, bytes_max, &golden.replace(' ', ""));
}

/// What a signature covers, byte by byte; the signature of Ed25519 follows from it.
fn grant_bytes(expires_at: &str) -> String {
    let signed = [&b"barnraise expert lease 2\0"[..], &[4], b"barn", &[2, 2, 3, 0xac, 2, 2]].concat();
    let expires: Vec<u8> = (0..expires_at.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&expires_at[at..at + 2], 16).unwrap())
        .collect();
    let signed = [&signed[..], &key(9).public().0, &[5], &expires].concat();
    let signature = hex(&key(1).sign(&signed).to_bytes());
    format!("{}{expires_at}{signature}", key(1).public())
}

/// [`EXPIRES`] in the bytes of a message.
const EXPIRES_BYTES: &str = "de8df6d706";

fn lease_bytes() -> String {
    format!("02 0203ac02 02 {} 05 01 {}", key(9).public(), grant_bytes(EXPIRES_BYTES))
}

#[test]
fn golden_bytes_of_leases() {
    let max = leases::MESSAGE_BYTES_MAX;
    let (lease, golden) = (lease(1, 5), lease_bytes());
    check(&lease, max, &golden);
    let host = LeasingHost::new(300, [vec![6, 7]]);
    let asks = vec![
        LeaseAsk::Claim(place()),
        LeaseAsk::Renew {
            lease: lease.clone(),
            load: ExpertLoad { n_waiting: 300, n_served: 7, n_spare: 9 },
        },
        LeaseAsk::Release { place: place(), copy: 3, term: 300, to: None },
        LeaseAsk::Release { place: place(), copy: 0, term: 300, to: Some(key(9).public()) },
        LeaseAsk::Copy((place(), 3)),
    ];
    let ask_bytes = format!(
        "00 020203ac02 01{golden} ac02 07 09 02 020203ac02 03 ac02 00 02 020203ac02 00 ac02 01{} 03 020203ac02 03",
        key(9).public()
    );
    let question = LeaseQuestion::Lease { run_id: "barn".into(), host: host.clone(), asks, n_vacant: 7 };
    check(&question, max, &format!("00 046261726e ac02 01 020607 05 {ask_bytes} 07"));
    let asks = vec![(LeaseAsk::Claim(place()), 300)];
    let holder = key(9).public();
    let vote = LeaseQuestion::Vote { run_id: "barn".into(), holder, host, asks };
    check(&vote, max, &format!("01 046261726e {holder} ac02 01 020607 01 00 020203ac02 ac02"));
    let keepers = LeaseQuestion::Keepers { run_id: "barn".into(), places: vec![place()] };
    check(&keepers, max, "02 046261726e 01 020203ac02");
    let holders = LeaseQuestion::Holders { run_id: "barn".into(), places: vec![place()] };
    check(&holders, max, "03 046261726e 01 020203ac02");
    let held = vec![CopyHolder { copy: 2, holder }];
    check(&LeaseAnswer::Holders(vec![vec![], held]), max, &format!("03 02 00 01 02 {holder}"));
    let refused = LeaseVerdict::Refused(LeaseRefusal::Held { for_ms: 300 });
    let asked = vec![LeaseVerdict::Granted(lease.clone()), LeaseVerdict::Released, refused];
    let (vacant, frozen) = (vec![lease.clone()], vec![LayerId(2), LayerId(300)]);
    let answer = LeaseAnswer::Leased { grantors: grantors(1), asked, vacant, copied: vec![place()], frozen };
    let first = key(1).public();
    check(
        &answer,
        max,
        &format!("00 01 {first} 03 00 {golden} 01 02 01ac02 01 {golden} 01 020203ac02 02 02 ac02"),
    );
    let voted = LeaseAnswer::Voted(vec![LeaseVerdict::Granted(lease.grants[0])]);
    check(&voted, max, &format!("01 01 00 {}", grant_bytes(EXPIRES_BYTES)));
    let known = LeaseAnswer::Keepers(vec![vec![KnownHost::new(holder, [vec![6, 7]])]]);
    check(&known, max, &format!("02 01 01 {holder} 01 020607"));
    for (refusal, golden) in [
        (LeaseRefusal::Unknown, "0400"),
        (LeaseRefusal::Held { for_ms: 3 }, "040103"),
        (LeaseRefusal::Later { term: 300 }, "0402ac02"),
        (LeaseRefusal::Quiet { for_ms: 3 }, "040303"),
        (LeaseRefusal::Room { n_room: 3 }, "040403"),
        (LeaseRefusal::Share { max: 300, for_ms: 3 }, "0405ac0203"),
        (LeaseRefusal::Majority { want: 2, got: 1 }, "04060201"),
        (LeaseRefusal::NotNamed, "0407"),
        (LeaseRefusal::Busy { for_ms: 3 }, "040803"),
        (LeaseRefusal::TooMany { got: 300 }, "0409ac02"),
        (LeaseRefusal::NoAccess, "040a"),
        (LeaseRefusal::MayNotHost, "040b"),
        (LeaseRefusal::Distrusted { for_ms: 300 }, "040cac02"),
        (LeaseRefusal::Twice { copy: 2, for_ms: 300 }, "040d02ac02"),
        (LeaseRefusal::GivesWay, "040e"),
    ] {
        check(&LeaseAnswer::Refused(refusal), max, golden);
    }
}

#[test]
fn golden_bytes_of_checkpoints() {
    let max = checkpoints::MESSAGE_BYTES_MAX;
    let made = checkpoint(5, 300, b"bytes");
    let hash = Sha256Hash::of(b"bytes");
    let signed = [&b"barnraise expert checkpoint 1\0"[..], &[4], b"barn", &[2, 2, 3, 0xac, 2, 5, 0xac, 2, 5]];
    let signature = hex(&key(9).sign(&[&signed.concat()[..], &hash.0].concat()).to_bytes());
    let golden = format!("{} ac02 05{hash} {signature}", lease_bytes());
    check(&made, max, &golden);
    let run_id = || "barn".to_owned();
    let offer = CheckpointQuestion::Offer { run_id: run_id(), checkpoint: made.clone() };
    check(&offer, max, &format!("00 046261726e {golden}"));
    let newest = CheckpointQuestion::Newest { run_id: run_id(), place: place() };
    check(&newest, max, "01 046261726e 020203ac02");
    let get = CheckpointQuestion::Get { run_id: run_id(), place: place(), sha256: hash };
    check(&get, max, &format!("02 046261726e 020203ac02 {hash}"));
    for (answer, golden) in [
        (CheckpointAnswer::Wanted, "00".to_owned()),
        (CheckpointAnswer::Kept, "01".to_owned()),
        (CheckpointAnswer::AlreadyKept, "02".to_owned()),
        (CheckpointAnswer::Found(vec![]), "0300".to_owned()),
        (CheckpointAnswer::Found(vec![made.clone()]), format!("0301{golden}")),
        (CheckpointAnswer::Sent(made.transfer), format!("0405{hash}")),
        (CheckpointAnswer::Refused(CheckpointRefusal::Unknown), "0500".to_owned()),
        (CheckpointAnswer::Refused(CheckpointRefusal::Lease), "0501".to_owned()),
        (
            CheckpointAnswer::Refused(CheckpointRefusal::TooLarge { max: 3, got: 300 }),
            "050203ac02".to_owned(),
        ),
        (CheckpointAnswer::Refused(CheckpointRefusal::Full), "0503".to_owned()),
        (CheckpointAnswer::Refused(CheckpointRefusal::Busy), "0504".to_owned()),
        (CheckpointAnswer::Refused(CheckpointRefusal::Gone), "0505".to_owned()),
        (CheckpointAnswer::Refused(CheckpointRefusal::NoAccess), "0506".to_owned()),
        (
            CheckpointAnswer::Refused(CheckpointRefusal::TooSmall { min: 300, got: 3 }),
            "0507ac0203".to_owned(),
        ),
    ] {
        check(&answer, max, &golden);
    }
    let keepers = vec![KnownHost::new(key(7).public(), [vec![6, 7]])];
    let record = CheckpointRecord { checkpoint: made, keepers };
    check(&record, max, &format!("{golden} 01 {} 01 020607", key(7).public()));
    let label = [&b"barnraise expert checkpoints of barn\0"[..], &[2, 0, 3, 0, 44, 1]].concat();
    let name = barnraise_protocol::dht::RecordName::dictionary(&label);
    assert_eq!(records::key("barn", place()), name.key());
}

#[test]
fn a_lease_is_what_a_majority_of_the_backbones_has_signed() {
    let three = grantors(3);
    assert_eq!((three.majority(), grantors(4).majority(), grantors(1).majority()), (2, 3, 1));
    assert_eq!(lease(2, 5).verify("barn", &three), Ok(()));
    let few = |got| Err(LeaseError::Grants { want: 2, got });
    assert_eq!(lease(1, 5).verify("barn", &three), few(1));
    assert_eq!(lease(2, 5).verify("shed", &three), few(0), "of another run");
    let changes: [fn(&mut ExpertLease); 5] = [
        |lease| lease.copy = 1,
        |lease| lease.term += 1,
        |lease| lease.holder = key(8).public(),
        |lease| lease.place.0 = LayerId(3),
        |lease| lease.grants.iter_mut().for_each(|grant| grant.expires_at = UnixTime(7)),
    ];
    for change in changes {
        let mut forged = lease(2, 5);
        change(&mut forged);
        assert_eq!(forged.verify("barn", &three), few(0));
    }
    let mut repeated = lease(1, 5);
    repeated.grants = vec![repeated.grants[0]; 3];
    assert_eq!(repeated.verify("barn", &three), few(1), "one backbone counts once");
    let mut foreign = lease(1, 5);
    foreign.grants.extend(
        (20..22).map(|at| {
            LeaseGrant::sign(&key(at), "barn", ((place(), 2), key(9).public(), 5), EXPIRES).unwrap()
        }),
    );
    assert_eq!(foreign.verify("barn", &three), few(1), "others do not grant");
}

#[test]
fn backbones_that_grant_are_few_and_in_order() {
    let many = Grantors::new((0..40).map(|at| key(at).public())).unwrap();
    assert_eq!(many.keys().len(), GRANTORS_MAX);
    assert!(many.keys().is_sorted());
    let twice = Grantors::new([key(1).public(), key(1).public()]).unwrap();
    assert_eq!(twice.keys().len(), 1);
    assert_eq!(Grantors::new([]), Err(GrantorsError::Count { got: 0 }));
    let of = |keys: Vec<PublicKey>| Grantors::try_from(keys);
    let (low, high) = (many.keys()[0], many.keys()[1]);
    assert_eq!(of(vec![high, low]), Err(GrantorsError::Order));
    assert_eq!(of(vec![low, low]), Err(GrantorsError::Order));
    assert_eq!(of(vec![low; GRANTORS_MAX + 1]), Err(GrantorsError::Count { got: GRANTORS_MAX + 1 }));
}

#[test]
fn the_largest_messages_fit() {
    let mut largest = lease(1, u64::MAX);
    largest.place = (LayerId(u16::MAX), ExpertUid::new(&[511; 4]).unwrap());
    largest.grants[0].expires_at = UnixTime(u64::MAX);
    largest.grants = vec![largest.grants[0]; GRANTORS_MAX];
    let run_id = "r".repeat(RUN_ID_BYTES_MAX);
    let addresses = vec![vec![0; HOST_ADDRESS_BYTES_MAX]; HOST_ADDRESSES_MAX + 1];
    let host = LeasingHost::new(u32::MAX, addresses.clone());
    assert_eq!(host.addresses.len(), HOST_ADDRESSES_MAX);
    let renew = LeaseAsk::Renew {
        lease: largest.clone(),
        load: ExpertLoad { n_waiting: u32::MAX, n_served: u32::MAX, n_spare: u32::MAX },
    };
    let known =
        KnownHost::new(largest.holder, addresses.into_iter().chain([vec![0; HOST_ADDRESS_BYTES_MAX + 1]]));
    let asks = vec![(renew.clone(), u64::MAX); PLACES_MAX];
    let holder = largest.holder;
    let max = leases::MESSAGE_BYTES_MAX;
    let vote = LeaseQuestion::Vote { run_id: run_id.clone(), holder, host: host.clone(), asks };
    framing::encode(&vote, max).unwrap();
    assert_eq!(vote.check(&run_id), Ok(()));
    let asked = vec![LeaseVerdict::Granted(largest.clone()); PLACES_MAX];
    let frozen = vec![LayerId(u16::MAX); FROZEN_MAX];
    let copied = vec![largest.place; PLACES_MAX];
    let leased = LeaseAnswer::Leased { grantors: grantors(16), asked, vacant: Vec::new(), copied, frozen };
    framing::encode(&leased, max).unwrap();
    let keepers = LeaseAnswer::Keepers(vec![vec![known.clone(); KEEPERS_MAX]; PLACES_MAX]);
    framing::encode(&keepers, max).unwrap();
    let transfer = Transfer { n_bytes: u64::MAX, sha256: Sha256Hash([0; 32]) };
    let made = ExpertCheckpoint::sign(&key(9), "barn", (largest, u64::MAX, transfer)).unwrap();
    let offer = CheckpointQuestion::Offer { run_id: run_id.clone(), checkpoint: made.clone() };
    framing::encode(&offer, checkpoints::MESSAGE_BYTES_MAX).unwrap();
    let found = CheckpointAnswer::Found(vec![made.clone(); usize::from(COPIES_MAX)]);
    framing::encode(&found, checkpoints::MESSAGE_BYTES_MAX).unwrap();
    let record = CheckpointRecord { checkpoint: made, keepers: vec![known; RECORD_KEEPERS_MAX] };
    record.sign(&key(9), &run_id, NOW.after(DAY)).unwrap();
    let asks = vec![renew; PLACES_MAX];
    let more = LeaseQuestion::Lease { run_id: run_id.clone(), host, asks, n_vacant: 1 };
    assert_eq!(more.check(&run_id), Err(LeaseRefusal::TooMany { got: PLACES_MAX as u32 + 1 }));
    assert_eq!(more.check("barn"), Err(LeaseRefusal::Unknown));
}

async fn asked(question: LeaseQuestion, answer: LeaseAnswer) -> Result<LeaseAnswer, LeaseAskError> {
    let (mut ours, mut theirs) = pair();
    let answering = async {
        assert_eq!(leases::receive(&mut theirs).await.unwrap(), Some(question.clone()));
        leases::reply(&mut theirs, &answer).await.unwrap();
        leases::receive(&mut theirs).await.unwrap()
    };
    let asking = async {
        let asker = key(9).public();
        let answered = leases::ask(&mut ours, &question, &asker).await;
        drop(ours);
        answered
    };
    let (answered, after) = futures::join!(asking, answering);
    assert_eq!(after, None, "the stream is closed");
    answered
}

#[tokio::test]
async fn a_host_believes_no_lease_that_is_not_its_own_or_not_granted() {
    let host = LeasingHost::new(4, []);
    let asks = vec![LeaseAsk::Claim(place())];
    let question = LeaseQuestion::Lease { run_id: "barn".into(), host, asks, n_vacant: 1 };
    let leased = |asked, vacant, n_frozen| {
        let frozen = vec![LayerId(2); n_frozen];
        LeaseAnswer::Leased { grantors: grantors(1), asked, vacant, copied: Vec::new(), frozen }
    };
    let answer = |asked, vacant| leased(asked, vacant, 1);
    // It claims the expert itself; what its backbone chooses may be a replica.
    let grant = LeaseGrant::sign(&key(1), "barn", ((place(), 0), key(9).public(), 5), EXPIRES).unwrap();
    let claimed = ExpertLease { copy: 0, grants: vec![grant], ..lease(1, 5) };
    let good = answer(vec![LeaseVerdict::Granted(claimed)], vec![lease(1, 5)]);
    assert_eq!(asked(question.clone(), good.clone()).await.unwrap(), good);
    let many_frozen = leased(vec![LeaseVerdict::Released], vec![], FROZEN_MAX);
    assert_eq!(asked(question.clone(), many_frozen.clone()).await.unwrap(), many_frozen);
    let elsewhere = ExpertLease { place: (LayerId(9), place().1), ..lease(1, 5) };
    let of_other = ExpertLease { holder: key(8).public(), ..lease(1, 5) };
    let forged = ExpertLease { term: 6, ..lease(1, 5) };
    for bad in [
        answer(vec![], vec![]),
        answer(vec![LeaseVerdict::Released; 2], vec![]),
        answer(vec![LeaseVerdict::Released], vec![lease(1, 5); 2]),
        answer(vec![LeaseVerdict::Granted(of_other.clone())], vec![]),
        answer(vec![LeaseVerdict::Released], vec![of_other]),
        answer(vec![LeaseVerdict::Granted(lease(1, 5))], vec![]),
        leased(vec![LeaseVerdict::Released], vec![], FROZEN_MAX + 1),
        LeaseAnswer::Voted(vec![]),
    ] {
        let refused = asked(question.clone(), bad).await;
        assert!(matches!(refused, Err(LeaseAskError::Unexpected)), "{refused:?}");
    }
    for bad in [elsewhere, forged] {
        let refused = asked(question.clone(), answer(vec![LeaseVerdict::Granted(bad)], vec![])).await;
        assert!(matches!(refused, Err(LeaseAskError::Lease(_))), "{refused:?}");
    }
    let refused = asked(question, LeaseAnswer::Refused(LeaseRefusal::Busy { for_ms: 5 })).await;
    assert!(matches!(refused, Err(LeaseAskError::Refused(LeaseRefusal::Busy { for_ms: 5 }))));
    // No more keepers and addresses than are asked.
    let question = LeaseQuestion::Keepers { run_id: "barn".into(), places: vec![place()] };
    let many = KnownHost { peer: key(1).public(), addresses: vec![vec![1]; 9] };
    let answer = LeaseAnswer::Keepers(vec![vec![many; 9]]);
    let LeaseAnswer::Keepers(keepers) = asked(question, answer).await.unwrap() else { panic!() };
    assert_eq!((keepers[0].len(), keepers[0][0].addresses.len()), (KEEPERS_MAX, HOST_ADDRESSES_MAX));
}

#[tokio::test]
async fn each_place_that_is_asked_about_has_its_answer() {
    let run_id = || "barn".to_owned();
    let holder = key(9).public();
    let vote = LeaseQuestion::Vote {
        run_id: run_id(),
        holder,
        host: LeasingHost::new(4, []),
        asks: vec![(LeaseAsk::Claim(place()), 5); 2],
    };
    let voted = |n| LeaseAnswer::Voted(vec![LeaseVerdict::Released; n]);
    let keepers = LeaseQuestion::Keepers { run_id: run_id(), places: vec![place(); 2] };
    let kept = |n| LeaseAnswer::Keepers(vec![vec![KnownHost::new(holder, [])]; n]);
    let holders = LeaseQuestion::Holders { run_id: run_id(), places: vec![place(); 2] };
    let held = |n| LeaseAnswer::Holders(vec![vec![CopyHolder { copy: 0, holder }]; n]);
    let answers: [(LeaseQuestion, &dyn Fn(usize) -> LeaseAnswer); 3] =
        [(vote, &voted), (keepers, &kept), (holders, &held)];
    for (question, answer) in answers {
        assert_eq!(asked(question.clone(), answer(2)).await.unwrap(), answer(2));
        for n in [0, 1, 3] {
            let refused = asked(question.clone(), answer(n)).await;
            assert!(matches!(refused, Err(LeaseAskError::Unexpected)), "{n} answers to {question:?}");
        }
    }
}

#[tokio::test]
async fn a_trainer_learns_which_host_has_a_place() {
    let host = vec![CopyHolder { copy: 1, holder: key(9).public() }];
    let places = vec![place(), (LayerId(7), place().1)];
    let many = vec![host[0]; usize::from(COPIES_MAX) + 1];
    let busy = LeaseAnswer::Refused(LeaseRefusal::Busy { for_ms: 5 });
    for (answer, want) in [
        (LeaseAnswer::Holders(vec![host.clone(), vec![]]), Some(vec![host.clone(), vec![]])),
        (LeaseAnswer::Holders(vec![host]), None),
        (LeaseAnswer::Holders(vec![many, vec![]]), None),
        (LeaseAnswer::Keepers(vec![vec![]; 2]), None),
        (busy, None),
    ] {
        let (mut ours, mut theirs) = pair();
        let answering = async {
            let question = LeaseQuestion::Holders { run_id: "barn".into(), places: places.clone() };
            assert_eq!(leases::receive(&mut theirs).await.unwrap(), Some(question));
            leases::reply(&mut theirs, &answer).await.unwrap();
        };
        let asking = leases::holders(&mut ours, "barn", places.clone());
        let (holders, ()) = futures::join!(asking, answering);
        assert_eq!(holders.ok(), want);
    }
}

#[test]
fn a_backbone_finds_its_own_grant_in_a_lease() {
    let mut lease = lease(2, 5);
    for (at, want) in [(1, Some(lease.grants[0])), (2, Some(lease.grants[1])), (3, None)] {
        assert_eq!(lease.grant_of(&key(at).public()), want.as_ref());
    }
    // No more grants are read than there may be.
    lease.grants = [vec![lease.grants[0]; GRANTORS_MAX], vec![lease.grants[1]]].concat();
    assert_eq!(lease.grant_of(&key(2).public()), None);
}

#[tokio::test]
async fn a_checkpoint_goes_to_a_keeper_and_from_it_to_the_next_host() {
    for n_bytes in [0, 1, 200_000] {
        let bytes: Arc<[u8]> = (0..n_bytes).map(|at| (at % 251) as u8).collect::<Vec<u8>>().into();
        let made = checkpoint(5, 300, &bytes);
        let (mut ours, mut theirs) = pair();
        let keeping = async {
            let question = checkpoints::receive(&mut theirs).await.unwrap().unwrap();
            assert_eq!(question.place("barn"), Some(place()));
            assert_eq!(question.place("shed"), None);
            let CheckpointQuestion::Offer { checkpoint, .. } = question else { panic!("{question:?}") };
            let transfer = checkpoint.transfer;
            let kept = checkpoints::take_offered(&mut theirs, transfer, 200_000).await.unwrap();
            checkpoints::reply(&mut theirs, &CheckpointAnswer::Kept).await.unwrap();
            let newest = checkpoints::receive(&mut theirs).await.unwrap().unwrap();
            assert!(matches!(newest, CheckpointQuestion::Newest { .. }));
            let found = CheckpointAnswer::Found(vec![checkpoint]);
            checkpoints::reply(&mut theirs, &found).await.unwrap();
            let get = checkpoints::receive(&mut theirs).await.unwrap().unwrap();
            assert!(matches!(get, CheckpointQuestion::Get { sha256, .. } if sha256 == transfer.sha256));
            checkpoints::send(&mut theirs, transfer, &kept.into()).await.unwrap();
        };
        let taking = async {
            let offered = checkpoints::offer(&mut ours, "barn", &made, &bytes).await.unwrap();
            assert_eq!(offered, OfferOutcome::Kept);
            let found = checkpoints::newest(&mut ours, "barn", place()).await.unwrap().remove(0);
            assert!(found.is_valid("barn", &grantors(1)));
            let mut partial = Partial::new(found.transfer, 200_000).unwrap();
            checkpoints::fetch(&mut ours, "barn", place(), &mut partial).await.unwrap()
        };
        let ((), taken) = futures::join!(keeping, taking);
        assert_eq!(taken[..], bytes[..]);
    }
}

#[tokio::test]
async fn a_checkpoint_that_is_not_wanted_or_not_kept_is_not_sent() {
    let bytes: Arc<[u8]> = vec![7; 100].into();
    let made = checkpoint(5, 300, &bytes);
    let refused = CheckpointAnswer::Refused(CheckpointRefusal::Full);
    for answer in [CheckpointAnswer::AlreadyKept, refused, CheckpointAnswer::Kept] {
        let (mut ours, mut theirs) = pair();
        let keeping = async {
            checkpoints::receive(&mut theirs).await.unwrap().unwrap();
            checkpoints::reply(&mut theirs, &answer).await.unwrap();
        };
        let (offered, ()) = futures::join!(checkpoints::offer(&mut ours, "barn", &made, &bytes), keeping);
        match &answer {
            CheckpointAnswer::AlreadyKept => assert_eq!(offered.unwrap(), OfferOutcome::AlreadyKept),
            CheckpointAnswer::Refused(_) => {
                assert!(matches!(offered, Err(CheckpointError::Refused(CheckpointRefusal::Full))));
            }
            _ => assert!(matches!(offered, Err(CheckpointError::Unexpected))),
        }
    }
    // Another expert's, and other bytes than were asked for.
    let other = (LayerId(7), place().1);
    for (found, transfer) in [(made.clone(), Transfer::of(b"others"))] {
        let (mut ours, mut theirs) = pair();
        let keeping = async {
            checkpoints::receive(&mut theirs).await.unwrap().unwrap();
            checkpoints::reply(&mut theirs, &CheckpointAnswer::Found(vec![found])).await.unwrap();
            checkpoints::receive(&mut theirs).await.unwrap().unwrap();
            checkpoints::reply(&mut theirs, &CheckpointAnswer::Sent(transfer)).await.unwrap();
        };
        let taking = async {
            let newest = checkpoints::newest(&mut ours, "barn", other).await;
            assert!(matches!(newest, Err(CheckpointError::Unexpected)));
            let mut partial = Partial::new(made.transfer, 1000).unwrap();
            let fetched = checkpoints::fetch(&mut ours, "barn", place(), &mut partial).await;
            assert!(matches!(fetched, Err(CheckpointError::Unexpected)));
        };
        futures::join!(keeping, taking);
    }
}

#[test]
fn nobody_but_a_holder_of_a_lease_publishes_a_checkpoint() {
    let made = checkpoint(5, 300, b"bytes");
    let keepers = vec![KnownHost::new(key(7).public(), [vec![6, 7]])];
    let record = CheckpointRecord { checkpoint: made.clone(), keepers };
    let signed = record.sign(&key(9), "barn", NOW.after(DAY)).unwrap();
    assert_eq!(signed.check(NOW, DAY), Ok(()));
    let read = CheckpointRecord::read(&signed).unwrap();
    assert_eq!(read, record);
    assert!(read.verify("barn", place(), &grantors(1)) && read.verify("barn", place(), &grantors(1)));
    assert!(!read.verify("shed", place(), &grantors(1)));
    assert!(!read.verify("barn", (LayerId(7), place().1), &grantors(1)));
    assert!(!read.verify("barn", place(), &grantors(3)), "a minority has granted it");
    record.sign(&key(8), "barn", NOW.after(DAY)).unwrap_err();
    let more = ExpertCheckpoint { n_steps: 301, ..made.clone() };
    assert!(made.is_valid("barn", &grantors(1)) && !more.is_valid("barn", &grantors(1)));
    let other_bytes = ExpertCheckpoint { transfer: Transfer::of(b"others"), ..made.clone() };
    assert!(!other_bytes.is_valid("barn", &grantors(1)), "a keeper gives other bytes");
    let mut stolen = made.clone();
    stolen.lease.holder = key(8).public();
    assert!(!stolen.is_valid("barn", &grantors(1)));
    // A record under another key, with too many keepers, or cut.
    let with = |change: &dyn Fn(&mut Record)| {
        let mut record = signed.clone();
        change(&mut record);
        CheckpointRecord::read(&record)
    };
    assert_eq!(with(&|record| record.subkey.as_mut().unwrap().owner = Some(key(8).public())), None);
    assert_eq!(with(&|record| record.subkey = None), None);
    assert_eq!(with(&|record| record.value.truncate(9)), None);
    let many = vec![KnownHost::new(key(7).public(), []); RECORD_KEEPERS_MAX + 1];
    let many = CheckpointRecord { checkpoint: made.clone(), keepers: many };
    let many = many.sign(&key(9), "barn", NOW.after(DAY)).unwrap();
    assert_eq!(CheckpointRecord::read(&many), None);
    assert_eq!(made.version(), CheckpointVersion { term: 5, n_steps: 300 });
    assert!(made.version() < CheckpointVersion { term: 5, n_steps: 301 });
    assert!(made.version() < CheckpointVersion { term: 6, n_steps: 0 });
}

#[test]
fn a_record_of_a_checkpoint_keeps_within_its_limits() {
    let is_read = |n_keepers: usize, n_addresses: usize, n_bytes: usize| {
        let keeper = KnownHost { peer: key(7).public(), addresses: vec![vec![4; n_bytes]; n_addresses] };
        let keepers = vec![keeper; n_keepers];
        let record = CheckpointRecord { checkpoint: checkpoint(5, 300, b"bytes"), keepers };
        let signed = record.sign(&key(9), "barn", NOW.after(DAY)).unwrap();
        CheckpointRecord::read(&signed).is_some_and(|read| read == record)
    };
    assert!(is_read(RECORD_KEEPERS_MAX, HOST_ADDRESSES_MAX, HOST_ADDRESS_BYTES_MAX));
    assert!(!is_read(RECORD_KEEPERS_MAX + 1, 1, 1));
    assert!(!is_read(1, HOST_ADDRESSES_MAX + 1, 1));
    assert!(!is_read(1, 1, HOST_ADDRESS_BYTES_MAX + 1));
}

#[test]
fn a_checkpoint_of_more_steps_than_any_host_makes_is_not_valid() {
    let is_valid = |n_steps| checkpoint(5, n_steps, b"bytes").is_valid("barn", &grantors(1));
    assert!(is_valid(STEPS_MAX) && !is_valid(STEPS_MAX + 1));
}

#[test]
fn a_transfer_has_the_time_of_its_bytes_and_no_more_than_half_an_hour() {
    assert_eq!(transfer_time(0), TRANSFER_GRACE);
    assert_eq!(transfer_time(BYTES_PER_SECOND_MIN * 10), TRANSFER_GRACE + Duration::from_secs(10));
    assert_eq!(transfer_time(u64::MAX), TRANSFER_TIMEOUT);
}
