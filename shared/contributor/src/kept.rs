//! The newest model as it is kept for when no backbone can be reached: what the run is, which epoch, and the
//! parameters. Pure. What is read is trusted no more than what a peer sends.

use barnraise_protocol::Sha256Hash;
use barnraise_protocol::framing::{self, FrameError, HEADER_BYTES};
use barnraise_protocol::run::{self, RunDescription};
use barnraise_protocol::state::State;

/// A description, and what there is beside it.
const HEADER_BYTES_MAX: usize = run::MESSAGE_BYTES_MAX + 256;
/// Bytes of a parameter.
const VALUE_BYTES: usize = size_of::<f32>();

/// `[header][parameters as f32, little endian]`; the header is the run, the epoch, and the hash of the rest.
pub(crate) fn encode(run: &RunDescription, state: &State) -> Result<Vec<u8>, FrameError> {
    let values: Vec<u8> = state.parameters.iter().flat_map(|value| value.to_le_bytes()).collect();
    let header = (run, state.epoch, state.sha256, Sha256Hash::of(&values));
    let mut bytes = framing::encode(&header, HEADER_BYTES_MAX)?;
    bytes.extend_from_slice(&values);
    Ok(bytes)
}

/// The run and the model of bytes that a platform kept, if they still are what a contributor could have got from a
/// backbone.
pub fn decode(bytes: &[u8]) -> Option<(RunDescription, State)> {
    let header = bytes.first_chunk::<HEADER_BYTES>()?;
    let n_bytes = framing::decode_header(*header, HEADER_BYTES_MAX).ok()?;
    let (payload, values) = bytes[HEADER_BYTES..].split_at_checked(n_bytes)?;
    let (run, epoch, sha256, of_values): (RunDescription, u64, Sha256Hash, Sha256Hash) =
        framing::decode_payload(payload).ok()?;
    crate::check_description(&run).ok()?;
    let is_whole = usize::try_from(run.n_parameters).ok()?.checked_mul(VALUE_BYTES)? == values.len();
    if !is_whole || Sha256Hash::of(values) != of_values {
        return None;
    }
    let (chunks, _) = values.as_chunks::<VALUE_BYTES>();
    let parameters: Vec<f32> = chunks.iter().map(|chunk| f32::from_le_bytes(*chunk)).collect();
    let is_finite = parameters.iter().all(|value| value.is_finite());
    is_finite.then_some((run, State { epoch, parameters, sha256 }))
}

#[cfg(test)]
#[path = "../../protocol/tests/fixture/mod.rs"]
mod fixture;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use barnraise_protocol::run::{ModelKind, ModelSpec};

    use super::*;

    /// As browsers and peers keep it, byte by byte.
    #[test]
    fn golden_bytes() {
        let model = ModelSpec { kind: ModelKind::Mlp { hidden: vec![] }, seed: 1 };
        let run = RunDescription { model, n_parameters: 2, ..fixture::run() };
        let sha256 = Sha256Hash([5; 32]);
        let state = State { epoch: 300, parameters: vec![1.0, -2.0], sha256 };
        let bytes = encode(&run, &state).unwrap();
        assert_eq!(bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>(), GOLDEN);
        assert_eq!(decode(&bytes), Some((run, state)));
    }

    const GOLDEN: &str = "\
    01ce000000017201740170000101010101010101010101010101010101010101010101010101010101010101010001028008\
    40e8070100000000000000000000802000016400010101010161010101070707070707070707070707070707070707070707\
    070707070707070707070701010707070707070707070707070707070707070707070707070707070707070707ac02050505\
    0505050505050505050505050505050505050505050505050505050505ee4ac73c2bd27756ab82780f27c73a7bc4d3f0bb6a\
    cb37e008bc27eccd7e588b0000803f000000c0\
    ";
}
