//! How many places are remembered.

use super::*;

const RUN: &str = "barn";

fn place(number: usize) -> ExpertPlace {
    let shape = GridShape::new(&[512, 512]).unwrap();
    (LayerId(0), shape.uid(number as u64).unwrap())
}

#[test]
fn a_backbone_remembers_a_bounded_number_of_places_and_forgets_the_longest_vacant() {
    let (key, now) = (KeyPair::from_seed(&[1; 32]), Moment::from_secs(100));
    let grids = vec![(LayerId(0), GridShape::new(&[512, 512]).unwrap())];
    let run = LeasedRun { run_id: RUN.into(), grids, grantors: Grantors::new([key.public()]).unwrap() };
    let holder = key.public();
    let mut book = LeaseBook::new(key, run, now, false, 1);
    let host = LeasingHost::new(64, [vec![1]]);
    book.on_host(now, holder, AddressGroup::UNKNOWN, &host).unwrap();
    let entry = |number: usize| {
        let vacant_since = [(5, 30), (7, 20), (9, 10)].iter().find(|(vacant, _)| *vacant == number);
        CopyEntry {
            granted: GrantedTerm { term: 4, holder: PublicKey([2; 32]) },
            before: None,
            term_max: 4,
            released: 0,
            is_renewed: true,
            is_held: vacant_since.is_none(),
            expires_at: vacant_since.map_or(now + LEASE_TIME, |(_, since)| Moment::from_secs(*since)),
            load: ExpertLoad::default(),
            has_served: false,
            n_waiting_before: 0,
            gives_way: false,
            granted_at: now,
            busy_at: now,
        }
    };
    book.copies = (0..LEASES_MAX).map(|number| ((place(number), 0), entry(number))).collect();
    let mut hold = |number| {
        let held = book.hold(now, holder, (place(number), 0), (9, None));
        let vacant = [5, 7, 9].map(|vacant| book.copies.contains_key(&(place(vacant), 0)));
        assert_eq!(book.copies.len(), LEASES_MAX);
        held.map(|()| vacant)
    };
    assert_eq!(hold(5), Ok([true; 3]), "it is remembered already");
    assert_eq!(hold(LEASES_MAX), Ok([true, true, false]));
    assert_eq!(hold(LEASES_MAX + 1), Ok([true, false, false]));
    let busy = Err(LeaseRefusal::Busy { for_ms: 30_000 });
    assert_eq!(hold(LEASES_MAX + 2), busy, "all others are held");
}
