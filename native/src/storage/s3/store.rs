//! Objects in an S3 store: Amazon's or a compatible one.
//!
//! As in a folder, an object is written completely or not at all, and an acknowledged one is durable. A failed request
//! is repeated for a minute; after that it is an error, like one of a disk. Large objects are uploaded in parts.
//! Credentials come from the environment (`AWS_ACCESS_KEY_ID`, …), never from a configuration; so do authorities
//! (`SSL_CERT_FILE`).

use std::error::Error as _;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream};
use futures::{StreamExt as _, TryStreamExt as _};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::client::HttpError;
use object_store::path::Path as ObjectPath;
use object_store::prefix::PrefixStore;
use object_store::{
    BackoffConfig, ClientConfigKey, CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload,
    ObjectMeta, ObjectStore, ObjectStoreExt as _, PutMultipartOptions, PutOptions, PutPayload, PutResult,
    RetryConfig,
};
use tokio::time::Instant;

use super::S3Url;
use crate::storage::{Storage, StorageBackend, StorageError};

/// Object with the peer id of the backbone that owns the prefix.
const OWNER: &str = "backbone";
/// Longest peer id in base58.
const OWNER_BYTES_MAX: u64 = 128;
/// How long a failed request is repeated.
const RETRY_MAX: Duration = Duration::from_secs(60);
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// Timeout of one request: enough for a part at 300 KB a second.
const REQUEST_MAX: Duration = Duration::from_secs(300);
/// Delay before a request whose answer was cut is repeated.
const RETRY_AFTER: Duration = Duration::from_millis(100);
/// Larger objects are uploaded in parts of this size: a broken request costs one part, and objects may exceed 5 GB, the
/// limit of one `PUT`.
const PART_BYTES: usize = 64 * 1024 * 1024;

impl Storage {
    /// Storage in S3, under the lock of this folder.
    ///
    /// - `here`: peer id of the backbone; a prefix that another backbone uses is refused
    ///
    /// # Errors
    /// The store cannot be reached or used, or [`StorageError::Taken`].
    pub async fn in_s3(&self, url: &S3Url, here: &str) -> Result<Self, StorageError> {
        let backend = StorageBackend::Objects(connect(AmazonS3Builder::from_env(), url)?);
        let store = Self { backend, _lock: self._lock.clone() };
        claim(&store, url, here).await?;
        tracing::info!(%url, "objects are in an S3 store");
        Ok(store)
    }
}

/// Makes the prefix that of the backbone `here`, unless another one has it.
async fn claim(store: &Storage, url: &S3Url, here: &str) -> Result<(), StorageError> {
    let owner = ObjectPath::from(OWNER);
    match store.get(&owner, OWNER_BYTES_MAX).await? {
        None => store.put(&owner, here.as_bytes().to_vec()).await,
        Some(known) if known == here.as_bytes() => Ok(()),
        Some(other) => {
            let by = String::from_utf8_lossy(&other).into_owned();
            Err(StorageError::Taken { url: url.to_string(), by, here: here.to_owned() })
        }
    }
}

/// A store that repeats a request whose answer was cut. All requests made here may be repeated.
///
/// The library repeats a request that was cut. It does not where the answer was cut (a list, the reason of a missing
/// object), nor for requests that it takes for not repeatable, such as deletions.
#[derive(Debug)]
struct RetryingStore(Arc<dyn ObjectStore>);

impl fmt::Display for RetryingStore {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// Whether the answer was cut or never came.
fn is_cut(error: &Error) -> bool {
    let mut source = error.source();
    while let Some(error) = source {
        if error.is::<HttpError>() {
            return true;
        }
        source = error.source();
    }
    false
}

/// Repeats a request while its answer is cut.
async fn patiently<T, F>(what: impl Fn() -> F) -> Result<T, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    let begun = Instant::now();
    loop {
        match what().await {
            Err(error) if is_cut(&error) && begun.elapsed() < RETRY_MAX => {
                tracing::info!(%error, "asked again");
                tokio::time::sleep(RETRY_AFTER).await;
            }
            done => return done,
        }
    }
}

