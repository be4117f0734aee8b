//! Caches of prefixes, and hosts that fail.

use super::*;

/// Two experts, each with a host of its own, and one that both have.
fn held() -> HeldRecords {
    let mut held = HeldRecords::default();
    held.announce(&host(0), wall(LIFETIME), &[uid(&[0, 0]), uid(&[1, 1])], 5);
    held.announce(&host(1), wall(LIFETIME), &[uid(&[0, 1]), uid(&[1, 1])], 0);
    held
}

fn best(search: &mut ExpertSearch, now: Moment, held: &HeldRecords) -> (Vec<ExpertUid>, usize) {
    let scores = vec![3.0, 0.0, 1.0, 0.0];
    let id = search.begin(now, query(grid(&[2, 2]), 3, scores)).unwrap();
    let (rows, looked_up) = finish(search, now, held, id);
    (rows[0].experts.iter().map(|expert| expert.uid).collect(), looked_up.len())
}

#[test]
fn what_was_found_is_used_again_and_refreshed_before_it_is_too_old() {
    let (mut search, held) = (ExpertSearch::new(1), held());
    let all = vec![uid(&[0, 0]), uid(&[0, 1]), uid(&[1, 1])];
    assert_eq!(best(&mut search, Moment::ZERO, &held), (all.clone(), 3));
    assert_eq!(best(&mut search, 14 * SECOND, &held), (all.clone(), 0));
    // At once from the cache; the lookups come after the result.
    assert_eq!(best(&mut search, 20 * SECOND, &held), (all.clone(), 0));
    let Some(ExpertSearchAction::LookUp(refreshed)) = search.poll_action(20 * SECOND) else { panic!() };
    assert_eq!(refreshed, [place(&[]), place(&[0]), place(&[1])]);
    assert_eq!(search.poll_action(20 * SECOND), None);
    // A refresh that fails changes nothing as long as the cache is good.
    search.on_failed(20 * SECOND, place(&[]));
    search.on_records(20 * SECOND, wall(20 * SECOND), place(&[0]), &held.get(&place(&[0])));
    search.on_records(20 * SECOND, wall(20 * SECOND), place(&[1]), &held.get(&place(&[1])));
    assert_eq!(best(&mut search, 29 * SECOND, &held), (all.clone(), 0));
    let Some(ExpertSearchAction::LookUp(refreshed)) = search.poll_action(29 * SECOND) else { panic!() };
    assert_eq!(refreshed, [place(&[])]);
    search.on_records(29 * SECOND, wall(29 * SECOND), place(&[]), &held.get(&place(&[])));
    assert_eq!(best(&mut search, 49 * SECOND, &held), (all, 0));
}

#[test]
fn records_count_until_they_expire_and_nothing_is_believed_for_a_while() {
    let mut search = ExpertSearch::new(1);
    let mut held = held();
    held.announce(&host(2), wall(10 * SECOND), &[uid(&[1, 0])], 0);
    let four = vec![uid(&[0, 0]), uid(&[0, 1]), uid(&[1, 0])];
    assert_eq!(best(&mut search, Moment::ZERO, &held).0, four);
    let three = vec![uid(&[0, 0]), uid(&[0, 1]), uid(&[1, 1])];
    assert_eq!(best(&mut search, 10 * SECOND, &held), (three, 0));
    let nothing = HeldRecords::default();
    let mut search = ExpertSearch::new(1);
    assert_eq!(best(&mut search, Moment::ZERO, &nothing), (vec![], 1));
    assert_eq!(best(&mut search, 4 * SECOND, &held), (vec![], 0));
    assert_eq!(best(&mut search, 5 * SECOND, &held).1, 3);
}

