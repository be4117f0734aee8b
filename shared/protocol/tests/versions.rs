//! Builds of different age: recorded messages of the previous version, and the protocol versions of each build.

use barnraise_protocol::run::{self, BackboneToContributor};
use barnraise_protocol::{
    ConversationError, access, average, contribute, evidence, framing, gradient, matchmaking, model, reduce,
    shard, state,
};
use futures::{AsyncReadExt, AsyncWriteExt};
use tokio_util::compat::TokioAsyncReadCompatExt;

/// The conversations of a contributor by the version of `run` that stands for them. When you raise one of these, raise
/// that of `run` too, add the previous name to `OLDER_PROTOCOLS`, and add a line here. A peer of the previous build then
/// learns at once that it is too old, instead of computing contributions that are refused.
const SPOKEN: [(&str, [&str; 6]); 14] = [
    (
        "/barnraise/run/6",
        [
            "/barnraise/access/1",
            "/barnraise/contribute/3",
            "/barnraise/evidence/3",
            "/barnraise/gradient/5",
            "/barnraise/shard/1",
            "/barnraise/state/1",
        ],
    ),
    (
        "/barnraise/run/7",
        [
            "/barnraise/access/1",
            "/barnraise/contribute/4",
            "/barnraise/evidence/4",
            "/barnraise/gradient/6",
            "/barnraise/shard/2",
            "/barnraise/state/2",
        ],
    ),
    (
        "/barnraise/run/8",
        [
            "/barnraise/access/1",
            "/barnraise/contribute/4",
            "/barnraise/evidence/5",
            "/barnraise/gradient/6",
            "/barnraise/shard/2",
            "/barnraise/state/2",
        ],
    ),
    (
        "/barnraise/run/9",
        [
            "/barnraise/access/1",
            "/barnraise/contribute/4",
            "/barnraise/evidence/6",
            "/barnraise/gradient/7",
            "/barnraise/shard/3",
            "/barnraise/state/3",
        ],
    ),
    (
        "/barnraise/run/10",
        [
            "/barnraise/access/1",
            "/barnraise/contribute/4",
            "/barnraise/evidence/7",
            "/barnraise/gradient/7",
            "/barnraise/shard/3",
            "/barnraise/state/3",
        ],
    ),
    // A scheme more, and pictures that are changed.
    (
        "/barnraise/run/12",
        [
            "/barnraise/access/1",
            "/barnraise/contribute/4",
            "/barnraise/evidence/9",
            "/barnraise/gradient/7",
            "/barnraise/shard/3",
            "/barnraise/state/3",
        ],
    ),
    // Tokens of three bytes.
    (
        "/barnraise/run/13",
        [
            "/barnraise/access/1",
            "/barnraise/contribute/4",
            "/barnraise/evidence/10",
            "/barnraise/gradient/7",
            "/barnraise/shard/3",
            "/barnraise/state/3",
        ],
    ),
    // Tokens say who may host experts, and data may be a stream.
    (
        "/barnraise/run/14",
        [
            "/barnraise/access/2",
            "/barnraise/contribute/4",
            "/barnraise/evidence/11",
            "/barnraise/gradient/7",
            "/barnraise/shard/4",
            "/barnraise/state/3",
        ],
    ),
    // A small window of a stream has a grace of its own.
    (
        "/barnraise/run/15",
        [
            "/barnraise/access/2",
            "/barnraise/contribute/4",
            "/barnraise/evidence/11",
            "/barnraise/gradient/7",
            "/barnraise/shard/5",
            "/barnraise/state/3",
        ],
    ),
    (
        "/barnraise/run/16",
        [
            "/barnraise/access/2",
            "/barnraise/contribute/4",
            "/barnraise/evidence/12",
            "/barnraise/gradient/7",
            "/barnraise/shard/6",
            "/barnraise/state/3",
        ],
    ),
    // Evidence is also of answers of experts.
    (
        "/barnraise/run/17",
        [
            "/barnraise/access/2",
            "/barnraise/contribute/4",
            "/barnraise/evidence/13",
            "/barnraise/gradient/7",
            "/barnraise/shard/6",
            "/barnraise/state/3",
        ],
    ),
    // The lease in evidence says which copy of an expert.
    (
        "/barnraise/run/18",
        [
            "/barnraise/access/2",
            "/barnraise/contribute/4",
            "/barnraise/evidence/14",
            "/barnraise/gradient/7",
            "/barnraise/shard/6",
            "/barnraise/state/3",
        ],
    ),
    // The authority signs what it describes.
    (
        "/barnraise/run/19",
        [
            "/barnraise/access/2",
            "/barnraise/contribute/4",
            "/barnraise/evidence/14",
            "/barnraise/gradient/7",
            "/barnraise/shard/6",
            "/barnraise/state/3",
        ],
    ),
    // A report says of which contribution it is.
    (
        "/barnraise/run/20",
        [
            "/barnraise/access/2",
            "/barnraise/contribute/5",
            "/barnraise/evidence/14",
            "/barnraise/gradient/7",
            "/barnraise/shard/6",
            "/barnraise/state/3",
        ],
    ),
];

