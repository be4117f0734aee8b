//! Answers of experts that a trainer shows its backbone, which computes one of them once more now and then.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use barnraise_protocol::access::PublicKey;
use barnraise_protocol::experts::audits::{
    self, ANSWERS_MAX, AuditError, AuditOffer, KeptAnswer, OfferedAnswer,
};
use barnraise_protocol::experts::{ExpertPass, ExpertRows, PreparedRequest};
use barnraise_swarm::Moment;
use barnraise_swarm::experts::audits::AnswerSamples;
use barnraise_swarm::random::SplitMix64;
use futures::future::{self, FutureExt, LocalBoxFuture};

use super::ExpertNetwork;
use crate::platform::PlatformError;
use crate::race::before;

/// Mean time from one offer to the next.
const OFFER_INTERVAL: Duration = Duration::from_secs(30);
/// Time of an offer, with the answer that is given.
const OFFER_TIMEOUT: Duration = Duration::from_secs(60);
/// An answer of more bytes makes the next offer wait: so many a second are what it costs, at most.
const BYTES_PER_SECOND: u64 = 16 * 1024;

/// The answers that are kept.
pub(super) struct AnswerLog {
    samples: AnswerSamples<(PublicKey, PreparedRequest, ExpertRows)>,
}

impl AnswerLog {
    /// A host has answered.
    pub(super) fn on_answer(
        &mut self,
        now: Moment,
        host: PublicKey,
        prepared: PreparedRequest,
        rows: ExpertRows,
    ) {
        let n_bytes = prepared.bytes().len() + rows.bytes.len();
        if prepared.request().pass == ExpertPass::Forward && self.samples.wants(now, n_bytes) {
            self.samples.keep(now, n_bytes, (host, prepared, rows));
        }
    }
}

/// Why nothing was offered.
#[derive(Debug, thiserror::Error)]
enum OfferError {
    #[error(transparent)]
    Platform(#[from] PlatformError),
    #[error(transparent)]
    Audit(#[from] AuditError),
}

/// See the module.
pub(super) struct OfferedAnswers<'a> {
    log: Rc<RefCell<AnswerLog>>,
    /// One is on its way. It gives the bytes that were sent.
    offering: Option<LocalBoxFuture<'a, u64>>,
    /// When the next one is made.
    at: Option<Moment>,
    n_sent: u64,
    random: SplitMix64,
}

impl<'a> OfferedAnswers<'a> {
    /// None yet.
    pub(super) fn new(seed: u64) -> Self {
        let mut random = SplitMix64::new(seed);
        let log = AnswerLog { samples: AnswerSamples::new(random.next_u64()) };
        Self { log: Rc::new(RefCell::new(log)), offering: None, at: None, n_sent: 0, random }
    }

    /// Where answers are kept.
    pub(super) fn log(&self) -> Rc<RefCell<AnswerLog>> {
        Rc::clone(&self.log)
    }

    /// When to call [`Self::offer`].
    pub(super) fn next_deadline(&self) -> Option<Moment> {
        self.at.filter(|_| self.offering.is_none())
    }

    /// Offers what is kept, where it is time.
    pub(super) fn offer<N: ExpertNetwork + 'a>(&mut self, network: &N, run_id: &str) {
        let now = network.now();
        self.log.borrow_mut().samples.forget_old(now);
        if self.offering.is_some() || self.log.borrow().samples.is_empty() {
            return;
        }
        let Some(at) = self.at else {
            let costs = Duration::from_secs(std::mem::take(&mut self.n_sent) / BYTES_PER_SECOND);
            // Between nothing and twice the mean.
            let wait = OFFER_INTERVAL.mul_f64(self.random.below(2001) as f64 / 1000.0);
            self.at = Some(now + wait.max(costs));
            return;
        };
        if at > now {
            return;
        }
        self.at = None;
        let (network, run_id, log) = (network.clone(), run_id.to_owned(), Rc::clone(&self.log));
        let offering = async move {
            let timer = network.sleep_until(network.now() + OFFER_TIMEOUT);
            // A backbone that is busy, or gone, is offered others later.
            match before(timer, offered(&network, run_id, &log)).await {
                Some(Ok(n_bytes)) => n_bytes,
                Some(Err(_)) | None => 0,
            }
        };
        self.offering = Some(offering.boxed_local());
    }

    /// Completes when an offer is over.
    pub(super) async fn offered(&mut self) {
        match &mut self.offering {
            Some(offering) => self.n_sent += offering.await,
            None => return future::pending().await,
        }
        self.offering = None;
    }
}

/// Offers what is kept, and gives what the backbone wants. Returns the bytes of that.
async fn offered<N: ExpertNetwork>(
    network: &N,
    run_id: String,
    log: &RefCell<AnswerLog>,
) -> Result<u64, OfferError> {
    let named: Vec<OfferedAnswer> = {
        let log = log.borrow();
        let newest = log.samples.newest(ANSWERS_MAX);
        newest.map(|(host, prepared, rows)| offered_answer(*host, prepared, rows)).collect()
    };
    if named.is_empty() {
        return Ok(0);
    }
    let mut stream = network.open_audit().await?;
    let offer = AuditOffer { run_id, answers: named };
    let Some(wanted) = audits::offer(&mut stream, &offer).await?.and_then(|index| offer.answers.get(index))
    else {
        return Ok(0);
    };
    let is_wanted = |(host, prepared, rows): &(PublicKey, PreparedRequest, ExpertRows)| {
        offered_answer(*host, prepared, rows) == *wanted
    };
    // It may have made room meanwhile.
    let Some((host, prepared, rows)) = log.borrow_mut().samples.take(is_wanted) else { return Ok(0) };
    let signed = prepared.signed(host, &rows);
    // A host that has not signed what it gave proves nothing: its answer is of no use.
    if !signed.is_signed(&offer.run_id) {
        return Ok(0);
    }
    let answer = KeptAnswer { signed, inputs: prepared.into_bytes(), answer: rows.bytes };
    audits::give(&mut stream, &answer).await?;
    Ok(answer.n_bytes() as u64)
}

fn offered_answer(host: PublicKey, prepared: &PreparedRequest, rows: &ExpertRows) -> OfferedAnswer {
    let request = prepared.request();
    OfferedAnswer { host, place: (request.layer, request.uid), version: rows.version }
}
