#![allow(clippy::unwrap_used)]

use super::*;

fn header(kind: EntryType, name: &[u8], n_bytes: u64) -> tar::Header {
    let mut header = tar::Header::new_ustar();
    header.set_entry_type(kind);
    let begin = name.len().min(100);
    header.as_old_mut().name[..begin].copy_from_slice(&name[..begin]);
    header.set_size(n_bytes);
    header.set_cksum();
    header
}

fn tar_file(entries: &[(EntryType, &[u8], &[u8])]) -> tempfile::NamedTempFile {
    let mut archive = tar::Builder::new(Vec::new());
    for (kind, name, content) in entries {
        archive.append(&header(*kind, name, content.len() as u64), *content).unwrap();
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), archive.into_inner().unwrap()).unwrap();
    file
}

#[test]
fn long_names_of_both_kinds_are_read_and_links_are_no_files() {
    let long = format!("{}/1.png", "a".repeat(150));
    // The length before it counts itself.
    let posix = format!("{} path={long}2\n", 3 + 6 + long.len() + 2);
    let file = tar_file(&[
        (EntryType::Regular, b"x/1.png", b"one"),
        (EntryType::GNULongName, b"././@LongLink", format!("{long}\0").as_bytes()),
        (EntryType::Regular, b"cut", b"two"),
        (EntryType::XHeader, b"PaxHeaders", posix.as_bytes()),
        (EntryType::Regular, b"cut", b"three"),
        (EntryType::Symlink, b"x/2.png", b""),
        (EntryType::Directory, b"x/", b""),
        (EntryType::Regular, b"x/3.png", b"four"),
    ]);
    let want = ["x/1.png".to_owned(), long.clone(), format!("{long}2"), "x/3.png".to_owned()];
    assert_eq!(names(file.path()).unwrap(), want);
    let mut read = Vec::new();
    contents(
        file.path(),
        |name| name != "x/1.png",
        |name, content| {
            read.push((name.to_owned(), content.unwrap()));
        },
    )
    .unwrap();
    assert_eq!(read.len(), 3);
    assert_eq!(read[1], (format!("{long}2"), b"three".to_vec()));
}

#[test]
fn names_and_headers_that_are_too_long_are_refused() {
    let long = vec![b'a'; 4 * NAME_BYTES_MAX];
    let file = tar_file(&[(EntryType::GNULongName, b"", &long), (EntryType::Regular, b"x", b"")]);
    let error = names(file.path()).unwrap_err();
    assert!(matches!(&error, PictureArchiveError::Name { begin } if begin.len() == 40), "{error}");
    let long = vec![b'a'; EXTENSIONS_BYTES_MAX as usize + 1];
    let file = tar_file(&[(EntryType::XHeader, b"", &long), (EntryType::Regular, b"x", b"")]);
    assert!(names(file.path()).unwrap_err().to_string().contains("header is too long"));
}

#[test]
fn what_unpacks_to_more_than_the_limit_ends_there() {
    let content = vec![0; 50_000];
    let file =
        tar_file(&[(EntryType::Regular, b"x/1.png", &content), (EntryType::Regular, b"x/2.png", &content)]);
    let walked = |max| walk_tar(file.path(), max, |_, _| {});
    assert!(walked(200_000).is_ok());
    for max in [10_000, 60_000] {
        assert!(matches!(walked(max), Err(PictureArchiveError::Unpacked)));
    }
}
