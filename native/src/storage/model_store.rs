//! Retention of earlier models and checkpoints by age: for each wanted age one that has reached it, and one that will.
//! Pure.

use std::time::Duration;

use barnraise_protocol::access::UnixTime;

/// A model on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredModel {
    /// Optimizer steps made.
    pub epoch: u64,
    /// When it was evaluated.
    pub made_at: UnixTime,
    /// Length of its file.
    pub n_bytes: u64,
}

/// The models that are kept.
///
/// For a wanted age P the newest model of at least P is offered, and the oldest one below P ages to follow it. So the
/// offered one is between P and about 2 P old, once the run is old enough, and two models for each age are enough.
#[derive(Debug, Clone)]
pub struct ModelStore {
    /// Ascending.
    ages: Vec<Duration>,
    /// Oldest first.
    kept: Vec<StoredModel>,
}

impl ModelStore {
    /// The models that are stored already, in any order.
    pub fn new(ages: &[Duration], mut kept: Vec<StoredModel>) -> Self {
        let mut ages = ages.to_vec();
        ages.sort();
        kept.sort_by_key(|kept| (kept.made_at, kept.epoch));
        Self { ages, kept }
    }

    /// Oldest first.
    pub fn kept(&self) -> &[StoredModel] {
        &self.kept
    }

    /// Whether to keep the model of `epoch`, evaluated at `now`: no kept model is below the shortest age.
    pub fn wants(&self, now: UnixTime, epoch: u64) -> bool {
        let Some(&shortest) = self.ages.first() else { return false };
        self.kept.iter().all(|kept| kept.epoch != epoch && age(kept, now) >= shortest)
    }

    /// Adds a stored model.
    pub fn add(&mut self, kept: StoredModel) {
        self.kept.push(kept);
        self.kept.sort_by_key(|kept| (kept.made_at, kept.epoch));
    }

    /// Removes and returns the models that are not needed at `now`, with the run at `epoch`: those of an abandoned branch,
    /// those dated later than now because the clock was set back, and those between two that are needed.
    pub fn thin(&mut self, now: UnixTime, epoch: u64) -> Vec<StoredModel> {
        let of_this_branch = |kept: &StoredModel| kept.epoch <= epoch && kept.made_at <= now;
        let (branch, mut gone): (Vec<StoredModel>, Vec<StoredModel>) =
            self.kept.drain(..).partition(of_this_branch);
        let needed = |kept: &StoredModel| {
            self.ages.iter().any(|&wanted| {
                // The newest model itself is not offered as an earlier one, even if no step was made for long.
                let is_offered = |kept: &&StoredModel| age(kept, now) >= wanted && kept.epoch < epoch;
                let offered = branch.iter().rfind(is_offered);
                let growing = branch.iter().find(|kept| age(kept, now) < wanted || kept.epoch == epoch);
                offered == Some(kept) || growing == Some(kept)
            })
        };
        let (needed, between): (Vec<StoredModel>, Vec<StoredModel>) =
            branch.iter().copied().partition(|kept| needed(kept));
        self.kept = needed;
        gone.extend(between);
        gone
    }
}

