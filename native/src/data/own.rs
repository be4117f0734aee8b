//! Files of a participant's own, which become samples as the run's data did, and stay where they are (MoDEST §3). Blocking.

use std::io;
use std::path::{Path, PathBuf};

use barnraise_learning::tokenizer::{Tokenizer, TokenizerError};
use barnraise_protocol::columns::DataColumns;
use barnraise_protocol::columns::ratings::PeoplesRatings;
use barnraise_protocol::columns::rows::TooManyPeople;
use barnraise_protocol::dataset::{
    Manifest, RatingShape, Ratings, SampleKind, Samples, TableRows, TableShape, TokenSequences, TokenShape,
};

use super::columns::{self, ColumnsError};
use super::pictures::{self, PicturesError};
use super::table::{TableError, other};
use super::text::{self, TextError};
use super::unpack;

/// Why files cannot be trained on.
#[derive(Debug, thiserror::Error)]
pub enum OwnDataError {
    /// A folder cannot be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// The folder.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// A folder without such files.
    #[error("there is no file in {} that ends with {}", path.display(), endings.join(", "))]
    NoFile {
        /// The folder.
        path: PathBuf,
        /// How their names end, but for what compresses them.
        endings: &'static [&'static str],
    },
    /// Tables without rows.
    #[error("there are no rows in {}", path.display())]
    NoRows {
        /// What was given.
        path: PathBuf,
    },
    /// Pictures.
    #[error(transparent)]
    Pictures(#[from] PicturesError),
    /// Rows.
    #[error(transparent)]
    Table(#[from] TableError),
    /// A text.
    #[error(transparent)]
    Text(#[from] TextError),
    /// A tokenizer that cannot be used, or not for a text.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// Too little text.
    #[error("{}: {got} tokens in all, at least {want} are needed", path.display())]
    TooShort {
        /// What was given.
        path: PathBuf,
        /// Tokens of a sequence.
        want: usize,
        /// Tokens.
        got: usize,
    },
    /// Columns that are not those of the run's samples.
    #[error("the columns that the run hands out cannot be used: {0}")]
    Columns(#[from] ColumnsError),
    /// A tokenizer that is not that of the run's samples.
    #[error("the tokenizer that the run hands out has {got} tokens, its samples have {want}")]
    OtherTokenizer {
        /// Tokens by the manifest.
        want: u32,
        /// Tokens.
        got: u32,
    },
    /// Ratings of more people than the run has users.
    #[error("{}: {source}", path.display())]
    People {
        /// What was given.
        path: PathBuf,
        /// How many.
        source: TooManyPeople,
    },
    /// Not what the run's manifest describes.
    #[error("the samples are not of the kind that this run learns from")]
    OtherKind,
}

/// How the names of tables and of texts end.
const TABLES: &[&str] = &[".csv", ".tsv", ".parquet"];
const TEXTS: &[&str] = &[".txt", ".md", ".jsonl", ".ndjson", ".parquet"];

/// Whether files of this kind become samples by [`Manifest::preprocessing`].
pub fn needs_preprocessing(kind: &SampleKind) -> bool {
    !matches!(kind, SampleKind::Images { .. })
}

/// The samples of a file or folder: a folder of pictures for each class; tables or ratings with the columns of the run's; or texts.
/// Who rates is no user of the run: people are numbered as they come, and each file that does not say who is of one more.
/// `preprocessing` is the file of that name of the run.
///
/// # Errors
/// Files that cannot be read, or not as the run's data were.
pub fn load(path: &Path, manifest: &Manifest, preprocessing: &[u8]) -> Result<Samples, OwnDataError> {
    let samples = match &manifest.samples {
        SampleKind::Images { shape, class_names } => {
            Samples::Images(pictures::labelled(path, *shape, class_names)?)
        }
        SampleKind::Rows(shape) => rows(path, shape, manifest, preprocessing)?,
        SampleKind::Tokens(shape) => Samples::Tokens(sequences(path, *shape, preprocessing)?),
        SampleKind::Ratings(shape) => Samples::Ratings(ratings(path, *shape, manifest, preprocessing)?),
    };
    match manifest.describes(&samples) {
        true => Ok(samples),
        false => Err(OwnDataError::OtherKind),
    }
}

fn rows(
    path: &Path,
    shape: &TableShape,
    manifest: &Manifest,
    preprocessing: &[u8],
) -> Result<Samples, OwnDataError> {
    let DataColumns::Table(columns) = columns::read(preprocessing, &manifest.samples)? else {
        return Err(OwnDataError::OtherKind);
    };
    let mut all: Option<Samples> = None;
    for file in files(path, TABLES)? {
        let read = other::rows(&file, &columns, shape, true)?;
        let Some(targets) = read.targets else { continue };
        let n_columns = shape.columns.len();
        let rows = Samples::Rows(TableRows { n_columns, values: read.values, targets });
        match &mut all {
            None => all = Some(rows),
            Some(all) => (0..rows.n_samples()).for_each(|index| all.push(&rows, index)),
        }
    }
    all.filter(|all| all.n_samples() > 0).ok_or_else(|| OwnDataError::NoRows { path: path.to_owned() })
}

fn ratings(
    path: &Path,
    shape: RatingShape,
    manifest: &Manifest,
    preprocessing: &[u8],
) -> Result<Ratings, OwnDataError> {
    let DataColumns::Ratings(columns) = columns::read(preprocessing, &manifest.samples)? else {
        return Err(OwnDataError::OtherKind);
    };
    let mut all = PeoplesRatings::default();
    for (number, file) in files(path, TABLES)?.iter().enumerate() {
        let of_file = other::ratings(file, &columns, shape.n_items)?;
        of_file.into_iter().for_each(|rating| all.push(number, rating));
    }
    if all.n() == 0 {
        return Err(OwnDataError::NoRows { path: path.to_owned() });
    }
    all.samples(shape).map_err(|source| OwnDataError::People { path: path.to_owned(), source })
}

fn sequences(path: &Path, shape: TokenShape, preprocessing: &[u8]) -> Result<TokenSequences, OwnDataError> {
    let tokenizer = Tokenizer::read(preprocessing)?;
    if tokenizer.size() != shape.vocabulary {
        return Err(OwnDataError::OtherTokenizer { want: shape.vocabulary, got: tokenizer.size() });
    }
    let documents = text::documents(&files(path, TEXTS)?)?;
    let mut ids = text::encode_all(&tokenizer, &documents)?;
    let want = usize::from(shape.length);
    if ids.len() < want {
        return Err(OwnDataError::TooShort { path: path.to_owned(), want, got: ids.len() });
    }
    ids.truncate(ids.len() / want * want);
    Ok(TokenSequences { length: shape.length, ids })
}

/// A file; or of a folder and of those in it all files whose names end so, compressed or not, in the order of their names. What is
/// hidden is left out, and so are links to folders, which could lead back.
fn files(path: &Path, endings: &'static [&'static str]) -> Result<Vec<PathBuf>, OwnDataError> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let (mut found, mut n_others, mut folders) = (Vec::new(), 0, vec![path.to_owned()]);
    while let Some(folder) = folders.pop() {
        let failed = |source| OwnDataError::Read { path: folder.clone(), source };
        for entry in std::fs::read_dir(&folder).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let file = entry.path();
            if entry.file_name().as_encoded_bytes().starts_with(b".") {
                continue;
            }
            let name = unpack::unpacked_name(&file);
            match entry.file_type().map_err(failed)? {
                kind if kind.is_dir() => folders.push(file),
                _ if file.is_file() && endings.iter().any(|ending| name.ends_with(ending)) => {
                    found.push(file);
                }
                _ => n_others += 1,
            }
        }
    }
    if found.is_empty() {
        return Err(OwnDataError::NoFile { path: path.to_owned(), endings });
    }
    if n_others > 0 {
        tracing::warn!(path = %path.display(), n_others, endings = endings.join(", "), "other files are left out");
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]

    use std::collections::BTreeMap;
    use std::num::NonZeroUsize;
    use std::sync::Arc;

    use barnraise_protocol::bulk::Transfer;
    use barnraise_protocol::dataset::RowTargets;

    use super::*;
    use crate::data::TrainingData;
    use crate::data::shards::{ShardStore, Sharding};
    use crate::data::table::{RatingSettings, TableSettings};
    use crate::data::text::{TextSettings, TextSource};
    use crate::storage::Storage;

    /// What a backbone hands out of its data.
    async fn served(data: &TrainingData) -> (Manifest, Arc<[u8]>) {
        let sharding = Sharding { shard_samples: NonZeroUsize::new(10).unwrap(), seed: 1 };
        let store = ShardStore::open(Storage::in_memory(), data, sharding).await.unwrap();
        let store = store.with_preprocessing(data).unwrap();
        let preprocessing = store.preprocessing().unwrap();
        assert_eq!(store.manifest().preprocessing, Some(Transfer::of(&preprocessing)));
        (store.manifest().clone(), preprocessing)
    }

    fn write(folder: &Path, name: &str, content: &str) -> PathBuf {
        let path = folder.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, content).unwrap();
        path
    }

    async fn flowers(folder: &Path) -> (Manifest, Arc<[u8]>) {
        let rows: String = (0..20).map(|n| format!("{n},{}\n", ["daisy", "rose"][n % 2])).collect();
        let settings = TableSettings {
            name: "Flowers".into(),
            file: write(folder, "flowers.csv", &format!("petal,kind\n{rows}")).into(),
            target: "kind".into(),
            is_class: true,
            columns: BTreeMap::new(),
            held_out: 0.1,
            seed: 1,
        };
        served(&settings.load(folder).unwrap()).await
    }

    async fn rhymes(folder: &Path) -> (Manifest, Arc<[u8]>) {
        let text = "This is the cat that killed the rat that ate the malt. ".repeat(100);
        let source = TextSource {
            name: "rhyme".into(),
            file: write(folder, "rhyme.txt", &text).into(),
            field: "text".into(),
            weight: 1.0,
        };
        let settings = TextSettings {
            name: "Rhymes".into(),
            sources: vec![source],
            tokenizer: None,
            vocabulary: 60,
            sequence_tokens: 8,
            held_out: 0.1,
            seed: 1,
        };
        served(&settings.load(folder).unwrap()).await
    }

    #[tokio::test]
    async fn the_tables_of_a_folder_are_read_as_that_of_the_run() {
        let folder = tempfile::tempdir().unwrap();
        let (manifest, preprocessing) = flowers(folder.path()).await;
        let own = folder.path().join("own");
        write(&own, "b/later.csv", "kind,petal\nrose,7\n");
        write(&own, "a.csv", "note;petal;kind\nx;3;daisy\ny;4;rose\n");
        write(&own, ".hidden.csv", "no table");
        write(&own, "notes.txt", "no table either");
        let Samples::Rows(rows) = load(&own, &manifest, &preprocessing).unwrap() else { panic!("no rows") };
        assert_eq!(rows.targets, RowTargets::Classes(vec![0, 1, 1]));
        // The deviations of the run's own rows: as far apart as theirs.
        let step = rows.values[1] - rows.values[0];
        assert!((rows.values[2] - rows.values[1] - 3.0 * step).abs() < 1e-5 && step > 0.0, "{rows:?}");
        let other = write(folder.path(), "other.csv", "petal\n3\n");
        let said = load(&other, &manifest, &preprocessing).unwrap_err().to_string();
        assert!(said.contains("other.csv") && said.contains("kind"), "{said}");
        let said = load(&own, &manifest, b"{}").unwrap_err().to_string();
        assert!(said.starts_with("the columns that the run hands out cannot be used"), "{said}");
        let head = write(folder.path(), "head.csv", "petal,kind\n");
        let said = load(&head, &manifest, &preprocessing).unwrap_err().to_string();
        assert!(said.starts_with("there are no rows in") && said.ends_with("head.csv"), "{said}");
        let empty = folder.path().join("empty");
        std::fs::create_dir(&empty).unwrap();
        let said = load(&empty, &manifest, &preprocessing).unwrap_err().to_string();
        assert!(said.contains("there is no file in") && said.ends_with(".csv, .tsv, .parquet"), "{said}");
    }

    #[tokio::test]
    async fn people_who_bring_ratings_are_none_of_the_runs() {
        let folder = tempfile::tempdir().unwrap();
        let films =
            write(folder.path(), "films.csv", "who,film,stars\nann,Jaws,5\nbob,Alien,1\nbob,Jaws,2\n");
        let settings = RatingSettings {
            name: "Films".into(),
            file: films.into(),
            columns: ["who", "film", "stars"].map(str::to_owned),
            held_out: 0.3,
            seed: 1,
        };
        let (manifest, preprocessing) = served(&settings.load(folder.path()).unwrap()).await;
        assert!(!String::from_utf8_lossy(&preprocessing).contains("ann"), "users are people");
        let own = folder.path().join("own");
        // Two files of one person each, who are not the same.
        write(&own, "a.csv", "stars,film,when\n4,Jaws,today\n");
        write(&own, "b/b.csv", "film;stars\nAlien;1\nUnknown;3\nJaws;2\n");
        let Samples::Ratings(read) = load(&own, &manifest, &preprocessing).unwrap() else { panic!() };
        assert_eq!(read.users, [0, 1, 1]);
        assert_eq!((read.items, read.ratings), (vec![1, 0, 1], vec![4.0, 1.0, 2.0]));
        write(&own, "c.csv", "who,film,stars\nann,Jaws,5\n");
        let said = load(&own, &manifest, &preprocessing).unwrap_err().to_string();
        assert!(
            said.ends_with("it has ratings of 3 people, of at most 2 can be learned from here"),
            "{said}"
        );
        let empty = write(folder.path(), "empty.csv", "film,stars\n");
        let said = load(&empty, &manifest, &preprocessing).unwrap_err().to_string();
        assert!(said.starts_with("there are no rows in"), "{said}");
    }

    #[tokio::test]
    async fn texts_become_sequences_of_the_runs_tokens() {
        let folder = tempfile::tempdir().unwrap();
        let (manifest, preprocessing) = rhymes(folder.path()).await;
        let own = folder.path().join("own");
        write(&own, "one.txt", "the cat that ate the rat ate the malt and the cat");
        write(&own, "blank.txt", "\n");
        write(&own, "picture.png", "no text");
        write(&own, "two.md", "this is the rat that killed the cat that killed the rat");
        let Samples::Tokens(read) = load(&own, &manifest, &preprocessing).unwrap() else { panic!("no text") };
        let tokenizer = Tokenizer::read(&preprocessing).unwrap();
        assert!(read.ids.len() >= 16 && read.ids.len() % 8 == 0, "{read:?}");
        let text = tokenizer.decode(&read.ids).unwrap();
        assert!(text.starts_with("the cat that ate the "), "{text}");
        let short = write(folder.path(), "short.txt", "cat");
        let said = load(&short, &manifest, &preprocessing).unwrap_err().to_string();
        assert!(said.contains("short.txt") && said.contains("at least 8 are needed"), "{said}");
        let said = load(&short, &manifest, b"{}").unwrap_err().to_string();
        assert!(said.contains("tokenizer.json is not understood"), "{said}");
        let mut other = manifest.clone();
        other.samples = SampleKind::Tokens(TokenShape { length: 8, vocabulary: 7, mask: None });
        let said = load(&own, &other, &preprocessing).unwrap_err().to_string();
        assert!(said.ends_with("its samples have 7"), "{said}");
        std::fs::write(folder.path().join("blank.txt"), " ").unwrap();
        let said = load(&folder.path().join("blank.txt"), &manifest, &preprocessing).unwrap_err().to_string();
        assert!(said.contains("blank.txt") && said.contains("there is no text in it"), "{said}");
        let said = load(&folder.path().join("none.txt"), &manifest, &preprocessing).unwrap_err().to_string();
        assert!(said.contains("none.txt"), "{said}");
    }
}
