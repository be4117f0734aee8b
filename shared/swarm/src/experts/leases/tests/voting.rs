//! Which backbones a host waits for.

use super::*;

fn voters(n_backbones: u8) -> Voters {
    let grantors = Grantors::new((0..n_backbones).map(key)).unwrap();
    Voters::new(&grantors, &key(0))
}

/// The numbers of those that are waited for, and of those that are asked beside.
fn asked(voters: &Voters) -> (Vec<u8>, Vec<u8>) {
    let AskedVoters { waited_for, beside } = voters.asked();
    let numbers = |keys: &[PublicKey]| (0..10).filter(|at| keys.contains(&key(*at))).collect();
    (numbers(&waited_for), numbers(&beside))
}

#[test]
fn a_backbone_that_hangs_holds_up_no_question_but_the_first_and_hears_of_all() {
    let mut voters = voters(3);
    assert_eq!(asked(&voters), (vec![1, 2], vec![]));
    // Several questions may have waited for it.
    voters.on_silent(key(2));
    voters.on_silent(key(2));
    assert_eq!(asked(&voters), (vec![1], vec![2]));
    voters.on_answered(&key(1));
    assert_eq!(asked(&voters), (vec![1], vec![2]), "another one");
    voters.on_answered(&key(2));
    assert_eq!(asked(&voters), (vec![1, 2], vec![]), "it is back");
}

#[test]
fn one_without_which_there_is_no_majority_is_waited_for() {
    let mut pair = voters(2);
    pair.on_silent(key(1));
    assert_eq!(asked(&pair), (vec![1], vec![]));
    let mut five = voters(5);
    (1..=2).for_each(|at| five.on_silent(key(at)));
    assert_eq!(asked(&five), (vec![3, 4], vec![1, 2]), "with this one a majority");
    five.on_silent(key(3));
    assert_eq!(asked(&five), (vec![1, 2, 3, 4], vec![]));
    five.on_answered(&key(1));
    assert_eq!(asked(&five), (vec![1, 4], vec![2, 3]));
}

#[test]
fn a_backbone_alone_asks_nobody() {
    assert_eq!(asked(&voters(1)), (vec![], vec![]));
}
