"""Copies that are missing or rotten are made again: when a reader meets a rotten one, after a data server was away, when another drains, and after two were lost at once.

A cluster of three nodes keeps three copies. Each copy of an object is overwritten on disk in turn, and is mended. A data server is paused while objects are put: once it is back they have three copies.
Two spare data servers join; a third one drains under S3 writers until it holds nothing. Two others are removed for good, one after
the other: every volume has three copies again, what had a single one left was copied first, and every object reads as it was put.

With --order two data servers are lost at once under a small budget, and each meta server's copies are watched: none makes third copies while another still has objects with a single one.

    python3 tests/clients/rebuild.py [--seed N] [--objects N] [--binary PATH] [--order]
"""

import argparse
import mmap
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request

from cluster import operate, wait_until_whole
from devcluster import Cluster
from harness import default_binary, scratch_folder
from workload import Clock, Failed

BUCKET = "rebuild"
REBUILT_SECONDS = 120
DOWN_SECONDS = 20
SPARES = ("spare-1", "spare-2")
# What a meta server may have under way when another finds objects with a single copy.
ORDER_PIECE = 32


class Objects:
    """Objects that were put, by key: most of a few blocks, some of several chunks."""

    def __init__(self, rng):
        self.rng, self.bodies = rng, {}

    def put(self, proxy, numbers, name):
        s3 = proxy.boto3(connect_timeout=2, read_timeout=30)
        for number in numbers:
            size = 9_000_000 if number % 50 == 7 else self.rng.randrange(2_100, 40_000)
            body = self.rng.randbytes(size)
            s3.put_object(Bucket=BUCKET, Key=f"{name}/{number}", Body=body)
            self.bodies[f"{name}/{number}"] = body

    def verify(self, proxy, when):
        s3 = proxy.boto3(connect_timeout=2, read_timeout=30)
        for key, body in list(self.bodies.items()):
            if s3.get_object(Bucket=BUCKET, Key=key)["Body"].read() != body:
                raise Failed(f"{when}: {key} reads otherwise than it was put")


class Spare:
    """A data server beside those of the nodes."""

    def __init__(self, cluster, scratch, name, machine):
        lines = cluster.token(name, "data", machine)
        config = scratch / f"{name}.toml"
        config.write_text(f'dir = "{scratch}/{name}"\nlisten = "127.0.0.1:0"\n{lines}')
        command = [cluster.binary, "data", "--config", config]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def stop(self):
        self.process.terminate()
        self.process.wait(30)


def until(seconds, what, look):
    """Looks until it is true; how long that took."""
    begun = time.monotonic()
    while True:
        seen = look()
        if seen is True:
            return time.monotonic() - begun
        if time.monotonic() > begun + seconds:
            raise Failed(f"{what}: not so after {seconds} s: {seen}")
        time.sleep(0.2)


def server(status, name):
    return next(server for server in status["servers"] if server["name"] == name)


def is_rebuilt(cluster):
    volumes = {name: count for name, count in cluster.status()["volumes"].items() if name != "unclean"}
    wanted = 3 * volumes["total"]
    return volumes["replicas_current"] == wanted and volumes["degraded"] == 0 or volumes


def count_of(port):
    """What a meta server has counted of its rebuilding."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        lines = answer.read().decode().splitlines()
    counted = (re.match(r"larder_rebuild_(\w+?)(?:_total)? (\S+)$", line) for line in lines)
    return {found[1]: float(found[2]) for found in counted if found}


def count(ports):
    """The same of all meta servers together."""
    total = {}
    for port in ports:
        for name, value in count_of(port).items():
            total[name] = total.get(name, 0) + value
    return total


def with_metrics(cluster, settings=""):
    """Has the meta servers tell what they count; returns their ports."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(cluster.nodes)]
    ports = [listening.getsockname()[1] for listening in sockets]
    cluster.start()
    cluster.stop()
    for node, port in enumerate(ports):
        config = cluster.config(node, "meta")
        config.write_text(f'metrics_listen = "127.0.0.1:{port}"\n{settings}{config.read_text()}')
        sockets[node].close()
    cluster.start()
    return ports


def rot(cluster, objects):
    """Overwrites bytes of each copy of an object in turn, where they lie on disk; readers have it mended."""
    key, body = next((key, body) for key, body in objects.bodies.items() if 10_000 < len(body) < 60_000)
    mended = 0
    for node in range(cluster.nodes):
        # Each proxy reads the copy on its own machine.
        s3 = cluster.proxies[node].boto3(connect_timeout=2, read_timeout=30)
        path = cluster.config(node, "data").parent / "data0"
        with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as data:
            at = data.find(body[4_096:4_160])
            if at < 0:
                continue
            data[at : at + 8] = b"rotten!!"
            data.flush()

            def is_mended():
                if s3.get_object(Bucket=BUCKET, Key=key)["Body"].read() != body:
                    raise Failed(f"{key} reads otherwise than it was put, as one copy is rotten")
                return data[at : at + 64] == body[4_096:4_160] or f"node {node + 1}'s copy of {key} is rotten still"

            until(REBUILT_SECONDS, "a rotten copy is mended", is_mended)
            mended += 1
    if mended < 2:
        raise Failed(f"{mended} copies of {key} were found on disk")


def away(cluster, objects, arguments):
    cluster.signal(1, "data", signal.SIGSTOP)
    try:
        until(DOWN_SECONDS, "a paused data server is down", lambda: server(cluster.status(), "node-2-data")["state"] == "down")
        objects.put(cluster.proxies[0], range(arguments.objects), "away")
        if is_rebuilt(cluster) is True:
            raise Failed("no volume lacks a copy, though a data server was away: the test shows nothing")
    finally:
        cluster.signal(1, "data", signal.SIGCONT)
    return until(REBUILT_SECONDS, "copies after a data server was away", lambda: is_rebuilt(cluster))


