#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use proptest::prelude::*;

use super::*;

fn top_k(share: f64) -> TensorCodec {
    TensorCodec::TopK(Sparsity { density: Density::from_share(share).unwrap(), warmup_epochs: 0 })
}

fn all() -> [TensorCodec; 5] {
    [TensorCodec::F32, TensorCodec::F16, TensorCodec::Int8, TensorCodec::Int4, top_k(1.0)]
}

#[test]
fn golden_bytes() {
    let values = [1.0, -0.5, 0.0];
    assert_eq!(TensorCodec::F32.encode(&values[..2]).unwrap(), [0, 0, 128, 63, 0, 0, 0, 191]);
    assert_eq!(TensorCodec::F16.encode(&values).unwrap(), [0x00, 0x3c, 0x00, 0xb8, 0, 0]);
    let scale = (1.0f32 / 127.0).to_le_bytes();
    let want = [scale.as_slice(), &[127, (-64i8) as u8, 0]].concat();
    assert_eq!(TensorCodec::Int8.encode(&values).unwrap(), want);
    // Levels 7, −4 and 0; in two bytes the third value stands above the first.
    let scale = (1.0f32 / 7.0).to_le_bytes();
    let want = [scale.as_slice(), &[0x07, 0x0c]].concat();
    assert_eq!(TensorCodec::Int4.encode(&[1.0, -0.6, 0.0]).unwrap(), want);
    let mut sparse = [0.0; 20];
    (sparse[3], sparse[12]) = (1.0, -0.5);
    // Gaps of 3 and 8, 2 low bits: 0 and 11, then 110 and 00, the first bit lowest.
    let scale = (1.0f32 / 127.0).to_le_bytes();
    let want = [[2, 0, 0, 0].as_slice(), &scale, &[127, (-64i8) as u8, 0b0001_1110]].concat();
    let bytes = top_k(0.1).encode(&sparse).unwrap();
    assert_eq!(bytes, want);
    let level = 64.0 * (1.0f32 / 127.0);
    sparse[12] = -level;
    assert_eq!(top_k(0.1).decode(&bytes, 20).unwrap(), sparse);
}

#[test]
fn parts_are_encoded_as_what_they_are_parts_of() {
    let values: Vec<f32> = (0..2000).map(|at| (at * 37 % 101) as f32 - 50.0).collect();
    for codec in all() {
        let want = codec.encode(&values).unwrap();
        for cuts in
            [vec![], vec![0, 2000], vec![1, 3, 255, 256, 257, 900], vec![300, 512, 1999], vec![64, 64]]
        {
            let ends = [&[0], cuts.as_slice(), &[values.len()]].concat();
            let parts: Vec<Vec<f32>> =
                ends.windows(2).map(|part| values[part[0]..part[1]].to_vec()).collect();
            assert!(joined(parts.clone()) == values);
            assert_eq!(codec.encode_parts(parts), Ok(want.clone()), "{codec:?} {cuts:?}");
        }
        let mut bad = vec![vec![0.0; 300], vec![0.0; 400]];
        bad[1][321] = f32::NAN;
        assert_eq!(codec.encode_parts(bad), Err(CodecError::NotFinite { index: 621 }), "{codec:?}");
        assert_eq!(codec.encode_parts(Vec::new()), codec.encode(&[]));
    }
}

#[test]
fn names_in_a_file_and_on_the_wire() {
    for (codec, name, wire) in [
        (TensorCodec::F32, "\"f32\"", &[0][..]),
        (TensorCodec::F16, "\"f16\"", &[1]),
        (TensorCodec::Int8, "\"int8\"", &[2]),
        (TensorCodec::Int4, "\"int4\"", &[3]),
        (top_k(0.01), "{\"top-k\":{\"density\":0.01,\"warmup_epochs\":0}}", &[4, 0x90, 0x4e, 0]),
    ] {
        assert_eq!(postcard::to_allocvec(&codec).unwrap(), wire, "{name}");
        assert_eq!(postcard::from_bytes(wire), Ok(codec), "{name}");
    }
}

