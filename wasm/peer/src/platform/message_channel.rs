//! `MessageChannel`, declared here because web-sys features are shared by the whole build, burn included.

use wasm_bindgen::prelude::wasm_bindgen;
use web_sys::MessagePort;

#[wasm_bindgen]
extern "C" {
    pub(super) type MessageChannel;

    #[wasm_bindgen(constructor)]
    pub(super) fn new() -> MessageChannel;

    #[wasm_bindgen(method, getter)]
    pub(super) fn port1(this: &MessageChannel) -> MessagePort;

    #[wasm_bindgen(method, getter)]
    pub(super) fn port2(this: &MessageChannel) -> MessagePort;
}
