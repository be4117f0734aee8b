// The script that fetches the training program, as it is built: what it keeps, what it uses, what it says.

import assert from "node:assert/strict";
import test from "node:test";
import { Browser, asset, built } from "./browser.mjs";

const PROGRAM = asset("peer_bg.wasm");
const KEPT = "barnraise-program";

// A browser in which the worker has ended its loading: the module that the program was started with is `started`.
async function loaded(browser = new Browser(), { n_in_vain = 0 } = {}) {
  const source = (await built(asset("worker.js"))).toString();
  browser.started = undefined;
  const ended = new Promise((resolve) => {
    const peer = {
      default: async ({ module_or_path }) => (browser.started = module_or_path),
      start: async () => setTimeout(resolve, 0),
    };
    browser.posted = new Proxy(browser.posted, {
      set(posted, key, message) {
        posted[key] = message;
        if (["failed", "outdated"].includes(message?.type)) setTimeout(resolve, 0);
        return true;
      },
    });
    const compile = async (bytes) => ({ n_bytes: bytes.byteLength });
    const compileStreaming = async (response) => compile(await (await response).arrayBuffer());
    browser.imported = [];
    const importing = async (address) => {
      browser.imported.push(address);
      if (browser.imported.length <= n_in_vain) throw new TypeError("Failed to fetch");
      return peer;
    };
    const more = { importing, WebAssembly: { compile, compileStreaming } };
    assert.ok(source.includes("import("), "the peer is imported when it is needed");
    browser.run(source.replaceAll("import(", "importing("), more);
  });
  await ended;
  return browser;
}

const failure = ({ posted }) => posted.find(({ type }) => type === "failed")?.message;
const asked = (browser) => browser.asked.filter(([address]) => address === PROGRAM).map(([, cache]) => cache);
const kept = async (browser) => (await (await browser.caches.open(KEPT)).match(PROGRAM))?.arrayBuffer();

async function until(condition) {
  for (let n_looks = 0; n_looks < 500 && !(await condition()); n_looks++) {
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
  assert.ok(await condition());
}

test("the program is fetched, started and kept, and the next visit fetches nothing", async () => {
  const browser = await loaded();
  const n_bytes = (await built(PROGRAM)).byteLength;
  assert.equal(failure(browser), undefined);
  assert.equal(browser.started.n_bytes, n_bytes);
  const last = browser.posted.filter(({ type }) => type === "loading").at(-1);
  assert.deepEqual([last.bytes, last.bytes_total], [n_bytes, n_bytes]);
  await until(async () => (await kept(browser))?.byteLength === n_bytes);

  browser.asked = [];
  await loaded(browser);
  assert.equal(browser.started.n_bytes, n_bytes);
  assert.deepEqual(asked(browser), []);
});

test("a cache that hangs keeps nobody from the program", async () => {
  const browser = await loaded();
  await until(async () => kept(browser));
  [browser.asked, browser.isHanging] = [[], true];
  await loaded(browser);
  assert.deepEqual(asked(browser), ["default"]);
});

test("what was kept and is broken is thrown away and fetched again", async () => {
  const browser = new Browser();
  const broken = await built(PROGRAM);
  broken[1000] ^= 1;
  await (await browser.caches.open(KEPT)).put(PROGRAM, new Response(broken));
  await loaded(browser);
  assert.equal(browser.started.n_bytes, broken.byteLength);
  assert.deepEqual(asked(browser), ["default"]);
  await until(async () => (await kept(browser)) && !broken.equals(Buffer.from(await kept(browser))));
});

test("what comes broken once is asked for again, past the browser's cache; twice is told", async () => {
  const short = async () => new Response((await built(PROGRAM)).subarray(1));
  const long = async () => new Response(Buffer.concat([await built(PROGRAM), Buffer.from([0])]));
  for (const broken of [short, long]) {
    const once = new Browser();
    once.server = (address, cache) => (address === PROGRAM && cache === "default" ? broken() : undefined);
    await loaded(once);
    assert.deepEqual(asked(once), ["default", "reload"]);
    assert.equal(once.started.n_bytes, (await built(PROGRAM)).byteLength);

    const twice = new Browser();
    twice.server = (address) => (address === PROGRAM ? broken() : undefined);
    await loaded(twice);
    assert.match(failure(twice), /arrived damaged, twice/);
    assert.equal(twice.started, undefined);
    assert.equal(await kept(twice), undefined);
  }
});

test("a script that is fetched in vain is asked for at another address, once", async () => {
  const glue = asset("peer.js");
  const once = await loaded(new Browser(), { n_in_vain: 1 });
  assert.deepEqual(once.imported, [glue, `${glue}?again`]);
  assert.ok(once.started);
  const twice = await loaded(new Browser(), { n_in_vain: 2 });
  assert.deepEqual(twice.imported, [glue, `${glue}?again`]);
  assert.match(failure(twice), /Failed to fetch/);
});

test("a page of an older build is told to load again", async () => {
  const browser = new Browser();
  browser.server = (address) => (address === PROGRAM ? new Response("not here", { status: 404 }) : undefined);
  await loaded(browser);
  assert.ok(browser.posted.some(({ type }) => type === "outdated"));
  assert.equal(failure(browser), undefined);
  browser.server = (address) => (address === PROGRAM ? new Response("busy", { status: 503 }) : undefined);
  const again = new Browser();
  again.server = browser.server;
  await loaded(again);
  assert.match(failure(again), /status 503/);
});

test("a browser that keeps nothing trains all the same", async () => {
  const browser = new Browser();
  browser.isFull = true;
  await loaded(browser);
  assert.equal(failure(browser), undefined);
  assert.ok(browser.started);
});

test("programs of other builds make room, but for the newest", async () => {
  const browser = new Browser();
  const cache = await browser.caches.open(KEPT);
  for (const name of ["a", "b", "c"]) await cache.put(`/assets/peer_bg.${name}.wasm`, new Response(name));
  await loaded(browser);
  await until(() => cache.entries.has(PROGRAM));
  assert.deepEqual([...cache.entries.keys()], ["/assets/peer_bg.c.wasm", PROGRAM]);
});

test("what the page says before the program listens is delivered then", async () => {
  const browser = new Browser();
  const heard = [];
  const loading = loaded(browser);
  await until(() => browser.listeners.has("message"));
  const early = { data: "hello", stopImmediatePropagation: () => heard.push("kept") };
  browser.listeners.get("message").forEach((listener) => listener(early));
  browser.listeners.set("message", [...browser.listeners.get("message"), ({ data }) => heard.push(data)]);
  await loading;
  await until(() => heard.includes("hello"));
  assert.deepEqual(heard, ["kept", "hello"]);
});
