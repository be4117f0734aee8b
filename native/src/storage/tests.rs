#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::simulated::SimulatedDisk;
use super::*;

#[tokio::test]
async fn an_object_comes_back_and_a_missing_one_is_none() {
    let folder = tempfile::tempdir().unwrap();
    let storage = Storage::open(folder.path()).unwrap();
    let path = ObjectPath::from("a/b/c");
    assert!(storage.get(&path, 10).await.unwrap().is_none());
    storage.put(&path, b"hello".to_vec()).await.unwrap();
    assert_eq!(storage.get(&path, 5).await.unwrap().unwrap(), "hello");
    let error = storage.get(&path, 4).await.unwrap_err();
    assert!(matches!(error, StorageError::TooLarge { got: 5, max: 4, .. }), "{error}");
    storage.delete(&path).await.unwrap();
    storage.delete(&path).await.unwrap();
    assert!(storage.get(&path, 5).await.unwrap().is_none());
}

#[test]
fn a_second_user_of_the_folder_is_refused_until_the_first_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(is_in_use(folder.path()), None, "nobody was ever here");
    let first = Storage::open(folder.path()).unwrap();
    assert_eq!(is_in_use(folder.path()), Some(true));
    assert!(matches!(Storage::open(folder.path()), Err(StorageError::Locked { .. })));
    let clone = first.clone();
    drop(first);
    assert!(matches!(Storage::open(folder.path()), Err(StorageError::Locked { .. })));
    drop(clone);
    // A process that another test starts has the files of this one for a moment, until it is another program.
    while is_in_use(folder.path()) == Some(true) {
        std::thread::yield_now();
    }
    assert_eq!((is_in_use(folder.path()), is_in_use(folder.path())), (Some(false), Some(false)));
    Storage::open(folder.path()).unwrap();
}

#[test]
fn unfinished_uploads_are_swept_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(folder.path().join("journal/1")).unwrap();
    for name in ["journal/1/00.grad#10000000001", "x.ckpt#12340000000012"] {
        std::fs::write(folder.path().join(name), b"half").unwrap();
    }
    for name in ["journal/1/00.grad", "a#b", "c#", "invoice #12"] {
        std::fs::write(folder.path().join(name), b"whole").unwrap();
    }
    let _storage = Storage::open(folder.path()).unwrap();
    let left: Vec<bool> = [
        "journal/1/00.grad#10000000001",
        "x.ckpt#12340000000012",
        "journal/1/00.grad",
        "a#b",
        "c#",
        "invoice #12",
    ]
    .map(|name| folder.path().join(name).exists())
    .into();
    assert_eq!(left, [false, false, true, true, true, true]);
}

fn on(disk: &SimulatedDisk) -> Storage {
    Storage::on(Arc::new(disk.clone()))
}

async fn read(chunks: Chunks) -> Vec<Bytes> {
    chunks.try_collect().await.unwrap()
}

#[tokio::test]
async fn a_store_of_files_and_one_of_objects_answer_alike() {
    for storage in [on(&SimulatedDisk::new(1)), Storage::in_memory()] {
        let [path, deeper, missing] = ["a/b", "a/d/e", "a/c"].map(ObjectPath::from);
        storage.put(&path, b"hello".to_vec()).await.unwrap();
        storage.put(&deeper, b"deeper".to_vec()).await.unwrap();
        assert_eq!(storage.get(&path, 5).await.unwrap().unwrap(), "hello");
        let error = storage.get(&path, 4).await.unwrap_err();
        assert!(matches!(error, StorageError::TooLarge { got: 5, max: 4, .. }), "{error}");
        for (n_bytes, want) in [(1, "h"), (5, "hello"), (6, "hello")] {
            assert_eq!(storage.get_start(&path, n_bytes).await.unwrap().unwrap(), want);
        }
        assert_eq!(storage.get_range(&path, 1..3).await.unwrap(), "el");
        let (n_bytes, chunks) = storage.open_object(&path, 5).await.unwrap().unwrap();
        assert_eq!((n_bytes, read(chunks).await.concat()), (5, b"hello".to_vec()));
        assert!(matches!(storage.open_object(&path, 4).await, Err(StorageError::TooLarge { .. })));
        // What is missing is none, but where a part of it was wanted.
        assert!(storage.get(&missing, 5).await.unwrap().is_none());
        assert!(storage.get_start(&missing, 5).await.unwrap().is_none());
        assert!(storage.open_object(&missing, 5).await.unwrap().is_none());
        assert!(storage.get_range(&missing, 1..3).await.is_err());

        let folder = ObjectPath::from("a");
        let listed = storage.list(&folder).await.unwrap();
        let listed: Vec<_> = listed.into_iter().map(|object| (object.location, object.size)).collect();
        assert_eq!(listed, [(path.clone(), 5), (deeper, 6)]);
        let level = storage.list_level(&folder).await.unwrap();
        assert_eq!(level, (vec![path.clone()], vec![ObjectPath::from("a/d")]));
        storage.delete(&missing).await.unwrap();
        storage.delete(&path).await.unwrap();
        assert_eq!(storage.list(&folder).await.unwrap().len(), 1);
        storage.delete_all(&folder).await.unwrap();
        assert_eq!(storage.list(&folder).await.unwrap(), []);
        let none = ObjectPath::from("none");
        storage.delete_all(&none).await.unwrap();
        assert_eq!(storage.list(&none).await.unwrap(), []);
        assert_eq!(storage.list_level(&none).await.unwrap(), (vec![], vec![]));
    }
}

