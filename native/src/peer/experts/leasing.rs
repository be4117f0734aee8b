//! Asks the backbone for leases, as [`barnraise_swarm::experts::leases`] decides, and tells the driver of the host which places it
//! may serve.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use barnraise_protocol::access::PublicKey;
use barnraise_protocol::experts::ExpertPlace;
use barnraise_protocol::experts::leases::{
    self, CopyHolder, ExpertLease, KnownHost, LeaseAnswer, LeaseAsk, LeaseAskError, LeaseQuestion,
    LeaseRefusal, LeasingHost,
};
use barnraise_relay::tasks;
use barnraise_swarm::experts::leases::HolderAction;
use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

use super::super::platform::ConnectError;
use super::state::HostState;
use crate::net::announced::to_announce;

/// Timeout of a question: the backbone asks others before it answers.
const ASK_TIMEOUT: Duration = Duration::from_secs(8);
/// The clock is looked at as often, also without a deadline.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The wall clock has gone on by so much more than the monotonic one: the machine was suspended, or its clock was set.
const SUSPENDED_MIN: Duration = Duration::from_secs(5);
/// Events that may wait for the driver.
pub(super) const EVENTS_MAX: usize = 64;

/// What the driver is to do.
#[derive(Debug)]
pub(super) enum LeaseEvent {
    /// Serve a place.
    Host(ExpertLease),
    /// Serve a place no longer.
    Stop(ExpertPlace),
    /// Say that a place, whose state is on the disk here, has another host.
    Yield(ExpertPlace),
}

/// Why a question has no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum LeasingError {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Ask(#[from] LeaseAskError),
    #[error("no answer within {ASK_TIMEOUT:?}")]
    Timeout,
}

/// Asks for leases until the handle is dropped.
pub(super) fn spawn(state: Arc<HostState>, events: mpsc::Sender<LeaseEvent>) -> AbortOnDropHandle<()> {
    tasks::spawn("leasing places", async move {
        let mut open: Option<BoxFuture<'static, Result<LeaseAnswer, LeasingError>>> = None;
        let (mut looked_at, mut wall) = (Instant::now(), SystemTime::now());
        loop {
            if was_suspended(&mut looked_at, &mut wall) {
                state.with_leases(|leases, now| leases.on_suspended(now));
                open = None;
            }
            let loads = state.loads();
            let next = {
                let mut leases = state.leases.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                let now = state.now();
                for (place, load) in loads {
                    leases.on_load(&place, load);
                }
                leases.on_timeout(now);
                leases.poll_action(now).ok_or_else(|| leases.next_deadline(now))
            };
            let event = match next {
                Ok(HolderAction::Ask { asks, n_vacant }) => {
                    open = Some(ask(state.clone(), asks, n_vacant).boxed());
                    continue;
                }
                Ok(HolderAction::Host(lease)) => LeaseEvent::Host(lease),
                Ok(HolderAction::Stop { place, .. }) => LeaseEvent::Stop(place),
                Ok(HolderAction::Yield(place)) => LeaseEvent::Yield(place),
                Err(deadline) => {
                    let wait = deadline.map_or(LOOK_EVERY, |at| at.saturating_sub(state.now()));
                    let answered = async {
                        match &mut open {
                            Some(open) => open.await,
                            None => std::future::pending().await,
                        }
                    };
                    tokio::select! {
                        answer = answered => {
                            open = None;
                            on_answer(&state, answer);
                        }
                        () = state.leases_changed.notified() => {}
                        () = tokio::time::sleep(wait.min(LOOK_EVERY)) => {}
                    }
                    continue;
                }
            };
            if events.send(event).await.is_err() {
                return;
            }
        }
    })
}

fn was_suspended(looked_at: &mut Instant, wall: &mut SystemTime) -> bool {
    let (now, wall_now) = (Instant::now(), SystemTime::now());
    let passed = now.saturating_duration_since(std::mem::replace(looked_at, now));
    let by_wall = wall_now.duration_since(std::mem::replace(wall, wall_now)).unwrap_or_default();
    by_wall > passed + SUSPENDED_MIN
}

