//! Any bytes inside of the envelopes of a journal.

use barnraise_fuzz::{fuzz, value};

use super::*;

#[test]
fn journal_lines() {
    fuzz!("journal_lines", |input| {
        let Some((epoch, payload)) = value::<(u8, &[u8])>(input) else { return };
        let epoch = u64::from(epoch);
        let entry = Bytes::from(sealed::seal(ENTRY, payload));
        if let Ok(entry) = decode_entry(&entry, epoch) {
            assert!(entry.offer.epoch <= epoch && entry.payload.len() <= payload.len());
            let sealed = encode_entry(&entry).unwrap();
            let again = decode_entry(&Bytes::from(sealed), epoch).unwrap();
            // A NaN is not what it is.
            assert_eq!(format!("{again:?}"), format!("{entry:?}"));
        }
        if let Ok(commit) = decode_commit(&sealed::seal(COMMIT, payload), epoch) {
            let again = decode_commit(&sealed::seal_parts(COMMIT, &commit, &[]).unwrap(), epoch).unwrap();
            assert_eq!(format!("{again:?}"), format!("{commit:?}"));
        }
    });
}