fn age(kept: &StoredModel, now: UnixTime) -> Duration {
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

    fn kept(epoch: u64, made_at: u64) -> StoredModel {
        StoredModel { epoch, made_at: UnixTime(made_at), n_bytes: 1 }
    }

    /// A model at `now`; how many were thrown away.
    fn on_model(store: &mut ModelStore, now: u64, epoch: u64) -> usize {
        let now = UnixTime(now);
        if store.wants(now, epoch) {
            store.add(StoredModel { epoch, made_at: now, n_bytes: 1 });
        }
        store.thin(now, epoch).len()
    }

    #[test]
    fn there_is_always_one_about_as_old_as_is_wanted_and_never_many() {
        let mut store = ModelStore::new(&ages(), Vec::new());
        for epoch in 0..5 * 24 * 60 {
            let now = epoch * MINUTE;
            on_model(&mut store, now, epoch);
            assert!(store.kept().len() <= 2 * ages().len(), "{:?}", store.kept());
            for wanted in [10 * MINUTE, HOUR, DAY].into_iter().filter(|wanted| now >= 3 * wanted) {
                let of_age =
                    |kept: &StoredModel| (wanted..=2 * wanted + MINUTE).contains(&(now - kept.made_at.0));
                assert!(store.kept().iter().any(of_age), "{wanted} at {now}: {:?}", store.kept());
            }
        }
    }

    #[test]
    fn a_young_run_keeps_its_first_model() {
        let mut store = ModelStore::new(&ages(), Vec::new());
        for epoch in 0..9 {
            on_model(&mut store, epoch * MINUTE, epoch);
        }
        assert_eq!(store.kept(), [kept(0, 0)]);
        assert!(!store.wants(UnixTime(DAY), 0), "the same model twice");
    }

    #[test]
    fn what_another_line_or_a_clock_left_behind_goes() {
        let all = vec![kept(9, 4 * HOUR), kept(5, 0), kept(7, 2 * HOUR), kept(30, HOUR)];
        let mut store = ModelStore::new(&ages(), all);
        let mut gone = store.thin(UnixTime(3 * HOUR), 8);
        gone.sort_by_key(|kept| kept.epoch);
        assert_eq!(gone, [kept(9, 4 * HOUR), kept(30, HOUR)]);
        assert_eq!(store.kept(), [kept(5, 0), kept(7, 2 * HOUR)]);
    }

    #[test]
    fn a_run_that_stands_still_keeps_what_it_can_be_compared_with() {
        let all = [kept(5, 0), kept(8, 20 * MINUTE)];
        let mut store = ModelStore::new(&ages()[..1], all.into());
        assert_eq!((on_model(&mut store, DAY, 8), store.kept()), (0, all.as_slice()));
    }

    #[test]
    fn a_model_is_wanted_once_the_last_is_of_the_shortest_age() {
        let store = ModelStore::new(&ages(), vec![kept(1, 0), kept(2, 100)]);
        for (now, epoch, wants) in [(699, 3, false), (700, 3, true), (701, 3, true), (700, 2, false)] {
            assert_eq!(store.wants(UnixTime(now), epoch), wants, "{epoch} at {now}");
        }
    }

    /// With one age of ten seconds, at 100 and epoch 8.
    #[test]
    fn what_is_needed_is_told_to_the_second_and_the_step() {
        for (stored, want) in [
            // The newest of ten seconds and the oldest below, and neither what is between nor what is older.
            (vec![kept(4, 70), kept(5, 80), kept(6, 90), kept(7, 95), kept(8, 99)], vec![6, 7]),
            (vec![kept(5, 80), kept(6, 91), kept(7, 92)], vec![5, 6]),
            // Made now, and in this step.
            (vec![kept(8, 100)], vec![8]),
            // Of a later step, or by the clock not made yet.
            (vec![kept(9, 100)], vec![]),
            (vec![kept(7, 101)], vec![]),
            // The model of this step is never the earlier one.
            (vec![kept(7, 80), kept(8, 85)], vec![7, 8]),
        ] {
            let mut store = ModelStore::new(&[Duration::from_secs(10)], stored.clone());
            let gone = store.thin(UnixTime(100), 8);
            let left: Vec<u64> = store.kept().iter().map(|kept| kept.epoch).collect();
            assert_eq!(left, want, "{stored:?}");
            assert_eq!(gone.len() + left.len(), stored.len(), "{gone:?}");
        }
    }

    #[test]
    fn without_ages_nothing_is_kept() {
        let mut store = ModelStore::new(&[], vec![kept(1, 0)]);
        assert!(!store.wants(UnixTime(DAY), 2));
        assert_eq!((on_model(&mut store, DAY, 2), store.kept().len()), (1, 0));
    }
}
