//! The drawing canvas: turns strokes of a pointer into ink, for a question to the model.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use wasm_bindgen::JsCast;
use web_sys::{CanvasRenderingContext2d, HtmlCanvasElement, ImageData, PointerEvent};

use crate::dom::{DomError, DomListener, by_id};
use crate::picture::context_of;

/// Pixels of a side of the canvas; `index.html` says the same.
const SIDE: u16 = 280;
/// About two and a half pixels of a 28-pixel picture.
const LINE_WIDTH: f64 = 24.0;

/// The canvas.
pub(crate) struct Sketch {
    canvas: HtmlCanvasElement,
    context: CanvasRenderingContext2d,
    /// Last position of the pen, while it is down.
    pen: Cell<Option<(f64, f64)>>,
    has_ink: Cell<bool>,
    /// The ink when the pen was lifted last.
    kept: RefCell<Option<ImageData>>,
}

impl Sketch {
    pub(crate) fn find() -> Result<Rc<Self>, DomError> {
        let canvas: HtmlCanvasElement = by_id("sketch")?;
        canvas.set_width(SIDE.into());
        canvas.set_height(SIDE.into());
        let context = context_of(&canvas).ok_or(DomError::Element("sketch"))?;
        let sketch = Self {
            canvas,
            context,
            pen: Cell::new(None),
            has_ink: Cell::new(false),
            kept: RefCell::new(None),
        };
        sketch.take_pen();
        Ok(Rc::new(sketch))
    }

    /// Follows the pointer; `on_lift` is called when a stroke ends.
    pub(crate) fn listen(self: &Rc<Self>, on_lift: impl Fn() + 'static) {
        let listener = |name: &'static str, act: Box<dyn Fn(&PointerEvent)>| {
            DomListener::new(&self.canvas, name, move |event| act(event.unchecked_ref())).keep();
        };
        let sketch = Rc::clone(self);
        listener("pointerdown", Box::new(move |event| sketch.lower(event)));
        let sketch = Rc::clone(self);
        listener("pointermove", Box::new(move |event| sketch.draw_to(event)));
        let on_lift = Rc::new(on_lift);
        for name in ["pointerup", "pointercancel"] {
            let (sketch, on_lift) = (Rc::clone(self), Rc::clone(&on_lift));
            listener(
                name,
                Box::new(move |_| {
                    if sketch.pen.take().is_some() {
                        on_lift();
                    }
                }),
            );
        }
    }

    /// The ink, `[side, side]`, and the side.
    pub(crate) fn ink(&self) -> Option<(Vec<u8>, usize)> {
        // web-sys takes integers or floats here, as `web_sys_unstable_apis` says: both come from these.
        let (origin, side) = (0_u8, SIDE);
        let image =
            self.context.get_image_data(origin.into(), origin.into(), side.into(), side.into()).ok()?;
        // Opacity alone: the style sheet sets the colour.
        let ink = image.data().chunks_exact(4).map(|pixel| pixel[3]).collect();
        self.kept.replace(Some(image));
        Some((ink, SIDE.into()))
    }

    /// Clears the canvas.
    pub(crate) fn clear(&self) {
        if self.has_ink.replace(false) {
            self.kept.replace(None);
            self.context.clear_rect(0.0, 0.0, f64::from(SIDE), f64::from(SIDE));
        }
    }

    /// Restores pen and ink after the browser cleared the canvas.
    pub(crate) fn mend(&self) {
        self.take_pen();
        if let Some(image) = &*self.kept.borrow() {
            let origin = 0_u8;
            // As large as the canvas, from the same page: nothing to refuse.
            let _ = self.context.put_image_data(image, origin.into(), origin.into());
        }
    }

    fn take_pen(&self) {
        self.context.set_line_width(LINE_WIDTH);
        self.context.set_line_cap("round");
        self.context.set_line_join("round");
    }

    fn lower(&self, event: &PointerEvent) {
        if !event.is_primary() || event.button() != 0 {
            return;
        }
        event.prevent_default();
        // Without capture a stroke that leaves the canvas just ends at its edge.
        let _ = self.canvas.set_pointer_capture(event.pointer_id());
        self.pen.set(Some(self.place(event)));
        self.draw_to(event);
    }

    fn draw_to(&self, event: &PointerEvent) {
        let Some((from_x, from_y)) = self.pen.get().filter(|_| event.is_primary()) else {
            return;
        };
        let (x, y) = self.place(event);
        self.context.begin_path();
        self.context.move_to(from_x, from_y);
        self.context.line_to(x, y);
        self.context.stroke();
        self.pen.set(Some((x, y)));
        self.has_ink.set(true);
    }

    /// From window to canvas coordinates; the canvas may be shown scaled.
    fn place(&self, event: &PointerEvent) -> (f64, f64) {
        let shown = self.canvas.get_bounding_client_rect();
        (
            scale(event.client_x(), shown.left(), shown.width()),
            scale(event.client_y(), shown.top(), shown.height()),
        )
    }
}

/// `at` is an integer or a float, depending on the version of web-sys.
fn scale(at: impl Into<f64>, start: f64, length: f64) -> f64 {
    (at.into() - start) / length.max(1.0) * f64::from(SIDE)
}
