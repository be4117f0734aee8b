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

fn link(kind: EntryType, name: &[u8], target: &[u8]) -> tar::Header {
    let mut header = header(kind, name, 0);
    header.as_old_mut().linkname[..target.len()].copy_from_slice(target);
    header.set_cksum();
    header
}

#[test]
fn long_names_of_both_kinds_are_read_and_symbolic_links_are_no_files() {
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
    let listed = list(file.path()).unwrap();
    let want = ["x/1.png".to_owned(), long.clone(), format!("{long}2"), "x/3.png".to_owned()];
    assert_eq!(listed.files, want.into_iter().zip(0_usize..).collect::<Vec<_>>());
    assert_eq!(listed.links, [("x/2.png".to_owned(), UnusableLink::Symbolic { target: String::new() })]);
    let mut read = Vec::new();
    contents(
        file.path(),
        |number| number != 0,
        |number, content| {
            read.push((number, content.unwrap()));
        },
    )
    .unwrap();
    assert_eq!(read, [(1, b"two".to_vec()), (2, b"three".to_vec()), (3, b"four".to_vec())]);
}

#[test]
fn a_hard_link_has_the_content_that_its_name_has_there() {
    let long = format!("x/{}.png", "b".repeat(150));
    // The length before it counts itself.
    let posix = format!("{} linkpath={long}\n", 3 + 10 + long.len() + 1);
    let mut archive = tar::Builder::new(Vec::new());
    let entries: [(tar::Header, &[u8]); 10] = [
        (header(EntryType::Regular, b"./x/1.png", 3), b"one"),
        (link(EntryType::Link, b"x/2.png", b"x/1.png"), b""),
        (header(EntryType::Regular, b"x/1.png", 3), b"two"),
        (link(EntryType::Link, b"x/3.png", b"x/2.png"), b""),
        (link(EntryType::Link, b"x/4.png", b"x/5.png"), b""),
        (header(EntryType::GNULongName, b"", long.len() as u64), long.as_bytes()),
        (header(EntryType::Regular, b"cut", 5), b"three"),
        (header(EntryType::XHeader, b"PaxHeaders", posix.len() as u64), posix.as_bytes()),
        (link(EntryType::Link, b"x/6.png", b"cut"), b""),
        (link(EntryType::Link, b"x/7.png", b"x/1.png"), b""),
    ];
    for (header, content) in entries {
        archive.append(&header, content).unwrap();
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), archive.into_inner().unwrap()).unwrap();
    let listed = list(file.path()).unwrap();
    let files: Vec<(&str, usize)> =
        listed.files.iter().map(|(name, content)| (name.as_str(), *content)).collect();
    let want = [
        ("./x/1.png", 0),
        ("x/2.png", 0),
        ("x/1.png", 1),
        ("x/3.png", 0),
        (long.as_str(), 2),
        ("x/6.png", 2),
        ("x/7.png", 1),
    ];
    assert_eq!(files, want);
    assert_eq!(
        listed.links,
        [("x/4.png".to_owned(), UnusableLink::Missing { target: "x/5.png".to_owned() })]
    );
}

#[test]
fn names_and_headers_that_are_too_long_are_refused() {
    let long = vec![b'a'; 4 * NAME_BYTES_MAX];
    let file = tar_file(&[(EntryType::GNULongName, b"", &long), (EntryType::Regular, b"x", b"")]);
    let error = list(file.path()).unwrap_err();
    assert!(matches!(&error, PictureArchiveError::Name { begin } if begin.len() == 40), "{error}");
    let long = vec![b'a'; EXTENSIONS_BYTES_MAX as usize + 1];
    let file = tar_file(&[(EntryType::XHeader, b"", &long), (EntryType::Regular, b"x", b"")]);
    assert!(list(file.path()).unwrap_err().to_string().contains("header is too long"));
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
