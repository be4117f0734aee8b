//! The kernels of a convolution with its pooling and ReLU.
//!
//! The largest value of each pooling window is all that is stored, with its place: the way back
//! then touches a quarter of the convolution's outputs.

use super::kernel::{BufferRole, Extent, INFO_BINDING, Kernel, PARTS, READ, WRITE, source, unroll};
use super::plan::{ConvolutionPlan, LENET_KERNEL};

const AREA: usize = LENET_KERNEL * LENET_KERNEL;
/// Height and width of the input that a pooling window of four outputs sees.
const PATCH: usize = LENET_KERNEL + 1;

/// Convolution, bias, 2x2 maximum and ReLU: one window by four maps per invocation.
pub(super) fn forward(layer: &ConvolutionPlan, index: usize) -> Kernel {
    let workgroup = [8, 8];
    let [pooled_height, pooled_width] = layer.pooled;
    let (maps4, weights, channels) = (layer.maps_padded / 4, layer.weight_offset / 4, layer.channels);
    let bias = weights + channels * AREA * maps4;
    let sums = unroll(4, |place| format!("var a{place} = w[{bias}u + group];\n"));
    let (places, patch) = patch(layer);
    let products = unroll(AREA, |tap| {
        let (row, column) = (tap / LENET_KERNEL, tap % LENET_KERNEL);
        let sums = unroll(4, |place| {
            let (row, column) = (row + place / 2, column + place % 2);
            format!("a{place} = fma(vec4f(x{row}_{column}), w{tap}, a{place});\n")
        });
        format!("let w{tap} = w[at + {}u];\n{sums}", tap * maps4)
    });
    let maximum = unroll(3, |place| {
        let place = place + 1;
        format!(
            "let m{place} = a{place} > best;
            best = select(best, a{place}, m{place});
            which = select(which, vec4u({place}u), m{place});\n"
        )
    });
    let body = format!(
        "if (id.x >= {width4}u || id.y >= info.n_rows * {pooled_height}u) {{ return; }}
        let group = id.x % {maps4}u;
        let px = id.x / {maps4}u;
        let py = id.y % {pooled_height}u;
        let image = (id.y / {pooled_height}u) * {stride}u;
        {places}{sums}for (var c = 0u; c < {channels}u; c++) {{
            let at = {weights}u + c * {channel_weights}u + group;\n{patch}{products}}}
        var best = a0;
        var which = vec4u();
        {maximum}let out = id.y * {width4}u + id.x;
        y[out] = max(best, vec4f());
        argmax[out] = which.x | (which.y << 8u) | (which.z << 16u) | (which.w << 24u);\n",
        width4 = pooled_width * maps4,
        stride = layer.input_stride,
        channel_weights = AREA * maps4,
    );
    let bindings = [
        INFO_BINDING,
        (READ, "x", "array<f32>"),
        (READ, "w", "array<vec4f>"),
        (WRITE, "y", "array<vec4f>"),
        (WRITE, "argmax", "array<u32>"),
    ];
    Kernel {
        name: format!("convolution {index}"),
        source: source(&bindings, workgroup, &body),
        roles: vec![
            BufferRole::Info,
            BufferRole::Activations(index),
            BufferRole::Weights,
            BufferRole::Activations(index + 1),
            BufferRole::Argmax(index),
        ],
        workgroup,
        extent: [Extent::Fixed(pooled_width * maps4), Extent::PerRow { n: pooled_height, per_invocation: 1 }],
    }
}

/// Where a window's patch lies, and the loads of its pixels; zeros outside of a padded image.
fn patch(layer: &ConvolutionPlan) -> (String, String) {
    let ConvolutionPlan { height, width, padding, channels_padded, .. } = *layer;
    let axis = |name: &str, from: &str, size: usize, stride: usize| {
        unroll(PATCH, |step| match padding {
            0 => format!("let {name}{step} = (2u * {from} + {step}u) * {stride}u;\n"),
            _ => format!(
                "let {name}i{step} = i32(2u * {from} + {step}u) - {padding};
                let {name}in{step} = {name}i{step} >= 0 && {name}i{step} < {size};
                let {name}{step} = u32(clamp({name}i{step}, 0, {})) * {stride}u;\n",
                size - 1
            ),
        })
    };
    let rows = axis("r", "py", height, width * channels_padded);
    let columns = axis("q", "px", width, channels_padded);
    let loads = unroll(PATCH * PATCH, |pixel| {
        let (row, column) = (pixel / PATCH, pixel % PATCH);
        let value = format!("x[image + r{row} + q{column} + c]");
        match padding {
            0 => format!("let x{row}_{column} = {value};\n"),
            _ => format!("let x{row}_{column} = select(0.0, {value}, rin{row} && qin{column});\n"),
        }
    });
    (rows + &columns, loads)
}

