//! What is had without a network: nearest pixels, biases of people and films, counted tokens and gzip.

use std::collections::HashMap;
use std::io::Write as _;

use anyhow::{Result, bail};
use barnraise_learning::neighbours::Neighbours;
use barnraise_learning::tokenizer::Tokenizer;
use barnraise_native::config::RunConfig;
use barnraise_native::data::TrainingData;
use barnraise_protocol::dataset::{LabelledImages, Ratings, SampleKind, Samples, TokenSequences};
use flate2::Compression;
use flate2::write::GzEncoder;

/// Pictures that vote, and pictures that they vote on: as many as a backbone takes of features.
const REFERENCE_PICTURES: usize = 5000;
const TEST_PICTURES: usize = 2000;
/// How many ratings of 0 an item and a person have beside their own: what of few is not believed (Koren 2009, §2.1).
const ITEM_SHRINKAGE: f64 = 25.0;
const USER_SHRINKAGE: f64 = 10.0;
/// Taken off each count, for what was never seen (absolute discounting, Ney et al. 1994).
const DISCOUNT: f64 = 0.75;

/// Name, measure and value of each.
pub(super) fn of(config: &RunConfig) -> Result<Vec<(&'static str, &'static str, f64)>> {
    let data = config.data_source().load(&config.data_cache())?;
    Ok(match (&data.kind, &data.train, &data.test) {
        (SampleKind::Images { class_names, .. }, Samples::Images(train), Samples::Images(test)) => {
            vec![("raw pixels", "accuracy", of_pixels(train, test, class_names.len()))]
        }
        (_, Samples::Ratings(train), Samples::Ratings(test)) => {
            vec![("biases", "mean_squared_error", of_biases(train, test))]
        }
        (_, Samples::Tokens(train), Samples::Tokens(test)) => of_text(&data, train, test)?,
        _ => Vec::new(),
    })
}

/// The share of test pictures whose nearest training pictures vote for their class.
fn of_pixels(train: &LabelledImages, test: &LabelledImages, n_classes: usize) -> f64 {
    let first = |of: &LabelledImages, n: usize| {
        let n = n.min(of.labels.len());
        let n_values = of.images.len() / of.labels.len().max(1);
        let values: Vec<f32> = of.images[..n * n_values].iter().map(|value| f32::from(*value)).collect();
        (values, of.labels[..n].to_vec())
    };
    let ((train, train_labels), (test, test_labels)) =
        (first(train, REFERENCE_PICTURES), first(test, TEST_PICTURES));
    let neighbours = Neighbours::new(train, &train_labels, n_classes);
    neighbours.n_correct(test, &test_labels) as f64 / test_labels.len() as f64
}

/// The mean squared error of the mean, plus what is usual for an item, plus what is usual for a person.
fn of_biases(train: &Ratings, test: &Ratings) -> f64 {
    let mean =
        train.ratings.iter().map(|&rating| f64::from(rating)).sum::<f64>() / train.ratings.len() as f64;
    let rows = |of: &Ratings| -> Vec<(u32, u32, f64)> {
        let pairs = of.users.iter().zip(&of.items).zip(&of.ratings);
        pairs.map(|((&user, &item), &rating)| (user, item, f64::from(rating) - mean)).collect()
    };
    let train = rows(train);
    let items = shrunken(train.iter().map(|&(_, item, rest)| (item, rest)), ITEM_SHRINKAGE);
    let of_item = |item: u32| items.get(&item).copied().unwrap_or_default();
    let users =
        shrunken(train.iter().map(|&(user, item, rest)| (user, rest - of_item(item))), USER_SHRINKAGE);
    let of_user = |user: u32| users.get(&user).copied().unwrap_or_default();
    let test = rows(test);
    let errors = test.iter().map(|&(user, item, rest)| (rest - of_item(item) - of_user(user)).powi(2));
    errors.sum::<f64>() / test.len() as f64
}

/// The mean of each key's values, drawn to 0.
fn shrunken(values: impl Iterator<Item = (u32, f64)>, shrinkage: f64) -> HashMap<u32, f64> {
    let mut sums: HashMap<u32, (f64, f64)> = HashMap::new();
    for (key, value) in values {
        let (sum, n) = sums.entry(key).or_default();
        *sum += value;
        *n += 1.0;
    }
    sums.into_iter().map(|(key, (sum, n))| (key, sum / (n + shrinkage))).collect()
}

