// The service worker as it is built, in a browser of a few lines: what it keeps, what it answers, what it leaves alone.

import assert from "node:assert/strict";
import test from "node:test";
import { Browser, asset, built } from "./browser.mjs";

const PREFIX = "barnraise-page-";
const STYLE = asset("style.css");

async function worker() {
  const browser = new Browser();
  await browser.run((await built("service-worker.js")).toString());
  return browser;
}

async function installed() {
  const browser = await worker();
  await browser.happen("install");
  browser.asked = [];
  return browser;
}

const pages = async (browser) => (await browser.caches.keys()).filter((name) => name.startsWith(PREFIX));
const text = async (answer) => (await answer).text();
const offline = () => {
  throw new TypeError("no network");
};

test("all of a build is kept, and comes without a network", async () => {
  const browser = await installed();
  const [kept, ...others] = await pages(browser);
  assert.deepEqual(others, []);
  const { entries } = await browser.caches.open(kept);
  for (const part of ["/index.html", "/manifest.webmanifest", STYLE, asset("page_bg.wasm"), asset("peer.js")]) {
    assert.ok(entries.has(part), `${part} is kept: ${[...entries.keys()]}`);
  }
  assert.ok(!entries.has(asset("peer_bg.wasm")), "the training program is not the page's");

  browser.server = offline;
  assert.equal(await text(browser.request(STYLE)), (await built(STYLE)).toString());
  for (const page of ["/", "/index.html", "/runs/", "/run/a-b-1/"]) {
    assert.equal(await text(browser.request(page, { mode: "navigate" })), (await built("index.html")).toString());
  }
});

test("where the cache hangs the server answers", async () => {
  const browser = await installed();
  browser.isHanging = true;
  assert.equal(await text(browser.request(STYLE)), (await built(STYLE)).toString());
  assert.deepEqual(browser.asked.map(([address]) => address), [STYLE]);
});

test("a part that the browser's own cache has broken is asked of the server", async () => {
  const browser = await worker();
  browser.server = (address, cache) =>
    address === STYLE && cache !== "reload" ? new Response("body { color: old }") : undefined;
  await browser.happen("install");
  assert.deepEqual(browser.asked.filter(([address]) => address === STYLE).map(([, cache]) => cache), ["default", "reload"]);
  browser.server = offline;
  assert.equal(await text(browser.request(STYLE)), (await built(STYLE)).toString());
});

test("where one part is of another build none is kept", async () => {
  const changed = await built(STYLE);
  changed[0] ^= 1;
  for (const answer of [
    () => new Response("of another build"),
    () => new Response(changed),
    () => new Response("not here", { status: 404 }),
    async () => Object.defineProperty(new Response(await built(STYLE)), "redirected", { value: true }),
  ]) {
    const browser = await worker();
    browser.server = (address) => (address === STYLE ? answer() : undefined);
    await assert.rejects(browser.happen("install"), /style.*of another build/);
    assert.deepEqual(await pages(browser), []);
  }
});

test("a full disk leaves no half of a page", async () => {
  const browser = await worker();
  browser.isFull = true;
  await assert.rejects(browser.happen("install"), /no room/);
  assert.deepEqual(await pages(browser), []);
});

test("older builds go, but for those that open tabs may show, and what is not a page stays", async () => {
  for (const [n_windows, older] of [[1, []], [2, ["b", "c"]], [5, ["b", "c"]]]) {
    const browser = await worker();
    for (const name of ["a", "b", "c"]) await browser.caches.open(PREFIX + name);
    for (const name of ["barnraise-program", "barnraise-shards-1"]) await browser.caches.open(name);
    await browser.happen("install");
    browser.windows = Array(n_windows).fill({});
    await browser.happen("activate");
    const left = await browser.caches.keys();
    assert.deepEqual(left.slice(0, older.length), older.map((name) => PREFIX + name));
    assert.ok(left.includes("barnraise-program") && left.includes("barnraise-shards-1"), `${left}`);
    assert.equal((await pages(browser)).length, older.length + 1);
    assert.ok(browser.hasClaimed);
  }
});

test("what belongs to an older build is found while a tab shows it", async () => {
  const browser = await installed();
  const older = await browser.caches.open(`${PREFIX}older`);
  await older.put("/assets/style.000000000000.css", new Response("older"));
  assert.equal(await text(browser.request("/assets/style.000000000000.css")), "older");
  assert.deepEqual(browser.asked, []);
});

test("the run's answers, other origins and what is sent are left alone", async () => {
  const browser = await installed();
  assert.equal(browser.request("/api/run"), undefined);
  assert.equal(browser.request("/api/run", { mode: "navigate" }), undefined);
  assert.equal(browser.request("/admin/", { mode: "navigate" }), undefined);
  assert.equal(browser.request(STYLE, { method: "POST" }), undefined);
  assert.equal(browser.request(STYLE, { origin: "http://other.test" }), undefined);
  assert.deepEqual(browser.asked, []);
});

test("a visit gets the server's page while there is one, and the kept one where not", async () => {
  const browser = await installed();
  const visit = () => text(browser.request("/", { mode: "navigate" }));
  const kept = (await built("index.html")).toString();
  const answered = (status) => () => new Response(`status ${status}`, { status });
  browser.server = answered(200);
  assert.equal(await visit(), "status 200");
  browser.server = answered(404);
  assert.equal(await visit(), "status 404", "the server knows better");
  browser.server = answered(503);
  assert.equal(await visit(), kept);
  browser.server = offline;
  assert.equal(await visit(), kept);
  browser.server = () => new Promise(() => {});
  assert.equal(await visit(), kept, "one that never answers");
});

test("with nothing kept the server's word is all there is", async () => {
  const browser = await worker();
  browser.server = () => new Response("status 503", { status: 503 });
  assert.equal(await text(browser.request("/", { mode: "navigate" })), "status 503");
  browser.server = offline;
  await assert.rejects(browser.request("/", { mode: "navigate" }), /no network/);
});

test("what is kept and cannot be read is asked of the server", async () => {
  const browser = await installed();
  browser.isUnreadable = true;
  assert.equal(await text(browser.request(STYLE)), (await built(STYLE)).toString());
  assert.deepEqual(browser.asked.map(([address]) => address), [STYLE]);
});

test("it takes over when a page asks for it", async () => {
  const browser = await installed();
  await browser.happen("message", { data: "something else" });
  assert.ok(!browser.hasTakenOver);
  await browser.happen("message", { data: "take-over" });
  assert.ok(browser.hasTakenOver);
});