#[async_trait]
impl ObjectStore for RetryingStore {
    async fn put_opts(
        &self,
        path: &ObjectPath,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult, Error> {
        if payload.content_length() > PART_BYTES {
            return self.put_in_parts(path, parts_of(payload, PART_BYTES)).await;
        }
        patiently(|| self.0.put_opts(path, payload.clone(), options.clone())).await
    }

    async fn put_multipart_opts(
        &self,
        path: &ObjectPath,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>, Error> {
        patiently(|| self.0.put_multipart_opts(path, options.clone())).await
    }

    async fn get_opts(&self, path: &ObjectPath, options: GetOptions) -> Result<GetResult, Error> {
        patiently(|| self.0.get_opts(path, options.clone())).await
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, Result<ObjectPath, Error>>,
    ) -> BoxStream<'static, Result<ObjectPath, Error>> {
        let store = Arc::clone(&self.0);
        let delete = move |path: ObjectPath| {
            let store = Arc::clone(&store);
            async move { patiently(|| store.delete(&path)).await.map(|()| path) }
        };
        paths.and_then(delete).boxed()
    }

    fn list(&self, prefix: Option<&ObjectPath>) -> BoxStream<'static, Result<ObjectMeta, Error>> {
        let (store, prefix) = (Arc::clone(&self.0), prefix.cloned());
        let list = async move {
            let listed = patiently(|| store.list(prefix.as_ref()).try_collect::<Vec<_>>()).await?;
            Ok::<_, Error>(stream::iter(listed).map(Ok))
        };
        stream::once(list).try_flatten().boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&ObjectPath>) -> Result<ListResult, Error> {
        patiently(|| self.0.list_with_delimiter(prefix)).await
    }

    async fn copy_opts(&self, from: &ObjectPath, to: &ObjectPath, options: CopyOptions) -> Result<(), Error> {
        patiently(|| self.0.copy_opts(from, to, options.clone())).await
    }
}

impl RetryingStore {
    async fn put_in_parts(&self, path: &ObjectPath, parts: Vec<PutPayload>) -> Result<PutResult, Error> {
        let begun = Instant::now();
        loop {
            let mut upload = self.put_multipart(path).await?;
            let error = match upload_all(&mut *upload, &parts).await {
                Ok(done) => return Ok(done),
                Err(error) => error,
            };
            // Otherwise its parts would stay in the store. A failure of the abort does not matter.
            let _ = upload.abort().await;
            // An upload that does not exist was completed, and the answer was cut.
            let is_cut = is_cut(&error) || matches!(error, Error::NotFound { .. });
            if !is_cut || begun.elapsed() >= RETRY_MAX {
                return Err(error);
            }
            tracing::info!(%path, %error, "uploaded again");
        }
    }
}

/// One part after the other: the network is the bottleneck, and a store may limit parallel requests.
async fn upload_all(upload: &mut dyn MultipartUpload, parts: &[PutPayload]) -> Result<PutResult, Error> {
    for part in parts {
        upload.put_part(part.clone()).await?;
    }
    upload.complete().await
}

/// Parts of `part_bytes` each but the last, as some stores want them. Nothing is copied.
fn parts_of(payload: PutPayload, part_bytes: usize) -> Vec<PutPayload> {
    let (mut parts, mut part, mut n_bytes) = (Vec::new(), Vec::<Bytes>::new(), 0);
    for mut piece in payload {
        while !piece.is_empty() {
            let taken = piece.split_to(piece.len().min(part_bytes - n_bytes));
            n_bytes += taken.len();
            part.push(taken);
            if n_bytes == part_bytes {
                parts.push(std::mem::take(&mut part).into_iter().collect());
                n_bytes = 0;
            }
        }
    }
    if !part.is_empty() {
        parts.push(part.into_iter().collect());
    }
    parts
}

