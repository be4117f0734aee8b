"""Measures hivemind's DHT as `cargo xtask bench dht` measures ours, and prints the figures as JSON.

The procedure follows hivemind's own benchmark of its DHT: each peer is a process, some of them are shut down
between rounds, and a batch lasts until all of its stores, or gets, have been answered.
"""

import argparse
import asyncio
import json
import random
import time
import uuid

import hivemind
from hivemind.utils import get_dht_time
from hivemind.utils.limits import increase_file_limit


def arguments():
    parser = argparse.ArgumentParser()
    for name in ("peers", "initial-peers", "tasks", "rounds", "store-peers", "get-peers", "seed"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--expiration", type=float, required=True)
    parser.add_argument("--failure-rate", type=float, required=True)
    return parser.parse_args()


def start(args):
    peers = []
    for _ in range(args.peers):
        known = random.sample(peers, min(args.initial_peers, len(peers)))
        addresses = [address for peer in known for address in peer.get_visible_maddrs()]
        peers.append(hivemind.DHT(initial_peers=addresses, start=True, wait_timeout=5))
    return peers


class Mortals:
    def __init__(self, peers, at_rounds):
        self.peers, self.at_rounds, self.n_rounds = peers, at_rounds, 0

    def kill_one(self):
        if self.n_rounds in self.at_rounds and self.peers:
            self.peers.pop().shutdown()
        self.n_rounds += 1


async def work(args, peers, mortals, result):
    for _ in range(args.rounds):
        name = uuid.uuid4().hex
        begin = time.perf_counter()
        values = {}
        stores = []
        for peer in random.sample(peers, min(args.store_peers, len(peers))):
            subkey, value = uuid.uuid4().hex, uuid.uuid4().hex
            values[subkey] = value
            expires_at = get_dht_time() + args.expiration
            stores.append(peer.store(name, value, expires_at, subkey=subkey, return_future=True))
        verdicts = await asyncio.gather(*stores)
        mortals.kill_one()
        result["store_s"].append(time.perf_counter() - begin)
        result["n_stores"] += len(verdicts)
        result["n_stored"] += sum(map(bool, verdicts))

        begin = time.perf_counter()
        getting = random.sample(peers, min(args.get_peers, len(peers)))
        found = await asyncio.gather(*(peer.get(name, latest=True, return_future=True) for peer in getting))
        result["get_s"].append(time.perf_counter() - begin)
        result["n_gets"] += len(found)
        stored = {subkey: values[subkey] for subkey, verdict in zip(values, verdicts) if verdict}
        for answer in found:
            entries = {subkey: entry.value for subkey, entry in answer.value.items()} if answer else {}
            result["n_got"] += entries == stored


async def main(args, peers):
    n_dying = int(args.failure_rate * len(peers))
    dying = random.sample(peers, n_dying)
    staying = [peer for peer in peers if peer not in dying]
    mortals = Mortals(dying, set(random.sample(range(args.tasks * args.rounds), n_dying)))
    result = {"store_s": [], "get_s": [], "n_stores": 0, "n_stored": 0, "n_gets": 0, "n_got": 0}
    begin = time.perf_counter()
    await asyncio.gather(*(work(args, staying, mortals, result) for _ in range(args.tasks)))
    result["total_s"] = time.perf_counter() - begin
    for peer in staying + mortals.peers:
        peer.shutdown()
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    args = arguments()
    increase_file_limit()
    random.seed(args.seed)
    asyncio.run(main(args, start(args)))
