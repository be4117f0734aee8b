use super::*;

/// Places of those who are expected, and of others.
const N_MAX: usize = 3;
const N_OTHERS: usize = 2;

fn peer(number: u8) -> PublicKey {
    PublicKey([number; 32])
}

/// Which of these senders have a place.
fn take(pulls: &mut Pulls, is_expected: bool, senders: impl IntoIterator<Item = u8>) -> Vec<bool> {
    let pull = Pull { round: 1, since: Moment::ZERO, is_expected };
    senders.into_iter().map(|from| pulls.take(peer(from), pull, N_MAX, N_OTHERS)).collect()
}

#[test]
fn strangers_have_places_beside_those_who_are_expected() {
    let mut pulls = Pulls::default();
    assert_eq!(take(&mut pulls, false, 1..=3), [true, true, false]);
    assert_eq!(take(&mut pulls, true, 4..=7), [true, true, true, false]);
    let mut pulls = Pulls::default();
    assert_eq!(take(&mut pulls, true, 4..=7), [true, true, true, false]);
    assert_eq!(take(&mut pulls, false, 1..=3), [true, true, false]);
}

/// As many as may be expected are, and more of them only as far as there are places in all.
#[test]
fn strangers_who_prove_themselves_make_room_for_others_until_all_places_are_taken() {
    let mut pulls = Pulls::default();
    for proven in [[1, 2], [3, 4]] {
        assert_eq!(take(&mut pulls, false, proven), [true, true]);
        proven.iter().for_each(|from| pulls.on_proven(peer(*from)));
    }
    assert_eq!(take(&mut pulls, true, [5]), [false], "four are expected by now");
    assert_eq!(take(&mut pulls, false, 5..=6), [true, false], "five are all");
    pulls.end(peer(1), 1);
    assert_eq!(take(&mut pulls, false, [6]), [true]);
}

#[test]
fn one_model_of_a_sender_is_pulled_at_a_time() {
    let mut pulls = Pulls::default();
    assert_eq!(take(&mut pulls, true, [1, 1]), [true, false]);
    pulls.end(peer(1), 2);
    assert_eq!((take(&mut pulls, true, [1]), pulls.of(1).count()), (vec![false], 1), "of another round");
    pulls.end(peer(1), 1);
    assert_eq!((take(&mut pulls, true, [1]), pulls.of(2).count()), (vec![true], 0));
}