def drain(cluster, objects, arguments):
    writes = threading.Thread(target=objects.put, args=(cluster.proxies[1], range(arguments.objects), "drain"))
    writes.start()
    operate(cluster, 0, "drains", "drain", "node-1-data")
    took = until(REBUILT_SECONDS, "a data server drains", lambda: server(cluster.status(), "node-1-data")["copies"] == 0 or "it holds copies")
    writes.join()
    took += until(REBUILT_SECONDS, "copies after a data server was drained", lambda: is_rebuilt(cluster))
    operate(cluster, 0, "is cancelled", "drain", "node-1-data", "--undo")
    return took


def lose_two(cluster):
    for name in ("node-2-data", "node-3-data"):
        operate(cluster, 0, "removed for good", "remove", name, "--yes")
    return until(REBUILT_SECONDS, "copies after two data servers were lost", lambda: is_rebuilt(cluster))


def with_spares(cluster, scratch):
    spares = [Spare(cluster, scratch, name, 90 + machine) for machine, name in enumerate(SPARES)]
    for name in SPARES:
        until(DOWN_SECONDS, "a spare data server joins", lambda: server(cluster.status(), name)["volumes_free"] > 0)
    return spares


def watch_order(cluster, ports):
    """Loses two data servers, and watches until all is rebuilt; the third copies that were made while there were single ones."""
    for name in ("node-2-data", "node-3-data"):
        operate(cluster, 0, "removed for good", "remove", name, "--yes")
    begun, seen = time.monotonic(), []

    def look():
        counted = [count_of(port) for port in ports]
        copies = [(int(of["copies_of_single"]), int(of["copies_of_several"])) for of in counted]
        if not seen or copies != seen[-1]:
            seen.append(copies)
            print(f"{time.monotonic() - begun:6.1f} s: second and third copies made by each meta server: {copies}", flush=True)
        return is_rebuilt(cluster)

    until(REBUILT_SECONDS, "copies after two data servers were lost at once", look)
    singles = [sum(single for single, _ in copies) for copies in seen]
    during = [sum(several for _, several in copies) for copies, made in zip(seen, singles) if made < singles[-1]]
    return max(during, default=0), singles[-1]


def run_order(cluster, arguments, scratch):
    ports = with_metrics(cluster, "background_mib_per_s = 2\n")
    wait_until_whole(cluster)
    cluster.proxies[0].boto3().create_bucket(Bucket=BUCKET)
    objects = Objects(random.Random(arguments.seed))
    objects.put(cluster.proxies[0], range(2 * arguments.objects), "first")
    spares = with_spares(cluster, scratch)
    try:
        early, singles = watch_order(cluster, ports)
        objects.verify(cluster.proxies[0], "after two data servers were lost at once")
    finally:
        for spare in spares:
            spare.stop()
    if singles == 0 or early > ORDER_PIECE:
        raise Failed(f"{early} third copies were made before the last of {singles} second ones")
    print(f"rebuild: {singles} objects and chunks had a single copy; {early} third copies were made before all of them had two")


def run(cluster, arguments, scratch):
    rng, clock = random.Random(arguments.seed), Clock()
    ports = with_metrics(cluster)
    wait_until_whole(cluster)
    cluster.proxies[0].boto3().create_bucket(Bucket=BUCKET)
    objects = Objects(rng)
    objects.put(cluster.proxies[0], range(arguments.objects), "first")
    rot(cluster, objects)
    took = {"a data server was away": away(cluster, objects, arguments)}
    objects.verify(cluster.proxies[2], "after a data server was away")
    clock.tell(f"away: {count(ports)}")
    spares = []
    try:
        spares.extend(with_spares(cluster, scratch))
        took["one was drained"] = drain(cluster, objects, arguments)
        objects.verify(cluster.proxies[0], "after a data server was drained")
        clock.tell(f"drained: {count(ports)}")
        before = count(ports)
        took["two were lost"] = lose_two(cluster)
        after = count(ports)
        objects.verify(cluster.proxies[0], "after two data servers were lost")
        clock.tell(f"lost: {after}")
        if after["copies_of_single"] <= before["copies_of_single"] or after["chunks_lost"] > 0:
            raise Failed(f"two data servers were lost, and {before} became {after}")
    finally:
        for spare in spares:
            spare.stop()
    return len(objects.bodies), took, after


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=default_binary())
    parser.add_argument("--objects", type=int, default=150, help="so many are put in each of three phases")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--order", action="store_true", help="watch the order of copies alone")
    parser.add_argument("--keep", action="store_true", help="keep the directory, print where it is")
    arguments = parser.parse_args()
    print(f"rebuild: seed {arguments.seed}", flush=True)
    with scratch_folder(arguments.keep) as scratch:
        cluster = Cluster(arguments.binary, scratch / "cluster", 3)
        try:
            if arguments.order:
                run_order(cluster, arguments, scratch)
                print("1 passed, 0 failed")
                return 0
            objects, took, counted = run(cluster, arguments, scratch)
        except (Failed, AssertionError) as failure:
            print(f"FAIL rebuild: {failure}\n{cluster.log_tail()}\n0 passed, 1 failed")
            return 1
        finally:
            cluster.kill_all()
    told = ", ".join(f"{what} {seconds:.1f} s" for what, seconds in took.items())
    made = int(counted["copies_of_single"] + counted["copies_of_several"])
    print(f"rebuild: {objects} objects, none lost; three copies of all again after {told}; {made} copies made")
    print("1 passed, 0 failed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