#[test]
fn the_version_of_a_run_stands_for_all_conversations_of_a_contributor() {
    let now = [
        access::PROTOCOL,
        contribute::PROTOCOL,
        evidence::PROTOCOL,
        gradient::PROTOCOL,
        shard::PROTOCOL,
        state::PROTOCOL,
    ];
    let (newest, before) = SPOKEN.split_last().unwrap();
    assert_eq!((run::PROTOCOL, now), *newest, "raise the version of `run` with that of any of these");
    assert_eq!(run::OLDER_PROTOCOLS.last(), before.last().map(|(run, _)| run));
    assert!(!run::OLDER_PROTOCOLS.contains(&run::PROTOCOL));
}

/// The conversations of backbones among each other by the version of `matchmaking`, by which they begin. Who raises one of
/// these raises that with it: otherwise backbones of two builds would agree on an averaging that fails each time.
const AMONG_BACKBONES: (&str, [&str; 3]) =
    ("/barnraise/matchmaking/7", ["/barnraise/average/4", "/barnraise/model/4", "/barnraise/reduce/2"]);

#[test]
fn the_version_of_matchmaking_stands_for_all_conversations_of_backbones() {
    let now = [average::PROTOCOL, model::PROTOCOL, reduce::PROTOCOL];
    assert_eq!((matchmaking::PROTOCOL, now), AMONG_BACKBONES, "raise `matchmaking` with any of these");
}

/// Recorded frames of the previous versions: run/7, gradient/4, evidence/2, contribute/3, state/1, average/2, model/1,
/// reduce/1, matchmaking/3 and matchmaking/4. They have other protocol names, so they are not read. If they were, none would decode as another message.
#[test]
fn messages_of_the_previous_version_never_decode_as_others() {
    let hash = "22".repeat(32);
    let offer = format!("000102030000803f0402ac02{hash}");
    let commitment = format!("01{hash}02{hash}06{}", "33".repeat(64));
    let unread = |what: &str, payload: &str, is_read: fn(&[u8]) -> bool| {
        let payload: Vec<u8> = (0..payload.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&payload[at..at + 2], 16).unwrap())
            .collect();
        let length = u32::try_from(payload.len()).unwrap().to_le_bytes();
        let frame = [&[1][..], &length, &payload].concat();
        assert!(!is_read(&frame), "{what} of the last version is read");
    };
    const MAX: usize = 4096;
    for (what, payload) in
        [("an offer", format!("{offer}00")), ("an offer with a commitment", format!("{offer}{commitment}"))]
    {
        unread(what, &payload, |frame| {
            framing::decode::<gradient::ContributorToBackbone>(frame, MAX).is_ok()
        });
    }
    let (key, entry) = ("cd".repeat(32), format!("0528{}", "ab".repeat(32)));
    let data = format!("0164001c1c0101016101{entry}{entry}d00f");
    let description = format!("000172017401700101ac02010a{data}00800840804001000000000000{key}");
    unread("a description", &description, |frame| {
        framing::decode::<run::BackboneToContributor>(frame, MAX).is_ok()
    });
    unread("the request for a commitment", "03", |frame| {
        framing::decode::<gradient::BackboneToContributor>(frame, MAX).is_ok()
    });
    unread("a pause", "0415746865207275", |frame| {
        framing::decode::<contribute::BackboneToContributor>(frame, MAX).is_ok()
    });
    unread("parameters that are gone", "0100", |frame| {
        framing::decode::<state::BackboneToContributor>(frame, MAX).is_ok()
    });
    unread("who joins a part", &format!("{hash}ac0201"), |frame| {
        framing::decode::<average::Join>(frame, MAX).is_ok()
    });
    unread("who is in a mean", "0205400000ac02", |frame| {
        framing::decode::<average::ReducerToMember>(frame, MAX).is_ok()
    });
    unread("a refused link", "01026e6f", |frame| {
        framing::decode::<matchmaking::HelloResponse>(frame, MAX).is_ok()
    });
    unread("a refused reducer", "01026e6f", |frame| {
        framing::decode::<reduce::BackboneToReducer>(frame, MAX).is_ok()
    });
    unread("a refused model", "03026e6f", |frame| {
        framing::decode::<model::ModelResponse>(frame, MAX).is_ok()
    });
    unread("a proposal", &format!("01ac0207{hash}090102010205ac02010103ac02ac020000003f"), |frame| {
        framing::decode::<matchmaking::MatchmakingMessage>(frame, MAX).is_ok()
    });
}

