"""Four `larder pack` workers over one bucket: load through all of them; one is killed and starts again, another is lost with its
machine, a new one joins, and the lost one's name is taken over. Before that, uploads in parts whose requests go to all of them.

Each key belongs to one writer, which puts and deletes it through any worker, one after the other. So of each key it is known what
must be there: what was acknowledged last, or what was in doubt. Of what the lost worker acknowledged in its last seconds, that or
what was before. In the end all workers list the same keys, each once, and give the same bytes. Every other worker packs by size, into blobs
so small, and that wait so long, that it makes bundles.

Takes about a minute, also with a debug build: --binary target/debug/larder.

    python3 tests/clients/workers.py [--seconds 8] [--seed N] [--binary PATH]
"""

import argparse
import base64
import hashlib
import pathlib
import random
import shutil
import sys
import threading
import time

from botocore.exceptions import ClientError
from harness import PackServer, content, default_binary, md5, scratch_folder

BUCKET = "shared"
WRITERS, KEYS = 8, 25
# Workers that pack by size.
GROUPING = "bd"
SIZES = [(0.6, 4_000), (0.3, 70_000), (0.1, 2_000_000)]
# What a worker acknowledged so long before it was lost is in the bucket: blobs wait for a second at most.
UPLOADED_AFTER = 6.0
SETTLED_SECONDS = 60
GONE = None


class Failed(Exception):
    """The store broke a promise."""


class Key:
    """What may be there: the last state that was acknowledged, and what came after it in doubt."""

    def __init__(self):
        # Of each: its md5, or GONE; the worker; when it was acknowledged, or None.
        self.states = [(GONE, "", 0.0)]

    def note(self, value, worker, acknowledged):
        self.states.append((value, worker, acknowledged))

    def allowed(self, lost, lost_at):
        """Values that may be there after `lost` went with all that it had not uploaded at `lost_at`."""
        values = set()
        for value, worker, acknowledged in reversed(self.states):
            values.add(value)
            is_sure = acknowledged is not None
            if is_sure and worker == lost and lost_at is not None and acknowledged <= lost_at:
                is_sure = acknowledged < lost_at - UPLOADED_AFTER
            if is_sure:
                break
        return values


class Writer(threading.Thread):
    def __init__(self, number, seed, workers, keys, until):
        super().__init__(daemon=True)
        self.rng, self.workers, self.until = random.Random(f"{seed}-{number}"), workers, until
        self.names = [f"w{number}/k{key:03}" for key in range(KEYS)]
        self.keys = {name: keys.setdefault(name, Key()) for name in self.names}
        self.done, self.refused, self.fault = 0, 0, None

    def run(self):
        try:
            while time.monotonic() < self.until:
                self.one()
        except Exception as fault:  # told by the main thread
            self.fault = fault

    def one(self):
        worker, name = self.rng.choice(list(self.workers)), self.rng.choice(self.names)
        key, s3, data = self.keys[name], worker.client, None
        if self.rng.random() < 0.8:
            size = self.rng.choices([s for _, s in SIZES], [p for p, _ in SIZES])[0]
            data = content(self.rng.random(), self.rng.randrange(1, size))
        value = md5(data) if data is not None else GONE
        try:
            if data is None:
                s3.delete_object(Bucket=BUCKET, Key=name)
            else:
                s3.put_object(Bucket=BUCKET, Key=name, Body=data)
        except Exception as error:
            self.refused += 1
            code = (getattr(error, "response", None) or {}).get("Error", {}).get("Code")
            # A worker that was killed: whether it was taken is not known.
            if code is None:
                key.note(value, worker.name, None)
                time.sleep(0.05)
            elif code not in ("SlowDown", "ServiceUnavailable"):
                raise
            return
        key.note(value, worker.name, time.monotonic())
        self.done += 1


def worker(args, folder, name, extra=()):
    options = ["--worker", name, "--peer-listen", "127.0.0.1:0", "--poll-interval-s", "1", "--superseded-retention-s", "30", *extra]
    is_grouping = name in GROUPING
    if is_grouping:
        options += ["--packing", "size"]
    server = PackServer(args.binary, folder / f"{name}{len(extra)}", folder / "blobs", options)
    if is_grouping:
        server.SIZES = ["--blob-mib", "1", *PackServer.SIZES[2:6], "--flush-ms", "1000"]
    # Clients take longer to be made than a request does.
    server.name, server.client = name, server.boto3(read_timeout=60, connect_timeout=2)
    return server


