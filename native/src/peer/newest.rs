//! The newest model of a run, from those who have it: its backbone, or participants of a run without a server. Nobody
//! has to serve a page for it.

use std::time::Duration;

use barnraise_contributor::description;
use barnraise_learning::{ModelError, ParameterLayout};
use barnraise_protocol::bulk::Transfer;
use barnraise_protocol::run::{self, RunDescription};
use barnraise_protocol::sampled::{self, View, ViewDigest};
use barnraise_protocol::shard::{self, ShardId};
use barnraise_protocol::state::{self, EncodedState};
use barnraise_protocol::{ConversationError, TensorCodec};
use barnraise_relay::{Node, NodeError};
use futures::future::join_all;
use libp2p::PeerId;
use libp2p::identity::Keypair;

use super::args::{CACHE_SIZE_DEFAULT, JoinAddress, RunName};
use super::cache::ShardCache;
use super::platform::{ConnectError, NativePlatform};
use crate::config::cache_folder;
use crate::net::announced::open_announced;

/// Participants that are asked how far they are, beside the one at the address.
const ASKED_MAX: usize = 8;
/// Longest wait for how far one of them is, dialling included.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// A transfer is given up after this and the time that it takes at the least pace.
const GRACE: Duration = Duration::from_secs(60);
const BYTES_PER_SECOND_MIN: u64 = 32 * 1024;

/// Why no model is had.
#[derive(Debug, thiserror::Error)]
pub enum NewestError {
    /// There is no run at the address, or not the wanted one.
    #[error("{0}")]
    Connect(String),
    /// The peer there opens no stream.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// It does not say what the run is.
    #[error("the run is not described: {0}")]
    Describe(ConversationError),
    /// It was found, and describes another run then.
    #[error("the run `{0}` is described, which is not the wanted one")]
    OtherRun(String),
    /// It is a run of another version.
    #[error(transparent)]
    Description(#[from] description::DescriptionError),
    /// Its model cannot be computed here.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Nobody who was asked hands it out.
    #[error("of {n_asked} who were asked nobody hands the model out: {last}")]
    Nobody {
        /// So many were asked.
        n_asked: usize,
        /// What the last one said.
        last: String,
    },
    /// Nobody has a part of the run that its model needs.
    #[error("of {n_asked} who were asked nobody has {what} of the run: {last}")]
    Missing {
        /// Which part.
        what: &'static str,
        /// So many were asked.
        n_asked: usize,
        /// What the last one said.
        last: String,
    },
}

impl From<ConnectError> for NewestError {
    fn from(error: ConnectError) -> Self {
        Self::Connect(error.to_string())
    }
}

/// A run whose model is had from peers.
pub(crate) struct ModelOfPeers {
    pub(crate) run: RunDescription,
    /// Optimizer steps made, or rounds.
    pub(crate) epoch: u64,
    /// `[n_parameters]`
    pub(crate) parameters: Vec<f32>,
    node: Node,
    /// Those who have it, in the order in which they are asked.
    holders: Vec<Holder>,
}

/// A peer that may have the model.
#[derive(Debug, Clone)]
struct Holder {
    peer: PeerId,
    /// Binary multiaddresses; none of one that is connected.
    addresses: Vec<Vec<u8>>,
}

impl Holder {
    async fn open(&self, node: &Node, protocol: &'static str) -> Result<libp2p::Stream, NodeError> {
        match self.addresses.is_empty() {
            true => node.open(self.peer, protocol).await,
            false => open_announced(node, self.peer, &self.addresses, protocol).await,
        }
    }

    /// The round or step of its model.
    async fn epoch(&self, node: &Node) -> Result<u64, String> {
        let asking = async {
            let stream = self.open(node, state::PROTOCOL).await;
            let newest = state::newest(&mut stream.map_err(|error| error.to_string())?).await;
            Ok(newest.map_err(|error| error.to_string())?.epoch)
        };
        let asked = tokio::time::timeout(ANSWER_MAX, asking).await;
        asked.unwrap_or_else(|_| Err(format!("no answer within {ANSWER_MAX:?}")))
    }
}

impl ModelOfPeers {
    /// Takes the newest model of the run at the address.
    ///
    /// - `run`: the run's name, where the address is of another peer of the DHT
    ///
    /// # Errors
    /// See [`NewestError`].
    pub(crate) async fn fetch(address: JoinAddress, run: Option<RunName>) -> Result<Self, NewestError> {
        let cache = ShardCache::new(cache_folder().join("peer"), CACHE_SIZE_DEFAULT.as_u64());
        let platform = NativePlatform::new(address, run, Keypair::generate_ed25519(), cache);
        let (node, home) = platform.connect_home().await?;
        let signed = run::describe_signed(&mut node.open(home, run::PROTOCOL).await?).await;
        let signed = signed.map_err(NewestError::Describe)?;
        if !platform.is_wanted(home, &signed) {
            return Err(NewestError::OtherRun(signed.run.identity.run_id));
        }
        let run = signed.run;
        description::validate(&run)?;
        let (n_parameters, codec) = (ParameterLayout::of_run(&run)?.n_parameters(), run.scheme.state_codec());
        let home = Holder { peer: home, addresses: Vec::new() };
        let mut holders = vec![home.clone()];
        if run.sampled().is_some() {
            holders.extend(participants(&node, &home).await);
        }
        let epochs = join_all(holders.iter().map(|holder| holder.epoch(&node))).await;
        let n_asked = holders.len();
        let (mut answered, mut last) = (Vec::new(), String::new());
        for (holder, epoch) in holders.into_iter().zip(epochs) {
            match epoch {
                Ok(epoch) => answered.push((epoch, holder)),
                Err(error) => last = error,
            }
        }
        let holders = from_the_middle(answered);
        for holder in &holders {
            match newest(&node, holder, (n_parameters, codec)).await {
                Ok(state) => {
                    let (epoch, parameters) = (state.epoch, state.values());
                    return Ok(Self { run, epoch, parameters, node, holders });
                }
                Err(error) => last = error,
            }
        }
        Err(NewestError::Nobody { n_asked, last })
    }

