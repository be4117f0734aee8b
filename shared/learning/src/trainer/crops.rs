//! Training on pictures without their labels (SwAV, Caron et al. 2020): the trainer crops them, and crops of one
//! picture are to have the same prototype. Labels serve to evaluate the features only.

use barnraise_protocol::dataset::LabelledImages;
use barnraise_protocol::run::model::graph::Loss;

use super::{Evaluation, Trainer};
use crate::batch;
use crate::crops::{CropSizes, Crops};
use crate::data_shape::DataShape;
use crate::engine::Input;
use crate::error::ModelError;
use crate::masking::EVALUATION_DRAW;
use crate::neighbours::Neighbours;
use crate::statistics::Statistics;

impl Trainer {
    /// Adds the gradient of a micro-batch of pictures without labels, summed over them. `draw` decides, with picture
    /// and seed, how they are cropped.
    ///
    /// # Shapes
    /// - `images`: `[n_samples, height, width, channels]`
    ///
    /// # Errors
    /// As of [`Self::accumulate`].
    pub async fn accumulate_crops(&mut self, images: &[u8], draw: u64) -> Result<(), ModelError> {
        let (sizes, n_samples) = self.check_unlabelled(images, self.layout().batch_samples_max())?;
        let crops = Crops::of(images, sizes, self.seed, draw);
        let frozen_epochs = match self.graph.loss() {
            Loss::Swav(loss) => loss.frozen_epochs,
            _ => 0,
        };
        let is_frozen = draw < u64::from(frozen_epochs);
        let n_samples = self.prepare(n_samples)?;
        let pictures = images.chunks_exact(sizes.shape.n_values());
        let seeds = self.seeds(pictures.map(|picture| picture.iter().copied()), draw);
        self.step(Input::Crops { crops: &crops, is_frozen }, seeds, n_samples).await
    }

    /// Loss of pictures without labels, in chunks, and the share of correct top-1 predictions of another crop's
    /// prototype; the same crops every time.
    pub(super) async fn evaluate_crops(&self, images: &[u8]) -> Result<Evaluation, ModelError> {
        let (sizes, _) = self.check_unlabelled(images, usize::MAX)?;
        let mut total = Statistics::default();
        for images in images.chunks(self.chunk_samples() * sizes.shape.n_values()) {
            let crops = Crops::of(images, sizes, self.seed, EVALUATION_DRAW);
            let input = Input::Crops { crops: &crops, is_frozen: false };
            total.add(self.losses(input).await?);
        }
        Ok(total.evaluation())
    }

    /// Loss of held-out pictures, and the share of them whose class their nearest neighbours among `reference` vote
    /// for, by the features of the trunk.
    ///
    /// # Errors
    /// A model that learns from labels; pictures that do not fit it; a device that failed.
    pub async fn evaluate_neighbours(
        &self,
        reference: &LabelledImages,
        test: &LabelledImages,
    ) -> Result<Evaluation, ModelError> {
        let n_classes = match self.data {
            DataShape::Images { n_classes, .. } => n_classes,
            _ => return Err(ModelError::WrongData { got: "pictures" }),
        };
        for labelled in [reference, test] {
            let (sizes, _) = self.check_unlabelled(&labelled.images, usize::MAX)?;
            batch::check_images(&labelled.images, labelled.labels.len(), sizes.shape, usize::MAX)?;
            batch::check_labels(&labelled.labels, n_classes)?;
        }
        let neighbours =
            Neighbours::new(self.features(&reference.images).await?, &reference.labels, n_classes);
        let n_correct = neighbours.n_correct(self.features(&test.images).await?, &test.labels);
        let accuracy = n_correct as f64 / test.labels.len() as f64;
        let Evaluation { loss, .. } = self.evaluate_crops(&test.images).await?;
        Ok(Evaluation { loss, accuracy: accuracy as f32 })
    }

    /// `[n_samples, n_features]`
    async fn features(&self, images: &[u8]) -> Result<Vec<f32>, ModelError> {
        let n_values = self.unlabelled()?.shape.n_values();
        let mut features = Vec::new();
        for images in images.chunks(self.chunk_samples() * n_values) {
            let n_samples = images.len() / n_values;
            features.extend(self.outputs(Input::Images { images, labels: &[] }, n_samples).await?);
        }
        Ok(features)
    }

    /// How pictures are cropped.
    fn unlabelled(&self) -> Result<CropSizes, ModelError> {
        match (self.graph.loss(), self.data) {
            (Loss::Swav(loss), DataShape::Images { shape, .. }) => Ok(CropSizes {
                shape,
                n_small: loss.small_crops as usize,
                small_side: loss.small_side as usize,
            }),
            _ => Err(ModelError::WrongData { got: "pictures without labels" }),
        }
    }

    /// Checks that these are whole pictures, 1 to `max`, and counts them.
    fn check_unlabelled(&self, images: &[u8], max: usize) -> Result<(CropSizes, usize), ModelError> {
        let sizes = self.unlabelled()?;
        let n_samples = images.len() / sizes.shape.n_values().max(1);
        batch::check_images(images, n_samples, sizes.shape, max)?;
        Ok((sizes, n_samples))
    }
}

#[cfg(test)]
#[path = "crops_tests.rs"]
mod tests;
