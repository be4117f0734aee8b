//! The `gradient` conversation: contributions are received, checked and passed on to the core; those that are chosen are
//! computed once more.

use std::time::Instant;

use barnraise_protocol::access::UnixTime;
use barnraise_protocol::account::Account;
use barnraise_protocol::bulk::{self, BulkError, Partial, Transfer};
use barnraise_protocol::codec::CodecError;
use barnraise_protocol::framing::{self, FrameError};
use barnraise_protocol::gradient::{self, BackboneToContributor as Answer, Offer, Refusal};
use barnraise_protocol::receipt::Receipt;
use barnraise_relay::{Paced, Path};
use barnraise_swarm::PeerKey;
use barnraise_swarm::round::Ticket;
use libp2p::Stream;
use tokio::sync::oneshot;
use tracing::Instrument as _;

use super::super::core::{CoreEvent, Declined};
use super::super::misdeeds;
use super::super::recomputing::{Accounted, Chosen};
use super::{Caller, Services, StreamError, send};
use crate::storage::journal::JournalEntry;

/// Takes one contribution after the other.
pub(super) async fn take_gradients(
    services: Services,
    mut caller: Caller,
    stream: Stream,
) -> Result<(), StreamError> {
    let mut stream = Paced::new(stream, services.conversations.pace());
    let pace = stream.pace();
    let key = PeerKey(caller.peer.to_bytes());
    loop {
        pace.wait();
        // Access that ends between two contributions ends the stream; one that is being received counts.
        let next = framing::read(&mut stream, gradient::MESSAGE_BYTES_MAX);
        let next = caller.while_admitted(next).await?;
        let gradient::ContributorToBackbone::Offer(offer, account) = match next {
            Err(FrameError::Closed) => return Ok(()),
            next => next?,
        };
        let began = Instant::now();
        let (peer, epoch, n_samples) = (caller.peer, offer.epoch, offer.n_samples);
        let span = tracing::debug_span!("contribution", %peer, epoch, n_samples);
        let taking = take_gradient(&services, &key, (offer, account), &mut stream);
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
async fn take_gradient(
    services: &Services,
    peer: &PeerKey,
    (offer, account): (Offer, Option<Account>),
    stream: &mut Paced<Stream>,
) -> Result<Result<Receipt, Declined>, StreamError> {
    let refused = |refusal| Ok(Err(Declined::Refused(refusal)));
    let (answer, wanted) = oneshot::channel();
    let event = CoreEvent::Offer { peer: peer.clone(), offer: offer.clone(), answer };
    send(&services.core, event).await?;
    let ticket = match wanted.await.map_err(|_| StreamError::ShuttingDown)? {
        Ok(ticket) => ticket,
        Err(declined) => return Ok(Err(declined)),
    };
    // Of an epoch that is over the parameters may be forgotten: that it is over is said first.
    let accounted = services.recomputing.as_ref().map(|these| these.check(peer, &offer, account)).transpose();
    let accounted = match accounted {
        Ok(accounted) => accounted,
        Err(reason) => {
            send(&services.core, CoreEvent::TransferFailed(ticket)).await?;
            return refused(Refusal::Account(reason));
        }
    };
    let payload = match receive(offer.transfer, &Answer::Wanted, stream).await {
        Ok(payload) => payload,
        Err(error) => return refused(transfer_failed(services, ticket, error).await?),
    };
    let began = Instant::now();
    let decoded = offer.codec.decode(&payload, offer.n_values as usize);
    services.work.worked(began.elapsed());
    let values = match decoded {
        Ok(values) => values,
        Err(error) => {
            send(&services.core, CoreEvent::TransferFailed(ticket)).await?;
            return refused(match error {
                CodecError::NotFinite { index } => Refusal::NotFinite { index: index as u64 },
                other => Refusal::Transfer(other.to_string()),
            });
        }
    };
    let chosen = match choose(services, peer, &offer, accounted, stream).await {
        Ok(chosen) => chosen.map(|(chosen, list)| (chosen, list, payload.clone())),
        Err(no_account) => {
            send(&services.core, CoreEvent::TransferFailed(ticket)).await?;
            return no_account.map(|reason| Err(Declined::Refused(Refusal::Account(reason))));
        }
    };
    let (answer, counted) = oneshot::channel();
    // The core says when, once it is about to be stored.
    let (milliseconds, accepted_at) = (0, UnixTime(0));
    let entry =
        JournalEntry { peer: peer.0.clone(), offer: offer.clone(), milliseconds, accepted_at, payload };
    send(&services.core, CoreEvent::Gradient { ticket, entry, values, answer }).await?;
    let counted = counted.await.map_err(|_| StreamError::ShuttingDown)?;
    if let (Ok(_), Some(recomputing), Some((chosen, list, payload))) =
        (&counted, &services.recomputing, chosen)
    {
        recomputing.recompute(chosen, offer, list, payload);
    }
    Ok(counted.map_err(Declined::Refused))
}

/// Where the contribution is to be computed once more, asks which samples it is of. The error is what is wrong with the
/// answer, or that the stream broke.
async fn choose(
    services: &Services,
    peer: &PeerKey,
    offer: &Offer,
    accounted: Option<Accounted>,
    stream: &mut Paced<Stream>,
) -> Result<Option<(Chosen, Vec<u8>)>, Result<String, StreamError>> {
    let Some((recomputing, accounted)) = services.recomputing.as_ref().zip(accounted) else {
        return Ok(None);
    };
    let Some(chosen) = recomputing.choose(peer, offer, accounted) else { return Ok(None) };
    // Whoever is asked and leaves is remembered, even where that ends this stream.
    let list = receive(chosen.transfer(), &Answer::Account, stream).await;
    let account = recomputing.on_list(peer, &chosen, list.as_deref().ok());
    match (list, account) {
        (Ok(list), Ok(())) => Ok(Some((chosen, list))),
        (Ok(_), Err(reason)) => Err(Ok(reason)),
        (Err(BulkError::Checksum { .. } | BulkError::Hash { .. }), account) => {
            Err(Ok(account.err().unwrap_or_default()))
        }
        // The same contribution is offered again, and the peer is asked again.
        (Err(broken), _) => Err(Err(StreamError::Conversation(broken.into()))),
    }
}

/// Pulls what the other side has, once it was told to serve it. The length was checked: it is the one of the run's
/// gradients, or of the list of as many samples as count.
async fn receive(
    transfer: Transfer,
    ask: &gradient::BackboneToContributor,
    stream: &mut Paced<Stream>,
) -> Result<Vec<u8>, BulkError> {
    let mut partial = Partial::new(transfer, transfer.n_bytes)?;
    stream.pace().answer();
    framing::write(stream, ask, gradient::MESSAGE_BYTES_MAX).await?;
    bulk::pull(stream, &mut partial, |_| ()).await
}

/// A transfer whose stream still works gets its reason; one whose stream broke ends with it.
async fn transfer_failed(
    services: &Services,
    ticket: Ticket,
    error: BulkError,
) -> Result<Refusal, StreamError> {
    send(&services.core, CoreEvent::TransferFailed(ticket)).await?;
    match error {
        BulkError::Checksum { .. } | BulkError::Hash { .. } => Ok(Refusal::Transfer(error.to_string())),
        broken => Err(StreamError::Conversation(broken.into())),
    }
}