#[test]
fn what_is_not_finite_is_refused_both_ways() {
    for codec in all() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert_eq!(codec.encode(&[0.0, bad]), Err(CodecError::NotFinite { index: 1 }), "{codec:?}");
        }
    }
    let infinity = f32::INFINITY.to_le_bytes();
    assert_eq!(TensorCodec::F32.decode(&infinity, 1), Err(CodecError::NotFinite { index: 0 }));
    assert_eq!(TensorCodec::F16.decode(&[0x00, 0x7c], 1), Err(CodecError::NotFinite { index: 0 }));
    let block = [infinity.as_slice(), &[1]].concat();
    assert_eq!(TensorCodec::Int8.decode(&block, 1), Err(CodecError::NotFinite { index: 0 }));
    assert_eq!(TensorCodec::Int4.decode(&block, 1), Err(CodecError::NotFinite { index: 0 }));
    // The scale is finite, eight times it is not.
    let block = [f32::MAX.to_le_bytes().as_slice(), &[0x08]].concat();
    assert_eq!(TensorCodec::Int4.decode(&block, 1), Err(CodecError::NotFinite { index: 0 }));
    let sparse = [[1, 0, 0, 0], infinity, [1, 0, 0, 0]].concat();
    assert_eq!(top_k(1.0).decode(&sparse[..10], 1), Err(CodecError::NotFinite { index: 0 }));
}

#[test]
fn large_values_saturate_in_half_precision() {
    let bytes = TensorCodec::F16.encode(&[1e9, -1e9]).unwrap();
    assert_eq!(TensorCodec::F16.decode(&bytes, 2).unwrap(), [65504.0, -65504.0]);
}

/// A seventh of it is rounded up, and so is a 127th.
#[test]
fn the_largest_number_comes_back_as_a_number() {
    let values = [f32::MAX, f32::MIN, 1.0];
    for codec in all() {
        let got = codec.decode(&codec.encode(&values).unwrap(), 3).unwrap();
        assert!(got[0] > 0.0 && got[1] == -got[0], "{codec:?}: {got:?}");
    }
    let bytes = TensorCodec::Int8.encode(&values).unwrap();
    assert!(TensorCodec::Int8.decode(&bytes, 3).unwrap()[0] > 0.999_999 * f32::MAX);
}

#[test]
fn tiny_values_travel_as_zeros() {
    for codec in [TensorCodec::Int8, TensorCodec::Int4, top_k(1.0)] {
        let bytes = codec.encode(&[1e-45, -1e-40]).unwrap();
        assert_eq!(codec.decode(&bytes, 2).unwrap(), [0.0, 0.0], "{codec:?}");
    }
    // The smallest normal scale, and one below.
    for (codec, level) in [(TensorCodec::Int8, 127.0), (TensorCodec::Int4, 7.0), (top_k(1.0), 127.0)] {
        let (smallest, smaller) = (level * f32::MIN_POSITIVE, (level - 1.0) * f32::MIN_POSITIVE);
        for (value, want) in [(smallest, smallest), (smaller, 0.0)] {
            let bytes = codec.encode(&[value]).unwrap();
            assert_eq!(codec.decode(&bytes, 1), Ok(vec![want]), "{codec:?}");
        }
    }
}

#[test]
fn a_dense_vector_is_not_sent_sparsely() {
    let values = [1.0; 100];
    assert_eq!(top_k(0.1).encode(&values), Err(CodecError::TooDense { max: 10, got: 100 }));
    let of = |n_sent: usize| top_k(0.1).encode(&[vec![1.0f32; n_sent], vec![0.0; 100 - n_sent]].concat());
    assert!(of(10).is_ok());
    assert_eq!(of(11), Err(CodecError::TooDense { max: 10, got: 11 }));
    assert_eq!(of(0), Ok(vec![0; 4]), "a count");
    let refused = top_k(1.0).encode_dense(&[1.0], &mut [0; 8]);
    assert_eq!(refused, Err(CodecError::TooDense { max: 0, got: 1 }));
}

