//! Converts a drawing to a sample like those of the training set. Pure: never touches the document.
//!
//! Fashion-MNIST fits the longer side of a garment to the whole picture, centres the other, and
//! shows a filled shape, bright on a background of 0 (Xiao et al. 2017, §2). A drawing goes the
//! same way: cropped, scaled, centred, and the inside of an outline filled.

/// Fainter ink is the soft edge of a line, not part of the shape.
const INK_MIN: u8 = 32;
/// Smallest extent that is enlarged to the whole picture, as a share of the canvas: a dot stays a dot.
const EXTENT_MIN: f32 = 0.25;
/// Grey value of the inside of an outline: the mean grey of a plain garment.
const FILLING: u8 = 190;

/// Shrinks `ink` (`[side, side]`, 0 is untouched paper) to `[height, width]`.
///
/// Returns `None` for an empty canvas, or where `ink` is not a square of `side`.
pub(crate) fn to_sample(ink: &[u8], side: usize, height: usize, width: usize) -> Option<Vec<u8>> {
    if ink.len() != side * side || height == 0 || width == 0 {
        return None;
    }
    let extent = Extent::of(ink, side)?;
    let longest = extent.longest().max(side as f32 * EXTENT_MIN);
    let scale = longest / height.min(width) as f32;
    let (centre_x, centre_y) = extent.centre();
    let mut sample = vec![0; height * width];
    for (idx, value) in sample.iter_mut().enumerate() {
        let x = centre_x + ((idx % width) as f32 - width as f32 / 2.0) * scale;
        let y = centre_y + ((idx / width) as f32 - height as f32 / 2.0) * scale;
        *value = mean(ink, side, (x, y), scale);
    }
    fill_inside(&mut sample, height, width);
    Some(sample)
}

/// The smallest rectangle around the ink, in pixels; the upper ends are exclusive.
struct Extent {
    left: usize,
    right: usize,
    top: usize,
    bottom: usize,
}

impl Extent {
    fn of(ink: &[u8], side: usize) -> Option<Self> {
        let mut extent: Option<Self> = None;
        for (idx, _) in ink.iter().enumerate().filter(|(_, value)| **value >= INK_MIN) {
            let (x, y) = (idx % side, idx / side);
            let grown = extent.get_or_insert(Self { left: x, right: x + 1, top: y, bottom: y + 1 });
            grown.left = grown.left.min(x);
            grown.right = grown.right.max(x + 1);
            grown.bottom = y + 1;
        }
        extent
    }

    fn longest(&self) -> f32 {
        (self.right - self.left).max(self.bottom - self.top) as f32
    }

    fn centre(&self) -> (f32, f32) {
        ((self.left + self.right) as f32 / 2.0, (self.top + self.bottom) as f32 / 2.0)
    }
}

/// Mean of the pixels in the square of `size` with its upper left corner at `corner`; what lies
/// outside the canvas counts as paper.
fn mean(ink: &[u8], side: usize, corner: (f32, f32), size: f32) -> u8 {
    let range = |start: f32| {
        let end = (start + size).round().max(start.round() + 1.0);
        (start.round() as isize, end as isize)
    };
    let ((left, right), (top, bottom)) = (range(corner.0), range(corner.1));
    let inside = |at: isize| usize::try_from(at).ok().filter(|&at| at < side);
    let mut sum = 0_u32;
    for y in (top..bottom).filter_map(inside) {
        for x in (left..right).filter_map(inside) {
            sum += u32::from(ink[y * side + x]);
        }
    }
    let area = (right - left) * (bottom - top);
    u8::try_from(sum / u32::try_from(area).unwrap_or(1).max(1)).unwrap_or(u8::MAX)
}

/// Fills the enclosed area: every pale pixel without a path over pale pixels to the border.
fn fill_inside(sample: &mut [u8], height: usize, width: usize) {
    const WALL_MIN: u8 = 64;
    let mut outside = vec![false; sample.len()];
    let mut open: Vec<usize> = (0..sample.len())
        .filter(|idx| {
            let (x, y) = (idx % width, idx / width);
            x == 0 || y == 0 || x + 1 == width || y + 1 == height
        })
        .collect();
    while let Some(idx) = open.pop() {
        if outside[idx] || sample[idx] >= WALL_MIN {
            continue;
        }
        outside[idx] = true;
        let x = idx % width;
        open.extend(idx.checked_sub(width));
        open.extend(Some(idx + width).filter(|&below| below < sample.len()));
        open.extend((x > 0).then(|| idx - 1));
        open.extend((x + 1 < width).then_some(idx + 1));
    }
    for (value, _) in sample.iter_mut().zip(outside).filter(|(_, outside)| !outside) {
        *value = (*value).max(FILLING);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const SIDE: usize = 280;

    fn rectangle(left: usize, top: usize, width: usize, height: usize) -> Vec<u8> {
        let mut ink = vec![0; SIDE * SIDE];
        for y in top..top + height {
            ink[y * SIDE + left..y * SIDE + left + width].fill(255);
        }
        ink
    }

    #[test]
    fn an_empty_canvas_is_no_question() {
        assert_eq!(to_sample(&vec![0; SIDE * SIDE], SIDE, 28, 28), None);
        assert_eq!(to_sample(&vec![INK_MIN - 1; SIDE * SIDE], SIDE, 28, 28), None);
        assert_eq!(to_sample(&[255; 10], SIDE, 28, 28), None);
    }

    #[test]
    fn a_drawing_fills_the_height_and_is_centred() {
        // A corner of the canvas, twice as high as wide.
        let sample = to_sample(&rectangle(10, 20, 70, 140), SIDE, 28, 28).unwrap();
        for (y, row) in sample.chunks(28).enumerate() {
            assert!(row[7..21].iter().all(|&value| value == 255), "row {y}: {row:?}");
            assert!(row[..6].iter().chain(&row[22..]).all(|&value| value == 0), "row {y}: {row:?}");
        }
    }

    #[test]
    fn where_it_is_drawn_does_not_matter() {
        let corner = to_sample(&rectangle(0, 0, 100, 120), SIDE, 28, 28);
        let middle = to_sample(&rectangle(90, 80, 100, 120), SIDE, 28, 28);
        assert_eq!(corner, middle);
    }

    #[test]
    fn a_dot_stays_a_dot() {
        let sample = to_sample(&rectangle(100, 100, 10, 10), SIDE, 28, 28).unwrap();
        let n_inked = sample.iter().filter(|&&value| value > 0).count();
        assert!((9..=36).contains(&n_inked), "{n_inked} pixels");
    }

    #[test]
    fn an_outline_is_filled_and_an_open_line_is_not() {
        let mut outline = rectangle(40, 40, 200, 200);
        for y in 60..220 {
            outline[y * SIDE + 60..y * SIDE + 220].fill(0);
        }
        let filled = to_sample(&outline, SIDE, 28, 28).unwrap();
        assert!(filled.iter().all(|&value| value >= FILLING), "{filled:?}");
        // A gap in the right side opens it.
        for y in 100..180 {
            outline[y * SIDE + 220..y * SIDE + 240].fill(0);
        }
        let open = to_sample(&outline, SIDE, 28, 28).unwrap();
        assert_eq!(open[14 * 28 + 14], 0);
    }
}
