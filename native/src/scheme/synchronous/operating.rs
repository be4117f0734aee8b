//! The operator's commands that a driver goes on with.

use barnraise_swarm::collection::CollectionRound;

use super::core::CoreStorage;
use super::core::operator::OperatorControl;
use crate::config::RunConfig;
use crate::data::text::stream::StreamSettings;
use crate::host::access::Access;
use crate::host::clock::system_clock;
use crate::host::operator::settings::EffectiveSettings;
use crate::host::operator::state::OperatorStateStore;

/// The operator's commands that are still in effect.
pub(super) async fn resume(
    config: &RunConfig,
    kept: OperatorStateStore,
    access: &Access,
    round: &CollectionRound,
    storing: &CoreStorage,
) -> anyhow::Result<OperatorControl> {
    let here = access.here.to_peer_id();
    let n_others = config.aggregators.peers().filter(|(peer, _)| peer.to_bytes() != here).count();
    let source = config.data_source();
    let stream_weights = source.streamed().map(StreamSettings::weights).unwrap_or_default();
    let file = EffectiveSettings::of(&round.limits(), storing.checkpoint_every_epochs, stream_weights);
    Ok(OperatorControl::resume(kept, access.gate.clone(), system_clock(), n_others, file).await?)
}
