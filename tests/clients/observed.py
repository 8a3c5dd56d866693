"""What operators are told of a store: `larder bucket usage` counts what clients put, of a single node and of a cluster. The
document of `larder status --json` comes over HTTP to who has root's keys. The first line of a cluster says since when a server
is down, also after a manager was lost.

    python3 tests/clients/observed.py [--binary PATH]
"""

import argparse
import json
import pathlib
import signal
import subprocess
import sys
import time

from devcluster import Cluster
from harness import ACCESS, COMMAND_SECONDS, SECRET, Server, default_binary, scratch_folder
from peers import until
from sigv4 import Raw
from workload import Failed

STATE = "/_larder/v1/status"
COUNTED_SECONDS, TOLD_SECONDS = 20, 30
# From then on a manager takes a beginning that it sees for the beginning.
SETTLED_SECONDS = 15
PUTS = {"photos": [100, 5000, 3_000_000], "logs": [0, 70]}
EXPECTED = {bucket: (len(sizes), sum(sizes)) for bucket, sizes in PUTS.items()}


def run(binary, *words):
    line = [binary, *words]
    done = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=COMMAND_SECONDS)
    if done.returncode not in (0, 1):
        raise Failed(f"{line} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done


def work(client):
    for bucket, sizes in PUTS.items():
        client.create_bucket(Bucket=bucket)
        for number, size in enumerate(sizes):
            client.put_object(Bucket=bucket, Key=f"key-{number}", Body=b"x" * size)


def check_usage(binary, directory, tell):
    """The counts are those of what was put, once the index shows it."""
    def is_counted():
        done = run(binary, "bucket", "usage", directory, "--json")
        usage = json.loads(done.stdout)
        counted = {it["name"]: (it["objects"], it["bytes"]) for it in usage["buckets"]}
        return done.returncode == 0 and usage["is_exact"] and counted == EXPECTED

    until("buckets are counted", COUNTED_SECONDS, is_counted, [], tell)
    shown = run(binary, "bucket", "usage", directory).stdout.splitlines()
    if not shown[-1].split() == ["5", "3005170", "2.9", "MiB", "(all)"]:
        raise Failed(f"shown: {shown}")
    one = run(binary, "bucket", "usage", directory, "--bucket", "logs").stdout.splitlines()
    if len(one) != 2 or one[1].split() != ["2", "70", "70", "B", "logs"]:
        raise Failed(f"shown of one: {one}")
    print("\n".join(shown), flush=True)


def check_state(port):
    """Who has root's keys is told the document, and nobody else."""
    raw = Raw(port, ACCESS, SECRET)
    for refused in (raw.send("GET", STATE), Raw(port, ACCESS, "wrong" * 5).signed("GET", STATE)):
        if refused.status != 403:
            raise Failed(f"not refused: {refused}")
    told = raw.signed("GET", STATE)
    if told.status != 200:
        raise Failed(f"{told}")
    return json.loads(told.body)


def check_node(binary, folder):
    server = Server(binary, folder / "store").start()
    try:
        work(server.boto3())
        check_usage(binary, server.directory, server.log_tail)
        state = check_state(server.port)
        if not state["is_well"] or {it["name"]: it["objects"] for it in state["buckets"]} != {"photos": 3, "logs": 2}:
            raise Failed(f"{state}")
    finally:
        server.kill()


def first_line(cluster):
    return run(cluster.binary, "status", cluster.directory).stdout.split("\n", 1)[0]


def down_since(cluster, name):
    """The trouble that a server is down."""
    status = cluster.status()
    ids = [server["id"] for server in status["servers"] if server["name"] == name]
    return next((it for it in status["troubles"] if it["kind"] == "server_down" and it["server"] in ids), None)


def check_cluster(binary, folder):
    cluster = Cluster(binary, folder / "cluster", 3, ["--no-restart"])
    cluster.start()
    began = time.monotonic()
    try:
        work(cluster.proxies[0].boto3())
        check_usage(binary, cluster.directory, cluster.log_tail)
        state = check_state(cluster.proxies[1].port)
        if len(state["servers"]) != 12 or state["troubles"] or not state["verdict"].startswith("well: all 12 servers"):
            raise Failed(f"{state['verdict']}, {state['troubles']}")
        until("managers are settled", SETTLED_SECONDS + 1, lambda: time.monotonic() - began > SETTLED_SECONDS, [])
        before = time.time()
        cluster.signal(1, "data", signal.SIGKILL)
        until("it is told since when", TOLD_SECONDS, lambda: down_since(cluster, "node-2-data"), [], lambda: first_line(cluster))
        until("and exactly", TOLD_SECONDS, lambda: down_since(cluster, "node-2-data")["is_exact"], [], lambda: first_line(cluster))
        after, since = time.time(), down_since(cluster, "node-2-data")["since_ms"] / 1000
        if not before - 1 <= since <= after:
            raise Failed(f"killed between {before} and {after}, and told since {since}")
        line = first_line(cluster)
        print(line, flush=True)
        if not line.startswith("NOT WELL: node-2-data is down, for ") or "(since 2" not in line:
            raise Failed(line)
        # Whichever of them leads: the two that are left know.
        cluster.signal(0, "manager", signal.SIGKILL)
        until("one is missed", TOLD_SECONDS, lambda: down_since(cluster, "node-1-manager"), [], lambda: first_line(cluster))
        still = down_since(cluster, "node-2-data")
        if not still["is_exact"] or abs(still["since_ms"] / 1000 - since) > 2:
            raise Failed(f"told since {since}, and without a manager {still}")
        line = first_line(cluster)
        print(line, flush=True)
        if "node-1-manager, node-2-data are down, the first for " not in line:
            raise Failed(line)
    finally:
        cluster.stop()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=pathlib.Path, default=default_binary())
    args = parser.parse_args()
    with scratch_folder() as folder:
        try:
            check_node(args.binary, folder)
            check_cluster(args.binary, folder)
        except (Failed, AssertionError) as failure:
            print(f"FAIL observed: {failure}\n0 passed, 1 failed")
            return 1
    print("1 passed, 0 failed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
