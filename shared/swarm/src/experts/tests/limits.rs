//! Limits, deadlines, and what is refused.

use super::*;

#[test]
fn queries_beyond_the_limits_are_refused() {
    let (mut search, shape) = (ExpertSearch::new(1), grid(&[2, 3]));
    let mut refusal = |n_active: usize, n_scores: usize| {
        search.begin(Moment::ZERO, query(shape, n_active, vec![0.0; n_scores])).unwrap_err()
    };
    assert_eq!(refusal(0, 5), QueryError::Active { got: 0 });
    assert_eq!(refusal(ACTIVE_MAX + 1, 5), QueryError::Active { got: ACTIVE_MAX + 1 });
    for got in [0, 4, 6, 5 * (QUERY_ROWS_MAX + 1)] {
        assert_eq!(refusal(1, got), QueryError::Scores { row: 5, got });
    }
    let mut ids = Vec::new();
    for _ in 0..QUERIES_MAX {
        ids.push(search.begin(Moment::ZERO, query(shape, 1, vec![0.0; 5])).unwrap());
    }
    let more = query(shape, ACTIVE_MAX, vec![0.0; 5 * QUERY_ROWS_MAX]);
    assert_eq!(search.begin(Moment::ZERO, more.clone()), Err(QueryError::Queries));
    search.cancel(ids[5]);
    search.begin(Moment::ZERO, more).unwrap();
    // All of them wait for one prefix.
    assert_eq!(search.poll_action(Moment::ZERO), Some(ExpertSearchAction::LookUp(vec![place(&[])])));
    assert_eq!(search.poll_action(Moment::ZERO), None);
    search.check();
}

#[test]
fn a_row_that_is_not_finite_gets_no_expert() {
    let (mut search, held) = (ExpertSearch::new(1), HeldRecords::of(&[uid(&[1])]));
    let scores = vec![f32::NAN, 0.0, 0.0, 1.0, 0.0, f32::INFINITY];
    let id = search.begin(Moment::ZERO, query(grid(&[2]), 1, scores)).unwrap();
    let (rows, _) = finish(&mut search, Moment::ZERO, &held, id);
    assert_eq!((uids(&rows[0]), uids(&rows[1]), uids(&rows[2])), (vec![], vec![(uid(&[1]), 1.0)], vec![]));
}

#[test]
fn at_the_deadline_a_row_has_the_best_that_were_found() {
    let held = HeldRecords::of(&[uid(&[0, 0]), uid(&[1, 1])]);
    let mut search = ExpertSearch::new(1);
    let query = ExpertQuery { deadline: SECOND, ..query(grid(&[2, 2]), 1, vec![1.0, 0.0, 0.0, 10.0]) };
    search.begin(Moment::ZERO, query).unwrap();
    search.poll_action(Moment::ZERO);
    search.on_records(Moment::ZERO, wall(Moment::ZERO), place(&[]), &held.get(&place(&[])));
    let wanted = search.poll_action(Moment::ZERO);
    assert_eq!(wanted, Some(ExpertSearchAction::LookUp(vec![place(&[0]), place(&[1])])));
    search.on_records(Moment::ZERO, wall(Moment::ZERO), place(&[0]), &held.get(&place(&[0])));
    assert_eq!(search.poll_action(Moment::ZERO), None);
    assert_eq!(search.next_deadline(), Some(SECOND));
    search.on_timeout(SECOND);
    let Some(ExpertSearchAction::Selected { rows, .. }) = search.poll_action(SECOND) else { panic!() };
    assert_eq!((uids(&rows[0]), rows[0].is_exact), (vec![(uid(&[0, 0]), 1.0)], false));
    // The other lookup ends by itself, and what it finds is kept.
    assert_eq!(search.next_deadline(), Some(search::LOOKUP_TIMEOUT));
    search.on_timeout(search::LOOKUP_TIMEOUT);
    assert_eq!((search.next_deadline(), search.poll_action(search::LOOKUP_TIMEOUT)), (None, None));
}

