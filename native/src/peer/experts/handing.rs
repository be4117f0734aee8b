//! What a handover does beside the driver of a host: gives an expert's checkpoint and then its lease away, and asks the backbone
//! who has taken it.

use std::sync::Arc;
use std::time::Duration;

use barnraise_contributor::hosting::{StoredCheckpoint, give_stored};
use barnraise_protocol::access::PublicKey;
use barnraise_protocol::experts::ExpertPlace;
use barnraise_protocol::experts::leases::{CopyHolder, PLACES_MAX};
use barnraise_relay::tasks::TaskSet;
use barnraise_swarm::experts::leases::HANDED_MAX;
use tokio::sync::mpsc;

use super::leasing::{self, LeasingError};
use super::state::HostState;

/// The hosts of some experts themselves.
pub(super) type Holders = Vec<(ExpertPlace, Option<PublicKey>)>;

/// What came of it.
#[derive(Debug)]
pub(super) enum HandoverNews {
    /// A place was given back.
    GivenBack(ExpertPlace),
    /// Who has the places that were asked for; `None` where the backbone does not say.
    Holders(Option<Holders>),
}

/// What is under way. It ends when this is dropped.
pub(super) struct HandingTasks {
    tasks: TaskSet,
    news: mpsc::Sender<HandoverNews>,
}

impl HandingTasks {
    /// With what comes of it.
    pub(super) fn new() -> (Self, mpsc::Receiver<HandoverNews>) {
        let (news, receiver) = mpsc::channel(HANDED_MAX);
        (Self { tasks: TaskSet::default(), news }, receiver)
    }

    /// Gives the last state of an expert to its keepers, if there is one, and then its place to other hosts.
    pub(super) fn give_back(
        &self,
        state: Arc<HostState>,
        place: ExpertPlace,
        (checkpoint, time): (Option<StoredCheckpoint>, Duration),
    ) {
        let news = self.news.clone();
        self.tasks.spawn("handing an expert over", async move {
            hand_over(&state, place, (checkpoint, time)).await;
            drop(news.send(HandoverNews::GivenBack(place)).await);
        });
    }

    /// Asks who has these places.
    pub(super) fn ask(&self, state: Arc<HostState>, places: Vec<ExpertPlace>) {
        let news = self.news.clone();
        self.tasks.spawn("asking who has an expert", async move {
            let holders = match holders(&state, &places).await {
                Ok(holders) => Some(holders),
                Err(error) => {
                    tracing::debug!(%error, "the backbone does not say who has experts");
                    None
                }
            };
            drop(news.send(HandoverNews::Holders(holders)).await);
        });
    }
}

/// The hosts of any number of places: those whose leases were lost are not few.
async fn holders(state: &HostState, places: &[ExpertPlace]) -> Result<Holders, LeasingError> {
    let mut holders = Vec::with_capacity(places.len());
    for places in places.chunks(PLACES_MAX) {
        let of_places = leasing::holders(state, places.to_vec()).await?;
        let of_places = of_places.iter().map(|copies| CopyHolder::of_expert(copies));
        holders.extend(places.iter().copied().zip(of_places));
    }
    Ok(holders)
}

/// Gives the last state of an expert to its keepers, if there is one, and then its place to other hosts: after `time` also where
/// the keepers do not have it yet. Returns how many keep it.
pub(super) async fn hand_over(
    state: &HostState,
    place: ExpertPlace,
    (checkpoint, time): (Option<StoredCheckpoint>, Duration),
) -> usize {
    let giving = async {
        match checkpoint {
            Some(checkpoint) => give_stored(state, checkpoint).await,
            None => 0,
        }
    };
    let n_keepers = tokio::time::timeout(time, giving).await.unwrap_or_else(|_| {
        let (layer, uid) = (place.0.0, place.1);
        tracing::warn!(layer, %uid, "the keepers of an expert that is handed over are slow: they have its state of before");
        0
    });
    state.with_leases(|leases, now| leases.on_given_up(now, &place));
    n_keepers
}
