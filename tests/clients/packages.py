"""What `cargo xtask dist` makes is installed and started.

- The Debian package, on a machine with systemd (`box.py`): its user, its unit and how little that may do; it serves, comes
  back after a kill, keeps the operator's settings, stays stopped when they are wrong, and leaves the objects when it goes.
- The image, as its configuration says it is run: as its own user, in a file system that has nothing else and is read-only
  but for the store.
- The chart: linted, rendered, refused where values are missing; its three machines run from the image with the command line
  that it renders, each with a network of its own, find each other by DNS, and serve.

    python3 tests/clients/packages.py [--binary PATH | --dist DIR] [--only deb|image|chart]

With --binary (or LARDER_TEST_BINARY) packages are made of that program. Without either the release is built. Needs root.
"""

import argparse
import contextlib
import gzip
import hashlib
import json
import os
import pathlib
import re
import shutil
import socket
import struct
import subprocess
import sys
import tarfile
import threading
import time
import urllib.request

import boto3
import yaml
from botocore.config import Config

from box import Box
from harness import ACCESS, SECRET, default_binary, scratch_folder
from netspace import Network, die_with_parent
from workload import Failed

ROOT = pathlib.Path(__file__).resolve().parents[2]
HELM = ROOT / "target" / "clients" / "bin" / "helm"
READY_SECONDS = 60
# How much the unit may do, as `systemd-analyze security` counts, of 100.
EXPOSURE_MAX = 20
USER = "65532"
# What a client does inside the box, where it has its keys from.
CLIENT = """
import re, sys, boto3
from botocore.config import Config
keys = dict(re.findall(r'^(\w+) = "([^"]+)"', open("/var/lib/larder/credentials.toml").read(), re.M))
s3 = boto3.client("s3", endpoint_url="http://127.0.0.1:9000", region_name="us-east-1",
                  aws_access_key_id=keys["access_key"], aws_secret_access_key=keys["secret_key"],
                  config=Config(retries={"max_attempts": 8}))
if sys.argv[1] == "put":
    s3.create_bucket(Bucket="box")
    s3.put_object(Bucket="box", Key="kept", Body=b"x" * 100_000)
assert s3.get_object(Bucket="box", Key="kept")["Body"].read() == b"x" * 100_000
"""


def expect(is_so, what):
    if not is_so:
        raise Failed(what)


def until(what, look, within=READY_SECONDS):
    """Waits until a look finds something; that."""
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            if found := look():
                return found
        time.sleep(0.1)
    raise Failed(f"{what}: not within {within} s")


def make(binary, into):
    """The packages of a program; of the release, which is built, if it is None."""
    named = ["--binary", str(binary)] if binary else []
    # The one that was built with the program, if it was: cargo would wait for whatever builds at the moment.
    built = binary.with_name("xtask") if binary else None
    xtask = [str(built)] if built and built.exists() else ["cargo", "xtask"]
    subprocess.run([*xtask, "dist", "--into", str(into), *named], cwd=ROOT, check=True, stdin=subprocess.DEVNULL)
    return into


def one(folder, pattern):
    found = sorted(folder.glob(pattern))
    expect(len(found) == 1, f"{pattern} in {folder}: {found}")
    return found[0]


