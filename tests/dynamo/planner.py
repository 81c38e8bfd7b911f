"""NVIDIA Dynamo's planner over workers of ours: it starts and ends them as they have to do, by what they tell of it.

    python tests/dynamo/planner.py ETCD

    workers --forward passes--> planner --decision--> etcd --> the deployer in here: starts workers, drains workers

Decode workers follow the occupancy of the KV cache, prefill workers the tokens that wait; no request fails meanwhile.
"""

import argparse
import asyncio
import itertools
import json
import os
import random
import shutil
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from cluster import NAME, Cluster, Program, Worker, until
from run import WORDS

SETTINGS = {
    "environment": "virtual",
    # Components have the names of that one.
    "backend": "mocker",
    "mode": "disagg",
    "model_name": NAME,
    "optimization_target": "load",
    "enable_load_scaling": True,
    "enable_throughput_scaling": False,
    "load_adjustment_interval_seconds": 3,
    "prefill_scale_up_queue_tokens": 1024,
    "prefill_scale_down_queue_tokens": 16,
    "decode_scale_up_kv_rate": 40,
    "decode_scale_down_kv_rate": 5,
    "max_gpu_budget": 6,
    "prefill_engine_num_gpu": 1,
    "decode_engine_num_gpu": 1,
}
# So small that some answers fill the cache, and some prompts a queue.
OPTIONS = {"prefill": {"max_num_batched_tokens": 64}, "decode": {"kv_cache_memory_bytes": "16MiB"}}
AT_A_TIME = 12


class Deployer:
    """Does what the planner decides."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.workers = {"prefill": [], "decode": []}
        self.most = {"prefill": 1, "decode": 1}
        self.codes, self.is_busy = [], False
        for mode in self.workers:
            self.scale(mode, 1)
        threading.Thread(target=lambda: asyncio.run(self.obey()), daemon=True).start()

    def count(self, mode):
        return len(self.workers[mode])

    def scale(self, mode, count):
        of = self.workers[mode]
        added = [Worker(self.cluster, mode, **OPTIONS[mode]) for _ in range(count - len(of))]
        for worker in added:
            worker.wait()
        of += added
        while len(of) > count:
            self.codes.append(of.pop().drain())
        self.most[mode] = max(self.most[mode], count)

    async def obey(self):
        os.environ.update({**self.cluster.environment, "DYN_LOG": "off"})
        from dynamo._core import DistributedRuntime, VirtualConnectorClient

        client = VirtualConnectorClient(DistributedRuntime(asyncio.get_running_loop(), "etcd", "tcp"), "dynamo")
        while True:
            await client.wait()
            # The two counts are written one after the other.
            await asyncio.sleep(1)
            self.is_busy = True
            decision = await client.get()
            wanted = {"prefill": decision.num_prefill_workers, "decode": decision.num_decode_workers}
            print(f"        decision: {wanted}", flush=True)
            for mode, count in wanted.items():
                if count > 0:
                    await asyncio.to_thread(self.scale, mode, count)
            await client.complete(decision)
            self.is_busy = False


class Load:
    """Concurrent requests of one kind, until it is enough."""

    def __init__(self, cluster, words, tokens):
        self.cluster, self.words, self.tokens = cluster, words, tokens
        self.numbers = itertools.count()
        self.done, self.lost = 0, []
        self.is_over = threading.Event()
        self.pool = ThreadPoolExecutor(AT_A_TIME)
        self.clients = [self.pool.submit(self.client) for _ in range(AT_A_TIME)]

    def client(self):
        while not self.is_over.is_set():
            number = next(self.numbers)
            rng = random.Random(number)
            text = f"{number} " + " ".join(rng.choice(WORDS) for _ in range(self.words))
            body = {"prompt": text, "max_tokens": self.tokens, "ignore_eos": True, "temperature": 0}
            try:
                _, _, usage = self.cluster.answer("/v1/completions", body)
                assert usage["completion_tokens"] == self.tokens, usage
                self.done += 1
            except (OSError, AssertionError) as error:
                self.lost.append(str(error))

    def end(self):
        self.is_over.set()
        for client in self.clients:
            client.result()
        assert not self.lost, f"{len(self.lost)} lost: {self.lost[:3]}"
        return self.done


def follows(cluster, deployer, mode, words, tokens):
    """A load that this kind of worker cannot bear, and what the planner makes of it."""
    load = Load(cluster, words, tokens)
    until(f"a second {mode} worker", lambda: deployer.count(mode) >= 2)
    done = load.end()
    until(f"one {mode} worker again", lambda: deployer.count(mode) == 1 and not deployer.is_busy)
    return f"{mode}: 1 to {deployer.most[mode]} workers under load and back to 1; {done} answers, none lost"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("etcd")
    cluster = Cluster(parser.parse_args().etcd)
    passed = failed = 0
    try:
        deployer = Deployer(cluster)
        cluster.await_model()
        command = [sys.executable, "-m", "dynamo.planner", "--config", json.dumps(SETTINGS)]
        planner = Program(cluster, "planner", command)
        for mode, words, tokens in (("decode", 20, 800), ("prefill", 1400, 1)):
            try:
                print(f"ok      {follows(cluster, deployer, mode, words, tokens)}", flush=True)
                passed += 1
            except Exception as error:
                failed += 1
                print(f"FAILED  {mode}: {error!r}\n{planner.said()}", flush=True)
                time.sleep(1)
        if any(deployer.codes):
            failed += 1
            print(f"FAILED  workers that were drained ended with {deployer.codes}")
    finally:
        cluster.close()
    if failed:
        print(f"logs: {cluster.directory}")
    else:
        shutil.rmtree(cluster.directory)
    print(f"{passed} passed, {failed} failed")
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
