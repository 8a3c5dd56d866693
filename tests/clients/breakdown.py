"""`larder status --breakdown`: known puts, gets and appends of a single node, then of a cluster, are in the cells of the tables that
they belong in, and in no others. A server that is down is named as not counted, and a packed store has no such tables.

    python3 tests/clients/breakdown.py [--binary PATH]
"""

import argparse
import json
import pathlib
import signal
import subprocess
import sys

from botocore.exceptions import ClientError
from devcluster import Cluster
from harness import COMMAND_SECONDS, PackServer, Server, content, default_binary, scratch_folder
from peers import until
from workload import Failed

BUCKET = "known"
APPLIED_SECONDS, COUNTED_SECONDS = 10, 10
KIB, MIB = 1024, 1024 * 1024
PUTS = {"tiny": 100, "kib": KIB, "empty": 0, "eight": 8 * KIB, "mib": MIB, "large": 9 * MIB}
RECORDS, RECORD_BYTES = 3, 100
# Gets of bytes, of a range, and of what is not there.
GETS = ["tiny", "tiny", "eight", "mib"]
RANGE_BYTES = 10

# What the command prints of these, but for times.
TABLES = """\
operations of clients by size, % (Table 4)
                      read       write      append
0                     16.7        16.7         0.0
1B..1K                50.0        16.7       100.0
1K..8K                 0.0        16.7         0.0
8K..64K               16.7        16.6         0.0
64K..128K              0.0         0.0         0.0
128K..256K             0.0         0.0         0.0
256K..512K             0.0         0.0         0.0
512K..1M               0.0         0.0         0.0
1M..inf               16.6        33.3         0.0
operations               6           6           3

bytes of objects by size of operation, % (Table 5)
                      read       write      append
0                      0.0         0.0         0.0
1B..1K               < 0.1       < 0.1       100.0
1K..8K                 0.0       < 0.1         0.0
8K..64K                0.8         0.1         0.0
64K..128K              0.0         0.0         0.0
128K..256K             0.0         0.0         0.0
256K..512K             0.0         0.0         0.0
512K..1M               0.0         0.0         0.0
1M..inf               99.2        99.9         0.0
bytes              1.0 MiB    10.0 MiB       300 B
"""
# Requests to meta servers that clients' own make, whichever way the servers go about them. A large object is a put of each of its
# two chunks, and of what makes them an object.
REQUESTS = {"put": 6, "put_chunk": 2, "append": RECORDS, "delete": 1}


