//! The kernels of a model: WGSL source, the buffers it binds, and how many invocations it needs.
//!
//! Sizes are written into the source, so that loops have constant bounds. No kernel uses a barrier
//! or workgroup memory: each invocation keeps a tile of results in registers and loads four values
//! at a time, which was measured several times as fast on a software adapter as tiles in workgroup
//! memory, and leaves a real GPU's cache to do the sharing.

use super::convolution;
use super::kernel::{BufferRole, Extent, INFO_BINDING, Kernel, PARTS, READ, WRITE, source, unroll};
use super::plan::{FusedPlan, LinearPlan, ROWS};
use crate::batch::{PIXEL_MEAN, PIXEL_STD};

/// From images to logits, and on to the gradient.
pub(super) struct Kernels {
    pub(super) forward: Vec<Kernel>,
    pub(super) backward: Vec<Kernel>,
}

impl Kernels {
    pub(super) fn of(plan: &FusedPlan) -> Self {
        let n_convolutions = plan.convolutions.len();
        let mut forward = vec![decode(plan)];
        for (index, layer) in plan.convolutions.iter().enumerate() {
            forward.push(convolution::forward(layer, index));
        }
        for (index, layer) in plan.linears.iter().enumerate() {
            let before_relu = index + 1 < plan.linears.len();
            forward.push(linear(layer, n_convolutions + index, before_relu));
        }
        let mut backward = vec![residual(plan)];
        for (index, layer) in plan.linears.iter().enumerate().rev() {
            let input = n_convolutions + index;
            backward.push(linear_weights(layer, input));
            if input > 0 {
                backward.push(linear_input(layer, input));
            }
        }
        for (index, layer) in plan.convolutions.iter().enumerate().rev() {
            backward.push(convolution::weights(layer, index));
            backward.push(convolution::add_parts(layer, index));
            if index > 0 {
                backward.push(convolution::input(layer, index));
            }
        }
        Self { forward, backward }
    }

    /// Length of a buffer in values of four bytes.
    pub(super) fn n_values(plan: &FusedPlan, role: BufferRole, capacity: usize) -> usize {
        let strides = plan.strides();
        match role {
            BufferRole::Info => 4,
            BufferRole::Images => (capacity * plan.n_pixels).div_ceil(4),
            BufferRole::Labels => capacity,
            BufferRole::Weights => plan.n_weights,
            BufferRole::Gradients => plan.n_gradients,
            BufferRole::Activations(index) | BufferRole::Derivatives(index) => capacity * strides[index],
            BufferRole::Argmax(index) => capacity * strides[index + 1] / 4,
            BufferRole::Partial(index) => PARTS * plan.convolutions[index].n_gradients(),
        }
    }
}

/// Bytes to normalized values, four of an image per invocation; zeros where there is no sample.
fn decode(plan: &FusedPlan) -> Kernel {
    let workgroup = [16, 4];
    let quads = plan.input_stride / 4;
    let n_pixels = plan.n_pixels;
    let body = format!(
        "if (id.x >= {quads}u || id.y >= info.n_rows) {{ return; }}
        var values = vec4f();
        for (var lane = 0u; lane < 4u; lane++) {{
            let pixel = 4u * id.x + lane;
            if (pixel < {n_pixels}u && id.y < info.n_samples) {{
                let index = id.y * {n_pixels}u + pixel;
                let byte = (images[index / 4u] >> (8u * (index % 4u))) & 255u;
                values[lane] = (f32(byte) / 255.0 - {PIXEL_MEAN:?}) / {PIXEL_STD:?};
            }}
        }}
        y[id.y * {quads}u + id.x] = values;\n"
    );
    let bindings = [INFO_BINDING, (READ, "images", "array<u32>"), (WRITE, "y", "array<vec4f>")];
    Kernel {
        name: "decode".to_owned(),
        source: source(&bindings, workgroup, &body),
        roles: vec![BufferRole::Info, BufferRole::Images, BufferRole::Activations(0)],
        workgroup,
        extent: [Extent::Fixed(quads), Extent::PerRow { n: 1, per_invocation: 1 }],
    }
}

