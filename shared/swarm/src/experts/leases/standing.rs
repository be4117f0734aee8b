//! The hosts that a backbone knows: what they have room for, how much they hold, and which of them keep an expert's checkpoints.

use std::collections::BTreeMap;
use std::time::Duration;

use barnraise_protocol::Sha256Hash;
use barnraise_protocol::access::PublicKey;
use barnraise_protocol::experts::ExpertPlace;
use barnraise_protocol::experts::leases::{KnownHost, LEASE_TIME, LeaseRefusal, LeasingHost};

use crate::experts::ANNOUNCED_MAX;
use crate::random::SplitMix64;
use crate::{AddressGroup, Moment};

/// Most hosts that are known.
pub const HOSTS_MAX: usize = 8192;
/// A host that was silent for so long is gone.
const SILENCE_MAX: Duration = LEASE_TIME;

#[derive(Debug)]
struct HostStanding {
    host: LeasingHost,
    group: AddressGroup,
    heard_at: Moment,
    n_held: u64,
    /// Of these, replicas.
    n_replicas: u64,
    /// Of its key, for [`HostStandings::keepers`].
    number: u64,
}

/// All hosts.
#[derive(Debug, Default)]
pub(super) struct HostStandings {
    hosts: BTreeMap<PublicKey, HostStanding>,
    /// Places of each address, and its replicas. Nobody asks for those of the unknown one.
    n_of_group: BTreeMap<(AddressGroup, bool), u64>,
}

impl HostStandings {
    /// A host has asked.
    pub(super) fn on_heard(
        &mut self,
        now: Moment,
        key: PublicKey,
        group: AddressGroup,
        host: &LeasingHost,
    ) -> Result<(), LeaseRefusal> {
        // A peer may have sent any number of them.
        let n_room = host.n_room.min(ANNOUNCED_MAX as u32);
        let host = LeasingHost::new(n_room, host.addresses.iter().cloned());
        if let Some(known) = self.hosts.get_mut(&key) {
            if known.group != group && group != AddressGroup::UNKNOWN {
                let (n_places, n_replicas) = (known.n_held - known.n_replicas, known.n_replicas);
                let before = std::mem::replace(&mut known.group, group);
                for (n_held, are_replicas) in [(n_places, false), (n_replicas, true)] {
                    self.count((before, are_replicas), n_held, false);
                    self.count((group, are_replicas), n_held, true);
                }
            }
            if let Some(known) = self.hosts.get_mut(&key) {
                known.host = host;
                known.heard_at = now;
            }
            return Ok(());
        }
        if self.hosts.len() >= HOSTS_MAX {
            self.hosts.retain(|_, host| host.n_held > 0 || host.heard_at + SILENCE_MAX > now);
        }
        if self.hosts.len() >= HOSTS_MAX {
            return Err(LeaseRefusal::Busy { for_ms: SILENCE_MAX.as_millis() as u32 });
        }
        let number = number_of(&key.0);
        let standing = HostStanding { host, group, heard_at: now, n_held: 0, n_replicas: 0, number };
        self.hosts.insert(key, standing);
        Ok(())
    }

    /// Whether a host has room for one more place.
    pub(super) fn check_room(&self, key: &PublicKey) -> Result<(), LeaseRefusal> {
        let Some(known) = self.hosts.get(key) else { return Err(LeaseRefusal::Room { n_room: 0 }) };
        let n_room = known.host.n_room;
        if known.n_held < u64::from(n_room) { Ok(()) } else { Err(LeaseRefusal::Room { n_room }) }
    }

    /// Places, or replicas, that hosts at the address of this one hold; `None` where the address does not tell hosts apart.
    pub(super) fn n_of_address(&self, key: &PublicKey, are_replicas: bool) -> Option<u64> {
        let group = self.hosts.get(key)?.group;
        let n_held = || self.n_of_group.get(&(group, are_replicas)).copied().unwrap_or_default();
        (group != AddressGroup::UNKNOWN).then(n_held)
    }

    /// The host holds one place, or replica, more, or one less.
    pub(super) fn on_places(&mut self, key: &PublicKey, is_replica: bool, is_more: bool) {
        let Some(known) = self.hosts.get_mut(key) else { return };
        let counted = |n: u64| if is_more { n + 1 } else { n.saturating_sub(1) };
        known.n_held = counted(known.n_held);
        if is_replica {
            known.n_replicas = counted(known.n_replicas);
        }
        let group = known.group;
        self.count((group, is_replica), 1, is_more);
    }

    /// The hosts that keep the checkpoints of an expert, the first one first: those that were heard of lately, in the order of a
    /// hash of expert and host (rendezvous hashing: Thaler and Ravishankar 1998), so that few experts change keepers when a host
    /// comes or goes.
    pub(super) fn keepers(
        &self,
        now: Moment,
        place: ExpertPlace,
        holders: &[PublicKey],
        n_max: usize,
    ) -> Vec<KnownHost> {
        let (layer, uid) = place;
        let indices: Vec<u8> = uid.indices().iter().flat_map(|index| index.to_le_bytes()).collect();
        let of_place = number_of(&[&layer.0.to_le_bytes()[..], &indices].concat());
        let is_there = |(key, known): &(&PublicKey, &HostStanding)| {
            !holders.contains(key) && known.heard_at + SILENCE_MAX > now && !known.host.addresses.is_empty()
        };
        let there = self.hosts.iter().filter(is_there);
        let mut first: BTreeMap<(u64, &PublicKey), &HostStanding> = BTreeMap::new();
        for (key, known) in there {
            first.insert((SplitMix64::new(of_place ^ known.number).next_u64(), key), known);
            if first.len() > n_max {
                first.pop_last();
            }
        }
        let known = |((_, key), known): (&(u64, &PublicKey), &&HostStanding)| {
            KnownHost::new(**key, known.host.addresses.iter().cloned())
        };
        first.iter().map(known).collect()
    }

    fn count(&mut self, group: (AddressGroup, bool), n_places: u64, is_more: bool) {
        let n_of_group = self.n_of_group.entry(group).or_default();
        *n_of_group = if is_more { *n_of_group + n_places } else { n_of_group.saturating_sub(n_places) };
        if *n_of_group == 0 {
            self.n_of_group.remove(&group);
        }
    }

    #[cfg(test)]
    pub(super) fn n_held(&self, key: &PublicKey) -> u64 {
        self.hosts.get(key).map_or(0, |known| known.n_held)
    }
}

fn number_of(bytes: &[u8]) -> u64 {
    Sha256Hash::of(bytes).number()
}
