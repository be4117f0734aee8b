// Caches the page for visits without a network, so that it can be installed. One cache holds one build of the
// page, complete and verified: a page and its parts are never of two builds.
// Never touches answers of the run (/api), nor the training program, which worker.js caches.

const PREFIX = "barnraise-page-";
const CACHE_NAME = PREFIX + "{{sha256:*}}";
const PARTS = [
  ["/index.html", "{{bytes:index.html}}", "{{sha256:index.html}}"],
  ["/manifest.webmanifest", "{{bytes:manifest.webmanifest}}", "{{sha256:manifest.webmanifest}}"],
  ["{{asset:style.css}}", "{{bytes:style.css}}", "{{sha256:style.css}}"],
  ["{{asset:icon.svg}}", "{{bytes:icon.svg}}", "{{sha256:icon.svg}}"],
  ["{{asset:boot.js}}", "{{bytes:boot.js}}", "{{sha256:boot.js}}"],
  ["{{asset:page.js}}", "{{bytes:page.js}}", "{{sha256:page.js}}"],
  ["{{asset:page_bg.wasm}}", "{{bytes:page_bg.wasm}}", "{{sha256:page_bg.wasm}}"],
  ["{{asset:worker.js}}", "{{bytes:worker.js}}", "{{sha256:worker.js}}"],
  ["{{asset:peer.js}}", "{{bytes:peer.js}}", "{{sha256:peer.js}}"],
];
// The same page serves every run at its own address, and the list of runs.
const PAGES = /^\/(index\.html|runs\/|run\/[a-z0-9-]+\/)?$/;
// How long a navigation waits for the server before it gets the cached page, and anything else for a cache that hangs.
const PATIENCE_MS = 3000;
// Most builds that are cached, while tabs of older builds are open.
const BUILDS_MAX = 3;

async function isIntact(response, bytes, sha256) {
  if (!response.ok || response.redirected) return false;
  const body = await response.clone().arrayBuffer();
  if (body.byteLength !== Number(bytes)) return false;
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", body));
  return Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("") === sha256;
}

// The browser's own HTTP cache may be broken or old: then the server is asked.
async function get([address, bytes, sha256]) {
  const known = await fetch(address, { cache: address.startsWith("/assets/") ? "default" : "no-cache" });
  if (await isIntact(known, bytes, sha256)) return known;
  const fresh = await fetch(address, { cache: "reload" });
  if (await isIntact(fresh, bytes, sha256)) return fresh;
  throw new Error(`${address} is damaged, or of another build`);
}

async function install() {
  // All parts are fetched before the first one is cached.
  const parts = await Promise.all(PARTS.map(get));
  // Created anew, so that the newest build is listed last: pages compare their build with that one.
  await caches.delete(CACHE_NAME);
  const cache = await caches.open(CACHE_NAME);
  try {
    await Promise.all(parts.map((part, index) => cache.put(PARTS[index][0], part)));
  } catch (error) {
    await caches.delete(CACHE_NAME);
    throw error;
  }
}

const builds = async () => (await caches.keys()).filter((name) => name.startsWith(PREFIX) && name !== CACHE_NAME);

// Deletes older builds that no tab can be showing, except the tab that asked for this.
async function activate() {
  const windows = await self.clients.matchAll({ type: "window", includeUncontrolled: true });
  const older = await builds();
  const n_kept = windows.length > 1 ? BUILDS_MAX - 1 : 0;
  await Promise.all(older.slice(0, Math.max(older.length - n_kept, 0)).map((name) => caches.delete(name)));
  await self.clients.claim();
}

// Does not open the cache, which would create a deleted one anew: pages compare their build with the newest cache. Where
// the browser cannot read its cache, the server answers.
const look = (cacheName, address) =>
  caches.match(address, { cacheName, ignoreVary: true }).catch(() => undefined);

async function find(address) {
  const older = await builds().catch(() => []);
  for (const name of [CACHE_NAME, ...older.reverse()]) {
    const found = await look(name, address);
    if (found) return found;
  }
  return undefined;
}

const late = () => new Promise((resolve) => setTimeout(resolve, PATIENCE_MS));

async function answer(request, address) {
  const kept = find(address);
  const found = await Promise.race([kept, late()]);
  if (found) return found;
  try {
    return await fetch(request);
  } catch (error) {
    const slow = await kept;
    if (slow) return slow;
    throw error;
  }
}

async function navigate(request) {
  const kept = look(CACHE_NAME, "/index.html");
  // A server that is starting or overloaded has no newer page.
  const fresh = fetch(request).then(async (response) => (response.status < 500 ? response : ((await kept) ?? response)));
  try {
    return (await Promise.race([fresh, late().then(() => kept)])) ?? (await fresh);
  } catch (error) {
    const page = await kept;
    if (page) return page;
    throw error;
  }
}

self.addEventListener("install", (event) => event.waitUntil(install()));
self.addEventListener("activate", (event) => event.waitUntil(activate()));
// Sent by a page that is about to reload.
self.addEventListener("message", (event) => {
  if (event.data === "take-over") self.skipWaiting();
});
self.addEventListener("fetch", (event) => {
  const { request } = event;
  const { origin, pathname } = new URL(request.url);
  if (request.method !== "GET" || origin !== self.location.origin) return;
  if (request.mode === "navigate") {
    if (PAGES.test(pathname)) event.respondWith(navigate(request));
  } else if (pathname.startsWith("/assets/") || pathname === "/manifest.webmanifest") {
    event.respondWith(answer(request, pathname));
  }
});
