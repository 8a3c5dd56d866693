"""Copies that rot where nobody reads them are found and mended; the only copy of a single node is told of and kept.

A cluster of three nodes verifies every copy within seconds. Bytes of one copy of some objects are overwritten on disk, then
of other objects, and of the chunks of a large one, another copy. No client reads: every copy must be right again on disk, `larder status` must tell of it, and
the meta servers start anew meanwhile. A single node has one copy overwritten: its metrics and `larder inspect` tell of it, the object stays listed
and is never answered with other bytes.

    python3 tests/clients/scrub.py [--seed N] [--binary PATH]
"""

import argparse
import mmap
import random
import re
import signal
import subprocess
import sys
import time
import urllib.request

from cluster import wait_until_whole
from devcluster import Cluster
from harness import Server, default_binary, scratch_folder
from workload import Clock, Failed

BUCKET = "scrub"
WITHIN = "12s"
FOUND_SECONDS = 60
NEEDLE = 64


def until(seconds, what, look):
    """Looks until it is true; how long that took."""
    begun = time.monotonic()
    while (seen := look()) is not True:
        if time.monotonic() > begun + seconds:
            raise Failed(f"{what}: not so after {seconds} s: {seen}")
        time.sleep(0.2)
    return time.monotonic() - begun


class Places:
    """Where bytes of objects lie in the data files."""

    def __init__(self, paths):
        self.files = [path.open("r+b") for path in paths]
        self.maps = [mmap.mmap(file.fileno(), 0) for file in self.files]

    def rot(self, node, body, at):
        """Overwrites bytes of a copy; whether they are right again. Where a disk was slow the bytes may lie in a second
        place, of an attempt that was given up: nobody mends that one."""
        data, needle, places = self.maps[node], body[at : at + NEEDLE], []
        while (place := data.find(needle, places[-1] + NEEDLE if places else 0)) >= 0:
            places.append(place)
        if not places:
            raise Failed(f"node {node + 1} has no copy at byte {at}")
        for place in places:
            data[place : place + 8] = b"rotten!!"
        data.flush()
        return lambda: any(data[place : place + NEEDLE] == needle for place in places)

    def close(self):
        for data, file in zip(self.maps, self.files):
            data.close()
            file.close()


def background(cluster):
    """What the meta servers say that they do."""
    told = cluster.status()["background"]
    return [server["progress"] for server in told if server["progress"]]


def counted(cluster):
    return {
        name: sum(progress["scrub"][name] for progress in background(cluster))
        for name in ("bad_since_start", "unanswered", "right", "rounds")
    }