def deb(dist, folder):
    package = one(dist, "larder_*.deb")
    inside = "/var/larder.deb"
    with Box(folder / "box", {inside.lstrip("/"): package}) as box:
        said = box.run("dpkg", "--install", inside).stdout
        expect("systemctl enable --now larder" in said, f"the installation does not say how to start:\n{said}")
        expect(active(box) == "inactive", "the service was started by its installation")
        box.run("systemd-analyze", "verify", "/usr/lib/systemd/system/larder.service")
        judged = box.run("systemd-analyze", "security", "--no-pager", f"--threshold={EXPOSURE_MAX}", "larder.service").stdout
        print(judged.strip().splitlines()[-1], flush=True)
        told = box.run("larder", "status", "/var/lib/larder", expect=None)
        expect(told.returncode != 0, "a store that is not there is well")
        fit = box.run("larder", "doctor", "/var/lib/larder", "--config", "/etc/larder/larder.toml").stdout
        expect("fit for larder server" in fit and "FAULT" not in fit, f"the machine before the first start:\n{fit}")

        box.run("systemctl", "enable", "--now", "larder")
        until("the service serves", lambda: ready(box))
        client(box, "put")
        pid = box.run("systemctl", "show", "--property=MainPID", "--value", "larder").stdout.strip()
        runs_as = box.run("stat", "-c", "%U", f"/proc/{pid}").stdout.strip()
        expect(runs_as == "larder", f"the service runs as {runs_as}")
        mode = box.run("stat", "-c", "%a %U", "/var/lib/larder").stdout.strip()
        expect(mode == "700 larder", f"the store's directory is {mode}")
        state = box.run("larder", "status", "/var/lib/larder").stdout
        expect(state.startswith("well: "), f"the status of a new store:\n{state}")
        expect(re.search(r"buckets: 1, with 1 objects of 97\.7 KiB", state), f"the status of a store with an object:\n{state}")
        print(state.splitlines()[0], flush=True)
        denied = box.run("larder", "status", "/var/lib/larder", user="nobody", expect=None)
        expect(denied.returncode == 3 and "Permission denied" in denied.stderr, f"the status for nobody: {denied}")

        fit = box.run("larder", "doctor", "/var/lib/larder", "--config", "/etc/larder/larder.toml", user="larder").stdout
        expect("a server runs on it" in fit and "FAULT" not in fit, f"the machine while it serves:\n{fit}")

        box.run("kill", "-KILL", pid)
        until("the service is back", lambda: ready(box) and box.run(
            "systemctl", "show", "--property=MainPID", "--value", "larder").stdout.strip() != pid)
        client(box, "get")

        settings = "/etc/larder/larder.toml"
        box.run("sed", "-i", '$a metrics_listen = "127.0.0.1:9009"', settings)
        box.run("dpkg", "--install", inside)
        expect(ready(box), "the installation of the same release stopped the service")
        expect("9009" in box.run("cat", settings).stdout, "the installation took the operator's settings away")
        box.run("systemctl", "restart", "larder")
        until("the service serves", lambda: ready(box))
        expect("larder_ready 1" in fetch(box, "http://127.0.0.1:9009/metrics"), "the operator's setting is not heeded")

        box.run("sed", "-i", "$a listn = 1", settings)
        box.run("systemctl", "restart", "larder", expect=None)
        until("the service fails", lambda: active(box) == "failed")
        shown = box.run("systemctl", "show", "--property=ExecMainStatus", "--property=NRestarts", "larder").stdout
        expect("ExecMainStatus=2" in shown, f"wrong settings: {shown}")
        time.sleep(3)
        expect(active(box) == "failed", "a service with wrong settings was started again")
        box.run("sed", "-i", "$d", settings)
        box.run("systemctl", "reset-failed", "larder")
        box.run("systemctl", "start", "larder")
        until("the service serves", lambda: ready(box))
        client(box, "get")

        box.run("sh", "-c", f"printf '%s\n' 'access_log = \"/var/log/larder/access.log\"' >> {settings}")
        box.run("systemctl", "reload", "larder")
        until("the access log", lambda: box.run("test", "-f", "/var/log/larder/access.log", expect=None).returncode == 0)

        # Another has its port for a while, as after a power cut something may come later than it.
        box.run("systemctl", "stop", "larder")
        box.run("systemd-run", "--unit=other", "--property=Type=exec", "python3", "-c",
                "import socket; socket.create_server(('127.0.0.1', 9000)).accept()")
        # It listens (state 0A) before the service begins.
        until("another has the port", lambda: box.run("grep", "-q", ":2328 .* 0A ", "/proc/net/tcp", expect=None).returncode == 0)
        box.run("systemctl", "start", "--no-block", "larder")
        until("it is started again", lambda: int(box.run(
            "systemctl", "show", "--property=NRestarts", "--value", "larder").stdout) >= 1)
        box.run("systemctl", "stop", "other")
        until("the service serves", lambda: ready(box))

        page = box.run("man", "--pager=cat", "larder-server").stdout
        expect("secret-file" in page, f"the man page:\n{page[:500]}")
        words = box.run("bash", "-c", "source /usr/share/bash-completion/completions/larder; COMP_WORDS=(larder sta); "
                        "COMP_CWORD=1; _larder larder sta larder; echo ${COMPREPLY[@]}").stdout
        expect(words.strip() == "status", f"`larder sta` completes to {words!r}")

        box.run("dpkg", "--remove", "larder")
        expect(active(box) != "active", "a removal leaves the service running")
        said = box.run("dpkg", "--purge", "larder").stdout
        expect("left as they are" in said, f"a purge does not say what stays:\n{said}")
        box.run("test", "-s", "/var/lib/larder/manager/map")
        box.run("test", "!", "-e", "/etc/larder/larder.toml")
    return 1


