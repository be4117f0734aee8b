//! Whether WebGPU has a graphics processor to offer, which only asking tells.

use js_sys::{Function, Promise, Reflect};
use wasm_bindgen::{JsCast, JsValue};
use wasm_bindgen_futures::JsFuture;

use crate::dom::window;
use crate::state::WebGpu;

/// What can be said without asking.
pub(crate) fn at_first_sight() -> WebGpu {
    match gpu() {
        Some(_) => WebGpu::Asking,
        None => WebGpu::Absent,
    }
}

/// Asks the browser. The answer is not used to compute: the worker asks for itself.
pub(crate) async fn ask() -> WebGpu {
    let Some(gpu) = gpu() else { return WebGpu::Absent };
    match request(&gpu).await {
        Ok(adapter) if !adapter.is_null() && !adapter.is_undefined() => WebGpu::Adapter,
        // A refusal is an answer too.
        _ => WebGpu::NoAdapter,
    }
}

fn gpu() -> Option<JsValue> {
    let gpu = Reflect::get(&window().navigator(), &"gpu".into()).ok()?;
    (!gpu.is_undefined() && !gpu.is_null()).then_some(gpu)
}

async fn request(gpu: &JsValue) -> Result<JsValue, JsValue> {
    let request: Function = Reflect::get(gpu, &"requestAdapter".into())?.dyn_into()?;
    let promise: Promise = request.call0(gpu)?.dyn_into()?;
    JsFuture::from(promise).await
}
