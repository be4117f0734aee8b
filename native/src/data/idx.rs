//! Reader of IDX files, the format of MNIST and its descendants.
//!
//! Big endian: two zero bytes, a type (8 for unsigned bytes), the number of dimensions, the size of
//! each as u32, then the values, row-major (<http://yann.lecun.com/exdb/mnist/>). Pure; only unsigned
//! bytes are read, and nothing is allocated by a size before it is compared with the file's length.

/// Type code of unsigned bytes.
const UNSIGNED_BYTE: u8 = 8;

/// Why an IDX file cannot be read.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum IdxError {
    /// Shorter than its header.
    #[error("{got} bytes, its header alone has {want}")]
    Header {
        /// Bytes of the header.
        want: usize,
        /// What is there.
        got: usize,
    },
    /// Another kind of file.
    #[error("it begins with {got:02x?}, an IDX file of {n_dimensions}-dimensional bytes with {want:02x?}")]
    Magic {
        /// What was asked for.
        n_dimensions: usize,
        /// The four bytes expected.
        want: [u8; 4],
        /// The four bytes that came.
        got: [u8; 4],
    },
    /// Cut short, or with something behind it.
    #[error("{got} bytes, its header announces {shape:?}, which takes {want}")]
    Length {
        /// From the header.
        shape: Vec<u32>,
        /// Whole file, from the header.
        want: u128,
        /// Whole file.
        got: usize,
    },
    /// The numbers of images and labels differ.
    #[error("{n_images} images and {n_labels} labels")]
    Counts {
        /// In the file of images.
        n_images: usize,
        /// In the file of labels.
        n_labels: usize,
    },
}

/// Checks a file of `N`-dimensional unsigned bytes and gives its shape and its values.
pub fn parse<const N: usize>(bytes: &[u8]) -> Result<([usize; N], &[u8]), IdxError> {
    let header_bytes = 4 + 4 * N;
    let short = || IdxError::Header { want: header_bytes, got: bytes.len() };
    let (magic, rest) = bytes.split_first_chunk::<4>().ok_or_else(short)?;
    let want = [0, 0, UNSIGNED_BYTE, N as u8];
    if *magic != want {
        return Err(IdxError::Magic { n_dimensions: N, want, got: *magic });
    }
    let (sizes, values) = rest.split_at_checked(4 * N).ok_or_else(short)?;
    let (sizes, _) = sizes.as_chunks::<4>();
    let shape: Vec<u32> = sizes.iter().map(|size| u32::from_be_bytes(*size)).collect();
    // At most four dimensions of 32 bits each: 128 bits hold their product.
    const { assert!(N <= 4) };
    let n_values: u128 = shape.iter().map(|&size| u128::from(size)).product();
    if n_values != values.len() as u128 {
        let want = n_values.saturating_add(header_bytes as u128);
        return Err(IdxError::Length { shape, want, got: bytes.len() });
    }
    let mut sizes = [0; N];
    for (size, got) in sizes.iter_mut().zip(shape) {
        *size = got as usize;
    }
    Ok((sizes, values))
}

/// Writes an IDX file of unsigned bytes.
pub fn write<const N: usize>(shape: [u32; N], values: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0, 0, UNSIGNED_BYTE, N as u8];
    shape.iter().for_each(|size| bytes.extend_from_slice(&size.to_be_bytes()));
    bytes.extend_from_slice(values);
    bytes
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn images_are_read_in_order() {
        let bytes = write([2, 1, 3], &[1, 2, 3, 4, 5, 6]);
        assert_eq!(parse::<3>(&bytes).unwrap(), ([2, 1, 3], [1, 2, 3, 4, 5, 6].as_slice()));
        assert_eq!(&bytes[..8], [0, 0, 8, 3, 0, 0, 0, 2]);
    }

    #[test]
    fn each_error_says_what_was_wanted() {
        let bytes = write([2, 1, 3], &[1, 2, 3, 4, 5, 6]);
        assert_eq!(parse::<3>(&bytes[..15]).unwrap_err(), IdxError::Header { want: 16, got: 15 });
        let error = parse::<3>(&bytes[..21]).unwrap_err();
        assert_eq!(error.to_string(), "21 bytes, its header announces [2, 1, 3], which takes 22");
        assert!(matches!(parse::<1>(&bytes), Err(IdxError::Magic { want: [0, 0, 8, 1], .. })));
        let huge = write([u32::MAX, u32::MAX, u32::MAX], &[]);
        assert!(matches!(parse::<3>(&huge), Err(IdxError::Length { .. })));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let mut file = vec![0, 0, 8, 3];
            file.extend_from_slice(&bytes);
            if let Ok(([a, b, c], values)) = parse::<3>(&file) {
                prop_assert_eq!(a * b * c, values.len());
            }
            let _ = parse::<3>(&bytes);
        }
    }
}
