"""Plants corruptions in a stopped store, one at a time: `larder inspect` finds each, and no server serves a wrong byte.

Three stores are filled: one is stopped, one killed, one written to until its index is on disk and the log behind it is
freed. For each corruption one of them is copied. Then

- `larder inspect` must end with 1 and say what it found;
- a server on the corrupted store either refuses to start, or gives for every object its bytes or an error: never other
  bytes, and never "no such key" for an object that was put.

Of what is kept twice, one copy may be lost: then every object must be read, and `inspect` may end with 0. A rotten block
of the index must not keep a server from starting, again and again: it reads all but that block, and changes nothing.

    python3 tests/clients/corrupt.py [--only TEXT] [--binary PATH]
"""

import argparse
import hashlib
import re
import shutil
import subprocess
import sys

from harness import ACCESS, SECRET, Server, command, content, default_binary, scratch_folder
from workload import Failed

KIB, MIB = 1024, 1024 * 1024
BUCKET = "planted"
PAGE = 4 * KIB
STOPPED, KILLED, FLUSHED = "stopped", "killed", "flushed"
FLUSH_TRIES = 20
OBJECTS = {f"inline-{n:03}": 300 for n in range(40)} | {f"small-{n:03}": 8 * KIB for n in range(40)} | {
    "medium": 300 * KIB, "chunked": 20 * MIB, "other": 300 * KIB,
}
PARTS = {"parts": [5 * MIB, 6 * MIB, 100 * KIB]}


def body(key):
    return content(key, OBJECTS[key] if key in OBJECTS else sum(PARTS[key]))


def fill(server):
    s3 = server.boto3()
    s3.create_bucket(Bucket=BUCKET)
    for key in OBJECTS:
        if key.endswith("3"):
            s3.put_object(Bucket=BUCKET, Key=key, Body=content((key, "old"), 9 * KIB))
        s3.put_object(Bucket=BUCKET, Key=key, Body=body(key))
    for key in [f"gone-{n}" for n in range(10)]:
        s3.put_object(Bucket=BUCKET, Key=key, Body=content(key, 20 * KIB))
        s3.delete_object(Bucket=BUCKET, Key=key)
    for key, sizes in PARTS.items():
        upload, parts, at = s3.create_multipart_upload(Bucket=BUCKET, Key=key)["UploadId"], [], 0
        for number, size in enumerate(sizes, 1):
            piece = body(key)[at : at + size]
            at += size
            part = s3.upload_part(Bucket=BUCKET, Key=key, UploadId=upload, PartNumber=number, Body=piece)
            parts.append({"PartNumber": number, "ETag": part["ETag"]})
        s3.complete_multipart_upload(Bucket=BUCKET, Key=key, UploadId=upload, MultipartUpload={"Parts": parts})


class Store:
    """The files of a stopped store, found by what is in them."""

    def __init__(self, directory):
        self.directory = directory

    def files(self, pattern):
        found = sorted(p for p in self.directory.glob(pattern) if p.is_file())
        if not found:
            raise Failed(f"the store has no {pattern}")
        return found

    def places(self, pattern, needle):
        """(file, offset) of every occurrence."""
        found = []
        for path in self.files(pattern):
            found += [(path, match.start()) for match in re.finditer(re.escape(needle), path.read_bytes())]
        if not found:
            raise Failed(f"{needle[:40]!r} does not occur in {pattern}")
        return found

    def flip(self, place, bit=3):
        path, offset = place
        with path.open("r+b") as file:
            file.seek(offset)
            byte = file.read(1)[0]
            file.seek(offset)
            file.write(bytes([byte ^ (1 << bit)]))

    def write(self, place, data):
        path, offset = place
        with path.open("r+b") as file:
            file.seek(offset)
            file.write(data)

    def data(self, key, at=0):
        """Where byte `at` of an object's data lies."""
        path, offset = self.places("data0", body(key)[at : at + 64])[0]
        return path, offset

    def log(self, key):
        """Where an object's key stands in the log, last occurrence."""
        return self.places("log/*", key.encode())[-1]


CORRUPTIONS = []


def corruption(store, harmless=False, read_only=False):
    """A way to corrupt a copy of this store."""
    def add(function):
        CORRUPTIONS.append((function.__name__, function, store, harmless, read_only))
        return function

    return add


@corruption(STOPPED)
def a_bit_of_a_small_object(store):
    store.flip(store.data("small-007", 4000))


@corruption(STOPPED)
def a_bit_in_the_middle_of_an_object(store):
    store.flip(store.data("medium", 131_072 + 5))


