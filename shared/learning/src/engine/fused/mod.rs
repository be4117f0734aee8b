//! A step on WebGPU in a dozen dispatches: hand-written kernels on the device that burn opened.
//!
//! Burn's general kernels need about sixty dispatches for the same step. One command buffer holds
//! a whole step here; the gradient sum never leaves its buffer until it is taken. What the kernels
//! compute is compared with burn's autodiff in the conformance checks.

mod convolution;
mod kernel;
mod kernels;
mod plan;

use std::collections::HashMap;

use barnraise_protocol::run::Preset;
use barnraise_protocol::run::model::Size;
use barnraise_protocol::run::model::operation::Operation;
use burn::tensor::wgpu::wgpu;
use futures::channel::oneshot;

use self::kernel::{BufferRole, Kernel};
use self::kernels::Kernels;
use self::plan::{FusedPlan, ROWS};
use super::PassRead;
use crate::device::{DeviceError, Gpu};
use crate::graph::{GraphData, ResolvedGraph};
use crate::platform;
use crate::statistics;

/// Samples that the buffers are made for at first.
const CAPACITY: usize = 256;
/// Most workgroups along an axis that every adapter grants.
const WORKGROUPS_MAX: usize = 65_535;

/// Whether the graph is `le-net` or `mlp`, whatever it calls itself.
fn has_kernels(graph: &ResolvedGraph) -> bool {
    let units = graph.steps().iter().map(|step| match &step.op {
        Operation::Dense(dense) => Some(dense.units),
        _ => None,
    });
    let hidden = units.flatten().filter_map(|units| match units {
        Size::Fixed(units) => Some(units),
        _ => None,
    });
    [Preset::LeNet, Preset::Mlp { hidden: hidden.collect() }].iter().any(|preset| {
        let known = ResolvedGraph::of(&preset.graph(), graph.data());
        known.is_ok_and(|known| known.steps() == graph.steps() && known.loss() == graph.loss())
    })
}

/// `[2, n_samples]`: the losses of logits, and 1 where the largest is that of the label.
pub(super) fn losses(logits: PassRead, labels: &[u8]) -> PassRead {
    let labels = labels.to_vec();
    Box::pin(async move { Ok(statistics::losses(&logits.await?, &labels)) })
}

/// A kernel that is ready to be dispatched.
struct Pass {
    kernel: Kernel,
    pipeline: wgpu::ComputePipeline,
    bindings: Option<wgpu::BindGroup>,
}

/// A model in the buffers of a wgpu device.
pub(crate) struct FusedEngine {
    gpu: Gpu,
    plan: FusedPlan,
    forward: Vec<Pass>,
    backward: Vec<Pass>,
    buffers: HashMap<BufferRole, wgpu::Buffer>,
    capacity: usize,
    /// Most samples that the device's limits allow.
    capacity_max: usize,
    /// Whether the gradient buffer holds a sum.
    has_gradient: bool,
}

impl FusedEngine {
    /// An engine with all parameters zero; `None` of a graph that there are no kernels for, and where the model exceeds
    /// the device's limits.
    pub(crate) fn new(graph: &ResolvedGraph, gpu: &Gpu) -> Option<Self> {
        let GraphData::Images { shape, n_classes } = graph.data() else { return None };
        if !has_kernels(graph) {
            return None;
        }
        let layout = graph.layout();
        let plan = FusedPlan::of(layout, shape, n_classes)?;
        let kernels = Kernels::of(&plan);
        let capacity_max = capacity_max(&plan, &kernels, &gpu.device.limits())?;
        let compile = |kernels: Vec<Kernel>| kernels.into_iter().map(|kernel| compile(gpu, kernel)).collect();
        let mut engine = Self {
            gpu: gpu.clone(),
            forward: compile(kernels.forward),
            backward: compile(kernels.backward),
            plan,
            buffers: HashMap::new(),
            capacity: 0,
            capacity_max,
            has_gradient: false,
        };
        let capacity = CAPACITY.min(layout.batch_samples_max()).next_multiple_of(ROWS);
        engine.grow(capacity.min(capacity_max));
        Some(engine)
    }

    pub(crate) fn load(&mut self, flat: &[f32]) {
        let weights = self.plan.pack(flat);
        self.gpu.queue.write_buffer(self.buffer(BufferRole::Weights), 0, &bytes(&weights));
        self.reset();
    }

    pub(crate) fn reset(&mut self) {
        self.has_gradient = false;
    }

