//! How the passes of a participant reach experts on other peers: its backbone searches the DHT for it, the platform dials.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use barnraise_protocol::ConversationError;
use barnraise_protocol::access::{
    self, AccessToken, BackboneToContributor, ContributorToBackbone, TokenId, UnixTime,
};
use barnraise_protocol::dht::{self, DhtRefusal, Freshness, Record, RecordKey, UnixMillis};
use barnraise_protocol::experts::{self, ExpertPlace, audits, leases};
use barnraise_swarm::dht::StorageLimits;
use barnraise_swarm::{Moment, PeerKey};
use futures::lock::Mutex;

use super::access::AccessTicket;
use super::meter::{Metered, TrafficMeter};
use super::operation::CountedStream;
use crate::experts::ExpertNetwork;
use crate::platform::{Platform, PlatformError};

/// Most hosts that are remembered.
const HOSTS_MAX: usize = 4096;
/// A host that was shown the token so short a time ago has it, also if it said something else to a request before.
const SHOWN_JUST_NOW: Duration = Duration::from_secs(1);

/// Counts what it costs: a visitor may have bounded the data of a day.
pub(super) struct OfPlatform<'a, P> {
    pub(super) platform: &'a P,
    pub(super) meter: Rc<TrafficMeter>,
    /// Has a token where the run is not open.
    pub(super) ticket: Rc<AccessTicket>,
    pub(super) shown: ShownTokens,
    /// The last record of a host that was refused for its time.
    pub(super) refused: Rc<Cell<Option<DhtRefusal>>>,
}

/// Which token each host was shown last, and when. All requests to a host wait for the one that shows it.
#[derive(Clone, Default)]
pub(super) struct ShownTokens(Rc<RefCell<HashMap<PeerKey, HostSlot>>>);

type HostSlot = Rc<Mutex<Option<(TokenId, Moment)>>>;

impl ShownTokens {
    fn of(&self, host: &PeerKey) -> HostSlot {
        let mut hosts = self.0.borrow_mut();
        if hosts.len() >= HOSTS_MAX && !hosts.contains_key(host) {
            // Those that nobody waits for are shown a token once more.
            hosts.retain(|_, slot| Rc::strong_count(slot) > 1);
        }
        Rc::clone(hosts.entry(host.clone()).or_default())
    }

    /// A host says that it has seen no valid token. It may have restarted.
    fn on_no_access(&self, now: Moment, host: &PeerKey) {
        let slot = self.0.borrow().get(host).cloned();
        // Where it is taken, the host is being shown one.
        if let Some(mut shown) = slot.as_ref().and_then(|slot| slot.try_lock())
            && shown.is_some_and(|(_, at)| now.saturating_sub(at) > SHOWN_JUST_NOW)
        {
            *shown = None;
        }
    }
}

impl<P: Platform> OfPlatform<'_, P> {
    /// Shows a host this peer's token, unless it has seen it.
    async fn show(
        &self,
        host: &PeerKey,
        addresses: &[Vec<u8>],
        token: AccessToken,
    ) -> Result<(), PlatformError> {
        let slot = self.shown.of(host);
        let mut shown = slot.lock().await;
        let id = token.claims.token_id;
        if shown.is_some_and(|(shown, _)| shown == id) {
            return Ok(());
        }
        let stream = self.platform.open_host(host, addresses, access::PROTOCOL).await?;
        let mut stream = Metered::new(stream, Rc::clone(&self.meter)).with_peer();
        let question = ContributorToBackbone::Present(Box::new(token));
        match access::ask(&mut stream, &question).await.map_err(PlatformError::network)? {
            BackboneToContributor::Admitted(_) => {
                *shown = Some((id, self.platform.now()));
                Ok(())
            }
            _ => Err(PlatformError::network(ConversationError::Unexpected(
                "a token was answered with another message than an admission",
            ))),
        }
    }
}

impl<P> Clone for OfPlatform<'_, P> {
    fn clone(&self) -> Self {
        let (meter, ticket, shown) = (Rc::clone(&self.meter), Rc::clone(&self.ticket), self.shown.clone());
        let refused = Rc::clone(&self.refused);
        Self { platform: self.platform, meter, ticket, shown, refused }
    }
}

