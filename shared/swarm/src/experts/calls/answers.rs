//! Which answers of experts are taken: as long as was asked for, finite, and of a size that an expert gives.

use super::ExpertAnswerError;

/// Largest root mean square of a row of an output, as a multiple of that of its input and 1. An expert begins and ends with
/// layer normalization or a residual, so that an honest one is near 1.
pub const OUTPUT_RATIO_MAX: f32 = 100.0;
/// Largest root mean square of a row of an input's gradient, as a multiple of the largest of the output's gradient.
pub const GRADIENT_RATIO_MAX: f32 = 1000.0;
/// Largest root mean square of an answer, as a multiple of the median of all answers of the layer.
pub const MEDIAN_RATIO_MAX: f32 = 32.0;
/// So many answers have a median that one of them does not make.
const MEDIAN_ANSWERS_MIN: usize = 4;

/// Checks an answer, `[n_rows, n_values]`, whose rows have a root mean square of `rms_max` at most. Returns that of all of it.
pub(super) fn check(
    values: &[f32],
    (n_rows, n_values): (usize, usize),
    rms_max: f32,
) -> Result<f32, ExpertAnswerError> {
    let want = n_rows.saturating_mul(n_values);
    if values.len() != want || want == 0 {
        return Err(ExpertAnswerError::Length { want, got: values.len() });
    }
    if let Some(index) = values.iter().position(|value| !value.is_finite()) {
        return Err(ExpertAnswerError::NotFinite { index });
    }
    let mut sum = 0.0;
    for row in values.chunks_exact(n_values) {
        let squares: f64 = row.iter().map(|value| f64::from(*value).powi(2)).sum();
        sum += squares;
        let rms = (squares / n_values as f64).sqrt();
        if rms > f64::from(rms_max) {
            return Err(ExpertAnswerError::Absurd { max: rms_max, got: rms });
        }
    }
    Ok((sum / want as f64).sqrt() as f32)
}

/// Which answers are far beyond the median of all. `rms` is that of each, `[n_answers]`.
pub(super) fn outliers(rms: &[f32]) -> Vec<bool> {
    let mut sorted = rms.to_vec();
    sorted.sort_by(f32::total_cmp);
    let median = sorted.get(sorted.len().saturating_sub(1) / 2).copied().unwrap_or_default();
    let has_median = rms.len() >= MEDIAN_ANSWERS_MIN && median > 0.0;
    rms.iter().map(|rms| has_median && *rms > MEDIAN_RATIO_MAX * median).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_has_its_length_and_finite_values_of_a_size() {
        let rms = check(&[3.0, 4.0, 0.0, 0.0], (2, 2), 3.6).unwrap();
        assert!((rms - 2.5).abs() < 1e-6, "{rms}");
        let error = |values: &[f32], max| check(values, (2, 2), max).unwrap_err();
        assert_eq!(error(&[1.0; 3], 9.0), ExpertAnswerError::Length { want: 4, got: 3 });
        assert_eq!(error(&[1.0, 1.0, f32::NAN, 1.0], 9.0), ExpertAnswerError::NotFinite { index: 2 });
        assert_eq!(error(&[f32::INFINITY; 4], 9.0), ExpertAnswerError::NotFinite { index: 0 });
        // One absurd row does not hide behind others.
        assert!(matches!(error(&[0.0, 0.0, 3.0, 4.0], 3.5), ExpertAnswerError::Absurd { .. }));
        assert!(matches!(error(&[f32::MAX; 4], 9.0), ExpertAnswerError::Absurd { .. }));
        assert!(check(&[], (0, 2), 9.0).is_err());
    }

    #[test]
    fn one_answer_of_several_is_far_off() {
        assert_eq!(outliers(&[1.0, 50.0, 0.9, 1.2]), [false, true, false, false]);
        assert_eq!(outliers(&[1.0, 31.0, 0.9, 1.2]), [false; 4]);
        assert_eq!(outliers(&[1.0, 50.0, 1.2]), [false; 3], "three are too few to tell");
        assert_eq!(outliers(&[0.0, 0.0, 0.0, 1.0]), [false; 4], "gates at their start may give nothing");
        assert_eq!(outliers(&[1.0, 32.0, 0.9, 1.0]), [false; 4], "32 times as large is not beyond it");
        assert_eq!(outliers(&[2.0, 60.0, 2.0, 2.0]), [false; 4], "nor is 30 times");
        assert_eq!(outliers(&[1.0, 2.0, 40.0, 50.0, 60.0]), [false; 5], "most of them are large");
        assert_eq!(outliers(&[]), [false; 0]);
    }
}
