//! Settings from the environment, which win over those of a file: `BARNRAISE__NETWORK__HTTP=0.0.0.0:8080`.
//!
//! What is after the prefix is the key, its parts between two underscores each. A value is written as in the file;
//! the quotes of a word may be left out. A secret may be in a file that the variable names: with `_FILE` behind it.
//! Which variables there are is read once; nothing is ever written.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Read as _;
use std::path::PathBuf;

use serde::de::DeserializeOwned;
use toml::{Table, Value};

use crate::config_file::without_password;

/// Before the key.
const PREFIX: &str = "BARNRAISE__";
/// Between the parts of a key.
const SEPARATOR: &str = "__";
/// Behind the key of a secret that is in a file.
const FILE_SUFFIX: &str = "_file";
/// Longest secret.
const SECRET_BYTES_MAX: u64 = 64 * 1024;

/// Why a variable is no setting.
#[derive(Debug, thiserror::Error)]
pub enum EnvironmentError {
    /// Not UTF-8.
    #[error("the variable {name} is not UTF-8")]
    NotText {
        /// The variable.
        name: String,
    },
    /// No key.
    #[error("the variable {name}: a section and a key are wanted, as in {PREFIX}NETWORK__HTTP")]
    NoKey {
        /// The variable.
        name: String,
    },
    /// Two variables for one key.
    #[error("the variables {first} and {second} set the same key: one of them is wanted")]
    Twice {
        /// One of them.
        first: String,
        /// The other.
        second: String,
    },
    /// The file of a secret.
    #[error("the variable {name} names {}: {source}", path.display())]
    Secret {
        /// The variable.
        name: String,
        /// What it names.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// An unknown key, or a value of another type.
    #[error("the variable {name}: {reason}")]
    Value {
        /// The variable, or several of which one is it.
        name: String,
        /// What was wanted.
        reason: String,
    },
}

/// Settings from the environment.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Environment(Vec<Setting>);

#[derive(Clone, PartialEq)]
struct Setting {
    name: String,
    path: Vec<String>,
    value: Value,
}

impl std::fmt::Debug for Setting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // There may be a secret in it.
        f.debug_struct("Setting").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Environment {
    /// Of this process. `secrets` are the keys that may be in a file.
    ///
    /// # Errors
    /// The variable that is no setting, or whose file cannot be read.
    pub fn of_process(secrets: &[&str]) -> Result<Self, EnvironmentError> {
        Self::of(std::env::vars_os(), secrets)
    }

    /// Of these variables; others than those with the prefix are skipped.
    ///
    /// # Errors
    /// As of [`Self::of_process`].
    pub fn of(
        variables: impl IntoIterator<Item = (OsString, OsString)>,
        secrets: &[&str],
    ) -> Result<Self, EnvironmentError> {
        let mut settings: BTreeMap<Vec<String>, Setting> = BTreeMap::new();
        for (name, value) in variables {
            let Some(name) = name.to_str().filter(|name| name.starts_with(PREFIX)) else { continue };
            let Some(value) = value.to_str() else {
                return Err(EnvironmentError::NotText { name: name.to_owned() });
            };
            let setting = Setting::of(name, value, secrets)?;
            if let Some(other) = settings.get(&setting.path) {
                let mut names = [other.name.clone(), setting.name];
                names.sort();
                let [first, second] = names;
                return Err(EnvironmentError::Twice { first, second });
            }
            settings.insert(setting.path.clone(), setting);
        }
        Ok(Self(settings.into_values().collect()))
    }

    /// Whether there is no setting.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The variable that sets a key, a part of it, or what it is a part of.
    #[must_use]
    pub fn variable_of(&self, key: &str) -> Option<&str> {
        let parts: Vec<&str> = key.split('.').collect();
        let concerns =
            |setting: &&Setting| setting.path.iter().zip(&parts).all(|(ours, asked)| ours == asked);
        self.0.iter().find(concerns).map(|setting| setting.name.as_str())
    }

    /// Applies these settings over `table`, which is a valid configuration by itself.
    ///
    /// # Errors
    /// The variable whose key is not known, or whose value is of another type, and what was wanted.
    pub fn apply<T: DeserializeOwned>(&self, table: &Table) -> Result<T, EnvironmentError> {
        let error = match self.merged(table, None)?.try_into() {
            Ok(config) => return Ok(config),
            Err(error) => error,
        };
        let is_guilty = |index: &usize| {
            let without = self.merged(table, Some(*index)).map(Table::try_into::<T>);
            matches!(without, Ok(Ok(_)))
        };
        let guilty = (0..self.0.len()).find(is_guilty).and_then(|index| self.0.get(index));
        let names = || self.0.iter().map(|setting| setting.name.as_str()).collect::<Vec<_>>().join(", or ");
        let name = guilty.map_or_else(names, |setting| setting.name.clone());
        // It repeats what came, which may be an address with a password at the wrong key.
        Err(EnvironmentError::Value { name, reason: without_password(error.message()) })
    }

    fn merged(&self, table: &Table, without: Option<usize>) -> Result<Table, EnvironmentError> {
        let mut merged = table.clone();
        for (index, setting) in self.0.iter().enumerate() {
            if Some(index) != without {
                setting.put_into(&mut merged)?;
            }
        }
        Ok(merged)
    }
}

impl Setting {
    fn of(name: &str, value: &str, secrets: &[&str]) -> Result<Self, EnvironmentError> {
        let key = name.strip_prefix(PREFIX).unwrap_or_default().to_lowercase();
        let path: Vec<String> = key.split(SEPARATOR).map(str::to_owned).collect();
        if path.len() < 2 || path.iter().any(String::is_empty) {
            return Err(EnvironmentError::NoKey { name: name.to_owned() });
        }
        let named = path.join(".");
        let secret = named.strip_suffix(FILE_SUFFIX).filter(|key| secrets.contains(key));
        let Some(secret) = secret else {
            return Ok(Self { name: name.to_owned(), path, value: value_of(value) });
        };
        let read = read_secret(value).map_err(|source| EnvironmentError::Secret {
            name: name.to_owned(),
            path: value.into(),
            source,
        });
        let path = secret.split('.').map(str::to_owned).collect();
        Ok(Self { name: name.to_owned(), path, value: Value::String(read?) })
    }

