//! Divides labelled pictures into those to train on and held-out ones.

use barnraise_protocol::dataset::LabelledImages;
use barnraise_swarm::random::SplitMix64;

/// A class with too few pictures to train on one and hold out another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TooFew {
    pub(super) class: usize,
    pub(super) got: usize,
}

/// Of each class its share is held out, at least one and not all. The seed decides which.
pub(super) fn by_class(
    all: &LabelledImages,
    n_classes: usize,
    n_values: usize,
    held_out: f64,
    seed: u64,
) -> Result<(LabelledImages, LabelledImages), TooFew> {
    let mut members = vec![Vec::new(); n_classes];
    for (index, label) in all.labels.iter().enumerate() {
        if let Some(members) = members.get_mut(usize::from(*label)) {
            members.push(index);
        }
    }
    let (mut train, mut test) = (LabelledImages::default(), LabelledImages::default());
    for (class, mut members) in members.into_iter().enumerate() {
        let got = members.len();
        if got < 2 {
            return Err(TooFew { class, got });
        }
        SplitMix64::new(seed.wrapping_add(class as u64)).shuffle(&mut members);
        let n_test = ((got as f64 * held_out).round() as usize).clamp(1, got - 1);
        for (place, &index) in members.iter().enumerate() {
            let part = if place < n_test { &mut test } else { &mut train };
            let pixels = all.images.get(index * n_values..(index + 1) * n_values);
            part.images.extend_from_slice(pixels.unwrap_or_default());
            part.labels.push(class as u8);
        }
    }
    Ok((train, test))
}
