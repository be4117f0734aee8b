//! The conversation of sampled runs: golden bytes, mutated bytes, and what a peer gets that keeps to it or does not.

use std::sync::Arc;

use barnraise_protocol::access::{AccessToken, Claims, KeyPair, TokenId, UnixTime};
use barnraise_protocol::bulk::Transfer;
use barnraise_protocol::framing;
use barnraise_protocol::sampled::{
    self, AcceptorToDialler, ActivityProof, ActivityToken, Aggregates, DiallerToAcceptor, JoinedEvent,
    MESSAGE_BYTES_MAX, Membership, MembershipEvent, ModelOffer, ModelSketch, OfferTurn, PeerPrefix, PushEnd,
    SKETCH_VALUES, SampledRoles, SampledTask, View, ViewDigest,
};
use barnraise_protocol::{ConversationError, Sha256Hash};
use futures::AsyncWriteExt;
use tokio_util::compat::TokioAsyncReadCompatExt;

use crate::golden::{self, Message, hex};

const RUN: Sha256Hash = Sha256Hash([0xcd; 32]);

fn check(message: &impl Message, golden: &str) {
    golden::check(message, MESSAGE_BYTES_MAX, golden);
}

fn key() -> KeyPair {
    KeyPair::from_seed(&[1; 32])
}

fn joined() -> Membership {
    let roles = SampledRoles { trains: true, aggregates: Aggregates::Never };
    let anchor = ActivityToken([0x11; 16]);
    let event = JoinedEvent { round: 300, anchor, roles, addresses: vec![vec![4, 127, 0, 0, 1]] };
    Membership::sign(&key(), RUN, 2, MembershipEvent::Joined(event), None).unwrap()
}

fn view() -> View {
    let peer = PeerPrefix::of(&key().public());
    let activity = vec![ActivityProof { peer, round: 301, token: ActivityToken([0x22; 16]) }];
    View { memberships: vec![joined()], activity }
}

#[test]
fn golden_bytes() {
    let peer = hex(&key().public().0);
    let signature = "197801d4a3245f3863d130b3426dfeeda950eedb2f05fb51e10344eb9c979b3e\
                     c8a1082db356368fc5ed6379dc042d82c999821600ae5776bb54f0b328f85e00";
    let membership = format!("{peer}0200ac02{}01000105047f00000100{signature}", "11".repeat(16));
    let of_view = format!("01{membership}01{}ad02{}", &peer[..8], "22".repeat(16));
    check(&DiallerToAcceptor::Ping { round: 300 }, "00ac02");
    check(&AcceptorToDialler::Pong { round: 300 }, "00ac02");
    check(&AcceptorToDialler::Declined, "03");
    check(&AcceptorToDialler::Busy, "04");
    check(&AcceptorToDialler::Compare { seed: 300 }, "05ac02");
    check(&AcceptorToDialler::Pull, "06");
    let sketch = ModelSketch::try_from(vec![1.0; SKETCH_VALUES]).unwrap();
    check(&DiallerToAcceptor::Sketch(sketch), &format!("048001{}", "0000803f".repeat(SKETCH_VALUES)));
    let digest = ViewDigest::of_everything();
    check(&AcceptorToDialler::Wanted(digest.clone()), "020001ff");
    let transfer = Transfer { n_bytes: 300, sha256: RUN };
    for (task, golden) in
        [(SampledTask::Train { round: 5 }, "0005"), (SampledTask::Aggregate { round: 5 }, "0105")]
    {
        let offer = DiallerToAcceptor::Offer(ModelOffer { task, transfer });
        check(&offer, &format!("02{golden}ac02{}", "cd".repeat(32)));
    }
    check(&DiallerToAcceptor::View(view()), &format!("03{of_view}"));
    check(&AcceptorToDialler::View(view()), &format!("01{of_view}"));
    check(&DiallerToAcceptor::Meet(view(), digest), &format!("01{of_view}0001ff"));
    let left = Membership::sign(&key(), RUN, 3, MembershipEvent::Left, None).unwrap();
    let signature = "8e1a0d07bcea443077f6e4acbbeaaba362bd3aa76d9f391fa42ae0165be9bec2\
                     a758b9d4a644f1b3eb7507400074491dbf11e7ac9840cfeda851c0590928ed08";
    check(&left, &format!("{peer}030100{signature}"));

    for (aggregates, golden) in
        [(Aggregates::Never, "0100"), (Aggregates::Dialled, "0101"), (Aggregates::Relayed, "0102")]
    {
        check(&SampledRoles { trains: true, aggregates }, golden);
    }

    // In a run that is not open, with what the authority signed.
    let claims = Claims {
        run_id: "barn".into(),
        user: "alice".into(),
        peer: key().public(),
        expires_at: UnixTime(1000),
        token_id: TokenId([0x33; 16]),
        may_host: false,
    };
    let token = AccessToken::sign(&KeyPair::from_seed(&[2; 32]), claims).unwrap();
    let approved = Membership::sign(&key(), RUN, 4, MembershipEvent::Left, Some(Box::new(token))).unwrap();
    let of_authority = "a4c1e1a0125ddee39f31868242f3063702d122c23dc3d64f215eeae55c4f5033\
                        c382b12000225b8ad3d013ab5cbaf192d9b72cb41ab8574352cd1e65af201001";
    let token = format!("046261726e05616c696365{peer}e807{}00{of_authority}", "33".repeat(16));
    let signature = "04d1280b901a91f23a1ab790b35f5ea8ce7b5e506629f5c130f6254d8ac59fa7\
                     f3d833f757e9ce5186b0094264e33974ebbe63fe76604f6df411d3b3c602ee01";
    check(&approved, &format!("{peer}040101{token}{signature}"));
}

