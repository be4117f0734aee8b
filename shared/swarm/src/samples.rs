//! Order in which a peer reads the training data: shards in a random order of its own, through a shuffle buffer
//! (DeDLOC §3.3).
//!
//! The stream names the shard that it needs next and is given its samples; batches are drawn at random from the
//! buffer. Each pass visits every shard once. Where peers exchange shards, the rarest comes first (DeDLOC
//! appendix H), at random among equals. The stream never fetches anything itself.
//!
//! Data that a backbone reads while the run trains have no last shard. Then a pass visits the shards of the newest window
//! once, and a new window brings new ones; it is asked for before each shard, and with each epoch. What is about to leave the
//! backbone is dropped from the buffer, and nothing is drawn by a window of many steps ago: no contribution of it would
//! count. Another backbone, or one that began its sources again, may have another shard under the same number: its samples
//! are dropped, too, since a commitment names them by the hash of their shard.

use std::collections::BTreeMap;
use std::sync::Arc;

use barnraise_protocol::Sha256Hash;
use barnraise_protocol::commitment::SampleId;
use barnraise_protocol::dataset::{Samples, ShardEntry};
use barnraise_protocol::shard::ShardId;
use barnraise_protocol::streamed::{StreamWindow, WINDOW_STEPS_MAX};

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
    /// These shards.
    All { shards: Vec<u32> },
    /// The window of a stream.
    Window(WindowPass),
    /// Samples that are here, and in no shard.
    Own(Arc<Samples>),
}

/// A pass over the newest window of a stream.
#[derive(Debug, Default)]
struct WindowPass {
    newest: StreamWindow,
    /// Whether a newer one is to be asked for.
    is_stale: bool,
    /// Shards that were visited, of those that the newest window has.
    visited: BTreeMap<u32, Sha256Hash>,
    /// Shards whose samples are in the buffer.
    buffered: BTreeMap<u32, Arc<Sha256Hash>>,
    /// The epoch now, and that in which the newest window came.
    epoch: u64,
    window_epoch: u64,
}

/// Samples for a micro-batch.
#[derive(Debug, Clone, PartialEq)]
pub struct Drawn {
    /// The samples.
    pub samples: Samples,
    /// Which they are, in the same order.
    pub ids: Vec<DrawnSample>,
}

/// Which sample was drawn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DrawnSample {
    /// Shard and index.
    pub id: SampleId,
    /// Hash of a shard of a stream, which all its samples share.
    pub streamed: Option<Arc<Sha256Hash>>,
}

impl WindowPass {
    /// Takes a newer window, and forgets what is no longer in it.
    fn on_window(&mut self, window: StreamWindow) {
        self.is_stale = false;
        self.window_epoch = self.epoch;
        let has =
            |shard: u32, sha256: Sha256Hash| window.entry(shard).is_some_and(|entry| entry.sha256 == sha256);
        // Half of the grace is left to contributions on their way, and to their recomputation.
        let oldest = window.oldest().midpoint(window.first_drawn);
        self.buffered.retain(|shard, sha256| *shard >= oldest && has(*shard, **sha256));
        self.visited.retain(|shard, sha256| *shard >= window.first_drawn && has(*shard, *sha256));
        self.newest = window;
    }

    fn on_shard(&mut self, shard: u32) {
        self.is_stale = true;
        if let Some(entry) = self.newest.entry(shard) {
            self.visited.insert(shard, entry.sha256);
            self.buffered.insert(shard, Arc::new(entry.sha256));
        }
    }

    /// Whether contributions of what is drawn would come too late.
    fn is_outdated(&self) -> bool {
        self.epoch.saturating_sub(self.window_epoch) >= WINDOW_STEPS_MAX
    }
}

impl SampleStream {
    /// Over `n_shards` shards, holding about `capacity` samples; `seed` decides the order.
    pub fn new(n_shards: u32, capacity: usize, seed: u64) -> Self {
        Self::of_shards((0..n_shards).collect(), capacity, seed)
    }

