"""Has a group of hivemind's averagers average a vector, as `cargo xtask bench averaging` has ours.

Each peer is a process, as in hivemind's own benchmark. Groups are formed before the clock starts, for the time of
the all-reduce alone is compared. Answers a line of JSON for each line on standard input: how many seconds a round
took, and by how much the result is off.
"""

import argparse
import json
import sys
import time

import hivemind
import torch
from hivemind.averaging.control import AveragingStage
from hivemind.compression import Float16Compression, NoCompression, Uniform8BitQuantization
from hivemind.utils.limits import increase_file_limit

CODECS = {"f32": NoCompression, "f16": Float16Compression, "int8": Uniform8BitQuantization}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--peers", type=int, required=True)
    parser.add_argument("--values", type=int, required=True)
    parser.add_argument("--codec", choices=CODECS, required=True)
    args = parser.parse_args()
    increase_file_limit()
    torch.set_num_threads(1)
    base = torch.randn(args.values, generator=torch.Generator().manual_seed(1))
    first = hivemind.DHT(start=True)
    known = first.get_visible_maddrs()
    averagers = []
    for index in range(args.peers):
        dht = first if index == 0 else hivemind.DHT(initial_peers=known, start=True)
        averagers.append(
            hivemind.averaging.DecentralizedAverager(
                [base + index],
                dht,
                start=True,
                prefix="bench",
                target_group_size=args.peers,
                min_group_size=args.peers,
                min_matchmaking_time=3.0,
                request_timeout=1.0,
                initial_group_bits="",
                compression=CODECS[args.codec](),
                allow_state_sharing=False,
            )
        )
    wanted = (args.peers - 1) / 2
    print(json.dumps({"ready": True}), flush=True)
    for _ in sys.stdin:
        for index, averager in enumerate(averagers):
            with averager.get_tensors() as tensors:
                tensors[0][...] = base + index
        controls = [averager.step(wait=False, require_trigger=True, timeout=120) for averager in averagers]
        while any(control.stage != AveragingStage.AWAITING_TRIGGER for control in controls):
            if any(control.done() for control in controls):
                raise RuntimeError("a peer found no group")
            time.sleep(0.01)
        begun = time.perf_counter()
        for control in controls:
            control.allow_allreduce()
        n_averaged = sum(bool(control.result()) for control in controls)
        seconds = time.perf_counter() - begun
        error = 0.0
        for averager in averagers:
            with averager.get_tensors() as tensors:
                error = max(error, float((tensors[0] - base - wanted).abs().max()))
        print(json.dumps({"seconds": seconds, "error": error, "n_averaged": n_averaged}), flush=True)
    for averager in averagers:
        averager.shutdown()


if __name__ == "__main__":
    main()
