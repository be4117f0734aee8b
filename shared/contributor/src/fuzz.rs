//! Fuzzes the decoder of the cached model.

use barnraise_fuzz::{fuzz, value};
use barnraise_learning::ParameterLayout;
use barnraise_protocol::Sha256Hash;
use barnraise_protocol::framing;
use barnraise_protocol::pieces::Pieces;
use barnraise_protocol::run::RunDescription;

use crate::kit::model_cache;

/// A valid header around any bytes: an attacker with access to the cache can change the hash as well.
fn with_hash(description: &[u8], values: &[u8]) -> Option<Vec<u8>> {
    let run: RunDescription = framing::decode_payload(description).ok()?;
    let header = (run, 7_u64, Sha256Hash::of(b"state"), Sha256Hash::of(values));
    let mut bytes = framing::encode(&header, usize::MAX).ok()?;
    bytes.extend_from_slice(values);
    Some(bytes)
}

#[test]
fn kept_model() {
    fuzz!("kept_model", |input| {
        let Some((n_values, bytes)) = value::<(u8, &[u8])>(input) else { return };
        let (description, values) = bytes.split_at(bytes.len() - bytes.len().min(n_values.into()));
        let made = with_hash(description, values);
        for bytes in [bytes].into_iter().chain(made.as_deref()) {
            let Some((run, state)) = model_cache::decode(bytes.into()) else { continue };
            let layout = ParameterLayout::of_run(&run).unwrap();
            assert_eq!(state.n_values(), layout.n_parameters());
            assert!(state.values().iter().all(|value| value.is_finite()));
            let mut again = Pieces::default();
            model_cache::encode(&run, &state).unwrap().for_each(|piece| again.push(&piece));
            let again = model_cache::decode(again).unwrap();
            assert_eq!(again.1, state);
            assert_eq!(format!("{:?}", again.0), format!("{run:?}"));
        }
    });
}
