//! Order in which a peer reads the training data: shards in a random order of its own, through a shuffle buffer
//! (DeDLOC §3.3).
//!
//! The stream names the shard that it needs next and is given its samples; batches are drawn at random from the
//! buffer. Each pass visits every shard once. Where peers exchange shards, the rarest comes first (DeDLOC
//! appendix H), at random among equals. The stream never fetches anything itself.
//!
//! Data that a backbone reads while the run trains have no last shard. Then a pass visits the shards of the newest window
//! once, and a new window brings new ones; it is asked for before each shard, and with each epoch. What is about to leave the
//! backbone is dropped from the buffer: no contribution of it would count.

use std::collections::BTreeSet;
use std::sync::Arc;

use barnraise_protocol::commitment::SampleId;
use barnraise_protocol::dataset::Samples;
use barnraise_protocol::shard::ShardId;
use barnraise_protocol::streamed::StreamWindow;

use crate::random::SplitMix64;

/// Endless stream of training samples.
#[derive(Debug)]
pub struct SampleStream {
    pass: ShardPass,
    capacity: usize,
    random: SplitMix64,
    /// Shards of this pass that are still to be fetched, last first.
    order: Vec<u32>,
    fetching: Option<u32>,
    buffer: Vec<(Arc<Samples>, SampleId)>,
}

/// What a pass is over.
#[derive(Debug)]
enum ShardPass {
    /// So many shards.
    All { n_shards: u32 },
    /// The window of a stream.
    Window {
        /// Shards that were visited, of those that the newest window has.
        visited: BTreeSet<u32>,
        /// Whether a newer window is to be asked for.
        is_stale: bool,
    },
}

/// Samples for a micro-batch.
#[derive(Debug, Clone, PartialEq)]
pub struct Drawn {
    /// The samples.
    pub samples: Samples,
    /// Shard and index of each, in the same order.
    pub ids: Vec<SampleId>,
}

impl SampleStream {
    /// Over `n_shards` shards, holding about `capacity` samples; `seed` decides the order.
    pub fn new(n_shards: u32, capacity: usize, seed: u64) -> Self {
        Self::over(ShardPass::All { n_shards }, capacity, seed)
    }

    /// Over the windows of a stream.
    pub fn streamed(capacity: usize, seed: u64) -> Self {
        Self::over(ShardPass::Window { visited: BTreeSet::new(), is_stale: true }, capacity, seed)
    }

    fn over(pass: ShardPass, capacity: usize, seed: u64) -> Self {
        let random = SplitMix64::new(seed);
        Self { pass, capacity, random, order: Vec::new(), fetching: None, buffer: Vec::new() }
    }

    /// Whether the window of the stream is to be asked for now.
    pub fn wants_window(&self) -> bool {
        matches!(self.pass, ShardPass::Window { is_stale: true, .. }) && self.fetching.is_none()
    }

    /// There are parameters of another epoch: the window may have moved.
    pub fn on_epoch(&mut self) {
        if let ShardPass::Window { is_stale, .. } = &mut self.pass {
            *is_stale = true;
        }
    }

    /// The window of the stream has arrived. Where all of it was visited, a new pass over it begins.
    pub fn on_window(&mut self, window: &StreamWindow) {
        let ShardPass::Window { visited, is_stale } = &mut self.pass else { return };
        *is_stale = false;
        // Half of what is kept is left to contributions on their way, and to their recomputation.
        let oldest = window.oldest().midpoint(window.first_drawn);
        self.buffer.retain(|(_, id)| id.shard >= oldest);
        visited.retain(|shard| *shard >= window.first_drawn);
        self.order = window.drawn().filter(|shard| !visited.contains(shard)).collect();
        if self.order.is_empty() {
            visited.clear();
            self.order.extend(window.drawn());
        }
        self.random.shuffle(&mut self.order);
    }

