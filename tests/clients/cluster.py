"""A cluster of processes under S3 clients, while each of its processes is killed or paused in turn, or two at a time.

Nothing that was acknowledged may be lost, nothing may be seen that was never put, and reads and writes of every key must
go on within 10 seconds of any single failure. Lists go on within 5 seconds of the death of a proxy that had puts under way. Another data server can join with a token, and not without, and be removed again; what
would lose a last copy, and wrong names, are refused. The cluster must start again with all of it after the supervisor was killed, and
`larder inspect` must find every server's directory sound.

    python3 tests/clients/cluster.py [--nodes 3] [--pairs] [--turns N] [--seed N] [--binary PATH]
"""

import argparse
import concurrent.futures
import random
import re
import signal
import subprocess
import sys
import time

from devcluster import Cluster, inspect_of, is_ready, unsound
from harness import default_binary, scratch_folder
from workload import BUCKET, Clock, Failed, Journal, Load, Uploads, verify

RESUMED_SECONDS = 10
# A proxy is given up after 2 s of silence, and its puts are settled within 3 s of that.
LISTED_SECONDS = 5
WRITERS = 8
WHOLE_SECONDS = 60
REMOVED = 5
# Each has a thread and a connection of its own: one that waits for its group keeps no other from being tried.
PROBES = 64
PROBE_BUCKET = "probes"
LOAD_SECONDS = (0.3, 1.5)


def probe(proxy, turn):
    """Puts and gets keys of every placement group until each was done once; the seconds until the last was."""
    s3 = proxy.boto3(connect_timeout=1, read_timeout=3)
    deadline = time.monotonic() + RESUMED_SECONDS
    with concurrent.futures.ThreadPoolExecutor(PROBES) as pool:
        tried = [pool.submit(probe_one, s3, number, f"{turn}/{number}".encode() * 2000, deadline)
                 for number in range(PROBES)]
        failures = [failure for failure in (one.result() for one in tried) if failure]
    if failures:
        raise Failed(f"{len(failures)} of {PROBES} keys do not work again {RESUMED_SECONDS} s after the failure: {failures[0]}")
    return time.monotonic() + RESUMED_SECONDS - deadline


def probe_one(s3, number, body, deadline):
    """Puts and gets one key until both work; what is in the way, if an attempt begun before the deadline was the last.
    At least one is made: a host that comes to it late says nothing of the cluster."""
    from botocore.exceptions import BotoCoreError, ClientError

    key = f"probe/{number}"
    while True:
        try:
            s3.put_object(Bucket=PROBE_BUCKET, Key=key, Body=body)
            if s3.get_object(Bucket=PROBE_BUCKET, Key=key)["Body"].read() != body:
                return f"{key} reads otherwise than it was just put"
            return None
        except ClientError as error:
            failure = f"{key}: {error}"
            if error.response["ResponseMetadata"]["HTTPStatusCode"] != 503:
                return failure
        except BotoCoreError as error:
            failure = f"{key}: {error}"
        if time.monotonic() >= deadline:
            return failure


def strike(cluster, node, role, how):
    """The failure; what ends it, if it does not end by itself."""
    if how == "kill":
        cluster.signal(node, role, signal.SIGKILL)
        return lambda: None
    cluster.signal(node, role, signal.SIGSTOP)
    return lambda: cluster.signal(node, role, signal.SIGCONT)


def one_turn(cluster, journal, uploads, rng, turn, targets):
    struck = {node for node, role, _ in targets if role == "proxy"}
    others = [proxy for at, proxy in enumerate(cluster.proxies) if at not in struck]
    loads = [Load(proxy, journal, uploads, f"{turn}", writers=3, round_number=f"{turn}-{at}")
             for at, proxy in enumerate(others)]
    for load in loads:
        load.start()
    time.sleep(rng.uniform(*LOAD_SECONDS))
    ends = [strike(cluster, *target) for target in targets]
    try:
        took = probe(others[0], turn)
    finally:
        for end in ends:
            end()
    for load in loads:
        load.join()
    wait_until_whole(cluster)
    verify(others[-1], journal, uploads, whole=True)
    return took


def list_beside_a_dead_proxy(cluster, journal, uploads, rng, node):
    """Kills a proxy with puts under way; the seconds until another lists their bucket. A bucket without any is listed at once."""
    other = cluster.proxies[(node + 1) % len(cluster.proxies)]
    load = Load(cluster.proxies[node], journal, uploads, "listed", writers=WRITERS, round_number=f"listed-{node}")
    load.cut.set()
    load.start()
    time.sleep(rng.uniform(*LOAD_SECONDS))
    cluster.signal(node, "proxy", signal.SIGKILL)
    began = time.monotonic()
    quiet = list_of(other, PROBE_BUCKET, began)
    took = list_of(other, BUCKET, began)
    load.join()
    if quiet > LISTED_SECONDS / 2:
        raise Failed(f"a bucket without puts under way was listed only {quiet:.1f} s after a proxy died")
    wait_until_whole(cluster)
    verify(other, journal, uploads, whole=True)
    return took


