"""Fills the disk: a clear error, deletes still work, space comes back, and nothing is half there.

The store lies on a small file system of its own. It is filled with objects of many sizes until a put is refused, by
several writers at once; everything acknowledged must be readable then. Half of it is deleted while the disk is full, and
puts must succeed again. `larder inspect` must find the store sound after a kill on the full disk, and at the end.

Needs root, for mounting.

    python3 tests/clients/fulldisk.py [--binary PATH]
"""

import argparse
import random
import sys
import threading
import time

from disk import Disk
from harness import Server, content, default_binary, scratch_folder
from workload import Failed, draw_size

DISK_BYTES = 1536 << 20
BUCKET = "filled"
WRITERS = 4
PUTS_MAX = 20_000
FREED_SECONDS = 60
FULL_STATUS = (503, 507)


def refusal(error):
    """Checks that a put was refused for want of space and not otherwise."""
    status, told = error.response["ResponseMetadata"]["HTTPStatusCode"], error.response["Error"]
    if status not in FULL_STATUS:
        raise Failed(f"a put on the full disk is answered with {status} {told}")
    return "space" in told.get("Message", "").lower()


def fill(server):
    """Puts from several threads until each was refused for want of space; what was acknowledged."""
    from botocore.exceptions import ClientError

    acknowledged, faults, lock = {}, [], threading.Lock()

    def write(name):
        s3, rng = server.boto3(), random.Random(name)
        for number in range(PUTS_MAX):
            key = f"{name}/{number}"
            size = draw_size(rng)
            try:
                s3.put_object(Bucket=BUCKET, Key=key, Body=content(key, size))
            except ClientError as error:
                try:
                    if refusal(error):
                        return
                except Failed as failure:
                    faults.append(failure)
                    return
            else:
                with lock:
                    acknowledged[key] = size
        faults.append(Failed("the disk is never full"))

    threads = [threading.Thread(target=write, args=(f"w{n}",)) for n in range(WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if faults:
        raise faults[0]
    return acknowledged


def check(server, acknowledged):
    s3 = server.boto3()
    for key, size in acknowledged.items():
        if s3.get_object(Bucket=BUCKET, Key=key)["Body"].read() != content(key, size):
            raise Failed(f"{key} reads otherwise than it was put")
    listed = {o["Key"] for page in s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET)
              for o in page.get("Contents", [])}
    if listed != set(acknowledged):
        raise Failed(f"listed but refused, or the other way round: {sorted(listed ^ set(acknowledged))[:5]}")


def delete_half(server, acknowledged):
    s3 = server.boto3()
    for key in sorted(acknowledged)[::2]:
        s3.delete_object(Bucket=BUCKET, Key=key)
        del acknowledged[key]


def put_again(server, acknowledged):
    """Freed space is waited for: floors have to rise above the deletes first."""
    from botocore.exceptions import ClientError

    s3, deadline = server.boto3(), time.monotonic() + FREED_SECONDS
    for number in range(20):
        key = f"again/{number}"
        while key not in acknowledged:
            try:
                s3.put_object(Bucket=BUCKET, Key=key, Body=content(key, 1_000_000))
                acknowledged[key] = 1_000_000
            except ClientError as error:
                refusal(error)
                if time.monotonic() > deadline:
                    raise Failed("the space of deleted objects does not come back") from error
                time.sleep(0.2)


def inspect(server):
    code, report = server.inspect()
    if code != 0:
        raise Failed(f"inspect ended with {code}:\n{report[-3000:]}")


def run(server):
    server.start()
    server.boto3().create_bucket(Bucket=BUCKET)
    acknowledged = fill(server)
    check(server, acknowledged)
    filled = len(acknowledged)
    server.kill()
    inspect(server)
    server.start()
    check(server, acknowledged)
    delete_half(server, acknowledged)
    put_again(server, acknowledged)
    check(server, acknowledged)
    if server.stop() != 0:
        raise Failed("the last stop was not clean")
    inspect(server)
    return filled


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=default_binary())
    arguments = parser.parse_args()
    with scratch_folder() as scratch:
        settings = scratch / "larder.toml"
        settings.write_text("log_segment_mib = 4\npg_count = 4\n")
        disk = Disk(scratch, DISK_BYTES)
        server = Server(arguments.binary, disk.mount_point / "store", ["--config", settings], scratch / "server.log")
        try:
            filled = run(server)
        except (Failed, AssertionError) as failure:
            print(f"FAIL fulldisk: {failure}\n{server.log_tail()}\n0 passed, 1 failed")
            return 1
        finally:
            server.kill()
            disk.unmount()
    print(f"fulldisk: {filled} objects until it was full; all read, half deleted, space came back, store sound")
    print("1 passed, 0 failed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
