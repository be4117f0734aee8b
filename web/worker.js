// Fetches the training program, tells the page how far it is, and hands over to it. What was fetched is kept
// for the next visit, and used, only where it is what the build wrote down. Messages that come before the
// program listens are kept and delivered afterwards. No knowledge of the protocol.

const PROGRAM = "{{asset:peer_bg.wasm}}";
const BYTES_TOTAL = Number("{{bytes:peer_bg.wasm}}");
const SHA_256 = "{{sha256:peer_bg.wasm}}";
const KEPT = "barnraise-program";
// This one, and one for tabs of another build.
const PROGRAMS_MAX = 2;
const REPORT_EVERY_MS = 100;

const messages = [];
const keep = (event) => {
  event.stopImmediatePropagation();
  messages.push(event.data);
};
self.addEventListener("message", keep);

const report = (bytes) => self.postMessage({ type: "loading", bytes, bytes_total: BYTES_TOTAL });

async function isRight(bytes) {
  if (bytes.byteLength !== BYTES_TOTAL) return false;
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
  return Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("") === SHA_256;
}

// What an earlier visit kept, compiled; nothing where it kept none, or it is no longer what it was.
async function kept() {
  try {
    const cache = await caches.open(KEPT);
    const found = await cache.match(PROGRAM);
    if (!found) return undefined;
    const bytes = await found.arrayBuffer();
    if (await isRight(bytes)) {
      report(BYTES_TOTAL);
      return await WebAssembly.compile(bytes);
    }
    await cache.delete(PROGRAM);
  } catch (error) {
    console.info(`what an earlier visit kept cannot be used: ${error}`);
  }
  return undefined;
}

// Browsers may refuse: the program is then fetched again by the next visit.
async function store(bytes) {
  try {
    const cache = await caches.open(KEPT);
    const others = (await cache.keys()).filter((request) => new URL(request.url).pathname !== PROGRAM);
    const n_surplus = Math.max(others.length + 1 - PROGRAMS_MAX, 0);
    await Promise.all(others.slice(0, n_surplus).map((request) => cache.delete(request)));
    await cache.put(PROGRAM, new Response(bytes, { headers: { "content-type": "application/wasm" } }));
  } catch (error) {
    console.info(`the training program is not kept: ${error}`);
  }
}

// All of a response, and never more than the program has.
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

// Fetched and compiled as it arrives; nothing where it came broken.
async function fetched(cache) {
  const response = await fetch(PROGRAM, { cache });
  if (response.status === 404) throw new Error("the server has a newer version of this page: reload it");
  if (!response.ok) throw new Error(`the training program was answered with status ${response.status}`);
  const copy = response.clone();
  // What cannot be compiled shows in the bytes.
  const compiled = WebAssembly.compileStreaming(response).catch(() => undefined);
  const bytes = await collect(copy);
  if (!(await isRight(bytes))) return undefined;
  const module = (await compiled) ?? (await WebAssembly.compile(bytes));
  // The page need not wait for it.
  store(bytes);
  return module;
}

async function program() {
  // The second time without what the browser's own cache has.
  const module = (await kept()) ?? (await fetched("default")) ?? (await fetched("reload"));
  if (!module) throw new Error("the training program came broken, twice");
  return module;
}

async function load() {
  const [peer, module] = await Promise.all([import("{{asset:peer.js}}"), program()]);
  await peer.default({ module_or_path: module });
  await peer.start();
  self.removeEventListener("message", keep);
  for (const data of messages) self.dispatchEvent(new MessageEvent("message", { data }));
}

load().catch((error) => self.postMessage({ type: "failed", message: String(error?.message ?? error) }));
