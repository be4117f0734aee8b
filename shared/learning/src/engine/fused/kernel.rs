//! One kernel: WGSL source, the buffers it binds, and how many invocations it needs.

/// Parts that a convolution's gradient is summed in before they are added up.
pub(super) const PARTS: usize = 64;

/// A buffer by its role.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum BufferRole {
    /// `n_samples`, `n_rows`: samples, and samples rounded up to [`ROWS`].
    Info,
    /// Bytes of the images.
    Images,
    /// One word for each label.
    Labels,
    /// All parameters, as [`FusedPlan::pack`] orders them.
    Weights,
    /// The gradient sum.
    Gradients,
    /// Values after layer `0..`, the input first.
    Activations(usize),
    /// Derivative of the loss by the values of the same number.
    Derivatives(usize),
    /// Which pixel of each pooling window of a convolution was the largest.
    Argmax(usize),
    /// A convolution's gradient in [`PARTS`] parts.
    Partial(usize),
}

/// Invocations along one axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Extent {
    /// Independent of the batch.
    Fixed(usize),
    /// So many for each sample, in groups of `per_invocation`.
    PerRow { n: usize, per_invocation: usize },
}

impl Extent {
    /// Workgroups of `size` invocations for `n_rows` samples.
    pub(super) fn n_workgroups(self, n_rows: usize, size: usize) -> usize {
        let n_invocations = match self {
            Self::Fixed(n) => n,
            Self::PerRow { n, per_invocation } => (n * n_rows).div_ceil(per_invocation),
        };
        n_invocations.div_ceil(size)
    }
}

/// One dispatch.
#[derive(Debug, Clone)]
pub(super) struct Kernel {
    pub(super) name: String,
    pub(super) source: String,
    /// In the order of the bindings.
    pub(super) roles: Vec<BufferRole>,
    /// Invocations of a workgroup.
    pub(super) workgroup: [usize; 2],
    pub(super) extent: [Extent; 2],
}

const INFO: &str = "struct Info { n_samples: u32, n_rows: u32 }\n";

fn binding(index: usize, access: &str, name: &str, of: &str) -> String {
    format!("@group(0) @binding({index}) var<{access}> {name}: {of};\n")
}

pub(super) fn source(bindings: &[(&str, &str, &str)], workgroup: [usize; 2], body: &str) -> String {
    let bindings: String = bindings
        .iter()
        .enumerate()
        .map(|(index, (access, name, of))| binding(index, access, name, of))
        .collect();
    let [x, y] = workgroup;
    format!(
        "{INFO}{bindings}@compute @workgroup_size({x}, {y})\n\
         fn main(@builtin(global_invocation_id) id: vec3u) {{\n{body}}}\n"
    )
}

pub(super) const READ: &str = "storage, read";
pub(super) const WRITE: &str = "storage, read_write";
pub(super) const INFO_BINDING: (&str, &str, &str) = ("uniform", "info", "Info");

pub(super) fn unroll(n: usize, line: impl Fn(usize) -> String) -> String {
    (0..n).map(line).collect()
}
