//! A photo of the visitor's own, as the samples of the run are. It never leaves the tab.

use barnraise_protocol::dataset::ImageShape;
use wasm_bindgen::prelude::wasm_bindgen;
use wasm_bindgen::{JsCast, JsValue};
use web_sys::{File, HtmlCanvasElement};

use crate::dom::{DomError, create};
use crate::picture::context_of;

// Declared here because web-sys features are shared by the whole build, burn included.
#[wasm_bindgen]
extern "C" {
    #[wasm_bindgen(catch, js_name = createImageBitmap)]
    async fn create_image_bitmap(file: &File) -> Result<JsValue, JsValue>;

    #[wasm_bindgen(js_name = ImageBitmap)]
    type Bitmap;
    #[wasm_bindgen(method, getter)]
    fn width(this: &Bitmap) -> f64;
    #[wasm_bindgen(method, getter)]
    fn height(this: &Bitmap) -> f64;
    #[wasm_bindgen(method)]
    fn close(this: &Bitmap);

    #[wasm_bindgen(js_name = CanvasRenderingContext2D)]
    type PhotoContext;
    #[wasm_bindgen(method, setter, js_name = imageSmoothingQuality)]
    fn set_smoothing_quality(this: &PhotoContext, quality: &str);
    #[wasm_bindgen(method, catch, js_name = drawImage)]
    fn draw_part(
        this: &PhotoContext,
        bitmap: &Bitmap,
        left: f64,
        top: f64,
        width: f64,
        height: f64,
        to_left: f64,
        to_top: f64,
        to_width: f64,
        to_height: f64,
    ) -> Result<(), JsValue>;
}

/// Left, top, width and height of the middle of a photo that has the proportions of a sample, in pixels.
fn middle(photo: (f64, f64), shape: ImageShape) -> [f64; 4] {
    let (width, height) = (f64::from(shape.width), f64::from(shape.height));
    let scale = (photo.0 / width).min(photo.1 / height);
    let (part_width, part_height) = (width * scale, height * scale);
    [(photo.0 - part_width) / 2.0, (photo.1 - part_height) / 2.0, part_width, part_height]
}

/// The photo upright, its middle scaled to `shape`: `[height, width, 3]`. What is transparent shows white.
///
/// # Errors
/// The browser cannot read the file.
pub(crate) async fn read(file: &File, shape: ImageShape) -> Result<Vec<u8>, JsValue> {
    let bitmap: Bitmap = create_image_bitmap(file).await?.unchecked_into();
    let canvas: HtmlCanvasElement = create("canvas")?;
    canvas.set_width(shape.width.into());
    canvas.set_height(shape.height.into());
    let context = context_of(&canvas).ok_or(DomError::Element("canvas"))?;
    let (width, height) = (f64::from(shape.width), f64::from(shape.height));
    context.set_fill_style_str("#fff");
    context.fill_rect(0.0, 0.0, width, height);
    let drawn: &PhotoContext = context.unchecked_ref();
    drawn.set_smoothing_quality("high");
    let [left, top, part_width, part_height] = middle((bitmap.width(), bitmap.height()), shape);
    drawn.draw_part(&bitmap, left, top, part_width, part_height, 0.0, 0.0, width, height)?;
    bitmap.close();
    // web-sys takes integers or floats here, as `web_sys_unstable_apis` says: both come from these.
    let origin = 0_u8;
    let image =
        context.get_image_data(origin.into(), origin.into(), shape.width.into(), shape.height.into())?;
    Ok(image.data().chunks_exact(4).flat_map(|pixel| [pixel[0], pixel[1], pixel[2]]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_has_the_proportions_of_a_sample() {
        let shape = |height, width| ImageShape { height, width, channels: 3 };
        assert_eq!(middle((400.0, 300.0), shape(32, 32)), [50.0, 0.0, 300.0, 300.0]);
        assert_eq!(middle((300.0, 400.0), shape(32, 32)), [0.0, 50.0, 300.0, 300.0]);
        assert_eq!(middle((64.0, 64.0), shape(16, 32)), [0.0, 16.0, 64.0, 32.0]);
    }
}
