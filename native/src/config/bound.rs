//! Values of a configuration that are fixed for the lifetime of a run: compared with those that the run began with.
//!
//! Other values may change between two starts: schedule, batch sizes, codecs, limits, access, addresses.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use barnraise_protocol::Sha256Hash;
use serde::Serialize;

use super::{Invalid, NONE, RunConfig, as_written};
use crate::data::file::DataFileError;
use crate::data::pictures::PicturesError;
use crate::data::table::ColumnKind;
use crate::pretrained::{self, PretrainedError, StartError};
use crate::storage::bound::{self, BoundError, BoundValues};
use crate::storage::{Storage, StorageError};

/// Key of the vocabulary that was trained on a stream.
const VOCABULARY: &str = "data.text.vocabulary";

/// The fixed values of a configuration, in the order of the file.
type FixedValues = Vec<(&'static str, String)>;

/// Why a run cannot go on with this configuration.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The stored values cannot be read or written.
    #[error(transparent)]
    Bound(#[from] BoundError),
    /// The folder cannot be read.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The fixed values cannot be computed.
    #[error("{}: {source}", path.display())]
    Source {
        /// The run's folder.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// A file of data cannot be read.
    #[error(transparent)]
    File(#[from] DataFileError),
    /// The pictures cannot be read.
    #[error(transparent)]
    Pictures(#[from] PicturesError),
    /// The weights that it begins with cannot be read.
    #[error(transparent)]
    Pretrained(#[from] PretrainedError),
    /// They are not there.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The run began with other values.
    #[error("{}", mistakes.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Differs {
        /// Each different value.
        mistakes: Vec<Invalid>,
    },
}

#[derive(Debug, Serialize)]
struct BoundPictures {
    height: u16,
    width: u16,
    held_out: f64,
    sha256: String,
}

#[derive(Debug, Serialize)]
struct BoundIdx<'a> {
    classes: &'a [String],
    held_out: f64,
    /// Of each file.
    sha256: Vec<String>,
}

#[derive(Debug, Serialize)]
struct BoundTable<'a> {
    target: &'a str,
    columns: &'a BTreeMap<String, ColumnKind>,
    held_out: f64,
    sha256: String,
}

#[derive(Debug, Serialize)]
struct BoundRatings<'a> {
    user: &'a str,
    item: &'a str,
    rating: &'a str,
    held_out: f64,
    sha256: String,
}

#[derive(Debug, Serialize)]
struct BoundText {
    /// The hash of an existing one.
    #[serde(skip_serializing_if = "Option::is_none")]
    tokenizer: Option<String>,
    vocabulary: u32,
    sequence_tokens: u16,
    held_out: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    stream: Option<BoundStream>,
    sources: Vec<BoundSource>,
}

/// A stream: what decides its shards beside the text. The window may change.
#[derive(Debug, Serialize)]
struct BoundStream {
    held_out_sequences: u32,
    shard_samples: NonZeroUsize,
}

#[derive(Debug, Serialize)]
struct BoundSource {
    sha256: String,
    field: String,
    weight: f64,
}

impl RunConfig {
    /// The fixed values of this configuration. Blocking: reads the files of the data.
    fn bound_values(&self) -> Result<FixedValues, BindError> {
        let mut values = vec![
            ("run.id", as_written(&self.run.id)),
            ("model.seed", as_written(&self.model.seed)),
            ("model.kind", as_written(&self.model.kind)),
        ];
        values.push(("model.start_from", self.bound_start()?));
        values.push(("model.adapters", self.model.adapters.as_ref().map_or(NONE.to_owned(), as_written)));
        // Without experts the entry is left out: runs of before have none.
        values.extend(self.model.experts.is_some().then(|| ("model.experts", "hosted".to_owned())));
        values.extend(self.scheme.bound_values());
        values.push(("data.set", as_written(&self.data.set)));
        values.push(("data.pictures", self.bound_pictures()?));
        values.push(("data.idx", self.bound_idx()?));
        values.push(("data.table", self.bound_table()?));
        values.push(("data.ratings", self.bound_ratings()?));
        values.push(("data.text", self.bound_text()?));
        Ok(values)
    }

    /// The hash of the files of weights that the run began with, without any paths.
    fn bound_start(&self) -> Result<String, BindError> {
        let Some(start) = &self.model.start_from else { return Ok(NONE.to_owned()) };
        Ok(as_written(&pretrained::content_hash(&start.local(&self.data_cache())?)?.to_string()))
    }

    /// The fixed values of a folder of pictures: the hash of all samples, without any paths.
    fn bound_pictures(&self) -> Result<String, BindError> {
        let Some(pictures) = &self.data.pictures else { return Ok(NONE.to_owned()) };
        let (height, width, held_out) = (pictures.height, pictures.width, pictures.held_out);
        let hash = pictures.settings(self.model.seed).content_hash(&self.data_cache())?;
        Ok(as_written(&BoundPictures { height, width, held_out, sha256: hash.to_string() }))
    }

    /// The fixed values of IDX files.
    fn bound_idx(&self) -> Result<String, BindError> {
        let Some(idx) = &self.data.idx else { return Ok(NONE.to_owned()) };
        let sha256 =
            idx.files().map(|file| Ok(file.hash()?.to_string())).collect::<Result<_, BindError>>()?;
        Ok(as_written(&BoundIdx { classes: &idx.classes, held_out: idx.held_out, sha256 }))
    }

    /// The fixed values of a table: what is made of its columns, and the hash of the file.
    fn bound_table(&self) -> Result<String, BindError> {
        let Some(table) = &self.data.table else { return Ok(NONE.to_owned()) };
        let sha256 = table.file.hash()?.to_string();
        let (target, columns) = (table.target.as_str(), &table.columns);
        Ok(as_written(&BoundTable { target, columns, held_out: table.held_out, sha256 }))
    }

    /// The fixed values of ratings: the names of the columns, and the hash of the file.
    fn bound_ratings(&self) -> Result<String, BindError> {
        let Some(ratings) = &self.data.ratings else { return Ok(NONE.to_owned()) };
        let sha256 = ratings.file.hash()?.to_string();
        let [user, item, rating] = [&ratings.user, &ratings.item, &ratings.rating].map(String::as_str);
        Ok(as_written(&BoundRatings { user, item, rating, held_out: ratings.held_out, sha256 }))
    }

    /// The fixed values of a text: the hashes of the files, without any paths.
    fn bound_text(&self) -> Result<String, BindError> {
        if !self.data.is_text() {
            return Ok(NONE.to_owned());
        }
        let text = self.data.text_section();
        let mut sources = Vec::new();
        for source in &text.sources {
            let (field, weight) = (source.field.clone(), source.weight);
            let hash = if text.stream.is_some() { source.path.stream_hash() } else { source.path.hash() };
            sources.push(BoundSource { sha256: hash?.to_string(), field, weight });
        }
        let hash = |path: &PathBuf| {
            let bytes = std::fs::read(path);
            let bytes = bytes.map_err(|error| BindError::Source { path: path.clone(), source: error })?;
            Ok::<_, BindError>(Sha256Hash::of(&bytes).to_string())
        };
        let tokenizer = text.tokenizer.as_ref().map(hash).transpose()?;
        let (vocabulary, sequence_tokens) = (text.vocabulary, text.sequence_tokens);
        Ok(as_written(&BoundText {
            tokenizer,
            vocabulary,
            sequence_tokens,
            held_out: text.held_out,
            stream: text.stream.as_ref().map(|stream| BoundStream {
                held_out_sequences: stream.held_out_sequences,
                shard_samples: self.data.shard_samples,
            }),
            sources,
        }))
    }

    /// Stores the fixed values in a new run's folder, or compares them with the stored ones.
    ///
    /// # Errors
    /// [`BindError::Differs`], with the text of `barnraise config check`.
    pub async fn bind(self, storage: &Storage) -> Result<(), BindError> {
        let folder = self.storage.folder.clone();
        let values = tokio::task::spawn_blocking(move || self.bound_values());
        let values = values.await.map_err(|error| BindError::Source {
            path: folder.clone(),
            source: std::io::Error::other(error),
        })??;
        match bound::read(storage).await? {
            Some(bound) => compare(values, &bound, &folder),
            None => {
                let values = values.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
                Ok(bound::write(storage, &values).await?)
            }
        }
    }

    /// Stores the hash of the vocabulary that was trained on the sources of a new run's stream, or compares it with the stored
    /// one. [`Self::bind`] knows less of a source on this machine than the vocabulary is trained on.
    ///
    /// # Errors
    /// [`BindError::Differs`]: the model has learned what other tokens mean.
    pub async fn bind_vocabulary(&self, storage: &Storage, tokenizer: &[u8]) -> Result<(), BindError> {
        let text = self.data.text.as_ref();
        if !text.is_some_and(|text| text.stream.is_some() && text.tokenizer.is_none()) {
            return Ok(());
        }
        let Some(mut values) = bound::read(storage).await? else { return Ok(()) };
        let got = as_written(&Sha256Hash::of(tokenizer).to_string());
        let Some(known) = values.get(VOCABULARY) else {
            values.insert(VOCABULARY.to_owned(), got);
            return Ok(bound::write(storage, &values).await?);
        };
        if *known == got {
            return Ok(());
        }
        let want = format!(
            "the run in {} was begun with the vocabulary {known}, which was trained on the beginning of its sources, and that is \
             another one now: restore the files as they were",
            self.storage.folder.display()
        );
        Err(BindError::Differs { mistakes: vec![Invalid::new(VOCABULARY, want, got)] })
    }

    /// Compares the fixed values with those in the run's folder, if there is one. Nothing is written.
    /// Blocking.
    ///
    /// # Errors
    /// The same as for [`Self::bind`].
    pub(super) fn check_bound(&self) -> Result<(), BindError> {
        let folder = &self.storage.folder;
        if !folder.is_dir() {
            return Ok(());
        }
        let storage = Storage::open_shared(folder)?;
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        let runtime = runtime.map_err(|source| BindError::Source { path: folder.clone(), source })?;
        match runtime.block_on(bound::read(&storage))? {
            Some(bound) => compare(self.bound_values()?, &bound, folder),
            None => Ok(()),
        }
    }
}

fn compare(values: FixedValues, bound: &BoundValues, folder: &std::path::Path) -> Result<(), BindError> {
    let mistakes = values.into_iter().filter_map(|(key, got)| {
        let bound = bound.get(key).map_or(NONE, String::as_str);
        let want = format!(
            "the run in {} was begun with {bound}, and its model depends on that; restore this value, or give the run \
             another `folder` in [storage] to begin anew",
            folder.display()
        );
        (got != bound).then(|| Invalid::new(key, want, got))
    });
    let mistakes: Vec<Invalid> = mistakes.collect();
    if mistakes.is_empty() { Ok(()) } else { Err(BindError::Differs { mistakes }) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::path::Path;

    use barnraise_learning::{OptimizerSpec, ScheduleSpec};
    use barnraise_protocol::run::{GradientCodec, Preset};

    use super::*;
    use crate::data::sets::NamedSet;

    fn configured(folder: &Path) -> RunConfig {
        let mut config = RunConfig::default();
        config.storage.folder = folder.join("run");
        config
    }

    fn text(folder: &Path, contents: &str, config: &mut RunConfig) {
        std::fs::write(folder.join("rhymes.txt"), contents).unwrap();
        let path = folder.join("rhymes.txt").display().to_string();
        let section = format!("name = \"Rhymes\"\nsources = [{{ path = \"{path}\" }}]");
        config.data.text = Some(toml::from_str(&section).unwrap());
    }

    /// The result of `serve` and of `config check`, which must be the same.
    async fn said(config: &RunConfig) -> Result<(), String> {
        let storage = Storage::open(&config.storage.folder).unwrap();
        let served = config.clone().bind(&storage).await.map_err(|error| error.to_string());
        let config = config.clone();
        let checked = tokio::task::spawn_blocking(move || config.check_bound()).await.unwrap();
        assert_eq!(served, checked.map_err(|error| error.to_string()));
        served
    }

    type Edit = fn(&mut RunConfig);

    #[tokio::test]
    async fn what_is_bound_is_refused_in_the_same_words_and_what_may_change_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let config = configured(folder.path());
        config.check_bound().unwrap();
        assert!(!config.storage.folder.exists(), "looking writes nothing");
        assert_eq!(said(&config).await, Ok(()));
        let bound: [(Edit, &str, &str); 5] = [
            (|c| c.run.id = "other".into(), "run.id = \"other\"", "begun with \"fashion-mnist\""),
            (|c| c.model.seed = 2, "model.seed = 2", "begun with 1,"),
            (
                |c| c.model.kind = Preset::Mlp { hidden: vec![64] },
                "model.kind = { mlp = { hidden = [64] } }",
                "begun with \"le-net\"",
            ),
            (
                |c| c.synchronous_mut().unwrap().optimizer = OptimizerSpec::lamb(),
                "scheme.synchronous.optimizer = { kind = \"lamb\"",
                "{ kind = \"adam\", beta1 = 0.9, beta2 = 0.999,",
            ),
            (
                |c| {
                    c.synchronous_mut().unwrap().local_steps = Some(
                        toml::from_str(
                            "steps = 2\noptimizer = { kind = \"adam\" }\nschedule = { peak = 0.1 }",
                        )
                        .unwrap(),
                    );
                },
                "scheme.synchronous.local_steps = (there are some)",
                "begun with (none)",
            ),
        ];
        for (edit, got, begun) in bound {
            let mut edited = config.clone();
            edit(&mut edited);
            let error = said(&edited).await.unwrap_err();
            for part in [got, begun, &folder.path().join("run").display().to_string(), "another `folder`"] {
                assert!(error.contains(part), "{part} is missing in: {error}");
            }
        }
        let free: [Edit; 4] = [
            |c| c.synchronous_mut().unwrap().schedule = ScheduleSpec::constant(0.1),
            |c| c.synchronous_mut().unwrap().gradient_codec = GradientCodec::Int8,
            |c| c.synchronous_mut().unwrap().target_batch_size = 4096,
            |c| c.synchronous_mut().unwrap().contribution_samples_max = 64,
        ];
        for edit in free {
            let mut edited = config.clone();
            edit(&mut edited);
            assert_eq!(said(&edited).await, Ok(()));
        }
    }

    #[tokio::test]
    async fn text_is_what_is_in_its_files() {
        let folder = tempfile::tempdir().unwrap();
        let mut config = configured(folder.path());
        text(folder.path(), "The cat sat.", &mut config);
        assert_eq!(said(&config).await, Ok(()));
        text(folder.path(), "The dog sat.", &mut config);
        let error = said(&config).await.unwrap_err();
        assert!(error.contains("data.text = { vocabulary") && error.contains("sha256"), "{error}");
        config.data.text = None;
        let error = said(&config).await.unwrap_err();
        assert!(error.contains("data.text = (none)"), "{error}");
        text(folder.path(), "The cat sat.", &mut config);
        assert_eq!(said(&config).await, Ok(()));
    }

    #[tokio::test]
    async fn a_vocabulary_that_was_trained_on_a_stream_stays() {
        let folder = tempfile::tempdir().unwrap();
        let mut config = configured(folder.path());
        text(folder.path(), "The cat sat.", &mut config);
        let mut whole = config.clone();
        config.data.text.as_mut().unwrap().stream = Some(crate::config::text::StreamSection::default());
        let storage = Storage::open(&config.storage.folder).unwrap();
        config.clone().bind(&storage).await.unwrap();
        config.bind_vocabulary(&storage, b"cat").await.unwrap();
        config.bind_vocabulary(&storage, b"cat").await.unwrap();
        let error = config.bind_vocabulary(&storage, b"dog").await.unwrap_err().to_string();
        assert!(error.contains("data.text.vocabulary = ") && error.contains("restore the files"), "{error}");
        config.bind(&storage).await.unwrap();
        // Its text is known as a whole, or its tokenizer is.
        whole.bind_vocabulary(&storage, b"dog").await.unwrap();
        let section = whole.data.text.as_mut().unwrap();
        section.stream = Some(crate::config::text::StreamSection::default());
        section.tokenizer = Some("tokenizer.json".into());
        whole.bind_vocabulary(&storage, b"dog").await.unwrap();
    }

    #[tokio::test]
    async fn a_table_and_ratings_are_their_files_and_what_is_made_of_them() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("rows.csv");
        let file = file.display().to_string();
        let table = |target: &str| {
            let text = format!("file = {file:?}\ntarget = {target:?}");
            Some(toml::from_str(&text).unwrap())
        };
        std::fs::write(&file, "this is hashed, and not read").unwrap();
        let mut config = configured(folder.path());
        config.data.table = table("kind");
        assert_eq!(said(&config).await, Ok(()));
        let mut other = config.clone();
        other.data.table = table("colour");
        let error = said(&other).await.unwrap_err();
        assert!(error.contains("data.table = { target = \"colour\""), "{error}");
        std::fs::write(&file, "other").unwrap();
        let error = said(&config).await.unwrap_err();
        assert!(error.contains("data.table = { target = \"kind\""), "{error}");
        config.data.table = None;
        config.data.ratings = Some(toml::from_str(&format!("file = {file:?}")).unwrap());
        config.storage.folder = folder.path().join("another");
        assert_eq!(said(&config).await, Ok(()));
        std::fs::write(&file, "yet another").unwrap();
        let error = said(&config).await.unwrap_err();
        assert!(
            error.contains("data.ratings = { user = \"user\"") && !error.contains("data.table"),
            "{error}"
        );
    }

    #[tokio::test]
    async fn a_named_set_is_bound() {
        let folder = tempfile::tempdir().unwrap();
        let mut config = configured(folder.path());
        assert_eq!(said(&config).await, Ok(()));
        config.data.set = NamedSet::Mnist;
        let error = said(&config).await.unwrap_err();
        assert!(
            error.contains("data.set = \"mnist\"") && error.contains("begun with \"fashion-mnist\""),
            "{error}"
        );
    }
}
