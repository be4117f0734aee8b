// Passes a measurement on to the worker of its engine and shows the answer. Each engine and device
// has a worker of its own that stays, as in a tab that trains; only one of them is asked at a time.
const workers = new Map();

function workerOf({ engine, device }) {
  const key = `${engine} ${device}`;
  if (!workers.has(key)) {
    const [script, type] = engine === "tfjs" ? ["tfjs-worker.js", "classic"] : ["peer-worker.js", "module"];
    workers.set(key, new Worker(script, { type, name: key }));
  }
  return workers.get(key);
}

function ask(worker, request) {
  return new Promise((resolve) => {
    // What it tells its page of its threads is no answer.
    worker.onmessage = ({ data }) => { if (data.type !== "threads") resolve(data); };
    worker.onerror = (event) => resolve({ error: event.message ?? "the worker could not be started" });
    worker.postMessage(request);
  });
}

// `request`: id, engine, device, model, n_samples, n_steps.
globalThis.measure = async (request) => {
  const answer = await ask(workerOf(request), request);
  const result = document.getElementById("result");
  result.textContent = JSON.stringify(answer);
  result.dataset.request = request.id;
};
document.body.dataset.ready = "yes";