/// A block more begins with the value after the last of a full one.
#[test]
fn values_take_exactly_so_many_bytes() {
    for (codec, lengths) in [
        (TensorCodec::F32, &[(0, 0), (1, 4), (3, 12), (usize::MAX, usize::MAX)][..]),
        (TensorCodec::F16, &[(0, 0), (1, 2), (3, 6), (usize::MAX, usize::MAX)]),
        (TensorCodec::Int8, &[(0, 0), (1, 5), (255, 259), (256, 260), (257, 265), (512, 520)]),
        (TensorCodec::Int4, &[(0, 0), (1, 5), (2, 5), (3, 6), (63, 36), (64, 36), (65, 41), (128, 72)]),
    ] {
        for &(n_values, want) in lengths {
            assert_eq!(codec.encoded_len_at(n_values, 9), want..=want, "{codec:?} of {n_values}");
            if n_values > 600 {
                continue;
            }
            assert_eq!(codec.encode(&vec![1.0; n_values]).map(|bytes| bytes.len()), Ok(want));
            for got in [want.wrapping_sub(1), want + 1].into_iter().filter(|got| *got < 10_000) {
                let refused = Err(CodecError::Length { n_values, min: want, max: want, got });
                assert_eq!(codec.decode(&vec![0; got], n_values), refused, "{codec:?}");
                assert_eq!(codec.encode_dense(&vec![1.0; n_values], &mut vec![0; got]).err(), refused.err());
            }
        }
    }
}

#[test]
fn values_sent_sparsely_take_at_most_so_many_bytes() {
    for (n_values, n_sent, want) in [
        (20, 0, 4),
        (20, 1, 4 + 5 + 1),
        (20, 2, 4 + 6 + 2),
        (20, 20, 4 + 24 + 3),
        (257, 257, 4 + 265 + 33),
        (1000, 10, 4 + 14 + 11),
        (1000, 250, 4 + 254 + 110),
    ] {
        assert_eq!(sparse::encoded_len_max(n_values, n_sent), want, "{n_sent} of {n_values}");
    }
    let codec =
        TensorCodec::TopK(Sparsity { density: Density::from_share(0.01).unwrap(), warmup_epochs: 10 });
    assert_eq!(codec.encoded_len_at(1000, 3), 4..=368);
    assert_eq!(codec.encoded_len_at(1000, 10), 4..=29);
    assert_eq!(codec.encoded_len(1000), 368);
    let refused = |got: usize| codec.decode(&vec![0; got], 1000).err();
    let length = |got| Some(CodecError::Length { n_values: 1000, min: 4, max: 368, got });
    assert_eq!([3, 369].map(refused), [3, 369].map(length));
}

#[test]
fn levels_that_are_cut_off_are_told_how_many_bytes_are_wanted() {
    // Two levels and their scale take 6 bytes.
    let bytes = [2, 0, 0, 0, 0, 0, 0, 0, 1];
    let want = CodecError::Length { n_values: 20, min: 10, max: 12, got: 9 };
    assert_eq!(top_k(1.0).decode(&bytes, 20), Err(want));
}

/// Values are processed in chunks and blocks, of which each may be the one with an infinity.
#[test]
fn an_infinity_is_found_on_both_sides_of_each_border() {
    let n_values = 2049;
    let values = vec![0.5; n_values];
    for codec in all() {
        for index in [0, 63, 64, 255, 256, 1023, 1024, 2047, 2048] {
            let mut values = values.clone();
            values[index] = f32::NEG_INFINITY;
            assert_eq!(codec.encode(&values), Err(CodecError::NotFinite { index }), "{codec:?}");
        }
    }
    for index in [0, 1023, 1024, 2047, 2048] {
        let not_finite = Err(CodecError::NotFinite { index });
        let mut bytes = TensorCodec::F32.encode(&values).unwrap();
        bytes[index * 4..][..4].copy_from_slice(&f32::INFINITY.to_le_bytes());
        assert_eq!(TensorCodec::F32.decode(&bytes, n_values), not_finite);
        let mut bytes = TensorCodec::F16.encode(&values).unwrap();
        bytes[index * 2..][..2].copy_from_slice(&[0x00, 0xfc]);
        assert_eq!(TensorCodec::F16.decode(&bytes, n_values), not_finite);
    }
    for (codec, header_bytes, block_bytes, block_values) in
        [(TensorCodec::Int8, 0, 260, 256), (TensorCodec::Int4, 0, 36, 64), (top_k(1.0), 4, 260, 256)]
    {
        for block in [0, 1, n_values / block_values] {
            let mut bytes = codec.encode(&values).unwrap();
            bytes[header_bytes + block * block_bytes..][..4].copy_from_slice(&f32::INFINITY.to_le_bytes());
            let index = block * block_values;
            assert_eq!(codec.decode(&bytes, n_values), Err(CodecError::NotFinite { index }), "{codec:?}");
        }
    }
}

