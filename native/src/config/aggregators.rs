//! `[aggregators]`: the other aggregators of the run, and the settings of their averaging.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::time::Duration;

use barnraise_protocol::matchmaking::{GROUP_SIZE_MIN, MEMBERS_MAX};
use bytesize::ByteSize;
use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId};
use serde::{Deserialize, Serialize};

use super::{Invalid, LinkSpeed};

const TIMES: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(3600);
/// What follows from the longest one is not out of [`TIMES`].
const PATIENCE: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(300);
const SPEEDS: RangeInclusive<ByteSize> = ByteSize::kib(1)..=ByteSize::tib(1);

/// Which native peers may average parts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReducersAllowed {
    /// None.
    #[default]
    Nobody,
    /// Those in `reducer_peers`.
    Named,
    /// Everybody who has access to the run.
    Anybody,
}

/// `[aggregators]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AggregatorsSection {
    /// The other aggregators, each with its peer id. One without an address is looked up in the DHT.
    pub peers: Vec<Multiaddr>,
    /// Most members of an averaging group. More aggregators, or ones that fail often, average in smaller groups in
    /// several rounds.
    pub group_members_max: usize,
    /// Native peers that average parts for the backbones.
    pub reducers: ReducersAllowed,
    /// The named reducers.
    #[serde(with = "peer_ids")]
    pub reducer_peers: Vec<PeerId>,
    /// Bytes per second that this peer can receive; the sizes of parts depend on it.
    pub download_per_second: LinkSpeed,
    /// Bytes per second that it can send.
    pub upload_per_second: LinkSpeed,
    /// Longest wait of an averaging for one member, in total. The other times follow from it, unless they are given.
    #[serde(with = "humantime_serde")]
    pub patience: Duration,
    /// See [`Self::silence`].
    #[serde(with = "humantime_serde", skip_serializing_if = "Option::is_none")]
    pub silence: Option<Duration>,
    /// See [`Self::gather_timeout`].
    #[serde(with = "humantime_serde", skip_serializing_if = "Option::is_none")]
    pub gather_timeout: Option<Duration>,
    /// See [`Self::reducer_timeout`].
    #[serde(with = "humantime_serde", skip_serializing_if = "Option::is_none")]
    pub reducer_timeout: Option<Duration>,
    /// See [`Self::deadline`].
    #[serde(with = "humantime_serde", skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Duration>,
}

impl Default for AggregatorsSection {
    fn default() -> Self {
        Self {
            peers: Vec::new(),
            group_members_max: MEMBERS_MAX,
            reducers: ReducersAllowed::Nobody,
            reducer_peers: Vec::new(),
            download_per_second: LinkSpeed::Auto,
            upload_per_second: LinkSpeed::Auto,
            patience: Duration::from_secs(5),
            silence: None,
            gather_timeout: None,
            reducer_timeout: None,
            deadline: None,
        }
    }
}

impl AggregatorsSection {
    /// An aggregator that is silent for this long counts as gone. One that usually sends regularly counts as gone
    /// sooner, after a quarter of it at the earliest.
    pub fn silence(&self) -> Duration {
        self.silence.unwrap_or(self.patience * 2)
    }

    /// Longest wait of an aggregator that has collected for one that has not, and for the leader's proposal of a group.
    pub fn gather_timeout(&self) -> Duration {
        self.gather_timeout.unwrap_or(self.patience * 6 / 5)
    }

    /// Longest silence of a reducer before another one takes over its part.
    pub fn reducer_timeout(&self) -> Duration {
        self.reducer_timeout.unwrap_or(self.patience * 12 / 5)
    }

    /// Longest duration of an averaging.
    pub fn deadline(&self) -> Duration {
        self.deadline.unwrap_or_else(|| (self.reducer_timeout() * 5).min(*TIMES.end()))
    }

    /// Timeouts of an averaging.
    pub fn averaging(&self) -> barnraise_averaging::AveragingConfig {
        barnraise_averaging::AveragingConfig {
            patience: self.patience,
            reducer_timeout: self.reducer_timeout(),
            deadline: self.deadline(),
            ..barnraise_averaging::AveragingConfig::default()
        }
    }

    /// The other aggregators, with their addresses if given.
    pub fn peers(&self) -> impl Iterator<Item = (PeerId, Option<Multiaddr>)> {
        self.peers.iter().filter_map(|address| {
            let peer = peer_id(address)?;
            Some((peer, Some(address.clone()).filter(|address| address.iter().count() > 1)))
        })
    }

