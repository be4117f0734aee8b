//! Which of the hosts that announce an expert have its place. A record of the DHT is only a claim; in a run that is not open its
//! backbones say who holds the lease.

use std::collections::BTreeSet;

use barnraise_protocol::access::PublicKey;
use barnraise_protocol::dht::Record;
use barnraise_protocol::dht::experts::read_host;
use barnraise_protocol::experts::{ExpertPlace, ExpertUid};

use super::GridPrefix;

/// The places that the records of a prefix announce; none where the prefix is not one of experts.
pub fn announced_places(prefix: &GridPrefix, records: &[Record]) -> BTreeSet<ExpertPlace> {
    records.iter().filter_map(|record| Some(announced(prefix, record)?.0)).collect()
}

/// Drops the records of hosts that hold no copy of the place which they announce.
pub fn retain_holders(
    prefix: &GridPrefix,
    records: &mut Vec<Record>,
    holders: &BTreeSet<(ExpertPlace, PublicKey)>,
) {
    records.retain(|record| announced(prefix, record).is_none_or(|held| holders.contains(&held)));
}

/// The place of a record that names a host, and the host that has signed it.
fn announced(prefix: &GridPrefix, record: &Record) -> Option<(ExpertPlace, PublicKey)> {
    let (last, host) = read_host(record)?;
    let uid = ExpertUid::try_from(prefix.prefix.then(last).ok()?).ok()?;
    Some(((prefix.layer, uid), host.peer))
}

#[cfg(test)]
mod tests {
    use barnraise_protocol::access::KeyPair;
    use barnraise_protocol::dht::UnixMillis;
    use barnraise_protocol::dht::experts::{AnnouncedExpert, announce};
    use barnraise_protocol::experts::{ExpertPrefix, LayerId};

    use super::*;

    const LAYER: LayerId = LayerId(2);

    fn place(indices: &[u16]) -> ExpertPlace {
        (LAYER, ExpertUid::new(indices).unwrap())
    }

    /// What the host with this key announces.
    fn records(host: u8, places: &[[u16; 2]]) -> Vec<Record> {
        let experts: Vec<AnnouncedExpert> = places
            .iter()
            .map(|indices| AnnouncedExpert { uid: place(indices).1, n_waiting: 0, n_steps: 0 })
            .collect();
        announce(&KeyPair::from_seed(&[host; 32]), ("barn", LAYER), &experts, &[], UnixMillis(9)).unwrap()
    }

    fn key(host: u8) -> PublicKey {
        KeyPair::from_seed(&[host; 32]).public()
    }

    #[test]
    fn only_the_holder_of_a_place_is_one_of_its_hosts() {
        let prefix = GridPrefix { layer: LAYER, prefix: ExpertPrefix::new(&[3]).unwrap() };
        let mut all = [records(1, &[[3, 4], [3, 5]]), records(2, &[[3, 4], [3, 6]])].concat();
        assert_eq!(
            announced_places(&prefix, &all),
            [place(&[3, 4]), place(&[3, 5]), place(&[3, 6])].into(),
            "entries of shorter prefixes name no host"
        );
        let holders = BTreeSet::from([(place(&[3, 4]), key(1)), (place(&[3, 5]), key(2))]);
        retain_holders(&prefix, &mut all, &holders);
        let left: Vec<_> = all.iter().filter_map(|record| announced(&prefix, record)).collect();
        assert_eq!(left, [(place(&[3, 4]), key(1))], "neither another host nor a place without one");
        assert!(all.iter().any(|record| announced(&prefix, record).is_none()), "the way to others stays");
        retain_holders(&prefix, &mut all, &BTreeSet::new());
        assert!(announced_places(&prefix, &all).is_empty());
    }
}