def active(box):
    return box.run("systemctl", "is-active", "larder", expect=None).stdout.strip()


def fetch(box, url):
    return box.run("python3", "-c", f"import urllib.request; print(urllib.request.urlopen({url!r}, timeout=5).read().decode())").stdout


def ready(box):
    line = "import urllib.request; urllib.request.urlopen('http://127.0.0.1:9000/readyz', timeout=5)"
    return box.run("python3", "-c", line, expect=None).returncode == 0


def client(box, does):
    box.run(sys.executable, "-c", CLIENT, does)


class Image:
    """An image, unpacked as a container engine does it: every digest checked, its configuration heeded."""

    def __init__(self, archive, folder):
        layout = folder / "layout"
        with tarfile.open(archive) as tar:
            tar.extractall(layout, filter="data")
        expect(json.loads((layout / "oci-layout").read_text()) == {"imageLayoutVersion": "1.0.0"}, "oci-layout")
        index = json.loads((layout / "index.json").read_text())
        self.layout = layout
        manifest = json.loads(self.blob(index["manifests"][0]))
        self.config = json.loads(self.blob(manifest["config"]))
        layers = [gzip.decompress(self.blob(layer)) for layer in manifest["layers"]]
        digests = ["sha256:" + hashlib.sha256(layer).hexdigest() for layer in layers]
        expect(digests == self.config["rootfs"]["diff_ids"], f"layers are {digests}")
        self.tar = folder / "layer.tar"
        self.tar.write_bytes(layers[0])
        expect(len(layers) == 1, "more than a layer")

    def blob(self, named):
        bytes_ = (self.layout / "blobs" / named["digest"].replace(":", "/")).read_bytes()
        expect(len(bytes_) == named["size"], f"{named} has {len(bytes_)} bytes")
        expect("sha256:" + hashlib.sha256(bytes_).hexdigest() == named["digest"], f"{named} has other bytes")
        return bytes_

    def unpack(self, root):
        root.mkdir()
        subprocess.run(["tar", "--extract", "--numeric-owner", "--same-permissions", "--file", self.tar, "--directory", root], check=True)
        return root

    def run(self, root, arguments, log, inside, store, environment=None):
        """Runs it in a root that is read-only but for its volume."""
        expect(self.config["config"]["User"] == f"{USER}:{USER}", "its user")
        store.mkdir()
        # As Kubernetes gives a volume to a group; an engine gives it what the image has.
        os.chown(store, 0, int(USER))
        os.chmod(store, 0o2775)
        for name in ("proc", "dev"):
            (root / name).mkdir()
        script = """
            mount --bind "$1" "$1"; mount --bind "$2" "$1/var/lib/larder"
            mount -t proc proc "$1/proc"; mount --rbind /dev "$1/dev"
            mount -o remount,bind,ro "$1"
            root=$1; shift 2
            exec chroot --userspec="$USER_OF_IT" --groups= "$root" "$@"
        """
        line = ["unshare", "--mount", "--propagation", "private", "sh", "-e", "-c", script, "image", root, store,
                *self.config["config"]["Entrypoint"], *arguments]
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "USER_OF_IT": self.config["config"]["User"], **(environment or {})}
        with log.open("ab") as output:
            return subprocess.Popen([*inside, *map(str, line)], stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                                    env=environment, preexec_fn=die_with_parent)


def s3_of(address, access, secret):
    return boto3.client("s3", endpoint_url=f"http://{address}:9000", region_name="us-east-1", aws_access_key_id=access,
                        aws_secret_access_key=secret, config=Config(retries={"max_attempts": 8}))


def is_ready(address):
    with urllib.request.urlopen(f"http://{address}:9000/readyz", timeout=5) as answer:
        return answer.status == 200


