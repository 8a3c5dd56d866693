"""A trace of requests in two regions at once, whose clients stay with their region: how many reads ask another region, how much passes
the link, and how long after the last request both have the same.

    python3 tests/clients/region_trace.py --trace FILE [--binary PATH]

FILE is as `larder bench replay` takes it. Each region's clients have a bucket of their own, and both regions have both buckets."""

import argparse
import json
import os
import subprocess
import sys
import time
import urllib.request

from harness import ACCESS, SECRET, default_binary, scratch_folder
from regions import Region, form_two
from workload import Failed

CONVERGED_SECONDS = 600
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


def run(binary, scratch, trace):
    one, two = regions = [Region(binary, scratch / name, name) for name in ("one", "two")]
    try:
        form_two(regions)
        before, passed = [metrics(region) for region in regions], [region.relay.bytes for region in regions]
        began = time.monotonic()
        running = [replay(region, f"of-{region.name}", trace) for region in regions]
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
        after = [metrics(region) for region in regions]
        grew = lambda name: sum(then.get(name, 0) - now.get(name, 0) for now, then in zip(before, after))
        with open(trace) as lines:
            requests = [line.split() for line in lines if not line.startswith("#")]
        reads = 2 * sum(request[1] == "GET" for request in requests)
        # The replay reads all of these at its end, to see that they are gone.
        last = {name: operation for _, operation, name, _ in requests}
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
