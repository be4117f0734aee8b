//! The `gradient` conversation: contributions are received, checked and passed on to the core; those that are chosen are
//! computed once more before.

use std::time::Instant;

use barnraise_protocol::access::UnixTime;
use barnraise_protocol::account::Account;
use barnraise_protocol::bulk::{self, BulkError, Partial, Transfer};
use barnraise_protocol::codec::CodecError;
use barnraise_protocol::framing::{self, FrameError};
use barnraise_protocol::gradient::{self, BackboneToContributor as Answer, CHECKING_EVERY, Offer, Refusal};
use barnraise_protocol::receipt::Receipt;
use barnraise_relay::{Paced, Path};
use barnraise_swarm::PeerKey;
use barnraise_swarm::recomputation::Reason;
use barnraise_swarm::round::{AddressGroup, Ticket};
use libp2p::PeerId;
use tokio::sync::oneshot;
use tokio::time::MissedTickBehavior;
use tracing::Instrument as _;

use super::super::core::{CoreEvent, Declined, Place};
use super::super::ledger::Reservation;
use super::super::misdeeds;
use super::super::recomputing::{Accounted, Verdict};
use super::{Caller, Duplex, Services, StreamError, send};
use crate::storage::journal::JournalEntry;

/// Takes one contribution after the other.
pub(super) async fn take_gradients<S: Duplex>(
    services: Services,
    mut caller: Caller,
    group: AddressGroup,
    stream: S,
) -> Result<(), StreamError> {
    let mut stream = Paced::new(stream, services.conversations.pace());
    let pace = stream.pace();
    let key = PeerKey(caller.peer.to_bytes());
    let offer_bytes_max = gradient::offer_bytes_max(&services.description);
    loop {
        pace.wait();
        // Access that ends between two contributions ends the stream; one that is being received counts.
        let next = framing::read(&mut stream, offer_bytes_max);
        let next = caller.while_admitted(next).await?;
        let gradient::ContributorToBackbone::Offer(offer, account, list) = match next {
            Err(FrameError::Closed) => return Ok(()),
            next => next?,
        };
        let began = Instant::now();
        let (peer, epoch, n_samples) = (caller.peer, offer.epoch, offer.n_samples);
        let span = tracing::debug_span!("contribution", %peer, epoch, n_samples);
        let taking = take_gradient(&services, (&key, group), (offer, account, list), &mut stream);
        let answer = taking.instrument(span).await?;
        let answer = match answer {
            Ok(receipt) => {
                services.metrics.on_accepted(receipt.n_samples);
                // Where a direct way stands, that is the one which is taken.
                if let Ok(Some(Path::Relayed { relay: Some(relay) })) = services.node.path(caller.peer).await
                {
                    services.work.relays.carried(relay, receipt.n_bytes, began.elapsed());
                }
                gradient::BackboneToContributor::Accepted(services.issuer.sign(receipt)?)
            }
            Err(Declined::CountedBefore(receipt)) => {
                let contribution_id = receipt.contribution_id;
                services.metrics.on_refused(&Refusal::Duplicate { contribution_id });
                gradient::BackboneToContributor::Accepted(services.issuer.sign(*receipt)?)
            }
            Err(Declined::Refused(refusal)) => {
                services.metrics.on_refused(&refusal);
                if let Some(misdeed) = misdeeds::of_offer(&refusal) {
                    services.node.report(caller.peer, misdeed);
                }
                gradient::BackboneToContributor::Refused(refusal)
            }
        };
        pace.answer();
        framing::write(&mut stream, &answer, gradient::MESSAGE_BYTES_MAX).await?;
    }
}

/// One contribution. The outer error ends the stream, the inner one is the answer.
async fn take_gradient<S: Duplex>(
    services: &Services,
    (peer, group): (&PeerKey, AddressGroup),
    (offer, account, list): (Offer, Option<Account>, Vec<u8>),
    stream: &mut Paced<S>,
) -> Result<Result<Receipt, Declined>, StreamError> {
    let Place { ticket, abandoned } = match ask_core(services, peer, &offer).await? {
        Ok(place) => place,
        Err(declined) => return Ok(Err(declined)),
    };
    // Of an epoch that is over the parameters may be forgotten: that it is over is said first.
    let known = look_at(services, (peer, group), &offer, (account, &list));
    let (accounted, mut reservation) = match known {
        Ok(known) => known,
        Err(refusal) => return refuse(services, ticket, refusal).await,
    };
    let pulled = tokio::select! {
        pulled = pull(services, &offer, stream) => pulled,
        // It ends in the middle, and the stream with it. Without a word the transfer goes on.
        Ok(()) = abandoned => return Err(StreamError::Abandoned),
    };
    let (payload, values) = match pulled {
        Ok(pulled) => pulled,
        Err(error) => {
            send(&services.core, CoreEvent::TransferFailed(ticket)).await?;
            return error.map(|refusal| Err(Declined::Refused(refusal)));
        }
    };
    if let Err(refusal) = reservation.claim_gradient(&values) {
        return refuse(services, ticket, refusal).await;
    }
    let chosen = services.recomputing.as_ref().zip(accounted);
    let chosen =
        chosen.and_then(|(these, of)| Some((these, of, these.choose(peer, group, &offer, &values)?)));
    let ticket = match chosen {
        None => ticket,
        Some((recomputing, accounted, reason)) => {
            // Nobody else waits for it meanwhile.
            send(&services.core, CoreEvent::TransferFailed(ticket)).await?;
            let found = recomputing.recompute(group, &offer, accounted, (list, payload.clone()));
            if let Err(refusal) = wait_for(services, peer, (found, reason), stream).await? {
                return Ok(Err(Declined::Refused(refusal)));
            }
            match ask_core(services, peer, &offer).await? {
                Ok(place) => place.ticket,
                Err(declined) => return Ok(Err(declined)),
            }
        }
    };
    let (answer, counted) = oneshot::channel();
    // The core says when and from where, once it is about to be stored.
    let (of, milliseconds, accepted_at) = (AddressGroup::UNKNOWN, 0, UnixTime(0));
    let (peer, payload) = (peer.0.clone(), payload.into());
    let entry = JournalEntry { peer, group: of, offer, milliseconds, accepted_at, payload };
    send(&services.core, CoreEvent::Gradient { ticket, entry, values, answer }).await?;
    let counted = counted.await.map_err(|_| StreamError::ShuttingDown)?;
    if counted.is_ok() {
        reservation.keep();
    }
    Ok(counted.map_err(Declined::Refused))
}