def image(dist, folder, network):
    """As its configuration says, with nothing added."""
    network.host("single", "10.78.0.1")
    made = Image(one(dist, "*.oci.tar"), folder)
    root, log = made.unpack(folder / "single"), folder / "single.log"
    inside = network.inside("single", [])
    process = made.run(root, made.config["config"]["Cmd"], log, inside, folder / "single-store")
    try:
        until(f"the image serves ({log.read_text() if log.exists() else ''})", lambda: is_ready("10.78.0.1"))
        keys = (folder / "single-store/credentials.toml").read_text()
        access, secret = re.findall(r'= "([^"]+)"', keys)[:2]
        s3 = s3_of("10.78.0.1", access, secret)
        s3.create_bucket(Bucket="image")
        s3.put_object(Bucket="image", Key="key", Body=b"y" * 100_000)
        expect(s3.get_object(Bucket="image", Key="key")["Body"].read() == b"y" * 100_000, "it reads otherwise")
        with urllib.request.urlopen("http://10.78.0.1:9001/metrics", timeout=5) as answer:
            expect(b"larder_ready 1" in answer.read(), "its metrics")
        process.terminate()
        expect(process.wait(20) == 0, f"it ended with {process.returncode}:\n{log.read_text()[-2000:]}")
    except Failed as failure:
        raise Failed(f"{failure}\n{log.read_text()[-3000:]}") from failure
    finally:
        process.kill()
        process.wait()
    return 1


def answer_names(network, host, address, names):
    """A name server in a network of its own: A records of these names, nothing else."""
    bound = threading.Event()

    def serve():
        network.enter(host)
        server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        server.bind((address, 53))
        bound.set()
        while True:
            query, client_address = server.recvfrom(512)
            server.sendto(answer_of(query, names), client_address)

    threading.Thread(target=serve, daemon=True).start()
    expect(bound.wait(READY_SECONDS), "no name server")


def answer_of(query, names):
    """The answer to one question (RFC 1035, section 4)."""
    at, labels = 12, []
    while length := query[at]:
        labels.append(query[at + 1:at + 1 + length].decode())
        at += 1 + length
    kind = struct.unpack(">H", query[at + 1:at + 3])[0]
    found, answers = names.get(".".join(labels).lower()), b""
    if found and kind == 1:
        answers = b"\xc0\x0c" + struct.pack(">HHIH", 1, 1, 1, 4) + socket.inet_aton(found)
    code = 0 if found else 3
    head = query[:2] + struct.pack(">HHHHH", 0x8180 | code, 1, 1 if answers else 0, 0, 0)
    return head + query[12:at + 5] + answers