impl<P: Platform> ExpertNetwork for OfPlatform<'_, P> {
    type Stream = CountedStream<P>;
    type BackboneStream = CountedStream<P>;

    fn now(&self) -> Moment {
        self.platform.now()
    }

    fn unix_time(&self) -> UnixTime {
        self.platform.unix_time()
    }

    async fn sleep_until(&self, at: Moment) {
        self.platform.sleep_until(at).await;
    }

    async fn look_up(&self, keys: Vec<RecordKey>) -> Result<Vec<Vec<Record>>, PlatformError> {
        let stream = self.platform.open(dht::PROTOCOL).await?;
        let mut stream = Metered::new(stream, Rc::clone(&self.meter));
        let wall = UnixMillis(self.unix_time().0.saturating_mul(1000));
        let lifetime_max = StorageLimits::default().lifetime_max;
        // One that is refused by its time alone: a host that ended, or two clocks that differ.
        let on_dropped = |refusal| {
            if matches!(refusal, DhtRefusal::Expired { .. } | DhtRefusal::TooFar { .. }) {
                self.refused.set(Some(refusal));
            }
        };
        let time = (wall, lifetime_max);
        let found = dht::get_telling(&mut stream, keys, Freshness::Any, time, on_dropped).await;
        found.map_err(PlatformError::network)
    }

    async fn holders(
        &self,
        run_id: &str,
        places: Vec<ExpertPlace>,
    ) -> Result<Vec<Vec<leases::CopyHolder>>, PlatformError> {
        let stream = self.platform.open(leases::PROTOCOL).await?;
        let mut stream = Metered::new(stream, Rc::clone(&self.meter));
        leases::holders(&mut stream, run_id, places).await.map_err(PlatformError::network)
    }

    async fn open_audit(&self) -> Result<Self::BackboneStream, PlatformError> {
        let stream = self.platform.open(audits::PROTOCOL).await?;
        Ok(Metered::new(stream, Rc::clone(&self.meter)))
    }

    fn on_no_access(&self, host: &PeerKey) {
        self.shown.on_no_access(self.platform.now(), host);
    }

    async fn open_host(&self, host: &PeerKey, addresses: &[Vec<u8>]) -> Result<Self::Stream, PlatformError> {
        if let Some(token) = self.ticket.token() {
            self.show(host, addresses, token).await?;
        }
        let stream = self.platform.open_host(host, addresses, experts::PROTOCOL).await?;
        Ok(Metered::new(stream, Rc::clone(&self.meter)).with_peer())
    }
}

/// Whether the experts of a model took part in its gradients.
#[derive(Debug, Default)]
pub(super) struct AnsweredRows {
    /// When the last gradient was taken.
    n_before: u64,
    is_told: bool,
}

/// See [`AnsweredRows`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GradientVerdict {
    /// Some expert has answered a row of it.
    Answered,
    /// None has.
    Unanswered {
        /// Since one has answered.
        is_first: bool,
    },
}

impl AnsweredRows {
    /// Something was in vain. Returns whether that is the first time since experts have answered.
    pub(super) fn on_in_vain(&mut self) -> bool {
        !std::mem::replace(&mut self.is_told, true)
    }

    /// A gradient was taken, and experts have answered so many rows until now.
    pub(super) fn on_gradient(&mut self, n_answered: u64) -> GradientVerdict {
        let is_answered = std::mem::replace(&mut self.n_before, n_answered) != n_answered;
        let was_told = std::mem::replace(&mut self.is_told, !is_answered);
        match is_answered {
            true => GradientVerdict::Answered,
            false => GradientVerdict::Unanswered { is_first: !was_told },
        }
    }
}

/// Calls of so many whole passes in vain: then the trainer waits.
const PASSES_IN_VAIN: u32 = 4;
/// The first pause, which doubles up to the longest one.
const PAUSE_MIN: Duration = Duration::from_secs(1);
/// The longest pause: experts that are handed over are away for seconds.
const PAUSE_MAX: Duration = Duration::from_secs(8);

/// When a trainer whose experts are all away computes: its gradient would be that of another model, and is dropped. After a
/// pause one pass looks whether they are back.
#[derive(Debug, Default)]
pub(super) struct ExpertsAway {
    /// While they are away: the length of the pause, and its end.
    pause: Option<(Duration, Moment)>,
}