#[test]
fn an_expert_whose_hosts_are_left_alone_is_not_there() {
    let (mut search, held) = (ExpertSearch::new(1), held());
    let all = vec![uid(&[0, 0]), uid(&[0, 1]), uid(&[1, 1])];
    assert_eq!(best(&mut search, Moment::ZERO, &held).0, all);
    search.on_host_fault(Moment::ZERO, host(0).public(), HostFault::Failed);
    assert_eq!(best(&mut search, SECOND, &held).0, [uid(&[0, 1]), uid(&[1, 1])]);
    search.on_host_fault(SECOND, host(1).public(), HostFault::Busy(3600 * SECOND));
    assert_eq!(best(&mut search, SECOND, &held).0, []);
    // The first pause is of five seconds, the longest for a busy host of ten.
    assert_eq!(best(&mut search, 5 * SECOND, &held).0, [uid(&[0, 0]), uid(&[1, 1])]);
    assert_eq!(best(&mut search, 11 * SECOND, &held).0, all);
    search.on_host_fault(11 * SECOND, host(0).public(), HostFault::Failed);
    assert_eq!(best(&mut search, 20 * SECOND, &held).0, [uid(&[0, 1]), uid(&[1, 1])], "twice as long");
    assert_eq!(best(&mut search, 21 * SECOND, &held).0, all);
    search.on_host_answered(&host(0).public());
    search.on_host_fault(21 * SECOND, host(0).public(), HostFault::Failed);
    assert_eq!(best(&mut search, 26 * SECOND, &held).0, all, "after an answer pauses begin anew");
    search.on_host_fault(26 * SECOND, host(1).public(), HostFault::Absurd);
    assert_eq!(best(&mut search, 28 * SECOND, &held).0, [uid(&[0, 0]), uid(&[1, 1])]);
}

#[test]
fn of_two_hosts_drawn_the_less_loaded_one_comes_first() {
    let mut held = HeldRecords::default();
    for at in 0..4 {
        held.announce(&host(at), wall(LIFETIME), &[uid(&[0])], u32::from(at));
    }
    let mut n_first = [0; 4];
    for seed in 0..400 {
        let mut search = ExpertSearch::new(seed);
        if seed >= 200 {
            // A host that failed, and may be asked again, comes after all others that are drawn with it.
            search.on_host_fault(Moment::ZERO, host(0).public(), HostFault::Failed);
        }
        let now = 6 * SECOND;
        let id = search.begin(now, query(grid(&[1]), 1, vec![0.0])).unwrap();
        let (rows, _) = finish(&mut search, now, &held, id);
        let hosts = &rows[0].experts[0].hosts;
        assert_eq!(hosts.len(), 4, "all are there to be asked, one after the other");
        let at = (0..4).find(|at| host(*at).public() == hosts[0].peer).unwrap();
        if seed >= 200 {
            assert_ne!(at, 0);
            continue;
        }
        n_first[usize::from(at)] += 1;
    }
    // Of six pairs 0 is first in three, 1 in two, 2 in one, 3 in none.
    assert!(n_first[0] > 70 && n_first[1] > 40 && n_first[2] > 15 && n_first[3] == 0, "{n_first:?}");
}

#[test]
fn false_entries_cost_a_lookup_and_malformed_ones_nothing() {
    let mut held = held();
    let expires_at = wall(LIFETIME);
    let name = held.get(&place(&[]))[0].name.clone();
    let forged = |label: Vec<u8>, value: &[u8]| {
        Record::new(
            name.clone(),
            Some(barnraise_protocol::dht::Subkey::new(label)),
            value.to_vec(),
            expires_at,
        )
    };
    let root = held.0.get_mut(&name.key()).unwrap();
    // Off the grid, off every grid, of another length, with a value.
    let labels: [&[u8]; 4] = [&[2, 0], &[0, 2], &[0], &[0, 0, 0]];
    root.extend(labels.map(|label| forged(label.to_vec(), &[])));
    root.push(forged(vec![1, 0], &[1]));
    let mut search = ExpertSearch::new(1);
    let all = vec![uid(&[0, 0]), uid(&[0, 1]), uid(&[1, 1])];
    assert_eq!(best(&mut search, Moment::ZERO, &held), (all.clone(), 3));
    // On the grid, and nothing is below it.
    let (mut search, scores) = (ExpertSearch::new(1), vec![3.0, 0.0, 9.0, 1.0, 0.0]);
    let id = search.begin(Moment::ZERO, query(grid(&[3, 2]), 3, scores)).unwrap();
    let (rows, looked_up) = finish(&mut search, Moment::ZERO, &held, id);
    assert_eq!((rows[0].experts.len(), looked_up.len()), (3, 4));
    assert!(rows[0].is_exact);
}

#[test]
fn an_expert_whose_hosts_are_left_alone_takes_the_place_of_no_other() {
    let mut held = HeldRecords::default();
    (0..2).for_each(|at| held.announce(&host(at), wall(LIFETIME), &[uid(&[at.into()])], 0));
    let mut search = ExpertSearch::new(1);
    search.on_host_fault(Moment::ZERO, host(0).public(), HostFault::Failed);
    let id = search.begin(Moment::ZERO, query(grid(&[2]), 1, vec![9.0, 1.0])).unwrap();
    let (rows, _) = finish(&mut search, Moment::ZERO, &held, id);
    assert_eq!(uids(&rows[0]), [(uid(&[1]), 1.0)]);
}