/// Whether the core takes the contribution now.
async fn ask_core(
    services: &Services,
    peer: &PeerKey,
    offer: &Offer,
) -> Result<Result<Place, Declined>, StreamError> {
    let (answer, wanted) = oneshot::channel();
    let event = CoreEvent::Offer { peer: peer.clone(), offer: offer.clone(), answer };
    send(&services.core, event).await?;
    wanted.await.map_err(|_| StreamError::ShuttingDown)
}

async fn refuse(
    services: &Services,
    ticket: Ticket,
    refusal: Refusal,
) -> Result<Result<Receipt, Declined>, StreamError> {
    send(&services.core, CoreEvent::TransferFailed(ticket)).await?;
    Ok(Err(Declined::Refused(refusal)))
}

/// What can be said of a contribution before it is here: what it is of, and that it is none that was here before.
fn look_at(
    services: &Services,
    (peer, group): (&PeerKey, AddressGroup),
    offer: &Offer,
    (account, list): (Option<Account>, &[u8]),
) -> Result<(Option<Accounted>, Reservation), Refusal> {
    let Some(recomputing) = &services.recomputing else {
        return Ok((None, services.ledger.claim(peer, group, offer, None)?));
    };
    let accounted = recomputing.check(peer, offer, (account, list)).map_err(Refusal::Account)?;
    let work = (accounted.parameters(), &*accounted.samples);
    let reservation = services.ledger.claim(peer, group, offer, Some(work))?;
    if recomputing.is_full_for(peer, group, offer) {
        return Err(Refusal::Busy);
    }
    Ok((Some(accounted), reservation))
}

/// Pulls a contribution: its bytes and its values. The error is what is wrong with them, or that the stream broke.
async fn pull<S: Duplex>(
    services: &Services,
    offer: &Offer,
    stream: &mut Paced<S>,
) -> Result<(Vec<u8>, Vec<f32>), Result<Refusal, StreamError>> {
    let payload = receive(offer.transfer, &Answer::Wanted, stream).await.map_err(|error| match error {
        // A transfer whose stream still works gets its reason; one whose stream broke ends with it.
        BulkError::Checksum { .. } | BulkError::Hash { .. } => Ok(Refusal::Transfer(error.to_string())),
        broken => Err(StreamError::Conversation(broken.into())),
    })?;
    let began = Instant::now();
    let decoded = offer.codec.decode(&payload, offer.n_values as usize);
    services.work.worked(began.elapsed());
    match decoded {
        Ok(values) => Ok((payload, values)),
        Err(CodecError::NotFinite { index }) => Err(Ok(Refusal::NotFinite { index: index as u64 })),
        Err(other) => Err(Ok(Refusal::Transfer(other.to_string()))),
    }
}

/// Waits until a contribution was computed once more, and tells its sender so. The inner error is why it does not count.
async fn wait_for<S: Duplex>(
    services: &Services,
    peer: &PeerKey,
    (mut found, reason): (oneshot::Receiver<Verdict>, Reason),
    stream: &mut Paced<S>,
) -> Result<Result<(), Refusal>, StreamError> {
    let n_left = match reason {
        Reason::Probation { n_left } => n_left,
        Reason::Suspicion | Reason::Chance | Reason::Unusual => 0,
    };
    let mut ticks = tokio::time::interval(CHECKING_EVERY / 2);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            verdict = &mut found => return Ok(match verdict {
                Ok(Verdict::Right) => Ok(()),
                Ok(Verdict::Unknown(reason)) => {
                    Err(Refusal::Account(format!("the contribution could not be computed once more: {reason}")))
                }
                Ok(Verdict::Wrong) => Err(Refusal::NoAccess(why_out(services, peer))),
                // It gave way to that of another address.
                Err(_) => Err(Refusal::Busy),
            }),
            _ = ticks.tick() => {
                stream.pace().answer();
                framing::write(stream, &Answer::Checking { n_left }, gradient::MESSAGE_BYTES_MAX).await?;
            }
        }
    }
}

/// What a peer hears that was convicted.
fn why_out(services: &Services, peer: &PeerKey) -> String {
    let peer = PeerId::from_bytes(&peer.0).ok();
    let out = peer.and_then(|peer| services.access.gate.check(peer).err());
    out.map_or_else(
        || "this contribution is not the gradient of its samples".to_owned(),
        |out| out.to_string(),
    )
}

/// Pulls what the other side has, once it was told to serve it. The length was checked: it is the one of the run's
/// gradients.
async fn receive<S: Duplex>(
    transfer: Transfer,
    ask: &gradient::BackboneToContributor,
    stream: &mut Paced<S>,
) -> Result<Vec<u8>, BulkError> {
    let mut partial = Partial::new(transfer, transfer.n_bytes)?;
    stream.pace().answer();
    framing::write(stream, ask, gradient::MESSAGE_BYTES_MAX).await?;
    bulk::pull(stream, &mut partial, |_| ()).await
}
