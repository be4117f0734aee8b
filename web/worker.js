// Fetches the training program, reports progress to the page, and starts the program. The program is cached for the
// next visit, and used, only if its hash is the one that the build wrote here. Messages that come before the
// program listens are queued and delivered afterwards. A worker with the name "replica" gets the program from the one that
// started it. It knows nothing of the protocol.

const PROGRAM = "{{asset:peer_bg.wasm}}";
const GLUE = "{{asset:peer.js}}";
const BYTES_TOTAL = Number("{{bytes:peer_bg.wasm}}");
const SHA_256 = "{{sha256:peer_bg.wasm}}";
const CACHE_NAME = "barnraise-program";
// This build's program, and one for tabs of another build.
const PROGRAMS_MAX = 2;
const REPORT_EVERY_MS = 100;
const AGAIN_AFTER_MS = 1000;
// How long a cache may take to find the program.
const PATIENCE_MS = 5000;

// The server has another build of the page.
class OutdatedError extends Error {}

const messages = [];
let onFirst;
const first = new Promise((resolve) => { onFirst = resolve; });
const keep = (event) => {
  event.stopImmediatePropagation();
  messages.push(event.data);
  onFirst();
};
self.addEventListener("message", keep);

const report = (bytes) => self.postMessage({ type: "loading", bytes, bytes_total: BYTES_TOTAL });

async function isIntact(bytes) {
  if (bytes.byteLength !== BYTES_TOTAL) return false;
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
  return Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("") === SHA_256;
}

// The program that an earlier visit cached, compiled; undefined where there is none, or it is damaged.
async function cachedProgram() {
  try {
    const finding = caches.open(CACHE_NAME).then(async (cache) => ({ cache, found: await cache.match(PROGRAM) }));
    const late = new Promise((resolve) => setTimeout(resolve, PATIENCE_MS, {}));
    const { cache, found } = await Promise.race([finding, late]);
    if (!found) return undefined;
    const bytes = await found.arrayBuffer();
    if (await isIntact(bytes)) {
      report(BYTES_TOTAL);
      return await WebAssembly.compile(bytes);
    }
    await cache.delete(PROGRAM);
  } catch (error) {
    console.info(`the cached training program cannot be used: ${error}`);
  }
  return undefined;
}

// Browsers may refuse: then the next visit fetches the program again.
async function cacheProgram(bytes) {
  try {
    const cache = await caches.open(CACHE_NAME);
    const others = (await cache.keys()).filter((request) => new URL(request.url).pathname !== PROGRAM);
    const n_surplus = Math.max(others.length + 1 - PROGRAMS_MAX, 0);
    await Promise.all(others.slice(0, n_surplus).map((request) => cache.delete(request)));
    await cache.put(PROGRAM, new Response(bytes, { headers: { "content-type": "application/wasm" } }));
  } catch (error) {
    console.info(`the training program is not cached: ${error}`);
  }
}

// Reads a response, at most as many bytes as the program has.
async function collect(response) {
  const bytes = new Uint8Array(BYTES_TOTAL);
  const reader = response.body.getReader();
  let n_bytes = 0;
  let reported = -Infinity;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    if (n_bytes + value.byteLength > BYTES_TOTAL) {
      await reader.cancel();
      return new Uint8Array();
    }
    bytes.set(value, n_bytes);
    n_bytes += value.byteLength;
    if (performance.now() - reported >= REPORT_EVERY_MS) {
      reported = performance.now();
      report(n_bytes);
    }
  }
  report(n_bytes);
  return bytes.subarray(0, n_bytes);
}

// Fetches the program and compiles it as it arrives; undefined where it arrives damaged.
async function fetchedProgram(cache) {
  const response = await fetch(PROGRAM, { cache });
  if (response.status === 404) throw new OutdatedError();
  if (!response.ok) throw new Error(`the training program was answered with status ${response.status}`);
  const copy = response.clone();
  // A program that does not compile fails the check of its hash.
  const compiled = WebAssembly.compileStreaming(response).catch(() => undefined);
  const bytes = await collect(copy);
  if (!(await isIntact(bytes))) return undefined;
  const module = (await compiled) ?? (await WebAssembly.compile(bytes));
  // The page does not wait for the cache.
  cacheProgram(bytes);
  return module;
}

async function program() {
  // The second time past the browser's own HTTP cache.
  const module = (await cachedProgram()) ?? (await fetchedProgram("default")) ?? (await fetchedProgram("reload"));
  if (!module) throw new Error("the training program arrived damaged, twice");
  return module;
}

// What was fetched in vain stays so for this worker and this address, as where a network changes: the second one is another.
async function glue() {
  try {
    return await import(GLUE);
  } catch (error) {
    console.info(`the training program is asked for again: ${error}`);
    await new Promise((resolve) => setTimeout(resolve, AGAIN_AFTER_MS));
    return await import(`${GLUE}?again`);
  }
}

async function start() {
  const [peer, module] = await Promise.all([glue(), program()]);
  await peer.default({ module_or_path: module });
  await peer.start();
}

async function replicate() {
  await first;
  const { module, setup } = messages.shift();
  const peer = await glue();
  await peer.default({ module_or_path: module });
  peer.replicate(setup);
}

async function load() {
  await (self.name === "replica" ? replicate() : start());
  self.removeEventListener("message", keep);
  for (const data of messages) self.dispatchEvent(new MessageEvent("message", { data }));
}

load().catch((error) => {
  const isOutdated = error instanceof OutdatedError;
  self.postMessage(isOutdated ? { type: "outdated" } : { type: "failed", message: String(error?.message ?? error) });
});
