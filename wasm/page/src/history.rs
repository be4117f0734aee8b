//! The shown curve, as a [`barnraise_swarm::history`] with revisions.

use barnraise_protocol::api::HistoryPoint;
use barnraise_swarm::history::History as Points;

/// The curve so far.
#[derive(Debug, Default)]
pub(crate) struct History {
    points: Points,
    revision: u64,
}

impl History {
    /// Replaces all points with the backbone's.
    pub(crate) fn replace(&mut self, points: Vec<HistoryPoint>) {
        self.revision += 1;
        self.points = Points::from(points);
    }

    /// Adds the point of a step.
    pub(crate) fn push(&mut self, point: HistoryPoint) {
        self.revision += 1;
        self.points.push(point);
    }

    /// Adds an accuracy, which comes a while after its step. Repetitions, which every event has, change nothing.
    pub(crate) fn set_accuracy(&mut self, epoch: u64, test_accuracy: f32) {
        let point = self.points().iter().rev().find(|point| point.epoch <= epoch);
        if point.is_some_and(|point| point.test_accuracy == Some(test_accuracy)) {
            return;
        }
        self.revision += 1;
        self.points.set_accuracy(epoch, test_accuracy);
    }

    /// Changes with every change of the curve.
    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    /// Oldest first.
    pub(crate) fn points(&self) -> &[HistoryPoint] {
        self.points.points()
    }

    /// `(epoch, loss)` of every point that has a finite loss.
    pub(crate) fn losses(&self) -> Vec<(f64, f64)> {
        series(self.points(), |point| point.train_loss)
    }

    /// `(epoch, accuracy)` of every point that was evaluated.
    pub(crate) fn accuracies(&self) -> Vec<(f64, f64)> {
        series(self.points(), |point| point.test_accuracy)
    }
}

fn series(points: &[HistoryPoint], value: impl Fn(&HistoryPoint) -> Option<f32>) -> Vec<(f64, f64)> {
    points
        .iter()
        .filter_map(|point| Some((point.epoch as f64, f64::from(value(point)?))))
        .filter(|(_, value)| value.is_finite())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_change_is_another_revision_and_what_is_not_finite_is_not_drawn() {
        let point = |epoch, train_loss| HistoryPoint {
            epoch,
            n_samples_total: epoch * 10,
            train_loss: Some(train_loss),
            test_accuracy: None,
        };
        let mut history = History::default();
        history.push(point(1, f32::NAN));
        history.push(point(2, 1.0));
        assert_eq!(history.losses(), [(2.0, 1.0)]);
        history.set_accuracy(2, 0.5);
        history.set_accuracy(2, 0.5);
        assert_eq!((history.revision(), history.accuracies()), (3, vec![(2.0, 0.5)]));
        history.replace(vec![point(7, 0.5)]);
        assert_eq!((history.revision(), history.losses()), (4, vec![(7.0, 0.5)]));
    }
}
