"""Load whose every answer is written down, and the check of what must hold after a crash.

Each put has content of its own, drawn from its seed. Several writers share the keys. For a key, an operation that was
acknowledged before another one began cannot be seen after that one was acknowledged; an operation that was cut off may
have taken effect or not. What is seen once stays: after a check the key's history begins again with what was seen.
"""

import dataclasses
import itertools
import random
import threading
import time

from harness import content, md5

KIB, MIB = 1024, 1024 * 1024
BUCKET = "crash"
PART_BYTES = 5 * MIB
SIZES = [(0.35, 100, 2 * KIB), (0.35, 2 * KIB, 70 * KIB), (0.2, 70 * KIB, MIB), (0.1, MIB, 12 * MIB)]
KEYS = 120
ABSENT = (None, 0)


class Failed(Exception):
    """The store broke a promise."""


@dataclasses.dataclass
class Operation:
    value: tuple
    began: int
    ended: int | None = None


class Journal:
    """What was asked of each key, in which order, and what was acknowledged."""

    def __init__(self):
        self._lock, self._clock = threading.Lock(), itertools.count()
        self._keys, self._told, self.acknowledged = {}, {}, 0

    def begin(self, key, value):
        with self._lock:
            operation = Operation(value, next(self._clock))
            self._keys.setdefault(key, []).append(operation)
            self._told.setdefault(key, []).append(operation)
            return operation

    def acknowledge(self, operation):
        with self._lock:
            operation.ended = next(self._clock)
            self.acknowledged += 1

    def touched(self):
        with self._lock:
            return [key for key, history in self._keys.items() if len(history) > 1 or history[0].began >= 0]

    def keys(self):
        with self._lock:
            return sorted(self._keys)

    def allowed(self, key):
        """The values the key may have now."""
        with self._lock:
            history = self._keys.get(key, [])
            done = [o for o in history if o.ended is not None]
            last_begun = max((o.began for o in done), default=-2)
            current = {o.value for o in history if o.ended is None or o.ended >= last_begun}
            return current if done else current | {ABSENT}

    def story(self, key):
        """All that was ever asked of the key, in order: what a failure must be read with."""
        with self._lock:
            return "\n".join(f"  {o.value[0]}, {o.value[1]} bytes: began at {o.began}, {end(o.ended)}"
                             for o in self._told.get(key, []))

    def settle(self, key, value):
        """The key was seen with this value, and nothing is under way."""
        with self._lock:
            self._keys[key] = [Operation(value, -2, -1)]


def end(ended):
    return "was cut off" if ended is None else f"was acknowledged at {ended}"


class Uploads:
    """Uploads whose creation was acknowledged and that were cut off before their completion was tried."""

    def __init__(self):
        self.lock, self.open = threading.Lock(), {}

    def put(self, upload, key, parts):
        with self.lock:
            self.open[upload] = (key, parts)

    def take(self, upload):
        with self.lock:
            return self.open.pop(upload, None)


def draw_size(rng):
    chance = rng.random()
    for share, low, high in SIZES:
        if chance < share:
            return rng.randint(low, high)
        chance -= share
    return SIZES[-1][2]


class Load:
    """Writers that run until they are told to stop or the server dies. Once `cut` is set, errors are no fault."""

    def __init__(self, server, journal, uploads, seed, writers=8, round_number=0):
        self.server, self.journal, self.uploads = server, journal, uploads
        self.s3 = server.boto3(connect_timeout=5, read_timeout=60)
        self.stopping, self.cut, self.faults = threading.Event(), threading.Event(), []
        rngs = [random.Random(f"{seed}/{round_number}/{n}") for n in range(writers)]
        self.threads = [threading.Thread(target=self._write, args=(rng, f"{round_number}/{n}"))
                        for n, rng in enumerate(rngs)]

    def start(self):
        for thread in self.threads:
            thread.start()

    def join(self):
        self.stopping.set()
        for thread in self.threads:
            thread.join(120)
            if thread.is_alive():
                raise Failed("a request hangs though its server is gone")
        if self.faults:
            raise Failed(f"a live server answered: {self.faults[0]}")

    def _write(self, rng, name):
        from botocore.exceptions import BotoCoreError, ClientError

        for number in itertools.count():
            if self.stopping.is_set():
                return
            try:
                self._one(rng, f"{name}/{number}")
            except ClientError as error:
                if self.cut.is_set():
                    return
                if error.response["ResponseMetadata"]["HTTPStatusCode"] != 503:
                    self.faults.append(str(error))
                    return
            except BotoCoreError:
                return

    def _one(self, rng, seed):
        key, action = f"k{rng.randrange(KEYS):03}", rng.random()
        if action < 0.2:
            self._tell(key, ABSENT, lambda: self.s3.delete_object(Bucket=BUCKET, Key=key))
        elif action < 0.9:
            size = draw_size(rng)
            data = content(seed, size)
            self._tell(key, (seed, size), lambda: self.s3.put_object(Bucket=BUCKET, Key=key, Body=data))
        else:
            self._upload(key, seed, rng.randint(1, 3))

    def _tell(self, key, value, call):
        operation = self.journal.begin(key, value)
        call()
        self.journal.acknowledge(operation)

    def _upload(self, key, seed, count):
        size = (count - 1) * PART_BYTES + 30_000
        data, parts = content(seed, size), []
        upload = self.s3.create_multipart_upload(Bucket=BUCKET, Key=key)["UploadId"]
        self.uploads.put(upload, key, parts)
        for number in range(1, count + 1):
            piece = data[(number - 1) * PART_BYTES : number * PART_BYTES]
            part = self.s3.upload_part(Bucket=BUCKET, Key=key, UploadId=upload, PartNumber=number, Body=piece)
            parts.append({"PartNumber": number, "ETag": part["ETag"]})
        self.uploads.take(upload)
        self._tell(key, (seed, size), lambda: self.s3.complete_multipart_upload(
            Bucket=BUCKET, Key=key, UploadId=upload, MultipartUpload={"Parts": parts}))


