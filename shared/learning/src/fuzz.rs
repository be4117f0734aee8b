//! Fuzz targets: any bytes as a safetensors file; any vocabulary and text.

use std::sync::OnceLock;

use barnraise_fuzz::arbitrary::{self, Arbitrary};
use barnraise_fuzz::{fuzz, value};
use barnraise_protocol::dataset::{ImageShape, SPECIAL_TOKENS};
use barnraise_protocol::run::Preset;

use crate::data_shape::DataShape;
use crate::parameters::ParameterLayout;
use crate::tensor_file;
use crate::unigram::{BLANKS_MAX, Unigram, Vocabulary};

#[test]
fn tensor_file() {
    fuzz!("tensor_file", |bytes| {
        static LAYOUT: OnceLock<ParameterLayout> = OnceLock::new();
        let layout = LAYOUT.get_or_init(|| {
            let shape = ImageShape { height: 2, width: 2, channels: 1 };
            let spec = Preset::Mlp { hidden: vec![2] }.model(7);
            ParameterLayout::of(&spec, DataShape::Images { shape, n_classes: 2 }).unwrap()
        });
        let Ok(file) = tensor_file::read(bytes, layout) else { return };
        assert_eq!(file.parameters.len(), layout.n_parameters());
        assert!(file.parameters.iter().all(|value| value.is_finite()));
        let Ok(header) = tensor_file::header(layout, &file.notes) else { return };
        let again = [header, tensor_file::value_bytes(&file.parameters)].concat();
        let again = tensor_file::read(&again, layout).unwrap();
        assert_eq!((again.parameters, again.notes), (file.parameters, file.notes));
    });
}

#[derive(Debug, Arbitrary)]
struct UnigramCase {
    pieces: Vec<(String, f64)>,
    length: u8,
    text: String,
}

#[test]
fn vocabulary() {
    fuzz!("vocabulary", |input| {
        let Some(UnigramCase { pieces, length, text }) = value(input) else { return };
        let n_pieces = pieces.len();
        let Ok(unigram) = Unigram::new(Vocabulary { pieces }) else { return };
        assert_eq!(usize::from(unigram.size()), n_pieces + usize::from(SPECIAL_TOKENS));
        assert!(unigram.encode(&text).iter().all(|&id| id < unigram.size()));
        if let Ok(blanked) = unigram.encode_with_blanks(&text, length.into()) {
            assert_eq!(blanked.ids.len(), usize::from(length));
            assert!((1..=BLANKS_MAX).contains(&blanked.blanks.len()));
            assert!(blanked.blanks.iter().all(|&at| at < length.into()));
        }
    });
}
