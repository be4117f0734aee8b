//! Where the weights are that a run begins with.
//!
//! Written as the path of a folder or of a file of tensors, as `{ url = "https://…", sha256 = "…" }` of a file, or as
//! `{ hub = "organization/name" }` of what the field's tools have fetched before. Blocking: call it from a thread that may
//! block.

use std::fmt;
use std::path::{Path, PathBuf};

use hf_hub::{Cache, Repo, RepoType};
use serde::de::{self, Error as _, IntoDeserializer, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::CONFIG_FILE;
use crate::data::file::{DataFile, DataFileError};

/// Key of a model of the hub.
const HUB: &str = "hub";

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum StartFrom {
    /// Of the hub's cache on this machine.
    Hub(HubModel),
    /// A folder or a file on this machine, or a file on a server.
    File(DataFile),
}

/// A model in the cache that tools of the hub share (`$HF_HOME`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HubModel {
    /// Its name: `organization/name`.
    pub hub: String,
    /// A branch, or the hash of a commit.
    #[serde(default = "main_branch", skip_serializing_if = "is_main_branch")]
    pub revision: String,
}

/// Why there are no weights.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A file cannot be had.
    #[error(transparent)]
    File(#[from] DataFileError),
    /// Not in the cache.
    #[error(
        "{name} at {revision} is not in {}: fetch it first, by `hf download {name} --revision {revision}`",
        cache.display()
    )]
    NotCached {
        /// Of the model.
        name: String,
        /// What was wanted.
        revision: String,
        /// Where it was looked for.
        cache: PathBuf,
    },
    /// Neither `HF_HOME` nor a home folder.
    #[error("the hub's cache is not known: HF_HOME is wanted in the environment")]
    NoCache,
}

fn main_branch() -> String {
    "main".to_owned()
}

fn is_main_branch(revision: &String) -> bool {
    *revision == main_branch()
}

impl StartFrom {
    /// The folder or file where it is on this machine already; `None` where it has to be fetched.
    ///
    /// # Errors
    /// It is not in the hub's cache.
    pub fn here(&self) -> Result<Option<PathBuf>, StartError> {
        match self {
            Self::Hub(model) => model.folder().map(Some),
            Self::File(DataFile::Local(path)) => Ok(Some(path.clone())),
            Self::File(DataFile::Fetched(_)) => Ok(None),
        }
    }

    /// The folder or file on this machine; a file of a server is fetched into `cache`.
    ///
    /// # Errors
    /// It is not in the hub's cache, or cannot be fetched.
    pub fn local(&self, cache: &Path) -> Result<PathBuf, StartError> {
        match self {
            Self::Hub(model) => model.folder(),
            Self::File(file) => Ok(file.local(cache)?),
        }
    }

    /// Makes a relative path one that begins at `base`.
    pub fn take_from(&mut self, base: &Path) {
        if let Self::File(file) = self {
            file.take_from(base);
        }
    }
}

impl HubModel {
    fn folder(&self) -> Result<PathBuf, StartError> {
        let is_known = std::env::var_os("HF_HOME").is_some() || std::env::home_dir().is_some();
        // Without a home the library panics.
        let cache = is_known.then(Cache::from_env).ok_or(StartError::NoCache)?;
        self.folder_in(&cache)
    }

    fn folder_in(&self, cache: &Cache) -> Result<PathBuf, StartError> {
        let Self { hub: name, revision } = self;
        let repo = cache.repo(Repo::with_revision(name.clone(), RepoType::Model, revision.clone()));
        let of_branch = repo.get(CONFIG_FILE).and_then(|config| config.parent().map(Path::to_owned));
        let folder_name = Repo::new(name.clone(), RepoType::Model).folder_name();
        let of_commit = || Some(cache.path().join(folder_name).join("snapshots").join(revision));
        let found = of_branch.or_else(of_commit).filter(|folder| folder.join(CONFIG_FILE).is_file());
        found.ok_or_else(|| StartError::NotCached {
            name: name.clone(),
            revision: revision.clone(),
            cache: cache.path().clone(),
        })
    }
}

impl<'de> Deserialize<'de> for StartFrom {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(StartVisitor)
    }
}

struct StartVisitor;

impl<'de> Visitor<'de> for StartVisitor {
    type Value = StartFrom;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a path, { url = \"https://…\", sha256 = \"…\" } or { hub = \"organization/name\" }")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<StartFrom, E> {
        DataFile::deserialize(text.into_deserializer()).map(StartFrom::File)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<StartFrom, A::Error> {
        let mut written = toml::Table::new();
        while let Some((key, value)) = map.next_entry::<String, toml::Value>()? {
            written.insert(key, value);
        }
        let read = match written.contains_key(HUB) {
            true => HubModel::deserialize(written).map(StartFrom::Hub),
            false => DataFile::deserialize(written).map(StartFrom::File),
        };
        read.map_err(|error| A::Error::custom(error.message()))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::fs;

    use super::*;

    #[test]
    fn a_model_of_the_hub_is_found_by_its_branch_and_by_its_commit() {
        let root = tempfile::tempdir().unwrap();
        let cache = Cache::new(root.path().to_owned());
        let model = |revision: &str| HubModel { hub: "barn/owl".to_owned(), revision: revision.to_owned() };
        let missing = model("main").folder_in(&cache).unwrap_err().to_string();
        assert!(missing.contains("hf download barn/owl --revision main"), "{missing}");
        // As `huggingface_hub` writes it.
        let of_model = root.path().join("models--barn--owl");
        let snapshot = of_model.join("snapshots/c0ffee");
        fs::create_dir_all(&snapshot).unwrap();
        fs::create_dir_all(of_model.join("refs")).unwrap();
        fs::write(of_model.join("refs/main"), "c0ffee").unwrap();
        assert!(model("main").folder_in(&cache).is_err(), "nothing in it");
        fs::write(snapshot.join(CONFIG_FILE), "{}").unwrap();
        assert_eq!(model("main").folder_in(&cache).unwrap(), snapshot);
        assert_eq!(model("c0ffee").folder_in(&cache).unwrap(), snapshot);
        assert!(model("decaf").folder_in(&cache).is_err());
    }
}
