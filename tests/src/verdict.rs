//! Whether something that is done to a run leaves so much of its speed, told from how much speeds differ by themselves.
//!
//! Windows in peace and under attack take turns. How much a window differs from the next by chance is what windows in peace
//! tell; an attack has as many windows as it takes until chance explains the difference to what is wanted no more. So
//! there is no slack: a machine that is busy with something else costs windows.

/// Of one side of a normal distribution 5 % are beyond so many standard deviations.
const CLEAR: f64 = 1.645;
/// Windows are never more alike than that, even if the few that were seen are.
const NOISE_MIN: f64 = 0.02;
/// Before chance is known: windows differ by so much.
const NOISE_UNKNOWN: f64 = 0.25;
/// Pairs of windows that tell of chance.
const PAIRS_MIN: usize = 3;

/// Windows without which nothing is said to be too little: now and then one falls together with something else.
const TO_CONDEMN: usize = 3;

/// What can be said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// As much is left as is wanted.
    Enough,
    /// Less is.
    TooLittle,
    /// Another window is needed.
    Unclear,
}

/// The speeds of windows that took turns: peace first and last, and between any two attacks.
#[derive(Debug, Clone, Default)]
pub struct Turns {
    windows: Vec<(Option<usize>, f64)>,
}

impl Turns {
    /// A window in peace, in which so much was done each second.
    pub fn in_peace(&mut self, speed: f64) {
        self.windows.push((None, speed));
    }

    /// A window under the attack of this number; one in peace is to follow.
    pub fn under_attack(&mut self, attack: usize, speed: f64) {
        self.windows.push((Some(attack), speed));
    }

    /// Of the windows of an attack: the speed of each, with that in peace just before and after it being 1.
    pub fn ratios(&self, attack: usize) -> Vec<f64> {
        let of_attack = |window: &&[(Option<usize>, f64)]| window[1].0 == Some(attack);
        let around = self.windows.windows(3).filter(of_attack);
        around.map(|window| 2.0 * window[1].1 / (window[0].1 + window[2].1)).collect()
    }

    /// The speed under an attack, with that in peace being 1; NaN before there is one.
    pub fn ratio(&self, attack: usize) -> f64 {
        let ratios = self.ratios(attack);
        ratios.iter().sum::<f64>() / ratios.len() as f64
    }

    /// By what part windows in peace differ by chance: the standard deviation.
    pub fn noise(&self) -> f64 {
        let in_peace: Vec<f64> =
            self.windows.iter().filter(|(attack, _)| attack.is_none()).map(|(_, speed)| *speed).collect();
        // Of neighbours: what changes slowly changes both.
        let squares: Vec<f64> =
            in_peace.windows(2).map(|pair| (pair[1].max(f64::MIN_POSITIVE) / pair[0]).ln().powi(2)).collect();
        if squares.len() < PAIRS_MIN {
            return NOISE_UNKNOWN;
        }
        (squares.iter().sum::<f64>() / squares.len() as f64 / 2.0).sqrt().max(NOISE_MIN)
    }

    /// Whether an attack leaves `wanted` of the speed.
    pub fn verdict(&self, attack: usize, wanted: f64) -> Verdict {
        let n_windows = self.ratios(attack).len();
        // Each is compared with the mean of two.
        let error = self.noise() * (1.5 / n_windows as f64).sqrt();
        let difference = (self.ratio(attack).max(f64::MIN_POSITIVE) / wanted).ln();
        match difference {
            difference if difference >= CLEAR * error => Verdict::Enough,
            difference if difference <= -CLEAR * error && n_windows >= TO_CONDEMN => Verdict::TooLittle,
            _ => Verdict::Unclear,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turns(peace: &[f64], under_attack: &[f64]) -> Turns {
        let mut turns = Turns::default();
        for (index, &speed) in peace.iter().enumerate() {
            turns.in_peace(speed);
            if let Some(&speed) = under_attack.get(index) {
                turns.under_attack(0, speed);
            }
        }
        turns
    }

    #[test]
    fn what_is_far_from_what_is_wanted_is_clear_at_once() {
        let peace = [100.0, 103.0, 98.0, 101.0, 99.0];
        assert_eq!(turns(&peace, &[95.0]).verdict(0, 0.8), Verdict::Enough);
        assert_eq!(turns(&peace, &[60.0; 2]).verdict(0, 0.8), Verdict::Unclear, "it may be something else");
        assert_eq!(turns(&peace, &[60.0; 3]).verdict(0, 0.8), Verdict::TooLittle);
        assert_eq!(turns(&peace, &[81.0]).verdict(0, 0.8), Verdict::Unclear);
        assert_eq!(turns(&peace, &[0.0; 3]).verdict(0, 0.8), Verdict::TooLittle);
        assert_eq!(turns(&peace, &[]).verdict(0, 0.8), Verdict::Unclear);
    }

    #[test]
    fn noise_costs_windows_and_decides_nothing() {
        let peace = [100.0, 130.0, 90.0, 120.0, 95.0, 125.0, 100.0];
        let one = turns(&peace, &[110.0]);
        assert!(one.noise() > 0.15, "{}", one.noise());
        assert_eq!(one.verdict(0, 0.8), Verdict::Unclear);
        assert_eq!(turns(&peace, &[110.0; 6]).verdict(0, 0.8), Verdict::Enough);
    }

    #[test]
    fn what_changes_slowly_changes_both() {
        let peace: Vec<f64> = (0..8).map(|at| 100.0 - 8.0 * f64::from(at)).collect();
        let attacked: Vec<f64> = peace.windows(2).map(|pair| 0.9 * (pair[0] + pair[1]) / 2.0).collect();
        assert!((turns(&peace, &attacked).ratio(0) - 0.9).abs() < 1e-9);
    }
}