#[test]
fn a_row_that_has_its_experts_goes_on_without_a_slow_prefix() {
    let held = HeldRecords::of(&[uid(&[0, 0]), uid(&[1, 1])]);
    for n_active in [1, 2] {
        let mut search = ExpertSearch::new(1);
        search.begin(Moment::ZERO, query(grid(&[2, 2]), n_active, vec![1.0, 0.0, 0.0, 10.0])).unwrap();
        search.poll_action(Moment::ZERO);
        search.on_records(Moment::ZERO, wall(Moment::ZERO), place(&[]), &held.get(&place(&[])));
        search.poll_action(Moment::ZERO);
        search.on_records(Moment::ZERO, wall(Moment::ZERO), place(&[0]), &held.get(&place(&[0])));
        assert_eq!(search.next_deadline(), Some(search::LOOKUP_PATIENCE));
        search.on_timeout(search::LOOKUP_PATIENCE);
        let selected = search.poll_action(search::LOOKUP_PATIENCE);
        if n_active == 2 {
            // It has one of two, and waits for the other.
            assert_eq!((selected, search.next_deadline()), (None, Some(search::LOOKUP_TIMEOUT)));
            search.on_records(2 * SECOND, wall(2 * SECOND), place(&[1]), &held.get(&place(&[1])));
            let Some(ExpertSearchAction::Selected { rows, .. }) = search.poll_action(2 * SECOND) else {
                panic!()
            };
            assert_eq!((rows[0].experts.len(), rows[0].is_exact), (2, true));
            continue;
        }
        let Some(ExpertSearchAction::Selected { rows, .. }) = selected else { panic!() };
        assert_eq!((uids(&rows[0]), rows[0].is_exact), (vec![(uid(&[0, 0]), 1.0)], false));
        // What comes late is there for the next query.
        search.on_records(2 * SECOND, wall(2 * SECOND), place(&[1]), &held.get(&place(&[1])));
        let id = search.begin(2 * SECOND, query(grid(&[2, 2]), 1, vec![1.0, 0.0, 0.0, 10.0])).unwrap();
        let (rows, looked_up) = finish(&mut search, 2 * SECOND, &held, id);
        assert_eq!((uids(&rows[0]), looked_up), (vec![(uid(&[1, 1]), 10.0)], vec![]));
    }
}

#[test]
fn a_query_looks_up_no_more_than_its_share() {
    // Every prefix may have the best expert, and none has one that is as good as its bound.
    let shape = grid(&[40, 40, 2]);
    let alive: Vec<ExpertUid> = (0..3200).filter(|n| n % 2 == 0).map(|n| shape.uid(n).unwrap()).collect();
    let held = HeldRecords::of(&alive);
    let scores: Vec<f32> = [vec![0.0; 81], vec![9.0]].concat();
    let mut search = ExpertSearch::new(1);
    let id = search.begin(Moment::ZERO, query(shape, 1, scores)).unwrap();
    let (rows, looked_up) = finish(&mut search, Moment::ZERO, &held, id);
    assert_eq!((rows[0].experts.len(), rows[0].is_exact), (1, false));
    assert_eq!(looked_up.len(), QUERY_PREFIXES_MAX);
}

#[test]
fn no_more_prefixes_are_looked_up_at_a_time_than_may_be() {
    // Each row wants other prefixes.
    let shape = grid(&[512, 1]);
    let alive: Vec<ExpertUid> = (0..512).map(|n| shape.uid(n).unwrap()).collect();
    let held = HeldRecords::of(&alive);
    let row = |at: usize| (0..513).map(move |index| if index / 4 == at { 1.0 } else { 0.0 });
    let scores: Vec<f32> = (0..128).flat_map(row).collect();
    let mut search = ExpertSearch::new(1);
    let id = search.begin(Moment::ZERO, query(shape, 4, scores)).unwrap();
    search.poll_action(Moment::ZERO);
    search.on_records(Moment::ZERO, wall(Moment::ZERO), place(&[]), &held.get(&place(&[])));
    let mut in_flight: Vec<GridPrefix> = Vec::new();
    while let Some(ExpertSearchAction::LookUp(prefixes)) = search.poll_action(Moment::ZERO) {
        in_flight.extend(prefixes);
    }
    assert_eq!(in_flight.len(), PREFIXES_IN_FLIGHT_MAX);
    for prefix in in_flight {
        search.on_records(Moment::ZERO, wall(Moment::ZERO), prefix, &held.get(&prefix));
    }
    let (rows, _) = finish(&mut search, Moment::ZERO, &held, id);
    for (at, row) in rows.iter().enumerate() {
        let first = 4 * at as u16;
        let want: Vec<ExpertUid> = (first..first + 4).map(|index| uid(&[index, 0])).collect();
        assert_eq!(row.experts.iter().map(|expert| expert.uid).collect::<Vec<_>>(), want);
    }
}