    /// Most samples of [`Self::logits`].
    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// In slices that fit the device; a slice is usually the whole micro-batch.
    pub(crate) fn step(&mut self, images: &[u8], labels: &[u8]) -> PassRead {
        if labels.len() > self.capacity {
            self.grow(labels.len().next_multiple_of(ROWS).min(self.capacity_max));
        }
        let slices = images.chunks(self.capacity * self.plan.n_pixels).zip(labels.chunks(self.capacity));
        let mut reads = Vec::with_capacity(1);
        for (images, labels) in slices {
            let mut encoder =
                self.gpu.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
            if !self.has_gradient {
                encoder.clear_buffer(self.buffer(BufferRole::Gradients), 0, None);
                self.has_gradient = true;
            }
            self.upload(images, labels.len());
            let words: Vec<u8> = labels.iter().flat_map(|&label| u32::from(label).to_le_bytes()).collect();
            self.gpu.queue.write_buffer(self.buffer(BufferRole::Labels), 0, &words);
            self.dispatch(&mut encoder, labels.len(), self.forward.iter().chain(&self.backward));
            reads.push(self.read_logits(encoder, labels.len()));
        }
        join(reads)
    }

    /// Of at most [`Self::capacity`] samples.
    pub(crate) fn logits(&self, images: &[u8], n_samples: usize) -> PassRead {
        let mut encoder = self.gpu.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        self.upload(images, n_samples);
        self.dispatch(&mut encoder, n_samples, self.forward.iter());
        self.read_logits(encoder, n_samples)
    }

    pub(crate) async fn take(&mut self) -> Result<Vec<f32>, DeviceError> {
        if !std::mem::take(&mut self.has_gradient) {
            return Ok(Vec::new());
        }
        let encoder = self.gpu.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        let read = read(&self.gpu, encoder, self.buffer(BufferRole::Gradients), 4 * self.plan.n_gradients);
        Ok(self.plan.unpack(&read.await?))
    }

    fn buffer(&self, role: BufferRole) -> &wgpu::Buffer {
        &self.buffers[&role]
    }

    /// Makes every buffer and binding anew, keeping weights and gradient.
    fn grow(&mut self, capacity: usize) {
        self.capacity = capacity;
        for pass in self.forward.iter_mut().chain(&mut self.backward) {
            for &role in &pass.kernel.roles {
                let size = 4 * Kernels::n_values(&self.plan, role, capacity) as u64;
                let fits = self.buffers.get(&role).is_some_and(|buffer| buffer.size() >= size);
                if !fits {
                    let old = self.buffers.insert(role, create_buffer(&self.gpu, role, size));
                    old.iter().for_each(wgpu::Buffer::destroy);
                }
            }
        }
        for pass in self.forward.iter_mut().chain(&mut self.backward) {
            pass.bindings = Some(bind(&self.gpu, pass, &self.buffers));
        }
    }

    fn upload(&self, images: &[u8], n_samples: usize) {
        let info = [n_samples, n_samples.next_multiple_of(ROWS), 0, 0];
        let words: Vec<u8> = info.iter().flat_map(|&word| (word as u32).to_le_bytes()).collect();
        self.gpu.queue.write_buffer(self.buffer(BufferRole::Info), 0, &words);
        let buffer = self.buffer(BufferRole::Images);
        let aligned = images.len() / 4 * 4;
        self.gpu.queue.write_buffer(buffer, 0, &images[..aligned]);
        if aligned < images.len() {
            let mut last = [0; 4];
            last[..images.len() - aligned].copy_from_slice(&images[aligned..]);
            self.gpu.queue.write_buffer(buffer, aligned as u64, &last);
        }
    }

    fn dispatch<'a>(
        &self,
        encoder: &mut wgpu::CommandEncoder,
        n_samples: usize,
        passes: impl Iterator<Item = &'a Pass>,
    ) {
        let n_rows = n_samples.next_multiple_of(ROWS);
        let mut compute = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
        for pass in passes {
            let [x, y] = workgroups(&pass.kernel, n_rows);
            compute.set_pipeline(&pass.pipeline);
            compute.set_bind_group(0, pass.bindings.as_ref(), &[]);
            compute.dispatch_workgroups(x as u32, y as u32, 1);
        }
    }

    /// Submits `encoder` and reads the logits, without their padding.
    fn read_logits(&self, encoder: wgpu::CommandEncoder, n_samples: usize) -> PassRead {
        let n_classes = self.plan.n_classes;
        let strides = self.plan.strides();
        let last = strides.len() - 1;
        let stride = strides[last];
        let buffer = self.buffer(BufferRole::Activations(last));
        let read = read(&self.gpu, encoder, buffer, 4 * n_samples * stride);
        Box::pin(async move {
            let rows = read.await?;
            Ok(rows.chunks_exact(stride).flat_map(|row| &row[..n_classes]).copied().collect())
        })
    }
}

impl Drop for FusedEngine {
    /// A browser would keep the memory until its next garbage collection.
    fn drop(&mut self) {
        self.buffers.values().for_each(wgpu::Buffer::destroy);
    }
}

