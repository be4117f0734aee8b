// What of a browser the page's own scripts use, in memory: caches, a server of the built page, a scope that they run in.

import { readFile } from "node:fs/promises";
import { readdirSync } from "node:fs";
import { join } from "node:path";
import vm from "node:vm";

export const ORIGIN = "http://page.test";
const ROOT = process.env.BARNRAISE_WEB_ROOT;

const path = (request) => new URL(typeof request === "string" ? request : request.url, ORIGIN).pathname;

class Cache {
  entries = new Map();

  constructor(browser) {
    this.browser = browser;
  }

  async match(request) {
    if (this.browser.isHanging) await new Promise(() => {});
    return this.entries.get(path(request))?.clone();
  }

  async put(request, response) {
    if (this.browser.isFull) throw new DOMException("no room", "QuotaExceededError");
    // As a cache does: all of it is read.
    const { status, headers } = response;
    this.entries.set(path(request), new Response(await response.arrayBuffer(), { status, headers }));
  }

  async delete(request) {
    return this.entries.delete(path(request));
  }

  async keys() {
    return [...this.entries.keys()].map((address) => new Request(ORIGIN + address));
  }
}

class CacheStorage {
  all = new Map();

  constructor(browser) {
    this.browser = browser;
  }

  async keys() {
    return [...this.all.keys()];
  }

  async open(name) {
    if (!this.all.has(name)) this.all.set(name, new Cache(this.browser));
    return this.all.get(name);
  }

  async delete(name) {
    return this.all.delete(name);
  }

  async match(request, { cacheName }) {
    if (this.browser.isUnreadable) throw new DOMException("cannot be read", "UnknownError");
    return this.all.get(cacheName)?.match(request);
  }
}

export class Browser {
  // Whether nothing more can be kept, nothing that is kept can be read, and nothing is ever found.
  isFull = false;
  isUnreadable = false;
  isHanging = false;
  // What the server answers in place of the built page's file: a function of path and cache mode.
  server = () => undefined;
  // Path and cache mode of each request.
  asked = [];
  caches = new CacheStorage(this);
  windows = [{}];
  posted = [];
  hasTakenOver = false;
  hasClaimed = false;
  listeners = new Map();

  async fetch(request, { cache } = {}) {
    const address = path(request);
    this.asked.push([address, cache]);
    const answer = await this.server(address, cache);
    if (answer) return answer;
    try {
      const bytes = await readFile(join(ROOT, address === "/" ? "index.html" : address));
      const type = address.endsWith(".wasm") ? "application/wasm" : "application/octet-stream";
      return new Response(bytes, { headers: { "content-type": type } });
    } catch {
      return new Response("not here", { status: 404 });
    }
  }

  // Runs a script of the built page; `more` are globals beside a worker's.
  async run(source, more = {}) {
    const scope = {
      location: new URL(ORIGIN),
      clients: {
        matchAll: async () => this.windows,
        claim: async () => {
          this.hasClaimed = true;
        },
      },
      skipWaiting: () => {
        this.hasTakenOver = true;
      },
      postMessage: (message) => this.posted.push(message),
      addEventListener: (kind, listener) => {
        this.listeners.set(kind, [...(this.listeners.get(kind) ?? []), listener]);
      },
      removeEventListener: (kind, listener) => {
        this.listeners.set(kind, (this.listeners.get(kind) ?? []).filter((known) => known !== listener));
      },
      dispatchEvent: (event) => this.listeners.get(event.type)?.forEach((listener) => listener(event)),
    };
    const context = {
      self: scope,
      caches: this.caches,
      fetch: (...args) => this.fetch(...args),
      console: { info: () => {} },
      crypto, performance, setTimeout, URL, Response, Request, MessageEvent, WebAssembly, Uint8Array, Number,
      ...more,
    };
    vm.runInNewContext(source, context);
  }

  // An event with `waitUntil`: settles as its work does.
  async happen(kind, event = {}) {
    let work;
    const extended = { ...event, waitUntil: (promise) => (work = promise) };
    this.listeners.get(kind).forEach((listener) => listener(extended));
    await work;
  }

  // A request of a page: what the script answers, or nothing where it leaves it to the browser.
  request(address, { method = "GET", mode = "cors", origin = ORIGIN } = {}) {
    let answer;
    const request = { url: origin + address, method, mode };
    const event = { request, respondWith: (promise) => (answer = promise) };
    this.listeners.get("fetch").forEach((listener) => listener(event));
    return answer;
  }
}

export const built = (address) => readFile(join(ROOT, address));

// Where the build put a file: under a name with its hash.
export function asset(name) {
  const [stem, kind] = [name.slice(0, name.lastIndexOf(".")), name.slice(name.lastIndexOf("."))];
  const found = readdirSync(join(ROOT, "assets")).find(
    (file) => file.startsWith(stem + ".") && file.endsWith(kind) && file.length === name.length + 13,
  );
  if (!found) throw new Error(`the built page has no ${name}`);
  return `/assets/${found}`;
}
