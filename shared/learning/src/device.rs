//! Where a model computes: the CPU everywhere, WebGPU in the browser, a native graphics API, CUDA.
//!
//! Opening a device never panics: a missing adapter, a missing driver or a build without the
//! backend is an error that says so. A device that is lost later says so too, so that a peer can
//! go on with the CPU.

#[cfg(feature = "wgpu")]
mod graphics;

use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, OnceLock};

use burn::tensor::{Device, FloatDType};
use serde::{Deserialize, Serialize};

#[cfg(feature = "wgpu")]
pub(crate) use self::graphics::Gpu;
#[cfg(feature = "wgpu")]
use self::graphics::open_wgpu;
use crate::platform;

/// What to compute on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeviceChoice {
    /// Pure Rust on the CPU; always there.
    Cpu,
    /// WebGPU in a browser; Vulkan, Metal, DirectX 12 or OpenGL natively. Needs the cargo feature `wgpu`.
    Wgpu,
    /// An NVIDIA GPU; needs the cargo feature `cuda`.
    Cuda,
}

/// Precision in which gradients are computed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Precision {
    /// Single precision throughout.
    #[default]
    Single,
    /// Products and convolutions in f16, with a loss that is scaled so that small gradients are not lost. Parameters,
    /// gradients and evaluations are in single precision all the same.
    F16,
    /// The same in bf16, which has the range of single precision and fewer digits.
    Bf16,
}

impl Precision {
    /// Of products and convolutions, where it is not single precision.
    pub(crate) fn half(self) -> Option<FloatDType> {
        match self {
            Self::Single => None,
            Self::F16 => Some(FloatDType::F16),
            Self::Bf16 => Some(FloatDType::BF16),
        }
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Single => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
        })
    }
}

/// Why a device cannot compute.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// The machine or the browser offers no adapter.
    #[error("no GPU adapter: {0}")]
    NoAdapter(String),
    /// The backend is not in this build.
    #[error("this build has no {0} backend; build it with the cargo feature `{0}`")]
    NotBuilt(DeviceChoice),
    /// There is an adapter or a driver, and it does not start.
    #[error("{choice} device cannot be opened: {reason}")]
    Open {
        /// What was asked for.
        choice: DeviceChoice,
        /// From the driver or the backend.
        reason: String,
    },
    /// Half precision was asked for.
    #[error("{device} does not compute in {precision}: use f32")]
    NoHalfPrecision {
        /// Its name.
        device: String,
        /// What was asked for.
        precision: Precision,
    },
    /// The device was lost: a driver reset, an unplugged GPU, a browser under memory pressure.
    #[error("the device was lost: {0}")]
    Lost(String),
    /// A computation on it failed.
    #[error("the computation failed: {0}")]
    Execution(String),
    /// Not one of `cpu`, `wgpu`, `cuda`.
    #[error("a device is `cpu`, `wgpu` or `cuda`, not `{0}`")]
    UnknownChoice(String),
}

/// An open device. Clones share it.
#[derive(Debug, Clone)]
pub struct ComputeDevice {
    choice: DeviceChoice,
    name: String,
    device: Device,
    precision: Precision,
    #[cfg(feature = "wgpu")]
    gpu: Option<Gpu>,
    /// Set once, by the graphics API's callbacks or by [`ComputeDevice::lose`].
    lost: Arc<OnceLock<String>>,
}

/// Opens a device; for [`DeviceChoice::Wgpu`] the one that was opened before.
///
/// # Errors
/// No adapter, no driver, a backend that is not in this build, or a wgpu device that was lost.
pub async fn open_device(choice: DeviceChoice) -> Result<ComputeDevice, DeviceError> {
    platform::run_constructors();
    match choice {
        DeviceChoice::Cpu => Ok(ComputeDevice::cpu()),
        DeviceChoice::Wgpu => open_wgpu().await,
        DeviceChoice::Cuda => open_cuda(),
    }
}

#[cfg(not(feature = "wgpu"))]
async fn open_wgpu() -> Result<ComputeDevice, DeviceError> {
    Err(DeviceError::NotBuilt(DeviceChoice::Wgpu))
}

#[cfg(not(feature = "cuda"))]
fn open_cuda() -> Result<ComputeDevice, DeviceError> {
    Err(DeviceError::NotBuilt(DeviceChoice::Cuda))
}