/// A part of the weights' gradient: one map, channel and kernel row per invocation, every
/// [`PARTS`]th sample.
pub(super) fn weights(layer: &ConvolutionPlan, index: usize) -> Kernel {
    let workgroup = [64, 1];
    let ConvolutionPlan { height, width, padding, channels, channels_padded, maps, .. } = *layer;
    let [pooled_height, pooled_width] = layer.pooled;
    let n_invocations = maps * channels * LENET_KERNEL;
    let n_gradients = layer.n_gradients();
    let sums = unroll(LENET_KERNEL, |kx| format!("var s{kx} = 0.0;\n"));
    let products = unroll(LENET_KERNEL, |kx| {
        format!(
            "let x{kx} = left + {kx};
            let v{kx} = x[row + u32(clamp(x{kx}, 0, {right})) * {channels_padded}u];
            s{kx} = fma(d0, select(0.0, v{kx}, inside && x{kx} >= 0 && x{kx} <= {right}), s{kx});\n",
            right = width - 1
        )
    });
    let stores =
        unroll(LENET_KERNEL, |kx| format!("partial[at + id.x * {LENET_KERNEL}u + {kx}u] = s{kx};\n"));
    let body = format!(
        "if (id.x >= {n_invocations}u || id.y >= {PARTS}u) {{ return; }}
        let ky = id.x % {LENET_KERNEL}u;
        let c = (id.x / {LENET_KERNEL}u) % {channels}u;
        let map = id.x / {per_map}u;
        var bias = 0.0;
        {sums}for (var m = id.y; m < info.n_samples; m += {PARTS}u) {{
        for (var py = 0u; py < {pooled_height}u; py++) {{
        for (var px = 0u; px < {pooled_width}u; px++) {{
            let cell = (m * {pooled_height}u + py) * {pooled_width}u + px;
            let d0 = d[cell * {maps_padded}u + map];
            let place = (argmax[cell * {maps4}u + map / 4u] >> (8u * (map % 4u))) & 255u;
            let top = i32(2u * py + place / 2u + ky) - {padding};
            let left = i32(2u * px + place % 2u) - {padding};
            let inside = top >= 0 && top <= {bottom};
            let row = m * {stride}u + u32(clamp(top, 0, {bottom})) * {row_stride}u + c;
            bias += d0;
            {products}}}
        }}
        }}
        let at = id.y * {n_gradients}u;
        {stores}if (c == 0u && ky == 0u) {{ partial[at + {n_weights}u + map] = bias; }}\n",
        per_map = channels * LENET_KERNEL,
        maps_padded = layer.maps_padded,
        maps4 = layer.maps_padded / 4,
        bottom = height - 1,
        stride = layer.input_stride,
        row_stride = width * channels_padded,
        n_weights = maps * channels * AREA,
    );
    let bindings = [
        INFO_BINDING,
        (READ, "x", "array<f32>"),
        (READ, "d", "array<f32>"),
        (READ, "argmax", "array<u32>"),
        (WRITE, "partial", "array<f32>"),
    ];
    Kernel {
        name: format!("convolution {index}: weights"),
        source: source(&bindings, workgroup, &body),
        roles: vec![
            BufferRole::Info,
            BufferRole::Activations(index),
            BufferRole::Derivatives(index + 1),
            BufferRole::Argmax(index),
            BufferRole::Partial(index),
        ],
        workgroup,
        extent: [Extent::Fixed(n_invocations), Extent::Fixed(PARTS)],
    }
}

