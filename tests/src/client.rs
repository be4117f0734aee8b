//! A contributor that does exactly what a test says, honest or not: the protocol over a relay node,
//! without the driver that keeps to it.

use anyhow::{Context, Result};
use barnraise_learning::ParameterLayout;
use barnraise_protocol::access;
use barnraise_protocol::contribute::{
    self, BackboneToContributor, ContributorToBackbone, DeviceKind, Join, Report,
};
use barnraise_protocol::framing;
use barnraise_protocol::gradient::{self, ContributionRefusal, Offer, OfferStage, PreparedContribution};
use barnraise_protocol::hash::Sha256Hash;
use barnraise_protocol::receipt::SignedReceipt;
use barnraise_protocol::run::{self, RunDescription};
use barnraise_protocol::shard::{self, ShardId};
use barnraise_protocol::state;
use barnraise_relay::{Node, NodeConfig};
use futures::AsyncReadExt;
use futures::io::{ReadHalf, WriteHalf};
use libp2p::identity::Keypair;
use libp2p::{Multiaddr, PeerId, Stream};
use tokio::task::JoinSet;

use crate::process::HANG;

/// A connection to a backbone.
#[derive(Debug)]
pub struct TestClient {
    node: Node,
    backbone: PeerId,
}

/// The parameters of an epoch.
#[derive(Debug, Clone, PartialEq)]
pub struct EpochParameters {
    /// Optimizer steps that led to them.
    pub epoch: u64,
    /// `[n_parameters]`
    pub parameters: Vec<f32>,
    /// Hash of the encoded bytes.
    pub sha256: Sha256Hash,
}

/// A session of the `contribute` conversation.
#[derive(Debug)]
pub struct ContributeSession {
    reader: ReadHalf<Stream>,
    writer: WriteHalf<Stream>,
}

/// A session whose inbound messages are discarded.
#[derive(Debug)]
pub struct DrainedSession {
    writer: WriteHalf<Stream>,
    draining: JoinSet<()>,
}

/// `future`, or an error when it hangs.
///
/// # Errors
/// After [`HANG`].
pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> Result<T> {
    tokio::time::timeout(HANG, future).await.with_context(|| format!("{what}: no answer"))
}

/// Length of the run's flat parameter vector.
///
/// # Errors
/// A model that does not fit the data.
pub fn n_parameters(run: &RunDescription) -> Result<u64> {
    Ok(ParameterLayout::of_run(run)?.n_parameters() as u64)
}

impl TestClient {
    /// Dials with a fresh key.
    ///
    /// # Errors
    /// Where nobody answers.
    pub async fn connect(address: Multiaddr) -> Result<Self> {
        Self::connect_as(Keypair::generate_ed25519(), address).await
    }

    /// Dials with this key.
    ///
    /// # Errors
    /// Where nobody answers.
    pub async fn connect_as(keypair: Keypair, address: Multiaddr) -> Result<Self> {
        let node = Node::start(keypair, NodeConfig::default()).await?;
        let backbone = node.dial(address).await?;
        Ok(Self { node, backbone })
    }

    /// The client's peer id.
    pub fn peer_id(&self) -> PeerId {
        self.node.peer_id()
    }

    /// Its key, as receipts name it.
    pub fn key(&self) -> Option<access::PublicKey> {
        access::PublicKey::of_peer_id(&self.peer_id().to_bytes())
    }

    /// A stream, for arbitrary bytes.
    ///
    /// # Errors
    /// From the node.
    pub async fn open(&self, protocol: &'static str) -> Result<Stream> {
        Ok(within(protocol, self.node.open(self.backbone, protocol)).await??)
    }

    /// The run.
    ///
    /// # Errors
    /// From the conversation.
    pub async fn describe(&self) -> Result<RunDescription> {
        let mut stream = self.open(run::PROTOCOL).await?;
        Ok(within("describe", run::describe(&mut stream)).await??)
    }

    /// The answer to a question about access.
    ///
    /// # Errors
    /// A refusal, as the conversation has it; where no answer comes.
    pub async fn ask(
        &self,
        question: &access::ContributorToBackbone,
    ) -> Result<access::BackboneToContributor> {
        let mut stream = self.open(access::PROTOCOL).await?;
        Ok(within("access", access::ask(&mut stream, question)).await??)
    }

    /// A shard, compressed.
    ///
    /// # Errors
    /// From the conversation.
    pub async fn shard(&self, run: &RunDescription, id: ShardId) -> Result<Vec<u8>> {
        let want = id.transfer(&run.data.manifest).context("no such shard")?;
        let mut stream = self.open(shard::PROTOCOL).await?;
        Ok(within("shard", shard::fetch(&mut stream, id, want, &mut None, |_| {})).await??)
    }

    /// The newest parameters.
    ///
    /// # Errors
    /// From the conversation.
    pub async fn state(&self, run: &RunDescription) -> Result<EpochParameters> {
        let mut stream = self.open(state::PROTOCOL).await?;
        let mut partial = None;
        let (n_values, codec) = (n_parameters(run)?, run.scheme.state_codec());
        let fetch = state::fetch(&mut stream, n_values, codec, &mut partial, |_, _| {});
        let state = within("state", fetch).await??;
        Ok(EpochParameters { epoch: state.epoch, parameters: state.values(), sha256: state.sha256 })
    }

