//! The graphics API: WebGPU in a browser; Vulkan, Metal, DirectX 12 or OpenGL natively.

use std::sync::{Arc, OnceLock};

use burn::tensor::Device;
use burn::tensor::wgpu::{WgpuInitError, WgpuSetup, wgpu};
use futures::lock::Mutex;

use super::{ComputeDevice, DeviceChoice, DeviceError, Precision};
use crate::platform;

/// Words of an adapter's name up to this length are initials, such as AMD and ARM.
const INITIALS_MAX: usize = 3;

/// A device and queue of the graphics API, shared with burn.
#[derive(Debug, Clone)]
pub(crate) struct Gpu {
    pub(crate) device: wgpu::Device,
    pub(crate) queue: wgpu::Queue,
}

/// The one wgpu device of this process or browser worker: the backend registers it only once.
static WGPU: Mutex<Option<ComputeDevice>> = Mutex::new(None);

/// The one that was opened before, if there is one.
pub(super) async fn open_wgpu() -> Result<ComputeDevice, DeviceError> {
    let mut opened = WGPU.lock().await;
    if let Some(device) = opened.as_ref() {
        device.check()?;
        return Ok(device.clone());
    }
    let device = open().await?;
    *opened = Some(device.clone());
    Ok(device)
}

async fn open() -> Result<ComputeDevice, DeviceError> {
    let known_as =
        platform::check_adapter().await.map_err(|error| DeviceError::NoAdapter(error.to_string()))?;
    let (device, setup) = Device::wgpu_options().init_with_setup_async().await.map_err(wgpu_error)?;
    let lost = Arc::new(OnceLock::new());
    watch(&setup, &lost);
    let name = adapter_name(&setup, &known_as);
    let gpu = Some(Gpu { device: setup.device, queue: setup.queue });
    let precision = Precision::Single;
    Ok(ComputeDevice { choice: DeviceChoice::Wgpu, name, device, precision, gpu, lost })
}

/// Replaces burn's own callbacks, of which the one for errors panics.
fn watch(setup: &WgpuSetup, lost: &Arc<OnceLock<String>>) {
    let reason = Arc::clone(lost);
    setup.device.set_device_lost_callback(move |kind, message| {
        // The first reason counts; a later one is a consequence of it.
        let _ = reason.set(format!("{kind:?}: {message}"));
    });
    let reason = Arc::clone(lost);
    setup.device.on_uncaptured_error(Arc::new(move |error| {
        let _ = reason.set(format!("{error}"));
    }));
}

fn wgpu_error(error: WgpuInitError) -> DeviceError {
    match error {
        WgpuInitError::AdapterUnavailable { message, .. } => DeviceError::NoAdapter(message),
        other => DeviceError::Open { choice: DeviceChoice::Wgpu, reason: other.to_string() },
    }
}

/// Name of the adapter for people; browsers give only words in lower case.
fn adapter_name(setup: &WgpuSetup, known_as: &str) -> String {
    if !known_as.is_empty() {
        return in_title_case(known_as);
    }
    let info = setup.adapter.get_info();
    let parts = [info.name.as_str(), info.driver.as_str()];
    let known: Vec<_> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    match known.is_empty() {
        true => format!("{:?} adapter", info.backend),
        false => format!("{} ({:?})", known.join(", "), info.backend),
    }
}

/// `nvidia ampere` as `Nvidia Ampere`, `amd rdna-3` as `AMD Rdna-3`. Words that have a capital stay.
fn in_title_case(words: &str) -> String {
    let word = |word: &str| match word.chars().next() {
        _ if word.chars().any(char::is_uppercase) => word.to_owned(),
        Some(_) if word.len() <= INITIALS_MAX => word.to_uppercase(),
        Some(first) => first.to_uppercase().chain(word.chars().skip(1)).collect(),
        None => String::new(),
    };
    words.split_whitespace().map(word).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use futures::executor::block_on;

    use super::*;

    #[test]
    fn adapters_have_plain_names() {
        assert_eq!(in_title_case("google swiftshader"), "Google Swiftshader");
        assert_eq!(in_title_case("amd rdna-3"), "AMD Rdna-3");
        assert_eq!(in_title_case(" NVIDIA GeForce RTX 3080 "), "NVIDIA GeForce RTX 3080");
        assert_eq!(in_title_case(""), "");
    }

    #[test]
    fn wgpu_opens_more_than_once() {
        let first = block_on(open_wgpu());
        let second = block_on(open_wgpu());
        match first {
            Ok(device) => assert_eq!(device.name(), second.unwrap().name()),
            Err(error @ DeviceError::NoAdapter(_)) => {
                println!("SKIPPED: {error}: mesa-vulkan-drivers has one");
            }
            Err(error) => panic!("{error}"),
        }
    }
}