/// The question of a peer of the version before this one, and the answer to it, byte by byte.
#[tokio::test]
async fn a_peer_of_the_last_version_learns_that_the_run_went_on() {
    const RECORDED_QUESTION: [u8; 6] = [1, 1, 0, 0, 0, 0];
    let (a, b) = tokio::io::duplex(1024);
    let (mut a, mut b) = (a.compat(), b.compat());
    let asking = async {
        b.write_all(&RECORDED_QUESTION).await.unwrap();
        let mut answer = Vec::new();
        b.read_to_end(&mut answer).await.unwrap();
        answer
    };
    let (told, answer) = futures::join!(run::answer_older_version(&mut a), asking);
    told.unwrap();
    assert_eq!(answer, [&[1, 19, 0, 0, 0, 2, 17][..], b"/barnraise/run/20"].concat());
}

/// The bytes with which a backbone of the version after this one will answer a peer of this one.
#[tokio::test]
async fn a_peer_of_this_version_understands_that_the_run_went_on() {
    let frame = [&[1, 19, 0, 0, 0, 2, 17][..], b"/barnraise/run/20"].concat();
    let newer = BackboneToContributor::Newer { speaks: "/barnraise/run/20".into() };
    assert_eq!(framing::encode(&newer, run::MESSAGE_BYTES_MAX).unwrap(), frame);
    for (answer, named) in [
        (newer, "/barnraise/run/20"),
        (BackboneToContributor::Newer { speaks: "<b>".repeat(1000) }, "another one"),
    ] {
        let (a, b) = tokio::io::duplex(8192);
        let (mut a, mut b) = (a.compat(), b.compat());
        let answering = async {
            let run::ContributorToBackbone::Describe =
                framing::read(&mut a, run::REQUEST_BYTES_MAX).await.unwrap();
            framing::write(&mut a, &answer, run::MESSAGE_BYTES_MAX).await.unwrap();
        };
        let ((), heard) = futures::join!(answering, run::describe(&mut b));
        let Err(ConversationError::Older(versions)) = heard else { panic!("{heard:?}") };
        assert_eq!((&versions.ours[..], &versions.theirs[..]), (run::PROTOCOL, named));
        let error = versions.to_string();
        for part in ["this page or program is older than the run", run::PROTOCOL, named] {
            assert!(error.contains(part), "{part} is missing in: {error}");
        }
    }
    // As this one answers once its own name is one of before.
    let (a, b) = tokio::io::duplex(1024);
    let (mut a, mut b) = (a.compat(), b.compat());
    let (told, heard) = futures::join!(run::answer_older_version(&mut a), run::describe(&mut b));
    told.unwrap();
    assert!(matches!(heard, Err(ConversationError::Older(_))), "{heard:?}");
}