#[tokio::test]
async fn a_large_file_is_read_in_pieces_and_no_further_than_was_said() {
    let (storage, path) = (on(&SimulatedDisk::new(1)), ObjectPath::from("large"));
    let whole: Vec<u8> = (0..PIECE_BYTES + 10).map(|idx| (idx / 1000) as u8).collect();
    storage.put(&path, whole.clone()).await.unwrap();
    let (n_bytes, chunks) = storage.open_object(&path, PIECE_BYTES + 10).await.unwrap().unwrap();
    // One that is longer takes its place meanwhile.
    storage.put(&path, [&whole[..], b"and more"].concat()).await.unwrap();
    let pieces = read(chunks).await;
    assert_eq!(n_bytes, PIECE_BYTES + 10);
    assert_eq!(pieces.iter().map(Bytes::len).collect::<Vec<_>>(), [PIECE_BYTES as usize, 10]);
    assert!(pieces.concat() == whole);
}

#[tokio::test]
async fn an_unfinished_upload_is_no_object_and_keeps_its_folder() {
    let (disk, folder) = (SimulatedDisk::new(1), ObjectPath::from("a"));
    let (storage, object, upload) = (on(&disk), ObjectPath::from("a/b"), PathBuf::from("a/c#10000000001"));
    storage.put(&object, b"hello".to_vec()).await.unwrap();
    disk.write_new(&upload, &[]).unwrap();
    assert_eq!(storage.list(&folder).await.unwrap().len(), 1);
    assert_eq!(storage.list_level(&folder).await.unwrap(), (vec![object], vec![]));
    storage.delete_all(&folder).await.unwrap();
    assert_eq!(disk.names(), std::slice::from_ref(&upload));
    disk.remove(&upload).unwrap();
    // Another error is no folder that something is left in.
    disk.fails_one_in(1);
    assert!(storage.delete_all(&folder).await.is_err());
    disk.fails_one_in(0);
    storage.delete_all(&folder).await.unwrap();
    assert_eq!(disk.folder_names(), [PathBuf::new()]);
}

#[tokio::test]
async fn a_disk_that_fails_has_not_lost_the_object() {
    let (disk, path) = (SimulatedDisk::new(1), ObjectPath::from("a/b"));
    let storage = on(&disk);
    storage.put(&path, b"hello".to_vec()).await.unwrap();
    disk.dies_after(0);
    assert!(storage.get(&path, 5).await.is_err());
    assert!(storage.get_start(&path, 5).await.is_err());
    assert!(storage.list(&ObjectPath::from("a")).await.is_err());
    assert!(storage.delete(&path).await.is_err());
}

#[tokio::test]
async fn what_does_not_fit_leaves_nothing_and_says_that_the_disk_is_full() {
    let disk = SimulatedDisk::new(1);
    let storage = on(&disk);
    disk.holds(5);
    assert_eq!(storage.n_bytes_free(), Some(5));
    for path in ["b", "a/b"].map(ObjectPath::from) {
        let error = storage.put(&path, b"longer".to_vec()).await.unwrap_err();
        assert!(error.is_full(), "{error}");
        assert!(disk.names().is_empty(), "{:?}", disk.names());
        storage.put(&path, b"fits".to_vec()).await.unwrap();
        assert_eq!(storage.n_bytes_free(), Some(1));
        storage.delete(&path).await.unwrap();
    }
    assert_eq!(Storage::in_memory().n_bytes_free(), None);
}

