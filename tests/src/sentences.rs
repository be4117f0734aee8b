//! A text of few sentences in any order, and the model that learns to go on with it in a minute.

use barnraise_swarm::random::SplitMix64;

/// All sentences, each with the space after it.
pub const SENTENCES: [&str; 3] =
    ["the cat sat on the mat. ", "a dog ran in the sun. ", "the rat ate the malt. "];

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
    let mut random = SplitMix64::new(5);
    (0..4000).map(|_| SENTENCES[random.below(SENTENCES.len())]).collect()
}