    fn put_into(&self, table: &mut Table) -> Result<(), EnvironmentError> {
        let Some((last, sections)) = self.path.split_last() else { return Ok(()) };
        let mut table = table;
        for section in sections {
            let entry = table.entry(section.clone()).or_insert_with(|| Value::Table(Table::new()));
            let Value::Table(inner) = entry else {
                let reason = format!("`{section}` has no keys: set the whole of it");
                return Err(EnvironmentError::Value { name: self.name.clone(), reason });
            };
            table = inner;
        }
        table.insert(last.clone(), self.value.clone());
        Ok(())
    }
}

/// A number, a truth value, or what is written as in the file; else a text.
fn value_of(text: &str) -> Value {
    let written = toml::from_str::<Table>(&format!("value = {text}")).ok();
    // More than one key: there was a line break in it.
    let written = written.filter(|table| table.len() == 1).and_then(|mut table| table.remove("value"));
    match written {
        Some(value) if !value.is_datetime() => value,
        _ => Value::String(text.to_owned()),
    }
}

fn read_secret(path: &str) -> std::io::Result<String> {
    let mut text = String::new();
    let n_bytes = std::fs::File::open(path)?.take(SECRET_BYTES_MAX + 1).read_to_string(&mut text)? as u64;
    if n_bytes > SECRET_BYTES_MAX {
        return Err(std::io::Error::other(format!("a secret has at most {SECRET_BYTES_MAX} bytes")));
    }
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    struct SampleConfig {
        network: SampleNetwork,
        access: Access,
    }

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    struct SampleNetwork {
        http: String,
        upnp: bool,
        peers: Vec<u16>,
    }

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    struct Access {
        login: Option<Login>,
    }

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Login {
        id: String,
        secret: String,
    }

    const SECRETS: &[&str] = &["access.login.secret"];

    fn environment(variables: &[(&str, &str)]) -> Result<Environment, EnvironmentError> {
        Environment::of(variables.iter().map(|(name, value)| (name.into(), value.into())), SECRETS)
    }

    fn applied(file: &str, variables: &[(&str, &str)]) -> Result<SampleConfig, EnvironmentError> {
        environment(variables)?.apply(&file.parse().unwrap())
    }

    #[test]
    fn variables_win_over_the_file_in_any_type() {
        let variables = [
            ("BARNRAISE__NETWORK__HTTP", "0.0.0.0:80"),
            ("BARNRAISE__NETWORK__UPNP", "true"),
            ("BARNRAISE__NETWORK__PEERS", "[1, 2]"),
            ("HOME", "/root"),
            ("BARNRAISE_BIN", "not ours"),
        ];
        let config = applied("[network]\nhttp = \"x\"\npeers = [9]", &variables).unwrap();
        let network = SampleNetwork { http: "0.0.0.0:80".into(), upnp: true, peers: vec![1, 2] };
        assert_eq!(config.network, network);
        let quoted = applied("", &[("BARNRAISE__NETWORK__HTTP", "\"42\"")]).unwrap();
        assert_eq!(quoted.network.http, "42");
        let day = applied("", &[("BARNRAISE__NETWORK__HTTP", "1979-05-27")]).unwrap();
        assert_eq!(day.network.http, "1979-05-27");
        let lines = applied("", &[("BARNRAISE__NETWORK__HTTP", "1\nother = 2")]).unwrap();
        assert_eq!(lines.network.http, "1\nother = 2");
    }

    #[test]
    fn what_belongs_together_is_read_together() {
        let variables = [("BARNRAISE__ACCESS__LOGIN__ID", "barn"), ("BARNRAISE__ACCESS__LOGIN__SECRET", "s")];
        let login = applied("", &variables).unwrap().access.login.unwrap();
        assert_eq!((login.id.as_str(), login.secret.as_str()), ("barn", "s"));
        let error = applied("", &variables[..1]).unwrap_err().to_string();
        assert!(error.contains("BARNRAISE__ACCESS__LOGIN__ID") && error.contains("secret"), "{error}");
    }

    #[test]
    fn a_secret_may_be_in_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        std::fs::write(&path, "hush\n").unwrap();
        let path = path.to_str().unwrap();
        let id = ("BARNRAISE__ACCESS__LOGIN__ID", "barn");
        let in_file = ("BARNRAISE__ACCESS__LOGIN__SECRET_FILE", path);
        assert_eq!(applied("", &[id, in_file]).unwrap().access.login.unwrap().secret, "hush");
        let both = applied("", &[id, in_file, ("BARNRAISE__ACCESS__LOGIN__SECRET", "x")]);
        assert!(both.unwrap_err().to_string().contains("SECRET and BARNRAISE__ACCESS__LOGIN__SECRET_FILE"));
        let missing = applied("", &[("BARNRAISE__ACCESS__LOGIN__SECRET_FILE", "/does/not/exist")]);
        assert!(missing.unwrap_err().to_string().contains("/does/not/exist"));
        std::fs::write(path, vec![b'x'; 70_000]).unwrap();
        assert!(applied("", &[in_file]).unwrap_err().to_string().contains("65536"));
        let debug = format!("{:?}", environment(&[("BARNRAISE__ACCESS__LOGIN__SECRET", "hush")]).unwrap());
        assert!(debug.contains("SECRET") && !debug.contains("hush"), "{debug}");
    }

