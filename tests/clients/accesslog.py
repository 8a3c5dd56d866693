"""The access log of a real server: a line for each request, which says what the client was told; off, on and elsewhere by SIGHUP; a
file that was moved away is made anew, as logrotate has it, and no request is lost of those that run meanwhile.

Names of objects with quotes, line breaks and what looks like a line of the log stay within their own line. Nothing of a presigned
URL's signature is in it. A full disk costs lines, which are counted, and no request. A proxy of a cluster of equal machines and a packed store do
the same. At the default level the server's own log has nothing of what clients are refused.

    python3 tests/clients/accesslog.py [--binary PATH]
"""

import argparse
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

from botocore.exceptions import ClientError
from harness import ACCESS, COMMAND_SECONDS, PackServer, Server, default_binary, scratch_folder
from peers import Machine, equal_machines, ready, secret_file
from workload import Failed

WRITTEN_SECONDS = 10
BUCKET = "seen"
FIELDS = ["v", "time", "request", "client", "client_port", "forwarded_for", "user", "op", "bucket", "key", "status", "code",
          "bytes_in", "bytes_out", "took_us"]
NAMES = ["plain", 'quo"te\\', "line\nbreak", '{"v":1,"status":200}', "späth/ 😀", "%2F+%00"]
ROTATIONS = 5


def lines(path):
    """The whole lines of a file that may be written meanwhile; each must be JSON with all fields."""
    read = [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]] if path.exists() else []
    for line in read:
        if list(line) != FIELDS or line["v"] != 1:
            raise Failed(f"not a line of version 1: {line}")
    return read


def metric(server, name):
    with urllib.request.urlopen(server.metrics_url(), timeout=5) as answer:
        return float(re.search(rf"^larder_{name} (\S+)", answer.read().decode(), re.MULTILINE)[1])


def until(what, is_so):
    deadline = time.monotonic() + WRITTEN_SECONDS
    while not is_so():
        if time.monotonic() > deadline:
            raise Failed(f"{what}: not within {WRITTEN_SECONDS} s")
        time.sleep(0.02)


def configure(server, where, more=""):
    """Writes the setting, and tells the server if it runs; the file it tells to."""
    server.config.write_text(f'{more}access_log = "{where}"\n')
    if server.process is not None:
        before = server.log.read_text(errors="replace").count("SIGHUP")
        server.signal(signal.SIGHUP)
        until("SIGHUP", lambda: server.log.read_text(errors="replace").count("SIGHUP") > before)


def refused(ask):
    try:
        ask()
    except (ClientError, urllib.error.HTTPError):
        return
    raise Failed("it was not refused")


def check_lines(server, path):
    """A line for each request, which says what the client was told."""
    s3 = server.boto3()
    s3.create_bucket(Bucket=BUCKET)
    for name in NAMES:
        s3.put_object(Bucket=BUCKET, Key=name, Body=b"12345")
    refused(lambda: s3.get_object(Bucket=BUCKET, Key="none"))
    refused(lambda: urllib.request.urlopen(f"{server.endpoint}/{BUCKET}/plain", timeout=10))
    answer = s3.get_object(Bucket=BUCKET, Key="plain")
    answer["Body"].read()
    url = server.boto3(signature_version="s3v4").generate_presigned_url("get_object", Params={"Bucket": BUCKET, "Key": "plain"})
    urllib.request.urlopen(urllib.request.Request(url, headers={"X-Forwarded-For": "192.0.2.1"}), timeout=10).read()
    wanted = [("CreateBucket", 200, None, ACCESS, None, 0, 0)]
    wanted += [("PutObject", 200, None, ACCESS, name, 5, 0) for name in NAMES]
    wanted += [("GetObject", 404, "NoSuchKey", ACCESS, "none", 0, None), ("GetObject", 403, "AccessDenied", None, "plain", 0, None)]
    wanted += [("GetObject", 200, None, ACCESS, "plain", 0, 5)] * 2
    until("lines", lambda: len(lines(path)) >= len(wanted))
    read = lines(path)
    if len(read) != len(wanted):
        raise Failed(f"{len(read)} lines of {len(wanted)} requests")
    for line, (op, status, code, user, key, bytes_in, bytes_out) in zip(read, wanted):
        told = (line["op"], line["status"], line["code"], line["user"], line["key"], line["bytes_in"])
        if told != (op, status, code, user, key, bytes_in) or bytes_out not in (None, line["bytes_out"]):
            raise Failed(f"{line} of {(op, status, code, user, key, bytes_in, bytes_out)}")
        if (line["bucket"], line["client"]) != (BUCKET, "127.0.0.1") or not line["took_us"]:
            raise Failed(f"{line}")
    if read[-2]["request"] != answer["ResponseMetadata"]["RequestId"] or read[-1]["forwarded_for"] != "192.0.2.1":
        raise Failed(f"{read[-2:]}")
    if re.search("X-Amz|Signature|Credential", path.read_text()):
        raise Failed("something of a signature is in the log")
    if re.search("WARN|ERROR", server.log.read_text(errors="replace")):
        raise Failed(f"the server's own log has what clients were refused:\n{server.log_tail()}")


