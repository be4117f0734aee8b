use barnraise_protocol::Sha256Hash;

use super::*;

const SHAPE: ImageShape = ImageShape { height: 9, width: 12, channels: 3 };
const NOTHING: Augmentation =
    Augmentation { crop_padding: 0, flip: false, brightness: 0.0, contrast: 0.0, cutout: 0 };
const ALL: Augmentation =
    Augmentation { crop_padding: 3, flip: true, brightness: 0.2, contrast: 0.3, cutout: 4 };

/// No pixel is black or white.
fn pictures(n_samples: usize) -> Vec<u8> {
    let mut random = SplitMix64 { state: 3 };
    (0..n_samples * SHAPE.n_values()).map(|_| 40 + random.below(100) as u8).collect()
}

fn pixel(image: &[u8], row: usize, column: usize) -> &[u8] {
    &image[(row * 12 + column) * 3..][..3]
}

#[test]
fn changes_depend_on_picture_seed_and_draw_alone() {
    let images = pictures(4);
    let all = augmented(&images, SHAPE, &ALL, 7, 3);
    assert_eq!(all.len(), images.len());
    assert_eq!(all, augmented(&images, SHAPE, &ALL, 7, 3));
    assert_ne!(all, augmented(&images, SHAPE, &ALL, 8, 3));
    assert_ne!(all, augmented(&images, SHAPE, &ALL, 7, 4));
    let n_values = SHAPE.n_values();
    assert_eq!(augmented(&images[3 * n_values..], SHAPE, &ALL, 7, 3), all[3 * n_values..]);
    assert_eq!(augmented(&images, SHAPE, &NOTHING, 7, 3), images);
}

/// The backbone that recomputes a contribution may run another build, on another platform, than the contributor.
#[test]
fn changed_pictures_are_the_same_everywhere() {
    let changed = augmented(&pictures(20), SHAPE, &ALL, 7, 3);
    assert_eq!(
        Sha256Hash::of(&changed).to_string(),
        "90bd0ebb60aa73e3fbaec8c4f3832bab691703654258de3d952e3b6655d2c9e6"
    );
}

#[test]
fn a_padded_picture_is_cut_everywhere_and_mirrored_every_other_time() {
    let image = pictures(1);
    let (mut places, mut n_mirrored) = (std::collections::HashSet::new(), 0);
    let augmentation = Augmentation { crop_padding: 2, flip: true, ..NOTHING };
    for draw in 0..2000 {
        let seen = augmented(&image, SHAPE, &augmentation, 1, draw);
        let places_of = |seen: &[u8], mirrored: bool| {
            let moves = (-2_isize..=2).flat_map(|down| (-2_isize..=2).map(move |right| [down, right]));
            moves.into_iter().find(|&[down, right]| {
                (0..9).all(|row| {
                    (0..12).all(|column| {
                        let at = if mirrored { 11 - column } else { column };
                        let source = [row as isize - down, at as isize - right];
                        let want = match source {
                            [row @ 0..9, column @ 0..12] => pixel(&image, row as usize, column as usize),
                            _ => &[0; 3],
                        };
                        pixel(seen, row, column) == want
                    })
                })
            })
        };
        let plain = places_of(&seen, false);
        let mirrored = places_of(&seen, true);
        assert!(plain.is_some() != mirrored.is_some(), "draw {draw} is no crop of the padded picture");
        places.extend(plain.or(mirrored));
        n_mirrored += usize::from(mirrored.is_some());
    }
    assert_eq!(places.len(), 25);
    assert!((900..1100).contains(&n_mirrored), "{n_mirrored}");
}

#[test]
fn light_changes_all_pixels_alike_and_cutout_blackens_a_square() {
    let image = pictures(1);
    let (mut darkest, mut brightest) = (f32::MAX, 0.0_f32);
    let light = Augmentation { brightness: 0.1, contrast: 0.2, ..NOTHING };
    for draw in 0..500 {
        let seen = augmented(&image, SHAPE, &light, 1, draw);
        // Two pixels tell contrast and brightness, and all others follow.
        let at = |value: u8| seen[image.iter().position(|pixel| *pixel == value).unwrap()];
        for (before, after) in image.iter().zip(&seen) {
            assert_eq!(*after, at(*before));
        }
        let mean =
            |image: &[u8]| image.iter().map(|pixel| f32::from(*pixel)).sum::<f32>() / image.len() as f32;
        let ratio = mean(&seen) / mean(&image);
        (darkest, brightest) = (darkest.min(ratio), brightest.max(ratio));
    }
    // 25 steps of about 90, and a fifth.
    assert!((0.5..0.65).contains(&darkest) && (1.35..1.5).contains(&brightest), "{darkest} {brightest}");
    let cutout = Augmentation { cutout: 4, ..NOTHING };
    let mut sizes = std::collections::BTreeSet::new();
    for draw in 0..500 {
        let seen = augmented(&image, SHAPE, &cutout, 1, draw);
        let is_black = |row, column| pixel(&seen, row, column) == [0; 3];
        let rows: Vec<usize> = (0..9).filter(|&row| (0..12).any(|column| is_black(row, column))).collect();
        let columns: Vec<usize> = (0..12).filter(|&column| (0..9).any(|row| is_black(row, column))).collect();
        assert!(rows.len() <= 4 && columns.len() <= 4 && rows.windows(2).all(|pair| pair[1] == pair[0] + 1));
        for row in 0..9 {
            for column in 0..12 {
                let is_cut = rows.contains(&row) && columns.contains(&column);
                assert_eq!(is_cut, pixel(&seen, row, column) != pixel(&image, row, column));
            }
        }
        sizes.insert(rows.len() * columns.len());
    }
    assert!(sizes.contains(&16) && sizes.first() < Some(&16), "{sizes:?}");
}

#[test]
fn what_does_not_fit_the_pictures_is_refused_with_its_key() {
    let data = DataShape::Images { shape: SHAPE, n_classes: 2 };
    let refused =
        |augmentation, data, is_of_crops| check(&augmentation, data, is_of_crops).unwrap_err().to_string();
    assert_eq!(check(&ALL, data, false), Ok(()));
    assert_eq!(
        refused(Augmentation { crop_padding: 5, ..NOTHING }, data, false),
        "crop_padding of at most 4 pixels, half of the shorter side of a picture, not 5"
    );
    assert!(
        refused(Augmentation { cutout: u16::MAX, ..NOTHING }, data, false).starts_with("cutout of at most 4")
    );
    for bad in [-0.1, 1.0, f32::NAN, f32::INFINITY] {
        let error = refused(Augmentation { brightness: bad, ..NOTHING }, data, false);
        assert!(error.starts_with("brightness of 0 to 0.9, not"), "{error}");
        assert!(refused(Augmentation { contrast: bad, ..NOTHING }, data, false).starts_with("contrast"));
    }
    assert!(refused(ALL, data, true).contains("SwAV"));
    let ratings = barnraise_protocol::dataset::RatingShape { n_users: 2, n_items: 2 };
    assert!(refused(ALL, DataShape::Ratings(ratings), false).contains("no pictures"));
}