    /// Over these shards alone.
    pub fn of_shards(shards: Vec<u32>, capacity: usize, seed: u64) -> Self {
        Self::over(ShardPass::All { shards }, capacity, seed)
    }

    /// Over the windows of a stream.
    pub fn streamed(capacity: usize, seed: u64) -> Self {
        let pass = WindowPass { is_stale: true, ..WindowPass::default() };
        Self::over(ShardPass::Window(pass), capacity, seed)
    }

    /// Over samples that are here already: nothing is fetched.
    pub fn own(samples: Arc<Samples>, seed: u64) -> Self {
        Self::over(ShardPass::Own(samples), 0, seed)
    }

    fn over(pass: ShardPass, capacity: usize, seed: u64) -> Self {
        let random = SplitMix64::new(seed);
        Self { pass, capacity, random, order: Vec::new(), fetching: None, buffer: Vec::new() }
    }

    /// Whether the window of the stream is to be asked for now.
    pub fn wants_window(&self) -> bool {
        matches!(&self.pass, ShardPass::Window(pass) if pass.is_stale) && self.fetching.is_none()
    }

    /// There are parameters of another epoch: the window may have moved.
    pub fn on_epoch(&mut self, epoch: u64) {
        if let ShardPass::Window(pass) = &mut self.pass {
            (pass.epoch, pass.is_stale) = (epoch, true);
        }
    }

    /// The window of the stream has arrived. Where all of it was visited, a new pass over it begins.
    pub fn on_window(&mut self, window: StreamWindow) {
        let ShardPass::Window(pass) = &mut self.pass else { return };
        pass.on_window(window);
        self.buffer.retain(|(_, id)| pass.buffered.contains_key(&id.shard));
        self.order = pass.newest.drawn().filter(|shard| !pass.visited.contains_key(shard)).collect();
        if self.order.is_empty() {
            pass.visited.clear();
            self.order.extend(pass.newest.drawn());
        }
        self.random.shuffle(&mut self.order);
    }

    /// A shard in the newest window of the stream.
    pub fn in_window(&self, shard: u32) -> Option<&ShardEntry> {
        match &self.pass {
            ShardPass::All { .. } | ShardPass::Own(_) => None,
            ShardPass::Window(pass) => pass.newest.entry(shard),
        }
    }