/// Adds the parts to the gradient sum, one value per invocation.
pub(super) fn add_parts(layer: &ConvolutionPlan, index: usize) -> Kernel {
    let workgroup = [64, 1];
    let n_gradients = layer.n_gradients();
    let body = format!(
        "if (id.x >= {n_gradients}u) {{ return; }}
        var sum = 0.0;
        for (var part = 0u; part < {PARTS}u; part++) {{ sum += partial[part * {n_gradients}u + id.x]; }}
        g[{}u + id.x] += sum;\n",
        layer.gradient_offset
    );
    let bindings = [(READ, "partial", "array<f32>"), (WRITE, "g", "array<f32>")];
    Kernel {
        name: format!("convolution {index}: sum"),
        source: source(&bindings, workgroup, &body),
        roles: vec![BufferRole::Partial(index), BufferRole::Gradients],
        workgroup,
        extent: [Extent::Fixed(n_gradients), Extent::Fixed(1)],
    }
}

/// Derivative by the input where that is above zero: one pixel by four channels per invocation.
pub(super) fn input(layer: &ConvolutionPlan, index: usize) -> Kernel {
    let workgroup = [8, 8];
    let ConvolutionPlan { height, width, padding, .. } = *layer;
    let [pooled_height, pooled_width] = layer.pooled;
    let (maps4, channels4) = (layer.maps_padded / 4, layer.channels_padded / 4);
    let products = unroll(4, |lane| {
        format!("sum = fma(vec4f(v[{lane}]), w[at + {}u], sum);\n", lane * AREA * channels4)
    });
    let body = format!(
        "if (id.x >= {width4}u || id.y >= info.n_rows * {height}u) {{ return; }}
        let group = id.x % {channels4}u;
        let column = i32(id.x / {channels4}u) + {padding};
        let row = i32(id.y % {height}u) + {padding};
        let sample = id.y / {height}u;
        var sum = vec4f();
        for (var ky = 0; ky < {LENET_KERNEL}; ky++) {{
        let oy = row - ky;
        if (oy < 0 || oy >= {out_height}) {{ continue; }}
        for (var kx = 0; kx < {LENET_KERNEL}; kx++) {{
            let ox = column - kx;
            if (ox < 0 || ox >= {out_width}) {{ continue; }}
            let window = sample * {pooled_height}u + u32(oy) / 2u;
            let cell = (window * {pooled_width}u + u32(ox) / 2u) * {maps4}u;
            let place = vec4u(u32(oy % 2) * 2u + u32(ox % 2));
            let tap = u32(ky * {LENET_KERNEL} + kx) * {channels4}u;
            for (var maps = 0u; maps < {maps4}u; maps++) {{
                let which = (vec4u(argmax[cell + maps]) >> vec4u(0u, 8u, 16u, 24u)) & vec4u(255u);
                let v = select(vec4f(), d[cell + maps], which == place);
                let at = {weights}u + maps * {maps_weights}u + tap + group;
                {products}}}
        }}
        }}
        let out = id.y * {width4}u + id.x;
        dx[out] = select(vec4f(), sum, x[out] > vec4f());\n",
        width4 = width * channels4,
        out_height = 2 * pooled_height,
        out_width = 2 * pooled_width,
        weights = layer.backward_offset / 4,
        maps_weights = 4 * AREA * channels4,
    );
    let bindings = [
        INFO_BINDING,
        (READ, "x", "array<vec4f>"),
        (READ, "w", "array<vec4f>"),
        (READ, "d", "array<vec4f>"),
        (READ, "argmax", "array<u32>"),
        (WRITE, "dx", "array<vec4f>"),
    ];
    Kernel {
        name: format!("convolution {index}: input"),
        source: source(&bindings, workgroup, &body),
        roles: vec![
            BufferRole::Info,
            BufferRole::Activations(index),
            BufferRole::Weights,
            BufferRole::Derivatives(index + 1),
            BufferRole::Argmax(index),
            BufferRole::Derivatives(index),
        ],
        workgroup,
        extent: [Extent::Fixed(width * channels4), Extent::PerRow { n: height, per_invocation: 1 }],
    }
}
