"""Has clients call experts of hivemind's server, as `cargo xtask bench learning-at-home serving` has ours, or PyTorch compute the
same by itself.

Clients are processes, as in hivemind's own `benchmark_throughput.py`. Answers lines of JSON: for each line of JSON that it is given,
the rows a second.
"""

import argparse
import json
import multiprocessing as mp
import random
import sys
import time

import torch
from hivemind.dht import DHT
from hivemind.moe.client.expert import RemoteExpert
from hivemind.moe.client.remote_expert_worker import RemoteExpertWorker
from hivemind.moe.expert_uid import ExpertInfo
from hivemind.moe.server import ModuleBackend, Server
from hivemind.moe.server.layers import name_to_block
from hivemind.p2p import P2P
from hivemind.utils.tensor_descr import BatchTensorDescriptor

WIDTH = 1024
WARM_UP_CALLS = 3


def call(module, inputs, backward):
    if backward:
        module(inputs.clone().requires_grad_()).sum().backward()
    else:
        with torch.no_grad():
            module(inputs)


def client(addresses, peer_id, kind, case, barrier, rows):
    torch.set_num_threads(1)
    p2p = RemoteExpertWorker.run_coroutine(P2P.create(initial_peers=addresses))
    experts = [
        RemoteExpert(expert_info=ExpertInfo(uid=f"{kind}.{i}", peer_id=peer_id), p2p=p2p)
        for i in range(case["experts"])
    ]
    inputs = torch.randn(case["rows"], WIDTH)
    for _ in range(WARM_UP_CALLS):
        call(random.choice(experts), inputs, case["backward"])
    barrier.wait()
    n_rows, end = 0, time.perf_counter() + case["seconds"]
    while time.perf_counter() < end:
        call(random.choice(experts), inputs, case["backward"])
        n_rows += case["rows"]
    rows.put(n_rows)


def of_server(dht, case):
    barrier, rows = mp.Barrier(case["clients"] + 1), mp.Queue()
    addresses = dht.get_visible_maddrs()
    args = (addresses, dht.peer_id, case["expert"], case, barrier, rows)
    clients = [mp.Process(target=client, args=args, daemon=True) for _ in range(case["clients"])]
    for process in clients:
        process.start()
    barrier.wait(timeout=100)
    begin = time.perf_counter()
    n_rows = sum(rows.get(timeout=100) for _ in clients)
    seconds = time.perf_counter() - begin
    for process in clients:
        process.terminate()
    return n_rows / seconds


def alone(module, case):
    optimizer = torch.optim.Adam(module.parameters())
    inputs = torch.randn(case["rows"], WIDTH)

    def step():
        with torch.no_grad():
            module(inputs)
        if case["backward"]:
            optimizer.zero_grad()
            call(module, inputs, True)
            optimizer.step()

    for _ in range(WARM_UP_CALLS):
        step()
    n_rows, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < case["seconds"]:
        step()
        n_rows += case["rows"]
    return n_rows / (time.perf_counter() - begin)


def backends(kind, n_experts):
    for i in range(n_experts):
        expert = torch.jit.script(name_to_block[kind](WIDTH))
        yield f"{kind}.{i}", ModuleBackend(
            name=f"{kind}.{i}",
            module=expert,
            optimizer=torch.optim.Adam(expert.parameters()),
            args_schema=(BatchTensorDescriptor(WIDTH),),
            outputs_schema=BatchTensorDescriptor(WIDTH),
            max_batch_size=4096,
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--experts", type=int, required=True)
    parser.add_argument("--handlers", type=int, required=True)
    args = parser.parse_args()
    dht = DHT(start=True)
    hosted = dict(pair for kind in ("nop", "ffn") for pair in backends(kind, args.experts))
    server = Server(dht=dht, module_backends=hosted, num_connection_handlers=args.handlers, device="cpu")
    server.start()
    server.ready.wait()
    for line in sys.stdin:
        case = json.loads(line)
        if case["alone"]:
            answer = alone(torch.jit.script(name_to_block[case["expert"]](WIDTH)), case)
        else:
            answer = of_server(dht, case)
        print(json.dumps(answer), flush=True)
    server.shutdown()
