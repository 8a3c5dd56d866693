"""Twice the load that the server can take: it goes on working at about its peak, and recovers.

In turn, the peak is measured (a closed loop of 64 connections) and twice that peak is offered (an open loop on 512
connections). What is answered under overload must be at least a part of the peak of the same pair; refusals with 503 are
allowed, other errors are not; and after it the server answers at once.

The client shares the cores and keeping its pace costs it nearly twice the CPU of a closed loop, which the server lacks: so
somewhat less than the peak is no sign of collapse.

    python3 tests/clients/overload.py [--least 0.75] [--pairs 3] [--binary PATH]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

from harness import ACCESS, SECRET, Server, default_binary, scratch_folder
from workload import Failed

PEAK_CONNECTIONS, OVERLOAD_CONNECTIONS = 64, 512
SECONDS = 4
RECOVERY_SECONDS_MAX = 1


def bench(server, *flags):
    """One run of puts; its figures. Refusals make it end with 1."""
    line = [server.binary, "bench", "put", "--endpoint", server.endpoint, "--bucket", "load", "--size", "8KiB",
            "--duration", f"{SECONDS}s", "--json", *map(str, flags)]
    environment = {**os.environ, "AWS_ACCESS_KEY_ID": ACCESS, "AWS_SECRET_ACCESS_KEY": SECRET}
    done = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=120)
    if done.returncode not in (0, 1) or not done.stdout:
        raise Failed(f"the load ended with {done.returncode}: {done.stderr[-1000:]}")
    other = [text for text in done.stderr.splitlines() if "error" in text.lower() and "503" not in text]
    if done.returncode == 1 and other:
        raise Failed(f"under load: {other[:3]}")
    return json.loads(done.stdout)


def pair(server):
    peak = bench(server, "--concurrency", PEAK_CONNECTIONS)
    rate = int(2 * peak["ops_s"])
    over = bench(server, "--concurrency", OVERLOAD_CONNECTIONS, "--rate", rate)
    began = time.monotonic()
    server.boto3().put_object(Bucket="load", Key="after", Body=b"after")
    recovery = time.monotonic() - began
    if recovery > RECOVERY_SECONDS_MAX:
        raise Failed(f"the first put after it took {recovery:.1f} s")
    print(f"overload: peak {peak['ops_s']:.0f}/s; offered {rate}/s: {over['ops_s']:.0f}/s, {over['errors']} refused", flush=True)
    return over["ops_s"] / peak["ops_s"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=default_binary())
    parser.add_argument("--least", type=float, default=0.75, help="least part of the peak (default: %(default)s)")
    parser.add_argument("--pairs", type=int, default=3)
    arguments = parser.parse_args()
    with scratch_folder() as scratch:
        server = Server(arguments.binary, scratch / "store")
        server.start()
        try:
            server.boto3().create_bucket(Bucket="load")
            part = statistics.median(pair(server) for _ in range(arguments.pairs))
            if part < arguments.least:
                raise Failed(f"under twice its peak load it does {part:.2f} of its peak")
            if server.stop() != 0:
                raise Failed("the stop was not clean")
        except (Failed, AssertionError, OSError) as failure:
            print(f"FAIL overload: {failure}\n{server.log_tail()}\n0 passed, 1 failed")
            return 1
        finally:
            server.kill()
    print(f"overload: {part:.2f} of the peak at twice its load\n1 passed, 0 failed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