#[test]
fn the_cache_keeps_no_more_than_it_may() {
    let mut search = ExpertSearch::new(1);
    let (mut n_looked_up, now) = (0, Moment::ZERO);
    // Two layers of queries that look up all they may, until the cache is full of nothing.
    for layer in 0..12 {
        let shape = grid(&[512, 512, 1]);
        let mut held = HeldRecords::default();
        let branches: Vec<ExpertUid> = (0..512).map(|at| uid(&[at, at, 0])).collect();
        held.announce(&host(0), wall(LIFETIME), &branches, 0);
        let row = vec![0.0; shape.n_scores()];
        let layer = LayerId(layer);
        let id = search.begin(now, ExpertQuery { layer, ..query(shape, 64, row) }).unwrap();
        while let Some(action) = search.poll_action(now) {
            let ExpertSearchAction::LookUp(prefixes) = action else { break };
            for prefix in prefixes {
                let place = GridPrefix { layer: LAYER, ..prefix };
                search.on_records(now, wall(now), prefix, &held.get(&place));
                n_looked_up += 1;
            }
        }
        search.cancel(id);
        search.check();
    }
    assert!(n_looked_up > 1000, "{n_looked_up}");
    // Hosts that fail are forgotten where they are too many.
    for at in 0..5000u32 {
        let mut peer = host(0).public();
        peer.0[..4].copy_from_slice(&at.to_le_bytes());
        search.on_host_fault(now, peer, HostFault::Failed);
    }
    search.check();
}

#[test]
fn results_that_nobody_takes_count_as_open_queries() {
    let (mut search, held) = (ExpertSearch::new(1), HeldRecords::of(&[uid(&[1])]));
    let id = search.begin(Moment::ZERO, query(grid(&[2]), 1, vec![0.0; 2])).unwrap();
    finish(&mut search, Moment::ZERO, &held, id);
    // All is known now, so that each of them is over at once.
    let begin = |search: &mut ExpertSearch| search.begin(Moment::ZERO, query(grid(&[2]), 1, vec![0.0; 2]));
    let ids: Vec<QueryId> = (0..QUERIES_MAX).map(|_| begin(&mut search).unwrap()).collect();
    assert_eq!(begin(&mut search), Err(QueryError::Queries));
    let (rows, _) = finish(&mut search, Moment::ZERO, &held, ids[0]);
    assert_eq!(uids(&rows[0]), [(uid(&[1]), 0.0)]);
    assert!(begin(&mut search).is_ok());
}

#[test]
fn refreshes_are_no_more_than_lookups_may_be_and_come_after_what_rows_wait_for() {
    let shape = grid(&[512, 1]);
    let alive: Vec<ExpertUid> = (0..512).map(|n| shape.uid(n).unwrap()).collect();
    let held = HeldRecords::of(&alive);
    let scores: Vec<f32> =
        (0..5).flat_map(|at| (0..513).map(move |index| if index / 64 == at { 1.0 } else { 0.0 })).collect();
    let mut search = ExpertSearch::new(1);
    let id = search.begin(Moment::ZERO, query(shape, 64, scores.clone())).unwrap();
    let (_, looked_up) = finish(&mut search, Moment::ZERO, &held, id);
    assert_eq!(looked_up.len(), 321, "the root, and 64 prefixes for each of five rows");
    let now = 15 * SECOND;
    let id = search.begin(now, query(shape, 64, scores)).unwrap();
    assert!(
        matches!(search.poll_action(now), Some(ExpertSearchAction::Selected { query, .. }) if query == id)
    );
    let other = ExpertQuery { layer: LayerId(9), ..query(grid(&[2]), 1, vec![0.0; 2]) };
    search.begin(now, other).unwrap();
    let mut refreshed = Vec::new();
    while let Some(ExpertSearchAction::LookUp(prefixes)) = search.poll_action(now) {
        refreshed.extend(prefixes);
        search.check();
    }
    assert_eq!((refreshed[0].layer, refreshed.len()), (LayerId(9), PREFIXES_IN_FLIGHT_MAX));
}

