//! Finds elements and writes to them. Writes changes only, so that an unchanged text causes no layout.

use wasm_bindgen::closure::Closure;
use wasm_bindgen::{JsCast, JsValue};
use web_sys::{Document, Element, Event, EventTarget, HtmlElement, Window};

/// Why the page could not be set up.
#[derive(Debug)]
pub(crate) enum DomError {
    /// `index.html` lacks an element of this id, or has another kind of element there.
    Element(&'static str),
    /// The browser refused something.
    Browser(JsValue),
}

impl From<JsValue> for DomError {
    fn from(error: JsValue) -> Self {
        Self::Browser(error)
    }
}

impl From<DomError> for JsValue {
    fn from(error: DomError) -> Self {
        match error {
            DomError::Element(id) => JsValue::from_str(&format!("the page has no usable element #{id}")),
            DomError::Browser(error) => error,
        }
    }
}

pub(crate) fn window() -> Window {
    gloo::utils::window()
}

pub(crate) fn document() -> Document {
    gloo::utils::document()
}

/// The browser's network information, which not every browser has.
pub(crate) fn network_information() -> Option<EventTarget> {
    let navigator = JsValue::from(window().navigator());
    js_sys::Reflect::get(&navigator, &"connection".into()).ok()?.dyn_into().ok()
}

/// Milliseconds since the page was opened.
pub(crate) fn now_ms() -> f64 {
    window().performance().map_or(0.0, |performance| performance.now())
}

/// Local wall-clock time at `now_ms` (of [`now_ms`]), in the visitor's format.
pub(crate) fn clock_time(now_ms: f64) -> String {
    let origin_ms = window().performance().map_or(0.0, |performance| performance.time_origin());
    let date = js_sys::Date::new(&(origin_ms + now_ms).into());
    String::from(date.to_locale_time_string("default"))
}

/// The element of this id, which must be a `T`.
pub(crate) fn by_id<T: JsCast>(id: &'static str) -> Result<T, DomError> {
    document().get_element_by_id(id).and_then(|element| element.dyn_into().ok()).ok_or(DomError::Element(id))
}

/// A new element of this kind.
pub(crate) fn create<T: JsCast>(tag: &'static str) -> Result<T, DomError> {
    document().create_element(tag)?.dyn_into().map_err(|_| DomError::Element(tag))
}

/// Sets an attribute; a name that is a literal is never refused.
pub(crate) fn set_attribute(element: &Element, name: &'static str, value: &str) {
    if element.get_attribute(name).as_deref() != Some(value) {
        let _ = element.set_attribute(name, value);
    }
}

/// Listens to an event until it is dropped.
///
/// Takes the event by value: a closure that borrows it makes wasm-bindgen emit `table.fill`, which
/// older versions of wasm-opt cannot read.
pub(crate) struct DomListener {
    target: EventTarget,
    name: &'static str,
    act: Closure<dyn Fn(Event)>,
}

impl DomListener {
    pub(crate) fn new(target: &EventTarget, name: &'static str, act: impl Fn(Event) + 'static) -> Self {
        let act = Closure::<dyn Fn(Event)>::new(act);
        // Refused only for a callback that is no function.
        let _ = target.add_event_listener_with_callback(name, act.as_ref().unchecked_ref());
        Self { target: target.clone(), name, act }
    }

    /// Listens to events of all elements within `target`, also of those that do not bubble, for as long as the page is
    /// open.
    pub(crate) fn keep_for_all_within(
        target: &EventTarget,
        name: &'static str,
        act: impl Fn(Event) + 'static,
    ) {
        let act = Closure::<dyn Fn(Event)>::new(act).into_js_value();
        // Refused only for a callback that is no function.
        let _ = target.add_event_listener_with_callback_and_bool(name, act.unchecked_ref(), true);
    }

    /// Listens for as long as the page is open.
    pub(crate) fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for DomListener {
    fn drop(&mut self) {
        let _ = self.target.remove_event_listener_with_callback(self.name, self.act.as_ref().unchecked_ref());
    }
}

/// An element whose text, value and visibility change.
#[derive(Debug)]
pub(crate) struct Field {
    element: HtmlElement,
    text: String,
    value: String,
    is_hidden: Option<bool>,
}

impl Field {
    pub(crate) fn find(id: &'static str) -> Result<Self, DomError> {
        let element = by_id(id)?;
        Ok(Self { element, text: String::new(), value: String::new(), is_hidden: None })
    }

    pub(crate) fn element(&self) -> &HtmlElement {
        &self.element
    }

    /// Whether this text is shown.
    pub(crate) fn shows(&self, text: &str) -> bool {
        self.text == text
    }

    pub(crate) fn set_text(&mut self, text: &str) {
        if self.text != text {
            self.element.set_text_content(Some(text));
            text.clone_into(&mut self.text);
        }
    }

    /// Sets the text, and the number in `data-value`.
    pub(crate) fn set_number(&mut self, text: &str, value: f64) {
        self.set_text(text);
        let value = value.to_string();
        if self.value != value {
            let _ = self.element.set_attribute("data-value", &value);
            self.value = value;
        }
    }

    pub(crate) fn set_hidden(&mut self, is_hidden: bool) {
        if self.is_hidden != Some(is_hidden) {
            self.element.set_hidden(is_hidden);
            self.is_hidden = Some(is_hidden);
        }
    }

    /// Sets the text, or hides the element for `None`.
    pub(crate) fn set_optional(&mut self, text: Option<&str>) {
        self.set_text(text.unwrap_or_default());
        self.set_hidden(text.is_none());
    }
}
