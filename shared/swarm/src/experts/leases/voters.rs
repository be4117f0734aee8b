//! Which of the other backbones a host waits for: one that has not answered in time is asked beside, so that not each question
//! waits for it.

use std::collections::BTreeSet;

use barnraise_protocol::access::PublicKey;
use barnraise_protocol::experts::leases::Grantors;

/// The other backbones whose grants count, as one of them knows them.
#[derive(Debug)]
pub struct Voters {
    others: Vec<PublicKey>,
    /// Votes that make a majority, beside this backbone's own.
    n_wanted: usize,
    /// Those that have not answered in time since their last answer.
    silent: BTreeSet<PublicKey>,
}

/// Whom to ask. Each of the other backbones is in one of both.
#[derive(Debug, PartialEq, Eq)]
pub struct AskedVoters {
    /// Their votes are waited for, and counted.
    pub waited_for: Vec<PublicKey>,
    /// They are told as well, since they may be back, and have to know of all leases then. Nobody waits for their votes.
    pub beside: Vec<PublicKey>,
}

impl Voters {
    /// As the backbone with the key `here` knows them. All are waited for.
    pub fn new(grantors: &Grantors, here: &PublicKey) -> Self {
        let others = grantors.keys().iter().copied().filter(|grantor| grantor != here).collect();
        Self { others, n_wanted: grantors.majority() - 1, silent: BTreeSet::new() }
    }

    /// Those to ask now. Silent ones are waited for where there is no majority without them.
    pub fn asked(&self) -> AskedVoters {
        let (beside, waited_for): (Vec<PublicKey>, Vec<PublicKey>) =
            self.others.iter().partition(|other| self.silent.contains(*other));
        if waited_for.len() < self.n_wanted {
            return AskedVoters { waited_for: self.others.clone(), beside: Vec::new() };
        }
        AskedVoters { waited_for, beside }
    }

    /// One has answered, with votes or an error: it is waited for again.
    pub fn on_answered(&mut self, other: &PublicKey) {
        self.silent.remove(other);
    }

    /// One has not answered in time.
    pub fn on_silent(&mut self, other: PublicKey) {
        self.silent.insert(other);
    }
}
