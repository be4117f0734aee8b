//! Loss and accuracy over the life of the run, in a bounded number of points.
//!
//! Never drops the newest point.

use barnraise_protocol::api::{HISTORY_POINTS_MAX, HistoryPoint};

/// The curve so far.
#[derive(Debug, Default)]
pub(crate) struct History {
    points: Vec<HistoryPoint>,
    revision: u64,
}

impl History {
    /// Starts over with what the backbone knows.
    pub(crate) fn replace(&mut self, points: Vec<HistoryPoint>) {
        self.revision += 1;
        self.points.clear();
        points.into_iter().for_each(|point| self.push(point));
    }

    /// Adds a point. A point at or before the newest one means that the backbone went back to a
    /// checkpoint: what it no longer knows is dropped here too.
    pub(crate) fn push(&mut self, point: HistoryPoint) {
        self.revision += 1;
        if let Some(newest) = self.points.last_mut().filter(|newest| newest.epoch == point.epoch) {
            newest.n_samples_total = point.n_samples_total;
            newest.train_loss = point.train_loss.or(newest.train_loss);
            newest.test_accuracy = point.test_accuracy.or(newest.test_accuracy);
            return;
        }
        self.points.retain(|old| old.epoch < point.epoch);
        self.points.push(point);
        if self.points.len() > HISTORY_POINTS_MAX {
            self.thin();
        }
    }

    /// Adds an accuracy, which comes a while after its step, to the step or the nearest kept before it.
    pub(crate) fn set_accuracy(&mut self, epoch: u64, test_accuracy: f32) {
        if let Some(point) = self.points.iter_mut().rev().find(|point| point.epoch <= epoch) {
            point.test_accuracy = Some(test_accuracy);
            self.revision += 1;
        }
    }

    /// Another number whenever the curve is another.
    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    /// Oldest first.
    pub(crate) fn points(&self) -> &[HistoryPoint] {
        &self.points
    }

    /// `(epoch, loss)` of every point that has a finite loss.
    pub(crate) fn losses(&self) -> Vec<(f64, f64)> {
        series(&self.points, |point| point.train_loss)
    }

    /// `(epoch, accuracy)` of every point that was evaluated.
    pub(crate) fn accuracies(&self) -> Vec<(f64, f64)> {
        series(&self.points, |point| point.test_accuracy)
    }

    /// Halves the resolution of everything but the newest point.
    fn thin(&mut self) {
        let newest = self.points.pop();
        let merged = self.points.chunks(2).map(|pair| match pair {
            [first, second] => merge(*first, *second),
            rest => rest[0],
        });
        self.points = merged.chain(newest).collect();
    }
}

fn merge(first: HistoryPoint, second: HistoryPoint) -> HistoryPoint {
    let train_loss = match (first.train_loss, second.train_loss) {
        (Some(a), Some(b)) => Some(f32::midpoint(a, b)),
        (a, b) => b.or(a),
    };
    let test_accuracy = second.test_accuracy.or(first.test_accuracy);
    HistoryPoint { train_loss, test_accuracy, ..second }
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

    fn point(epoch: u64, train_loss: f32) -> HistoryPoint {
        HistoryPoint { epoch, n_samples_total: epoch * 10, train_loss: Some(train_loss), test_accuracy: None }
    }

    #[test]
    fn stays_bounded_ordered_and_keeps_the_newest() {
        let mut history = History::default();
        for epoch in 1..=5000 {
            history.push(point(epoch, 1.0 / epoch as f32));
            assert!(history.points().len() <= HISTORY_POINTS_MAX);
            assert_eq!(history.points().last(), Some(&point(epoch, 1.0 / epoch as f32)));
        }
        assert!(history.points().is_sorted_by(|a, b| a.epoch < b.epoch));
        assert!(history.points().len() > HISTORY_POINTS_MAX / 3);
    }

    #[test]
    fn thinning_keeps_the_only_accuracy_of_a_pair() {
        let mut history = History::default();
        history.push(HistoryPoint { test_accuracy: Some(0.5), ..point(1, 2.0) });
        (2..=HISTORY_POINTS_MAX as u64 + 1).for_each(|epoch| history.push(point(epoch, 1.0)));
        assert_eq!(history.accuracies(), [(2.0, 0.5)]);
        assert_eq!(history.losses()[0], (2.0, 1.5));
    }

    #[test]
    fn an_evaluation_completes_its_step() {
        let mut history = History::default();
        history.push(point(3, 0.7));
        history.push(point(5, 0.6));
        history.set_accuracy(4, 0.8);
        let completed = HistoryPoint { test_accuracy: Some(0.8), ..point(3, 0.7) };
        assert_eq!(history.points(), [completed, point(5, 0.6)]);
        history.set_accuracy(2, 0.1);
        assert_eq!(history.accuracies(), [(3.0, f64::from(0.8f32))]);
    }

    #[test]
    fn going_back_to_a_checkpoint_forgets_what_came_after() {
        let mut history = History::default();
        (1..=9).for_each(|epoch| history.push(point(epoch, 1.0)));
        history.push(point(5, 0.9));
        let epochs: Vec<u64> = history.points().iter().map(|point| point.epoch).collect();
        assert_eq!(epochs, [1, 2, 3, 4, 5]);
    }

    #[test]
    fn what_is_not_finite_is_not_drawn() {
        let mut history = History::default();
        history.push(point(1, f32::NAN));
        history.push(point(2, 1.0));
        assert_eq!(history.losses(), [(2.0, 1.0)]);
    }
}
