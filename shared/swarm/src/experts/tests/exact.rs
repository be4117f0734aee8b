//! Results are those of brute force.

use proptest::prelude::*;

use super::*;

#[test]
fn the_best_expert_below_a_prefix_that_looks_worse_is_found() {
    let shape = grid(&[2, 2]);
    let held = HeldRecords::of(&[uid(&[0, 0]), uid(&[1, 1])]);
    let mut search = ExpertSearch::new(1);
    // A beam of one prefix would follow 0, which looks better than 1.
    let id = search.begin(Moment::ZERO, query(shape, 1, vec![1.0, 0.0, 0.0, 10.0])).unwrap();
    let (rows, looked_up) = finish(&mut search, Moment::ZERO, &held, id);
    assert_eq!(uids(&rows[0]), [(uid(&[1, 1]), 10.0)]);
    assert!(rows[0].is_exact);
    assert_eq!(looked_up, [place(&[]), place(&[0]), place(&[1])]);
    assert_eq!(rows[0].experts[0].hosts[0].peer, host(0).public());
    assert_eq!(rows[0].experts[0].hosts[0].n_steps, 7);
}

#[test]
fn prefixes_that_cannot_have_a_better_expert_are_not_looked_up() {
    let shape = grid(&[64, 64]);
    let all: Vec<ExpertUid> = (0..4096).map(|number| shape.uid(number).unwrap()).collect();
    let held = HeldRecords::of(&all);
    let scores: Vec<f32> = (0..128).map(|at| -(at as f32 % 64.0)).collect();
    let mut search = ExpertSearch::new(1);
    let id = search.begin(Moment::ZERO, query(shape, 4, scores.clone())).unwrap();
    let (rows, looked_up) = finish(&mut search, Moment::ZERO, &held, id);
    assert_eq!(uids(&rows[0]), brute_force(&shape, &scores, 4, &all));
    // The four best are 0.0, 0.1, 1.0 and 0.2, which has a score of -2, as 1.1 and 2.0.
    assert_eq!(looked_up, [place(&[]), place(&[0]), place(&[1]), place(&[2]), place(&[3])]);
}

#[derive(Debug, Clone)]
struct SearchCase {
    sides: Vec<u16>,
    percent: usize,
    n_rows: usize,
    n_active: usize,
    /// Scores are multiples of a half up to this: few of them give ties.
    n_levels: usize,
    seed: u64,
}

fn case() -> impl Strategy<Value = SearchCase> {
    let sides = proptest::collection::vec(1u16..6, 1..=4);
    (sides, 0usize..=100, 1usize..5, 1usize..6, 1usize..40, any::<u64>()).prop_map(
        |(sides, percent, n_rows, n_active, n_levels, seed)| SearchCase {
            sides,
            percent,
            n_rows,
            n_active,
            n_levels,
            seed,
        },
    )
}

/// A search with its world: answers come in any order, and those of some prefixes never.
struct SearchRun {
    grid: GridShape,
    alive: Vec<ExpertUid>,
    scores: Vec<f32>,
    rows: Vec<RowSelection>,
    looked_up: Vec<GridPrefix>,
    ended_at: Moment,
}

fn run(case: &SearchCase, fails_percent: usize, silent_percent: usize) -> SearchRun {
    let mut random = SplitMix64::new(case.seed);
    let grid = grid(&case.sides);
    let alive = some_uids(&grid, case.percent, &mut random);
    let held = HeldRecords::of(&alive);
    let n_scores = case.n_rows * grid.n_scores();
    // Tenths are rounded, so that sums are, too.
    let scores: Vec<f32> = (0..n_scores).map(|_| random.below(case.n_levels) as f32 * 0.1 - 1.0).collect();
    let mut search = ExpertSearch::new(case.seed);
    let deadline = 3 * SECOND;
    let query = ExpertQuery { deadline, ..query(grid, case.n_active, scores.clone()) };
    search.begin(Moment::ZERO, query).unwrap();
    let (mut now, mut open, mut looked_up) = (Moment::ZERO, Vec::new(), Vec::new());
    loop {
        while let Some(action) = search.poll_action(now) {
            match action {
                ExpertSearchAction::LookUp(prefixes) => {
                    assert!((1..=LOOKUP_KEYS_MAX).contains(&prefixes.len()));
                    looked_up.extend(prefixes.iter().copied());
                    open.extend(prefixes.into_iter().filter(|_| random.below(100) >= silent_percent));
                }
                ExpertSearchAction::Selected { rows, .. } => {
                    return SearchRun { grid, alive, scores, rows, looked_up, ended_at: now };
                }
            }
        }
        search.check();
        if open.is_empty() {
            now = search.next_deadline().unwrap();
            search.on_timeout(now);
            continue;
        }
        let prefix: GridPrefix = open.swap_remove(random.below(open.len()));
        match random.below(100) < fails_percent {
            true => search.on_failed(now, prefix),
            false => search.on_records(now, wall(now), prefix, &held.get(&prefix)),
        }
    }
}

fn check_best(run: &SearchRun, case: &SearchCase) -> Result<(), TestCaseError> {
    prop_assert_eq!(run.rows.len(), case.n_rows);
    for (row, scores) in run.rows.iter().zip(run.scores.chunks(run.grid.n_scores())) {
        let all = brute_force(&run.grid, scores, usize::MAX, &run.alive);
        let best = &all[..all.len().min(case.n_active)];
        if row.is_exact {
            prop_assert_eq!(uids(row), best);
        }
        let found = uids(row);
        prop_assert!(found.len() <= case.n_active && found.iter().all(|expert| all.contains(expert)));
        prop_assert!(found.is_sorted_by(|a, b| (b.1, a.0) < (a.1, b.0)), "best first, each once");
    }
    let unique: BTreeSet<&GridPrefix> = run.looked_up.iter().collect();
    prop_assert_eq!(unique.len(), run.looked_up.len(), "no prefix is looked up twice");
    Ok(())
}

proptest! {
    #[test]
    fn equal_to_brute_force_in_any_order_of_answers(case in case()) {
        let run = run(&case, 0, 0);
        prop_assert!(run.rows.iter().all(|row| row.is_exact));
        prop_assert_eq!(run.ended_at, Moment::ZERO);
        check_best(&run, &case)?;
    }

    #[test]
    fn over_by_the_deadline_also_where_prefixes_fail(case in case(), fails in 0usize..100, silent in 0usize..100) {
        let run = run(&case, fails, silent);
        prop_assert!(run.ended_at <= 3 * SECOND);
        check_best(&run, &case)?;
    }

    #[test]
    fn a_bound_is_never_below_a_score(
        scores in proptest::collection::vec(-1e30f32..1e30, 12),
        at in proptest::collection::vec(0u16..3, 4),
    ) {
        let shape = grid(&[3; 4]);
        let run = |alive: &[ExpertUid]| {
            let mut search = ExpertSearch::new(1);
            let id = search.begin(Moment::ZERO, query(shape, 1, scores.clone())).unwrap();
            finish(&mut search, Moment::ZERO, &HeldRecords::of(alive), id).0
        };
        let all: Vec<ExpertUid> = (0..81).map(|number| shape.uid(number).unwrap()).collect();
        for alive in [&all[..], &[uid(&at)]] {
            prop_assert_eq!(uids(&run(alive)[0]), brute_force(&shape, &scores, 1, alive));
        }
    }
}
