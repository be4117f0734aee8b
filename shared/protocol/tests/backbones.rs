//! Conversations among backbones and with reducers: both sides against each other, and refusals.

use barnraise_protocol::average::{self, ChunkError, Join, MemberSet, ReducerToMember, WINDOW_CHUNKS_MAX};
use barnraise_protocol::codec::TensorCodec;
use barnraise_protocol::matchmaking::{
    self, Hello, HelloRefusal, REDUCER_ADDRESS_BYTES_MAX, REDUCER_ADDRESSES_MAX, Reducer, ReducerError,
};
use barnraise_protocol::reduce::OfferRefusal;
use barnraise_protocol::{ConversationError, RefusalReason, Sha256Hash, framing, reduce};
use tokio_util::compat::{Compat, TokioAsyncReadCompatExt};

type MemoryStream = Compat<tokio::io::DuplexStream>;

fn pair() -> (MemoryStream, MemoryStream) {
    let (a, b) = tokio::io::duplex(8 * 1024);
    (a.compat(), b.compat())
}

#[tokio::test]
async fn a_refused_aggregator_gets_the_reason() {
    let hello = Hello { run_id: "r".into(), recipe: Sha256Hash([3; 32]) };
    let refusal = HelloRefusal::OtherRun { here: RefusalReason::of("here"), asked: RefusalReason::of("r") };
    for is_welcome in [true, false] {
        let (mut a, mut b) = pair();
        let check = |got: &Hello| {
            assert_eq!(got, &hello);
            if is_welcome { Ok(()) } else { Err(refusal.clone()) }
        };
        let (heard, told) =
            futures::join!(matchmaking::introduce(&mut a, &hello), matchmaking::accept(&mut b, check));
        for ended in [heard, told] {
            match is_welcome {
                true => ended.unwrap(),
                false => {
                    let error = ended.unwrap_err();
                    assert_eq!(error.to_string(), "the run here is `here`, not `r`");
                    assert!(matches!(error, ConversationError::Hello(got) if got == refusal));
                }
            }
        }
    }
}

#[tokio::test]
async fn a_refused_reducer_gets_the_reason() {
    let addresses = Vec::new();
    let reducer = Reducer { peer: vec![1], download_bytes_per_s: 1e6, upload_bytes_per_s: 1e6, addresses };
    let offer = |upload_bytes_per_s| reduce::Offer {
        run_id: "r".into(),
        reducer: Reducer { upload_bytes_per_s, ..reducer.clone() },
    };
    for (offer, refused) in [
        (offer(1e6), None),
        (offer(1e6), Some((OfferRefusal::OtherPeer, "it offers another peer than itself"))),
        (
            offer(0.0),
            Some((
                OfferRefusal::Invalid(ReducerError::Speed(0.0)),
                "a speed of 0 bytes per second came, one above 0 is wanted",
            )),
        ),
    ] {
        let (mut a, mut b) = pair();
        let check = |_: &reduce::Offer| refused.clone().map_or(Ok(()), |(refusal, _)| Err(refusal));
        let (heard, told) = futures::join!(reduce::offer(&mut a, &offer), reduce::accept(&mut b, check));
        match refused {
            None => {
                heard.unwrap();
                assert_eq!(told.unwrap(), offer);
            }
            Some((refusal, sentence)) => {
                for error in [heard.unwrap_err(), told.unwrap_err()] {
                    assert_eq!(error.to_string(), sentence);
                    assert!(matches!(error, ConversationError::Offer(got) if got == refusal));
                }
            }
        }
    }
    // A message before the answer is an error.
    let (mut a, mut b) = pair();
    let offer = offer(1e6);
    let early = framing::write(&mut b, &reduce::BackboneToReducer::KeepAlive, 1024);
    let (heard, written) = futures::join!(reduce::offer(&mut a, &offer), early);
    written.unwrap();
    assert!(matches!(heard, Err(ConversationError::Unexpected(_))));
}

#[test]
fn a_reducer_has_few_and_short_addresses() {
    let check = |n_addresses: usize, n_bytes: usize| {
        let addresses = vec![vec![4; n_bytes]; n_addresses];
        Reducer { peer: vec![1], download_bytes_per_s: 1e6, upload_bytes_per_s: 1e6, addresses }.check()
    };
    assert_eq!(check(REDUCER_ADDRESSES_MAX, REDUCER_ADDRESS_BYTES_MAX), Ok(()));
    assert_eq!(check(REDUCER_ADDRESSES_MAX + 1, 1), Err(ReducerError::Addresses(5)));
    assert_eq!(check(1, REDUCER_ADDRESS_BYTES_MAX + 1), Err(ReducerError::AddressBytes(129)));
}

#[tokio::test]
async fn a_member_joins_with_a_window_that_there_can_be() {
    let group = Sha256Hash([1; 32]);
    let join =
        Join { group, part: 2, attempt: 1, n_samples: 9, behind: MemberSet::default(), is_whole: true };
    let answered = async |answer: ReducerToMember| {
        let (mut a, mut b) = pair();
        let reducer = async {
            let got: Join = framing::read(&mut b, average::MESSAGE_BYTES_MAX).await.unwrap();
            assert_eq!(got, join);
            framing::write(&mut b, &answer, average::MESSAGE_BYTES_MAX).await.unwrap();
        };
        let (joined, ()) = futures::join!(average::join(&mut a, join), reducer);
        joined
    };
    for window_chunks in [1, 2, WINDOW_CHUNKS_MAX] {
        assert_eq!(answered(ReducerToMember::Granted { window_chunks }).await.unwrap(), window_chunks);
    }
    for window_chunks in [0, WINDOW_CHUNKS_MAX + 1, u32::MAX] {
        assert!(answered(ReducerToMember::Granted { window_chunks }).await.is_err(), "{window_chunks}");
    }
    let refused = answered(ReducerToMember::Refused(average::JoinRefusal::NotAMember)).await.unwrap_err();
    assert_eq!(refused.to_string(), "this peer is not a member of the group");
}

#[tokio::test]
async fn values_travel_chunk_by_chunk_and_only_in_their_place() {
    let values = [1.0, -0.5, 3.25];
    let mut packed = vec![9; 100];
    average::pack_chunk(5, &values, TensorCodec::F32, &mut packed).unwrap();
    assert_eq!(average::encoded(&packed), TensorCodec::F32.encode(&values).unwrap());
    let read = async |index: u32, codec: TensorCodec, sent: &[u8]| {
        let (mut a, mut b) = pair();
        average::write_chunk(&mut a, sent).await.unwrap();
        drop(a);
        let (mut got, mut bytes) = ([0.0; 3], vec![7; 3]);
        average::read_chunk(&mut b, index, &mut got, codec, &mut bytes).await.map(|()| got)
    };
    assert_eq!(read(5, TensorCodec::F32, &packed).await.unwrap(), values);
    assert!(matches!(read(4, TensorCodec::F32, &packed).await, Err(ChunkError::Bulk(_))), "another place");
    assert!(matches!(read(5, TensorCodec::F16, &packed).await, Err(ChunkError::Bulk(_))), "another length");
    let infinite = average::pack_chunk(5, &[f32::INFINITY], TensorCodec::F32, &mut packed);
    assert!(infinite.is_err());
}
