"""The notice that a server gives before it stops: told to, its `/readyz` answers 503 while it serves requests on connections old and new
for as long as `stop_notice` says, and then it ends well. Told again, it stops at once; without the setting it always does.

A single node and a machine of a cluster. Nothing that was put meanwhile is lost.

    python3 tests/clients/leaving.py [--binary PATH]
"""

import argparse
import pathlib
import sys
import time
import urllib.error
import urllib.request

from harness import STOP_SECONDS, Server, default_binary, scratch_folder
from peers import Machine, equal_machines, ready, secret_file
from workload import Failed

BUCKET = "left"
NOTICE_SECONDS, PAUSE = 4, 0.1
# Time that a round of questions and puts has on a machine that is busy; rounds of one notice.
ROUND_SECONDS, ROUNDS_MAX = 2, 20
# Of a stop that does not wait.
AT_ONCE_SECONDS = 1.5


def status(url):
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def stopped(server, within):
    began = time.monotonic()
    if code := server.process.wait(STOP_SECONDS):
        raise Failed(f"a stop ended with {code}:\n{server.log_tail()}")
    server.process = None
    if (took := time.monotonic() - began) > within:
        raise Failed(f"a stop took {took:.1f} s")


def leave(server, name):
    """Tells it to stop; it serves as long as it said. Clients without retries: a request that fails, fails the test."""
    old, put = server.boto3(), []
    old.put_object(Bucket=BUCKET, Key=f"{name}-before", Body=b"x")
    # None of these has a connection yet.
    others, began = [server.boto3() for _ in range(ROUNDS_MAX)], time.monotonic()
    server.process.terminate()
    for new in others:
        time.sleep(PAUSE)
        # A round that begins by then ends before the listener closes.
        if time.monotonic() - began > NOTICE_SECONDS - ROUND_SECONDS:
            break
        told = [status(f"{server.endpoint}/{path}") for path in ("readyz", "healthz")]
        if told != [503, 200]:
            raise Failed(f"/readyz and /healthz of a server that leaves answer {told}")
        for s3 in (old, new):
            put.append(f"{name}-{len(put)}")
            s3.put_object(Bucket=BUCKET, Key=put[-1], Body=b"x")
    stopped(server, NOTICE_SECONDS)
    return put


def read(server, keys):
    s3 = server.boto3()
    for key in keys:
        if s3.get_object(Bucket=BUCKET, Key=key)["Body"].read() != b"x":
            raise Failed(f"{key} reads otherwise than it was put")


def single(binary, folder):
    config = folder / "single.toml"
    config.write_text(f'stop_notice = "{NOTICE_SECONDS}s"\n')
    server = Server(binary, folder / "single", ["--config", config]).start()
    try:
        server.boto3().create_bucket(Bucket=BUCKET)
        put = leave(server, "single")
        server.start()
        read(server, put)
        server.process.terminate()
        while status(f"{server.endpoint}/readyz") == 200:
            time.sleep(0.01)
        server.process.terminate()
        stopped(server, AT_ONCE_SECONDS)
        server.extra = []
        server.start()
        server.process.terminate()
        stopped(server, AT_ONCE_SECONDS)
    finally:
        server.kill()


class Leaver(Machine):
    """A machine that gives notice."""

    def flags(self):
        flags, config = super().flags(), self.directory.with_suffix(".toml")
        config.write_text(f'{config.read_text()}stop_notice = "{NOTICE_SECONDS}s"\n')
        return flags


def cluster(binary, folder):
    secret = secret_file(binary, folder / "secret")
    machines = equal_machines(Leaver, binary, folder, secret)
    try:
        for machine in machines:
            machine.spawn()
        ready(machines)
        machines[0].boto3().create_bucket(Bucket=BUCKET)
        put = leave(machines[1], "machine")
        ready([machines[0], machines[2]])
        read(machines[2], put)
    finally:
        for machine in machines:
            machine.kill()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=pathlib.Path, default=default_binary())
    arguments = parser.parse_args()
    with scratch_folder() as folder:
        try:
            single(arguments.binary, folder)
            print("a single node", flush=True)
            cluster(arguments.binary, folder)
            print("a machine of three", flush=True)
        except (Failed, AssertionError) as failure:
            print(f"FAIL leaving: {failure}\n0 passed, 1 failed")
            return 1
    print("1 passed, 0 failed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
