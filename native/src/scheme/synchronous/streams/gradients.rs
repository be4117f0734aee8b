//! The `gradient` protocol: contributions are received, checked and passed on to the core; suspicious ones are recomputed
//! first.

use std::time::Instant;

use barnraise_protocol::access::UnixTime;
use barnraise_protocol::bulk::{self, BulkError, Partial, Transfer};
use barnraise_protocol::codec::CodecError;
use barnraise_protocol::commitment::Commitment;
use barnraise_protocol::framing::{self, FrameError};
use barnraise_protocol::gradient::{
    self, BackboneToContributor as Answer, CHECKING_INTERVAL, ContributionRefusal, Offer,
};
use barnraise_protocol::receipt::Receipt;
use barnraise_protocol::{Refusal, Sha256Hash};
use barnraise_relay::{Paced, Path};
use barnraise_swarm::AddressGroup;
use barnraise_swarm::PeerKey;
use barnraise_swarm::collection::{MeasuredGradient, Ticket};
use barnraise_swarm::recomputation::{Reason, values_hash};
use bytes::Bytes;
use libp2p::PeerId;
use tokio::sync::oneshot;
use tracing::Instrument as _;

use super::super::core::{AcceptedOffer, CoreEvent, DeclinedOffer};
use super::super::ledger::Reservation;
use super::super::recomputation::queue::{CommittedContribution, RecomputationVerdict};
use super::{Services, send};
use crate::computing::compute;
use crate::host::conversations::{Caller, Duplex, StreamError};
use crate::net::violations;
use crate::storage::journal::JournalEntry;

/// Receives one contribution after the other.
pub(super) async fn take_gradients<S: Duplex>(
    services: Services,
    mut caller: Caller,
    group: AddressGroup,
    stream: S,
) -> Result<(), StreamError> {
    let mut stream = Paced::new(stream, services.sessions.host.conversations.pace());
    let pace = stream.pace();
    let key = PeerKey(caller.peer.to_bytes());
    let offer_bytes_max = gradient::offer_bytes_max(&services.sessions.host.described.run);
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
                // A direct path is preferred where there is one.
                if let Ok(Some(Path::Relayed { relay: Some(relay) })) =
                    services.sessions.host.node.path(caller.peer).await
                {
                    services.work.relays.carried(relay, receipt.n_bytes, began.elapsed());
                }
                gradient::BackboneToContributor::Accepted(services.issuer.sign(receipt)?)
            }
            Err(DeclinedOffer::AlreadyCounted(receipt)) => {
                let contribution_id = receipt.contribution_id;
                services.metrics.on_refused(&ContributionRefusal::Duplicate { contribution_id });
                gradient::BackboneToContributor::Accepted(services.issuer.sign(*receipt)?)
            }
            Err(DeclinedOffer::Refused(refusal)) => {
                services.metrics.on_refused(&refusal);
                if let Some(violation) = violations::of_offer(&refusal) {
                    services.sessions.host.node.report(caller.peer, violation);
                }
                gradient::BackboneToContributor::Refused(refusal)
            }
        };
        pace.answer();
        framing::write(&mut stream, &answer, gradient::MESSAGE_BYTES_MAX).await?;
    }
}

