//! How results come back from a device that burn computes on.

use burn::tensor::{DataError, ExecutionError, Tensor, TensorData};

use super::PassRead;
use crate::device::DeviceError;

/// Values of a pass, followed by whether its gradient is finite, where that was computed.
pub(super) fn read(given: Tensor<2>, is_finite: Option<Tensor<1>>) -> PassRead {
    let given = given.flatten::<1>(0, 1);
    let all = match is_finite {
        Some(flag) => Tensor::cat(vec![given, flag], 0),
        None => given,
    };
    Box::pin(
        async move { Ok(values(&all.into_data_async().await.map_err(|error| failed(&error))?)?.to_vec()) },
    )
}

/// The values of a tensor, flat, on the host.
pub(super) async fn on_host<const D: usize>(tensor: Tensor<D>) -> Result<Vec<f32>, DeviceError> {
    let data = tensor.into_data_async().await.map_err(|error| failed(&error))?;
    Ok(values(&data)?.to_vec())
}

pub(super) fn values(data: &TensorData) -> Result<&[f32], DeviceError> {
    data.as_slice().map_err(|error| not_values(&error))
}

pub(super) fn not_values(error: &DataError) -> DeviceError {
    DeviceError::Execution(error.to_string())
}

pub(super) fn failed(error: &ExecutionError) -> DeviceError {
    DeviceError::Execution(error.to_string())
}