def load(args, workers, keys, seconds, meanwhile):
    until = time.monotonic() + seconds
    writers = [Writer(number, f"{args.seed}-{until}", workers, keys, until) for number in range(WRITERS)]
    for writer in writers:
        writer.start()
    meanwhile(until)
    for writer in writers:
        writer.join()
        if writer.fault:
            raise writer.fault
    done, refused = sum(w.done for w in writers), sum(w.refused for w in writers)
    if done < WRITERS:
        raise Failed(f"{done} requests were done, {refused} refused: this shows nothing")
    return done, refused


def listed(s3):
    names = []
    for page in s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, PaginationConfig={"PageSize": 70}):
        names += [(entry["Key"], entry["ETag"].strip('"')) for entry in page.get("Contents", [])]
    if len({name for name, _ in names}) != len(names):
        raise Failed("a key is listed twice")
    return dict(names)


def settled(workers):
    """Waits until everything is uploaded and all workers list the same; that list."""
    for server in workers:
        server.wait_until_uploaded()
    deadline = time.monotonic() + SETTLED_SECONDS
    clients = [server.client for server in workers]
    # Every worker has looked after the last upload when it has done so twice.
    while True:
        lists = [listed(s3) for s3 in clients]
        if all(found == lists[0] for found in lists):
            time.sleep(2.5)
            if [listed(s3) for s3 in clients] == lists:
                return lists[0], clients
        if time.monotonic() > deadline:
            odd = {k for found in lists for k in found.keys() | lists[0].keys() if found.get(k) != lists[0].get(k)}
            raise Failed(f"workers do not agree on {sorted(odd)[:10]} after {SETTLED_SECONDS} s")
        time.sleep(0.2)


def verify(workers, keys, lost=None, lost_at=None):
    found, clients = settled(workers)
    for name, key in keys.items():
        allowed = key.allowed(lost, lost_at)
        if found.get(name, GONE) not in allowed:
            raise Failed(f"{name} is {found.get(name)}, and may be {allowed}; history {key.states[-6:]}")
        # It is what there was from now on.
        key.states = [(found.get(name, GONE), "", 0.0)]
    for s3 in clients:
        for name, etag in found.items():
            if md5(s3.get_object(Bucket=BUCKET, Key=name)["Body"].read()) != etag:
                raise Failed(f"{name} has other bytes than its etag says")
    return len(found)


def seen_everywhere(workers):
    deadline = time.monotonic() + SETTLED_SECONDS
    for server in workers:
        s3 = server.client
        while BUCKET not in [bucket["Name"] for bucket in s3.list_buckets()["Buckets"]]:
            if time.monotonic() > deadline:
                raise Failed(f"{server.name} does not see the bucket")
            time.sleep(0.05)


def refusal(call, **named):
    """The code with which a call is refused."""
    try:
        call(Bucket=BUCKET, **named)
    except ClientError as error:
        return error.response["Error"]["Code"]
    raise Failed(f"{call.__name__} of {named} was not refused")


def expect(what, found, wanted):
    if found != wanted:
        raise Failed(f"{what}: {found}, not {wanted}")


