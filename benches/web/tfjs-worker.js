// Their side: the same model in TensorFlow.js, with our initial parameters and our batch, so that
// both must report the same loss. A step uploads the batch as ours does, already normalized, and
// computes the gradient; it does not add it up. Waiting happens once, after the last step.
importScripts(
  "npm/@tensorflow/tfjs/dist/tf.min.js",
  "npm/@tensorflow/tfjs-backend-wasm/dist/tf-backend-wasm.min.js",
  "npm/@tensorflow/tfjs-backend-webgpu/dist/tf-backend-webgpu.min.js",
);

const N_CLASSES = 10;
const models = new Map();

async function start(device) {
  tf.wasm.setWasmPaths(new URL("npm/@tensorflow/tfjs-backend-wasm/dist/", self.location.href).href);
  if (!(await tf.setBackend(device))) throw new Error(`TF.js cannot use ${device}`);
  await tf.ready();
}

async function values(path) {
  const response = await fetch(path);
  if (!response.ok) throw new Error(`${path}: status ${response.status}`);
  return new Float32Array(await response.arrayBuffer());
}

// Takes variables out of the flat vector, in its order.
function reader(flat) {
  let at = 0;
  const take = (shape) => {
    const from = at;
    at += shape.reduce((product, size) => product * size, 1);
    return tf.tensor(flat.subarray(from, at), shape);
  };
  return { take, left: () => flat.length - at };
}

function linear(read, n_in, n_out) {
  return { w: tf.variable(read.take([n_in, n_out])), b: tf.variable(read.take([n_out])) };
}

function mlp(read, width) {
  const layers = [linear(read, 784, width), linear(read, width, width), linear(read, width, N_CLASSES)];
  return { convolutions: [], layers, input: (batch, n) => tf.tensor2d(batch, [n, 784]), features: (x) => x };
}

// Channels last, as TF.js computes fastest: the filters and the rows of the first linear layer are
// put into that order once, here.
function lenet(read) {
  const filter = (out, channels) => {
    const w = tf.variable(tf.transpose(read.take([out, channels, 5, 5]), [2, 3, 1, 0]));
    return { w, b: tf.variable(read.take([out])) };
  };
  const convolutions = [filter(6, 1), filter(16, 6)];
  const rows = tf.reshape(tf.transpose(read.take([16, 5, 5, 120]), [1, 2, 0, 3]), [400, 120]);
  const layers = [
    { w: tf.variable(rows), b: tf.variable(read.take([120])) },
    linear(read, 120, 84),
    linear(read, 84, N_CLASSES),
  ];
  const features = (x) => {
    convolutions.forEach(({ w, b }, index) => {
      const convolved = tf.add(tf.conv2d(x, w, 1, index === 0 ? "same" : "valid"), b);
      x = tf.relu(tf.maxPool(convolved, 2, 2, "valid"));
    });
    return tf.reshape(x, [-1, 400]);
  };
  return { convolutions, layers, input: (batch, n) => tf.tensor4d(batch, [n, 28, 28, 1]), features };
}

async function open(name) {
  const [flat, images, labels] = await Promise.all([
    values(`data/parameters?model=${name}`),
    values(`data/images?model=${name}`),
    values(`data/labels?model=${name}`),
  ]);
  const n_samples = labels.length / N_CLASSES;
  const read = reader(flat);
  const model = name === "lenet" ? lenet(read) : mlp(read, Number(name.slice("mlp-".length)));
  const { convolutions, layers, input, features } = model;
  const variables = [...convolutions, ...layers].flatMap(({ w, b }) => [w, b]);
  if (read.left() !== 0) throw new Error(`${name}: ${read.left()} parameters are left over`);
  const logits = (x) => layers.reduce((h, { w, b }, index) => {
    const sum = tf.add(tf.matMul(h, w), b);
    return index + 1 < layers.length ? tf.relu(sum) : sum;
  }, features(x));
  const step = () => tf.tidy(() => {
    const x = input(images, n_samples);
    const y = tf.tensor2d(labels, [n_samples, N_CLASSES]);
    const { value, grads } = tf.variableGrads(() => tf.losses.softmaxCrossEntropy(y, logits(x)), variables);
    // The gradient of the first layer's bias: the way back ends there.
    return [value, grads[variables[1].name]];
  });
  return { step };
}

async function run({ step }, n_steps) {
  let last = [];
  for (let i = 0; i < n_steps; i++) {
    tf.dispose(last);
    last = step();
  }
  const [[loss]] = await Promise.all(last.map((tensor) => tensor.data()));
  tf.dispose(last);
  return loss;
}

let started;
self.onmessage = async ({ data: { device, model, n_steps } }) => {
  try {
    started ??= start(device);
    await started;
    if (!models.has(model)) models.set(model, await open(model));
    const from = performance.now();
    const loss = await run(models.get(model), n_steps);
    const ms_per_step = (performance.now() - from) / n_steps;
    const threads = tf.getBackend() === "wasm" ? `, ${tf.wasm.getThreadsCount()} threads` : "";
    self.postMessage({ ms_per_step, loss, device: `TF.js ${tf.version.tfjs} ${tf.getBackend()}${threads}` });
  } catch (error) {
    self.postMessage({ error: String(error?.stack ?? error) });
  }
};
