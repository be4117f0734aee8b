//! Draws the card of [`ShareCard`] on a canvas, and hands it to the device's share dialog or downloads it. Nothing
//! leaves the device without the visitor.

use std::rc::Rc;

use js_sys::{Array, Function, Promise, Reflect};
use wasm_bindgen::{JsCast, JsValue};
use wasm_bindgen_futures::{JsFuture, spawn_local};
use web_sys::{Blob, CanvasRenderingContext2d, File, FilePropertyBag, HtmlCanvasElement, ShareData};

use crate::app::App;
use crate::dom::{DomError, create, window};
use crate::picture::context_of;
use crate::receipts::give;
use crate::state::{CARD_SIZE, CardError, PageEvent, ShareCard};

const FILE_NAME: &str = "barnraise.png";
/// The light colours of `style.css`: a picture has no colour scheme.
const PAPER: &str = "#faf7f1";
const INK: &str = "#211e1a";
const SOFT: &str = "#625b51";
const ACCENT: &str = "#a63a22";
const LINE: &str = "#e3dbcd";
const SANS: &str = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', sans-serif";
const SERIF: &str = "ui-serif, Palatino, Georgia, 'Noto Serif', 'DejaVu Serif', serif";
/// Left end of the text.
const LEFT: f64 = 80.0;

/// Draws the card and shares it; the outcome is an event.
pub(crate) fn make(app: &Rc<App>, card: ShareCard) {
    let app = Rc::clone(app);
    spawn_local(async move {
        let outcome = share(&card).await;
        let outcome = outcome.map_err(|error| match is_of_visitor(&error) {
            true => CardError::NotShared,
            false => CardError::NotDrawn,
        });
        app.dispatch(PageEvent::CardMade(outcome));
    });
}

async fn share(card: &ShareCard) -> Result<u64, JsValue> {
    let picture = draw(card).await?;
    let n_bytes = picture.size() as u64;
    let kind = FilePropertyBag::new();
    kind.set_type("image/png");
    let file = File::new_with_blob_sequence_and_options(&Array::of1(&picture), FILE_NAME, &kind)?;
    let data = ShareData::new();
    data.set_files(&Array::of1(&file));
    data.set_text(&card.in_words());
    let navigator = window().navigator();
    // Not every browser has the two, and not every one takes files.
    let has = |name: &str| {
        Reflect::get(&navigator, &name.into()).is_ok_and(|found| found.is_instance_of::<Function>())
    };
    if has("share") && has("canShare") && navigator.can_share_with_data(&data) {
        match JsFuture::from(navigator.share_with_data(&data)).await {
            Ok(_) => return Ok(n_bytes),
            Err(error) if is_of_visitor(&error) => return Err(error),
            // Some browsers allow less time after the click.
            Err(_) => {}
        }
    }
    give(&picture, FILE_NAME)?;
    Ok(n_bytes)
}

/// Whether the visitor closed the dialog.
fn is_of_visitor(error: &JsValue) -> bool {
    Reflect::get(error, &"name".into()).is_ok_and(|name| name.as_string().as_deref() == Some("AbortError"))
}

async fn draw(card: &ShareCard) -> Result<Blob, JsValue> {
    let canvas: HtmlCanvasElement = create("canvas")?;
    canvas.set_width(CARD_SIZE.0);
    canvas.set_height(CARD_SIZE.1);
    let context = context_of(&canvas).ok_or(DomError::Element("canvas"))?;
    paint(&context, card)?;
    let drawn = Promise::new(&mut |resolve, reject| {
        if let Err(error) = canvas.to_blob(&resolve) {
            let _ = reject.call1(&JsValue::NULL, &error);
        }
    });
    JsFuture::from(drawn).await?.dyn_into()
}

fn paint(context: &CanvasRenderingContext2d, card: &ShareCard) -> Result<(), JsValue> {
    let (width, height) = (f64::from(CARD_SIZE.0), f64::from(CARD_SIZE.1));
    context.set_fill_style_str(PAPER);
    context.fill_rect(0.0, 0.0, width, height);
    context.set_fill_style_str(ACCENT);
    context.fill_rect(0.0, 0.0, 16.0, height);
    let text = |font: String, colour: &str, words: &str, (x, y): (f64, f64), room: f64| {
        context.set_font(&font);
        context.set_fill_style_str(colour);
        context.fill_text_with_max_width(words, x, y, room)
    };
    text(format!("600 30px {SERIF}"), INK, "Barnraise", (LEFT, 90.0), width)?;
    text(format!("26px {SANS}"), SOFT, &card.title, (LEFT, 140.0), width - 2.0 * LEFT)?;
    text(format!("500 54px {SERIF}"), INK, &card.headline, (LEFT, 270.0), 590.0)?;
    for (idx, line) in card.lines.iter().enumerate() {
        text(format!("30px {SANS}"), INK, line, (LEFT, 340.0 + 48.0 * idx as f64), 590.0)?;
    }
    text(format!("26px {SANS}"), SOFT, &card.curve_label, (700.0, 490.0), 420.0)?;
    text(format!("26px {SANS}"), ACCENT, &card.place, (LEFT, height - 60.0), width - 2.0 * LEFT)?;
    context.set_stroke_style_str(LINE);
    context.set_line_width(2.0);
    context.stroke_rect(700.0, 190.0, 420.0, 250.0);
    context.set_stroke_style_str(ACCENT);
    context.set_line_width(5.0);
    context.set_line_join("round");
    context.begin_path();
    for (idx, &(x, y)) in card.curve.iter().enumerate() {
        match idx {
            0 => context.move_to(x, y),
            _ => context.line_to(x, y),
        }
    }
    context.stroke();
    Ok(())
}