def in_parts(workers):
    """Uploads whose parts, lists and ends go through other workers than the one that began them."""
    first, second, third, fourth = (server.client for server in workers)
    parts = [content(number, size) for number, size in enumerate([6 << 20, 5 << 20, 70_000])]
    key = {"Key": "in-parts"}
    upload = {**key, "UploadId": first.create_multipart_upload(Bucket=BUCKET, **key)["UploadId"]}
    named = []
    for number, (s3, data) in enumerate(zip((second, third, fourth), parts), 1):
        done = s3.upload_part(Bucket=BUCKET, **upload, PartNumber=number, Body=data)
        expect("etag of a part", done["ETag"].strip('"'), md5(data))
        named.append({"PartNumber": number, "ETag": done["ETag"]})
    wrong = {"PartNumber": 3, "Body": parts[2], "ContentMD5": base64.b64encode(hashlib.md5(b"").digest()).decode()}
    expect("a part with another digest", refusal(second.upload_part, **upload, **wrong), "BadDigest")
    for s3 in (first, second, third, fourth):
        listed = s3.list_parts(Bucket=BUCKET, **upload)["Parts"]
        expect("sizes of parts", [part["Size"] for part in listed], [len(data) for data in parts])
    begun = {"UploadId": second.create_multipart_upload(Bucket=BUCKET, Key="given-up")["UploadId"], "Key": "given-up"}
    wanted, deadline = {upload["UploadId"], begun["UploadId"]}, time.monotonic() + SETTLED_SECONDS
    for s3 in (first, second, third, fourth):
        while {of["UploadId"] for of in s3.list_multipart_uploads(Bucket=BUCKET).get("Uploads", [])} != wanted:
            if time.monotonic() > deadline:
                raise Failed("not all workers list the uploads of all")
            time.sleep(0.05)
    third.abort_multipart_upload(Bucket=BUCKET, **begun)
    for s3 in (first, second, third):
        expect("a part of an aborted upload", refusal(s3.upload_part, **begun, PartNumber=1, Body=b"x"), "NoSuchUpload")
    third.complete_multipart_upload(Bucket=BUCKET, **upload, MultipartUpload={"Parts": named})
    # At once, through the worker that handed the completion on.
    if third.get_object(Bucket=BUCKET, **key)["Body"].read() != b"".join(parts):
        raise Failed("an object in parts has other bytes than its parts")
    third.delete_object(Bucket=BUCKET, **key)
    handed = [server.metric("larder_pack_handed_on_requests_total") for server in workers]
    expect("requests handed on", handed, [1, 3, 5, 2])
    # Nobody else has its parts.
    owner = workers[1]
    begun = {"UploadId": second.create_multipart_upload(Bucket=BUCKET, **key)["UploadId"], **key}
    owner.kill()
    refused = refusal(first.upload_part, **begun, PartNumber=1, Body=b"x")
    expect("a part while its worker is away", refused, "ServiceUnavailable")
    owner.start()
    second.abort_multipart_upload(Bucket=BUCKET, **begun)


def run(args, folder):
    keys = {}
    a, b, c, d = workers = [worker(args, folder, name).start() for name in "abcd"]
    try:
        a.client.create_bucket(Bucket=BUCKET)
        seen_everywhere(workers)

        def nothing(_until):
            pass

        done = load(args, workers, keys, args.seconds / 2, nothing)
        print(f"four workers: {done[0]} requests done, {done[1]} refused; {verify(workers, keys)} objects, the same at all")
        in_parts(workers)
        print("uploads in parts: through all of them, whoever began one")

        def kill_and_start(until):
            time.sleep((until - time.monotonic()) * 0.4)
            b.kill()
            b.start()

        done = load(args, workers, keys, args.seconds, kill_and_start)
        print(f"one killed and started: {done[0]} done, {done[1]} refused; {verify(workers, keys)} objects")

        moments = {}

        def lose(until):
            time.sleep((until - time.monotonic()) * 0.6)
            d.kill()
            moments["lost"] = time.monotonic()
            shutil.rmtree(d.directory)

        done = load(args, workers, keys, args.seconds, lose)
        print(f"one lost with its directory: {done[0]} done, {done[1]} refused")
        e = worker(args, folder, "e").start()
        workers.append(e)
        heir = worker(args, folder, "d", ["--take-over"]).start()
        workers.append(heir)
        left = [a, b, c, e, heir]
        count = verify(left, keys, "d", moments["lost"])
        lost = [line for s in (a, b, c) for line in losses(s)]
        print(f"a new one, and one that took over: {count} objects, the same at all; {len(set(lost))} changes told and lost")
        done = load(args, left, keys, args.seconds / 2, nothing)
        print(f"five workers: {done[0]} done, {done[1]} refused; {verify(left, keys)} objects")
        bundles = [server.metric("larder_pack_bundles_total") for server in left if server.name in GROUPING]
        if not sum(bundles):
            raise Failed(f"{bundles} bundles were made: this shows nothing of them")
        for server in left:
            if server.stop() != 0:
                raise Failed(f"the stop of {server.name} was not clean:\n{server.log_tail()}")
    finally:
        for server in workers:
            server.kill()


def losses(server):
    report = pathlib.Path(server.directory) / "lost-d.txt"
    return [line for line in report.read_text().splitlines() if line.startswith("lost ")] if report.exists() else []


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=default_binary())
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    args = parser.parse_args()
    print(f"seed {args.seed}")
    with scratch_folder() as folder:
        try:
            run(args, pathlib.Path(folder))
        except Failed as fault:
            print(f"FAIL workers, seed {args.seed}: {fault}\n0 passed, 1 failed")
            return 1
    print("1 passed, 0 failed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
