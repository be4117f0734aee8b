// Our side: the workload module, one workload for each model.
import init, { Workload } from "./peer/bench-peer.js";

const ready = init({ module_or_path: new URL("./peer/bench-peer_bg.wasm", import.meta.url) });
const workloads = new Map();

self.onmessage = async ({ data: { device, model, n_steps } }) => {
  try {
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
