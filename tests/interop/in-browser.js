// The address is in the page's query; the outcome becomes the text of its element `outcome`.

import { webSockets } from "@libp2p/websockets";
import { webTransport } from "@libp2p/webtransport";

import { outcome } from "./dial.js";

const address = new URLSearchParams(location.search).get("dial");
document.getElementById("outcome").textContent = await outcome(address, [webTransport(), webSockets()]);
