//! Loss and accuracy of a run, thinned as it grows, so that a year-old run draws the same curve.
//!
//! The backbone keeps it and the page draws it. Pure data; never drops the newest point.

use barnraise_protocol::api::{EvaluationPoint, HISTORY_POINTS_MAX, HistoryPoint};

/// Points of a run, oldest first, at most [`HISTORY_POINTS_MAX`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct History {
    points: Vec<HistoryPoint>,
}

impl From<Vec<HistoryPoint>> for History {
    fn from(points: Vec<HistoryPoint>) -> Self {
        let mut history = Self::default();
        points.into_iter().for_each(|point| history.push(point));
        history
    }
}

impl History {
    /// All points.
    pub fn points(&self) -> &[HistoryPoint] {
        &self.points
    }

    /// The newest point.
    pub fn last(&self) -> Option<HistoryPoint> {
        self.points.last().copied()
    }

    /// The newest accuracy there is.
    pub fn last_accuracy(&self) -> Option<f32> {
        last_evaluation(&self.points).map(|evaluation| evaluation.test_accuracy)
    }

    /// Adds the point of a step. A point at or before the newest one means that the run went back to a
    /// checkpoint: later points are dropped. A point that is pushed again keeps the values that it had.
    pub fn push(&mut self, mut point: HistoryPoint) {
        while let Some(newest) = self.points.pop_if(|newest| newest.epoch >= point.epoch) {
            if newest.epoch == point.epoch {
                point.train_loss = point.train_loss.or(newest.train_loss);
                point.test_accuracy = point.test_accuracy.or(newest.test_accuracy);
            }
        }
        self.points.push(point);
        self.thin();
    }

    /// Adds the accuracy to the point of `epoch`, or to the nearest one before that was kept.
    pub fn set_accuracy(&mut self, epoch: u64, test_accuracy: f32) {
        let point = self.points.iter_mut().rev().find(|point| point.epoch <= epoch);
        match point {
            Some(point) => point.test_accuracy = Some(test_accuracy),
            None => self.points.insert(
                0,
                HistoryPoint {
                    epoch,
                    n_samples_total: 0,
                    train_loss: None,
                    test_accuracy: Some(test_accuracy),
                },
            ),
        }
    }

    /// Removes the points whose neighbours are closest, so that the whole run stays in sight. The later
    /// neighbour takes over an accuracy that only the removed point had.
    fn thin(&mut self) {
        while self.points.len() > HISTORY_POINTS_MAX {
            let gap = |at: &[HistoryPoint]| at[2].epoch.saturating_sub(at[0].epoch);
            let closest = self.points.windows(3).enumerate().min_by_key(|(_, at)| gap(at));
            let Some((before, _)) = closest else { return };
            let removed = self.points.remove(before + 1);
            if let Some(later) = self.points.get_mut(before + 1) {
                later.test_accuracy = later.test_accuracy.or(removed.test_accuracy);
            }
        }
    }
}

/// The newest accuracy among points, the oldest first, and the point that has it.
pub fn last_evaluation(points: &[HistoryPoint]) -> Option<EvaluationPoint> {
    points
        .iter()
        .rev()
        .find_map(|point| Some(EvaluationPoint { epoch: point.epoch, test_accuracy: point.test_accuracy? }))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn point(epoch: u64) -> HistoryPoint {
        HistoryPoint { epoch, n_samples_total: epoch * 10, train_loss: Some(1.0), test_accuracy: None }
    }

    #[test]
    fn it_stays_bounded_ordered_and_keeps_both_ends() {
        let mut history = History::default();
        for epoch in 1..=20_000 {
            history.push(point(epoch));
            if epoch % 5 == 0 {
                history.set_accuracy(epoch, 0.5);
            }
        }
        let points = history.points();
        assert!(points.len() <= HISTORY_POINTS_MAX && points.len() > HISTORY_POINTS_MAX / 4);
        assert!(points.windows(2).all(|pair| pair[0].epoch < pair[1].epoch));
        assert_eq!(points[0].epoch, 1);
        let widest = points.windows(2).map(|pair| pair[1].epoch - pair[0].epoch).max().unwrap();
        assert!(widest <= 4 * 20_000 / HISTORY_POINTS_MAX as u64, "a gap of {widest} epochs");
        assert_eq!(history.last().unwrap().epoch, 20_000);
        assert_eq!(history.last_accuracy(), Some(0.5));
    }

    #[test]
    fn as_many_points_as_there_is_room_for_stay_and_one_more_costs_the_closest() {
        let max = HISTORY_POINTS_MAX as u64;
        // Far from each other but for one.
        let epochs = (1..max).map(|n| 10 * n).chain([10 * max - 7]);
        let mut history = History::from(epochs.map(point).collect::<Vec<_>>());
        assert_eq!(history.points().len(), HISTORY_POINTS_MAX);
        history.push(point(10 * max));
        assert_eq!(history.points().len(), HISTORY_POINTS_MAX);
        let newest: Vec<u64> = history.points()[HISTORY_POINTS_MAX - 3..].iter().map(|at| at.epoch).collect();
        assert_eq!(newest, [10 * max - 20, 10 * max - 10, 10 * max]);
        // That between them had the closest neighbours.
        assert_eq!(history.points()[0].epoch, 10);
    }

    #[test]
    fn an_accuracy_finds_its_point() {
        let mut history = History::default();
        history.set_accuracy(0, 0.1);
        history.push(point(1));
        history.push(point(2));
        history.set_accuracy(1, 0.3);
        let accuracies: Vec<_> = history.points().iter().map(|point| point.test_accuracy).collect();
        assert_eq!(accuracies, [Some(0.1), Some(0.3), None]);
        let newest = EvaluationPoint { epoch: 1, test_accuracy: 0.3 };
        assert_eq!((last_evaluation(history.points()), history.last_accuracy()), (Some(newest), Some(0.3)));
        assert_eq!(last_evaluation(&[point(1)]), None);
    }

    #[test]
    fn going_back_to_a_checkpoint_forgets_what_came_after() {
        let mut history = History::from((1..=9).map(point).collect::<Vec<_>>());
        history.set_accuracy(5, 0.4);
        history.push(HistoryPoint { train_loss: Some(0.9), ..point(5) });
        let epochs: Vec<u64> = history.points().iter().map(|point| point.epoch).collect();
        assert_eq!(epochs, [1, 2, 3, 4, 5]);
        let newest = HistoryPoint { train_loss: Some(0.9), test_accuracy: Some(0.4), ..point(5) };
        assert_eq!(history.last(), Some(newest));
    }

    #[test]
    fn thinning_keeps_an_accuracy_that_only_one_point_has() {
        let mut history = History::default();
        history.push(point(1));
        history.push(HistoryPoint { test_accuracy: Some(0.5), ..point(2) });
        (3..=HISTORY_POINTS_MAX as u64 + 1).for_each(|epoch| history.push(point(epoch)));
        let kept: Vec<_> = history.points().iter().filter(|point| point.test_accuracy.is_some()).collect();
        assert_eq!(kept, [&HistoryPoint { test_accuracy: Some(0.5), ..point(3) }]);
    }
}
