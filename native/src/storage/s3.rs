//! Objects in an S3 store: Amazon's, or another one that speaks as it does.
//!
//! A `PUT` is whole or it is not, and what was acknowledged lasts, as in a folder. What fails is tried again for a minute;
//! after that it is an error, as that of a disk. Who one is there, the environment says (`AWS_ACCESS_KEY_ID`, …), never
//! a configuration.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::path::Path as ObjectPath;
use object_store::prefix::PrefixStore;
use object_store::{BackoffConfig, ClientConfigKey, ObjectStore, RetryConfig};
use serde::{Deserialize, Serialize};

use super::{Storage, StorageError};

const SCHEME: &str = "s3://";
/// Names the backbone whose objects these are.
const OWNER: &str = "backbone";
/// Longest peer id in base58.
const OWNER_BYTES_MAX: u64 = 128;
/// How long what fails is tried again.
const RETRY_MAX: Duration = Duration::from_secs(60);
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// Of one request: a checkpoint of a gigabyte, at 4 MB a second.
const REQUEST_MAX: Duration = Duration::from_secs(300);

/// Where objects are: `s3://bucket/prefix`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct S3Url {
    bucket: String,
    prefix: ObjectPath,
}

/// Not such an address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("want s3://bucket/prefix, where a run has a prefix of its own, got {0:?}")]
pub struct S3UrlError(String);

impl FromStr for S3Url {
    type Err = S3UrlError;

    fn from_str(text: &str) -> Result<Self, S3UrlError> {
        let error = || S3UrlError(text.chars().take(200).collect());
        let (bucket, prefix) =
            text.strip_prefix(SCHEME).and_then(|it| it.split_once('/')).ok_or_else(error)?;
        let is_named = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
        let prefix = ObjectPath::parse(prefix.trim_end_matches('/')).map_err(|_| error())?;
        // Without a prefix the whole bucket would be the run's, whatever else is in it.
        if bucket.is_empty() || !bucket.bytes().all(is_named) || prefix.as_ref().is_empty() {
            return Err(error());
        }
        Ok(Self { bucket: bucket.to_owned(), prefix })
    }
}

impl TryFrom<String> for S3Url {
    type Error = S3UrlError;

    fn try_from(text: String) -> Result<Self, S3UrlError> {
        text.parse()
    }
}

impl From<S3Url> for String {
    fn from(url: S3Url) -> Self {
        url.to_string()
    }
}

impl fmt::Display for S3Url {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{SCHEME}{}/{}", self.bucket, self.prefix)
    }
}

impl Storage {
    /// The same user's objects in an S3 store, for as long as its folder is its own.
    ///
    /// - `here`: the backbone that uses them, by its peer id; another one is refused, since it would overwrite them
    ///
    /// # Errors
    /// A store that cannot be reached or used, or [`StorageError::Taken`].
    pub async fn in_s3(&self, url: &S3Url, here: &str) -> Result<Self, StorageError> {
        let store = self.beside(connect(url)?);
        let owner = ObjectPath::from(OWNER);
        match store.get(&owner, OWNER_BYTES_MAX).await? {
            None => store.put(&owner, here.as_bytes().to_vec()).await?,
            Some(known) if known == here.as_bytes() => {}
            Some(other) => {
                let by = String::from_utf8_lossy(&other).into_owned();
                return Err(StorageError::Taken { url: url.to_string(), by, here: here.to_owned() });
            }
        }
        tracing::info!(%url, "objects are in an S3 store");
        Ok(store)
    }
}

fn connect(url: &S3Url) -> Result<Arc<dyn ObjectStore>, StorageError> {
    let retry = RetryConfig {
        backoff: BackoffConfig {
            init_backoff: Duration::from_millis(100),
            max_backoff: Duration::from_secs(5),
            base: 2.,
        },
        // As often as the time allows.
        max_retries: 1000,
        retry_timeout: RETRY_MAX,
    };
    let timeout =
        |key, duration: Duration| (AmazonS3ConfigKey::Client(key), format!("{} s", duration.as_secs()));
    let (connect, connect_max) = timeout(ClientConfigKey::ConnectTimeout, CONNECT_MAX);
    let (request, request_max) = timeout(ClientConfigKey::Timeout, REQUEST_MAX);
    let store = AmazonS3Builder::from_env()
        .with_bucket_name(&url.bucket)
        .with_config(connect, connect_max)
        .with_config(request, request_max)
        .with_retry(retry)
        .build()
        .map_err(|source| StorageError::Object { path: url.to_string(), source })?;
    Ok(Arc::new(PrefixStore::new(store, url.prefix.clone())))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_bucket_and_a_prefix_are_wanted() {
        for good in ["s3://barn/run", "s3://my.bucket-1/a/b"] {
            assert_eq!(good.parse::<S3Url>().unwrap().to_string(), good);
        }
        assert_eq!("s3://barn/run/".parse::<S3Url>().unwrap().to_string(), "s3://barn/run");
        for wrong in
            ["", "barn/run", "s3://", "s3://barn", "s3://barn/", "s3:///run", "https://h/x", "s3://a b/c"]
        {
            let error = wrong.parse::<S3Url>().unwrap_err().to_string();
            assert!(error.contains(&format!("{wrong:?}")), "{error}");
        }
    }
}
