// The address is in the page's query, and how often to dial it where that is not once; the outcome becomes the text
// of its element `outcome`.

import { webRTCDirect } from "@libp2p/webrtc";
import { webSockets } from "@libp2p/websockets";
import { webTransport } from "@libp2p/webtransport";

import { outcome } from "./dial.js";
import { repeated } from "./repeat.js";

const query = new URLSearchParams(location.search);
const [address, times] = [query.get("dial"), query.get("times")];
// Nothing is taken for closed because it took long.
const untilAcknowledged = { dataChannel: { finAckTimeout: 60_000 } };
const transports = [webTransport(), webSockets(), webRTCDirect(untilAcknowledged)];
document.getElementById("outcome").textContent =
  times === null ? await outcome(address, transports) : await repeated(address, transports, Number(times));