def list_of(proxy, bucket, began):
    """Lists a bucket until that works; the seconds since `began`."""
    from botocore.exceptions import BotoCoreError, ClientError

    s3, failure = proxy.boto3(connect_timeout=1, read_timeout=LISTED_SECONDS), None
    while time.monotonic() < began + LISTED_SECONDS:
        try:
            s3.list_objects_v2(Bucket=bucket)
            return time.monotonic() - began
        except (BotoCoreError, ClientError) as error:
            failure = error
    raise Failed(f"{bucket} is not listed {LISTED_SECONDS} s after a proxy died with puts under way: {failure}")


def wait_until_whole(cluster):
    """Until every proxy is ready and every placement group has all its members: the next failure is a single one again."""
    deadline = time.monotonic() + WHOLE_SECONDS
    while True:
        placement_groups = cluster.status()["pgs"]
        if (all(is_ready(proxy.endpoint) for proxy in cluster.proxies)
                and placement_groups["clean"] == placement_groups["total"]):
            return
        if time.monotonic() > deadline:
            raise Failed(f"not whole {WHOLE_SECONDS} s after the failure has ended: {placement_groups}")
        time.sleep(0.1)


def pairs_of(targets):
    """Pairs of processes of different roles on different nodes: what one failure leaves, the other does not take."""
    left, pairs = list(targets), []
    while left:
        first = left.pop()
        second = next((at for at, other in enumerate(left) if other[0] != first[0] and other[1] != first[1]), None)
        if second is not None:
            pairs.append([first, left.pop(second)])
    return pairs


def join(cluster, scratch):
    """Another data server joins while the cluster runs, without a right token none does; then it is removed for good."""
    lines = cluster.token("late", "data")
    head = f'dir = "{scratch}/late"\nlisten = "127.0.0.1:0"\n'
    config = scratch / "late.toml"
    config.write_text(head + re.sub('(larder-join-)(.)', lambda m: m[1] + ("1" if m[2] == "0" else "0"), lines))
    command = [cluster.binary, "data", "--config", config]
    refused = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=WHOLE_SECONDS)
    if refused.returncode == 0 or "token" not in refused.stderr:
        raise Failed(f"a mistyped token: {refused.returncode}, {refused.stderr}")
    config.write_text(head + lines)
    late = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + WHOLE_SECONDS
        while True:
            state = {server["name"]: server for server in cluster.status()["servers"]}["late"]
            if state["state"] == "up" and state["volumes_free"] > 0:
                break
            if late.poll() is not None or time.monotonic() > deadline:
                raise Failed(f"a server that joins is {state}, its process ended with {late.poll()}")
            time.sleep(0.1)
        remove(cluster)
        if late.wait(WHOLE_SECONDS) != REMOVED:
            raise Failed(f"the server that was removed ended with {late.returncode}")
    finally:
        if late.poll() is None:
            late.terminate()
            late.wait(WHOLE_SECONDS)
    again = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=WHOLE_SECONDS)
    if again.returncode != REMOVED or "removed from the cluster for good" not in again.stderr:
        raise Failed(f"a removed server that starts: {again.returncode}, {again.stderr}")


def operate(cluster, code, says, *words, role="manager"):
    """Runs an operator's command, which must end with this code and say this."""
    command = [cluster.binary, *words, "--config", cluster.config(0, role)]
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=WHOLE_SECONDS)
    told = ended.stdout + ended.stderr
    if ended.returncode != code or says not in told:
        raise Failed(f"larder {' '.join(words)}: {ended.returncode}, {told!r}")


def remove(cluster):
    """Drains and removes the server that joined last; what must be refused is refused before, and says why."""
    operate(cluster, 2, 'no server "nobody"', "drain", "nobody")
    operate(cluster, 2, "with a manager's", "remove", "late", "--yes", role="data")
    operate(cluster, 2, "can be removed as it is", "drain", "node-2-manager")
    operate(cluster, 2, "has no disk", "disk", "drain", "late", "4711")
    operate(cluster, 0, "late drains", "drain", "late")
    operate(cluster, 0, "nothing to do", "drain", "late")
    operate(cluster, 0, "is cancelled", "drain", "late", "--undo")
    operate(cluster, 0, "nothing was changed", "remove", "node-2-meta")
    operate(cluster, 0, "nothing was changed", "remove", "late")
    operate(cluster, 0, "removed for good", "remove", "late", "--yes")
    operate(cluster, 2, "removed for good already", "remove", "late", "--yes")


