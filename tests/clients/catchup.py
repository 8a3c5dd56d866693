"""How fast a region catches up over a link that is limited and delays, and whether it follows one that takes puts all the time.

Two regions; one is stopped while objects of one size are put in the other. Then it starts, and the time is taken until all is
there. A share of the link is the bytes of the objects by what the link lets pass in that time. With --follow both run while
clients put as many objects as the first one takes, and the time is taken until all is there after the last put.

    python3 tests/clients/catchup.py [--follow] [--mib-per-s 20] [--seconds 10] [--size 1048576]... [--least 0.9] [--binary PATH]
"""

import argparse
import concurrent.futures
import contextlib
import json
import os
import subprocess
import sys
import threading
import time
import urllib.request

from harness import ACCESS, SECRET, content, default_binary, scratch_folder
from regions import Region, form_two
from workload import Failed

MIB = 1024 * 1024
# Of smaller ones as many are put as the region takes in the time.
LARGE_BYTES = 256 * 1024


def fill(region, size, link, seconds):
    """Objects of that size, no two alike, in a bucket of theirs. Large ones are as many as the link passes in the time. Returns
    the server's processor time for each in microseconds, and how many a second it took, if that was measured."""
    if size < LARGE_BYTES:
        words = ["--bucket", bucket_of(size), "--size", size, "--duration", f"{int(seconds * 1000)}ms", "--warmup", "0s"]
        command = [region.binary, "bench", "put", "--endpoint", region.endpoint, "--pid", region.process.pid, "--json", *words]
        keys = {"AWS_ACCESS_KEY_ID": ACCESS, "AWS_SECRET_ACCESS_KEY": SECRET}
        done = subprocess.run(list(map(str, command)), env=os.environ | keys, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Failed(f"larder bench put ended with {done.returncode}: {done.stderr}")
        report = json.loads(done.stdout)
        return report["server_cpu_us_per_op"], report["ops_s"]
    s3, body = region.boto3(), content(f"of {size}", size)
    s3.create_bucket(Bucket=bucket_of(size))

    def put(number):
        head = f"{size}/{number}".encode()
        s3.put_object(Bucket=bucket_of(size), Key=str(number), Body=(head + body)[:size])

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(put, range(max(1, int(link * seconds / size)))))
    return None


def bucket_of(size):
    return f"of-{size}"


def count_of(region, size):
    pages = region.boto3().get_paginator("list_objects_v2").paginate(Bucket=bucket_of(size))
    return sum(page.get("KeyCount", 0) for page in pages)


def counted(region, name):
    """A counter of a region's server."""
    with urllib.request.urlopen(region.metrics_url(), timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name} "))


def taken(region):
    """Changes of the other region that this one has taken since it started."""
    return counted(region, "larder_region_entries_taken_total")


def cpu_seconds(region):
    """Processor time of a region's server since it started."""
    fields = open(f"/proc/{region.process.pid}/stat", encoding="ascii").read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Watching:
    """Looks all the time at how much a region has taken since now."""

    def __init__(self, region):
        self.region, self.before, self.seen, self.ends = region, taken(region), [], threading.Event()
        self.thread = threading.Thread(target=self.look, daemon=True)
        self.thread.start()

    def look(self):
        while not self.ends.wait(0.05):
            with contextlib.suppress(OSError):
                self.seen.append((time.monotonic(), taken(self.region) - self.before))

    def taken_by(self, at):
        return max((count for when, count in self.seen if when <= at), default=0)

    def until(self, count, patience):
        """When so many were taken."""
        deadline = time.monotonic() + patience
        while True:
            for when, seen in list(self.seen):
                if seen >= count:
                    self.ends.set()
                    self.thread.join()
                    return when
            if time.monotonic() > deadline:
                raise Failed(f"{self.seen[-1][1]} of {count} objects are there after {patience:.0f} s")
            time.sleep(0.05)


