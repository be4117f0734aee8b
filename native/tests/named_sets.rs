//! Loading a named set: from a folder, from a host on loopback, and past broken files and hosts.

use std::collections::HashMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::{Path as UrlPath, State};
use axum::http::StatusCode;
use barnraise_native::config::RunConfig;
use barnraise_native::data::idx;
use barnraise_native::data::sets::{
    DEBIAN_FOLDER, Dataset, FileSpec, FileSpecs, NamedSet, SetError, Sources,
};
use barnraise_protocol::Sha256Hash;
use barnraise_protocol::dataset::{Ratings, Samples};
use flate2::Compression;
use flate2::write::GzEncoder;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Answers of the host by file, and the number of requests.
#[derive(Default)]
struct MirrorHost {
    files: HashMap<String, (StatusCode, Vec<u8>)>,
    n_requests: usize,
}

type SharedHost = Arc<Mutex<MirrorHost>>;

async fn answer(State(host): State<SharedHost>, UrlPath(name): UrlPath<String>) -> (StatusCode, Vec<u8>) {
    let mut host = host.lock().unwrap();
    host.n_requests += 1;
    host.files.get(&name).cloned().unwrap_or((StatusCode::NOT_FOUND, b"no such file".to_vec()))
}

struct DownloadHarness {
    cache: tempfile::TempDir,
    folder: tempfile::TempDir,
    host: SharedHost,
    sources: Sources,
    specs: FileSpecs,
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn contents() -> [(&'static str, Vec<u8>); 4] {
    let images = |n: u32| idx::write([n, 2, 2], &(0..n * 4).map(|i| i as u8).collect::<Vec<_>>());
    let labels = |n: u32| idx::write([n], &(0..n).map(|i| (i % 10) as u8).collect::<Vec<_>>());
    [
        ("train-images", images(30)),
        ("train-labels", labels(30)),
        ("test-images", images(20)),
        ("test-labels", labels(20)),
    ]
}

fn specs(contents: &[(&'static str, Vec<u8>); 4]) -> FileSpecs {
    let [train_images, train_labels, test_images, test_labels] = contents.each_ref().map(|(name, bytes)| {
        FileSpec { name: (*name).to_owned(), n_bytes: bytes.len() as u64, sha256: Sha256Hash::of(bytes) }
    });
    FileSpecs { train_images, train_labels, test_images, test_labels }
}

/// A host that serves the four files, whole.
async fn world() -> DownloadHarness {
    let contents = contents();
    let specs = specs(&contents);
    let files = contents.into_iter();
    let files = files.map(|(name, bytes)| (format!("{name}.gz"), (StatusCode::OK, gzip(&bytes)))).collect();
    let host = Arc::new(Mutex::new(MirrorHost { files, n_requests: 0 }));
    let app = Router::new().route("/data/{name}", axum::routing::get(answer)).with_state(Arc::clone(&host));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base_url = format!("http://{}/data", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await });
    let (cache, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let sources = Sources {
        named: None,
        folders: vec![folder.path().to_owned()],
        cache: cache.path().join("fashion-mnist"),
        base_urls: vec![base_url],
        are_packed: true,
        archives: vec![],
    };
    DownloadHarness { cache, folder, host, sources, specs }
}

impl DownloadHarness {
    async fn load(&self) -> Result<Dataset, Box<SetError>> {
        let (sources, specs) = (self.sources.clone(), self.specs.clone());
        tokio::task::spawn_blocking(move || Dataset::load(&sources, &specs).map_err(Box::new)).await.unwrap()
    }

    fn set(&self, name: &str, status: StatusCode, bytes: Vec<u8>) {
        self.host.lock().unwrap().files.insert(name.to_owned(), (status, bytes));
    }

    fn n_requests(&self) -> usize {
        self.host.lock().unwrap().n_requests
    }

    fn cached(&self, name: &str) -> PathBuf {
        self.cache.path().join("fashion-mnist").join(name)
    }
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[tokio::test]
async fn files_are_fetched_once_and_then_read_from_the_cache() {
    let world = world().await;
    let dataset = world.load().await.unwrap();
    assert_eq!((dataset.train.n_samples(), dataset.test.n_samples()), (30, 20));
    assert_eq!(dataset.train.images[..5], [0, 1, 2, 3, 4]);
    assert_eq!(dataset.test.labels[9..12], [9, 0, 1]);
    assert_eq!(world.n_requests(), 4);
    assert_eq!(world.load().await.unwrap(), dataset);
    assert_eq!(world.n_requests(), 4);
    let want = ["test-images.gz", "test-labels.gz", "train-images.gz", "train-labels.gz"];
    assert_eq!(names(world.cached("x").parent().unwrap()), want);
}

#[tokio::test]
async fn a_folder_that_has_the_files_needs_no_host() {
    let world = world().await;
    for (name, bytes) in contents() {
        if name.starts_with("train") {
            fs::write(world.folder.path().join(format!("{name}.gz")), gzip(&bytes)).unwrap();
        } else {
            fs::write(world.folder.path().join(name), bytes).unwrap();
        }
    }
    world.load().await.unwrap();
    assert_eq!(world.n_requests(), 0);
}

#[tokio::test]
async fn a_broken_file_in_the_folder_or_the_cache_is_fetched_again() {
    let world = world().await;
    let dataset = world.load().await.unwrap();
    let whole = fs::read(world.cached("train-images.gz")).unwrap();
    let wrong = gzip(&contents()[2].1);
    let mut flipped = contents()[0].1.clone();
    flipped[20] ^= 1;
    for broken in [&whole[..whole.len() / 2], b"", b"not gzip", &wrong, &gzip(&flipped)] {
        fs::write(world.cached("train-images.gz"), broken).unwrap();
        fs::write(world.folder.path().join("train-images.gz"), broken).unwrap();
        let before = world.n_requests();
        assert_eq!(world.load().await.unwrap(), dataset);
        assert_eq!(world.n_requests(), before + 1);
        assert_eq!(fs::read(world.cached("train-images.gz")).unwrap(), whole);
        assert_eq!(
            fs::read(world.folder.path().join("train-images.gz")).unwrap(),
            broken,
            "never written to"
        );
    }
}

#[tokio::test]
async fn a_host_with_broken_files_is_named_with_what_was_wrong_and_recovers() {
    let world = world().await;
    let whole = gzip(&contents()[0].1);
    let mut flipped = contents()[0].1.clone();
    flipped[20] ^= 1;
    let long = [contents()[0].1.as_slice(), &[0; 99]].concat();
    for (status, bytes, reason) in [
        (StatusCode::OK, whole[..whole.len() - 12].to_vec(), "incomplete deflate stream"),
        (StatusCode::OK, gzip(&contents()[0].1[..100]), "100 bytes after decompression, 136 were wanted"),
        (StatusCode::OK, gzip(&long), "137 bytes after decompression, 136 were wanted"),
        (StatusCode::OK, gzip(&flipped), "SHA-256 is"),
        (StatusCode::OK, vec![0; 2 << 20], "the file is too long"),
        (StatusCode::OK, b"<html>not gzip</html>".to_vec(), "21 bytes after decompression, 136 were wanted"),
        (StatusCode::NOT_FOUND, b"gone".to_vec(), "404"),
        (StatusCode::INTERNAL_SERVER_ERROR, vec![], "500"),
    ] {
        world.set("train-images.gz", status, bytes);
        let error = world.load().await.unwrap_err().to_string();
        assert!(error.starts_with("train-images could not be had:"), "{error}");
        assert!(error.contains("/data/train-images.gz: ") && error.contains(reason), "{reason}: {error}");
        assert_eq!(names(&world.sources.cache), [""; 0], "nothing broken is kept");
    }
    world.set("train-images.gz", StatusCode::OK, whole);
    world.load().await.unwrap();
}

/// A host that closes the connection in the middle of a file whose length it announced.
#[tokio::test]
async fn a_connection_that_breaks_off_is_named() {
    let mut world = world().await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    world.sources.base_urls.insert(0, format!("http://{}", listener.local_addr().unwrap()));
    world.sources.base_urls.truncate(1);
    tokio::spawn(async move {
        let (mut connection, _) = listener.accept().await.unwrap();
        let mut request = [0; 1024];
        let _ = connection.read(&mut request).await.unwrap();
        connection.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\nhalf").await.unwrap();
    });
    let error = world.load().await.unwrap_err().to_string();
    assert!(error.contains("after 4 bytes"), "{error}");
    assert_eq!(names(&world.sources.cache), [""; 0], "nothing broken is kept");
}

#[tokio::test]
async fn a_cache_that_cannot_be_written_is_named_and_no_host_is_asked() {
    let mut world = world().await;
    let file = world.folder.path().join("no-folder");
    fs::write(&file, "a file").unwrap();
    world.sources.cache = file.join("cache");
    let error = world.load().await.unwrap_err().to_string();
    assert!(error.contains("cache folder") && error.contains("no-folder"), "{error}");
    assert_eq!(world.n_requests(), 0);
}

#[tokio::test]
async fn the_next_host_is_tried() {
    let mut world = world().await;
    let good = world.sources.base_urls[0].clone();
    world.sources.base_urls = vec![good.replace("/data", "/elsewhere"), good];
    world.load().await.unwrap();
}

#[tokio::test]
async fn files_that_do_not_belong_together_are_refused() {
    let mut world = world().await;
    let mut contents = contents();
    contents[1].1 = idx::write([29], &[0; 29]);
    world.set("train-labels.gz", StatusCode::OK, gzip(&contents[1].1));
    world.specs = specs(&contents);
    let error = world.load().await.unwrap_err();
    assert_eq!(error.to_string(), "train-labels: 30 images and 29 labels");
    contents[1].1 = idx::write([30], &[10; 30]);
    world.set("train-labels.gz", StatusCode::OK, gzip(&contents[1].1));
    world.specs = specs(&contents);
    let error = world.load().await.unwrap_err();
    assert_eq!(error.to_string(), "train-labels: label 10, the data set has 10 classes");
}

/// The hashes in the code are those of the real files, if this machine has them.
#[test]
fn the_installed_data_set_is_the_known_one() {
    if !Path::new(DEBIAN_FOLDER).is_dir() {
        println!("SKIPPED: dataset-fashion-mnist is not installed: nothing to compare with");
        return;
    }
    let cache = tempfile::tempdir().unwrap();
    let mut sources = NamedSet::FashionMnist.sources(cache.path());
    sources.base_urls.clear();
    let dataset = Dataset::load(&sources, &FileSpecs::fashion_mnist()).unwrap();
    assert_eq!((dataset.train.n_samples(), dataset.test.n_samples()), (60_000, 10_000));
    assert_eq!((dataset.shape.height, dataset.shape.width), (28, 28));
    let of_boots = dataset.test.labels.iter().filter(|&&label| label == 9).count();
    assert_eq!((dataset.train.labels[0], of_boots), (9, 1000));
}

/// Loads a set from wherever it can be had, then from the cache; gives its samples to train on and the held-out ones.
fn had_whole(set: &str, sections: &str) -> (Samples, Samples) {
    let text = format!("{sections}[data]\nset = \"{set}\"");
    let mut config = RunConfig::parse(&text, Path::new("run.toml")).unwrap();
    let cache = tempfile::tempdir().unwrap();
    config.data.cache = Some(cache.path().to_owned());
    let data = config.data_source().load(cache.path()).unwrap();
    config.data.base_urls = vec!["http://127.0.0.1:1".to_owned()];
    let again = config.data_source().load(cache.path()).unwrap();
    assert!((&again.kind, &again.train, &again.test) == (&data.kind, &data.train, &data.test));
    println!("{}: {} and {} samples", data.name, data.train.n_samples(), data.test.n_samples());
    (data.train, data.test)
}

/// Pictures to train on and held-out ones, as many of each class.
fn pictures_had_whole(set: &str, n_train: usize) {
    let (train, test) = had_whole(set, "");
    assert_eq!((train.n_samples(), test.n_samples()), (n_train, 10_000));
    let Samples::Images(images) = train else { panic!("no pictures") };
    let of_class = |class| images.labels.iter().filter(|&&label| label == class).count();
    assert!((0..10).map(of_class).min() >= Some(5000));
}

#[test]
#[ignore = "it fetches 31 MB, unless Debian's package is installed"]
fn fashion_mnist_is_had_whole() {
    pictures_had_whole("fashion-mnist", 60_000);
}

#[test]
#[ignore = "it fetches 12 MB"]
fn mnist_is_had_whole() {
    pictures_had_whole("mnist", 60_000);
}

#[test]
#[ignore = "it fetches 170 MB"]
fn cifar_10_is_had_whole() {
    pictures_had_whole("cifar-10", 50_000);
}

#[test]
#[ignore = "it fetches 2 MB"]
fn movielens_is_had_whole() {
    let (train, test) =
        had_whole("movielens-100k", "[model]\nkind = { matrix-factorization = { factors = 4 } }\n");
    assert_eq!((train.n_samples(), test.n_samples()), (90_000, 10_000));
    let (Samples::Ratings(train), Samples::Ratings(test)) = (train, test) else { panic!("no ratings") };
    let all = |of: fn(&Ratings) -> &Vec<u32>| of(&train).iter().chain(of(&test)).max().copied();
    assert_eq!((all(|part| &part.users), all(|part| &part.items)), (Some(942), Some(1681)));
    assert!(train.ratings.iter().all(|rating| (1.0..=5.0).contains(rating)));
}

#[test]
#[ignore = "it fetches 4 MB"]
fn books_are_had_whole() {
    let sections = "[model]\nkind = { gpt = { width = 32, layers = 1, heads = 2 } }\n\
        [data.text]\nvocabulary = 2000\nsequence_tokens = 32\n";
    let (train, test) = had_whole("books", sections);
    assert!(train.n_samples() > 60_000 && test.n_samples() == 512, "{}", train.n_samples());
}
