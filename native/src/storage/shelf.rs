//! Which models, and which checkpoints, from before are kept: for each age that is wanted one that has it, and one that will. Pure.

use std::time::Duration;

use barnraise_protocol::access::UnixTime;

/// A model on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kept {
    /// Optimizer steps made.
    pub epoch: u64,
    /// When it was evaluated.
    pub made_at: UnixTime,
    /// Length of its file.
    pub n_bytes: u64,
}

/// The models that are kept.
///
/// For an age P the newest one of at least P is on show, and the oldest one below P grows up to follow it. So what is on
/// show is between P and about twice that, once the run is old enough, and two models for each age are enough.
#[derive(Debug, Clone)]
pub struct Shelf {
    /// Ascending.
    ages: Vec<Duration>,
    /// Oldest first.
    kept: Vec<Kept>,
}

impl Shelf {
    /// What was kept before, in any order.
    pub fn new(ages: &[Duration], mut kept: Vec<Kept>) -> Self {
        let mut ages = ages.to_vec();
        ages.sort();
        kept.sort_by_key(|kept| (kept.made_at, kept.epoch));
        Self { ages, kept }
    }

    /// Oldest first.
    pub fn kept(&self) -> &[Kept] {
        &self.kept
    }

    /// Whether the model of `epoch`, evaluated at `now`, is one to keep: none grows up for the shortest age.
    pub fn wants(&self, now: UnixTime, epoch: u64) -> bool {
        let Some(&shortest) = self.ages.first() else { return false };
        self.kept.iter().all(|kept| kept.epoch != epoch && age(kept, now) >= shortest)
    }

    /// One more was kept.
    pub fn add(&mut self, kept: Kept) {
        self.kept.push(kept);
        self.kept.sort_by_key(|kept| (kept.made_at, kept.epoch));
    }

    /// Takes out what is of no more use at `now`, where the run is at `epoch`: models of a line that was left, those
    /// from after now because the clock was set back, and those that stand between two that are needed.
    pub fn thin(&mut self, now: UnixTime, epoch: u64) -> Vec<Kept> {
        let of_this_line = |kept: &Kept| kept.epoch <= epoch && kept.made_at <= now;
        let (line, mut gone): (Vec<Kept>, Vec<Kept>) = self.kept.drain(..).partition(of_this_line);
        let needed = |kept: &Kept| {
            self.ages.iter().any(|&wanted| {
                // The newest model itself is nothing to compare it with, however long no step was made.
                let is_on_show = |kept: &&Kept| age(kept, now) >= wanted && kept.epoch < epoch;
                let shown = line.iter().rfind(is_on_show);
                let growing = line.iter().find(|kept| age(kept, now) < wanted || kept.epoch == epoch);
                shown == Some(kept) || growing == Some(kept)
            })
        };
        let (needed, between): (Vec<Kept>, Vec<Kept>) = line.iter().copied().partition(|kept| needed(kept));
        self.kept = needed;
        gone.extend(between);
        gone
    }
}

fn age(kept: &Kept, now: UnixTime) -> Duration {
    Duration::from_secs(now.0.saturating_sub(kept.made_at.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: u64 = 60;
    const HOUR: u64 = 60 * MINUTE;
    const DAY: u64 = 24 * HOUR;

    fn ages() -> [Duration; 3] {
        [10 * MINUTE, HOUR, DAY].map(Duration::from_secs)
    }

    fn kept(epoch: u64, made_at: u64) -> Kept {
        Kept { epoch, made_at: UnixTime(made_at), n_bytes: 1 }
    }

    /// A model at `now`; how many were thrown away.
    fn on_model(shelf: &mut Shelf, now: u64, epoch: u64) -> usize {
        let now = UnixTime(now);
        if shelf.wants(now, epoch) {
            shelf.add(Kept { epoch, made_at: now, n_bytes: 1 });
        }
        shelf.thin(now, epoch).len()
    }

    #[test]
    fn there_is_always_one_about_as_old_as_is_wanted_and_never_many() {
        let mut shelf = Shelf::new(&ages(), Vec::new());
        for epoch in 0..5 * 24 * 60 {
            let now = epoch * MINUTE;
            on_model(&mut shelf, now, epoch);
            assert!(shelf.kept().len() <= 2 * ages().len(), "{:?}", shelf.kept());
            for wanted in [10 * MINUTE, HOUR, DAY].into_iter().filter(|wanted| now >= 3 * wanted) {
                let of_age = |kept: &Kept| (wanted..=2 * wanted + MINUTE).contains(&(now - kept.made_at.0));
                assert!(shelf.kept().iter().any(of_age), "{wanted} at {now}: {:?}", shelf.kept());
            }
        }
    }

    #[test]
    fn a_young_run_keeps_its_first_model() {
        let mut shelf = Shelf::new(&ages(), Vec::new());
        for epoch in 0..9 {
            on_model(&mut shelf, epoch * MINUTE, epoch);
        }
        assert_eq!(shelf.kept(), [kept(0, 0)]);
        assert!(!shelf.wants(UnixTime(DAY), 0), "the same model twice");
    }

    #[test]
    fn what_another_line_or_a_clock_left_behind_goes() {
        let all = vec![kept(9, 4 * HOUR), kept(5, 0), kept(7, 2 * HOUR), kept(30, HOUR)];
        let mut shelf = Shelf::new(&ages(), all);
        let mut gone = shelf.thin(UnixTime(3 * HOUR), 8);
        gone.sort_by_key(|kept| kept.epoch);
        assert_eq!(gone, [kept(9, 4 * HOUR), kept(30, HOUR)]);
        assert_eq!(shelf.kept(), [kept(5, 0), kept(7, 2 * HOUR)]);
    }

    #[test]
    fn a_run_that_stands_still_keeps_what_it_can_be_compared_with() {
        let all = [kept(5, 0), kept(8, 20 * MINUTE)];
        let mut shelf = Shelf::new(&ages()[..1], all.into());
        assert_eq!((on_model(&mut shelf, DAY, 8), shelf.kept()), (0, all.as_slice()));
    }

    #[test]
    fn without_ages_nothing_is_kept() {
        let mut shelf = Shelf::new(&[], vec![kept(1, 0)]);
        assert!(!shelf.wants(UnixTime(DAY), 2));
        assert_eq!((on_model(&mut shelf, DAY, 2), shelf.kept().len()), (1, 0));
    }
}