    pub(super) fn validate(&self) -> Result<(), Invalid> {
        let mut known = BTreeSet::new();
        for address in &self.peers {
            let peer = peer_id(address);
            let want = "each ends with /p2p/<peer id>; `barnraise id` prints a backbone's own";
            Invalid::check("aggregators.peers", peer.is_some(), want, address)?;
            Invalid::check("aggregators.peers", known.insert(peer), "each of them once", address)?;
        }
        let others_max = MEMBERS_MAX - 1;
        let n_others = self.peers.len();
        let want = format!("at most {others_max} others");
        Invalid::check("aggregators.peers", n_others <= others_max, want, n_others)?;
        let sizes = usize::from(GROUP_SIZE_MIN)..=MEMBERS_MAX;
        Invalid::check_range("aggregators.group_members_max", self.group_members_max, sizes)?;
        let got = super::as_written(&self.reducers);
        let want = "peer ids in aggregators.reducer_peers with \"named\", and none otherwise";
        let is_consistent = (self.reducers == ReducersAllowed::Named) != self.reducer_peers.is_empty();
        Invalid::check("aggregators.reducers", is_consistent, want, &got)?;
        for (key, speed) in [
            ("aggregators.download_per_second", self.download_per_second),
            ("aggregators.upload_per_second", self.upload_per_second),
        ] {
            if let LinkSpeed::Fixed(speed) = speed {
                Invalid::check_range(key, speed, SPEEDS)?;
            }
        }
        self.validate_times()
    }

    /// Each by itself, and those that have to follow each other.
    fn validate_times(&self) -> Result<(), Invalid> {
        Invalid::check_duration("aggregators.patience", self.patience, PATIENCE)?;
        for (key, got) in [
            ("aggregators.silence", self.silence),
            ("aggregators.gather_timeout", self.gather_timeout),
            ("aggregators.reducer_timeout", self.reducer_timeout),
            ("aggregators.deadline", self.deadline),
        ] {
            got.map_or(Ok(()), |got| Invalid::check_duration(key, got, TIMES))?;
        }
        let (reducer, deadline) = (self.reducer_timeout(), self.deadline());
        let want =
            format!("more than patience, {:?}: a reducer waits that long for one member", self.patience);
        let is_after = self.patience < reducer;
        Invalid::check("aggregators.reducer_timeout", is_after, want, format!("{reducer:?}"))?;
        let want = format!("more than reducer_timeout, {reducer:?}: another reducer needs time for the part");
        Invalid::check("aggregators.deadline", reducer < deadline, want, format!("{deadline:?}"))?;
        // The order is that of the averaging; so are limits of its own.
        let checked = self.averaging().check();
        checked.map_err(|error| Invalid::new("aggregators.deadline", error, format!("{deadline:?}")))
    }
}

/// Peer ids as text in base58, as `barnraise join` prints them.
mod peer_ids {
    use libp2p::PeerId;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(peers: &[PeerId], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(peers.iter().map(ToString::to_string))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<PeerId>, D::Error> {
        let texts = Vec::<String>::deserialize(deserializer)?;
        let parse = |text: String| {
            text.parse::<PeerId>()
                .map_err(|error| D::Error::custom(format!("`{text}` is no peer id: {error}")))
        };
        texts.into_iter().map(parse).collect()
    }
}

fn peer_id(address: &Multiaddr) -> Option<PeerId> {
    match address.iter().last() {
        Some(Protocol::P2p(peer)) => Some(peer),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use barnraise_swarm::matchmaking;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_times_follow_from_patience_unless_they_are_given() {
        let default = AggregatorsSection::default();
        assert_eq!(
            (default.silence(), default.gather_timeout()),
            (matchmaking::SILENCE, matchmaking::GATHER)
        );
        assert_eq!((default.reducer_timeout(), default.deadline()), (12 * SECOND, 60 * SECOND));
        for patience in [*PATIENCE.start(), 100 * SECOND, *PATIENCE.end()] {
            let section = AggregatorsSection { patience, ..AggregatorsSection::default() };
            assert_eq!(section.validate(), Ok(()), "{patience:?}");
            assert!(
                TIMES.contains(&section.deadline()) && TIMES.contains(&section.silence()),
                "{patience:?}"
            );
        }
        let given = AggregatorsSection {
            reducer_timeout: Some(9 * SECOND),
            silence: Some(SECOND),
            ..AggregatorsSection::default()
        };
        assert_eq!(
            (given.silence(), given.reducer_timeout(), given.deadline()),
            (SECOND, 9 * SECOND, 45 * SECOND)
        );
    }

    #[test]
    fn times_that_contradict_each_other_are_refused_by_the_name_of_one() {
        type TimesEdit = fn(&mut AggregatorsSection);
        let broken: [(&str, TimesEdit); 4] = [
            ("aggregators.reducer_timeout", |section| section.reducer_timeout = Some(5 * SECOND)),
            ("aggregators.deadline", |section| section.deadline = Some(12 * SECOND)),
            ("aggregators.deadline", |section| section.reducer_timeout = Some(3600 * SECOND)),
            ("aggregators.patience", |section| section.patience = 301 * SECOND),
        ];
        for (key, break_it) in broken {
            let mut section = AggregatorsSection::default();
            break_it(&mut section);
            assert_eq!(section.validate().unwrap_err().key, key);
        }
    }
}