def read(s3, key):
    """(etag, bytes) of a key, or None."""
    from botocore.exceptions import ClientError

    try:
        got = s3.get_object(Bucket=BUCKET, Key=key)
        return got["ETag"], got["Body"].read()
    except ClientError as error:
        if error.response["Error"]["Code"] != "NoSuchKey":
            raise Failed(f"{key}: {error}") from error
        return None


def verify(server, journal, uploads, whole):
    """Checks every key touched since the last check (or every key), the list, and the open uploads."""
    s3 = server.boto3(read_timeout=60)
    listed = {o["Key"]: o for page in s3.get_paginator("list_objects_v2").paginate(
        Bucket=BUCKET, PaginationConfig={"PageSize": 50}) for o in page.get("Contents", [])}
    unknown = set(listed) - set(journal.keys())
    if unknown:
        raise Failed(f"listed but never put: {sorted(unknown)}")
    for key in journal.keys() if whole else journal.touched():
        allowed = journal.allowed(key)
        seen = read(s3, key)
        value = match(seen, allowed)
        if value is None:
            raise Failed(f"{key}: {describe(seen)}, but allowed are {sorted(map(str, allowed))}; asked of it:\n"
                         f"{journal.story(key)}")
        if (seen is None) != (key not in listed):
            raise Failed(f"{key}: get says {describe(seen)}, the list says {listed.get(key)}")
        if seen and (listed[key]["Size"], listed[key]["ETag"]) != (len(seen[1]), seen[0]):
            raise Failed(f"{key}: the list says {listed[key]}, get says {describe(seen)}")
        journal.settle(key, value)
    verify_uploads(s3, uploads)


def match(seen, allowed):
    """The allowed value that was seen, if any."""
    if seen is None:
        return ABSENT if ABSENT in allowed else None
    for seed, size in allowed:
        if seed is not None and size == len(seen[1]) and content(seed, size) == seen[1]:
            return seed, size
    return None


def describe(seen):
    return "absent" if seen is None else f"{len(seen[1])} bytes with md5 {md5(seen[1])}"


def verify_uploads(s3, uploads):
    """Every acknowledged part is there; then most of the uploads are aborted."""
    from botocore.exceptions import ClientError

    for turn, (upload, (key, parts)) in enumerate(sorted(uploads.open.items())):
        try:
            listed = s3.list_parts(Bucket=BUCKET, Key=key, UploadId=upload).get("Parts", [])
        except ClientError as error:
            raise Failed(f"upload {upload} of {key} with {len(parts)} parts: {error}") from error
        etags = {p["PartNumber"]: p["ETag"] for p in listed}
        for part in parts:
            if etags.get(part["PartNumber"]) != part["ETag"]:
                raise Failed(f"upload {upload} of {key}: acknowledged part {part} is not among {etags}")
        if turn % 3 < 2:
            s3.abort_multipart_upload(Bucket=BUCKET, Key=key, UploadId=upload)
            uploads.take(upload)
    abort_unknown(s3, uploads)


def abort_unknown(s3, uploads):
    """Aborts what was cut off in its creation or completion; what the journal holds open must be listed."""
    listed = {u["UploadId"]: u["Key"] for page in s3.get_paginator("list_multipart_uploads").paginate(Bucket=BUCKET)
              for u in page.get("Uploads", [])}
    missing = set(uploads.open) - set(listed)
    if missing:
        raise Failed(f"open uploads that are not listed: {missing}")
    for upload in set(listed) - set(uploads.open):
        s3.abort_multipart_upload(Bucket=BUCKET, Key=listed[upload], UploadId=upload)


class Clock:
    """Says how far a long run is, once a few seconds."""

    def __init__(self, every=10):
        self.began, self.every, self.said = time.monotonic(), every, 0

    def tell(self, text):
        now = time.monotonic()
        if now - self.said >= self.every:
            self.said = now
            print(f"{now - self.began:6.0f} s  {text}", flush=True)
