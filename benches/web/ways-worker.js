// In place of the training worker: bytes down and up by each way of the plan, in turn, round after round.
import init, { BulkConnection, noise } from "./peer/bench-peer.js";

const PIECE_BYTES = 64 * 1024;
const COUNT_BYTES = 8;

// One stream for each measurement and nothing else: the server sends as many bytes as the first eight say,
// reads to the end, and closes with one byte.
class Raw {
  static async dial({ url, certhashes }, n_bytes) {
    const hashes = certhashes.map((hash) => ({ algorithm: "sha-256", value: new Uint8Array(hash) }));
    const raw = new Raw();
    raw.session = new WebTransport(url, { serverCertificateHashes: hashes });
    await raw.session.ready;
    raw.bytes = noise(n_bytes);
    return raw;
  }

  async down() {
    await this.#exchange(this.bytes.byteLength, new Uint8Array());
  }

  async up() {
    await this.#exchange(0, this.bytes);
  }

  async #exchange(n_wanted, bytes) {
    const stream = await this.session.createBidirectionalStream();
    const writer = stream.writable.getWriter();
    const count = new DataView(new ArrayBuffer(COUNT_BYTES));
    count.setBigUint64(0, BigInt(n_wanted));
    await writer.write(count);
    for (let at = 0; at < bytes.byteLength; at += PIECE_BYTES) {
      await writer.ready;
      writer.write(bytes.subarray(at, at + PIECE_BYTES)).catch(() => {});
    }
    await writer.close();
    const reader = stream.readable.getReader();
    let n_read = 0;
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      n_read += value.byteLength;
    }
    if (n_read !== n_wanted + 1) throw new Error(`${n_read} bytes came, want ${n_wanted + 1}`);
  }
}

async function measure({ ways, n_bytes, n_rounds }) {
  const links = [];
  for (const way of ways) links.push(await (way.url ? Raw.dial(way, n_bytes) : BulkConnection.dial(way.address, n_bytes)));
  const timed = async (link, direction) => {
    const from = performance.now();
    await link[direction]();
    return performance.now() - from;
  };
  const figures = ways.map(() => ({ down_ms: [], up_ms: [] }));
  for (let round = 0; round <= n_rounds; round++) {
    for (const [index, link] of links.entries()) {
      const [down_ms, up_ms] = [await timed(link, "down"), await timed(link, "up")];
      // The first one warms up: windows grow, code is compiled.
      if (round === 0) continue;
      figures[index].down_ms.push(down_ms);
      figures[index].up_ms.push(up_ms);
    }
  }
  return figures;
}

async function work() {
  try {
    const plan = await (await fetch("/plan")).json();
    await init({ module_or_path: new URL("./peer/bench-peer_bg.wasm", import.meta.url) });
    return { figures: await measure(plan) };
  } catch (error) {
    return { error: String(error?.message ?? error) };
  }
}

work().then((outcome) => fetch("/outcome", {
  method: "POST",
  headers: { "content-type": "application/json" },
  body: JSON.stringify(outcome),
}));