@corruption(STOPPED)
def a_bit_in_the_last_chunk_of_a_large_object(store):
    store.flip(store.data("chunked", 20 * MIB - 100))


@corruption(STOPPED)
def a_bit_in_a_part(store):
    store.flip(store.data("parts", 7 * MIB))


@corruption(STOPPED)
def a_lost_write_of_one_block(store):
    store.write(store.data("medium", 8 * PAGE), bytes(PAGE))


@corruption(STOPPED)
def a_misdirected_write(store):
    store.write(store.data("medium", 16 * PAGE), body("other")[16 * PAGE : 17 * PAGE])


@corruption(STOPPED)
def two_objects_exchanged(store):
    one, two = store.data("small-010"), store.data("small-011")
    store.write(one, body("small-011"))
    store.write(two, body("small-010"))


@corruption(STOPPED)
def the_data_file_cut_in_half(store):
    path = store.files("data0")[0]
    with path.open("r+b") as file:
        file.truncate(store.data("chunked", 10 * MIB)[1])


@corruption(STOPPED)
def the_data_file_gone(store):
    store.files("data0")[0].unlink()


@corruption(STOPPED)
def one_superblock(store):
    store.flip((store.files("data0")[0], 40))


@corruption(STOPPED)
def both_superblocks(store):
    store.flip((store.files("data0")[0], 16))
    store.flip((store.files("data0")[0], PAGE + 16))


@corruption(STOPPED, harmless=True)
def one_header_of_a_volume(store):
    path, offset = store.places("data0", b"LARDERPV")[0]
    store.flip((path, offset + 64))


@corruption(STOPPED)
def every_header_of_a_volume(store):
    for path, offset in store.places("data0", b"LARDERPV"):
        store.flip((path, offset + 64))


@corruption(FLUSHED, read_only=True)
def a_bit_of_a_table_of_the_index(store):
    store.flip(store.places("kv/tables/*", hashlib.md5(body("small-020")).digest())[0])


@corruption(FLUSHED, read_only=True)
def a_bit_of_an_inline_object_in_the_index(store):
    store.flip(store.places("kv/tables/*", body("inline-020")[100:140])[0])


@corruption(FLUSHED)
def a_table_of_the_index_gone(store):
    store.places("kv/tables/*", hashlib.md5(body("small-020")).digest())[0][0].unlink()


@corruption(FLUSHED)
def the_version_of_the_index_gone(store):
    store.files("kv/current")[0].unlink()


@corruption(FLUSHED)
def a_bit_of_the_index_version(store):
    store.flip((store.files("kv/current")[0], 9))


@corruption(KILLED)
def a_bit_of_a_record_in_the_log(store):
    store.flip(store.log("small-005"))


@corruption(KILLED)
def a_bit_of_an_inline_object_in_the_log(store):
    store.flip(store.places("log/*", body("inline-005")[100:140])[-1])


@corruption(KILLED)
def a_lost_write_of_the_log(store):
    path, offset = store.log("small-005")
    store.write((path, offset - offset % 512), bytes(512))


@corruption(KILLED)
def the_log_gone(store):
    shutil.rmtree(store.directory / "log")


@corruption(KILLED)
def the_log_cut_in_its_middle(store):
    path, offset = store.log("small-005")
    with path.open("r+b") as file:
        file.truncate(offset)


@corruption(KILLED)
def the_end_of_the_log_cut_off(store):
    path, offset = store.log("parts")
    with path.open("r+b") as file:
        file.truncate(offset + 64 * KIB)


@corruption(KILLED)
def the_head_of_a_log_segment(store):
    store.flip((store.places("log/*", b"LARDRLOG")[0][0], 20))