/// A dialler that pushes `bytes`, and an acceptor that wants them, of so many bytes. `turns` come after the view and the sketch.
async fn pushed(
    bytes: Vec<u8>,
    n_bytes: u64,
    turns: [Option<OfferTurn>; 2],
) -> (Result<PushEnd, ConversationError>, Result<Option<Vec<u8>>, ConversationError>) {
    let (dialler, acceptor) = tokio::io::duplex(1 << 16);
    let (mut dialler, mut acceptor) = (dialler.compat(), acceptor.compat());
    let pushing = async {
        let transfer = Transfer::of(&bytes);
        let task = SampledTask::Train { round: 1 };
        let bytes: Arc<[u8]> = bytes.into();
        let sketch = async |seed| Ok(ModelSketch::of(&[2.0], seed));
        let pushed = sampled::push(&mut dialler, task, (transfer, &bytes), async |_| view(), sketch).await;
        // As a driver does in any case.
        let _ = dialler.close().await;
        pushed
    };
    let taking = async {
        let Some(DiallerToAcceptor::Offer(offer)) = sampled::next_request(&mut acceptor).await? else {
            panic!("no offer came")
        };
        sampled::respond(&mut acceptor, &AcceptorToDialler::Wanted(ViewDigest::default())).await?;
        let (mut seen, mut told) = (None, None);
        let [after_view, after_sketch] = turns;
        let on_view = async |view| {
            seen = Some(view);
            after_view
        };
        let on_sketch = async |sketch| {
            told = Some(sketch);
            after_sketch
        };
        let taken = sampled::receive(&mut acceptor, offer.transfer, n_bytes, on_view, on_sketch).await;
        drop(acceptor);
        if taken.is_ok() {
            assert_eq!(seen, Some(view()));
        }
        let compared = matches!(after_view, Some(OfferTurn::Compare { seed: 7 }));
        assert_eq!(told, compared.then(|| ModelSketch::of(&[2.0], 7)));
        taken
    };
    tokio::join!(pushing, taking)
}

#[tokio::test]
async fn a_model_is_pushed_where_it_is_wanted_and_has_the_length_of_the_run() {
    let bytes: Vec<u8> = (0..200_000u32).map(|at| at as u8).collect();
    let (compare, pull) = (Some(OfferTurn::Compare { seed: 7 }), Some(OfferTurn::Pull));
    for turns in [[pull, None], [compare, pull]] {
        let (sent, received) = pushed(bytes.clone(), 200_000, turns).await;
        assert_eq!(sent.unwrap(), PushEnd::Delivered);
        assert_eq!(received.unwrap(), Some(bytes.clone()));
    }
    for (refusal, end) in [(OfferTurn::Declined, PushEnd::Declined), (OfferTurn::Busy, PushEnd::Busy)] {
        for turns in [[Some(refusal), None], [compare, Some(refusal)]] {
            let (sent, received) = pushed(bytes.clone(), 200_000, turns).await;
            assert_eq!((sent.unwrap(), received.unwrap()), (end, None));
        }
    }
    let (sent, received) = pushed(bytes.clone(), 100, [pull, None]).await;
    assert!(
        matches!(received, Err(ConversationError::Mismatch { want: 100, got: 200_000, .. })),
        "{received:?}"
    );
    sent.unwrap_err();
    for turns in [[None, None], [compare, None]] {
        let (sent, received) = pushed(bytes.clone(), 200_000, turns).await;
        assert!(matches!(received, Err(ConversationError::Unexpected(_))), "{received:?}");
        sent.unwrap_err();
    }
    let (sent, received) = pushed(bytes, 200_000, [compare, compare]).await;
    assert_eq!(received.unwrap(), None);
    sent.unwrap_err();
}

