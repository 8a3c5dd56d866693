"""Large objects in bounded memory, and a stop within 10 s under load.

An object is put in one request whose body is made on the way (unsigned payload), read back while it is compared, and read
in ranges; the server's resident memory must stay below a bound that does not depend on its size. Then SIGTERM comes while
clients put, get and delete: the server must end by itself within 10 s with code 0, and whatever was acknowledged is there
after.

    python3 tests/clients/large.py [--gib 5] [--binary PATH]
"""

import argparse
import hashlib
import http.client
import pathlib
import random
import sys
import threading
import time

from harness import ACCESS, SECRET, Server, content, default_binary, scratch_folder
from sigv4 import UNSIGNED, Signer
from workload import Failed

MIB = 1 << 20
PIECE = content("piece", MIB)
BUCKET = "large"
MEMORY_BYTES_MAX = 512 * MIB
STOP_SECONDS_MAX = 10
WRITERS = 16
LOAD_SECONDS = 2
RANGES = 50


def piece(number):
    """The MiB of this number: unlike its neighbours, and cheap to make."""
    return number.to_bytes(8, "big") + PIECE[8:]


def memory_peak(server):
    status = pathlib.Path(f"/proc/{server.process.pid}/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))


def request(server, method, key, headers=None):
    """A connection on which the head of a signed request has been sent, without its body."""
    host, path = f"127.0.0.1:{server.port}", f"/{BUCKET}/{key}"
    connection = http.client.HTTPConnection(host, timeout=120)
    connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
    signed = Signer(ACCESS, SECRET).headers(method, path, [], {"host": host, **(headers or {})}, UNSIGNED)
    for name, value in signed.items():
        connection.putheader(name, value)
    connection.endheaders()
    return connection


def put(server, key, pieces):
    connection, digest = request(server, "PUT", key, {"content-length": str(pieces * MIB)}), hashlib.md5()
    for number in range(pieces):
        data = piece(number)
        digest.update(data)
        connection.send(data)
    answer = connection.getresponse()
    body = answer.read()
    if answer.status != 200 or answer.headers["etag"] != f'"{digest.hexdigest()}"':
        raise Failed(f"put: {answer.status} {answer.headers['etag']} {body[:500]}")


def get(server, key, pieces):
    connection = request(server, "GET", key)
    answer = connection.getresponse()
    if answer.status != 200 or int(answer.headers["content-length"]) != pieces * MIB:
        raise Failed(f"get: {answer.status} {answer.read(500)}")
    for number in range(pieces):
        if answer.read(MIB) != piece(number):
            raise Failed(f"MiB {number} of {pieces} reads otherwise than it was put")


def get_ranges(server, key, pieces):
    rng, s3 = random.Random(pieces), server.boto3()
    for number in [pieces - 2, *(rng.randrange(pieces - 1) for _ in range(RANGES))]:
        first = number * MIB + rng.randrange(MIB)
        wanted = (piece(number) + piece(number + 1))[first - number * MIB :][:MIB]
        got = s3.get_object(Bucket=BUCKET, Key=key, Range=f"bytes={first}-{first + MIB - 1}")["Body"].read()
        if got != wanted:
            raise Failed(f"the range from {first} reads otherwise than it was put")


def large_object(server, pieces):
    server.boto3().create_bucket(Bucket=BUCKET)
    put(server, "whole", pieces)
    get(server, "whole", pieces)
    get_ranges(server, "whole", pieces)
    peak = memory_peak(server)
    if peak > MEMORY_BYTES_MAX:
        raise Failed(f"{pieces} MiB took {peak >> 20} MiB of memory")
    server.boto3().delete_object(Bucket=BUCKET, Key="whole")
    return f"{pieces} MiB in one put, {peak >> 20} MiB of memory at most"


def stop_under_load(server):
    acknowledged, lock, over = {}, threading.Lock(), threading.Event()

    def write(name, s3):
        from botocore.exceptions import BotoCoreError, ClientError

        number = 0
        while not over.is_set():
            number += 1
            key, size = f"{name}/{number}", (300, 8 * 1024, 3 * MIB)[number % 3]
            try:
                s3.put_object(Bucket=BUCKET, Key=key, Body=content(key, size))
                with lock:
                    acknowledged[key] = size
                s3.get_object(Bucket=BUCKET, Key=key)["Body"].read()
            except (BotoCoreError, ClientError):
                return

    threads = [threading.Thread(target=write, args=(f"w{n}", server.boto3())) for n in range(WRITERS)]
    for thread in threads:
        thread.start()
    time.sleep(LOAD_SECONDS)
    began = time.monotonic()
    code = server.stop()
    took = time.monotonic() - began
    over.set()
    for thread in threads:
        thread.join()
    if code != 0 or took > STOP_SECONDS_MAX or not acknowledged:
        raise Failed(f"under load, SIGTERM ended it with {code} after {took:.1f} s")
    server.start()
    s3 = server.boto3()
    for key, size in acknowledged.items():
        if s3.get_object(Bucket=BUCKET, Key=key)["Body"].read() != content(key, size):
            raise Failed(f"{key}, acknowledged before the stop, reads otherwise")
    return f"stopped in {took:.1f} s under {WRITERS} clients, all {len(acknowledged)} objects there"


def stop_with_a_client_that_hangs(server):
    """A client that has sent half of its body must not keep the server."""
    connection = request(server, "PUT", "half", {"content-length": str(8 * MIB)})
    connection.send(piece(0))
    began = time.monotonic()
    code = server.stop()
    took = time.monotonic() - began
    connection.close()
    if code != 0 or took > STOP_SECONDS_MAX:
        raise Failed(f"with half a put, SIGTERM ended it with {code} after {took:.1f} s")
    return f"stopped in {took:.1f} s with half a put"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=default_binary())
    parser.add_argument("--gib", type=int, default=5, help="size of the large object (default: %(default)s)")
    arguments = parser.parse_args()
    checks = [
        lambda server: large_object(server, arguments.gib * 1024),
        stop_under_load,
        stop_with_a_client_that_hangs,
    ]
    passed = 0
    with scratch_folder() as scratch:
        server = Server(arguments.binary, scratch / "store")
        server.start()
        try:
            for check in checks:
                print(f"large: {check(server)}", flush=True)
                passed += 1
            code, report = server.inspect()
            if code != 0:
                raise Failed(f"inspect ended with {code}:\n{report[-2000:]}")
        except (Failed, AssertionError, OSError) as failure:
            print(f"FAIL large: {failure}\n{server.log_tail()}\n{passed} passed, 1 failed")
            return 1
        finally:
            server.kill()
    print(f"{passed} passed, 0 failed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
