"""A store that `larder bench fill` has filled serves its objects like all others.

A store is filled while nobody serves it, twice with small objects and once with larger ones. It is sound; while it is served
it is not filled. Every object is listed, objects drawn at random are read and compared with their ETags, some are replaced
while the server is killed again and again soon after its start, and in the end all are deleted, and the bucket.

    python3 tests/clients/fill.py [--objects N] [--seed N] [--binary PATH]
"""

import argparse
import random
import sys

from harness import Server, command, content, default_binary, md5, scratch_folder
from workload import Failed

BUCKET = "filled"
# Exit code of a store in use.
CANNOT_START = 3


def fill(server, objects, size, expect=0):
    line = [server.binary, "bench", "fill", server.directory, "--objects", objects, "--size", size, "--bucket", BUCKET]
    return command(line, expect=expect)


def listed(s3):
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET)
    return [entry for page in pages for entry in page.get("Contents", [])]


def expect_sound(server):
    code, said = server.inspect()
    if code:
        raise Failed(f"inspect: {said[-2000:]}")


def read_all(s3, entries):
    for entry in entries:
        answer = s3.get_object(Bucket=BUCKET, Key=entry["Key"])
        body = answer["Body"].read()
        if len(body) != entry["Size"] or f'"{md5(body)}"' != answer["ETag"] or answer["ETag"] != entry["ETag"]:
            raise Failed(f"{entry['Key']}: {len(body)} bytes with MD5 {md5(body)}, listed as {entry}")


def run(server, objects, rng):
    sizes = [(objects, 100), (objects // 10, 2048), (objects // 50, 70_000)]
    for count, size in sizes:
        fill(server, count, size)
    expect_sound(server)
    server.start()
    fill(server, 1, 1, expect=CANNOT_START)
    s3 = server.boto3()
    entries = listed(s3)
    expected = [size for count, size in sizes for _ in range(count)]
    if [entry["Size"] for entry in entries] != expected:
        raise Failed(f"{len(entries)} objects are listed, not {len(expected)}")
    read_all(s3, [*rng.sample(entries, min(300, len(entries))), *entries[-20:]])
    replaced = rng.sample([entry["Key"] for entry in entries], 50)
    for key in replaced:
        s3.put_object(Bucket=BUCKET, Key=key, Body=content(key, 5000))
    for turn in range(4):
        # Soon after a start: its rows are being read, or have just been.
        server.kill()
        server.start()
        s3 = server.boto3()
        for key in rng.sample(replaced, 10):
            s3.delete_object(Bucket=BUCKET, Key=key)
            s3.put_object(Bucket=BUCKET, Key=key, Body=content(key, 5000))
    server.kill()
    server.start()
    s3 = server.boto3()
    for key in replaced:
        if s3.get_object(Bucket=BUCKET, Key=key)["Body"].read() != content(key, 5000):
            raise Failed(f"{key} reads otherwise than it was put")
    for at in range(0, len(entries), 1000):
        keys = [{"Key": entry["Key"]} for entry in entries[at : at + 1000]]
        refused = s3.delete_objects(Bucket=BUCKET, Delete={"Objects": keys, "Quiet": True}).get("Errors")
        if refused:
            raise Failed(f"not deleted: {refused[:3]}")
    if listed(s3):
        raise Failed("what was deleted is listed")
    s3.delete_bucket(Bucket=BUCKET)
    server.stop()
    expect_sound(server)
    return len(entries)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=default_binary())
    parser.add_argument("--objects", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--keep", action="store_true", help="keep the directory, print where it is")
    arguments = parser.parse_args()
    print(f"fill: seed {arguments.seed}", flush=True)
    with scratch_folder(arguments.keep) as scratch:
        server = Server(arguments.binary, scratch / "store")
        try:
            objects = run(server, arguments.objects, random.Random(arguments.seed))
        except (Failed, AssertionError) as failure:
            print(f"FAIL fill: {failure}\n0 passed, 1 failed")
            return 1
        finally:
            server.kill()
    print(f"fill: {objects} objects, all as they were made\n1 passed, 0 failed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
