//! The page of a run at a participant: visitors come in through this machine, also where the one that began the run is gone.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use barnraise_protocol::api::{HistoryPoint, RunStatus};
use barnraise_protocol::run::RunDescription;
use barnraise_relay::Node;
use barnraise_relay::dht::{Dht, DhtConfig};
use barnraise_relay::server::page_address;
use barnraise_swarm::history::History;
use libp2p::Multiaddr;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::config::NetworkSection;
use crate::host::announce::{Announcement, announce};
use crate::host::data_files::DataFiles;
use crate::host::evaluator::Evaluated;
use crate::host::http::HttpState;
use crate::host::page::PageSource;
use crate::host::site::{self, Serving, Site, SiteRun};
use crate::host::status::StatusPublisher;
use crate::net::announced::is_circuit;
use crate::scheme::sampled::driver::SampledDriver;
use crate::scheme::sampled::{n_trainers, progress};

/// Interval of the status.
const STATUS_EVERY: Duration = Duration::from_millis(500);

/// The run's page, which is served until this is dropped.
pub(super) struct ShownPage {
    run: RunDescription,
    publisher: StatusPublisher,
    history: History,
    node: Node,
    address: SocketAddr,
    _serving: Serving,
}

impl ShownPage {
    /// Serves the page at `http`, for visitors who take part through `node`.
    ///
    /// - `preprocessing`: the file that says how a visitor's own files become samples
    ///
    /// # Errors
    /// The system does not say where it listens.
    pub(super) fn open(
        http: TcpListener,
        node: &Node,
        (run, (n_parameters, majority_accuracy)): (&RunDescription, (usize, Option<f32>)),
        preprocessing: Option<Arc<[u8]>>,
    ) -> anyhow::Result<Self> {
        let (run, history) = (run.clone(), History::default());
        let publisher = StatusPublisher::new(RunStatus {
            run: run.clone(),
            n_parameters: n_parameters as u64,
            addresses: addresses(node),
            progress: progress(&run, 0, 0, &history),
            history: Vec::new(),
            devices: Vec::new(),
            paused: None,
            majority_accuracy,
        });
        let (page, status) = (PageSource::chosen(None), publisher.status().subscribe());
        let file = preprocessing.map(bytes::Bytes::from_owner);
        let data = DataFiles::of_preprocessing(&run.data.manifest.samples, file);
        let shown = HttpState::new(page.clone(), status, publisher.events()).with_data(data);
        let shown = SiteRun { http: shown, is_listed: true, rooms: None, invitations: None };
        let address = http.local_addr()?;
        // Its readers of events would keep it open beyond the end.
        let stop = CancellationToken::new();
        let serving = site::serve(
            Site::new(&page, vec![shown]),
            http,
            &NetworkSection::default(),
            Some(node.clone()),
            stop,
        );
        Ok(Self { run, publisher, history, node: node.clone(), address, _serving: serving })
    }

    /// Where it is, as a browser is told.
    pub(super) fn address(&self) -> String {
        format!("http://{}/", page_address(self.address))
    }

    /// Shows how the run goes, and what the model was found to be worth here. Does not end.
    pub(super) async fn keep(
        mut self,
        driver: &SampledDriver,
        mut evaluated: watch::Receiver<Option<Evaluated>>,
    ) {
        let mut newest = driver.newest();
        let mut ticks = tokio::time::interval(STATUS_EVERY);
        let mut shown = 0;
        loop {
            ticks.tick().await;
            let round = newest.borrow_and_update().as_ref().map_or(0, |(round, _)| *round);
            if round > shown {
                let point =
                    HistoryPoint { epoch: round, n_samples_total: 0, train_loss: None, test_accuracy: None };
                self.history.push(point);
                self.publisher.on_stepped(Some(point));
                shown = round;
            }
            // Where nothing is evaluated, nobody tells.
            if evaluated.has_changed().unwrap_or(false)
                && let Some(Evaluated { epoch, evaluation }) = *evaluated.borrow_and_update()
            {
                self.history.set_accuracy(epoch, evaluation.accuracy);
                self.publisher.on_new_history();
            }
            // Those of browsers change with their certificates.
            let addresses = addresses(&self.node);
            self.publisher.status().send_if_modified(|status| {
                let is_new = status.addresses != addresses;
                status.addresses = addresses;
                is_new
            });
            let progress = progress(&self.run, round, n_trainers(driver), &self.history);
            self.publisher.publish(progress, std::iter::empty(), None, &self.history);
        }
    }
}

fn addresses(node: &Node) -> Vec<String> {
    // Circuits lead through a backbone that may be gone.
    node.addresses().iter().filter(|address| !is_circuit(address)).map(Multiaddr::to_string).collect()
}

/// Tells in the DHT that the run is here, as its backbone does. Does not end, but with an error.
///
/// # Errors
/// The node has a DHT already.
pub(super) async fn announce_run(node: Node, what: Announcement) -> anyhow::Result<()> {
    let dht = Dht::start(node.clone(), DhtConfig::default())?;
    // It ends when it is dropped.
    announce(node, dht, what, CancellationToken::new()).await;
    Ok(())
}