#[cfg(feature = "cuda")]
fn open_cuda() -> Result<ComputeDevice, DeviceError> {
    // Without a driver the backend panics at its first use, so that use happens here.
    let opened = platform::catch_panic(|| {
        let device = Device::cuda(0);
        burn::tensor::Tensor::<1>::ones([1], &device).try_into_data().map(|_| device)
    });
    match opened {
        Ok(Ok(device)) => Ok(ComputeDevice {
            choice: DeviceChoice::Cuda,
            name: "CUDA device 0".to_owned(),
            device,
            precision: Precision::Single,
            #[cfg(feature = "wgpu")]
            gpu: None,
            lost: Arc::default(),
        }),
        Ok(Err(error)) => Err(DeviceError::Open { choice: DeviceChoice::Cuda, reason: error.to_string() }),
        Err(panic) => Err(DeviceError::Open { choice: DeviceChoice::Cuda, reason: panic.to_string() }),
    }
}

impl ComputeDevice {
    /// The CPU, which needs no opening.
    pub fn cpu() -> Self {
        platform::run_constructors();
        Self {
            choice: DeviceChoice::Cpu,
            name: "CPU".to_owned(),
            device: Device::flex(),
            precision: Precision::Single,
            #[cfg(feature = "wgpu")]
            gpu: None,
            lost: Arc::default(),
        }
    }

    /// The same device, with another precision of gradients.
    ///
    /// # Errors
    /// Half precision on a device that has no such arithmetic.
    pub fn with_precision(mut self, precision: Precision) -> Result<Self, DeviceError> {
        if precision.half().is_some_and(|half| !self.device.supports_dtype(half)) {
            return Err(DeviceError::NoHalfPrecision { device: self.name, precision });
        }
        self.precision = precision;
        Ok(self)
    }

    /// Precision in which it computes gradients.
    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// What it was opened as.
    pub fn choice(&self) -> DeviceChoice {
        self.choice
    }

    /// Name of the adapter for people.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether the device is gone or has failed; it does not come back. Go on with another.
    pub fn is_lost(&self) -> bool {
        self.lost.get().is_some()
    }

    /// Uses the device no more, for this reason: what computed on it has panicked, as some backends do where the driver fails.
    pub fn lose(&self, reason: &str) {
        self.lost.get_or_init(|| reason.to_owned());
    }

    /// An error with the reason once the device is lost.
    pub fn check(&self) -> Result<(), DeviceError> {
        match self.lost.get() {
            Some(reason) => Err(DeviceError::Lost(reason.clone())),
            None => Ok(()),
        }
    }

    /// Handles a failed computation: an accelerator that fails once is not used again. The failure
    /// may be known before the graphics API reports that the device is lost.
    pub(crate) fn failed(&self, error: DeviceError) -> DeviceError {
        if self.choice == DeviceChoice::Cpu {
            return error;
        }
        DeviceError::Lost(self.lost.get_or_init(|| error.to_string()).clone())
    }

    /// The burn device, without autodiff.
    pub(crate) fn burn(&self) -> &Device {
        &self.device
    }

    /// The handles that burn's wgpu runtime works with, on a wgpu device.
    #[cfg(feature = "wgpu")]
    pub(crate) fn gpu(&self) -> Option<&Gpu> {
        self.gpu.as_ref()
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Cpu => "cpu",
            Self::Wgpu => "wgpu",
            Self::Cuda => "cuda",
        })
    }
}

impl FromStr for DeviceChoice {
    type Err = DeviceError;

    fn from_str(text: &str) -> Result<Self, DeviceError> {
        match text {
            "cpu" => Ok(Self::Cpu),
            "wgpu" => Ok(Self::Wgpu),
            "cuda" => Ok(Self::Cuda),
            other => Err(DeviceError::UnknownChoice(other.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use futures::executor::block_on;

    use super::*;

    #[test]
    fn choices_have_names() {
        for choice in [DeviceChoice::Cpu, DeviceChoice::Wgpu, DeviceChoice::Cuda] {
            assert_eq!(choice.to_string().parse(), Ok(choice));
        }
        assert_eq!("tpu".parse::<DeviceChoice>(), Err(DeviceError::UnknownChoice("tpu".to_owned())));
    }

    #[test]
    fn the_cpu_is_always_there() {
        let device = block_on(open_device(DeviceChoice::Cpu)).unwrap();
        assert_eq!(device.choice(), DeviceChoice::Cpu);
        assert!(!device.is_lost());
    }

    #[cfg(not(feature = "cuda"))]
    #[test]
    fn cuda_says_which_feature_is_missing() {
        let error = block_on(open_device(DeviceChoice::Cuda)).unwrap_err();
        assert_eq!(error, DeviceError::NotBuilt(DeviceChoice::Cuda));
    }

    #[test]
    fn a_lost_device_says_why() {
        let device = ComputeDevice::cpu();
        let clone = device.clone();
        device.lose("unplugged");
        clone.lose("again");
        assert!(clone.is_lost());
        let after = device.failed(DeviceError::Execution("no answer".to_owned()));
        assert_eq!(after, DeviceError::Execution("no answer".to_owned()));
        assert_eq!(device.check(), Err(DeviceError::Lost("unplugged".to_owned())));
    }
}
