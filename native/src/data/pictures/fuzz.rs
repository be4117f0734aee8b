//! Any bytes as an archive of pictures.

use std::collections::BTreeSet;

use barnraise_fuzz::fuzz;

use super::archive::{contents, list};

#[test]
fn picture_archive() {
    fuzz!("picture_archive", |bytes| {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        let Ok(listed) = list(file.path()) else { return };
        let wanted: BTreeSet<usize> = listed.files.iter().map(|(_, content)| *content).collect();
        let mut n_read = 0;
        let ended = contents(file.path(), |content| wanted.contains(&content), |_, _| n_read += 1);
        assert!(ended.is_err() || n_read == wanted.len());
    });
}