    #[test]
    fn the_variable_that_is_wrong_is_named_with_what_was_wanted() {
        let good = ("BARNRAISE__NETWORK__HTTP", "a");
        for (variable, value, part) in [
            ("BARNRAISE__NETWORK__HTPP", "a", "unknown field `htpp`"),
            ("BARNRAISE__NETWORKS__HTTP", "a", "unknown field `networks`"),
            ("BARNRAISE__NETWORK__UPNP", "yes", "expected a boolean"),
            ("BARNRAISE__NETWORK__PEERS", "[1, \"x\"]", "expected u16"),
            ("BARNRAISE__NETWORK__HTTP__PORT", "80", "expected a string"),
            ("BARNRAISE__NETWORK", "a", "a section and a key"),
            ("BARNRAISE__NETWORK__", "a", "a section and a key"),
        ] {
            let variables = if part.contains("a string") { vec![] } else { vec![good] };
            let error =
                applied("", &[&variables[..], &[(variable, value)]].concat()).unwrap_err().to_string();
            assert!(error.starts_with(&format!("the variable {variable}:")), "{error}");
            assert!(error.contains(part), "{error}");
        }
        let error = applied("[network]\nhttp = \"a\"", &[("BARNRAISE__NETWORK__HTTP__PORT", "80")]);
        assert!(error.unwrap_err().to_string().contains("`http` has no keys"));
    }

    #[test]
    fn a_password_at_the_wrong_key_is_not_repeated() {
        let misplaced = [("BARNRAISE__NETWORK__UPNP", "postgres://barn:s3cret@db/runs")];
        let error = applied("", &misplaced).unwrap_err().to_string();
        assert!(error.contains("postgres://…@db/runs") && error.contains("a boolean"), "{error}");
        assert!(!error.contains("s3cret"), "{error}");
    }

    #[test]
    fn the_variable_of_a_key_is_known_for_its_parts_too() {
        let environment = environment(&[("BARNRAISE__RUN__SCHEDULE__PEAK", "0.1")]).unwrap();
        let name = Some("BARNRAISE__RUN__SCHEDULE__PEAK");
        assert_eq!(environment.variable_of("run.schedule"), name);
        assert_eq!(environment.variable_of("run.schedule.peak"), name);
        assert_eq!(environment.variable_of("run.id"), None);
        assert!(Environment::default().is_empty() && !environment.is_empty());
    }
}
