"""A trace of requests in two regions at once, whose clients stay with their region: how many reads ask another region, how much passes
the link, and how long after the last request both have the same. As a trace has few reads, more clients read what it has put, beside it
and afterwards.

    python3 tests/clients/region_trace.py --trace FILE [--binary PATH]

FILE is as `larder bench replay` takes it. Each region's clients have a bucket of their own, and both regions have both buckets."""

import argparse
import json
import os
import random
import subprocess
import sys
import threading
import time
import urllib.request

from harness import ACCESS, SECRET, default_binary, scratch_folder
from regions import Region, form_two
from workload import Failed

CONVERGED_SECONDS = 600
# Of each region. A share of 0.001 % takes 100,000 reads to see.
READS, READERS = 60_000, 2
# Of reads, of clients that stay with their region; bytes on the link by bytes of objects that passed it.
PROXIED_MAX, OVERHEAD_MAX = 1e-5, 1.03


def metrics(region):
    with urllib.request.urlopen(region.metrics_url(), timeout=10) as answer:
        lines = [line.split() for line in answer.read().decode().splitlines() if not line.startswith("#")]
    return {line[0]: float(line[1]) for line in lines if len(line) == 2}


def objects(region, bucket):
    pages = region.boto3().get_paginator("list_objects_v2").paginate(Bucket=bucket)
    return {one["Key"]: one["ETag"] for page in pages for one in page.get("Contents", [])}


def replay(region, bucket, trace):
    command = [region.binary, "bench", "replay", trace, "--endpoint", region.endpoint, "--bucket", bucket, "--json"]
    keys = {"AWS_ACCESS_KEY_ID": ACCESS, "AWS_SECRET_ACCESS_KEY": SECRET}
    return subprocess.Popen(list(map(str, command)), env=os.environ | keys, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


class Reader(threading.Thread):
    """Reads what its region's clients have put, of keys that the trace never deletes."""

    def __init__(self, region, bucket, stay, count):
        super().__init__()
        self.region, self.bucket, self.stay, self.left = region, bucket, stay, count
        self.s3, self.rng, self.failure = region.boto3(), random.Random(count), None

    def run(self):
        try:
            while self.left > 0:
                keys = sorted(objects(self.region, self.bucket).keys() & self.stay)
                # Listed anew for each thousand.
                for key in self.rng.choices(keys, k=min(self.left, 1000)) if keys else []:
                    self.s3.get_object(Bucket=self.bucket, Key=key, Range="bytes=0-4095")["Body"].read()
                    self.left -= 1
        except Exception as error:  # whatever it is fails the test
            self.failure = error


def read_beside(regions, last):
    """Starts the readers of each region's bucket."""
    stay = {name for name, operation in last.items() if operation == "PUT"}
    started = [Reader(region, f"of-{region.name}", stay, READS // READERS) for region in regions for _ in range(READERS)]
    for reader in started:
        reader.start()
    return started


def run(binary, scratch, trace):
    with open(trace) as lines:
        requests = [line.split() for line in lines if not line.startswith("#")]
    last = {name: operation for _, operation, name, _ in requests}
    one, two = regions = [Region(binary, scratch / name, name) for name in ("one", "two")]
    try:
        form_two(regions)
        before, passed = [metrics(region) for region in regions], [region.relay.bytes for region in regions]
        began = time.monotonic()
        running = [replay(region, f"of-{region.name}", trace) for region in regions]
        for region in regions:
            while f"of-{region.name}" not in [bucket["Name"] for bucket in region.boto3().list_buckets()["Buckets"]]:
                time.sleep(0.1)
        readers = read_beside(regions, last)
        for region, one_run in zip(regions, running):
            said, error = one_run.communicate(timeout=3600)
            if one_run.returncode != 0:
                raise Failed(f"the replay in {region.name} ended with {one_run.returncode}: {error[-1000:]}")
            report = json.loads(said)
            print(f"{region.name}: {report.get('ops', report)} requests, {time.monotonic() - began:.0f} s", flush=True)
        ended = time.monotonic()
        for bucket in ("of-one", "of-two"):
            while objects(one, bucket) != objects(two, bucket):
                if time.monotonic() > ended + CONVERGED_SECONDS:
                    raise Failed(f"{bucket} is not the same in both regions")
                time.sleep(0.1)
        late = time.monotonic() - ended
        for reader in readers:
            reader.join()
            if reader.failure:
                raise Failed(f"a read in {reader.region.name}: {reader.failure}")
        after = [metrics(region) for region in regions]
        grew = lambda name: sum(then.get(name, 0) - now.get(name, 0) for now, then in zip(before, after))
        reads = 2 * (sum(request[1] == "GET" for request in requests) + READS)
        # The replay reads all of these at its end, to see that they are gone.
        gone = 2 * sum(operation == "DELETE" for operation in last.values())
        misses, taken = grew("larder_region_misses_total") - gone, grew("larder_region_entries_taken_bytes_total")
        link = sum(region.relay.bytes - was for region, was in zip(regions, passed))
        print(f"{misses:.0f} of {reads} reads asked the other region, but for the check of {gone} deleted keys; {link / taken:.4f} bytes on the link for each byte of {taken / 1e9:.2f} GB of "
              f"objects; the same {late:.1f} s after the last request")
        if misses > PROXIED_MAX * reads:
            raise Failed(f"{misses} of {reads} reads asked the other region")
        if link > OVERHEAD_MAX * taken:
            raise Failed(f"{link} bytes passed for {taken} bytes of objects")
    finally:
        for region in regions:
            region.kill()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=default_binary())
    parser.add_argument("--trace", required=True)
    arguments = parser.parse_args()
    with scratch_folder(False) as scratch:
        try:
            run(arguments.binary, scratch, arguments.trace)
        except Failed as failure:
            print(f"FAIL region_trace: {failure}\n0 passed, 1 failed")
            return 1
    print("1 passed, 0 failed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
