//! A browser, in a page or a worker: WebGPU may be absent, or present without an adapter, and the
//! backend is not asked before that is known because it would take the module down with it.

use std::sync::Once;

use burn::tensor::wgpu::wgpu;
use js_sys::{Function, Promise, Reflect};
use wasm_bindgen::{JsCast, JsValue};
use wasm_bindgen_futures::JsFuture;

/// Gives each part of `values` to `f`, with where it begins.
pub(crate) fn on_chunks<R>(values: &mut [f32], len: usize, f: impl Fn(usize, &mut [f32]) -> R) -> Vec<R> {
    let chunks = values.chunks_mut(len.max(1)).enumerate();
    chunks.map(|(index, chunk)| f(index * len, chunk)).collect()
}

/// Gives each of the parts to `f`. Returns what it made of them, in their order.
pub(crate) fn on_each<T, R>(parts: Vec<T>, f: impl Fn(T) -> R) -> Vec<R> {
    parts.into_iter().map(f).collect()
}

/// Runs the module's static constructors, the first time it is called.
///
/// The tensor compiler registers its parts in some hundred constructors. Unless a module calls
/// them itself, the linker runs all of them in every exported function, and bindings call exported
/// functions for each JavaScript object they hand over: that doubled the time of a step.
pub(crate) fn run_constructors() {
    static CONSTRUCTED: Once = Once::new();
    CONSTRUCTED.call_once(construct);
}

#[allow(unsafe_code)]
fn construct() {
    unsafe extern "C" {
        fn __wasm_call_ctors();
    }
    // SAFETY: the linker defines this function, without arguments or result, in every module that
    // names it, and then calls it nowhere itself; `Once` lets it run a single time.
    unsafe { __wasm_call_ctors() }
}

/// Why the browser gives no graphics adapter.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AdapterError {
    #[error("this browser has no WebGPU")]
    NoWebGpu,
    #[error("the browser has WebGPU and offers no adapter")]
    NoneOffered,
    #[error("{0} is not defined")]
    Undefined(&'static str),
    #[error("{0}")]
    Unexpected(&'static str),
    /// What the browser's code threw.
    #[error("{0}")]
    Thrown(String),
}

impl AdapterError {
    fn thrown(error: &JsValue) -> Self {
        Self::Thrown(format!("{error:?}"))
    }
}

/// Asks the browser for an adapter and gives its name, as far as the browser tells one. The backend
/// requests an adapter of its own.
pub(crate) async fn check_adapter() -> Result<String, AdapterError> {
    let navigator = property(&js_sys::global(), "navigator")?;
    let gpu = property(&navigator, "gpu").map_err(|_| AdapterError::NoWebGpu)?;
    let request = property(&gpu, "requestAdapter")?
        .dyn_into::<Function>()
        .map_err(|_| AdapterError::Unexpected("navigator.gpu.requestAdapter is not a function"))?;
    let options = js_sys::Object::new();
    Reflect::set(&options, &"powerPreference".into(), &"high-performance".into())
        .map_err(|error| AdapterError::thrown(&error))?;
    let promise = request.call1(&gpu, &options).map_err(|error| AdapterError::thrown(&error))?;
    let promise = promise
        .dyn_into::<Promise>()
        .map_err(|_| AdapterError::Unexpected("requestAdapter gave no promise"))?;
    let adapter = JsFuture::from(promise).await.map_err(|error| AdapterError::thrown(&error))?;
    match adapter.is_null() || adapter.is_undefined() {
        true => Err(AdapterError::NoneOffered),
        false => Ok(adapter_name(&adapter)),
    }
}

fn adapter_name(adapter: &JsValue) -> String {
    let Ok(info) = property(adapter, "info") else {
        return String::new();
    };
    let word = |name| property(&info, name).ok().and_then(|word| word.as_string());
    // Few browsers give the whole name; where one does, the rest is in it.
    let described = word("description").filter(|name| !name.trim().is_empty());
    described.unwrap_or_else(|| {
        let words: Vec<_> = ["vendor", "architecture"].into_iter().filter_map(word).collect();
        words.join(" ").trim().to_owned()
    })
}

fn property(object: &JsValue, name: &'static str) -> Result<JsValue, AdapterError> {
    match Reflect::get(object, &JsValue::from_str(name)) {
        Ok(value) if !value.is_undefined() && !value.is_null() => Ok(value),
        Ok(_) => Err(AdapterError::Undefined(name)),
        Err(error) => Err(AdapterError::thrown(&error)),
    }
}

/// Nothing: the browser runs the callbacks between two tasks.
pub(crate) fn finish(_: &wgpu::Device, _: wgpu::SubmissionIndex) -> Result<(), wgpu::PollError> {
    Ok(())
}