/// `y = relu(x w + b)`: four samples by four units per invocation.
fn linear(layer: &LinearPlan, input: usize, before_relu: bool) -> Kernel {
    let workgroup = [8, 8];
    let (k4, n4, weights) = (layer.n_in_padded / 4, layer.n_out_padded / 4, layer.weight_offset / 4);
    let bias = weights + 4 * k4 * n4;
    let rows = unroll(ROWS, |row| format!("let x{row} = x[(row + {row}u) * {k4}u + k];\n"));
    let products = unroll(4, |lane| {
        let sums = unroll(ROWS, |row| format!("c{row} = fma(vec4f(x{row}[{lane}]), w{lane}, c{row});\n"));
        format!("let w{lane} = w[at + {}u];\n{sums}", lane * n4)
    });
    let value = |row| if before_relu { format!("max(c{row}, vec4f())") } else { format!("c{row}") };
    let stores = unroll(ROWS, |row| format!("y[(row + {row}u) * {n4}u + id.x] = {};\n", value(row)));
    let sums = unroll(ROWS, |row| format!("var c{row} = w[{bias}u + id.x];\n"));
    let body = format!(
        "let row = {ROWS}u * id.y;
        if (id.x >= {n4}u || row >= info.n_rows) {{ return; }}
        {sums}var at = {weights}u + id.x;
        for (var k = 0u; k < {k4}u; k++) {{\n{rows}{products}at += {}u;\n}}\n{stores}",
        4 * n4
    );
    let bindings = [
        INFO_BINDING,
        (READ, "x", "array<vec4f>"),
        (READ, "w", "array<vec4f>"),
        (WRITE, "y", "array<vec4f>"),
    ];
    Kernel {
        name: format!("linear {input}"),
        source: source(&bindings, workgroup, &body),
        roles: vec![
            BufferRole::Info,
            BufferRole::Activations(input),
            BufferRole::Weights,
            BufferRole::Activations(input + 1),
        ],
        workgroup,
        extent: [Extent::Fixed(n4), Extent::PerRow { n: 1, per_invocation: ROWS }],
    }
}

/// `softmax - one_hot` for a sample per invocation; zeros for padding.
fn residual(plan: &FusedPlan) -> Kernel {
    let workgroup = [32, 1];
    let last = plan.strides().len() - 1;
    let (n_classes, stride) = (plan.n_classes, plan.strides()[last]);
    let body = format!(
        "if (id.x >= info.n_rows) {{ return; }}
        let at = id.x * {stride}u;
        let real = id.x < info.n_samples;
        var largest = x[at];
        for (var n = 1u; n < {n_classes}u; n++) {{ largest = max(largest, x[at + n]); }}
        var total = 0.0;
        for (var n = 0u; n < {n_classes}u; n++) {{ total += exp(x[at + n] - largest); }}
        for (var n = 0u; n < {stride}u; n++) {{
            var value = 0.0;
            if (n < {n_classes}u && real) {{
                value = exp(x[at + n] - largest) / total - select(0.0, 1.0, n == labels[id.x]);
            }}
            d[at + n] = value;
        }}\n"
    );
    let bindings =
        [INFO_BINDING, (READ, "labels", "array<u32>"), (READ, "x", "array<f32>"), (WRITE, "d", "array<f32>")];
    Kernel {
        name: "residual".to_owned(),
        source: source(&bindings, workgroup, &body),
        roles: vec![
            BufferRole::Info,
            BufferRole::Labels,
            BufferRole::Activations(last),
            BufferRole::Derivatives(last),
        ],
        workgroup,
        extent: [Extent::PerRow { n: 1, per_invocation: 1 }, Extent::Fixed(1)],
    }
}