#[test]
fn prefixes_that_no_row_waits_for_any_more_are_not_looked_up() {
    let shape = grid(&[40, 2]);
    let all: Vec<ExpertUid> = (0..80).map(|number| shape.uid(number).unwrap()).collect();
    let held = HeldRecords::of(&all);
    // One row wants the first prefixes, another one those from 20 on.
    let row = |first: usize| (0..40).map(move |index: usize| -(((index + 40 - first) % 40) as f32));
    let scores: Vec<f32> = [0, 20].into_iter().flat_map(|first| row(first).chain([0.0, -0.1])).collect();
    let mut search = ExpertSearch::new(1);
    search.begin(Moment::ZERO, ExpertQuery { deadline: SECOND, ..query(shape, 12, scores) }).unwrap();
    let look_up = |search: &mut ExpertSearch| -> Vec<GridPrefix> {
        match search.poll_action(Moment::ZERO) {
            Some(ExpertSearchAction::LookUp(prefixes)) => prefixes,
            other => panic!("{other:?}"),
        }
    };
    let answer = |search: &mut ExpertSearch, prefixes: Vec<GridPrefix>| {
        for prefix in prefixes {
            search.on_records(Moment::ZERO, wall(Moment::ZERO), prefix, &held.get(&prefix));
        }
    };
    let root = look_up(&mut search);
    answer(&mut search, root);
    let first = look_up(&mut search);
    assert_eq!(first, (0..8).map(|index| place(&[index])).collect::<Vec<_>>());
    // Six of them have the twelve best of the first row, which wanted four more.
    answer(&mut search, first);
    assert_eq!(look_up(&mut search), (20..28).map(|index| place(&[index])).collect::<Vec<_>>());
    // Nor is anything once the query is over, or given up.
    search.on_timeout(SECOND);
    search.check();
    assert!(matches!(search.poll_action(SECOND), Some(ExpertSearchAction::Selected { .. })));
    assert_eq!(search.poll_action(SECOND), None);
    let other = ExpertQuery { layer: LayerId(9), ..query(shape, 1, vec![0.0; 42]) };
    let id = search.begin(SECOND, other).unwrap();
    search.cancel(id);
    search.check();
    assert_eq!(search.poll_action(SECOND), None);
}

#[test]
fn a_lookup_that_fails_ends_the_wait_in_its_layer_alone() {
    let mut search = ExpertSearch::new(1);
    let id = search.begin(Moment::ZERO, query(grid(&[2]), 1, vec![0.0; 2])).unwrap();
    let other = ExpertQuery { layer: LayerId(9), ..query(grid(&[2]), 1, vec![0.0; 2]) };
    search.begin(Moment::ZERO, other).unwrap();
    assert!(
        matches!(search.poll_action(Moment::ZERO), Some(ExpertSearchAction::LookUp(both)) if both.len() == 2)
    );
    search.on_failed(Moment::ZERO, place(&[7]));
    assert_eq!(search.poll_action(Moment::ZERO), None, "nobody looked that one up");
    search.on_failed(Moment::ZERO, place(&[]));
    let Some(ExpertSearchAction::Selected { query, rows }) = search.poll_action(Moment::ZERO) else {
        panic!()
    };
    assert_eq!((query, uids(&rows[0]), rows[0].is_exact), (id, vec![], false));
    assert_eq!(search.poll_action(Moment::ZERO), None);
    assert_eq!(search.next_deadline(), Some(search::LOOKUP_PATIENCE), "the other one waits");
}

#[test]
fn a_query_that_is_given_up_takes_no_other_with_it() {
    let (mut search, held) = (ExpertSearch::new(1), HeldRecords::of(&[uid(&[1])]));
    let ids = [0.0, 2.0, 3.0]
        .map(|score| search.begin(Moment::ZERO, query(grid(&[2]), 1, vec![0.0, score])).unwrap());
    assert!(ids[0] != ids[1] && ids[1] != ids[2] && ids[0] != ids[2]);
    search.cancel(ids[1]);
    search.poll_action(Moment::ZERO);
    search.on_records(Moment::ZERO, wall(Moment::ZERO), place(&[]), &held.get(&place(&[])));
    let selected = std::iter::from_fn(|| search.poll_action(Moment::ZERO)).map(|action| match action {
        ExpertSearchAction::Selected { query, rows } => (query, uids(&rows[0])[0].1),
        action => panic!("{action:?}"),
    });
    let selected: BTreeMap<QueryId, f32> = selected.collect();
    assert_eq!(selected, BTreeMap::from([(ids[0], 0.0), (ids[2], 3.0)]));
}
