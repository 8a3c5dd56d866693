"""MinIO's client, `mc`, with its defaults: objects, and its questions about the server's health, state and metrics.

    python3 tests/clients/minioclient.py [--binary PATH] [--mc PATH]
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys

from devcluster import Cluster
from harness import ACCESS, COMMAND_SECONDS, SECRET, Server, default_binary, scratch_folder
from workload import Failed


class Mc:
    """The client with one alias, `it`."""

    def __init__(self, program, scratch, port):
        self.program = program
        self.environment = {**os.environ, "MC_CONFIG_DIR": str(scratch / f"mc-{port}")}
        self.run("alias", "set", "it", f"http://127.0.0.1:{port}", ACCESS, SECRET)

    def run(self, *words, code=0):
        line = [self.program, *words]
        done = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=COMMAND_SECONDS, env=self.environment)
        if done.returncode != code:
            raise Failed(f"{line} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done.stdout


def objects(mc, scratch):
    """Folders go there and come back."""
    folder = scratch / "folder"
    for name, size in (("a", 0), ("b/c d", 5000), ("b/é", 20_000_000)):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(size))
    mc.run("mb", "it/photos")
    mc.run("mirror", str(folder), "it/photos/all")
    if mc.run("diff", str(folder), "it/photos/all"):
        raise Failed("the mirror differs")
    back = scratch / "back"
    mc.run("cp", "--recursive", "it/photos/all/", str(back))
    for path in (path for path in folder.rglob("*") if path.is_file()):
        if (back / path.relative_to(folder)).read_bytes() != path.read_bytes():
            raise Failed(f"{path} came back as something else")
    mc.run("tag", "set", "it/photos/all/a", "colour=red")
    if "red" not in mc.run("tag", "list", "it/photos/all/a"):
        raise Failed("the tag is lost")
    if json.loads(mc.run("stat", "--json", "it/photos/all/b/c d"))["size"] != 5000:
        raise Failed("stat shows another size")
    mc.run("rm", "it/photos/all/a")
    listed = [json.loads(line)["key"] for line in mc.run("ls", "--json", "--recursive", "it/photos").splitlines()]
    if listed != ["all/b/c d", "all/b/é"]:
        raise Failed(f"listed: {listed}")


def state(mc, servers, drives):
    """Health, state and metrics."""
    mc.run("ready", "it")
    shown = mc.run("admin", "info", "it")
    info = json.loads(mc.run("admin", "info", "it", "--json"))["info"]
    if len(info["servers"]) != servers or any(it["state"] != "online" for it in info["servers"]):
        raise Failed(f"servers: {info['servers']}")
    if info["backend"]["onlineDisks"] != drives or "Bucket" not in shown:
        raise Failed(f"disks or buckets: {info['backend']}\n{shown}")
    print(shown, flush=True)
    metrics = mc.run("admin", "prometheus", "metrics", "it")
    if "\nlarder_requests_total{" not in metrics:
        raise Failed(f"metrics: {metrics[:1000]}")
    families = json.loads(mc.run("admin", "prometheus", "metrics", "it", "--json"))
    print(f"{len(families)} metrics", flush=True)
    # Nothing else is there to be administered, and each says so.
    mc.run("admin", "user", "list", "it", code=1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=default_binary(), help="the larder program (default: %(default)s)")
    parser.add_argument("--mc", default=shutil.which("mc"), help="MinIO's client (default: %(default)s)")
    arguments = parser.parse_args()
    if not arguments.mc:
        sys.exit("mc is not installed: name it with --mc")
    with scratch_folder() as scratch:
        server = Server(arguments.binary, scratch / "store")
        cluster = Cluster(arguments.binary, scratch / "cluster", 3)
        try:
            server.start()
            mc = Mc(arguments.mc, scratch, server.port)
            objects(mc, scratch)
            state(mc, 1, 1)
            server.kill()
            cluster.start()
            mc = Mc(arguments.mc, pathlib.Path(scratch), cluster.proxies[0].port)
            shutil.rmtree(scratch / "back")
            objects(mc, scratch)
            state(mc, 12, 3)
            passed = 1
        except (Failed, subprocess.TimeoutExpired) as failure:
            print(f"FAIL {failure}", flush=True)
            passed = 0
        finally:
            server.kill()
            cluster.kill_all()
    print(f"{passed} passed, {1 - passed} failed")
    return 1 - passed


if __name__ == "__main__":
    sys.exit(main())
