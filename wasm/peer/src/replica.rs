//! A worker that computes parts of passes for the one that trains (see `platform/replicas.rs`).

use std::cell::RefCell;

use barnraise_learning::DataShape;
use barnraise_learning::replicas::{ReplicaCall, ReplicaEngine};
use barnraise_protocol::run::ModelSpec;
use futures::StreamExt;
use futures::channel::mpsc;
use js_sys::{Array, ArrayBuffer, Float32Array, Uint8Array};
use wasm_bindgen::JsCast;
use wasm_bindgen::prelude::{Closure, JsValue, wasm_bindgen};
use web_sys::MessageEvent;

use crate::page;

/// Calls that may wait.
const CALLS_MAX: usize = 64;

/// What is asked for, as the first of two values of a message; the second one is an `ArrayBuffer`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum CallKind {
    Load,
    Step,
    Take,
    Reset,
}

impl CallKind {
    fn of(number: f64) -> Option<Self> {
        [Self::Load, Self::Step, Self::Take, Self::Reset]
            .into_iter()
            .find(|kind| f64::from(*kind as u8) == number)
    }
}

/// What a replica begins with.
pub(crate) fn setup(model: &ModelSpec, data: DataShape) -> Option<Vec<u8>> {
    postcard::to_allocvec(&(model, data)).ok()
}

/// Takes over the worker as a replica, until it is ended.
///
/// # Errors
/// Outside of a dedicated worker; a model whose passes cannot be divided.
#[wasm_bindgen]
pub fn replicate(setup: &[u8]) -> Result<(), JsValue> {
    console_error_panic_hook::set_once();
    let scope = page::scope().ok_or_else(|| JsValue::from_str("this is no dedicated worker"))?;
    let (model, data): (ModelSpec, DataShape) =
        postcard::from_bytes(setup).map_err(|error| JsValue::from_str(&error.to_string()))?;
    let engine = ReplicaEngine::new(&model, data).map_err(|error| JsValue::from_str(&error.to_string()))?;
    let (sender, calls) = mpsc::channel(CALLS_MAX);
    let sender = RefCell::new(sender);
    let listener = Closure::<dyn Fn(MessageEvent)>::new(move |event: MessageEvent| {
        // A call that is lost is one that has failed.
        let taken = read(&event.data()).is_some_and(|call| sender.borrow_mut().try_send(call).is_ok());
        if !taken {
            post(None);
        }
    });
    scope.set_onmessage(Some(listener.as_ref().unchecked_ref()));
    let unreadable = Closure::<dyn Fn(JsValue)>::new(|_| post(None));
    scope.set_onmessageerror(Some(unreadable.as_ref().unchecked_ref()));
    // They listen for as long as the worker lives.
    unreadable.forget();
    listener.forget();
    wasm_bindgen_futures::spawn_local(answer_all(engine, calls));
    Ok(())
}

fn read(message: &JsValue) -> Option<(CallKind, ArrayBuffer)> {
    let pair = message.dyn_ref::<Array>()?;
    Some((CallKind::of(pair.get(0).as_f64()?)?, pair.get(1).dyn_into().ok()?))
}

async fn answer_all(mut engine: ReplicaEngine, mut calls: mpsc::Receiver<(CallKind, ArrayBuffer)>) {
    while let Some((kind, values)) = calls.next().await {
        let answer = match kind {
            CallKind::Load => engine.answer(ReplicaCall::Load(&Float32Array::new(&values).to_vec())).await,
            CallKind::Step => engine.answer(ReplicaCall::Step(Uint8Array::new(&values).to_vec())).await,
            CallKind::Take => engine.answer(ReplicaCall::Take).await,
            CallKind::Reset => engine.answer(ReplicaCall::Reset).await,
        };
        let has_failed = answer.is_none();
        post(answer);
        if has_failed {
            // What it holds counts no more.
            return;
        }
    }
}

/// Posts an answer; `null` tells of a failure.
fn post(answer: Option<Vec<f32>>) {
    let Some(scope) = page::scope() else { return };
    let posted = match answer.map(|values| Float32Array::from(values.as_slice())) {
        Some(values) => scope.post_message_with_transfer(&values, &Array::of1(&values.buffer())),
        None => scope.post_message(&JsValue::NULL),
    };
    if let Err(error) = posted {
        gloo::console::error!("an answer was lost:", error);
    }
}

#[cfg(feature = "tests")]
mod tests {
    use barnraise_protocol::dataset::ImageShape;
    use barnraise_protocol::run::Preset;
    use wasm_bindgen_test::wasm_bindgen_test;

    use super::*;

    #[wasm_bindgen_test]
    fn a_call_is_a_kind_and_a_buffer() {
        let buffer = JsValue::from(ArrayBuffer::new(8));
        for kind in [CallKind::Load, CallKind::Step, CallKind::Take, CallKind::Reset] {
            let (got, values) = read(&Array::of2(&JsValue::from(kind as u8), &buffer)).unwrap();
            assert_eq!((got, values.byte_length()), (kind, 8));
        }
        for wrong in [
            JsValue::NULL,
            buffer.clone(),
            Array::new().into(),
            Array::of2(&JsValue::from(4), &buffer).into(),
            Array::of2(&JsValue::from(0.5), &buffer).into(),
            Array::of2(&JsValue::from(1), &JsValue::from("part")).into(),
        ] {
            assert!(read(&wrong).is_none(), "{wrong:?}");
        }
    }

    #[wasm_bindgen_test]
    fn a_replica_begins_with_a_model_that_can_be_divided() {
        let data =
            DataShape::Images { shape: ImageShape { height: 28, width: 28, channels: 1 }, n_classes: 10 };
        assert!(replicate(&[]).is_err());
        let divisible = setup(&Preset::LeNet.model(1), data).unwrap();
        assert!(replicate(&divisible[1..]).is_err());
    }
}
