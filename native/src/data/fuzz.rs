//! Any bytes as files of Fashion-MNIST.

use barnraise_fuzz::fuzz;

use super::idx::{parse, write};

#[test]
fn idx() {
    fuzz!("idx", |bytes| {
        if let Ok((shape, values)) = parse::<3>(bytes) {
            assert_eq!(shape.iter().product::<usize>(), values.len());
            assert_eq!(write(shape.map(|size| size as u32), values), bytes);
        }
        if let Ok((shape, values)) = parse::<1>(bytes) {
            assert_eq!(write(shape.map(|size| size as u32), values), bytes);
        }
    });
}