@corruption(STOPPED)
def a_bit_of_the_map(store):
    path = max(store.files("manager/*"), key=lambda p: p.stat().st_size)
    store.flip((path, path.stat().st_size // 2))


@corruption(STOPPED)
def the_map_gone(store):
    shutil.rmtree(store.directory / "manager")


def reads(server):
    """Reads everything; the numbers of right answers and of errors."""
    from botocore.exceptions import BotoCoreError, ClientError

    s3, right, refused = server.boto3(), 0, 0
    for key in [*OBJECTS, *PARTS]:
        try:
            data = s3.get_object(Bucket=BUCKET, Key=key)["Body"].read()
        except ClientError as error:
            status = error.response["ResponseMetadata"]["HTTPStatusCode"]
            if status < 500:
                raise Failed(f"{key} was put, and is answered with {error}") from error
            refused += 1
            continue
        except BotoCoreError:
            refused += 1
            continue
        if data != body(key):
            raise Failed(f"{key} is served with wrong bytes")
        right += 1
    return right, refused


def serves_the_rest(server):
    """Over three starts: most objects are read, nothing is changed, and an operator is told."""
    from botocore.exceptions import ClientError

    outcome = []
    for _ in range(3):
        server.start()
        right, refused = reads(server)
        if not refused or right < (len(OBJECTS) + len(PARTS)) // 2:
            raise Failed(f"{right} objects are read, and {refused} are not")
        outcome.append(f"{right} objects read, {refused} refused")
        try:
            server.boto3().put_object(Bucket=BUCKET, Key="new", Body=b"new")
        except ClientError as error:
            if error.response["ResponseMetadata"]["HTTPStatusCode"] != 500:
                raise Failed(f"a put is answered with {error}") from error
        else:
            raise Failed("a put is taken")
        said = subprocess.run([server.binary, "status", server.directory], capture_output=True, text=True)
        if said.returncode != 1 or not said.stdout.startswith("READ-ONLY: the index is damaged"):
            raise Failed(f"status ends with {said.returncode}: {said.stdout[:300]}{said.stderr[:300]}")
        server.stop()
    return "; ".join(outcome)


def one(binary, pristine, scratch, name, plant, harmless, read_only):
    directory = scratch / name
    subprocess.run(["cp", "-a", "--sparse=always", pristine, directory], check=True)
    plant(Store(directory))
    server = Server(binary, directory)
    code, report = server.inspect()
    lines = [line for line in report.splitlines() if line.strip()]
    if code not in ((0, 1) if harmless else (1,)) or not lines:
        raise Failed(f"inspect ended with {code}:\n{report[-1500:]}")
    try:
        if read_only:
            return f"{lines[-1]} | {serves_the_rest(server)}"
        server.start()
    except AssertionError as failure:
        if read_only:
            raise Failed(f"the server does not start or stop: {failure}") from failure
        outcome = "the server refuses to start"
    else:
        right, refused = reads(server)
        if harmless and refused:
            raise Failed(f"{refused} objects cannot be read, though one copy is left")
        outcome = f"{right} objects read, {refused} refused"
    finally:
        server.kill()
        shutil.rmtree(directory, ignore_errors=True)
    return f"{lines[-1]} | {outcome}"


def flush(server):
    """Puts small objects until the index has tables."""
    line = [server.binary, "bench", "put", "--endpoint", server.endpoint, "--bucket", "load", "--size", "1500",
            "--concurrency", "32", "--duration", "2s"]
    for _ in range(FLUSH_TRIES):
        command(line, {"AWS_ACCESS_KEY_ID": ACCESS, "AWS_SECRET_ACCESS_KEY": SECRET})
        if any((server.directory / "kv" / "tables").glob("*")):
            return
    raise Failed("the index was never flushed")


def pristine_stores(binary, scratch, wanted):
    """The stores that are wanted, each sound."""
    stores, settings = {}, scratch / "larder.toml"
    settings.write_text("log_segment_mib = 4\npg_count = 4\n")
    for kind in sorted(wanted):
        server = Server(binary, scratch / kind, ["--config", settings])
        server.start()
        fill(server)
        if kind == FLUSHED:
            flush(server)
        if kind == KILLED:
            server.kill()
        else:
            server.stop()
        code, report = server.inspect()
        if code != 0:
            raise Failed(f"{kind}: not sound before anything was planted: {code}\n{report[-1500:]}")
        stores[kind] = server.directory
    return stores


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=default_binary())
    parser.add_argument("--only", default="", help="only corruptions whose name contains this")
    arguments = parser.parse_args()
    passed = failed = 0
    with scratch_folder() as scratch:
        try:
            chosen = [corruption for corruption in CORRUPTIONS if arguments.only in corruption[0]]
            stores = pristine_stores(arguments.binary, scratch, {store for _, _, store, *_ in chosen})
        except Failed as failure:
            print(f"FAIL corrupt: {failure}\n0 passed, 1 failed")
            return 1
        for name, plant, store, *expected in chosen:
            try:
                said = one(arguments.binary, stores[store], scratch, name, plant, *expected)
                passed += 1
                print(f"found {name}: {said}", flush=True)
            except (Failed, OSError) as failure:
                failed += 1
                print(f"FAIL {name}: {failure}", flush=True)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