    /// Joins `run_id`; the first message is still to be heard.
    ///
    /// # Errors
    /// Where the stream breaks.
    pub async fn join(&self, run_id: &str, device_name: &str) -> Result<ContributeSession> {
        let mut session = self.session().await?;
        let (run_id, device_name) = (run_id.to_owned(), device_name.to_owned());
        let join = Join { run_id, device: DeviceKind::NativeCpu, device_name, name: None };
        session.send(&ContributorToBackbone::Join(join)).await?;
        Ok(session)
    }

    /// A session in which nothing was said.
    ///
    /// # Errors
    /// Where the stream cannot be opened.
    pub async fn session(&self) -> Result<ContributeSession> {
        let (reader, writer) = self.open(contribute::PROTOCOL).await?.split();
        Ok(ContributeSession { reader, writer })
    }

    /// Offers a contribution; the answer is the backbone's.
    ///
    /// # Errors
    /// Where no answer comes.
    pub async fn offer(
        &self,
        offer: &Offer,
        bytes: &[u8],
    ) -> Result<Result<SignedReceipt, ContributionRefusal>> {
        let (offer, bytes) = (offer.clone(), bytes.to_vec());
        self.offer_prepared(&PreparedContribution { offer, commitment: None, bytes, samples: Vec::new() })
            .await
    }

    /// Offers a contribution with its commitment; returns the backbone's answer.
    ///
    /// # Errors
    /// Where no answer comes.
    pub async fn offer_prepared(
        &self,
        prepared: &PreparedContribution,
    ) -> Result<Result<SignedReceipt, ContributionRefusal>> {
        Ok(self.offer_and_watch(prepared).await?.0)
    }

    /// Likewise; also returns what is left of the peer's probation, if the contribution was recomputed before it counted.
    ///
    /// # Errors
    /// Where no answer comes.
    pub async fn offer_and_watch(
        &self,
        prepared: &PreparedContribution,
    ) -> Result<(Result<SignedReceipt, ContributionRefusal>, Option<u32>)> {
        let mut stream = self.open(gradient::PROTOCOL).await?;
        let mut checking = None;
        let on_stage = |stage| {
            if let OfferStage::Checking(n_left) = stage {
                checking = Some(n_left);
            }
        };
        let answer = within("offer", gradient::offer(&mut stream, prepared, on_stage)).await??;
        Ok((answer, checking))
    }
}

impl ContributeSession {
    /// Sends a message.
    ///
    /// # Errors
    /// Where the stream breaks.
    pub async fn send(&mut self, message: &ContributorToBackbone) -> Result<()> {
        write_message(&mut self.writer, message).await
    }

    /// Reports samples of an epoch.
    ///
    /// # Errors
    /// Where the stream breaks.
    pub async fn report(&mut self, epoch: u64, n_samples: u32) -> Result<()> {
        report(&mut self.writer, epoch, n_samples).await
    }

    /// Discards inbound messages from now on.
    pub fn discard_inbound(self) -> DrainedSession {
        let mut draining = JoinSet::new();
        let Self { mut reader, writer } = self;
        draining.spawn(async move { while receive_any(&mut reader).await.is_ok() {} });
        DrainedSession { writer, draining }
    }

    /// The next message, without progress reports and addresses of other backbones.
    ///
    /// # Errors
    /// Where the stream ends.
    pub async fn receive(&mut self) -> Result<BackboneToContributor> {
        loop {
            match receive_any(&mut self.reader).await? {
                BackboneToContributor::Progress(_) | BackboneToContributor::OtherBackbones(_) => {}
                message => return Ok(message),
            }
        }
    }
}

impl DrainedSession {
    /// Reports samples of an epoch.
    ///
    /// # Errors
    /// Where the stream breaks.
    pub async fn report(&mut self, epoch: u64, n_samples: u32) -> Result<()> {
        report(&mut self.writer, epoch, n_samples).await
    }

    /// Until the other side ends it.
    pub async fn ended(mut self) {
        self.draining.join_next().await;
    }
}

async fn write_message(writer: &mut WriteHalf<Stream>, message: &ContributorToBackbone) -> Result<()> {
    let write = framing::write(writer, message, contribute::MESSAGE_BYTES_MAX);
    Ok(within("session", write).await??)
}

async fn report(writer: &mut WriteHalf<Stream>, epoch: u64, n_samples: u32) -> Result<()> {
    let report = Report { epoch, contribution_id: u64::MAX, n_samples, samples_per_second: 1.0 };
    write_message(writer, &ContributorToBackbone::Report(report)).await
}

async fn receive_any(reader: &mut ReadHalf<Stream>) -> Result<BackboneToContributor> {
    Ok(within("session", framing::read(reader, contribute::MESSAGE_BYTES_MAX)).await??)
}