fn of_text(
    data: &TrainingData,
    train: &TokenSequences,
    test: &TokenSequences,
) -> Result<Vec<(&'static str, &'static str, f64)>> {
    let Some(tokenizer) = &data.tokenizer else { bail!("a text without a tokenizer") };
    let tokenizer = Tokenizer::read(tokenizer)?;
    let length = usize::from(test.length);
    let text = tokenizer.decode(&test.ids)?;
    let bits = |nats: f64| nats * test.ids.len() as f64 / text.len() as f64 / std::f64::consts::LN_2;
    let mut gzip = GzEncoder::new(Vec::new(), Compression::best());
    gzip.write_all(text.as_bytes())?;
    let zipped = gzip.finish()?.len() as f64 * 8.0 / text.len() as f64;
    let counted = |order: usize| {
        let mut counts = NGrams::new(order, tokenizer.size());
        train.ids.chunks(usize::from(train.length)).for_each(|sequence| counts.count(sequence));
        counts.loss(test.ids.chunks(length))
    };
    Ok(vec![
        ("bigram", "bits_per_byte", bits(counted(2))),
        ("trigram", "bits_per_byte", bits(counted(3))),
        ("gzip", "bits_per_byte", zipped),
    ])
}

/// How often each token came after each of up to two, with absolute discounting: a context gives what is taken off its
/// counts to the shorter one.
struct NGrams {
    order: usize,
    n_tokens: f64,
    /// Of each context the tokens after it.
    after: HashMap<Vec<u32>, HashMap<u32, f64>>,
    /// How often each context came before a token.
    totals: HashMap<Vec<u32>, f64>,
}

impl NGrams {
    fn new(order: usize, n_tokens: u32) -> Self {
        Self { order, n_tokens: f64::from(n_tokens), after: HashMap::new(), totals: HashMap::new() }
    }

    fn count(&mut self, tokens: &[u32]) {
        for (at, &token) in tokens.iter().enumerate() {
            for n_before in 0..self.order.min(at + 1) {
                let context = tokens[at - n_before..at].to_vec();
                *self.after.entry(context.clone()).or_default().entry(token).or_default() += 1.0;
                *self.totals.entry(context).or_default() += 1.0;
            }
        }
    }

    fn probability(&self, context: &[u32], token: u32) -> f64 {
        let shorter = |context: &[u32]| match context.split_first() {
            Some((_, rest)) => self.probability(rest, token),
            None => 1.0 / self.n_tokens,
        };
        let (Some(after), Some(total)) = (self.after.get(context), self.totals.get(context)) else {
            return shorter(context);
        };
        let count = after.get(&token).copied().unwrap_or_default();
        let given = DISCOUNT * after.len() as f64 / total;
        (count - DISCOUNT).max(0.0) / total + given * shorter(context)
    }

    /// Nats per token that is predicted: all but the first of each sequence.
    fn loss<'s>(&self, sequences: impl Iterator<Item = &'s [u32]>) -> f64 {
        let (mut sum, mut n) = (0.0, 0.0);
        for sequence in sequences {
            for (at, &token) in sequence.iter().enumerate().skip(1) {
                let context = &sequence[(at + 1).saturating_sub(self.order)..at];
                sum -= self.probability(context, token).ln();
                n += 1.0;
            }
        }
        sum / n
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_a_distribution_and_tell_what_follows() {
        let mut counts = NGrams::new(3, 4);
        counts.count(&[0, 1, 2, 0, 1, 2, 0, 1, 3]);
        for context in [&[][..], &[1], &[0, 1], &[3, 3], &[2, 3]] {
            let sum: f64 = (0..4).map(|token| counts.probability(context, token)).sum();
            assert!((sum - 1.0).abs() < 1e-9, "{context:?}: {sum}");
        }
        assert!(counts.probability(&[0, 1], 2) > counts.probability(&[0, 1], 3));
        let [often, rare] = [[0, 1, 2], [0, 1, 0]].map(|tokens| counts.loss([&tokens[..]].into_iter()));
        assert!(often < rare);
    }

    #[test]
    fn biases_are_drawn_to_the_mean() {
        let ratings = |of: &[(u32, u32, f32)]| Ratings {
            users: of.iter().map(|row| row.0).collect(),
            items: of.iter().map(|row| row.1).collect(),
            ratings: of.iter().map(|row| row.2).collect(),
        };
        let train: Vec<_> =
            (0..200).map(|user| (user, user % 2, if user % 2 == 0 { 5.0 } else { 1.0 })).collect();
        // Of the mean the error would be 4.
        let error = of_biases(&ratings(&train), &ratings(&[(0, 0, 5.0), (1, 1, 1.0), (500, 0, 5.0)]));
        assert!(error > 0.0 && error < 0.2, "{error}");
    }
}