fn on_answer(state: &HostState, answer: Result<LeaseAnswer, LeasingError>) {
    match answer {
        Ok(LeaseAnswer::Leased { grantors, asked, vacant, copied, frozen }) => {
            // Before a place is served that comes with it.
            state.lock().frozen_by_run = frozen.into_iter().collect();
            state.keeper.set_grantors(&grantors);
            // They evaluate the model.
            state.gate.set_backbones(grantors.keys().iter().copied());
            state.with_leases(|leases, now| {
                leases.on_copied(&copied);
                leases.on_answer(now, asked, vacant);
            });
        }
        Ok(_) => state.with_leases(|leases, now| leases.on_failed(now)),
        Err(LeasingError::Ask(LeaseAskError::Refused(
            refusal @ (LeaseRefusal::NoAccess | LeaseRefusal::MayNotHost | LeaseRefusal::Distrusted { .. }),
        ))) => {
            let has_served = state.with_leases(|leases, now| {
                let has_served = leases.places().next().is_some();
                leases.on_no_access(now);
                has_served
            });
            // Once, and not with each question.
            if has_served {
                tracing::warn!(%refusal, "this host serves nothing any more");
            }
            state.home.on_access_lost();
        }
        Err(error) => {
            tracing::debug!(%error, "the backbone has not answered about leases");
            state.with_leases(|leases, now| leases.on_failed(now));
        }
    }
}

async fn ask(state: Arc<HostState>, asks: Vec<LeaseAsk>, n_vacant: u8) -> Result<LeaseAnswer, LeasingError> {
    let node = &state.home.node;
    let host = LeasingHost::new(state.n_room, to_announce(node.addresses(), node.reachability()));
    let run_id = state.run_id.clone();
    question(&state, LeaseQuestion::Lease { run_id, host, asks, n_vacant }).await
}

async fn question(state: &HostState, question: LeaseQuestion) -> Result<LeaseAnswer, LeasingError> {
    let me: PublicKey = state.signer.key.public();
    let asking = async {
        let mut stream = state.home.open(leases::PROTOCOL).await?;
        match leases::ask(&mut stream, &question, &me).await {
            Err(LeaseAskError::Refused(LeaseRefusal::NoAccess)) => {
                // It may have begun anew, and knows no token any more.
                if let Err(error) = state.home.present_here().await {
                    tracing::debug!(%error, "the backbone does not take the token of this host");
                }
                let mut stream = state.home.open(leases::PROTOCOL).await?;
                Ok(leases::ask(&mut stream, &question, &me).await?)
            }
            answer => Ok(answer?),
        }
    };
    tokio::time::timeout(ASK_TIMEOUT, asking).await.unwrap_or(Err(LeasingError::Timeout))
}

/// The hosts that have copies of these experts, in the order of the places.
pub(super) async fn holders(
    state: &HostState,
    places: Vec<ExpertPlace>,
) -> Result<Vec<Vec<CopyHolder>>, LeasingError> {
    match question(state, LeaseQuestion::Holders { run_id: state.run_id.clone(), places }).await? {
        LeaseAnswer::Holders(holders) => Ok(holders),
        _ => Err(LeaseAskError::Unexpected.into()),
    }
}

/// The hosts that keep the checkpoints of an expert, the first one first.
pub(super) async fn keepers(state: &HostState, place: ExpertPlace) -> Result<Vec<KnownHost>, LeasingError> {
    let asked = LeaseQuestion::Keepers { run_id: state.run_id.clone(), places: vec![place] };
    match question(state, asked).await? {
        LeaseAnswer::Keepers(mut keepers) => Ok(keepers.pop().unwrap_or_default()),
        _ => Err(LeaseAskError::Unexpected.into()),
    }
}