    /// Whether a shard is to be fetched now.
    pub fn is_hungry(&self) -> bool {
        let has_shards = match self.pass {
            ShardPass::All { n_shards } => n_shards > 0,
            ShardPass::Window { is_stale, .. } => !is_stale && !self.order.is_empty(),
        };
        has_shards && self.fetching.is_none() && self.buffer.len() < self.capacity
    }

    /// The shard to fetch now: one at a time, and only while the buffer has room.
    pub fn next_fetch(&mut self) -> Option<ShardId> {
        self.next_fetch_by(|_| 0)
    }

    /// Like [`Self::next_fetch`], but one of the shards with the least `rarity` among those left, at random.
    pub fn next_fetch_by(&mut self, rarity: impl Fn(u32) -> u32) -> Option<ShardId> {
        if !self.is_hungry() {
            return None;
        }
        if let (true, ShardPass::All { n_shards }) = (self.order.is_empty(), &self.pass) {
            self.order.extend(0..*n_shards);
            self.random.shuffle(&mut self.order);
        }
        // The order is random, so its last is a random one among equals.
        let rarest = (0..self.order.len()).rev().min_by_key(|&at| rarity(self.order[at]));
        self.fetching = rarest.map(|at| self.order.remove(at));
        match self.pass {
            ShardPass::All { .. } => self.fetching.map(ShardId::Numbered),
            ShardPass::Window { .. } => self.fetching.map(ShardId::Streamed),
        }
    }

    /// The shard of [`Self::next_fetch`] has arrived.
    pub fn on_shard(&mut self, samples: &Arc<Samples>) {
        let Some(shard) = self.fetching.take() else { return };
        if let ShardPass::Window { visited, is_stale } = &mut self.pass {
            visited.insert(shard);
            *is_stale = true;
        }
        let indices = 0..samples.n_samples() as u32;
        self.buffer.extend(indices.map(|index| (samples.clone(), SampleId { shard, index })));
    }

    /// The shard of [`Self::next_fetch`] could not be fetched: it is tried again after the others of this pass.
    pub fn on_fetch_failed(&mut self) {
        let Some(shard) = self.fetching.take() else { return };
        match &mut self.pass {
            ShardPass::All { .. } => self.order.insert(0, shard),
            // The next window tells whether it is still there.
            ShardPass::Window { is_stale, .. } => *is_stale = true,
        }
    }

    /// Samples in the buffer.
    pub fn n_buffered(&self) -> usize {
        self.buffer.len()
    }

    /// Draws `n` samples at random without replacement; `None` while there are fewer.
    ///
    /// Before the buffer has filled for the first time, batches are drawn from its samples, so that
    /// training starts with the first shard.
    pub fn take(&mut self, n: usize) -> Option<Drawn> {
        if self.buffer.len() < n {
            return None;
        }
        let (first, _) = self.buffer.first()?;
        let (mut samples, mut ids) = (first.none_of(), Vec::with_capacity(n));
        for _ in 0..n {
            let at = self.random.below(self.buffer.len());
            let (shard, id) = self.buffer.swap_remove(at);
            samples.push(&shard, id.index as usize);
            ids.push(id);
        }
        Some(Drawn { samples, ids })
    }
}

#[cfg(test)]
mod tests {
    use barnraise_protocol::Sha256Hash;
    use barnraise_protocol::dataset::{LabelledImages, ShardEntry, TokenSequences};
    use barnraise_protocol::streamed::StreamedShard;

    use super::*;

    /// A shard whose samples have one value, their global number, and the label of their shard.
    fn shard(id: ShardId) -> Arc<Samples> {
        let ShardId::Numbered(id) = id else { panic!("{id:?}") };
        let images = (0..10).map(|i| (id * 10 + i) as u8).collect();
        Arc::new(Samples::Images(LabelledImages { images, labels: vec![id as u8; 10] }))
    }

    fn take(stream: &mut SampleStream, n: usize) -> LabelledImages {
        let Some(Drawn { samples: Samples::Images(images), ids }) = stream.take(n) else { panic!("no {n}") };
        let values: Vec<u8> = ids.iter().map(|id| (id.shard * 10 + id.index) as u8).collect();
        assert_eq!(images.images, values, "not the samples that are named");
        images
    }

