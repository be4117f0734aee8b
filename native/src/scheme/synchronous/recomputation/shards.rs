//! Cache of decoded shards: contributions often share shards.

use barnraise_protocol::dataset::{DatasetError, Manifest, SampleKind, Samples, ShardEntry};

/// Size of the cache, in bytes of samples; at least one shard fits (`dataset::SHARD_RAW_BYTES_MAX`).
const KEPT_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Decoded shards, least recently used first. To check and decompress one takes longer than to compute with its samples.
#[derive(Debug, Default)]
pub(super) struct DecodedShards {
    kept: Vec<CachedShard>,
}

#[derive(Debug)]
struct CachedShard {
    samples: Samples,
    /// Entry of the manifest: the same bytes may be other samples under another manifest.
    entry: ShardEntry,
    kind: SampleKind,
    n_bytes: usize,
}

impl DecodedShards {
    /// The samples of a shard of `manifest`, if they are cached.
    pub(super) fn get(&mut self, entry: &ShardEntry, manifest: &Manifest) -> Option<&Samples> {
        let is_same = |kept: &CachedShard| kept.entry == *entry && kept.kind == manifest.samples;
        let place = self.kept.iter().position(is_same)?;
        self.kept[place..].rotate_left(1);
        self.kept.last().map(|kept| &kept.samples)
    }

    /// Checks and decodes the bytes of a shard, and caches its samples in place of the least recently used ones.
    ///
    /// # Errors
    /// The bytes do not match the manifest.
    pub(super) fn decode(
        &mut self,
        bytes: &[u8],
        entry: &ShardEntry,
        manifest: &Manifest,
    ) -> Result<&Samples, DatasetError> {
        let samples = Samples::decode(bytes, entry, manifest)?;
        let n_bytes = manifest.raw_bytes(entry);
        self.kept.retain(|kept| kept.entry.sha256 != entry.sha256);
        while !self.kept.is_empty() && self.n_bytes() + n_bytes > KEPT_BYTES_MAX {
            self.kept.remove(0);
        }
        self.kept.push(CachedShard { samples, entry: *entry, kind: manifest.samples.clone(), n_bytes });
        Ok(&self.kept[self.kept.len() - 1].samples)
    }

    fn n_bytes(&self) -> usize {
        self.kept.iter().map(|kept| kept.n_bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use barnraise_protocol::dataset::LabelledImages;

    use super::*;
    use crate::fixture;

    /// So many shards of so many bytes: compressed, and their manifest.
    fn shards(n_shards: u8, n_bytes: usize) -> (Vec<Vec<u8>>, Manifest) {
        let mut manifest = fixture::run().data.manifest;
        let SampleKind::Images { shape, .. } = &manifest.samples else { panic!("pictures") };
        let n_values = shape.n_values();
        let n_samples = n_bytes / (n_values + 1);
        let shard = |number| {
            let images = vec![number; n_samples * n_values];
            let samples = LabelledImages { images, labels: vec![0; n_samples] };
            Samples::Images(samples).encode().unwrap()
        };
        let (bytes, entries) = (0..n_shards).map(shard).unzip();
        manifest.shards = entries;
        (bytes, manifest)
    }

    #[test]
    fn as_many_are_kept_as_fit_and_the_one_used_longest_ago_goes() {
        let (bytes, manifest) = shards(5, KEPT_BYTES_MAX / 4);
        let mut decoded = DecodedShards::default();
        for (number, entry) in manifest.shards.iter().enumerate() {
            assert!(decoded.get(entry, &manifest).is_none());
            let samples = decoded.decode(&bytes[number], entry, &manifest).unwrap().clone();
            assert_eq!(decoded.get(entry, &manifest), Some(&samples));
            // The first one is used all the time.
            assert!(decoded.get(&manifest.shards[0], &manifest).is_some(), "after number {number}");
            assert!(decoded.n_bytes() <= KEPT_BYTES_MAX);
        }
        let is_kept = manifest.shards.iter().map(|entry| decoded.get(entry, &manifest).is_some());
        assert_eq!(is_kept.collect::<Vec<_>>(), [true, false, true, true, true]);
    }

    #[test]
    fn what_is_no_shard_of_the_run_is_not_kept() {
        let (bytes, manifest) = shards(2, 100);
        let mut decoded = DecodedShards::default();
        assert!(decoded.decode(&bytes[1], &manifest.shards[0], &manifest).is_err());
        assert!(decoded.get(&manifest.shards[0], &manifest).is_none() && decoded.n_bytes() == 0);
    }

    /// Evidence brings its own description along.
    #[test]
    fn the_same_bytes_are_not_the_same_samples_to_another_manifest() {
        let (bytes, manifest) = shards(1, 100);
        let mut decoded = DecodedShards::default();
        let entry = manifest.shards[0];
        decoded.decode(&bytes[0], &entry, &manifest).unwrap();
        let mut other = manifest.clone();
        let SampleKind::Images { class_names, .. } = &mut other.samples else { panic!("pictures") };
        class_names.push("another".into());
        assert!(decoded.get(&entry, &other).is_none());
        assert!(decoded.get(&ShardEntry { n_samples: 1, ..entry }, &manifest).is_none());
        decoded.decode(&bytes[0], &entry, &other).unwrap();
        assert!(decoded.get(&entry, &manifest).is_none() && decoded.n_bytes() == manifest.raw_bytes(&entry));
    }
}
