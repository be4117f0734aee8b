//! A table of flowers and ratings of films, and the models that learn from them in seconds.

use barnraise_swarm::random::SplitMix64;

/// How the models of these runs are trained; most runs on a few samples can be.
pub const SCHEME: &str = r#"
[scheme.synchronous]
target_batch_size = 128
micro_batch_size = 32
optimizer = { kind = "adam" }
schedule = { peak = 0.01, warmup_steps = 2, decay = { kind = "constant" } }
[evaluation]
every_epochs = 2
"#;
/// Model and data of a run that learns from the file `flowers.csv`.
pub const FLOWERS: &str = r#"
[run]
id = "flowers"
[model]
kind = { mlp = { hidden = [32, 32] } }
[data]
shard_samples = 200
[data.table]
file = "flowers.csv"
target = "kind"
"#;
/// Model and data of a run that learns from the file `films.csv`.
pub const FILMS: &str = r#"
[run]
id = "films"
[model]
kind = { matrix-factorization = { factors = 4 } }
[data]
shard_samples = 500
[data.ratings]
file = "films.csv"
"#;

/// Ratings of one person who likes the films with even numbers, or the others: the content of a file of theirs.
pub fn own_films(likes_even: bool) -> String {
    let rated = (0..40).filter(|film| film % 3 != 0).map(|film| {
        let rating = if (film % 2 == 0) == likes_even { 4.5 } else { 1.5 };
        format!("{rating};film {film}\n")
    });
    std::iter::once("rating;item\n".to_owned()).chain(rated).collect()
}

/// The content of the file: flowers of two kinds, which lengths and colour tell apart together.
pub fn flowers() -> String {
    let mut random = SplitMix64::new(3);
    let mut unit = move || random.below(1000) as f64 / 1000.0;
    let row = |row: usize| {
        let (petal, sepal) = (unit() * 6.0, unit() * 6.0);
        let colour = ["red", "white", "blue"][row % 3];
        let is_rose = (petal > sepal) == (colour == "red");
        let kind = if is_rose { "rose" } else { "daisy" };
        // A few lengths were not measured.
        let petal = if row % 97 == 5 { String::new() } else { format!("{petal:.2}") };
        format!("{petal};{sepal:.2};{colour};{kind}\n")
    };
    std::iter::once("petal;sepal;colour;kind\n".to_owned()).chain((0..1200).map(row)).collect()
}

/// The content of the file: half of the users like the films with even numbers, half the others. A fifth is not rated,
/// so that users with the same taste have films in common; a fourth would hide every other even film from half of them.
pub fn films() -> String {
    let pairs = (0..60).flat_map(|user| (0..40).map(move |item| (user, item)));
    let rated = pairs.filter(|(user, item)| (user * 7 + item * 3) % 5 != 0).map(|(user, item)| {
        let rating = 3.0 + if user % 2 == item % 2 { 1.5 } else { -1.5 };
        format!("u{user},film {item},{rating}\n")
    });
    std::iter::once("user,item,rating\n".to_owned()).chain(rated).collect()
}
