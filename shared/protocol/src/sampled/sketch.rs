//! Sketches of models: a few values by which the distances of models are known before any of them travels.

use serde::{Deserialize, Serialize};

use super::view::mix;

/// Values of a sketch. The distance of two sketches is that of their models, with a standard deviation of a sixteenth.
pub const SKETCH_VALUES: usize = 128;
/// What a hash gives for one value of a model: its place in the sketch, and its sign.
const BITS_EACH: u32 = 8;
/// How far a sketch may be from that of the same model made elsewhere, of its norm: others may add in another order.
const ROUNDING: f64 = 1e-5;

const _: () = assert!(SKETCH_VALUES == 1 << (BITS_EACH - 1));

/// A count sketch (Charikar, Chen and Farach-Colton 2002) of a model: each of its values is added to one of the sketch's, or
/// subtracted, as the hash of a seed and its index says. It is linear, so that distances remain.
///
/// Who knows the seed finds different models with the same sketch. Who fixed the model before finds none but by chance.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Vec<f32>", into = "Vec<f32>")]
pub struct ModelSketch(Box<[f32; SKETCH_VALUES]>);

impl ModelSketch {
    /// That of a model, `[n_parameters]`. The same on every device.
    pub fn of(model: &[f32], seed: u64) -> Self {
        let mut sums = [0.0f64; SKETCH_VALUES];
        let per_hash = (u64::BITS / BITS_EACH) as usize;
        for (word, values) in (0u64..).zip(model.chunks(per_hash)) {
            let mut bits = mix(seed ^ mix(word));
            for value in values {
                let place = bits as usize % SKETCH_VALUES;
                let is_negative = bits & SKETCH_VALUES as u64 != 0;
                sums[place] += f64::from(if is_negative { -value } else { *value });
                bits >>= BITS_EACH;
            }
        }
        let bounded = |sum: f64| sum.clamp(f32::MIN.into(), f32::MAX.into()) as f32;
        Self(Box::new(sums.map(bounded)))
    }

    /// The distance of two models by their sketches of one seed.
    pub fn distance(&self, other: &Self) -> f64 {
        let squares =
            self.0.iter().zip(other.0.iter()).map(|(one, two)| (f64::from(*one) - f64::from(*two)).powi(2));
        squares.sum::<f64>().sqrt()
    }

    /// Whether both are of the same model.
    pub fn is_of_same(&self, other: &Self) -> bool {
        let norm = self.0.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
        self.distance(other) <= ROUNDING * norm
    }
}

impl TryFrom<Vec<f32>> for ModelSketch {
    type Error = &'static str;

    fn try_from(values: Vec<f32>) -> Result<Self, Self::Error> {
        let values: Box<[f32; SKETCH_VALUES]> = values.try_into().map_err(|_| "a sketch has 128 values")?;
        match values.iter().all(|value| value.is_finite()) {
            true => Ok(Self(values)),
            false => Err("a sketch has finite values"),
        }
    }
}

impl From<ModelSketch> for Vec<f32> {
    fn from(sketch: ModelSketch) -> Self {
        sketch.0.to_vec()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// Values by chance, between -1 and 1.
    fn model(seed: u64, n: usize) -> Vec<f32> {
        let value = |at: u64| (mix(seed ^ mix(at)) as f64 / u64::MAX as f64 * 2.0 - 1.0) as f32;
        (0..n as u64).map(value).collect()
    }

    #[test]
    fn distances_of_models_are_those_of_their_sketches() {
        let (one, two) = (model(1, 10_000), model(2, 10_000));
        let squares = one.iter().zip(&two).map(|(one, two)| f64::from(one - two).powi(2));
        let distance = squares.sum::<f64>().sqrt();
        for seed in 0..100 {
            let ratio = ModelSketch::of(&one, seed).distance(&ModelSketch::of(&two, seed)) / distance;
            assert!((0.75..1.25).contains(&ratio), "seed {seed}: {ratio}");
        }
    }

    #[test]
    fn one_value_that_differs_shows_and_the_same_model_is_known() {
        let honest = model(1, 1001);
        for index in [0, 7, 8, 1000] {
            let mut other = honest.clone();
            other[index] += 10.0;
            for seed in 0..20 {
                let [one, two] = [&honest, &other].map(|model| ModelSketch::of(model, seed));
                assert!((one.distance(&two) - 10.0).abs() < 1e-4, "{index}");
                assert!(!one.is_of_same(&two) && one.is_of_same(&one.clone()));
            }
        }
    }

    #[test]
    fn another_seed_is_another_sketch_and_huge_values_stay_finite() {
        let model = model(1, 100);
        assert_ne!(ModelSketch::of(&model, 1), ModelSketch::of(&model, 2));
        let huge = ModelSketch::of(&[f32::MAX; 1000], 1);
        assert_eq!(ModelSketch::try_from(Vec::from(huge.clone())).unwrap(), huge);
        assert!(ModelSketch::try_from(vec![0.0; 127]).is_err());
        let mut broken = vec![0.0; SKETCH_VALUES];
        broken[5] = f32::NAN;
        assert!(ModelSketch::try_from(broken).is_err());
    }
}
