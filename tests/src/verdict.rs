//! Decides whether a run under attack keeps a share of its speed, given the noise between windows without an attack.
//!
//! Baseline windows and windows under attack alternate. The baseline windows give the noise; an attack gets as many
//! windows as it takes until noise does not explain the difference to the wanted share. So there is no slack: on a busy
//! machine the test takes more windows.

/// 5 % of a normal distribution lie beyond so many standard deviations on one side.
const CLEAR: f64 = 1.645;
/// Lowest assumed noise, even if the few measured windows differ less.
const NOISE_MIN: f64 = 0.02;
/// Assumed noise before enough windows were measured.
const NOISE_UNKNOWN: f64 = 0.25;
/// Pairs of baseline windows needed to estimate the noise.
const PAIRS_MIN: usize = 3;

/// Windows needed to judge a speed too low: now and then another program slows one down.
const TO_CONDEMN: usize = 3;

/// Result of the comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpeedVerdict {
    /// The run keeps the wanted share.
    Enough,
    /// It keeps less.
    TooLittle,
    /// Another window is needed.
    Unclear,
}

/// Speeds of alternating windows: a baseline first and last, and between any two attacks.
#[derive(Debug, Clone, Default)]
pub struct WindowSpeeds {
    windows: Vec<(Option<usize>, f64)>,
}

impl WindowSpeeds {
    /// Adds a baseline window with its speed.
    pub fn add_baseline(&mut self, speed: f64) {
        self.windows.push((None, speed));
    }

    /// Adds a window under the attack of this number; a baseline window must follow.
    pub fn add_attack(&mut self, attack: usize, speed: f64) {
        self.windows.push((Some(attack), speed));
    }

    /// Speed of each window of an attack, relative to the baseline windows just before and after it.
    pub fn ratios(&self, attack: usize) -> Vec<f64> {
        let of_attack = |window: &&[(Option<usize>, f64)]| window[1].0 == Some(attack);
        let around = self.windows.windows(3).filter(of_attack);
        around.map(|window| 2.0 * window[1].1 / (window[0].1 + window[2].1)).collect()
    }

    /// Mean speed under an attack, relative to the baseline; NaN before its first window.
    pub fn ratio(&self, attack: usize) -> f64 {
        let ratios = self.ratios(attack);
        ratios.iter().sum::<f64>() / ratios.len() as f64
    }

    /// Noise: the relative standard deviation of baseline windows.
    pub fn noise(&self) -> f64 {
        let baseline: Vec<f64> =
            self.windows.iter().filter(|(attack, _)| attack.is_none()).map(|(_, speed)| *speed).collect();
        // Of neighbours: what changes slowly changes both.
        let squares: Vec<f64> =
            baseline.windows(2).map(|pair| (pair[1].max(f64::MIN_POSITIVE) / pair[0]).ln().powi(2)).collect();
        if squares.len() < PAIRS_MIN {
            return NOISE_UNKNOWN;
        }
        (squares.iter().sum::<f64>() / squares.len() as f64 / 2.0).sqrt().max(NOISE_MIN)
    }

    /// Whether an attack leaves `wanted` of the speed.
    pub fn verdict(&self, attack: usize, wanted: f64) -> SpeedVerdict {
        let n_windows = self.ratios(attack).len();
        // Each is compared with the mean of two.
        let error = self.noise() * (1.5 / n_windows as f64).sqrt();
        let difference = (self.ratio(attack).max(f64::MIN_POSITIVE) / wanted).ln();
        match difference {
            difference if difference >= CLEAR * error => SpeedVerdict::Enough,
            difference if difference <= -CLEAR * error && n_windows >= TO_CONDEMN => SpeedVerdict::TooLittle,
            _ => SpeedVerdict::Unclear,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn speeds(baseline: &[f64], under_attack: &[f64]) -> WindowSpeeds {
        let mut speeds = WindowSpeeds::default();
        for (index, &speed) in baseline.iter().enumerate() {
            speeds.add_baseline(speed);
            if let Some(&speed) = under_attack.get(index) {
                speeds.add_attack(0, speed);
            }
        }
        speeds
    }

    #[test]
    fn what_is_far_from_what_is_wanted_is_clear_at_once() {
        let baseline = [100.0, 103.0, 98.0, 101.0, 99.0];
        assert_eq!(speeds(&baseline, &[95.0]).verdict(0, 0.8), SpeedVerdict::Enough);
        assert_eq!(
            speeds(&baseline, &[60.0; 2]).verdict(0, 0.8),
            SpeedVerdict::Unclear,
            "it may be something else"
        );
        assert_eq!(speeds(&baseline, &[60.0; 3]).verdict(0, 0.8), SpeedVerdict::TooLittle);
        assert_eq!(speeds(&baseline, &[81.0]).verdict(0, 0.8), SpeedVerdict::Unclear);
        assert_eq!(speeds(&baseline, &[0.0; 3]).verdict(0, 0.8), SpeedVerdict::TooLittle);
        assert_eq!(speeds(&baseline, &[]).verdict(0, 0.8), SpeedVerdict::Unclear);
    }

    #[test]
    fn noise_costs_windows_and_decides_nothing() {
        let baseline = [100.0, 130.0, 90.0, 120.0, 95.0, 125.0, 100.0];
        let one = speeds(&baseline, &[110.0]);
        assert!(one.noise() > 0.15, "{}", one.noise());
        assert_eq!(one.verdict(0, 0.8), SpeedVerdict::Unclear);
        assert_eq!(speeds(&baseline, &[110.0; 6]).verdict(0, 0.8), SpeedVerdict::Enough);
    }

    #[test]
    fn what_changes_slowly_changes_both() {
        let baseline: Vec<f64> = (0..8).map(|at| 100.0 - 8.0 * f64::from(at)).collect();
        let attacked: Vec<f64> = baseline.windows(2).map(|pair| 0.9 * (pair[0] + pair[1]) / 2.0).collect();
        assert!((speeds(&baseline, &attacked).ratio(0) - 0.9).abs() < 1e-9);
    }
}