#[test]
fn a_disk_is_full_where_the_system_says_so() {
    use io::ErrorKind::{FileTooLarge, NotFound, Other, QuotaExceeded, StorageFull};
    for (kind, want) in
        [(StorageFull, true), (QuotaExceeded, true), (FileTooLarge, true), (NotFound, false), (Other, false)]
    {
        let what = "write it";
        let of_file = StorageError::File { path: "a".into(), what, source: kind.into() };
        let of_folder = StorageError::Folder { folder: "a".into(), what, source: kind.into() };
        assert_eq!((of_file.is_full(), of_folder.is_full()), (want, want), "{kind}");
    }
    assert!(!StorageError::Locked { folder: "a".into() }.is_full());
    assert!(!StorageError::TooLarge { path: "a".into(), got: 2, max: 1 }.is_full());
}

/// The disk of the machine, and the one that most tests have in its place.
#[test]
fn both_disks_do_the_same() {
    use io::ErrorKind::{AlreadyExists, DirectoryNotEmpty, NotFound};
    let folder = tempfile::tempdir().unwrap();
    let disks: [Box<dyn Files>; 2] = [Box::new(Disk::new(folder.path())), Box::new(SimulatedDisk::new(1))];
    for disk in disks {
        let [a, file, renamed, nowhere] = ["a", "a/b", "a/c", "d/e"].map(Path::new);
        let kind = |done: io::Result<()>| done.unwrap_err().kind();
        disk.create_folder(a).unwrap();
        disk.create_folder(a).unwrap();
        assert_eq!(kind(disk.create_folder(nowhere)), NotFound);
        assert_eq!(kind(disk.write_new(nowhere, &[])), NotFound);
        disk.write_new(file, &[Bytes::from_static(b"hel"), Bytes::from_static(b"lo")]).unwrap();
        assert_eq!(kind(disk.write_new(file, &[])), AlreadyExists);
        disk.sync(file).unwrap();
        assert_eq!(kind(disk.sync(nowhere)), NotFound);
        disk.sync_folder(a).unwrap();
        if cfg!(unix) {
            assert_eq!(kind(disk.sync_folder(Path::new("d"))), NotFound);
            assert!(disk.n_bytes_free().unwrap() > 1);
        }
        assert_eq!(disk.n_bytes(file).unwrap(), 5);
        for (from, n_bytes_max, want) in [(0, 5, "hello"), (0, 6, "hello"), (1, 3, "ell"), (5, 1, "")] {
            assert_eq!(disk.read(file, from, n_bytes_max).unwrap(), want);
        }
        let listed = |folder: &str| -> Vec<_> {
            let listed = disk.list(Path::new(folder)).unwrap().into_iter();
            listed.map(|entry| (entry.name, entry.is_folder)).collect()
        };
        assert_eq!((listed(""), listed("a")), (vec![("a".to_owned(), true)], vec![("b".to_owned(), false)]));
        assert_eq!(disk.list(a).unwrap()[0].n_bytes, 5);
        assert_eq!(kind(disk.remove_folder(a)), DirectoryNotEmpty);
        disk.rename(file, renamed).unwrap();
        assert_eq!(kind(disk.remove(file)), NotFound);
        disk.remove(renamed).unwrap();
        disk.remove_folder(a).unwrap();
        assert_eq!(kind(disk.remove_folder(a)), NotFound);
    }
}

/// A file that goes between the reading of a folder and the look at it.
#[cfg(unix)]
#[test]
fn what_goes_while_a_folder_is_listed_is_left_out() {
    const N_FILES: usize = 400;
    let folder = tempfile::tempdir().unwrap();
    let disk = Disk::new(folder.path());
    disk.write_new(Path::new("stays"), &[]).unwrap();
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                let names = || (0..N_FILES).map(|number| folder.path().join(number.to_string()));
                names().for_each(|file| std::fs::write(file, b"").unwrap());
                names().for_each(|file| std::fs::remove_file(file).unwrap());
            }
        });
        let listed: Vec<_> = (0..100).map(|_| disk.list(Path::new(""))).collect();
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        for listed in listed {
            assert!(listed.unwrap().iter().any(|entry| entry.name == "stays"));
        }
    });
    assert_eq!(disk.list(Path::new("")).unwrap().len(), 1);
}
