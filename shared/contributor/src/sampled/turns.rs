//! Senders of wanted models that wait for what comes next.

use std::collections::BTreeMap;

use barnraise_protocol::access::PublicKey;
use barnraise_protocol::sampled::{OfferTurn, SampledTask};
use futures::channel::oneshot;

/// The conversations in which they wait.
#[derive(Debug, Default)]
pub struct OfferTurns(BTreeMap<(PublicKey, SampledTask), oneshot::Sender<OfferTurn>>);

impl OfferTurns {
    /// The next turn of a sender. To be called before the state machine hears of what that follows.
    pub fn wait(&mut self, from: PublicKey, task: SampledTask) -> oneshot::Receiver<OfferTurn> {
        let (turn, told) = oneshot::channel();
        self.0.insert((from, task), turn);
        told
    }

    /// Tells a sender its turn, if it is still there.
    pub fn tell(&mut self, to: PublicKey, task: SampledTask, turn: OfferTurn) {
        if let Some(waiting) = self.0.remove(&(to, task)) {
            // Its conversation may have ended.
            let _ = waiting.send(turn);
        }
    }

    /// Its conversation has ended.
    pub fn forget(&mut self, from: PublicKey, task: SampledTask) {
        self.0.remove(&(from, task));
    }
}
