//! A model as a file that other programs read: safetensors, with the tensors of the layout under their names.
//!
//! Header and values are made apart, so that a model of any size can be passed on in pieces; a file is read back whole,
//! and nothing in it is used before it was compared with the layout. Opens no file.

use std::collections::BTreeMap;

use safetensors::tensor::TensorInfo;
use safetensors::{Dtype, SafeTensorError, SafeTensors};
use serde::{Serialize, Serializer};

use crate::parameters::{ParameterLayout, ParameterSegment};

/// Longest header, its length included, in bytes. A model of this crate has some hundreds of tensors at most.
pub const HEADER_BYTES_MAX: usize = 1024 * 1024;
/// Of each value: f32, little-endian.
pub const VALUE_BYTES: usize = 4;
/// Values begin at a multiple of this.
const ALIGNMENT: usize = 8;

/// What a file holds.
#[derive(Debug, Clone, PartialEq)]
pub struct TensorFile {
    /// `[n_parameters]`, finite, in the order of the layout.
    pub parameters: Vec<f32>,
    /// The file's metadata, by name.
    pub notes: BTreeMap<String, String>,
}

/// Why a file cannot be written, or is not the model that is wanted.
#[derive(Debug, thiserror::Error)]
pub enum TensorFileError {
    /// No safetensors file, or a damaged one.
    #[error("not a safetensors file: {0}")]
    Format(#[from] SafeTensorError),
    /// Does not happen.
    #[error("the header cannot be written: {0}")]
    Encode(#[from] serde_json::Error),
    /// Notes without end.
    #[error("the header takes {got} bytes, at most {HEADER_BYTES_MAX} are allowed")]
    Header {
        /// Its length.
        got: usize,
    },
    /// Of another model.
    #[error("the file has {got} tensors, the model has {want}")]
    Count {
        /// Of the layout.
        want: usize,
        /// In the file.
        got: usize,
    },
    /// Of another model.
    #[error("the file has no tensor `{name}`")]
    Missing {
        /// In the layout.
        name: String,
    },
    /// Of another model, or in another precision.
    #[error("tensor `{name}` of the file is {got}, {want} is wanted")]
    Tensor {
        /// In both.
        name: String,
        /// Type and shape in the layout.
        want: String,
        /// In the file.
        got: String,
    },
    /// A NaN or an infinity.
    #[error("value {index} of the file is not finite")]
    NotFinite {
        /// Position in the flat vector.
        index: usize,
    },
}

/// A value of the header. The library's own header keeps notes in a hash map: a file would be other bytes each time.
#[derive(Serialize)]
#[serde(untagged)]
enum HeaderEntry<'a> {
    Notes(&'a BTreeMap<String, String>),
    Tensor(TensorInfo),
}

/// Header of a file, the same bytes for the same layout and notes: its length, names and shapes of the tensors, notes. [`value_bytes`] of all values follow it.
///
/// # Errors
/// Notes that are too long.
pub fn header(
    layout: &ParameterLayout,
    notes: &BTreeMap<String, String>,
) -> Result<Vec<u8>, TensorFileError> {
    let tensor = |segment: &ParameterSegment| {
        let start = segment.offset * VALUE_BYTES;
        let data_offsets = (start, start + segment.len * VALUE_BYTES);
        TensorInfo { dtype: Dtype::F32, shape: segment.shape.clone(), data_offsets }
    };
    let tensors = layout.segments().iter().map(|s| (s.name.as_str(), HeaderEntry::Tensor(tensor(s))));
    let mut json = Vec::new();
    serde_json::Serializer::new(&mut json)
        .collect_map([("__metadata__", HeaderEntry::Notes(notes))].into_iter().chain(tensors))?;
    json.resize(json.len().next_multiple_of(ALIGNMENT), b' ');
    let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
    bytes.append(&mut json);
    match bytes.len() {
        0..=HEADER_BYTES_MAX => Ok(bytes),
        got => Err(TensorFileError::Header { got }),
    }
}

/// Values as they stand in a file.
pub fn value_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// Longest file of a model of this layout, in bytes; a reader refuses more.
pub fn file_bytes_max(layout: &ParameterLayout) -> usize {
    layout.n_parameters() * VALUE_BYTES + HEADER_BYTES_MAX
}

/// Reads a file that must be of a model of this layout.
///
/// # Errors
/// The first thing that is wrong with it.
pub fn read(bytes: &[u8], layout: &ParameterLayout) -> Result<TensorFile, TensorFileError> {
    let file = SafeTensors::deserialize(bytes)?;
    let (_, metadata) = SafeTensors::read_metadata(bytes)?;
    let (want, got) = (layout.segments().len(), file.len());
    if want != got {
        return Err(TensorFileError::Count { want, got });
    }
    let mut parameters = Vec::with_capacity(layout.n_parameters());
    for segment in layout.segments() {
        let name = || segment.name.clone();
        let tensor = file.tensor(&segment.name).map_err(|_| TensorFileError::Missing { name: name() })?;
        if tensor.dtype() != Dtype::F32 || tensor.shape() != segment.shape {
            let want = format!("{:?} {:?}", Dtype::F32, segment.shape);
            let got = format!("{:?} {:?}", tensor.dtype(), tensor.shape());
            return Err(TensorFileError::Tensor { name: name(), want, got });
        }
        let values = tensor.data().as_chunks::<VALUE_BYTES>().0;
        parameters.extend(values.iter().map(|value| f32::from_le_bytes(*value)));
    }
    if let Some(index) = parameters.iter().position(|value: &f32| !value.is_finite()) {
        return Err(TensorFileError::NotFinite { index });
    }
    let notes = metadata.metadata().iter().flatten();
    let notes = notes.map(|(name, value)| (name.clone(), value.clone())).collect();
    Ok(TensorFile { parameters, notes })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use barnraise_protocol::dataset::{ImageShape, TokenShape};
    use barnraise_protocol::run::Preset;
    use barnraise_protocol::run::model::presets::Albert;

    use super::*;
    use crate::DataShape;

    fn layout(kind: &Preset) -> ParameterLayout {
        let data = match kind {
            Preset::Albert(_) => DataShape::Tokens(TokenShape { length: 16, vocabulary: 50, mask: Some(1) }),
            _ => {
                DataShape::Images { shape: ImageShape { height: 12, width: 12, channels: 1 }, n_classes: 10 }
            }
        };
        ParameterLayout::of(&kind.model(7), data).unwrap()
    }

    fn notes() -> BTreeMap<String, String> {
        [("run", "a \"quoted\" run"), ("epoch", "7")].map(|(k, v)| (k.to_owned(), v.to_owned())).into()
    }

    fn file(layout: &ParameterLayout, parameters: &[f32]) -> Vec<u8> {
        let mut bytes = header(layout, &notes()).unwrap();
        // In pieces, as it is passed on.
        parameters.chunks(1000).for_each(|values| bytes.extend(value_bytes(values)));
        bytes
    }

    #[test]
    fn every_kind_of_model_comes_back_and_others_can_read_it() {
        let albert = Preset::Albert(Albert { embedding: 8, hidden: 16, heads: 2, inner: 32, layers: 2 });
        for kind in &[Preset::LeNet, Preset::Mlp { hidden: vec![5, 3] }, albert] {
            let layout = layout(kind);
            let parameters = layout.initial_parameters(3);
            let bytes = file(&layout, &parameters);
            assert!(bytes.len() <= file_bytes_max(&layout));
            let read_back = read(&bytes, &layout).unwrap();
            assert!(read_back.parameters == parameters, "other values");
            assert_eq!(read_back.notes, notes());
            // As any other program looks at it: by name.
            let others = SafeTensors::deserialize(&bytes).unwrap();
            for segment in layout.segments() {
                let tensor = others.tensor(&segment.name).unwrap();
                assert_eq!(tensor.shape(), segment.shape);
                assert!(tensor.data() == value_bytes(&parameters[segment.range()]), "{}", segment.name);
            }
        }
    }

    /// As it is offered for download, byte by byte.
    #[test]
    fn golden_bytes() {
        let layout = layout_of_one();
        let bytes = file(&layout, &[1.0, -2.0]);
        assert_eq!(
            bytes,
            [&GOLDEN.len().to_le_bytes(), GOLDEN.as_bytes(), &value_bytes(&[1.0, -2.0])].concat()
        );
        assert_eq!(read(&bytes, &layout).unwrap().parameters, [1.0, -2.0]);
    }

    /// A weight and a bias.
    fn layout_of_one() -> ParameterLayout {
        let shape = ImageShape { height: 1, width: 1, channels: 1 };
        let spec = Preset::Mlp { hidden: vec![] }.model(7);
        ParameterLayout::of(&spec, DataShape::Images { shape, n_classes: 1 }).unwrap()
    }

    const GOLDEN: &str = r#"{"__metadata__":{"epoch":"7","run":"a \"quoted\" run"},"fc1.weight":{"dtype":"F32","shape":[1,1],"data_offsets":[0,4]},"fc1.bias":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}     "#;

    #[test]
    fn what_is_no_such_model_is_refused_with_the_reason() {
        let lenet = layout(&Preset::LeNet);
        let bytes = file(&lenet, &lenet.initial_parameters(3));
        let error = |bytes: &[u8], layout| read(bytes, layout).unwrap_err().to_string();
        assert!(error(&bytes[..bytes.len() - 1], &lenet).starts_with("not a safetensors file"));
        assert!(error(b"", &lenet).starts_with("not a safetensors file"));
        let deep = layout(&Preset::Mlp { hidden: vec![5, 3, 4, 2] });
        assert!(error(&bytes, &deep).starts_with("tensor `fc1.weight` of the file is F32 ["));
        let of_deep = file(&deep, &deep.initial_parameters(3));
        assert_eq!(error(&of_deep, &lenet), "the file has no tensor `conv1.weight`");
        let shallow = layout(&Preset::Mlp { hidden: vec![5] });
        assert_eq!(error(&bytes, &shallow), "the file has 10 tensors, the model has 4");
        let [one, other] = [vec![5, 3], vec![5, 4]].map(|hidden| layout(&Preset::Mlp { hidden }));
        let bytes = file(&one, &one.initial_parameters(3));
        let said = error(&bytes, &other);
        assert!(
            said.contains("`fc2.weight`") && said.contains("[5, 3]") && said.contains("[5, 4]"),
            "{said}"
        );
        let mut parameters = one.initial_parameters(3);
        parameters[9] = f32::NAN;
        assert_eq!(error(&file(&one, &parameters), &one), "value 9 of the file is not finite");
    }

    #[test]
    fn no_bit_that_flips_panics_and_notes_have_an_end() {
        let layout = layout(&Preset::Mlp { hidden: vec![2] });
        let bytes = file(&layout, &layout.initial_parameters(3));
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1 << (at % 8);
            let _ = read(&changed, &layout);
        }
        let long = [("note".to_owned(), "x".repeat(HEADER_BYTES_MAX))].into();
        assert!(matches!(header(&layout, &long), Err(TensorFileError::Header { .. })));
    }
}
