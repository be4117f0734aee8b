// js-libp2p dials a backbone over and over by one way. Nothing here is of Barnraise.

import { noise } from "@chainsafe/libp2p-noise";
import { yamux } from "@chainsafe/libp2p-yamux";
import { identify } from "@libp2p/identify";
import { ping } from "@libp2p/ping";
import { multiaddr } from "@multiformats/multiaddr";
import { createLibp2p } from "libp2p";

// Only a hang takes as long, however busy the machine is.
const HANG_MS = 60_000;
// After 20 s a backbone gives up a ping that nobody answers, and with it the connection: a close that ends only then
// was never answered.
const CLOSE_MS = 15_000;

/**
 * One node dials `address` `times` over: a ping that waits for nothing but the dial, then a close that has to come to
 * its end before the next dial. As JSON: `{ repeated }`, or `{ refused }` with what failed first.
 */
export async function repeated(address, transports, times) {
  const node = await createLibp2p({
    transports,
    connectionEncrypters: [noise()],
    streamMuxers: [yamux()],
    // Else a browser dials no private address.
    connectionGater: { denyDialMultiaddr: () => false },
    connectionManager: { dialTimeout: HANG_MS, addressDialTimeout: HANG_MS, reconnectRetries: 0 },
    connectionMonitor: { enabled: false },
    services: { identify: identify({ timeout: HANG_MS }), ping: ping({ timeout: HANG_MS }) },
  });
  let step = "";
  try {
    for (let number = 1; number <= times; number++) {
      step = `dial ${number}`;
      const connection = await node.dial(multiaddr(address), { signal: AbortSignal.timeout(HANG_MS) });
      step = `ping ${number}`;
      await node.services.ping.ping(connection.remotePeer, { signal: AbortSignal.timeout(HANG_MS) });
      step = `close ${number}`;
      await connection.close({ signal: AbortSignal.timeout(CLOSE_MS) });
      // A close that failed leaves it behind, and the next dial finds that one.
      if (node.getConnections().length > 0) throw new Error("the connection is still there");
    }
    return JSON.stringify({ repeated: times });
  } catch (error) {
    return JSON.stringify({ refused: `${step}: ${error.name}: ${error.message}` });
  } finally {
    await node.stop();
  }
}
