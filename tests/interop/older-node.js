// What js-libp2p takes for granted and Node.js has only since version 22, some of it since 19. Import it first.

import { webcrypto } from "node:crypto";

import { WebSocket } from "ws";

globalThis.WebSocket ??= WebSocket;
globalThis.crypto ??= webcrypto;

globalThis.CustomEvent ??= class CustomEvent extends Event {
  constructor(type, options) {
    super(type, options);
    this.detail = options?.detail ?? null;
  }
};

Promise.withResolvers ??= function () {
  const parts = {};
  parts.promise = new this((resolve, reject) => Object.assign(parts, { resolve, reject }));
  return parts;
};