/// Receives one contribution. The outer error ends the stream, the inner one is the answer.
async fn take_gradient<S: Duplex>(
    services: &Services,
    (peer, group): (&PeerKey, AddressGroup),
    (offer, account, list): (Offer, Option<Commitment>, Vec<u8>),
    stream: &mut Paced<S>,
) -> Result<Result<Receipt, DeclinedOffer>, StreamError> {
    let AcceptedOffer { ticket, abandoned } = match ask_core(services, peer, &offer).await? {
        Ok(accepted) => accepted,
        Err(declined) => return Ok(Err(declined)),
    };
    // The parameters of a past epoch may be gone: the core refuses such an offer first.
    let known = look_at(services, (peer, group), &offer, (account, &list));
    let (accounted, mut reservation) = match known {
        Ok(known) => known,
        Err(refusal) => return refuse(services, ticket, refusal).await,
    };
    let samples = accounted.as_ref().map(|accounted| accounted.committed_samples(&list));
    let pulled = tokio::select! {
        pulled = pull(services, &offer, stream) => pulled,
        // The core aborts the transfer, and the stream ends. A dropped sender lets it continue.
        Ok(()) = abandoned => return Err(StreamError::Abandoned),
    };
    let PulledGradient { payload, values, hash } = match pulled {
        Ok(pulled) => pulled,
        Err(error) => {
            send(&services.core, CoreEvent::TransferFailed(ticket)).await?;
            return error.map(|refusal| Err(DeclinedOffer::Refused(refusal)));
        }
    };
    if let Err(refusal) = reservation.claim_gradient(hash) {
        return refuse(services, ticket, refusal).await;
    }
    let chosen = services.recomputing.as_ref().zip(accounted);
    let chosen =
        chosen.and_then(|(these, of)| Some((these, of, these.choose(peer, group, &offer, values.norm())?)));
    let ticket = match chosen {
        None => ticket,
        Some((recomputing, accounted, reason)) if !reason.is_before_counting() => {
            if !recomputing.recompute_afterwards(group, &offer, accounted, (list, payload.to_vec())) {
                return refuse(services, ticket, ContributionRefusal::Busy).await;
            }
            ticket
        }
        Some((recomputing, accounted, reason)) => {
            // The round does not wait for it meanwhile.
            send(&services.core, CoreEvent::TransferFailed(ticket)).await?;
            let found = recomputing.recompute(group, &offer, accounted, (list, payload.to_vec()));
            if let Err(refusal) = wait_for(services, peer, (found, reason), stream).await? {
                return Ok(Err(DeclinedOffer::Refused(refusal)));
            }
            match ask_core(services, peer, &offer).await? {
                Ok(accepted) => accepted.ticket,
                Err(declined) => return Ok(Err(declined)),
            }
        }
    };
    let (answer, counted) = oneshot::channel();
    // The core sets time and address group when it stores the entry.
    let (of, milliseconds, accepted_at) = (AddressGroup::UNKNOWN, 0, UnixTime(0));
    let peer = peer.0.clone();
    let entry = JournalEntry { peer, group: of, offer, milliseconds, accepted_at, payload, samples };
    let entry = Box::new(entry);
    send(&services.core, CoreEvent::Gradient { ticket, entry, values, answer }).await?;
    let counted = counted.await.map_err(|_| StreamError::ShuttingDown)?;
    if counted.is_ok() {
        reservation.keep();
    }
    Ok(counted.map_err(DeclinedOffer::Refused))
}

/// Offers the contribution to the core.
async fn ask_core(
    services: &Services,
    peer: &PeerKey,
    offer: &Offer,
) -> Result<Result<AcceptedOffer, DeclinedOffer>, StreamError> {
    let (answer, wanted) = oneshot::channel();
    let event = CoreEvent::Offer { peer: peer.clone(), offer: offer.clone(), answer };
    send(&services.core, event).await?;
    wanted.await.map_err(|_| StreamError::ShuttingDown)
}

async fn refuse(
    services: &Services,
    ticket: Ticket,
    refusal: ContributionRefusal,
) -> Result<Result<Receipt, DeclinedOffer>, StreamError> {
    send(&services.core, CoreEvent::TransferFailed(ticket)).await?;
    Ok(Err(DeclinedOffer::Refused(refusal)))
}

