//! The group that a proposal describes, and the name of its round.

use barnraise_protocol::TensorCodec;
use barnraise_protocol::matchmaking::{ModelVersion, Proposal, ProposedMember, ProposedReducer};
use barnraise_swarm::PeerKey;
use barnraise_swarm::averaging::{Group, GroupError, GroupMember};

/// The group of a proposal.
///
/// # Errors
/// The proposal is invalid.
pub(super) fn group(proposal: &Proposal, n_values: usize, codec: TensorCodec) -> Result<Group, GroupError> {
    let member = |member: &ProposedMember| GroupMember {
        peer: PeerKey(member.peer.clone()),
        n_samples: member.n_samples,
        receives: true,
        n_reduced: member.n_reduced,
    };
    let reducer = |reducer: &ProposedReducer| GroupMember {
        peer: PeerKey(reducer.peer.clone()),
        n_samples: 0,
        receives: false,
        n_reduced: reducer.n_reduced,
    };
    let reducers = proposal.reducers.iter().map(reducer);
    let members = proposal.members.iter().map(member).chain(reducers).collect();
    Group::new(&round(&proposal.model, proposal.nonce), members, n_values, codec)
}

pub(super) fn round(model: &ModelVersion, nonce: u64) -> Vec<u8> {
    [model.hash.0.as_slice(), &model.epoch.to_le_bytes(), &nonce.to_le_bytes()].concat()
}
