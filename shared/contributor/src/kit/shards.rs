//! Fetches one shard at a time: chooses the shard and its source, and handles the outcome.

use std::rc::Rc;
use std::time::Duration;

use barnraise_protocol::ConversationError;
use barnraise_protocol::bulk::Partial;
use barnraise_protocol::shard::ShardId;
use barnraise_swarm::Moment;
use barnraise_swarm::shards::ShardSource;
use futures::FutureExt;

use super::network::{self, FetchedShard, ShardContent, ShardOutcome, ShardRequest};
use super::operation::NetworkOperation;
use super::{Kit, SHARD_RETRY};
use crate::error::OperationError;
use crate::platform::{PeerShardOutcome, Platform};

/// How long the first shard waits for a survey of holders, before it is fetched from the backbone.
const SURVEY_PATIENCE: Duration = Duration::from_secs(5);

impl<P: Platform> Kit<'_, P> {
    fn next_shard(&mut self) -> Option<ShardId> {
        let frozen = self.run.as_ref().and_then(|run| run.frozen.as_ref()?.next());
        if let Some(frozen) = frozen.filter(|_| !self.requests.is_empty()) {
            return Some(frozen);
        }
        if self.wants_gallery() {
            return Some(ShardId::Gallery);
        }
        let now = self.platform.now();
        if self.is_idle || self.session.is_stopping() || now < self.shard_retry_at {
            return None;
        }
        if frozen.is_some() {
            return frozen;
        }
        let run = self.run.as_mut()?;
        if run.wanted_shard.is_none() && run.samples.wants_window() {
            return Some(ShardId::Window);
        }
        if run.wanted_shard.is_none() && run.samples.is_hungry() {
            if let Some(survey) = self.platform.survey() {
                run.exchange.on_survey(survey);
                run.survey_by = None;
            }
            if run.survey_by.is_some_and(|at| now < at) {
                return None;
            }
            let exchange = &run.exchange;
            run.wanted_shard = run.samples.next_fetch_by(|shard| exchange.rarity(shard));
        }
        run.wanted_shard
    }

    /// Deadline of the first survey of a new run.
    pub(super) fn survey_by(&self) -> Option<Moment> {
        self.platform.has_peers().then(|| self.platform.now() + SURVEY_PATIENCE)
    }

    pub(super) fn start_shard(&mut self) {
        if self.shard_id.is_some() {
            return;
        }
        let Some(id) = self.next_shard() else { return };
        let now = self.platform.now();
        let Some(run) = &mut self.run else { return };
        let mut link = self.link.as_mut();
        // What is cached is read while no backbone answers, too.
        let is_cached = matches!(id, ShardId::Numbered(shard) if run.exchange.keeps(shard));
        if link.is_none() && !is_cached {
            return;
        }
        let link_id = link.as_ref().map_or(0, |link| link.id);
        let (cancel, cancelled) = futures::channel::oneshot::channel();
        let operation =
            NetworkOperation { platform: self.platform, meter: Rc::clone(&self.meter), cancelled };
        let manifest = &run.description.data.manifest;
        if let (ShardId::Window, Some(data)) = (id, manifest.stream) {
            let fetch =
                network::fetch_window(operation, (link_id, link.and_then(|link| link.shard.take())), data);
            self.shard_id = Some(id);
            self.shard_cancel = Some(cancel);
            self.shard = fetch.boxed_local().fuse();
            return;
        }
        let entry = match id {
            ShardId::Streamed(number) => run.samples.in_window(number),
            _ => id.entry(manifest),
        };
        let Some(&entry) = entry else {
            // It left the window since.
            run.partial_shard = None;
            if run.wanted_shard.take().is_some() {
                run.samples.on_fetch_failed();
            }
            return;
        };
        let partial = run.partial_shard.take_if(|(cut, _)| *cut == id).map(|(_, partial)| partial);
        let (source, room) = match id {
            ShardId::Numbered(shard) if !run.exchange.keeps(shard) => {
                let n_here = partial.as_ref().map_or(0, Partial::n_bytes);
                (run.exchange.source(now, shard, n_here), run.exchange.room_for(shard))
            }
            // What leaves the window is of no use to anybody.
            ShardId::Streamed(_) => (ShardSource::Backbone, None),
            // A cached shard needs no source, unless it turns out to be gone.
            ShardId::Numbered(_) | ShardId::Gallery | ShardId::Window | ShardId::Preprocessing => {
                (ShardSource::Backbone, Some(Vec::new()))
            }
        };
        let shard = link.as_mut().and_then(|link| link.shard.take_if(|_| source == ShardSource::Backbone));
        let request = ShardRequest { id, entry, link_id, source, stream: shard, partial, room };
        let progress = Rc::clone(&self.shard_progress);
        progress.set((0, u64::from(entry.n_bytes)));
        let about = (Rc::clone(&run.description), Rc::clone(&self.ticket));
        let fetch = network::fetch_shard(operation, request, about, progress);
        if let Some(link) = link.filter(|_| id == ShardId::Gallery) {
            link.used_at = now;
        }
        self.shard_id = Some(id);
        self.shard_cancel = Some(cancel);
        self.shard = fetch.boxed_local().fuse();
    }

    pub(super) fn on_shard(&mut self, outcome: ShardOutcome<P>) {
        let ShardOutcome { id, link_id, source, stream, partial, room, result } = outcome;
        self.shard_id = None;
        self.shard_cancel = None;
        let is_from_backbone = source == ShardSource::Backbone;
        if let Some(link) = self.link.as_mut().filter(|link| is_from_backbone && link.id == link_id) {
            link.shard = stream;
            link.is_proven |= result.is_ok();
        }
        let goes_on = match id {
            ShardId::Numbered(shard) => {
                self.note_shard(shard, &source, partial.as_ref(), room.as_deref(), &result)
            }
            ShardId::Gallery | ShardId::Streamed(_) | ShardId::Window | ShardId::Preprocessing => false,
        };
        let Some(run) = &mut self.run else { return };
        if let Some(partial) = partial {
            run.partial_shard = Some((id, partial));
        }
        match result {
            Ok(FetchedShard { content: ShardContent::Frozen(bytes), .. }) => {
                if let Some(frozen) = &mut run.frozen {
                    frozen.on_shard(bytes);
                }
            }
            Ok(FetchedShard { content: ShardContent::Window(window), .. }) => {
                run.samples.on_window(window);
            }
            Ok(FetchedShard { content: ShardContent::Samples(samples), .. }) if id == ShardId::Gallery => {
                self.on_gallery(samples);
            }
            Ok(FetchedShard { content: ShardContent::Samples(samples), .. }) => {
                run.wanted_shard = None;
                run.samples.on_shard(&samples);
            }
            Err(OperationError::Cancelled) => {}
            // The next source is asked at once.
            Err(_) if goes_on => {}
            Err(error) => self.on_shard_error(id, &error),
        }
    }

    /// Reports the outcome of a fetch to the exchange; returns whether to resume from another source.
    fn note_shard(
        &mut self,
        shard: u32,
        source: &ShardSource,
        partial: Option<&Partial>,
        room: Option<&[u32]>,
        result: &Result<FetchedShard, OperationError>,
    ) -> bool {
        let (platform, now) = (self.platform, self.platform.now());
        let Some(exchange) = self.run.as_mut().map(|run| &mut run.exchange) else { return false };
        let here = partial.map_or(&[][..], Partial::bytes);
        let goes_on = match result {
            Ok(fetched) => {
                match (&fetched.bytes, room) {
                    (None, _) => exchange.on_kept(shard, &[]),
                    (Some(_), Some(evicted)) => exchange.on_kept(shard, evicted),
                    (Some(_), None) => {}
                }
                if let Some(bytes) = &fetched.bytes {
                    exchange.on_delivered(shard, source, bytes);
                }
                if let (ShardSource::Peer(peer), Some(_)) = (source, &fetched.bytes) {
                    platform.on_peer_shard(peer, shard, PeerShardOutcome::Delivered);
                }
                false
            }
            Err(OperationError::Cancelled) => {
                exchange.on_interrupted(shard, source, here);
                false
            }
            Err(error) if error.is_wrong() => exchange.on_wrong(shard, source),
            // The hash matches the manifest's, so the sender is not to blame.
            Err(error) if error.is_about_data() => false,
            Err(error) => {
                exchange.on_failed(now, shard, source, here);
                if let ShardSource::Peer(peer) = source {
                    platform.on_peer_shard(peer, shard, PeerShardOutcome::Failed(error));
                }
                *source != ShardSource::Backbone
            }
        };
        while let Some(convicted) = exchange.poll_convicted() {
            platform.on_peer_shard(&convicted.peer, convicted.shard, PeerShardOutcome::Wrong);
        }
        goes_on
    }

    fn on_shard_error(&mut self, id: ShardId, error: &OperationError) {
        let is_about_the_network =
            error.is_cut() || matches!(error, OperationError::Stalled | OperationError::Open { .. });
        if id == ShardId::Gallery {
            match is_about_the_network && self.is_idle {
                true => self.on_request_error(&error.into()),
                false => self.on_gallery_failed(&error.into()),
            }
            return;
        }
        self.shard_retry_at = self.platform.now() + SHARD_RETRY;
        if is_about_the_network {
            // The session notices a dead connection; the partial shard is kept.
            return;
        }
        if let Some(run) = &mut self.run {
            run.partial_shard = None;
            if run.wanted_shard.take().is_some() {
                run.samples.on_fetch_failed();
            }
        }
        if let ShardId::Streamed(_) = id
            && matches!(error, OperationError::Conversation(ConversationError::Refused(_)))
        {
            // It left the window meanwhile: the next one is asked for.
            return;
        }
        self.fail(format!("A shard of the data could not be had: {error}"));
    }
}
