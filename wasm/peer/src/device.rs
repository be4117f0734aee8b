//! Opens the device that a worker computes on.

use barnraise_learning::{ComputeDevice, DeviceError, open_device};
use barnraise_messages::DeviceChoice;

/// The device of the visitor's choice.
///
/// # Errors
/// WebGPU was asked for, and there is none.
pub(crate) async fn open(choice: DeviceChoice) -> Result<ComputeDevice, DeviceError> {
    match choice {
        DeviceChoice::Cpu => Ok(ComputeDevice::cpu()),
        DeviceChoice::WebGpu => open_device(barnraise_learning::DeviceChoice::Wgpu).await,
        DeviceChoice::Auto => match open_device(barnraise_learning::DeviceChoice::Wgpu).await {
            Ok(device) => Ok(device),
            Err(error) => {
                gloo::console::info!(format!("WebGPU is not used: {error}"));
                Ok(ComputeDevice::cpu())
            }
        },
    }
}
