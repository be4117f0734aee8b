// `node in-node.js ADDRESS`: prints what became of the dial.

import "./older-node.js";

import { tcp } from "@libp2p/tcp";
import { webSockets } from "@libp2p/websockets";

import { outcome } from "./dial.js";

console.log(await outcome(process.argv[2], [tcp(), webSockets()]));