def helm(*line, code=0):
    done = subprocess.run([HELM, *map(str, line)], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    expect(done.returncode == code, f"helm {' '.join(map(str, line))} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def rendered(chart_file, folder):
    """What the chart makes of the values that it asks for, by kind and name."""
    given = {
        "image": {"repository": "registry.example/larder"}, "secret": "keys", "serviceMonitor": {"enabled": True},
        "settings": {"log_format": "json", "stop_notice": "5s", "background_mib_per_s": 48, "html_forms": False, "domains": ["s3.example"]},
    }

    def template(code=0, namespace="store", release="larder", **other):
        values = folder / "values.yaml"
        values.write_text(yaml.safe_dump({key: value for key, value in (given | other).items() if value is not None}))
        helm("lint", "--strict", chart_file, "--values", values, code=code if namespace == "store" else 0)
        return helm("template", release, chart_file, "--namespace", namespace, "--values", values, code=code)

    for field, other in (("repository", {"image": {}}), ("secret", {"secret": None}), ("replicas", {"replicas": 2}),
                         ("replica", {"replica": 5}), ("settings", {"settings": {"listen": "x"}})):
        said = template(code=1, **other)
        expect(field in said, f"{other} is refused with:\n{said}")
    said = template(code=1, namespace="n" * 50, release="r" * 20)
    expect("80 characters" in said, f"names that are too long are refused with:\n{said}")
    return {(it["kind"], it["metadata"]["name"]): it for it in yaml.safe_load_all(template()) if it}


def chart(dist, folder, network):
    made = Image(one(dist, "*.oci.tar"), folder)
    parts = rendered(one(dist, "larder-chart-*.tgz"), folder)
    machines = parts["StatefulSet", "larder"]["spec"]
    pod = machines["template"]["spec"]
    container = pod["containers"][0]
    service = parts["Service", "larder-m"]["spec"]
    expect(service["publishNotReadyAddresses"] is True and service["clusterIP"] == "None", "names before they are ready")
    labels = machines["template"]["metadata"]["labels"]
    for kind, name in (("Service", "larder"), ("Service", "larder-m")):
        selector = parts[kind, name]["spec"]["selector"]
        expect(selector.items() <= labels.items(), f"{name} selects {selector}, machines have {labels}")
    expect(parts["ServiceMonitor", "larder"]["spec"]["selector"]["matchLabels"].items()
           <= parts["Service", "larder-m"]["metadata"]["labels"].items(), "what is scraped")
    expect(container["image"] == f"registry.example/larder:{made.config['config']['Labels']['org.opencontainers.image.version']}", container["image"])
    expect(str(pod["securityContext"]["runAsUser"]) == USER == str(pod["securityContext"]["fsGroup"]), "its user")

    names = {f"larder-{at}": f"10.78.1.{at + 1}" for at in range(machines["replicas"])}
    domain = f"{machines['serviceName']}.store.svc.cluster.local"
    settings = parts["ConfigMap", "larder"]["data"]["larder.toml"]
    expect("background_mib_per_s = 48\n" in settings + "\n" and 'domains = ["s3.example"]' in settings, f"the settings:\n{settings}")
    network.host("dns", "10.78.2.1")
    answer_names(network, "dns", "10.78.2.1", {f"{name}.{domain}": address for name, address in names.items()})
    peers = None
    processes, logs = [], []
    try:
        for name, address in names.items():
            network.host(name, address)
            root = made.unpack(folder / name)
            peers = peers or subprocess.run([root / "usr/bin/larder", "secret"], capture_output=True, text=True, check=True).stdout
            give(root, parts, peers)
            logs.append(folder / f"{name}.log")
            environment = {"POD_NAME": name, "LARDER_ROOT_ACCESS_KEY": ACCESS, "LARDER_ROOT_SECRET_KEY": SECRET}
            arguments = [word.replace("$(POD_NAME)", name) for word in container["args"]]
            processes.append(made.run(root, arguments, logs[-1], network.inside(name, []), folder / f"{name}-store", environment))
        for address in names.values():
            until(f"{address} is ready", lambda address=address: is_ready(address))
        first, last = list(names.values())[0], list(names.values())[-1]
        s3_of(first, ACCESS, SECRET).create_bucket(Bucket="chart")
        s3_of(first, ACCESS, SECRET).put_object(Bucket="chart", Key="key", Body=b"z" * 100_000)
        read = s3_of(last, ACCESS, SECRET).get_object(Bucket="chart", Key="key")["Body"].read()
        expect(read == b"z" * 100_000, "another machine reads otherwise")
        for process in processes:
            process.terminate()
        codes = [process.wait(90) for process in processes]
        expect(codes == [0] * len(codes), f"machines ended with {codes}")
    except Failed as failure:
        tails = "\n".join(f"{log.name}:\n{log.read_text()[-2000:]}" for log in logs if log.exists())
        raise Failed(f"{failure}\n{tails}") from failure
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return 1


def give(root, parts, peers):
    """The files that Kubernetes mounts: settings, the secret with the rights that the kubelet gives it, and the name server."""
    (root / "etc/larder").mkdir()
    (root / "etc/larder/larder.toml").write_text(parts["ConfigMap", "larder"]["data"]["larder.toml"])
    secret = root / "etc/larder-secret/peers"
    secret.parent.mkdir()
    secret.write_text(peers)
    os.chown(secret, 0, int(USER))
    os.chmod(secret, 0o440)
    (root / "etc/resolv.conf").write_text("nameserver 10.78.2.1\nsearch store.svc.cluster.local svc.cluster.local cluster.local\noptions ndots:5\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=pathlib.Path, default=default_binary() if "LARDER_TEST_BINARY" in os.environ else None)
    parser.add_argument("--dist", type=pathlib.Path, help="packages that are made already")
    parser.add_argument("--only", choices=["deb", "image", "chart"])
    arguments = parser.parse_args()
    passed, failed = 0, 0
    with scratch_folder() as folder:
        dist = arguments.dist or make(arguments.binary, folder / "dist")
        tests = {"deb": lambda into: deb(dist, into)}
        if arguments.only != "deb":
            network = Network()
            network.host("clients", "10.78.3.1")
            network.enter("clients")
            tests |= {"image": lambda into: image(dist, into, network), "chart": lambda into: chart(dist, into, network)}
        for name, test in tests.items():
            if arguments.only not in (None, name):
                continue
            began, into = time.monotonic(), folder / name
            into.mkdir()
            try:
                passed += test(into)
                print(f"ok   {name} ({time.monotonic() - began:.1f} s)", flush=True)
            except (Failed, subprocess.SubprocessError, OSError) as failure:
                failed += 1
                print(f"FAIL {name}: {failure}", flush=True)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
