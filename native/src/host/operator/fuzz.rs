//! Any bytes as the commands of an operator that last.

use barnraise_fuzz::fuzz;
use barnraise_protocol::sealed;

use super::state::{OPERATOR_STATE, OperatorState};

#[test]
fn operators_words() {
    fuzz!("operators_words", |payload| {
        let sealed = sealed::seal(OPERATOR_STATE, payload);
        let Ok((kept, _)) = sealed::open_parts::<OperatorState>(OPERATOR_STATE, &sealed) else { return };
        let again = sealed::seal_parts(OPERATOR_STATE, &kept, &[]).unwrap();
        let (again, _) = sealed::open_parts::<OperatorState>(OPERATOR_STATE, &again).unwrap();
        // A NaN is not what it is.
        assert_eq!(format!("{again:?}"), format!("{kept:?}"));
    });
}
