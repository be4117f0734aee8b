//! Any bytes on the disk: what is inside of an envelope is anything, because who can write there can seal it.

use barnraise_fuzz::fuzz;
use barnraise_protocol::sealed::{self, ObjectKind};

use super::{bound, checkpoint};

const KIND: ObjectKind = ObjectKind { name: *b"fuzz", what: "trial", version: 2 };

#[test]
fn sealed_envelope() {
    fuzz!("sealed_envelope", |bytes| {
        let _ = sealed::check_version(KIND, bytes);
        let _ = sealed::peek_header::<(String, u64)>(KIND, bytes);
        if let Ok(payload) = sealed::open(KIND, bytes) {
            assert_eq!(sealed::seal(KIND, payload), bytes);
        }
        let sealed = sealed::seal(KIND, bytes);
        assert_eq!(sealed::open(KIND, &sealed), Ok(bytes));
        if let Ok((header, raw)) = sealed::open_parts::<(String, u64)>(KIND, &sealed) {
            assert!(raw.len() <= bytes.len());
            assert_eq!(sealed::peek_header::<(String, u64)>(KIND, &sealed).unwrap().0, header);
            let again = sealed::seal_parts(KIND, &header, &[raw]).unwrap();
            assert_eq!(sealed::open_parts::<(String, u64)>(KIND, &again).unwrap(), (header, raw));
        }
    });
}

#[test]
fn checkpoint_file() {
    fuzz!("checkpoint_file", |payload| {
        let Ok(checkpoint) = checkpoint::decode(&sealed::seal(checkpoint::KIND, payload)) else { return };
        assert!(4 * checkpoint.parameters.len() + checkpoint.optimizer_state.len() <= payload.len());
        let bytes = checkpoint::encode(&checkpoint).unwrap();
        // NaNs are compared by their bits.
        assert_eq!(checkpoint::encode(&checkpoint::decode(&bytes).unwrap()).unwrap(), bytes);
    });
}

#[test]
fn bound_values() {
    fuzz!("bound_values", |payload| {
        let sealed = sealed::seal(bound::KIND, payload);
        let Ok((values, _)) = sealed::open_parts::<bound::BoundValues>(bound::KIND, &sealed) else { return };
        let again = sealed::seal_parts(bound::KIND, &values, &[]).unwrap();
        assert_eq!(sealed::open_parts::<bound::BoundValues>(bound::KIND, &again).unwrap().0, values);
    });
}