impl ExpertsAway {
    /// A pass is to begin, of a model with so many layers of experts. Returns whether it may.
    ///
    /// - `n_in_vain`: calls since experts have answered any, one for each layer and pass
    pub(super) fn may_begin(&mut self, now: Moment, n_in_vain: u32, n_layers: u32) -> bool {
        if n_in_vain < PASSES_IN_VAIN.saturating_mul(n_layers.max(1)) {
            self.pause = None;
            return true;
        }
        let (pause, is_over) = match self.pause {
            None => (PAUSE_MIN, false),
            Some((_, ends_at)) if ends_at > now => return false,
            Some((before, _)) => ((2 * before).min(PAUSE_MAX), true),
        };
        self.pause = Some((pause, now + pause));
        is_over
    }

    /// Whether none has answered for long, as far as is known.
    pub(super) fn are_away(&self) -> bool {
        self.pause.is_some()
    }

    /// When to ask again, where none may begin at `now`.
    pub(super) fn waits_until(&self, now: Moment) -> Option<Moment> {
        self.pause.map(|(_, ends_at)| ends_at).filter(|ends_at| *ends_at > now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gradient_without_any_answer_does_not_count_and_is_told_once() {
        let mut rows = AnsweredRows::default();
        let unanswered = |is_first| GradientVerdict::Unanswered { is_first };
        assert_eq!(rows.on_gradient(0), unanswered(true));
        assert_eq!(rows.on_gradient(0), unanswered(false));
        assert_eq!(rows.on_gradient(3), GradientVerdict::Answered);
        assert_eq!(rows.on_gradient(4), GradientVerdict::Answered);
        assert_eq!(rows.on_gradient(4), unanswered(true));
    }

    #[test]
    fn what_is_in_vain_is_told_once_until_an_expert_answers() {
        let mut rows = AnsweredRows::default();
        assert!(rows.on_in_vain());
        assert!(!rows.on_in_vain());
        assert_eq!(rows.on_gradient(0), GradientVerdict::Unanswered { is_first: false });
        rows.on_gradient(5);
        assert!(rows.on_in_vain());
    }

    #[test]
    fn a_trainer_whose_experts_are_away_computes_one_pass_after_each_pause() {
        let mut away = ExpertsAway::default();
        assert!(away.may_begin(secs(0), 0, 3) && away.may_begin(secs(1), 11, 3));
        assert_eq!(away.waits_until(secs(1)), None);
        assert!(!away.are_away());
        assert!(!away.may_begin(secs(2), 12, 3), "four whole passes");
        assert!(away.are_away());
        assert_eq!(away.waits_until(secs(2)), Some(secs(3)));
        // One pass, and the next pause.
        assert!(away.may_begin(secs(3), 15, 3) && !away.may_begin(secs(4), 15, 3));
        assert_eq!(away.waits_until(secs(4)), Some(secs(5)));
        for (at, next) in [(5, 9), (9, 17), (17, 25)] {
            assert!(away.may_begin(secs(at), 18, 3));
            assert_eq!(away.waits_until(secs(at)), Some(secs(next)), "at {at}");
        }
        // They are back.
        assert!(away.may_begin(secs(18), 0, 3));
        assert_eq!(away.waits_until(secs(18)), None);
        assert!(!away.may_begin(secs(19), 12, 3));
        assert_eq!(away.waits_until(secs(19)), Some(secs(20)), "from the beginning");
    }

    const fn secs(seconds: u64) -> Moment {
        Moment::from_secs(seconds)
    }

    #[test]
    fn a_host_that_has_forgotten_a_token_is_shown_it_again_and_not_for_each_request() {
        let (shown, host) = (ShownTokens::default(), PeerKey(vec![1]));
        shown.on_no_access(secs(0), &host);
        let slot = shown.of(&host);
        let token = || slot.try_lock().is_some_and(|shown| shown.is_some());
        assert!(!token());
        if let Some(mut first) = slot.try_lock() {
            *first = Some((TokenId([1; 16]), secs(10)));
            shown.on_no_access(secs(60), &host);
        }
        assert!(token(), "it was being shown one");
        shown.on_no_access(secs(11), &host);
        assert!(token(), "said of a request before");
        shown.on_no_access(secs(12), &host);
        assert!(!token());
        for other in 0..2 * HOSTS_MAX as u32 {
            shown.of(&PeerKey(other.to_le_bytes().to_vec()));
        }
        let hosts = shown.0.borrow();
        assert!(hosts.len() <= HOSTS_MAX && hosts.get(&host).is_some_and(|known| Rc::ptr_eq(known, &slot)));
    }
}