#[test]
fn positions_that_do_not_fit_are_refused() {
    let codec = top_k(1.0);
    let refused = |count: u32, gaps: &[u8], n_values: usize| {
        let n_levels = if count == 0 { 0 } else { 4 + count as usize };
        let bytes = [count.to_le_bytes().as_slice(), &vec![0; n_levels], gaps].concat();
        codec.decode(&bytes, n_values)
    };
    assert_eq!(refused(0, &[], 20), Ok(vec![0.0; 20]));
    assert_eq!(refused(0, &[0], 20), Err(CodecError::Positions { n_sent: 0 }), "positions of nothing");
    // Two low bits: gaps of 4 and 4 fill a byte.
    assert_eq!(refused(2, &[0b0001_0001], 20), Ok(vec![0.0; 20]));
    assert_eq!(refused(2, &[0b0001_0001, 0], 20), Err(CodecError::Positions { n_sent: 2 }), "a whole byte");
    assert!(matches!(refused(21, &[0, 0], 20), Err(CodecError::TooDense { max: 20, got: 21 })));
    // Three low bits.
    assert!(refused(1, &[0b0000_0101], 20).is_ok());
    assert!(matches!(refused(1, &[0xff], 20), Err(CodecError::Position { .. })));
    assert_eq!(refused(1, &[], 20), Err(CodecError::Positions { n_sent: 1 }));
    assert_eq!(refused(1, &[0, 0], 20), Err(CodecError::Positions { n_sent: 1 }), "a byte too many");
    assert_eq!(refused(1, &[0x80], 20), Err(CodecError::Positions { n_sent: 1 }), "a bit too many");
    // The first is value 16. Four more lie beyond the last one; the bits that are missing do not count.
    assert_eq!(refused(2, &[0b1000_1111], 20), Err(CodecError::Position { n_values: 20 }));
}

#[test]
fn the_scale_of_a_block_is_known_from_its_largest_magnitude() {
    assert_eq!(int8_scale(254.0), 2.0);
    for largest in [0.0, 1e-45, 1.0, 254.0, f32::MAX] {
        let bytes = TensorCodec::Int8.encode(&[largest / 2.0, -largest]).unwrap();
        assert_eq!(bytes[..4], int8_scale(largest).to_le_bytes(), "{largest}");
    }
}

#[test]
fn a_gap_of_many_ones_comes_back() {
    for last in 100..3000 {
        let mut values = vec![0.0; 3000];
        values[..100].fill(1.0);
        values[last] = 1.0;
        let bytes = top_k(0.1).encode(&values).unwrap();
        assert_eq!(top_k(0.1).decode(&bytes, 3000).unwrap(), values, "{last}");
        let mut ones = bytes.clone();
        ones[COUNT_AND_LEVELS..].fill(0xff);
        let refused = top_k(0.1).decode(&ones, 3000);
        assert_eq!(refused, Err(CodecError::Position { n_values: 3000 }));
    }
}

/// Of 101 values.
const COUNT_AND_LEVELS: usize = 4 + 4 + 101;

#[test]
fn one_in_a_hundred_takes_two_bytes_each() {
    let n_values = 1_000_000;
    let most = top_k(0.01).encoded_len(n_values);
    assert!((4 * n_values) as f64 / most as f64 > 190.0, "{most} bytes");
}

