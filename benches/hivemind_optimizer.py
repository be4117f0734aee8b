"""Has peers of hivemind's optimizer train a small network together, as `cargo xtask bench optimizer` has ours.

The workload of hivemind's own `benchmark_optimizer.py`: a perceptron of 784-64-10, SGD, batches of 2 to 16 samples,
some of the peers as clients. Answers lines of JSON: that training began, then how long so many epochs took.
"""

import argparse
import functools
import gzip
import json
import multiprocessing as mp
import random
import sys
import time

import hivemind
import numpy as np
import torch
from hivemind.utils.limits import increase_file_limit


def load(folder):
    def read(name, offset):
        with gzip.open(f"{folder}/{name}.gz") as file:
            return np.frombuffer(file.read(), np.uint8, offset=offset)

    images = torch.tensor(read("train-images-idx3-ubyte", 16).reshape(-1, 784), dtype=torch.float32)
    labels = torch.tensor(read("train-labels-idx1-ubyte", 8), dtype=torch.int64)
    return (images - images.mean()) / images.std(), labels


def train(args, known, batch_size, is_client, reports):
    torch.set_num_threads(1)
    torch.manual_seed(1)
    images, labels = load(args.data)
    model = torch.nn.Sequential(torch.nn.Linear(784, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    optimizer = hivemind.Optimizer(
        dht=hivemind.DHT(initial_peers=known, client_mode=is_client, start=True),
        run_id="bench",
        target_batch_size=args.target,
        batch_size_per_step=batch_size,
        params=model.parameters(),
        optimizer=functools.partial(torch.optim.SGD, lr=0.1),
        matchmaking_time=args.matchmaking,
        averaging_timeout=15.0,
        reuse_grad_buffers=True,
        delay_grad_averaging=True,
        delay_optimizer_step=True,
        client_mode=is_client,
        tracker_opts=dict(max_refresh_period=args.refresh),
    )
    began = None
    while True:
        batch = torch.randint(0, len(images), (batch_size,))
        torch.nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()
        if reports is None:
            continue
        epoch = optimizer.local_epoch
        if began is None and epoch >= 1:
            began = (time.perf_counter(), epoch)
            reports.put({"began": epoch})
        if began is not None and epoch >= began[1] + args.epochs:
            reports.put({"seconds": time.perf_counter() - began[0], "epochs": epoch - began[1]})
            return


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--peers", type=int, required=True)
    parser.add_argument("--clients", type=int, required=True)
    parser.add_argument("--target", type=int, required=True)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--matchmaking", type=float, required=True)
    parser.add_argument("--refresh", type=float, required=True)
    args = parser.parse_args()
    increase_file_limit()
    random.seed(42)
    first = hivemind.DHT(start=True)
    reports = mp.Queue()
    for index in range(args.peers):
        is_client = index >= args.peers - args.clients
        of_first = reports if index == 0 else None
        task = (args, first.get_visible_maddrs(), random.randint(2, 16), is_client, of_first)
        mp.Process(target=train, args=task).start()
    for _ in range(2):
        print(json.dumps(reports.get()), flush=True)
    # The parent process ends all of them.
    sys.stdin.read()


if __name__ == "__main__":
    main()