/// Most samples for which every buffer and dispatch stays within the limits; `None` below one row.
fn capacity_max(plan: &FusedPlan, kernels: &Kernels, limits: &wgpu::Limits) -> Option<usize> {
    let largest = limits.max_storage_buffer_binding_size.min(limits.max_buffer_size) as usize;
    let fits = |capacity: usize| {
        kernels.forward.iter().chain(&kernels.backward).all(|kernel| {
            let roles = kernel.roles.iter();
            kernel.roles.len() <= limits.max_storage_buffers_per_shader_stage as usize
                && workgroups(kernel, capacity).iter().all(|&n| n <= WORKGROUPS_MAX)
                && roles.map(|&role| 4 * Kernels::n_values(plan, role, capacity)).all(|size| size <= largest)
        })
    };
    let capacities = std::iter::successors(Some(ROWS), |capacity| Some(2 * capacity));
    capacities
        .take_while(|&capacity| capacity <= crate::parameters::BATCH_SAMPLES_MAX && fits(capacity))
        .last()
}

fn workgroups(kernel: &Kernel, n_rows: usize) -> [usize; 2] {
    let [x, y] = kernel.extent;
    [x.n_workgroups(n_rows, kernel.workgroup[0]), y.n_workgroups(n_rows, kernel.workgroup[1])]
}

fn compile(gpu: &Gpu, kernel: Kernel) -> Pass {
    let module = gpu.device.create_shader_module(wgpu::ShaderModuleDescriptor {
        label: Some(&kernel.name),
        source: wgpu::ShaderSource::Wgsl(kernel.source.as_str().into()),
    });
    let pipeline = gpu.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
        label: Some(&kernel.name),
        layout: None,
        module: &module,
        entry_point: Some("main"),
        compilation_options: wgpu::PipelineCompilationOptions::default(),
        cache: None,
    });
    Pass { kernel, pipeline, bindings: None }
}

fn create_buffer(gpu: &Gpu, role: BufferRole, size: u64) -> wgpu::Buffer {
    let usage = match role {
        BufferRole::Info => wgpu::BufferUsages::UNIFORM,
        _ => wgpu::BufferUsages::STORAGE,
    };
    gpu.device.create_buffer(&wgpu::BufferDescriptor {
        label: None,
        size,
        usage: usage | wgpu::BufferUsages::COPY_DST | wgpu::BufferUsages::COPY_SRC,
        mapped_at_creation: false,
    })
}

fn bind(gpu: &Gpu, pass: &Pass, buffers: &HashMap<BufferRole, wgpu::Buffer>) -> wgpu::BindGroup {
    let entries: Vec<_> = (0..)
        .zip(&pass.kernel.roles)
        .map(|(binding, role)| wgpu::BindGroupEntry { binding, resource: buffers[role].as_entire_binding() })
        .collect();
    gpu.device.create_bind_group(&wgpu::BindGroupDescriptor {
        label: Some(&pass.kernel.name),
        layout: &pass.pipeline.get_bind_group_layout(0),
        entries: &entries,
    })
}

/// Submits `encoder` with a copy of `buffer` behind it; the future gives its values.
fn read(
    gpu: &Gpu,
    mut encoder: wgpu::CommandEncoder,
    buffer: &wgpu::Buffer,
    size: usize,
) -> impl Future<Output = Result<Vec<f32>, DeviceError>> + Send + 'static {
    let staging = gpu.device.create_buffer(&wgpu::BufferDescriptor {
        label: None,
        size: size as u64,
        usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
        mapped_at_creation: false,
    });
    encoder.copy_buffer_to_buffer(buffer, 0, &staging, 0, size as u64);
    let submission = gpu.queue.submit([encoder.finish()]);
    let (sender, receiver) = oneshot::channel();
    staging.map_async(wgpu::MapMode::Read, .., move |mapped| {
        // The send fails only when the receiver was dropped.
        let _ = sender.send(mapped);
    });
    let device = gpu.device.clone();
    async move {
        let failed = |error: &dyn std::fmt::Display| DeviceError::Execution(error.to_string());
        platform::finish(&device, submission).map_err(|error| failed(&error))?;
        let mapped = receiver.await.map_err(|error| failed(&error))?;
        mapped.map_err(|error| failed(&error))?;
        let view = staging.get_mapped_range(..).map_err(|error| failed(&error))?;
        let value = |bytes: &[u8]| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        let values = view.chunks_exact(4).map(value).collect();
        drop(view);
        // A browser would keep the memory until its next garbage collection.
        staging.destroy();
        Ok(values)
    }
}

fn join(mut reads: Vec<PassRead>) -> PassRead {
    if reads.len() == 1 {
        return reads.remove(0);
    }
    Box::pin(async move {
        let mut logits = Vec::new();
        for read in reads {
            logits.extend(read.await?);
        }
        Ok(logits)
    })
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}
