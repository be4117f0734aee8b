//! A text of few sentences in any order, and the model that learns to go on with it in a minute.

use barnraise_swarm::random::SplitMix64;

/// All sentences, each with the space after it.
pub const SENTENCES: [&str; 3] =
    ["the cat sat on the mat. ", "a dog ran in the sun. ", "the rat ate the malt. "];

/// Others of the same letters, for a model that knows those above.
pub const OTHER_SENTENCES: [&str; 3] =
    ["a dog ate the mat. ", "the sun sat on the cat. ", "the malt ran in a rat. "];

/// Model and data of a run that learns from the file `house.txt`.
pub const RUN: &str = r#"
    [model]
    kind = { gpt = { family = "llama", width = 32, layers = 2, heads = 4, key_value_heads = 2 } }
    [data]
    shard_samples = 100
    [data.text]
    name = "Rhymes"
    vocabulary = 100
    sequence_tokens = 32
    sources = [{ path = "house.txt" }]
"#;

/// The content of the file: the same each time, with no period that a sequence could show.
pub fn text() -> String {
    of(SENTENCES, 4000, 5)
}

/// `n` of some sentences, in an order that the seed says.
pub fn of(sentences: [&str; 3], n: usize, seed: u64) -> String {
    let mut random = SplitMix64::new(seed);
    (0..n).map(|_| sentences[random.below(sentences.len())]).collect()
}