fn connect(access: AmazonS3Builder, url: &S3Url) -> Result<Arc<dyn ObjectStore>, StorageError> {
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
    let store = access
        .with_bucket_name(&url.bucket)
        .with_config(connect, connect_max)
        .with_config(request, request_max)
        .with_retry(retry)
        .build()
        .map_err(|source| StorageError::Object { path: url.to_string(), source })?;
    Ok(Arc::new(RetryingStore(Arc::new(PrefixStore::new(store, url.prefix.clone())))))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::cell::Cell;
    use std::collections::VecDeque;
    use std::sync::Mutex;

    use object_store::UploadPart;
    use object_store::client::HttpErrorKind;
    use object_store::memory::InMemory;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use tokio::task::JoinHandle;

    use super::*;

    /// A store that answers in turn with what it is given and ends the connection: whole, or as much as `n_bytes` of it.
    /// What it was asked.
    async fn answering(answers: Vec<(String, usize)>) -> (Arc<dyn ObjectStore>, JoinHandle<Vec<String>>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let access = AmazonS3Builder::new()
            .with_endpoint(format!("http://{}", listener.local_addr().unwrap()))
            .with_allow_http(true)
            .with_access_key_id("test")
            .with_secret_access_key("test");
        let asked = tokio::spawn(async move {
            let mut asked = Vec::new();
            for (answer, n_bytes) in answers {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = Vec::new();
                while !is_whole(&request) {
                    assert!(stream.read_buf(&mut request).await.unwrap() > 0);
                }
                let line = String::from_utf8_lossy(&request).lines().next().unwrap().to_owned();
                asked.push(line);
                stream.write_all(&answer.as_bytes()[..n_bytes.min(answer.len())]).await.unwrap();
                stream.shutdown().await.unwrap();
            }
            asked
        });
        (connect(access, &"s3://barn/run".parse().unwrap()).unwrap(), asked)
    }

    fn is_whole(request: &[u8]) -> bool {
        let Some(end) = request.windows(4).position(|window| window == b"\r\n\r\n") else { return false };
        let head = String::from_utf8_lossy(&request[..end]).to_ascii_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
        request.len() >= end + 4 + length.map_or(0, |length| length.trim().parse().unwrap())
    }

    fn answer(body: &str) -> String {
        format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len())
    }

    const WHOLE: usize = usize::MAX;

    #[tokio::test]
    async fn an_answer_that_is_cut_is_asked_for_again() {
        let listed = answer(
            "<ListBucketResult><Contents><Key>run/a/1</Key><Size>3</Size>\
            <LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents></ListBucketResult>",
        );
        // Cut before its end, in its head, and not at all.
        let cuts = || vec![(listed.clone(), listed.len() - 20), (listed.clone(), 9), (listed.clone(), WHOLE)];
        let (store, asked) = answering(cuts()).await;
        let found: Vec<ObjectMeta> = store.list(Some(&ObjectPath::from("a"))).try_collect().await.unwrap();
        assert_eq!(found.iter().map(|found| found.location.as_ref()).collect::<Vec<_>>(), ["a/1"]);
        assert_eq!(asked.await.unwrap().len(), 3);
        let (store, asked) = answering(cuts()).await;
        assert_eq!(store.list_with_delimiter(Some(&ObjectPath::from("a"))).await.unwrap().objects, found);
        assert_eq!(asked.await.unwrap().len(), 3);
        let deleted = answer("<DeleteResult><Deleted><Key>run/a/1</Key></Deleted></DeleteResult>");
        let (store, asked) =
            answering(vec![(deleted.clone(), 0), (deleted.clone(), deleted.len() - 5), (deleted, WHOLE)])
                .await;
        store.delete(&ObjectPath::from("a/1")).await.unwrap();
        let asked = asked.await.unwrap();
        assert!(asked.len() == 3 && asked.iter().all(|line| line.starts_with("POST ")), "{asked:?}");
        // Why there is none.
        let none = "HTTP/1.1 404 Not Found\r\ncontent-length: 9\r\nconnection: close\r\n\r\n<Error/> ";
        let (store, asked) =
            answering(vec![(none.to_owned(), none.len() - 3), (none.to_owned(), WHOLE)]).await;
        let error = store.get(&ObjectPath::from("a/1")).await.unwrap_err();
        assert!(matches!(error, Error::NotFound { .. }), "{error}");
        assert_eq!(asked.await.unwrap().len(), 2);
    }

    #[tokio::test]
    async fn what_a_store_refuses_is_not_asked_again() {
        let refused = "HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
        let (store, asked) = answering(vec![(refused.to_owned(), WHOLE)]).await;
        store.list_with_delimiter(Some(&ObjectPath::from("a"))).await.unwrap_err();
        assert_eq!(asked.await.unwrap().len(), 1);
    }

    #[tokio::test]
    async fn a_prefix_is_of_the_backbone_that_was_there_first() {
        let store = Storage::in_memory();
        let url: S3Url = "s3://barn/run".parse().unwrap();
        for _ in 0..2 {
            claim(&store, &url, "one").await.unwrap();
            let error = claim(&store, &url, "other").await.unwrap_err();
            let is_told =
                matches!(&error, StorageError::Taken { by, here, .. } if by == "one" && here == "other");
            assert!(is_told, "{error}");
        }
    }

    /// An answer that was cut.
    fn cut() -> Error {
        let source = HttpError::new(HttpErrorKind::Interrupted, std::io::Error::other("cut"));
        Error::Generic { store: "S3", source: Box::new(source) }
    }

    fn missing() -> Error {
        Error::NotFound { path: "a".to_owned(), source: "there is none".into() }
    }

    fn refused() -> Error {
        Error::Generic { store: "S3", source: "refused".into() }
    }

    const MILLISECOND: Duration = Duration::from_millis(1);

    #[tokio::test(start_paused = true)]
    async fn a_request_is_repeated_for_so_long_and_no_longer() {
        for (takes, is_cut, n_asked) in [
            (RETRY_MAX - MILLISECOND, true, 2),
            (RETRY_MAX, true, 1),
            (RETRY_MAX + MILLISECOND, true, 1),
            (Duration::ZERO, false, 1),
        ] {
            let asked = Cell::new(0);
            let ask = || async {
                asked.set(asked.get() + 1);
                tokio::time::advance(takes).await;
                Err::<(), Error>(if is_cut { cut() } else { missing() })
            };
            patiently(ask).await.unwrap_err();
            assert_eq!(asked.get(), n_asked, "after {takes:?}");
        }
    }

    /// A store that has objects of no bytes, and writes down what it is asked to store.
    #[derive(Debug, Default)]
    struct RecordingStore {
        objects: InMemory,
        asked: Arc<Mutex<Vec<String>>>,
        /// What the ends of uploads give in turn, and how long they take.
        failures: Arc<Mutex<VecDeque<(Duration, Error)>>>,
    }

    #[derive(Debug)]
    struct RecordedUpload {
        upload: Box<dyn MultipartUpload>,
        asked: Arc<Mutex<Vec<String>>>,
        failures: Arc<Mutex<VecDeque<(Duration, Error)>>>,
    }

    impl fmt::Display for RecordingStore {
        fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            formatter.write_str("recording")
        }
    }

    #[async_trait]
    impl ObjectStore for RecordingStore {
        async fn put_opts(
            &self,
            path: &ObjectPath,
            payload: PutPayload,
            options: PutOptions,
        ) -> Result<PutResult, Error> {
            self.asked.lock().unwrap().push(format!("put {}", payload.content_length()));
            self.objects.put_opts(path, PutPayload::default(), options).await
        }

        async fn put_multipart_opts(
            &self,
            path: &ObjectPath,
            options: PutMultipartOptions,
        ) -> Result<Box<dyn MultipartUpload>, Error> {
            let upload = self.objects.put_multipart_opts(path, options).await?;
            let (asked, failures) = (Arc::clone(&self.asked), Arc::clone(&self.failures));
            Ok(Box::new(RecordedUpload { upload, asked, failures }))
        }

        async fn get_opts(&self, path: &ObjectPath, options: GetOptions) -> Result<GetResult, Error> {
            self.objects.get_opts(path, options).await
        }

        fn delete_stream(
            &self,
            paths: BoxStream<'static, Result<ObjectPath, Error>>,
        ) -> BoxStream<'static, Result<ObjectPath, Error>> {
            self.objects.delete_stream(paths)
        }

        fn list(&self, prefix: Option<&ObjectPath>) -> BoxStream<'static, Result<ObjectMeta, Error>> {
            self.objects.list(prefix)
        }

        async fn list_with_delimiter(&self, prefix: Option<&ObjectPath>) -> Result<ListResult, Error> {
            self.objects.list_with_delimiter(prefix).await
        }

        async fn copy_opts(
            &self,
            from: &ObjectPath,
            to: &ObjectPath,
            options: CopyOptions,
        ) -> Result<(), Error> {
            self.objects.copy_opts(from, to, options).await
        }
    }

    #[async_trait]
    impl MultipartUpload for RecordedUpload {
        fn put_part(&mut self, part: PutPayload) -> UploadPart {
            self.asked.lock().unwrap().push(format!("part {}", part.content_length()));
            self.upload.put_part(PutPayload::default())
        }

        async fn complete(&mut self) -> Result<PutResult, Error> {
            self.asked.lock().unwrap().push("complete".to_owned());
            let failure = self.failures.lock().unwrap().pop_front();
            if let Some((takes, error)) = failure {
                tokio::time::advance(takes).await;
                return Err(error);
            }
            self.upload.complete().await
        }

        async fn abort(&mut self) -> Result<(), Error> {
            self.asked.lock().unwrap().push("abort".to_owned());
            self.upload.abort().await
        }
    }

    /// As much as goes in one part, and `more`.
    fn part_and(more: &'static [u8]) -> PutPayload {
        let piece = Bytes::from(vec![0; 1024 * 1024]);
        let pieces = std::iter::repeat_n(piece, PART_BYTES / (1024 * 1024));
        pieces.chain([Bytes::from_static(more)]).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_larger_than_a_part_is_uploaded_in_parts_and_begun_anew_where_that_may_help() {
        let path = ObjectPath::from("a");
        let recording = RecordingStore::default();
        let asked = Arc::clone(&recording.asked);
        let store = RetryingStore(Arc::new(recording));
        store.put(&path, part_and(b"")).await.unwrap();
        assert_eq!(*asked.lock().unwrap(), [format!("put {PART_BYTES}")]);
        assert_eq!(store.to_string(), "recording");

        for (failures, n_begun, is_stored) in [
            (vec![], 1, true),
            (vec![(RETRY_MAX - MILLISECOND, cut())], 2, true),
            (vec![(Duration::ZERO, missing())], 2, true),
            (vec![(RETRY_MAX, cut())], 1, false),
            (vec![(Duration::ZERO, refused())], 1, false),
        ] {
            let (what, n_failures) = (format!("{failures:?}"), failures.len());
            let recording = RecordingStore {
                failures: Arc::new(Mutex::new(failures.into())),
                ..RecordingStore::default()
            };
            let asked = Arc::clone(&recording.asked);
            let stored = RetryingStore(Arc::new(recording)).put(&path, part_and(b"1")).await;
            assert_eq!(stored.is_ok(), is_stored, "{what}");
            let mut want = Vec::new();
            for attempt in 0..n_begun {
                want.extend([format!("part {PART_BYTES}"), "part 1".to_owned(), "complete".to_owned()]);
                // What an upload that failed has in the store is removed.
                want.extend((attempt < n_failures).then(|| "abort".to_owned()));
            }
            assert_eq!(*asked.lock().unwrap(), want, "{what}");
        }
    }

    #[tokio::test]
    async fn a_copy_is_there_beside_what_was_copied() {
        let store = RetryingStore(Arc::new(InMemory::new()));
        let (from, to) = (ObjectPath::from("a"), ObjectPath::from("b"));
        store.put(&from, PutPayload::from_static(b"1")).await.unwrap();
        store.copy(&from, &to).await.unwrap();
        for path in [from, to] {
            assert_eq!(store.get(&path).await.unwrap().bytes().await.unwrap(), "1", "{path}");
        }
        let error = store.copy(&ObjectPath::from("c"), &ObjectPath::from("d")).await.unwrap_err();
        assert!(matches!(error, Error::NotFound { .. }), "{error}");
    }

    #[test]
    fn parts_have_one_size_but_the_last() {
        let pieces = [3, 0, 5, 4].map(|n_bytes| Bytes::from(vec![n_bytes as u8; n_bytes]));
        let payload: PutPayload = pieces.clone().into_iter().collect();
        let whole = Bytes::from(payload.clone());
        for (part_bytes, want) in [(5, vec![5, 5, 2]), (6, vec![6, 6]), (100, vec![12])] {
            let parts = parts_of(payload.clone(), part_bytes);
            assert_eq!(parts.iter().map(PutPayload::content_length).collect::<Vec<_>>(), want);
            let parts: Vec<u8> = parts.into_iter().flat_map(|part| Bytes::from(part).to_vec()).collect();
            assert_eq!(parts, whole);
        }
    }
}