def cluster_mends(arguments, scratch):
    rng, clock = random.Random(arguments.seed), Clock()
    cluster = Cluster(arguments.binary, scratch / "cluster", 3)
    try:
        cluster.start()
        cluster.stop()
        for node in range(3):
            config = cluster.config(node, "meta")
            config.write_text(f'scrub_within = "{WITHIN}"\n{config.read_text()}')
        cluster.start()
        wait_until_whole(cluster)
        s3 = cluster.proxies[0].boto3()
        s3.create_bucket(Bucket=BUCKET)
        bodies = {f"small-{n}": rng.randbytes(rng.randrange(6_000, 40_000)) for n in range(30)}
        bodies["large"] = rng.randbytes(20_000_000)
        for key, body in bodies.items():
            s3.put_object(Bucket=BUCKET, Key=key, Body=body)
        places = Places([cluster.config(node, "data").parent / "data0" for node in range(3)])
        rotten = {f"{key} on node {n % 3 + 1}": places.rot(n % 3, bodies[key], 4_096)
                  for n, key in enumerate(f"small-{n}" for n in range(9))}
        rotten |= {f"byte {at} of large": places.rot(1, bodies["large"], at) for at in (70_000, 9_000_000, 19_000_000)}

        def status():
            command = [arguments.binary, "status", "--config", cluster.config(0, "proxy")]
            return subprocess.run(command, capture_output=True, text=True).stdout

        # The line goes once a whole round has found none, which takes a second or two here.
        texts = []

        def is_mended():
            texts.append(status())
            wrong = [name for name, is_right in rotten.items() if not is_right()]
            return not wrong or f"still rotten: {wrong}"

        took = until(FOUND_SECONDS, "rotten copies are found and mended", is_mended)
        found = counted(cluster)
        clock.tell(f"{len(rotten)} rotten copies mended after {took:.1f} s: {found}")
        if found["bad_since_start"] < len(rotten):
            raise Failed(f"{len(rotten)} copies were rotten, and {found} was told")
        texts.append(status())
        if not re.search(r"scrub +.*(round \d+|rounds done)", texts[-1]) or not any("DAMAGED" in text for text in texts):
            raise Failed(f"status said nothing of it:\n{texts[-1]}")
        # Each meta server begins another run while a round is under way.
        again = places.rot(2, bodies["small-20"], 4_096)
        for node in range(3):
            cluster.signal(node, "meta", signal.SIGKILL)
            time.sleep(1)
        took = until(FOUND_SECONDS, "a rotten copy is found though servers restart", lambda: again() or "rotten still")
        clock.tell(f"mended {took:.1f} s after the meta servers were killed")
        until(FOUND_SECONDS, "whole rounds find nothing", lambda: sum(p["scrub"]["bad"] for p in background(cluster)) == 0)
        for key, body in bodies.items():
            if s3.get_object(Bucket=BUCKET, Key=key)["Body"].read() != body:
                raise Failed(f"{key} reads otherwise than it was put")
        places.close()
    except (Failed, AssertionError) as failure:
        raise Failed(f"{failure}\n{cluster.log_tail()}") from failure
    finally:
        cluster.kill_all()


def metrics(server):
    with urllib.request.urlopen(server.metrics_url(), timeout=5) as answer:
        lines = answer.read().decode().splitlines()
    return {line.split()[0]: float(line.split()[1]) for line in lines if line.startswith("larder_scrub")}


def node_tells(arguments, scratch):
    from botocore.exceptions import ClientError

    settings = scratch / "larder.toml"
    settings.write_text('scrub_within = "4s"\n')
    server = Server(arguments.binary, scratch / "node", ["--config", settings])
    server.start()
    try:
        s3, body = server.boto3(), random.Random(arguments.seed).randbytes(30_000)
        s3.create_bucket(Bucket=BUCKET)
        s3.put_object(Bucket=BUCKET, Key="only", Body=body)
        places = Places([server.directory / "data0"])
        places.rot(0, body, 8_192)
        places.close()

        def is_told():
            seen = metrics(server)
            return seen["larder_scrub_damaged_copies"] == 1 or seen

        took = until(FOUND_SECONDS, "the only copy is told to be damaged", is_told)
        if [it["Key"] for it in s3.list_objects_v2(Bucket=BUCKET)["Contents"]] != ["only"]:
            raise Failed("the object of a damaged copy is not listed")
        try:
            s3.get_object(Bucket=BUCKET, Key="only")["Body"].read()
            raise Failed("a damaged object is answered")
        except ClientError as error:
            if error.response["ResponseMetadata"]["HTTPStatusCode"] != 500:
                raise Failed(f"a damaged object is answered with {error}") from error
        server.stop()
        code, report = server.inspect()
        if code != 1 or "1 damaged copies" not in report:
            raise Failed(f"inspect ended with {code}:\n{report[-1500:]}")
        print(f"scrub: the only copy told to be damaged after {took:.1f} s, and kept", flush=True)
    finally:
        server.kill()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=default_binary())
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    arguments = parser.parse_args()
    print(f"scrub: seed {arguments.seed}", flush=True)
    passed = failed = 0
    for test in (node_tells, cluster_mends):
        with scratch_folder() as scratch:
            try:
                test(arguments, scratch)
                passed += 1
            except (Failed, AssertionError) as failure:
                print(f"FAIL {test.__name__}: {failure}")
                failed += 1
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