def check_rotation(server, path):
    """Files are moved away while clients write: every request is in one of them."""
    s3, put_keys, done = server.boto3(), [], threading.Event()

    def put():
        while not done.is_set():
            s3.put_object(Bucket=BUCKET, Key=f"rotated-{len(put_keys)}", Body=b"x")
            put_keys.append(f"rotated-{len(put_keys)}")

    load = threading.Thread(target=put)
    load.start()
    try:
        for number in range(ROTATIONS):
            path.rename(path.with_suffix(f".{number}"))
            server.signal(signal.SIGHUP)
            until("a new file", path.exists)
            time.sleep(0.1)
            if not load.is_alive():
                raise Failed("puts ended while files were moved away")
    finally:
        done.set()
        load.join()
    files = [path, *(path.with_suffix(f".{number}") for number in range(ROTATIONS))]

    def seen():
        keys = [line["key"] for file in files for line in lines(file)]
        return sorted(key for key in keys if key and key.startswith("rotated-"))
    until("all puts", lambda: len(seen()) >= len(put_keys))
    if seen() != sorted(put_keys):
        raise Failed("puts are missing, or twice in the log")


def check_switch(server, path):
    """Off, elsewhere, and what cannot be used: by SIGHUP, while it serves."""
    s3, other = server.boto3(), path.with_suffix(".other")
    configure(server, "off")
    before = len(lines(path))
    s3.head_bucket(Bucket=BUCKET)
    configure(server, other)
    s3.head_bucket(Bucket=BUCKET)
    until("a line elsewhere", lambda: len(lines(other)) == 1)
    if len(lines(path)) != before:
        raise Failed("a line while it was off")
    for wrong in ["relative", path / "no" / "such"]:
        configure(server, wrong)
        s3.head_bucket(Bucket=BUCKET)
    until("the log stays where it is", lambda: len(lines(other)) == 3)
    if server.log.read_text(errors="replace").count("stays where it is") != 2:
        raise Failed(f"nobody says that the setting cannot be used:\n{server.log_tail()}")
    configure(server, "/dev/full")
    s3.put_object(Bucket=BUCKET, Key="full", Body=b"x")
    until("dropped", lambda: metric(server, "access_log_dropped_total") == 1)
    until("the loss in the log", lambda: "the access log lost lines" in server.log.read_text(errors="replace"))
    configure(server, path)


def check_refused(binary, folder):
    """A start whose log cannot be opened ends with code 3 and says why."""
    config = folder / "refused.toml"
    pipe = folder / "pipe"
    os.mkfifo(pipe)
    for where, code in [(folder / "none" / "a.log", 3), (pipe, 3), ("a.log", 2)]:
        config.write_text(f'access_log = "{where}"\n')
        line = [binary, "server", folder / "refused", "--config", config, "--listen", "127.0.0.1:0", "--metrics-listen", "off"]
        done = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=COMMAND_SECONDS)
        if done.returncode != code or "access_log" not in done.stderr:
            raise Failed(f"{where}: {done.returncode}, {done.stderr}")


class Logging(Machine):
    """A machine of a cluster with an access log."""

    def flags(self):
        flags = super().flags()
        self.config, self.access = self.directory.with_suffix(".toml"), self.directory.with_suffix(".access")
        self.config.write_text(f'{self.config.read_text()}access_log = "{self.access}"\n')
        return flags


def check_cluster(binary, folder):
    """Each machine logs what its own clients ask."""
    secret = secret_file(binary, folder / "secret")
    machines = equal_machines(Logging, binary, folder, secret)
    try:
        for machine in machines:
            machine.spawn()
        ready(machines)
        machines[0].boto3().create_bucket(Bucket=BUCKET)
        for number, machine in enumerate(machines):
            machine.boto3().put_object(Bucket=BUCKET, Key=f"of-{number}", Body=b"x")
        for number, machine in enumerate(machines):
            until("a put", lambda: [line["key"] for line in lines(machine.access) if line["key"]] == [f"of-{number}"])
        moved = machines[0].access.with_suffix(".1")
        machines[0].access.rename(moved)
        machines[0].signal(signal.SIGHUP)
        until("a new file", machines[0].access.exists)
        ready(machines)
    finally:
        for machine in machines:
            machine.kill()


def check_pack(binary, folder):
    """The same of a packed store; what was queued is written before the process ends."""
    config, path = folder / "pack.toml", folder / "pack.access"
    config.write_text(f'access_log = "{path}"\n')
    server = PackServer(binary, folder / "worker", folder / "blobs", ["--config", config]).start()
    try:
        s3 = server.boto3()
        s3.create_bucket(Bucket=BUCKET)
        s3.put_object(Bucket=BUCKET, Key="k", Body=b"x")
        if server.stop() != 0:
            raise Failed(f"a stop failed:\n{server.log_tail()}")
    finally:
        server.kill()
    if [line["op"] for line in lines(path)] != ["CreateBucket", "PutObject"]:
        raise Failed(f"{lines(path)}")


def check_server(binary, folder):
    path = folder / "access.log"
    server = Server(binary, folder / "store")
    server.config = folder / "store.toml"
    server.extra = ["--config", server.config]
    configure(server, path)
    server.start()
    try:
        check_lines(server, path)
        check_rotation(server, path)
        check_switch(server, path)
        if server.stop() != 0:
            raise Failed(f"a stop failed:\n{server.log_tail()}")
    finally:
        server.kill()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=pathlib.Path, default=default_binary())
    args = parser.parse_args()
    with scratch_folder() as folder:
        try:
            check_server(args.binary, folder)
            print("a line for each request, through rotations, switches and a full disk", flush=True)
            check_refused(args.binary, folder)
            check_pack(args.binary, folder)
            print("a packed store", flush=True)
            check_cluster(args.binary, folder)
        except (Failed, AssertionError) as failure:
            print(f"FAIL accesslog: {failure}\n0 passed, 1 failed")
            return 1
    print("1 passed, 0 failed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