    #[test]
    fn of_no_shards_none_is_fetched() {
        assert!(!SampleStream::new(0, 10, 1).is_hungry() && SampleStream::new(1, 10, 1).is_hungry());
        assert!(!SampleStream::new(1, 0, 1).is_hungry(), "there is no room");
    }

    #[test]
    fn a_batch_is_drawn_as_soon_as_there_are_enough_samples() {
        let mut stream = SampleStream::new(2, 100, 1);
        assert_eq!((stream.take(0), stream.take(1)), (None, None));
        let id = stream.next_fetch().unwrap();
        assert!(!stream.is_hungry(), "one at a time");
        stream.on_shard(&shard(id));
        assert!(stream.is_hungry());
        assert_eq!(stream.take(11), None);
        assert_eq!(take(&mut stream, 10).images.len(), 10);
        assert_eq!(stream.n_buffered(), 0);
        // One that nobody fetches any more is no news.
        stream.on_shard(&shard(id));
        stream.on_fetch_failed();
        assert_eq!(stream.n_buffered(), 0);
        let mut full = SampleStream::new(2, 10, 1);
        let id = full.next_fetch().unwrap();
        full.on_shard(&shard(id));
        assert!(!full.is_hungry() && full.next_fetch().is_none(), "there is room for ten");
        take(&mut full, 1);
        assert!(full.is_hungry());
    }

    fn one_pass(seed: u64) -> Vec<u8> {
        let mut stream = SampleStream::new(8, 30, seed);
        let mut seen = Vec::new();
        while seen.len() < 80 {
            while let Some(id) = stream.next_fetch() {
                stream.on_shard(&shard(id));
            }
            let samples = take(&mut stream, 5);
            assert_eq!(samples.labels.len(), 5);
            seen.extend(samples.images);
        }
        seen
    }

    #[test]
    fn each_pass_shows_every_sample_once_in_an_order_of_its_own() {
        let mut stream = SampleStream::new(8, 1000, 1);
        for _ in 0..8 {
            let id = stream.next_fetch().unwrap();
            stream.on_shard(&shard(id));
        }
        let mut first = take(&mut stream, 80).images;
        first.sort_unstable();
        assert!(first.into_iter().eq(0..80));
        assert_ne!(one_pass(1), one_pass(2));
        assert_eq!(one_pass(1), one_pass(1));
    }

    #[test]
    fn a_sequence_of_tokens_is_drawn_whole() {
        let mut stream = SampleStream::new(2, 100, 3);
        while let Some(ShardId::Numbered(id)) = stream.next_fetch() {
            let first = id * 100;
            let ids = (0..10).flat_map(|i| [first + i, first + i, first + i]).collect();
            stream.on_shard(&Arc::new(Samples::Tokens(TokenSequences { length: 3, ids })));
            if stream.n_buffered() == 20 {
                break;
            }
        }
        let Some(Samples::Tokens(tokens)) = stream.take(20).map(|drawn| drawn.samples) else {
            panic!("no tokens")
        };
        let mut seen: Vec<u32> = tokens.sequences().map(|ids| ids[0]).collect();
        assert!(tokens.sequences().all(|ids| ids.iter().all(|id| *id == ids[0])));
        seen.sort_unstable();
        assert!(seen.into_iter().eq((0..10).chain(100..110)));
    }

    #[test]
    fn the_buffer_mixes_shards_and_stays_bounded() {
        let mut stream = SampleStream::new(8, 30, 5);
        while let Some(id) = stream.next_fetch() {
            assert_eq!(stream.next_fetch(), None, "one at a time");
            stream.on_shard(&shard(id));
        }
        assert_eq!(stream.n_buffered(), 30);
        let mut labels = take(&mut stream, 12).labels;
        labels.sort_unstable();
        labels.dedup();
        assert!(labels.len() > 1, "all of one shard");
    }

