// Our side: the workload module, one workload for each model.
import init, { Workload, replicate } from "./peer/bench-peer.js";

const workloads = new Map();
let ready;

// One more thread of a workload, as web/worker.js starts it.
async function begin({ module, setup }) {
  const waiting = [];
  self.onmessage = ({ data }) => waiting.push(data);
  await init({ module_or_path: module });
  replicate(setup);
  for (const data of waiting) self.dispatchEvent(new MessageEvent("message", { data }));
}

if (self.name === "replica") self.onmessage = ({ data }) => begin(data).catch(() => self.postMessage(null));
else self.onmessage = async ({ data: { device, model, n_steps } }) => {
  try {
    ready ??= init({ module_or_path: new URL("./peer/bench-peer_bg.wasm", import.meta.url) });
    await ready;
    if (!workloads.has(model)) workloads.set(model, await Workload.open(device, model));
    const workload = workloads.get(model);
    const from = performance.now();
    const loss = await workload.run(n_steps);
    const ms_per_step = (performance.now() - from) / n_steps;
    self.postMessage({ ms_per_step, loss, device: workload.device_name() });
  } catch (error) {
    self.postMessage({ error: String(error?.message ?? error) });
  }
};
