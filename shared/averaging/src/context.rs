//! State that all parts of a round share: the group, the values, what was counted.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use barnraise_protocol::average::Finished;
use barnraise_swarm::averaging::{Group, MemberInput};
use barnraise_swarm::bandwidth::Bytes;

use crate::config::AveragingConfig;
use crate::error::{FaultError, PartError};
use crate::outcome::{Fault, PartOutcome};
use crate::platform::Platform;

/// Most faults of a round that are kept.
const FAULTS_MAX: usize = 64;

/// State that all parts of a round share.
pub(crate) struct RoundContext<'p, P> {
    pub(crate) platform: &'p P,
    pub(crate) config: &'p AveragingConfig,
    pub(crate) group: &'p Group,
    pub(crate) me: usize,
    /// This member's input, without its values.
    pub(crate) input: MemberInput,
    pub(crate) values: Vec<f32>,
    pub(crate) faults: Mutex<Vec<Fault>>,
    pub(crate) n_bytes_sent: AtomicU64,
    pub(crate) n_bytes_received: AtomicU64,
}

impl<P> RoundContext<'_, P> {
    pub(crate) fn sends(&self) -> bool {
        self.input.n_samples > 0
    }

    /// The outcome of a finished part. An average of one member's values counts only where no other member has any.
    pub(crate) fn outcome(&self, finished: Finished, attempt: u8) -> PartOutcome {
        let n_senders = self.group.members().iter().filter(|member| member.n_samples > 0).count();
        if finished.members.n_members() as usize >= n_senders.min(2) {
            return PartOutcome::Averaged { finished, attempt };
        }
        PartOutcome::NotAveraged { error: PartError::OneMember }
    }

    pub(crate) fn receives(&self) -> bool {
        self.group.members()[self.me].receives
    }

    pub(crate) fn on_fault(&self, part: usize, member: usize, error: FaultError) {
        let mut faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        if faults.len() < FAULTS_MAX {
            let peer = self.group.members()[member].peer.clone();
            faults.push(Fault { peer, part, error });
        }
    }
}

impl<P: Platform> RoundContext<'_, P> {
    pub(crate) fn count_sent(&self, n_bytes: usize) {
        let sent = n_bytes as u64;
        self.n_bytes_sent.fetch_add(sent, Ordering::Relaxed);
        self.platform.on_moved(Bytes { sent, received: 0 });
    }

    pub(crate) fn count_received(&self, n_bytes: usize) {
        let received = n_bytes as u64;
        self.n_bytes_received.fetch_add(received, Ordering::Relaxed);
        self.platform.on_moved(Bytes { sent: 0, received });
    }
}