proptest! {
    #[test]
    fn errors_stay_within_their_bounds(values in proptest::collection::vec(-1e4f32..1e4, 0..600)) {
        for codec in all() {
            let bytes = codec.encode(&values).unwrap();
            let lengths = codec.encoded_len_at(values.len(), 0);
            prop_assert!(lengths.contains(&bytes.len()), "{:?}: {} bytes", codec, bytes.len());
            let decoded = codec.decode(&bytes, values.len()).unwrap();
            let block_values = match codec {
                TensorCodec::Int4 => INT4_BLOCK_VALUES,
                // Of the values that are not zero; close enough to all of them here.
                _ => INT8_BLOCK_VALUES,
            };
            let sent: Vec<(f32, f32)> = values.iter().copied().zip(decoded).collect();
            let sent: Vec<_> = match codec {
                TensorCodec::TopK(_) => sent.into_iter().filter(|(value, _)| *value != 0.0).collect(),
                _ => sent,
            };
            for block in sent.chunks(block_values) {
                let max = block.iter().fold(0f32, |max, (value, _)| max.max(value.abs()));
                for (value, got) in block {
                    let bound = match codec {
                        TensorCodec::F32 => 0.0,
                        TensorCodec::F16 => value.abs() / 2048.0 + 6e-8,
                        TensorCodec::Int8 | TensorCodec::TopK(_) => max / 254.0 * 1.001,
                        TensorCodec::Int4 => max / 14.0 * 1.001,
                    };
                    prop_assert!((value - got).abs() <= bound, "{:?}: {} became {}", codec, value, got);
                }
            }
        }
    }

    /// Where what is sent stands does not matter: its bytes stay within what was promised, and come back.
    #[test]
    fn any_positions_come_back(
        n_values in 1usize..5000,
        places in proptest::collection::btree_set(0usize..5000, 0..300),
    ) {
        let mut values = vec![0.0; n_values];
        let mut n_sent = 0;
        for place in places.into_iter().filter(|&place| place < n_values) {
            values[place] = if place % 2 == 0 { 1.0 } else { -1.0 };
            n_sent += 1;
        }
        let bytes = top_k(1.0).encode(&values).unwrap();
        prop_assert!(bytes.len() <= sparse::encoded_len_max(n_values, n_sent));
        prop_assert_eq!(top_k(1.0).decode(&bytes, n_values).unwrap(), values);
    }

    #[test]
    fn more_values_never_take_fewer_bytes(n_values in 0usize..3000, n_sent in 0usize..3000) {
        let n_sent = n_sent.min(n_values);
        let fewer = sparse::encoded_len_max(n_values, n_sent.saturating_sub(1));
        prop_assert!(fewer <= sparse::encoded_len_max(n_values, n_sent));
    }

    #[test]
    fn a_buffer_is_used_again(
        first in proptest::collection::vec(-1f32..1.0, 0..300),
        second in proptest::collection::vec(-1f32..1.0, 0..300),
    ) {
        for codec in all() {
            let mut bytes = Vec::new();
            codec.encode_into(&first, &mut bytes).unwrap();
            codec.encode_into(&second, &mut bytes).unwrap();
            prop_assert_eq!(&bytes, &codec.encode(&second).unwrap());
            let mut values = vec![9.0; second.len()];
            codec.decode_into(&bytes, &mut values).unwrap();
            prop_assert_eq!(values, codec.decode(&bytes, second.len()).unwrap());
        }
    }

    #[test]
    fn any_bytes_decode_to_finite_values_or_an_error(
        bytes in proptest::collection::vec(any::<u8>(), 0..600),
        n_values in 0usize..700,
    ) {
        for codec in all() {
            if let Ok(values) = codec.decode(&bytes, n_values) {
                prop_assert_eq!(values.len(), n_values);
                prop_assert!(values.iter().all(|value| value.is_finite()));
            }
        }
    }

    /// Close to what an honest peer sends, so that the positions are reached.
    #[test]
    fn a_changed_byte_decodes_to_finite_values_or_an_error(
        places in proptest::collection::btree_set(0usize..2000, 1..60),
        at in any::<prop::sample::Index>(),
        byte: u8,
    ) {
        let mut values = vec![0.0; 2000];
        places.into_iter().for_each(|place| values[place] = 0.5);
        let mut bytes = top_k(0.1).encode(&values).unwrap();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        if let Ok(values) = top_k(0.1).decode(&bytes, 2000) {
            prop_assert!(values.iter().all(|value| value.is_finite()));
        }
    }
}
