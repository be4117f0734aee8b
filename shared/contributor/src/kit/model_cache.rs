//! Format of the cached model, for visits on which no backbone can be reached: the run's description, the epoch and
//! the parameters. Pure. Bytes from the cache are trusted no more than those of a peer.

use std::sync::Arc;

use barnraise_protocol::codec::TensorCodec;
use barnraise_protocol::dataset::Samples;
use barnraise_protocol::framing::{self, FrameError, HEADER_BYTES};
use barnraise_protocol::hash::{Hasher, Sha256Hash};
use barnraise_protocol::pieces::Pieces;
use barnraise_protocol::run::{self, RunDescription};
use barnraise_protocol::state::EncodedState;
use barnraise_swarm::activity::Interruption;

/// Longest header: a description, an epoch and two hashes.
const HEADER_BYTES_MAX: usize = run::MESSAGE_BYTES_MAX + 256;

/// Content of the cache, as far as it is wanted and present.
pub(crate) struct OfflineCache {
    pub(crate) model: Option<(RunDescription, EncodedState)>,
    /// Shards of frozen weights of the model, all or none.
    pub(crate) frozen: Vec<Arc<[u8]>>,
    pub(crate) gallery: Option<Arc<Samples>>,
    /// Whether the gallery was looked up.
    pub(crate) wanted_gallery: bool,
    /// Why no backbone could be reached.
    pub(crate) reason: Interruption,
}

/// `[header][parameters as f32, little endian]`, in pieces; the header is the run, the epoch, and the hash of the rest.
pub(crate) fn encode(
    run: &RunDescription,
    state: &EncodedState,
) -> Result<impl Iterator<Item = Vec<u8>>, FrameError> {
    let mut hasher = Hasher::default();
    state.to_le_bytes().for_each(|piece| hasher.update(&piece));
    let header = framing::encode(&(run, state.epoch, state.sha256, hasher.finish()), HEADER_BYTES_MAX)?;
    Ok(std::iter::once(header).chain(state.to_le_bytes()))
}

/// Decodes a cached model; `None` unless a contributor could have received the run and the model from a backbone.
pub fn decode(file: Pieces) -> Option<(RunDescription, EncodedState)> {
    let mut header = [0; HEADER_BYTES];
    file.read(0, &mut header)?;
    let n_bytes = framing::decode_header(header, HEADER_BYTES_MAX).ok()?;
    let mut payload = vec![0; n_bytes];
    file.read(HEADER_BYTES, &mut payload)?;
    let (run, epoch, sha256, of_values): (RunDescription, u64, Sha256Hash, Sha256Hash) =
        framing::decode_payload(&payload).ok()?;
    let layout = crate::description::validate(&run).ok()?;
    let values = file.after(HEADER_BYTES + n_bytes);
    let mut hasher = Hasher::default();
    values.iter().for_each(|piece| hasher.update(piece));
    if hasher.finish() != of_values {
        return None;
    }
    let state = EncodedState::new((epoch, sha256), TensorCodec::F32, layout.n_parameters(), values).ok()?;
    Some((run, state))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use barnraise_protocol::run::Preset;

    use super::*;
    use crate::fixture;

    /// The format in the caches of browsers and peers.
    #[test]
    fn golden_bytes() {
        let model = Preset::Mlp { hidden: vec![] }.model(1);
        let run = RunDescription { model, ..fixture::run() };
        let sha256 = Sha256Hash([5; 32]);
        let values = TensorCodec::F32.encode(&[1.0, -2.0]).unwrap();
        let state = EncodedState::new((300, sha256), TensorCodec::F32, 2, values.as_slice().into()).unwrap();
        let bytes = encode(&run, &state).unwrap().collect::<Vec<_>>().concat();
        assert_eq!(bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>(), GOLDEN);
        assert_eq!(decode(bytes.as_slice().into()), Some((run, state)));
    }

    const GOLDEN: &str = "\
    0105010000017201740170066c696e656172000306706978656c731f000007666c617474656e1d0000036663310201010000\
    0000010000016400010101010161010101070707070707070707070707070707070707070707070707070707070707070701\
    010707070707070707070707070707070707070707070707070707070707070707000000e807000080084080200100000000\
    000000000000000000cdcccc3d00000000000101010101010101010101010101010101010101010101010101010101010101\
    ac020505050505050505050505050505050505050505050505050505050505050505ee4ac73c2bd27756ab82780f27c73a7b\
    c4d3f0bb6acb37e008bc27eccd7e588b0000803f000000c0\
    ";
}
