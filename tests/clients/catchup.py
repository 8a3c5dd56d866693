"""How fast a region catches up over a link that is limited and delays.

Two regions; one is stopped while objects of one size are put in the other. Then it starts, and the time is taken until all is
there. A share of the link is the bytes of the objects by what the link lets pass in that time.

    python3 tests/clients/catchup.py [--mib-per-s 20] [--seconds 10] [--size 1048576]... [--least 0.9] [--binary PATH]
"""

import argparse
import concurrent.futures
import os
import sys
import time

from harness import content, default_binary, scratch_folder
from regions import BUCKET, Region, converged
from workload import Failed

MIB = 1024 * 1024
OBJECTS_MAX = 20_000


def fill(region, size, count):
    """Objects of that size, no two alike."""
    s3, body = region.boto3(), content(f"of {size}", size)

    def put(number):
        head = f"{size}/{number}".encode()
        s3.put_object(Bucket=BUCKET, Key=f"{size}/{number}", Body=(head + body)[:size])

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(put, range(count)))


def count_of(region, size):
    pages = region.boto3().get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=f"{size}/")
    return sum(page.get("KeyCount", 0) for page in pages)


def cpu_seconds(region):
    """Processor time of a region's server since it started."""
    fields = open(f"/proc/{region.process.pid}/stat", encoding="ascii").read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(one, two, size, link, seconds):
    """The share of the link that is used for objects of a size, and objects a second."""
    two.stop()
    count = max(1, min(int(link * seconds / size), OBJECTS_MAX))
    fill(one, size, count)
    two.start()
    began = passed = None
    used = [cpu_seconds(region) for region in (one, two)]
    while began is None:
        # From the first byte on: until then the server starts.
        began = time.monotonic() if one.relay.bytes != passed and passed is not None else None
        passed = one.relay.bytes
        time.sleep(0.01)
    while not two.is_level() or count_of(two, size) < count:
        if time.monotonic() > began + 20 * seconds + 60:
            raise Failed(f"objects of {size} bytes are not there after {time.monotonic() - began:.0f} s")
        # Each look costs a processor some of its time.
        time.sleep(0.5)
    took = time.monotonic() - began
    for region, before in zip((one, two), used):
        print(f"    {region.name}: {cpu_seconds(region) - before:.1f} s of a processor in {took:.1f} s")
    return count * size / (took * link), count / took


def run(binary, scratch, arguments):
    one, two = regions = [Region(binary, scratch / name, name) for name in ("one", "two")]
    try:
        one.start()
        one.boto3().create_bucket(Bucket=BUCKET)
        one.boto3().put_object(Bucket=BUCKET, Key="first", Body=b"first")
        one.stop()
        one.create()
        one.start()
        two.start()
        two.stop()
        two.join(one)
        two.start()
        converged(regions)
        link = arguments.mib_per_s * MIB
        one.relay.limit = link
        for size in arguments.size:
            share, rate = measure(one, two, size, link, arguments.seconds)
            print(f"objects of {size:>10,} bytes: {share:6.1%} of the link, {rate:8.0f} a second", flush=True)
            if share < arguments.least:
                raise Failed(f"{share:.1%} of the link is used for objects of {size} bytes")
    finally:
        for region in regions:
            region.kill()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=default_binary())
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