def check_all(one, two, size, count):
    """A region says that it has all, and has."""
    deadline = time.monotonic() + 60
    while not two.is_level():
        if time.monotonic() > deadline:
            raise Failed(f"objects of {size} bytes are there, and the region does not say so")
        time.sleep(0.2)
    if failed := counted(two, "larder_region_entries_failed_total"):
        raise Failed(f"{failed} of {count} objects of {size} bytes could not be taken when they came")
    if count_of(two, size) != count:
        raise Failed(f"of {count} objects of {size} bytes {count_of(two, size)} are there")


def tell_costs(regions, used, count):
    for region, before in zip(regions, used):
        spent = cpu_seconds(region) - before
        print(f"    {region.name}: {spent:.1f} s of a processor, {spent / count * 1e6:.0f} us for each object")


def catch_up(one, two, size, link, seconds):
    """The share of the link that is used for objects of a size, and objects a second."""
    two.stop()
    tell_puts(fill(one, size, link, seconds))
    count = count_of(one, size)
    two.start()
    watching = Watching(two)
    began = passed = None
    used = [cpu_seconds(region) for region in (one, two)]
    while began is None:
        # From the first byte on: until then the server starts.
        began = time.monotonic() if one.relay.bytes != passed and passed is not None else None
        passed = one.relay.bytes
        time.sleep(0.01)
    at = watching.until(count - watching.before, 20 * seconds + 60)
    tell_costs((one, two), used, count)
    check_all(one, two, size, count)
    return count * size / ((at - began) * link), count / (at - began)


def follow(one, two, size, link, seconds):
    """How long after the last put all is there, and objects a second."""
    watching, used, began = Watching(two), [cpu_seconds(region) for region in (one, two)], time.monotonic()
    tell_puts(fill(one, size, link, seconds))
    last = time.monotonic()
    spent = [cpu_seconds(region) for region in (one, two)]
    count = count_of(one, size)
    at = watching.until(count, 20 * seconds + 60)
    print(f"    {count - watching.taken_by(last)} of {count} were not there at the last put")
    for region, before, after in zip((one, two), used, spent):
        print(f"    {region.name}: {after - before:.1f} s of a processor in {last - began:.1f} s")
    check_all(one, two, size, count)
    return at - last, count / (at - began)


def tell_puts(measured):
    if measured:
        print(f"    puts: {measured[0]:.0f} us of a processor each, {measured[1]:.0f} a second")


def run(binary, scratch, arguments):
    one, two = regions = [Region(binary, scratch / name, name) for name in ("one", "two")]
    try:
        form_two(regions)
        link = arguments.mib_per_s * MIB
        one.relay.limit = link
        for size in arguments.size:
            if arguments.follow:
                late, rate = follow(one, two, size, link, arguments.seconds)
                print(f"objects of {size:>10,} bytes: all are there {late:.2f} s after the last put, {rate:8.0f} a second", flush=True)
                continue
            share, rate = catch_up(one, two, size, link, arguments.seconds)
            print(f"objects of {size:>10,} bytes: {share:6.1%} of the link, {rate:8.0f} a second", flush=True)
            if share < arguments.least:
                raise Failed(f"{share:.1%} of the link is used for objects of {size} bytes")
    finally:
        for region in regions:
            region.kill()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=default_binary())
    parser.add_argument("--follow", action="store_true", help="both regions run while objects are put")
    parser.add_argument("--mib-per-s", type=float, default=20, help="of the link")
    parser.add_argument("--seconds", type=float, default=10, help="for which the link is busy at best")
    parser.add_argument("--size", type=int, action="append", help="of the objects, in bytes; several may be named")
    parser.add_argument("--least", type=float, default=0.0, help="share of the link below which it fails")
    arguments = parser.parse_args()
    arguments.size = arguments.size or [1024, 16 * 1024, 256 * 1024, MIB, 64 * MIB]
    with scratch_folder(False) as scratch:
        try:
            run(arguments.binary, scratch, arguments)
        except Failed as failure:
            print(f"FAIL catchup: {failure}\n0 passed, 1 failed")
            return 1
    print("1 passed, 0 failed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
