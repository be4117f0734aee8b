//! What a backbone does for the hosts of experts: grants leases, keeps checkpoints where there are too few hosts, and checks what
//! they answer.

use std::collections::BTreeSet;
use std::sync::Arc;

use anyhow::bail;
use barnraise_learning::hosted::HostedLayer;
use barnraise_protocol::Sha256Hash;
use barnraise_protocol::access::PublicKey;
use barnraise_protocol::experts::audits::{self, AuditError, AuditRefusal, AuditReply};
use barnraise_protocol::experts::checkpoints::{self, CheckpointAnswer, CheckpointError, CheckpointRefusal};
use barnraise_protocol::experts::leases::{
    self, FROZEN_MAX, Grantors, LeaseAnswer, LeaseQuestion, LeaseRefusal,
};
use barnraise_protocol::experts::{LayerId, model_hash, parameters_hash};
use barnraise_protocol::framing::{self, FrameError};
use barnraise_relay::Paced;
use barnraise_swarm::experts::leases::LeasedRun;
use bytesize::ByteSize;
use libp2p::{PeerId, Stream};

use super::auditing::{Auditor, AuditorParts};
use super::keeper::{self, CheckpointKeeper};
use super::leases::LeaseService;
use crate::config::RunConfig;
use crate::host::access::Exclusion;
use crate::host::addresses::AddressGroups;
use crate::host::conversations::{AccessPolicy, Caller, RunServices, StreamError, StreamSlots, accept};
use crate::host::evidence::EvidenceStore;
use crate::host::run::RunHost;
use crate::net::violations;

/// Checkpoints that a backbone keeps, at most.
const KEPT_BYTES_MAX: ByteSize = ByteSize::gib(4);

/// What the conversations with hosts of experts share.
#[derive(Clone)]
struct ExpertServices {
    host: RunServices,
    leases: Arc<LeaseService>,
    keeper: Arc<CheckpointKeeper>,
    auditor: Arc<Auditor>,
    groups: AddressGroups,
}

impl AsRef<RunServices> for ExpertServices {
    fn as_ref(&self) -> &RunServices {
        &self.host
    }
}

/// Serves the hosts of a run's experts until its node shuts down; nothing, where the model has none that peers host.
///
/// # Errors
/// The model does not fit the data or has no layer that is to be frozen, or what was kept cannot be read.
pub(crate) async fn serve(
    services: &RunServices,
    evidence: &EvidenceStore,
    run_host: &mut RunHost,
) -> anyhow::Result<()> {
    let (host, key, config) = (services, &run_host.key, &run_host.config);
    let description = &host.described.run;
    let layers = HostedLayer::of_run(description)?;
    if layers.is_empty() {
        return Ok(());
    }
    let named = config.aggregators.peers().map(|(peer, _)| peer).filter_map(key_of);
    let grantors = Grantors::new(named.chain([key.public()]))?;
    let run_id = description.identity.run_id.clone();
    let grids = layers.iter().map(|layer| (layer.id, layer.grid)).collect();
    let run = LeasedRun { run_id: run_id.clone(), grids, grantors };
    let leased = (run, frozen_layers(config, &layers)?);
    let leases = Arc::new(LeaseService::new(host.node.clone(), key.clone(), leased, run_host.was_served));
    let of_run = (&run_id[..], parameters_hash(description)?);
    let of_auditor = layers.clone();
    let keeper =
        CheckpointKeeper::open(of_run, layers, run_host.storage().clone(), KEPT_BYTES_MAX.as_u64()).await?;
    keeper.set_grantors(leases.grantors());
    // They ask for each other's grants.
    host.access.gate.set_backbones(leases.grantors().keys().iter().copied());
    let of_evaluation = Arc::clone(&leases);
    run_host.holders = Some(Arc::new(move |places| of_evaluation.holders(places)));
    let of_metrics = Arc::clone(&leases);
    host.metrics.set_experts(move || of_metrics.standing());
    // Nobody else is to know which answers are looked at.
    let seed = key.derive(b"which answers of experts are computed once more");
    let (groups, keeper) = (AddressGroups::new(key), Arc::new(keeper));
    let auditor = Arc::new(Auditor::new(AuditorParts {
        run: Arc::new(description.clone()),
        model: model_hash(description)?,
        layers: of_auditor,
        node: host.node.clone(),
        leases: leases.clone(),
        keeper: keeper.clone(),
        access: host.access.clone(),
        evidence: evidence.clone(),
        metrics: host.metrics.clone(),
        seed: Sha256Hash::of(&seed).number(),
    }));
    let others = config.aggregators.peers().map(|(peer, _)| peer).filter(|peer| *peer != host.node.peer_id());
    let polling = auditor.clone().poll_other_backbones(others.collect(), run_host.shutdown.clone());
    run_host.tasks.spawn(polling);
    let services = ExpertServices { host: host.clone(), leases, keeper, auditor, groups };
    let slots = StreamSlots::new(&host.conversations, config.network.contributors_max);
    let no_lease =
        |_: &Exclusion| no_access(&LeaseAnswer::Refused(LeaseRefusal::NoAccess), leases::MESSAGE_BYTES_MAX);
    let tasks = &mut run_host.tasks;
    accept(&services, tasks, leases::PROTOCOL, AccessPolicy::Gated(no_lease), &slots, answer)?;
    let no_checkpoint = |_: &Exclusion| {
        let refused = CheckpointAnswer::Refused(CheckpointRefusal::NoAccess);
        no_access(&refused, checkpoints::MESSAGE_BYTES_MAX)
    };
    accept(&services, tasks, checkpoints::PROTOCOL, AccessPolicy::Gated(no_checkpoint), &slots, keep)?;
    let no_audit =
        |_: &Exclusion| no_access(&AuditReply::Refused(AuditRefusal::NoAccess), audits::MESSAGE_BYTES_MAX);
    accept(&services, tasks, audits::PROTOCOL, AccessPolicy::Gated(no_audit), &slots, audit)?;
    Ok(())
}