    /// A shard of the run, from the first peer that has it.
    ///
    /// # Errors
    /// Nobody does.
    pub(crate) async fn shard(&self, id: ShardId, what: &'static str) -> Result<Vec<u8>, NewestError> {
        let mut last = "the run has none".to_owned();
        if let Some(wanted) = id.transfer(&self.run.data.manifest) {
            for holder in &self.holders {
                match fetched(&self.node, holder, (id, wanted)).await {
                    Ok(bytes) => return Ok(bytes),
                    Err(error) => last = error,
                }
            }
        }
        Err(NewestError::Missing { what, n_asked: self.holders.len(), last })
    }

    /// Hangs up.
    pub(crate) async fn leave(&self) {
        self.node.clone().shutdown().await;
    }
}

/// Some of the participants that the one at the address knows. Where it tells of nobody, it is asked alone.
async fn participants(node: &Node, home: &Holder) -> Vec<Holder> {
    let asking = async {
        let mut stream = home.open(node, sampled::PROTOCOL).await.ok()?;
        sampled::meet(&mut stream, View::default(), ViewDigest::default()).await.ok()
    };
    let view = tokio::time::timeout(ANSWER_MAX, asking).await.ok().flatten().unwrap_or_default();
    let members = view.memberships.iter().filter_map(|member| {
        let addresses = member.joined()?.addresses.clone();
        let peer = PeerId::from_bytes(&member.peer.to_peer_id()).ok()?;
        (!addresses.is_empty() && peer != home.peer).then_some(Holder { peer, addresses })
    });
    // Their order is that of nobody's choice: by keys, from one of our own.
    let mut members: Vec<Holder> = members.collect();
    members.sort_by_key(|member| {
        barnraise_protocol::Sha256Hash::of(&[node.peer_id().to_bytes(), member.peer.to_bytes()].concat()).0
    });
    members.truncate(ASKED_MAX);
    members
}

/// Peers by how far they are, from the one in the middle on: those that are further first, then those that are behind. Where most are
/// honest, one of them is about as far as the first.
fn from_the_middle<T>(mut answered: Vec<(u64, T)>) -> Vec<T> {
    answered.sort_by_key(|(epoch, _)| *epoch);
    let behind = answered.len().saturating_sub(1) / 2;
    let ahead = answered.split_off(behind);
    ahead.into_iter().chain(answered.into_iter().rev()).map(|(_, holder)| holder).collect()
}

async fn newest(
    node: &Node,
    holder: &Holder,
    (n_parameters, codec): (usize, TensorCodec),
) -> Result<EncodedState, String> {
    let fetching = async {
        let mut stream = holder.open(node, state::PROTOCOL).await.map_err(|error| error.to_string())?;
        let state = state::fetch(&mut stream, n_parameters as u64, codec, &mut None, |_, _| ()).await;
        state.map_err(|error| error.to_string())
    };
    within(codec.encoded_len(n_parameters) as u64, fetching).await
}

async fn fetched(node: &Node, holder: &Holder, (id, wanted): (ShardId, Transfer)) -> Result<Vec<u8>, String> {
    let fetching = async {
        let mut stream = holder.open(node, shard::PROTOCOL).await.map_err(|error| error.to_string())?;
        let bytes = shard::fetch(&mut stream, id, wanted, &mut None, |_| ()).await;
        bytes.map_err(|error| error.to_string())
    };
    within(wanted.n_bytes, fetching).await
}

async fn within<T>(n_bytes: u64, transfer: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let limit = GRACE + Duration::from_secs(n_bytes / BYTES_PER_SECOND_MIN);
    tokio::time::timeout(limit, transfer).await.unwrap_or_else(|_| Err(format!("not within {limit:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_says_that_it_is_far_ahead_is_asked_after_those_that_are_about_as_far_as_most() {
        let order = |epochs: &[u64]| from_the_middle(epochs.iter().map(|epoch| (*epoch, *epoch)).collect());
        assert!(order(&[]).is_empty());
        assert_eq!(order(&[7]), [7]);
        assert_eq!(order(&[1_000_000, 7]), [7, 1_000_000]);
        assert_eq!(order(&[40, 1_000_000, 41, 0, 42]), [41, 42, 1_000_000, 40, 0]);
    }
}