    /// Whether a shard is to be fetched now.
    pub fn is_hungry(&self) -> bool {
        let has_shards = match &self.pass {
            ShardPass::All { shards } => !shards.is_empty(),
            ShardPass::Window(pass) => !pass.is_stale && !self.order.is_empty(),
            ShardPass::Own(_) => false,
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
        if let (true, ShardPass::All { shards }) = (self.order.is_empty(), &self.pass) {
            self.order.extend(shards);
            self.random.shuffle(&mut self.order);
        }
        // The order is random, so its last is a random one among equals.
        let rarest = (0..self.order.len()).rev().min_by_key(|&at| rarity(self.order[at]));
        self.fetching = rarest.map(|at| self.order.remove(at));
        match self.pass {
            ShardPass::All { .. } | ShardPass::Own(_) => self.fetching.map(ShardId::Numbered),
            ShardPass::Window(_) => self.fetching.map(ShardId::Streamed),
        }
    }

    /// The shard of [`Self::next_fetch`] has arrived.
    pub fn on_shard(&mut self, samples: &Arc<Samples>) {
        let Some(shard) = self.fetching.take() else { return };
        if let ShardPass::Window(pass) = &mut self.pass {
            pass.on_shard(shard);
        }
        self.buffer_all(shard, samples);
    }

    fn buffer_all(&mut self, shard: u32, samples: &Arc<Samples>) {
        let indices = 0..samples.n_samples() as u32;
        self.buffer.extend(indices.map(|index| (samples.clone(), SampleId { shard, index })));
    }

    /// The shard of [`Self::next_fetch`] could not be fetched: it is tried again after the others of this pass.
    pub fn on_fetch_failed(&mut self) {
        let Some(shard) = self.fetching.take() else { return };
        match &mut self.pass {
            ShardPass::All { .. } => self.order.insert(0, shard),
            // The next window tells whether it is still there.
            ShardPass::Window(pass) => pass.is_stale = true,
            ShardPass::Own(_) => {}
        }
    }

    /// Samples in the buffer.
    pub fn n_buffered(&self) -> usize {
        self.buffer.len()
    }

    /// Draws `n` samples at random without replacement; `None` while there are fewer, and until a newer window of a stream
    /// came.
    ///
    /// Before the buffer has filled for the first time, batches are drawn from its samples, so that
    /// training starts with the first shard.
    pub fn take(&mut self, n: usize) -> Option<Drawn> {
        if let ShardPass::Own(samples) = &self.pass {
            let samples = samples.clone();
            // The next pass begins within a batch, and a batch may be longer than a pass.
            while self.buffer.len() < n && samples.n_samples() > 0 {
                self.buffer_all(0, &samples);
            }
        }
        let window = match &self.pass {
            ShardPass::Window(pass) => Some(pass),
            ShardPass::All { .. } | ShardPass::Own(_) => None,
        };
        if self.buffer.len() < n || window.is_some_and(WindowPass::is_outdated) {
            return None;
        }
        let (first, _) = self.buffer.first()?;
        let (mut samples, mut ids) = (first.none_of(), Vec::with_capacity(n));
        for _ in 0..n {
            let at = self.random.below(self.buffer.len());
            let (shard, id) = self.buffer.swap_remove(at);
            samples.push(&shard, id.index as usize);
            let streamed = window.and_then(|window| window.buffered.get(&id.shard).cloned());
            ids.push(DrawnSample { id, streamed });
        }
        Some(Drawn { samples, ids })
    }
}

#[cfg(test)]
mod tests {
    use barnraise_protocol::dataset::{LabelledImages, TokenSequences};
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
        let values: Vec<u8> = ids.iter().map(|drawn| (drawn.id.shard * 10 + drawn.id.index) as u8).collect();
        assert_eq!(images.images, values, "not the samples that are named");
        images
    }

    #[test]
    fn of_no_shards_none_is_fetched() {
        assert!(!SampleStream::new(0, 10, 1).is_hungry() && SampleStream::new(1, 10, 1).is_hungry());
        assert!(!SampleStream::new(1, 0, 1).is_hungry(), "there is no room");
    }

    #[test]
    fn of_some_shards_no_other_is_fetched() {
        let mut stream = SampleStream::of_shards(vec![2, 5], 10, 1);
        let mut fetched = Vec::new();
        for _ in 0..6 {
            let id = stream.next_fetch().unwrap();
            fetched.push(id);
            stream.on_shard(&shard(id));
            take(&mut stream, 10);
        }
        assert!(fetched.chunks(2).all(|pass| pass.contains(&ShardId::Numbered(2)) && pass[0] != pass[1]));
        assert!(fetched.iter().all(|id| [2, 5].map(ShardId::Numbered).contains(id)), "{fetched:?}");
    }

