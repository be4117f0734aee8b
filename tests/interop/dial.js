// js-libp2p dials a backbone by its address: identified, as whom, and a ping. Nothing here is of Barnraise.

import { noise } from "@chainsafe/libp2p-noise";
import { yamux } from "@chainsafe/libp2p-yamux";
import { identify } from "@libp2p/identify";
import { ping } from "@libp2p/ping";
import { multiaddr } from "@multiformats/multiaddr";
import { createLibp2p } from "libp2p";

// Only a hang takes as long, however busy the machine is.
const HANG_MS = 60_000;

/** A new node with `transports` dials `address`; who answered and how long a ping took. */
export async function dial(address, transports) {
  const node = await createLibp2p({
    transports,
    connectionEncrypters: [noise()],
    streamMuxers: [yamux()],
    // Else a browser dials no private address.
    connectionGater: { denyDialMultiaddr: () => false },
    connectionManager: {
      dialTimeout: HANG_MS,
      addressDialTimeout: HANG_MS,
      outboundStreamProtocolNegotiationTimeout: HANG_MS,
    },
    services: { identify: identify({ timeout: HANG_MS }), ping: ping({ timeout: HANG_MS }) },
  });
  try {
    const identified = firstIdentified(node);
    const connection = await node.dial(multiaddr(address), { signal: AbortSignal.timeout(HANG_MS) });
    const { agentVersion, protocolVersion, protocols } = await identified;
    const pingMs = await node.services.ping.ping(connection.remotePeer);
    return {
      peer: connection.remotePeer.toString(),
      way: connection.remoteAddr.toString(),
      agentVersion,
      protocolVersion,
      protocols,
      pingMs,
    };
  } finally {
    await node.stop();
  }
}

// js-libp2p sends identify to each peer that it connects to by itself.
function firstIdentified(node) {
  const identified = new Promise((resolve, reject) => {
    node.addEventListener("peer:identify", (event) => resolve(event.detail), { once: true });
    AbortSignal.timeout(HANG_MS).addEventListener("abort", () => reject(new Error("not identified in time")));
  });
  // Where the dial fails first nobody waits for it.
  identified.catch(() => {});
  return identified;
}

/** What became of a dial, as JSON: `{ met }` or `{ refused }`. */
export async function outcome(address, transports) {
  try {
    return JSON.stringify({ met: await dial(address, transports) });
  } catch (error) {
    return JSON.stringify({ refused: `${error.name}: ${error.message}` });
  }
}