    #[test]
    fn the_rarest_come_first_and_the_pass_stays_whole() {
        let passes = (0..20).map(|seed| {
            let mut stream = SampleStream::new(6, 1000, seed);
            let mut next = || match stream.next_fetch_by(|shard| shard / 2) {
                Some(id @ ShardId::Numbered(shard)) => {
                    stream.on_shard(&self::shard(id));
                    shard
                }
                other => panic!("{other:?}"),
            };
            let pass: Vec<u32> = (0..6).map(|_| next()).collect();
            let rarities: Vec<u32> = pass.iter().map(|shard| shard / 2).collect();
            assert_eq!(rarities, [0, 0, 1, 1, 2, 2]);
            pass
        });
        let mut passes: Vec<_> = passes.collect();
        passes.sort_unstable();
        passes.dedup();
        assert!(passes.len() > 4, "equals come in any order");
    }

    #[test]
    fn a_failed_shard_comes_back_within_the_pass() {
        let mut stream = SampleStream::new(3, 1000, 9);
        let failed = stream.next_fetch().unwrap();
        stream.on_fetch_failed();
        let mut rest = Vec::new();
        for _ in 0..3 {
            let id = stream.next_fetch().unwrap();
            rest.push(id);
            stream.on_shard(&shard(id));
        }
        assert_eq!(rest[2], failed);
        assert_eq!(stream.take(31), None);
    }

    fn window(first_drawn: u32, shards: std::ops::Range<u32>) -> StreamWindow {
        let entry = ShardEntry { n_samples: 10, n_bytes: 1, sha256: Sha256Hash([0; 32]) };
        let shards = shards.map(|number| StreamedShard { number, entry }).collect();
        StreamWindow { first_drawn, shards }
    }

    /// Fetches a shard, as the window says.
    fn fetch(stream: &mut SampleStream, newest: &StreamWindow) -> u32 {
        assert!(stream.wants_window() && !stream.is_hungry(), "it is asked for first");
        stream.on_window(newest);
        let Some(ShardId::Streamed(number)) = stream.next_fetch() else { panic!("none is wanted") };
        stream.on_shard(&shard(ShardId::Numbered(number)));
        number
    }

    #[test]
    fn a_pass_visits_a_window_once_and_what_is_new_in_the_next() {
        let mut stream = SampleStream::streamed(1000, 3);
        let mut first: Vec<u32> = (0..4).map(|_| fetch(&mut stream, &window(2, 0..6))).collect();
        first.sort_unstable();
        assert_eq!(first, [2, 3, 4, 5], "and none of those that are only kept");
        let mut second: Vec<u32> = (0..2).map(|_| fetch(&mut stream, &window(4, 2..8))).collect();
        second.sort_unstable();
        assert_eq!(second, [6, 7]);
        let again = fetch(&mut stream, &window(4, 2..8));
        assert!((4..8).contains(&again), "it begins again where nothing is new");
    }

    #[test]
    fn samples_that_left_the_window_are_dropped() {
        let mut stream = SampleStream::streamed(1000, 3);
        for _ in 0..2 {
            fetch(&mut stream, &window(0, 0..2));
        }
        stream.on_window(&window(1, 0..3));
        assert_eq!(stream.n_buffered(), 20);
        stream.on_epoch();
        assert!(stream.wants_window());
        stream.on_window(&window(2, 0..4));
        assert_eq!(stream.n_buffered(), 10, "the oldest is about to leave");
        assert!(stream.take(10).unwrap().ids.iter().all(|id| id.shard == 1));
    }

    #[test]
    fn a_shard_of_a_stream_that_failed_is_asked_for_by_the_next_window() {
        let mut stream = SampleStream::streamed(1000, 3);
        stream.on_window(&window(0, 0..1));
        assert_eq!(stream.next_fetch(), Some(ShardId::Streamed(0)));
        assert!(!stream.wants_window(), "it is being fetched");
        stream.on_fetch_failed();
        assert_eq!(fetch(&mut stream, &window(1, 1..2)), 1);
    }
}