    #[test]
    fn samples_that_are_here_are_drawn_pass_by_pass_and_nothing_is_fetched() {
        let own =
            |n: u8| Samples::Images(LabelledImages { images: (0..n).collect(), labels: vec![0; n.into()] });
        let mut stream = SampleStream::own(Arc::new(own(6)), 1);
        assert!(!stream.is_hungry() && stream.next_fetch().is_none() && !stream.wants_window());
        let mut seen: Vec<u8> = (0..3).flat_map(|_| take(&mut stream, 2).images).collect();
        seen.sort_unstable();
        assert_eq!(seen, [0, 1, 2, 3, 4, 5]);
        assert_eq!(take(&mut stream, 4).images.len(), 4);
        let long = take(&mut stream, 15).images;
        assert!((0..6).all(|value| long.iter().filter(|seen| **seen == value).count() >= 2), "{long:?}");
        assert_eq!(SampleStream::own(Arc::new(own(0)), 1).take(1), None);
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

    /// Whose shards have the hash `of`.
    fn window_of(of: u8, first_drawn: u32, shards: std::ops::Range<u32>) -> StreamWindow {
        let entry = ShardEntry { n_samples: 10, n_bytes: 1, sha256: Sha256Hash([of; 32]) };
        let shards = shards.map(|number| StreamedShard { number, entry }).collect();
        StreamWindow { first_drawn, shards }
    }

    fn window(first_drawn: u32, shards: std::ops::Range<u32>) -> StreamWindow {
        window_of(0, first_drawn, shards)
    }

    /// Fetches a shard, as the window says.
    fn fetch(stream: &mut SampleStream, newest: &StreamWindow) -> u32 {
        assert!(stream.wants_window() && !stream.is_hungry(), "it is asked for first");
        stream.on_window(newest.clone());
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
        stream.on_window(window(1, 0..3));
        assert_eq!(stream.n_buffered(), 20);
        stream.on_epoch(1);
        assert!(stream.wants_window());
        stream.on_window(window(2, 0..4));
        assert_eq!(stream.n_buffered(), 10, "the oldest is about to leave");
        assert!(stream.take(10).unwrap().ids.iter().all(|drawn| drawn.id.shard == 1));
    }

    #[test]
    fn nothing_is_drawn_by_a_window_of_many_steps_ago() {
        let mut stream = SampleStream::streamed(1000, 3);
        stream.on_epoch(70);
        fetch(&mut stream, &window(0, 0..1));
        stream.on_epoch(71);
        assert!(stream.take(1).is_some());
        stream.on_epoch(72);
        assert_eq!(stream.take(1), None, "it may have left by now");
        stream.on_window(window(0, 0..2));
        assert!(stream.take(9).is_some());
    }

    #[test]
    fn samples_of_another_shard_under_the_same_number_are_dropped() {
        let mut stream = SampleStream::streamed(1000, 3);
        for _ in 0..2 {
            fetch(&mut stream, &window_of(5, 0, 0..2));
        }
        let drawn = stream.take(4).unwrap();
        assert!(drawn.ids.iter().all(|drawn| drawn.streamed.as_deref() == Some(&Sha256Hash([5; 32]))));
        // A backbone whose first shard is the same, and whose second is not.
        let mut other = window_of(6, 0, 0..2);
        other.shards[0].entry.sha256 = Sha256Hash([5; 32]);
        assert_eq!(fetch(&mut stream, &other), 1, "it was not visited");
        let drawn = stream.take(stream.n_buffered()).unwrap();
        let hash = |shard: u32| Sha256Hash([if shard == 0 { 5 } else { 6 }; 32]);
        assert!(drawn.ids.iter().all(|drawn| drawn.streamed.as_deref() == Some(&hash(drawn.id.shard))));
        assert_eq!(drawn.ids.iter().filter(|drawn| drawn.id.shard == 1).count(), 10);
        stream.on_window(window_of(6, 1, 1..3));
        assert_eq!(stream.in_window(2).unwrap().sha256, hash(2));
        assert_eq!(stream.in_window(0), None);
    }

    #[test]
    fn a_shard_of_a_stream_that_failed_is_asked_for_by_the_next_window() {
        let mut stream = SampleStream::streamed(1000, 3);
        stream.on_window(window(0, 0..1));
        assert_eq!(stream.next_fetch(), Some(ShardId::Streamed(0)));
        assert!(!stream.wants_window(), "it is being fetched");
        stream.on_fetch_failed();
        assert_eq!(fetch(&mut stream, &window(1, 1..2)), 1);
    }
}
