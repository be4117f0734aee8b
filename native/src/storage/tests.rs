#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

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
    assert_eq!((is_in_use(folder.path()), is_in_use(folder.path())), (Some(false), Some(false)));
    Storage::open(folder.path()).unwrap();
}

#[test]
fn unfinished_uploads_are_swept_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(folder.path().join("journal/1")).unwrap();
    for name in ["journal/1/00.grad#1", "x.ckpt#12"] {
        std::fs::write(folder.path().join(name), b"half").unwrap();
    }
    for name in ["journal/1/00.grad", "a#b", "c#"] {
        std::fs::write(folder.path().join(name), b"whole").unwrap();
    }
    let _storage = Storage::open(folder.path()).unwrap();
    let left: Vec<bool> = ["journal/1/00.grad#1", "x.ckpt#12", "journal/1/00.grad", "a#b", "c#"]
        .map(|name| folder.path().join(name).exists())
        .into();
    assert_eq!(left, [false, false, true, true, true]);
}
