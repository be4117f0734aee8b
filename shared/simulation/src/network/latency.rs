//! How long a message is under way between two nodes.

use std::time::Duration;

use super::NodeId;
use crate::random::Random;

/// One-way delays.
#[derive(Debug, Clone, PartialEq)]
pub enum Latency {
    /// The same for all messages.
    Constant(Duration),
    /// Drawn for each message, uniform between these.
    Uniform(Duration, Duration),
    /// Drawn for each message: the logarithm is normal, as measured between hosts of the Internet.
    LogNormal {
        /// Half of the messages are faster.
        median: Duration,
        /// Standard deviation of the natural logarithm; 0.5 is typical of a continent.
        sigma: f64,
    },
    /// `[n_nodes, n_nodes]`, from the row's node to the column's.
    Matrix(Vec<Vec<Latency>>),
}

impl Latency {
    /// A symmetric matrix for `n_nodes`, each pair of which draws its latency once.
    #[must_use]
    pub fn sampled(&self, n_nodes: usize, random: &mut Random) -> Self {
        let mut rows: Vec<Vec<Self>> = Vec::new();
        for from in (0..n_nodes).map(NodeId) {
            let mirrored = rows.iter().map(|row| row[from.0].clone());
            let drawn = (from.0..n_nodes).map(|to| match to == from.0 {
                true => Self::Constant(Duration::ZERO),
                false => Self::Constant(self.of(from, NodeId(to), random)),
            });
            let row = mirrored.chain(drawn).collect();
            rows.push(row);
        }
        Self::Matrix(rows)
    }

    /// The latency of one message; zero for nodes beyond the matrix.
    pub(crate) fn of(&self, from: NodeId, to: NodeId, random: &mut Random) -> Duration {
        match self {
            Self::Constant(latency) => *latency,
            Self::Uniform(least, most) => random.duration(*least..*most),
            Self::LogNormal { median, sigma } => median.mul_f64((sigma * random.normal()).exp()),
            Self::Matrix(rows) => {
                let cell = rows.get(from.0).and_then(|row| row.get(to.0));
                cell.map(|cell| cell.of(from, to, random)).unwrap_or_default()
            }
        }
    }
}