def breakdown(binary, directory, *words, expect=0):
    """What the command prints, and on stderr."""
    line = [binary, "status", directory, "--breakdown", *words]
    done = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=COMMAND_SECONDS)
    if done.returncode != expect:
        raise Failed(f"{line} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout, done.stderr


def sums(document, table, value="ops"):
    """Of a table, by kind: all sizes together."""
    found = {}
    for count in document["counts"]:
        if count["table"] == table:
            found[count["kind"]] = found.get(count["kind"], 0) + count[value]
    return found


def work(clients, rest):
    """The requests, each by the next of some clients."""
    turns = iter(range(10**6))

    def s3():
        return clients[next(turns) % len(clients)]

    s3().create_bucket(Bucket=BUCKET)
    rest()
    for key, size in PUTS.items():
        s3().put_object(Bucket=BUCKET, Key=key, Body=content(key, size))
    for _ in range(RECORDS):
        add = {"x-larder-append": "record"}

        def give(params, **_):
            params["headers"].update(add)

        client = s3()
        client.meta.events.register("before-call.s3.PutObject", give)
        client.put_object(Bucket=BUCKET, Key="log", Body=b"r" * RECORD_BYTES)
        client.meta.events.unregister("before-call.s3.PutObject", give)
    rest()
    for key in GETS:
        s3().get_object(Bucket=BUCKET, Key=key)["Body"].read()
    s3().get_object(Bucket=BUCKET, Key="large", Range=f"bytes=0-{RANGE_BYTES - 1}")["Body"].read()
    try:
        s3().get_object(Bucket=BUCKET, Key="nothing")
    except ClientError as error:
        if error.response["Error"]["Code"] != "NoSuchKey":
            raise
    # These move no bytes.
    s3().head_object(Bucket=BUCKET, Key="tiny")
    s3().list_objects_v2(Bucket=BUCKET)
    s3().delete_object(Bucket=BUCKET, Key="tiny")


def check_tables(binary, directory, are_repeated=False):
    """Both forms; the document. Proxies of a cluster may make a request again, as its servers have just begun."""
    text, _ = breakdown(binary, directory)
    lines = [line for line in text.splitlines(keepends=True) if not line.startswith("ms ")]
    if TABLES not in "".join(lines):
        raise Failed(f"the tables are\n{text}\nin place of\n{TABLES}")
    document = json.loads(breakdown(binary, directory, "--json")[0])
    requests = sums(document, "meta")
    made = {kind: min(requests.get(kind, 0), count) if are_repeated else requests.get(kind) for kind, count in REQUESTS.items()}
    if made != REQUESTS:
        raise Failed(f"{requests} in place of {REQUESTS}")
    # Each get, each head and the append before each record look their key up at least once.
    if requests["look_up"] + requests.get("look_up_open", 0) < len(GETS) + 2:
        raise Failed(f"too few looked up: {requests}")
    if requests["list"] < 1 or sums(document, "client", "bytes")["append"] != RECORDS * RECORD_BYTES:
        raise Failed(f"{document}")
    return text, document


def check_disk(document, copies):
    """Objects of more than 2 KiB are written once for each copy: two, and one of two chunks."""
    written = {count["size"]: count["ops"] for count in document["counts"] if (count["table"], count["kind"]) == ("disk", "write")}
    if written != {"8K..64K": copies, "1M..inf": 3 * copies}:
        raise Failed(f"written: {written}, with {copies} copies")


def check_node(binary, folder):
    server = Server(binary, folder / "store").start()
    try:
        def rest():
            until("the index shows all", APPLIED_SECONDS, lambda: server.metric("larder_unapplied_ops") == 0, [], server.log_tail)

        work([server.boto3()], rest)
        text, document = check_tables(binary, server.directory)
        check_disk(document, 1)
        ages = [told.pop("age_s") for told in document["servers"]]
        alone = [{"name": str(server.directory), "role": "store", "is_counted": True}]
        if document["servers"] != alone or not 0 <= ages[0] <= COMMAND_SECONDS:
            raise Failed(f"{document['servers']}, {ages} s old")
        # Puts with data end with an outcome that nobody waits for.
        if sums(document, "meta")["commit"] != 4:
            raise Failed(f"{sums(document, 'meta')}")
        print(text, flush=True)
    finally:
        server.kill()
    _, said = breakdown(binary, server.directory, expect=1)
    if "no server runs on" not in said:
        raise Failed(said)


def check_cluster(binary, folder):
    cluster = Cluster(binary, folder / "cluster", 3, ["--no-restart"])
    cluster.start()
    try:
        work([proxy.boto3() for proxy in cluster.proxies], lambda: None)
        text, document = check_tables(binary, cluster.directory, are_repeated=True)
        check_disk(document, 3)
        roles = sorted(server["role"] for server in document["servers"] if server["is_counted"])
        if roles != ["data"] * 3 + ["meta"] * 3 + ["proxy"] * 3:
            raise Failed(f"{document['servers']}")
        print(text, flush=True)
        cluster.signal(2, "data", signal.SIGKILL)

        def names_it():
            line = [binary, "status", cluster.directory, "--breakdown"]
            done = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=COMMAND_SECONDS)
            return done.returncode == 1 and "of 8 of 9" in done.stdout and "NOT COUNTED: node-3-data (data) is down" in done.stdout

        until("a server that is down is named", COUNTED_SECONDS, names_it, [], cluster.log_tail)
    finally:
        cluster.stop()


def check_pack(binary, folder):
    server = PackServer(binary, folder / "pack", folder / "blobs").start()
    try:
        _, said = breakdown(binary, server.directory, expect=2)
        if "--breakdown is of stores and clusters" not in said:
            raise Failed(said)
    finally:
        server.kill()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=pathlib.Path, default=default_binary())
    args = parser.parse_args()
    with scratch_folder() as folder:
        try:
            check_node(args.binary, folder)
            check_cluster(args.binary, folder)
            check_pack(args.binary, folder)
        except (Failed, AssertionError) as failure:
            print(f"FAIL breakdown: {failure}\n0 passed, 1 failed")
            return 1
    print("1 passed, 0 failed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
