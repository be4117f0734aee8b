//! Sampled training: each round a few peers train on their own data, and fewer average their models (MoDEST §3).

use serde::{Deserialize, Serialize};

use super::{OptimizerDescription, ScheduleDescription};
use crate::codec::TensorCodec;

/// How an aggregator makes one model of those of a sample.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ModelAverage {
    /// Their mean, `AVG` of algorithm 4.
    #[default]
    Mean,
    /// A mean that a minority of dishonest trainers moves by a bounded length (Karimireddy et al. 2021).
    CenteredClip,
}

/// Between whom models go.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ModelExchange {
    /// From sampled trainers to sampled aggregators, and back (MoDEST §3).
    #[default]
    Sample,
    /// All train each round, and each sends its model to the one whose turn it is in the one-peer exponential graph (D-SGD; Ying et
    /// al. 2021).
    Exponential,
    /// The same, to this many neighbours, which stay: those of a random regular graph (D-SGD; Lian et al. 2017).
    Regular(u16),
    /// The same, to this many others, by chance anew each round (EL-Local; De Vos et al. 2023).
    Epidemic(u16),
    /// The same, to one other by chance, and nobody waits for those of others (Ormándi et al. 2013).
    Gossip,
}

impl ModelExchange {
    /// Whether all train each round, and average with those whose models come.
    pub fn is_among_neighbors(self) -> bool {
        self != Self::Sample
    }

    /// Peers that each peer sends its model to in a round; none says it for samples.
    pub fn n_receivers(self) -> u16 {
        match self {
            Self::Sample => 0,
            Self::Exponential | Self::Gossip => 1,
            Self::Regular(n) | Self::Epidemic(n) => n,
        }
    }
}

/// The parameters of the algorithm (MoDEST table 2), and what a trainer does with a model.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Sampled {
    /// Trainers of a round, `s`.
    pub sample_size: u16,
    /// Aggregators of a round, `a`.
    pub n_aggregators: u16,
    /// Fraction of a sample whose models an aggregator waits for, `sf`.
    pub success_fraction: f32,
    /// How an aggregator averages.
    pub average: ModelAverage,
    /// Between whom models go.
    pub exchange: ModelExchange,
    /// Milliseconds after which a silent peer is not live, `Δt`.
    pub ping_timeout_ms: u32,
    /// Rounds after which an inactive peer is asked no more, `Δk`.
    pub activity_window: u32,
    /// How long a round takes, in milliseconds, until that was measured.
    pub round_estimate_ms: u32,
    /// Samples in one forward and backward pass, each of which is a step: `B`.
    pub micro_batch_size: u32,
    /// Passes over the local data in a round: `E`.
    pub local_passes: u32,
    /// Shards that are the local data of a participant without data of its own.
    pub local_shards: u32,
    /// Codec of models.
    pub state_codec: TensorCodec,
    /// The optimizer of trainers. It begins anew each round.
    pub optimizer: OptimizerDescription,
    /// Its learning rate, by rounds.
    pub schedule: ScheduleDescription,
}

impl Sampled {
    /// Peers to whom a trainer sends its model in a round.
    pub fn n_receivers(&self) -> u16 {
        match self.exchange {
            ModelExchange::Sample => self.n_aggregators,
            exchange => exchange.n_receivers(),
        }
    }

    /// Peers from whom a model comes to it in a round; at the mean, where that is by chance.
    pub fn n_senders(&self) -> u16 {
        match self.exchange {
            ModelExchange::Sample => 1,
            exchange => exchange.n_receivers(),
        }
    }
}
