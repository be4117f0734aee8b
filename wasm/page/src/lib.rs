//! wasm/page
