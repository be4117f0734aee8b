//! Asks the browser for its WebGPU adapter.

use js_sys::{Function, Promise, Reflect};
use wasm_bindgen::{JsCast, JsValue};
use wasm_bindgen_futures::JsFuture;

use crate::dom::window;
use crate::preflight::{Adapter, WebGpu};

/// Names of software adapters, in lower case.
const IN_SOFTWARE: [&str; 4] = ["swiftshader", "llvmpipe", "lavapipe", "basic render"];

/// The state before the browser is asked.
pub(crate) fn at_first_sight() -> WebGpu {
    match gpu() {
        Some(_) => WebGpu::Asking,
        None => WebGpu::Absent,
    }
}

/// Asks the browser once per page. The adapter is not used to compute: the worker requests its own.
pub(crate) async fn ask() -> Option<Adapter> {
    match request(&gpu()?).await {
        Ok(adapter) if !adapter.is_null() && !adapter.is_undefined() => Some(describe(&adapter)),
        // A refusal is an answer too.
        _ => None,
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

/// Reads the adapter's properties; browsers hide some of them.
fn describe(adapter: &JsValue) -> Adapter {
    let of = |object: &JsValue, name: &str| Reflect::get(object, &name.into()).unwrap_or_default();
    let (info, limits) = (of(adapter, "info"), of(adapter, "limits"));
    let text = |name| of(&info, name).as_string().unwrap_or_default();
    let bytes = |name| of(&limits, name).as_f64().unwrap_or_default() as u64;
    let (vendor, architecture, description) = (text("vendor"), text("architecture"), text("description"));
    let is_marked = [&info, adapter].into_iter().any(|it| of(it, "isFallbackAdapter").is_truthy());
    let called = format!("{architecture} {description}").to_lowercase();
    let features = of(adapter, "features");
    let has = of(&features, "has").dyn_into::<Function>().ok();
    let has_f16 = has.and_then(|has| has.call1(&features, &"shader-f16".into()).ok());
    Adapter {
        is_software: is_marked || IN_SOFTWARE.iter().any(|name| called.contains(name)),
        buffer_bytes_max: bytes("maxBufferSize"),
        binding_bytes_max: bytes("maxStorageBufferBindingSize"),
        has_f16: has_f16.is_some_and(|has| has.is_truthy()),
        vendor,
        architecture,
        description,
    }
}