def inspect_all(cluster):
    """Every stopped server that keeps something is sound, and said not to be when a bit of it is not."""
    faults = unsound(cluster)
    if faults:
        raise Failed(f"not sound: {faults[0]}")
    code, report = inspect_of(cluster.binary, cluster.folder(0, "proxy"))
    if code != 3 or "keeps nothing" not in report:
        raise Failed(f"a proxy's directory: {code}, {report}")
    data = cluster.folder(0, "data") / "data0"
    with data.open("r+b") as file:
        file.seek(4096 + 40)
        byte = file.read(1)
        file.seek(4096 + 40)
        file.write(bytes([byte[0] ^ 1]))
    code, report = inspect_of(cluster.binary, data.parent)
    if code != 1 or "FAULT: a copy of the superblock is damaged" not in report:
        raise Failed(f"a damaged superblock: {code}, {report}")


def run(cluster, arguments, scratch):
    rng, clock = random.Random(arguments.seed), Clock()
    journal, uploads = Journal(), Uploads()
    report = cluster.start()
    roles = {(at, process["role"]) for at, node in enumerate(report["nodes"]) for process in node["processes"]}
    if roles != set(cluster.pids()):
        raise Failed(f"it reports {sorted(roles)}, but there are {sorted(cluster.pids())}")
    s3 = cluster.proxies[0].boto3()
    s3.create_bucket(Bucket=BUCKET)
    s3.create_bucket(Bucket=PROBE_BUCKET)
    cluster.set_policy(BUCKET, "majority")
    targets = [(node, role, how) for how in arguments.how or ("kill", "pause") for node, role in sorted(roles)
               if not arguments.role or role in arguments.role]
    rng.shuffle(targets)
    turns = pairs_of(targets) if arguments.pairs else [[target] for target in targets]
    slowest = {}
    for turn, struck in enumerate(turns[: arguments.turns]):
        what = " and ".join(sorted(f"{role} {how}" for _, role, how in struck))
        try:
            took = one_turn(cluster, journal, uploads, rng, turn, struck)
        except Failed as failure:
            raise Failed(f"turn {turn}, {what}, at nodes {[node + 1 for node, _, _ in struck]}: {failure}") from failure
        slowest[what] = max(took, slowest.get(what, 0))
        clock.tell(f"turn {turn}, {what}: {took:.1f} s, {journal.acknowledged} acknowledged")
    listed = max(list_beside_a_dead_proxy(cluster, journal, uploads, rng, node) for node in range(len(cluster.proxies)))
    clock.tell(f"lists again {listed:.1f} s after a proxy died")
    join(cluster, scratch)
    cluster.kill_all()
    cluster.start()
    verify(cluster.proxies[0], journal, uploads, whole=True)
    code, report = inspect_of(cluster.binary, cluster.folder(0, "meta"))
    if code != 3 or "in use" not in report:
        raise Failed(f"a directory that is in use: {code}, {report}")
    if cluster.stop() != 0:
        raise Failed("the last stop was not clean")
    inspect_all(cluster)
    return journal.acknowledged, slowest, listed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=default_binary())
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--turns", type=int, help="so many failures; each process killed and paused once if left out")
    parser.add_argument("--how", choices=("kill", "pause"), action="append", help="only failures of this kind")
    parser.add_argument("--pairs", action="store_true", help="two processes of different roles and nodes at a time")
    parser.add_argument("--role", action="append", help="only failures of this role")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--keep", action="store_true", help="keep the directory, print where it is")
    arguments = parser.parse_args()
    print(f"cluster: {arguments.nodes} nodes, seed {arguments.seed}", flush=True)
    with scratch_folder(arguments.keep) as scratch:
        cluster = Cluster(arguments.binary, scratch / "cluster", arguments.nodes)
        try:
            acknowledged, slowest, listed = run(cluster, arguments, scratch)
        except (Failed, AssertionError) as failure:
            print(f"FAIL cluster: {failure}\n{cluster.log_tail()}\n0 passed, 1 failed")
            return 1
        finally:
            cluster.kill_all()
    told = ", ".join(f"{what} {took:.1f} s" for what, took in sorted(slowest.items()))
    print(f"cluster: {acknowledged} acknowledged operations, none lost; lists again {listed:.1f} s after a proxy died; all keys again after: {told}")
    print("1 passed, 0 failed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
