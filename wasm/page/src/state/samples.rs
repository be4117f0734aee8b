//! Properties of the run's samples.

use barnraise_protocol::dataset::{ImageShape, SampleKind};
use barnraise_protocol::run::Sampled;
use barnraise_protocol::run::model::graph::Loss;

use super::PageState;
use crate::format;
use crate::picture;

impl PageState {
    /// Shape of the run's pictures; `None` while the run is unknown, or for text.
    pub(crate) fn image_shape(&self) -> Option<ImageShape> {
        self.run.as_ref()?.data.manifest.image_shape()
    }

    /// Whether the run's pictures are photos, so that a visitor asks with a photo and not with a drawing.
    pub(crate) fn takes_photos(&self) -> bool {
        self.image_shape().is_some_and(picture::is_photo)
    }

    /// Whether the run has no server, but rounds of samples of its participants.
    pub(crate) fn is_sampled(&self) -> bool {
        self.sampled().is_some()
    }

    /// Whether each participant of such a run trains in each round, and averages with its neighbours.
    pub(crate) fn is_among_neighbors(&self) -> bool {
        self.sampled().is_some_and(|scheme| scheme.exchange.is_among_neighbors())
    }

    /// How the rounds of such a run are made.
    pub(crate) fn sampled(&self) -> Option<&Sampled> {
        self.run.as_ref()?.sampled()
    }

    /// What the run makes, one and several: steps, or rounds.
    pub(crate) fn step_names(&self) -> (&'static str, &'static str) {
        if self.is_sampled() { ("round", "rounds") } else { ("step", "steps") }
    }

    /// So many steps of the run, or rounds, in words.
    pub(crate) fn steps_in_words(&self, n_steps: u64) -> String {
        let (one, several) = self.step_names();
        format::counted(n_steps, one, several)
    }

    /// Whether the run learns from text.
    pub(crate) fn is_of_text(&self) -> bool {
        let run = self.run.as_ref();
        run.is_some_and(|run| matches!(run.data.manifest.samples, SampleKind::Tokens(_)))
    }

    /// Whether the run learns from rows of a table, or from ratings.
    pub(crate) fn is_of_rows(&self) -> bool {
        self.run.is_some() && self.image_shape().is_none() && !self.is_of_text()
    }

    /// Items that the run's ratings are of.
    pub(crate) fn n_items(&self) -> u32 {
        match self.run.as_ref().map(|run| &run.data.manifest.samples) {
            Some(SampleKind::Ratings(shape)) => shape.n_items,
            _ => 0,
        }
    }

    /// Whether the model tells numbers, so that its accuracy is the share of their variance that it explains.
    pub(crate) fn tells_numbers(&self) -> bool {
        self.run.as_ref().is_some_and(|run| run.model.graph.loss == Loss::Regression)
    }

    /// Whether a visitor cannot ask the model for the class of a picture.
    pub(crate) fn has_nothing_to_try(&self) -> bool {
        self.is_of_rows() || self.run.as_ref().is_some_and(|run| run.model.graph.loss.is_self_supervised())
    }

    /// Whether the model says which words are missing from a text.
    pub(crate) fn fills_blanks(&self) -> bool {
        self.run.as_ref().is_some_and(|run| run.model.graph.loss == Loss::MaskedLanguageModel)
    }

    /// Whether the model goes on with a text.
    pub(crate) fn goes_on_with_text(&self) -> bool {
        self.run.as_ref().is_some_and(|run| run.model.graph.loss == Loss::CausalLanguageModel)
    }

    /// Kind of the run's samples, for texts.
    pub(crate) fn samples_in_words(&self) -> &'static str {
        let samples = self.run.as_ref().map(|run| &run.data.manifest.samples);
        match samples {
            Some(SampleKind::Tokens(_)) => "text",
            Some(SampleKind::Rows(_)) => "rows",
            Some(SampleKind::Ratings(_)) => "ratings",
            Some(SampleKind::Images { .. }) | None => "pictures",
        }
    }

    /// A picture of the gallery, `[height, width, channels]`.
    pub(crate) fn gallery_image(&self, idx: usize) -> Option<&[u8]> {
        let n_values = self.image_shape()?.n_values();
        self.gallery.as_ref()?.images.chunks_exact(n_values.max(1)).nth(idx)
    }

    /// Names of the run's classes.
    pub(crate) fn class_names(&self) -> &[String] {
        self.run.as_ref().map_or(&[], |run| run.data.manifest.class_names())
    }

    /// Name of a class, or its number where the run names none.
    pub(crate) fn class_name(&self, label: usize) -> String {
        self.class_names().get(label).cloned().unwrap_or_else(|| format!("Class {label}"))
    }
}