/// `g += [x 1]^T d`: eight inputs by four units per invocation; the last row of invocations sums
/// the bias.
fn linear_weights(layer: &LinearPlan, input: usize) -> Kernel {
    let workgroup = [8, 8];
    let (k4, n4, gradients) = (layer.n_in_padded / 4, layer.n_out_padded / 4, layer.gradient_offset / 4);
    let groups = k4 / 2;
    let sums = unroll(8, |row| format!("var c{row} = vec4f();\n"));
    let products = unroll(8, |row| {
        let (part, lane) = (["a", "b"][row / 4], row % 4);
        format!("c{row} = fma(vec4f({part}[{lane}]), d0, c{row});\n")
    });
    let stores = unroll(8, |row| format!("g[at + {}u] += c{row};\n", row * n4));
    let body = format!(
        "if (id.x >= {n4}u || id.y > {groups}u) {{ return; }}
        let at = {gradients}u + 8u * id.y * {n4}u + id.x;
        if (id.y == {groups}u) {{
            var sum = vec4f();
            for (var m = 0u; m < info.n_rows; m++) {{ sum += d[m * {n4}u + id.x]; }}
            g[at] += sum;
            return;
        }}
        {sums}for (var m = 0u; m < info.n_rows; m++) {{
            let a = x[m * {k4}u + 2u * id.y];
            let b = x[m * {k4}u + 2u * id.y + 1u];
            let d0 = d[m * {n4}u + id.x];\n{products}}}\n{stores}"
    );
    let bindings = [
        INFO_BINDING,
        (READ, "x", "array<vec4f>"),
        (READ, "d", "array<vec4f>"),
        (WRITE, "g", "array<vec4f>"),
    ];
    Kernel {
        name: format!("linear {input}: weights"),
        source: source(&bindings, workgroup, &body),
        roles: vec![
            BufferRole::Info,
            BufferRole::Activations(input),
            BufferRole::Derivatives(input + 1),
            BufferRole::Gradients,
        ],
        workgroup,
        extent: [Extent::Fixed(n4), Extent::Fixed(groups + 1)],
    }
}

/// `dx = d w^T` where `x > 0`: four samples by four inputs per invocation.
fn linear_input(layer: &LinearPlan, input: usize) -> Kernel {
    let workgroup = [8, 8];
    let (k4, n4, weights) = (layer.n_in_padded / 4, layer.n_out_padded / 4, layer.weight_offset / 4);
    let sums = unroll(ROWS, |row| format!("var c{row} = vec4f();\n"));
    let rows = unroll(4, |lane| format!("let w{lane} = w[at + {}u + n];\n", lane * n4));
    let products = unroll(ROWS, |row| {
        let dots: Vec<_> = (0..4).map(|lane| format!("dot(d{row}, w{lane})")).collect();
        format!("let d{row} = d[(row + {row}u) * {n4}u + n];\nc{row} += vec4f({});\n", dots.join(", "))
    });
    let stores = unroll(ROWS, |row| {
        let at = format!("(row + {row}u) * {k4}u + id.x");
        format!("dx[{at}] = select(vec4f(), c{row}, x[{at}] > vec4f());\n")
    });
    let body = format!(
        "let row = {ROWS}u * id.y;
        if (id.x >= {k4}u || row >= info.n_rows) {{ return; }}
        {sums}let at = {weights}u + 4u * id.x * {n4}u;
        for (var n = 0u; n < {n4}u; n++) {{\n{rows}{products}}}\n{stores}"
    );
    let bindings = [
        INFO_BINDING,
        (READ, "x", "array<vec4f>"),
        (READ, "w", "array<vec4f>"),
        (READ, "d", "array<vec4f>"),
        (WRITE, "dx", "array<vec4f>"),
    ];
    Kernel {
        name: format!("linear {input}: input"),
        source: source(&bindings, workgroup, &body),
        roles: vec![
            BufferRole::Info,
            BufferRole::Activations(input),
            BufferRole::Weights,
            BufferRole::Derivatives(input + 1),
            BufferRole::Derivatives(input),
        ],
        workgroup,
        extent: [Extent::Fixed(k4), Extent::PerRow { n: 1, per_invocation: ROWS }],
    }
}
