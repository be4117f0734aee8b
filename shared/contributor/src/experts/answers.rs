//! Answers of experts that a trainer shows its backbone, which computes one of them once more now and then.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use barnraise_protocol::Sha256Hash;
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
    /// Of the run.
    model: Sha256Hash,
    random: SplitMix64,
}

impl AnswerLog {
    /// A host has answered. Returns whether it has signed that, as far as that was looked at: a signature takes longer to check than
    /// many an answer to use.
    pub(super) fn on_answer(
        &mut self,
        now: Moment,
        host: PublicKey,
        prepared: PreparedRequest,
        rows: ExpertRows,
    ) -> bool {
        let n_bytes = prepared.bytes().len() + rows.bytes.len();
        let is_kept = prepared.request().pass == ExpertPass::Forward && self.samples.wants(now, n_bytes);
        let is_signed = || prepared.signed(host, &rows).is_signed(&prepared.request().run_id, self.model);
        if (is_kept || self.random.below(CHECKED) == 0) && !is_signed() {
            return false;
        }
        if is_kept {
            self.samples.keep(now, n_bytes, (host, prepared, rows));
        }
        true
    }
}

/// Of so many answers that are not kept, the signature of one is looked at.
const CHECKED: usize = 8;

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
    /// None yet, of a run with this model.
    pub(super) fn new(seed: u64, model: Sha256Hash) -> Self {
        let mut random = SplitMix64::new(seed);
        let samples = AnswerSamples::new(random.next_u64());
        let log = AnswerLog { samples, model, random: SplitMix64::new(random.next_u64()) };
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
        if self.offering.is_some() {
            return;
        }
        if self.log.borrow().samples.is_empty() {
            self.at = None;
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
        // Of one expert, so that one of them may be of the very step of its checkpoint.
        let samples = &mut log.borrow_mut().samples;
        let any = samples.any().map(|(host, prepared, rows)| offered_answer(*host, prepared, rows));
        let all = samples.newest_first().map(|(host, prepared, rows)| offered_answer(*host, prepared, rows));
        let is_of_expert = |answer: &OfferedAnswer| {
            any.is_some_and(|any| (any.host, any.place) == (answer.host, answer.place))
        };
        all.filter(is_of_expert).take(ANSWERS_MAX).collect()
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
    let answer = KeptAnswer { signed, inputs: prepared.into_bytes(), answer: rows.bytes };
    audits::give(&mut stream, &answer).await?;
    Ok(answer.n_bytes() as u64)
}

fn offered_answer(host: PublicKey, prepared: &PreparedRequest, rows: &ExpertRows) -> OfferedAnswer {
    let request = prepared.request();
    OfferedAnswer { host, place: (request.layer, request.uid), version: rows.version }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use barnraise_protocol::access::{KeyPair, Signature, UnixTime};
    use barnraise_protocol::bulk::Transfer;
    use barnraise_protocol::codec::TensorCodec;
    use barnraise_protocol::dht::{Record, RecordKey};
    use barnraise_protocol::experts::checkpoints::CheckpointVersion;
    use barnraise_protocol::experts::leases;
    use barnraise_protocol::experts::{
        AnswerSigner, ExpertPlace, ExpertRequest, ExpertUid, HostToTrainer, LayerId,
    };
    use barnraise_swarm::PeerKey;
    use futures::executor::block_on;
    use futures::io::Cursor;

    use super::*;

    const MODEL: Sha256Hash = Sha256Hash([5; 32]);

    /// A network whose backbone is gone.
    #[derive(Clone)]
    struct Alone(Moment);

    impl ExpertNetwork for Alone {
        type Stream = Cursor<Vec<u8>>;
        type BackboneStream = Cursor<Vec<u8>>;

        fn now(&self) -> Moment {
            self.0
        }

        fn unix_time(&self) -> UnixTime {
            UnixTime(0)
        }

        async fn sleep_until(&self, _: Moment) {
            future::pending::<()>().await;
        }

        async fn look_up(&self, _: Vec<RecordKey>) -> Result<Vec<Vec<Record>>, PlatformError> {
            Err(PlatformError::NotConnected)
        }

        async fn holders(
            &self,
            _: &str,
            _: Vec<ExpertPlace>,
        ) -> Result<Vec<Vec<leases::CopyHolder>>, PlatformError> {
            Err(PlatformError::NotConnected)
        }

        async fn open_audit(&self) -> Result<Self::BackboneStream, PlatformError> {
            Err(PlatformError::NotConnected)
        }

        async fn open_host(&self, _: &PeerKey, _: &[Vec<u8>]) -> Result<Self::Stream, PlatformError> {
            Err(PlatformError::NotConnected)
        }
    }

    /// A request, and what a host with this key says to it.
    fn answered(key: &KeyPair, model: Sha256Hash) -> (PreparedRequest, ExpertRows) {
        let request = ExpertRequest {
            run_id: "barn".into(),
            request_id: 1,
            layer: LayerId(0),
            uid: ExpertUid::new(&[3]).unwrap(),
            pass: ExpertPass::Forward,
            n_steps: 0,
            n_rows: 1,
            input_values: 2,
            output_values: 2,
            codec: TensorCodec::F32,
            transfer: Transfer::of(&[]),
        };
        let prepared = PreparedRequest::new(request, &[1.0, 2.0], None).unwrap();
        let version = CheckpointVersion { term: 7, n_steps: 9 };
        let signer = AnswerSigner { key: key.clone(), model };
        let rows = prepared.request().answer(&signer, version, &[3.0, 4.0]).unwrap();
        let mut sent = Cursor::new(Vec::new());
        block_on(barnraise_protocol::experts::reply(&mut sent, &rows)).unwrap();
        let mut read = Cursor::new(sent.into_inner());
        let answer = block_on(barnraise_protocol::framing::read(&mut read, 512)).unwrap();
        let HostToTrainer::Rows { version, transfer, signature } = answer else { unreachable!() };
        let bytes = TensorCodec::F32.encode(&[3.0, 4.0]).unwrap();
        (prepared, ExpertRows { version, signature, transfer, bytes })
    }

    #[test]
    fn an_answer_that_its_host_has_not_signed_is_found() {
        let key = KeyPair::from_seed(&[1; 32]);
        let offered = OfferedAnswers::new(1, MODEL);
        let log = offered.log();
        let is_taken = |host: &KeyPair, (prepared, rows): (PreparedRequest, ExpertRows)| {
            log.borrow_mut().on_answer(Moment::ZERO, host.public(), prepared, rows)
        };
        let (prepared, rows) = answered(&key, MODEL);
        let unsigned = ExpertRows { signature: Signature::from([0; 64]), ..rows };
        assert!(!is_taken(&key, (prepared, unsigned)), "it would be kept");
        assert!(!is_taken(&KeyPair::from_seed(&[2; 32]), answered(&key, MODEL)), "of another host");
        assert!(!is_taken(&key, answered(&key, Sha256Hash([6; 32]))), "of another model");
        assert!(is_taken(&key, answered(&key, MODEL)));
        // One is kept, and of the others some are looked at.
        let forged = || is_taken(&KeyPair::from_seed(&[2; 32]), answered(&key, MODEL));
        let n_found = (0..80).filter(|_| !forged()).count();
        assert!((2..40).contains(&n_found), "{n_found}");
    }

    #[test]
    fn a_trainer_that_has_nothing_to_offer_waits_for_nothing() {
        let key = KeyPair::from_seed(&[1; 32]);
        let mut offered = OfferedAnswers::new(1, MODEL);
        offered.offer(&Alone(Moment::ZERO), "barn");
        assert_eq!(offered.next_deadline(), None);
        let (prepared, rows) = answered(&key, MODEL);
        assert!(offered.log().borrow_mut().on_answer(Moment::ZERO, key.public(), prepared, rows));
        offered.offer(&Alone(Moment::ZERO), "barn");
        let at = offered.next_deadline().unwrap();
        assert!(at <= 2 * OFFER_INTERVAL);
        // The backbone is gone, and others are offered later.
        offered.offer(&Alone(at), "barn");
        assert_eq!(offered.next_deadline(), None, "it is on its way");
        block_on(offered.offered());
        offered.offer(&Alone(at), "barn");
        let next = offered.next_deadline().unwrap();
        assert!(next >= at);
        // By then what it has is too old.
        offered.offer(&Alone(Moment::from_secs(3600)), "barn");
        assert_eq!(offered.next_deadline(), None);
    }
}