/// Checks a contribution before its gradient is received: its commitment, and that its work was not claimed before.
fn look_at(
    services: &Services,
    (peer, group): (&PeerKey, AddressGroup),
    offer: &Offer,
    (account, list): (Option<Commitment>, &[u8]),
) -> Result<(Option<CommittedContribution>, Reservation), ContributionRefusal> {
    let Some(recomputing) = &services.recomputing else {
        return Ok((None, services.ledger.claim(peer, group, offer, None)?));
    };
    let accounted = recomputing
        .check(peer, offer, (account, list))
        .map_err(|error| ContributionRefusal::Commitment(error.to_string()))?;
    let work = (accounted.parameters(), &*accounted.samples);
    let reservation = services.ledger.claim(peer, group, offer, Some(work))?;
    if recomputing.is_full_for(peer, group, offer) {
        return Err(ContributionRefusal::Busy);
    }
    Ok((Some(accounted), reservation))
}

/// A gradient that came.
struct PulledGradient {
    payload: Bytes,
    values: MeasuredGradient,
    /// Of the values.
    hash: Sha256Hash,
}

/// Pulls a gradient. The error is a refusal, or that of a broken stream.
async fn pull<S: Duplex>(
    services: &Services,
    offer: &Offer,
    stream: &mut Paced<S>,
) -> Result<PulledGradient, Result<ContributionRefusal, StreamError>> {
    let payload = receive(offer.transfer, &Answer::Wanted, stream).await.map_err(|error| match error {
        // A refusal can be sent where the stream still works.
        BulkError::Hash { .. } => Ok(ContributionRefusal::Transfer(error.to_string())),
        broken => Err(StreamError::Conversation(broken.into())),
    })?;
    let began = Instant::now();
    let (payload, codec, n_values) = (Bytes::from(payload), offer.codec, offer.n_values as usize);
    let encoded = payload.clone();
    let decode = move || {
        let values = codec.decode(&encoded, n_values)?;
        let hash = values_hash(&values);
        Ok::<_, CodecError>((values.into(), hash))
    };
    let decoded = compute(4 * n_values, decode).await;
    services.work.worked(began.elapsed());
    match decoded {
        Ok((values, hash)) => Ok(PulledGradient { payload, values, hash }),
        Err(CodecError::NotFinite { index }) => {
            Err(Ok(ContributionRefusal::NotFinite { index: index as u64 }))
        }
        Err(other) => Err(Ok(ContributionRefusal::Transfer(other.to_string()))),
    }
}

/// Waits for a recomputation, and keeps the sender informed. The inner error is the refusal.
async fn wait_for<S: Duplex>(
    services: &Services,
    peer: &PeerKey,
    (mut found, reason): (oneshot::Receiver<RecomputationVerdict>, Reason),
    stream: &mut Paced<S>,
) -> Result<Result<(), ContributionRefusal>, StreamError> {
    let n_left = match reason {
        Reason::Probation { n_left } => n_left,
        Reason::Suspicion | Reason::Chance | Reason::Unusual => 0,
    };
    loop {
        // The sender learns of its recomputation, however short it is.
        stream.pace().answer();
        framing::write(stream, &Answer::Checking { n_left }, gradient::MESSAGE_BYTES_MAX).await?;
        tokio::select! {
            verdict = &mut found => return Ok(match verdict {
                Ok(RecomputationVerdict::Right) => Ok(()),
                Ok(RecomputationVerdict::Unknown(reason)) => {
                    Err(ContributionRefusal::Commitment(format!("the contribution could not be computed once more: {reason}")))
                }
                Ok(RecomputationVerdict::Wrong) => Err(ContributionRefusal::NoAccess(why_out(services, peer))),
                // It made way for one of another address.
                Err(_) => Err(ContributionRefusal::Busy),
            }),
            () = tokio::time::sleep(CHECKING_INTERVAL / 2) => {}
        }
    }
}

/// The message to a convicted peer.
fn why_out(services: &Services, peer: &PeerKey) -> Refusal {
    let peer = PeerId::from_bytes(&peer.0).ok();
    let out = peer.and_then(|peer| services.sessions.host.access.gate.check(peer).err());
    out.map_or(Refusal::Convicted, |out| Refusal::from(&out))
}

/// Asks the peer to serve the offered bytes, and pulls them. Their length was checked: it is that of the run's gradients.
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
