//! Shape rules of operations on maps `[channels, height, width]`.

use barnraise_protocol::run::model::operation::{BatchNorm, Convolution, GroupNorm, Pool};

use super::{Context, Outcome, SIZE_MAX, layer_tensors, scale_and_shift, shape};
use crate::graph::check;
use crate::graph::error::{BlockProblem, WantedShape};
use crate::graph::shape::ValueShape;

/// Largest window, step, padding and dilation, in pixels.
const WINDOW_MAX: u32 = 1024;

/// Windows along rows and columns.
struct Windows {
    kernel: [u32; 2],
    stride: [u32; 2],
    padding: [u32; 2],
    dilation: [u32; 2],
}

impl Windows {
    fn check(&self) -> Result<(), BlockProblem> {
        check::integers("kernel", &self.kernel, 1..=WINDOW_MAX, "1 to 1,024")?;
        check::integers("stride", &self.stride, 1..=WINDOW_MAX, "1 to 1,024")?;
        check::integers("padding", &self.padding, 0..=WINDOW_MAX, "0 to 1,024")?;
        check::integers("dilation", &self.dilation, 1..=WINDOW_MAX, "1 to 1,024")
    }

    /// Rows and columns of windows in maps of `size` pixels.
    fn count(&self, size: [usize; 2], got: &ValueShape) -> Result<[usize; 2], BlockProblem> {
        let [kernel, stride, padding, dilation] =
            [self.kernel, self.stride, self.padding, self.dilation].map(|pair| pair.map(|n| n as usize));
        let span: [usize; 2] = std::array::from_fn(|side| dilation[side] * (kernel[side] - 1) + 1);
        let mut windows = [0; 2];
        for side in 0..2 {
            let room = (size[side] + 2 * padding[side]).checked_sub(span[side]);
            let room = room.ok_or_else(|| shape(WantedShape::Window(span), got))?;
            windows[side] = room / stride[side] + 1;
        }
        Ok(windows)
    }
}

pub(super) fn convolution(options: &Convolution, context: &Context<'_>) -> Result<Outcome, BlockProblem> {
    let Convolution { maps, kernel, stride, padding, dilation, groups, bias, initial } = *options;
    let [channels, height, width] = context.maps()?;
    check::integers("maps", &[maps], 1..=SIZE_MAX, "1 to 16,777,216")?;
    let windows = Windows { kernel, stride, padding, dilation };
    windows.check()?;
    let divides = groups > 0 && channels.is_multiple_of(groups as usize) && maps.is_multiple_of(groups);
    check::that(divides, "groups", groups, "a divisor of its maps and of the input's channels")?;
    let [rows, columns] = windows.count([height, width], &context.inputs[0])?;
    let n_in = channels / groups as usize;
    let [kernel_height, kernel_width] = kernel.map(|size| size as usize);
    let area = n_in.checked_mul(kernel_height * kernel_width).ok_or(BlockProblem::Overflow)?;
    let maps = maps as usize;
    let weight = vec![maps, n_in, kernel_height, kernel_width];
    let tensors = layer_tensors(weight, area, bias.then_some(maps), initial)?;
    Ok(Outcome::of(vec![maps, rows, columns]).with(tensors))
}

pub(super) fn pool(options: &Pool, context: &Context<'_>) -> Result<Outcome, BlockProblem> {
    let Pool { kernel, stride, padding } = *options;
    let [channels, height, width] = context.maps()?;
    let windows = Windows { kernel, stride, padding, dilation: [1, 1] };
    windows.check()?;
    for (pad, size) in padding.into_iter().zip(kernel) {
        check::that(pad <= size / 2, "padding", pad, "at most half of its kernel")?;
    }
    let [rows, columns] = windows.count([height, width], &context.inputs[0])?;
    Ok(Outcome::of(vec![channels, rows, columns]).keeping(2))
}

pub(super) fn batch_norm(options: &BatchNorm, context: &Context<'_>) -> Result<Outcome, BlockProblem> {
    check::epsilon(options.epsilon)?;
    check::number("momentum", options.momentum, 0.0..=1.0, "0 to 1")?;
    let dims = context.values()?;
    if !matches!(dims.len(), 1 | 3) {
        return Err(shape(WantedShape::VectorOrMaps, &context.inputs[0]));
    }
    let channels = dims[0];
    let mut outcome = Outcome::of(dims.to_vec()).with(scale_and_shift(channels)).keeping(2);
    outcome.statistics = options.running.then_some((channels, options.momentum));
    Ok(outcome)
}

pub(super) fn group_norm(options: &GroupNorm, context: &Context<'_>) -> Result<Outcome, BlockProblem> {
    check::epsilon(options.epsilon)?;
    let dims = context.maps()?;
    let divides = options.groups > 0 && dims[0].is_multiple_of(options.groups as usize);
    check::that(divides, "groups", options.groups, "a divisor of the input's channels")?;
    Ok(Outcome::of(dims.to_vec()).with(scale_and_shift(dims[0])).keeping(2))
}
