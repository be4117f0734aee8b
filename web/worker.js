// Fetches the training module, tells the page how far it is, and hands over to it. Messages that
// come before it listens are kept and delivered afterwards. No knowledge of the protocol.

// Written down by the build; not a number where it was not.
const BYTES_TOTAL = Number("{{bytes:peer_bg.wasm}}");
const REPORT_EVERY_MS = 100;

const kept = [];
const keep = (event) => {
  event.stopImmediatePropagation();
  kept.push(event.data);
};
self.addEventListener("message", keep);

const report = (bytes, bytes_total) => self.postMessage({ type: "loading", bytes, bytes_total });

// Counts the bytes of a copy, so that the browser compiles the original as it arrives, and keeps
// what it compiled for the next visit.
async function count(response) {
  const total = Number.isFinite(BYTES_TOTAL) ? BYTES_TOTAL : null;
  const reader = response.body.getReader();
  let bytes = 0;
  let reported = -Infinity;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return report(bytes, bytes);
    bytes += value.byteLength;
    if (performance.now() - reported >= REPORT_EVERY_MS) {
      reported = performance.now();
      report(bytes, total);
    }
  }
}

async function load() {
  const [peer, response] = await Promise.all([
    import("{{asset:peer.js}}"),
    fetch("{{asset:peer_bg.wasm}}"),
  ]);
  if (!response.ok) throw new Error(`the training program was answered with status ${response.status}`);
  // A cut shows in the original as well, and is reported from there.
  count(response.clone()).catch(() => {});
  await peer.default({ module_or_path: response });
  await peer.start();
  self.removeEventListener("message", keep);
  for (const data of kept) self.dispatchEvent(new MessageEvent("message", { data }));
}

load().catch((error) => self.postMessage({ type: "failed", message: String(error?.message ?? error) }));
