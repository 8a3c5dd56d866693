"""Copies that are missing are made again: after a data server was away, after another was drained, after one was lost.

A cluster of four nodes keeps three copies. One data server is killed and kept away while objects are put: when it is back, they have
three copies. One is drained under S3 writers, and then removed: nothing was lost, and its volumes are elsewhere. One loses its disk
and is removed: after a while every volume has three copies again, and every object reads as it was put with any other
data server stopped. What had a single copy left was copied before what had two, which counters show.

    python3 tests/clients/rebuild.py [--seed N] [--objects N] [--binary PATH]
"""

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import urllib.request

from cluster import wait_until_whole
from devcluster import Cluster
from harness import default_binary, scratch_folder
from workload import Clock, Failed

NODES = 4
BUCKET = "rebuild"
REBUILT_SECONDS = 90


def operate(cluster, *words):
    command = [cluster.binary, *words, "--config", cluster.config(0, "manager")]
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    if ended.returncode != 0:
        raise Failed(f"larder {' '.join(words)}: {ended.returncode}, {ended.stdout}{ended.stderr}")


class Objects:
    """Objects that were put, by key; sizes from one block to several chunks."""

    SIZES = (3_000, 8_192, 70_000, 300_000, 9_000_000)

    def __init__(self, rng):
        self.rng, self.bodies = rng, {}

    def put(self, proxy, count, name):
        s3 = proxy.boto3(connect_timeout=2, read_timeout=30)
        for number in range(count):
            size = self.SIZES[min(number % 40, 4)] if number % 40 < 5 else self.rng.randrange(2_100, 20_000)
            body = self.rng.randbytes(size)
            s3.put_object(Bucket=BUCKET, Key=f"{name}/{number}", Body=body)
            self.bodies[f"{name}/{number}"] = body

    def verify(self, proxy, when):
        s3 = proxy.boto3(connect_timeout=2, read_timeout=30)
        for key, body in self.bodies.items():
            if s3.get_object(Bucket=BUCKET, Key=key)["Body"].read() != body:
                raise Failed(f"{when}: {key} reads otherwise than it was put")


def short(cluster, without=()):
    """Volumes that have fewer than three current copies, or one on a server that is to have none; and the status."""
    status = cluster.status()
    volumes = status["volumes"]
    return volumes, [volume for volume in volumes["list"] if volume["current"] < 3 or set(volume["on"]) & set(without)]


def wait_until_rebuilt(cluster, what, without=()):
    begun = time.monotonic()
    while True:
        status = cluster.status()
        copies = status["volumes"]
        drains = {server["name"]: server for server in status["servers"]}
        held = sum(drains[name].get("replicas", 0) for name in without if name in drains)
        if copies["short"] == 0 and copies["rebuilding"] == 0 and held == 0:
            return time.monotonic() - begun
        if time.monotonic() > begun + REBUILT_SECONDS:
            raise Failed(f"{what}: not rebuilt after {REBUILT_SECONDS} s: {copies}, {held} replicas held by {without}")
        time.sleep(0.2)


def counters(ports):
    """What the meta servers have counted, each by itself."""
    found = []
    for port in ports:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            lines = answer.read().decode().splitlines()
        words = (line.split() for line in lines if line.startswith("larder_rebuild_"))
        found.append({name.removeprefix("larder_rebuild_"): float(value) for name, value in words})
    return found
