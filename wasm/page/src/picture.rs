//! Shows samples on a canvas: grey values as ink on paper, photos in their colours.

use barnraise_protocol::dataset::ImageShape;
use wasm_bindgen::{Clamped, JsCast, JsValue};
use web_sys::{CanvasRenderingContext2d, HtmlCanvasElement, ImageData};

/// What to draw with. The canvas stays in the processor's memory, where small ones are drawn and read
/// sooner.
pub(crate) fn context_of(canvas: &HtmlCanvasElement) -> Option<CanvasRenderingContext2d> {
    let options = js_sys::Object::new();
    js_sys::Reflect::set(&options, &"willReadFrequently".into(), &JsValue::TRUE).ok()?;
    let context = canvas.get_context_with_context_options("2d", &options).ok().flatten()?;
    context.dyn_into().ok()
}

/// Class of a canvas that shows samples of this shape: the style sheet turns ink over in the dark, and no photo.
pub(crate) fn class_of(shape: ImageShape) -> &'static str {
    if is_photo(shape) { "photo" } else { "ink" }
}

/// Whether samples of this shape are photos: red, green and blue.
pub(crate) fn is_photo(shape: ImageShape) -> bool {
    shape.channels == 3
}

/// Shows `pixels` (`[height, width, channels]`): a photo as it is; else opaque black where they are 255, and clear where they
/// are 0. Shows nothing where the length is not the shape's.
pub(crate) fn show(canvas: &HtmlCanvasElement, pixels: &[u8], shape: ImageShape) {
    let (width, height) = (u32::from(shape.width), u32::from(shape.height));
    (canvas.width() != width).then(|| canvas.set_width(width));
    (canvas.height() != height).then(|| canvas.set_height(height));
    let Some(context) = context_of(canvas) else { return };
    context.clear_rect(0.0, 0.0, f64::from(width), f64::from(height));
    if pixels.len() != shape.n_values() {
        return;
    }
    let n_channels = usize::from(shape.channels).max(1);
    let shown = |pixel: &[u8]| match *pixel {
        [red, green, blue] => [red, green, blue, u8::MAX],
        _ => [0, 0, 0, mean(pixel)],
    };
    let rgba: Vec<u8> = pixels.chunks_exact(n_channels).flat_map(shown).collect();
    if let Ok(image) = ImageData::new_with_u8_clamped_array_and_sh(Clamped(rgba.as_slice()), width, height) {
        // The image has the size of the canvas and no other origin: nothing to refuse.
        // web-sys takes integers or floats here, as `web_sys_unstable_apis` says: both come from a u8.
        let origin = 0_u8;
        let _ = context.put_image_data(&image, origin.into(), origin.into());
    }
}

/// A photo, `[height, width, 3]`, with the channels that samples of `shape` have: of one, its luminance (Rec. 709).
pub(crate) fn of_photo(photo: &[u8], shape: ImageShape) -> Vec<u8> {
    if is_photo(shape) {
        return photo.to_vec();
    }
    let luminance = |pixel: &[u8; 3]| {
        let [red, green, blue] = pixel.map(u32::from);
        u8::try_from((2126 * red + 7152 * green + 722 * blue + 5000) / 10_000).unwrap_or(u8::MAX)
    };
    let n_channels = usize::from(shape.channels);
    let (pixels, _) = photo.as_chunks::<3>();
    pixels.iter().flat_map(|pixel| std::iter::repeat_n(luminance(pixel), n_channels)).collect()
}

fn mean(channels: &[u8]) -> u8 {
    let sum: usize = channels.iter().copied().map(usize::from).sum();
    u8::try_from(sum / channels.len().max(1)).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_photo_has_the_channels_of_the_samples() {
        let shape = |channels| ImageShape { height: 1, width: 3, channels };
        let photo = [255, 255, 255, 0, 0, 0, 0, 255, 0];
        assert_eq!(of_photo(&photo, shape(3)), photo);
        assert_eq!(of_photo(&photo, shape(1)), [255, 0, 182]);
        assert_eq!(of_photo(&photo, shape(2)), [255, 255, 0, 0, 182, 182]);
    }
}