/// The layers whose experts make no step at any host, in their order.
fn frozen_layers(config: &RunConfig, layers: &[HostedLayer]) -> anyhow::Result<Vec<LayerId>> {
    let named = config.model.experts.iter().flat_map(|experts| &experts.frozen);
    let frozen: BTreeSet<LayerId> = named.map(|layer| LayerId(*layer)).collect();
    if let Some(unknown) = frozen.iter().find(|frozen| !layers.iter().any(|layer| layer.id == **frozen)) {
        bail!("model.experts.frozen: the model has no layer {} of experts", unknown.0);
    }
    if frozen.len() > FROZEN_MAX {
        bail!("model.experts.frozen: {} layers, at most {FROZEN_MAX} are wanted", frozen.len());
    }
    Ok(frozen.into_iter().collect())
}

fn no_access<A: serde::Serialize>(answer: &A, bytes_max: usize) -> Result<Vec<u8>, FrameError> {
    framing::encode(answer, bytes_max)
}

fn key_of(peer: PeerId) -> Option<PublicKey> {
    PublicKey::of_peer_id(&peer.to_bytes())
}

async fn answer(services: ExpertServices, mut caller: Caller, stream: Stream) -> Result<(), StreamError> {
    let peer = caller.peer;
    caller.while_admitted(answer_all(services, peer, stream)).await?
}

async fn answer_all(services: ExpertServices, caller: PeerId, stream: Stream) -> Result<(), StreamError> {
    let Some(peer) = key_of(caller) else { return Ok(()) };
    let group = services.groups.group_of(&services.host.node, caller).await;
    let mut stream = Paced::new(stream, services.host.conversations.pace());
    let pace = stream.pace();
    loop {
        pace.wait();
        let Some(question) = leases::receive(&mut stream).await? else { return Ok(()) };
        // Tokens are renewed while a stream is open, with or without the role.
        let gate = &services.host.access.gate;
        let refusal = match &question {
            LeaseQuestion::Lease { .. } if !gate.may_host(caller) => Some(LeaseRefusal::MayNotHost),
            // It asks at a backbone that does not know it yet.
            LeaseQuestion::Vote { holder, .. } if gate.is_convicted(*holder) => Some(LeaseRefusal::NoAccess),
            _ => None,
        };
        let answer = match refusal {
            None => services.leases.answer(peer, group, question).await,
            Some(refusal) => LeaseAnswer::Refused(refusal),
        };
        pace.answer();
        leases::reply(&mut stream, &answer).await?;
    }
}

async fn audit(services: ExpertServices, mut caller: Caller, stream: Stream) -> Result<(), StreamError> {
    let Some(peer) = key_of(caller.peer) else { return Ok(()) };
    let group = services.groups.group_of(&services.host.node, caller.peer).await;
    let mut stream = Paced::new(stream, services.host.conversations.pace());
    let serving = services.auditor.clone().serve((peer, group), &mut stream);
    match caller.while_admitted(serving).await? {
        Ok(()) => Ok(()),
        Err(AuditError::Frame(error)) => Err(error.into()),
        Err(error) => {
            tracing::debug!(peer = %caller.peer, %error, "an answer of an expert was not taken");
            Ok(())
        }
    }
}

async fn keep(services: ExpertServices, mut caller: Caller, stream: Stream) -> Result<(), StreamError> {
    let Some(peer) = key_of(caller.peer) else { return Ok(()) };
    let mut stream = Paced::new(stream, keeper::PACE);
    let may_host = services.host.access.gate.may_host(caller.peer);
    let serving = async {
        match may_host {
            true => services.keeper.serve(peer, &mut stream).await,
            false => keeper::refuse(&mut stream, CheckpointRefusal::NoAccess).await,
        }
    };
    match caller.while_admitted(serving).await? {
        Ok(()) => Ok(()),
        Err(CheckpointError::Frame(error)) => Err(error.into()),
        Err(error) => {
            if let Some(violation) = violations::of_checkpoint(&error) {
                services.host.node.report(caller.peer, violation);
            }
            tracing::debug!(peer = %caller.peer, %error, "a host of experts is served no longer");
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::super::testing::layers;
    use super::*;
    use crate::config::ExpertsSection;

    #[test]
    fn layers_that_are_frozen_are_those_of_the_model() {
        let layers = layers();
        let frozen = |numbers: &[u16]| {
            let experts = ExpertsSection { frozen: numbers.to_vec(), ..ExpertsSection::default() };
            let mut config = RunConfig::default();
            config.model.experts = Some(experts);
            frozen_layers(&config, &layers)
        };
        let first = layers[0].id;
        assert_eq!(frozen(&[first.0, first.0]).unwrap(), [first]);
        assert!(frozen(&[]).unwrap().is_empty());
        let error = frozen(&[first.0, 999]).unwrap_err().to_string();
        assert!(error.contains("999"), "{error}");
        assert!(frozen_layers(&RunConfig::default(), &layers).unwrap().is_empty());
    }
}
