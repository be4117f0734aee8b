//! Any bytes as an archive of pictures.

use barnraise_fuzz::fuzz;

use super::archive::{contents, names};

#[test]
fn picture_archive() {
    fuzz!("picture_archive", |bytes| {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        let Ok(listed) = names(file.path()) else { return };
        let mut n_read = 0;
        let ended =
            contents(file.path(), |name| listed.iter().any(|listed| listed == name), |_, _| n_read += 1);
        assert!(ended.is_err() || n_read == listed.len());
    });
}
