//! The address of objects in an S3 store, and in a program with `operations` the store itself.

#[cfg(feature = "operations")]
mod store;

use std::fmt;
use std::str::FromStr;

use object_store::path::Path as ObjectPath;
use serde::{Deserialize, Serialize};

const SCHEME: &str = "s3://";

/// URL of the objects of a run: `s3://bucket/prefix`.
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
        // Without a prefix the run would claim the whole bucket, with all that is in it.
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn it_is_its_text_in_a_configuration() {
        let url: S3Url = "s3://barn_1/run".parse().unwrap();
        assert_eq!(String::from(url.clone()), "s3://barn_1/run");
        assert_eq!(S3Url::try_from("s3://barn_1/run".to_owned()), Ok(url));
        assert!(S3Url::try_from("s3://barn_1".to_owned()).is_err());
    }

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
