//! A backbone that is killed again and again loses and doubles nothing that it acknowledged.

use barnraise_tests::kills;

fn number(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable).ok().map_or(otherwise, |text| text.parse().unwrap())
}

#[tokio::test]
async fn a_real_backbone_that_is_killed_at_any_moment_loses_and_doubles_nothing() {
    let (n_kills, seed) = (number("KILLS", 25), number("KILL_SEED", 7));
    println!("{n_kills} kills from KILL_SEED={seed}");
    let outcome = kills::kill(n_kills, seed).await.unwrap();
    println!("{outcome}");
    assert_eq!(outcome.n_kills, n_kills);
    assert!(outcome.n_acknowledged > n_kills && outcome.n_steps > n_kills, "{outcome}");
}
