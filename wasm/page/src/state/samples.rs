//! What the page knows of the samples that the run learns from.

use barnraise_protocol::dataset::ImageShape;

use super::Page;

impl Page {
    /// Shape of the pictures that the run learns from; none while it is unknown, and where it learns from text.
    pub(crate) fn image_shape(&self) -> Option<ImageShape> {
        self.run.as_ref()?.manifest.image_shape()
    }

    /// Whether the run learns from text, so that there are no pictures.
    pub(crate) fn is_of_text(&self) -> bool {
        self.run.is_some() && self.image_shape().is_none()
    }

    /// Whether the model answers nothing that a visitor could ask: it learns from no labels.
    pub(crate) fn has_nothing_to_try(&self) -> bool {
        self.run.as_ref().is_some_and(|run| run.model.kind.is_self_supervised())
    }

    /// What the run learns from, in a word.
    pub(crate) fn samples_in_words(&self) -> &'static str {
        if self.is_of_text() { "text" } else { "pictures" }
    }

    /// A picture of the gallery, `[height, width, channels]`.
    pub(crate) fn gallery_image(&self, idx: usize) -> Option<&[u8]> {
        let n_values = self.image_shape()?.n_values();
        self.gallery.as_ref()?.images.chunks_exact(n_values.max(1)).nth(idx)
    }

    /// Name of a class, or its number where the run names none.
    pub(crate) fn class_name(&self, label: usize) -> String {
        let named = self.run.as_ref().and_then(|run| run.manifest.class_names().get(label));
        named.cloned().unwrap_or_else(|| format!("Class {label}"))
    }
}