async fn no_sketch(_: u64) -> Result<ModelSketch, ConversationError> {
    panic!("nobody asked for a sketch")
}

#[tokio::test]
async fn a_peer_is_asked_met_and_declines() {
    let (dialler, acceptor) = tokio::io::duplex(4096);
    let (mut dialler, mut acceptor) = (dialler.compat(), acceptor.compat());
    let asking = async {
        sampled::ping(&mut dialler, 4).await.unwrap();
        assert!(sampled::ping(&mut dialler, 5).await.is_err(), "a pong of another round is none");
        let met = sampled::meet(&mut dialler, view(), ViewDigest::of_everything()).await.unwrap();
        assert_eq!(met, view());
        let bytes: Arc<[u8]> = vec![1, 2].into();
        let transfer = Transfer::of(&bytes);
        let never = async |_| panic!("nobody asked for a view");
        let task = SampledTask::Aggregate { round: 2 };
        let pushed = sampled::push(&mut dialler, task, (transfer, &bytes), never, no_sketch).await;
        assert_eq!(pushed.unwrap(), PushEnd::Declined);
        dialler.close().await.unwrap();
    };
    let answering = async {
        let mut n_pings = 0;
        while let Some(request) = sampled::next_request(&mut acceptor).await.unwrap() {
            let response = match request {
                DiallerToAcceptor::Ping { .. } => {
                    n_pings += 1;
                    AcceptorToDialler::Pong { round: 4 }
                }
                DiallerToAcceptor::Meet(met, _) => {
                    assert_eq!(met, view());
                    AcceptorToDialler::View(view())
                }
                DiallerToAcceptor::Offer(_) => AcceptorToDialler::Declined,
                DiallerToAcceptor::View(_) | DiallerToAcceptor::Sketch(_) => panic!("it was not asked for"),
            };
            sampled::respond(&mut acceptor, &response).await.unwrap();
        }
        assert_eq!(n_pings, 2);
    };
    tokio::join!(asking, answering);
}

#[tokio::test]
async fn a_model_that_is_not_taken_is_declined_for_good_or_for_now() {
    for (answer, want) in [
        (AcceptorToDialler::Declined, Some(PushEnd::Declined)),
        (AcceptorToDialler::Busy, Some(PushEnd::Busy)),
        (AcceptorToDialler::Pong { round: 1 }, None),
    ] {
        let (dialler, acceptor) = tokio::io::duplex(4096);
        let (mut dialler, mut acceptor) = (dialler.compat(), acceptor.compat());
        let bytes: Arc<[u8]> = vec![1, 2].into();
        let task = SampledTask::Train { round: 2 };
        let never = async |_| panic!("nobody asked for a view");
        let pushing = sampled::push(&mut dialler, task, (Transfer::of(&bytes), &bytes), never, no_sketch);
        let answering = async {
            sampled::next_request(&mut acceptor).await.unwrap();
            sampled::respond(&mut acceptor, &answer).await.unwrap();
        };
        let (pushed, ()) = tokio::join!(pushing, answering);
        assert_eq!(pushed.ok(), want);
    }
}

#[test]
fn a_task_is_of_a_round() {
    for task in [SampledTask::Train { round: 5 }, SampledTask::Aggregate { round: 5 }] {
        assert_eq!(task.round(), 5, "{task:?}");
    }
}

#[tokio::test]
async fn a_view_or_a_sketch_that_nobody_asked_for_is_refused() {
    for message in [DiallerToAcceptor::View(view()), DiallerToAcceptor::Sketch(ModelSketch::of(&[1.0], 1))] {
        let (dialler, acceptor) = tokio::io::duplex(4096);
        let (mut dialler, mut acceptor) = (dialler.compat(), acceptor.compat());
        framing::write(&mut dialler, &message, MESSAGE_BYTES_MAX).await.unwrap();
        let next = sampled::next_request(&mut acceptor).await;
        assert!(matches!(next, Err(ConversationError::Unexpected(_))));
    }
}
