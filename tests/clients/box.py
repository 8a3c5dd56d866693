"""A Debian machine in a box: systemd in namespaces of its own, over a copy-on-write view of this machine's file system.

Nothing of this machine is changed: what is installed there is in a folder that goes with the box, its network is a loopback of its
own, its control group is below one that is made for it, and it may neither load modules nor set the clock. It ends with the
process that started it.
"""

import os
import pathlib
import shutil
import subprocess
import time

from workload import Failed

START_SECONDS = 60
COMMAND_SECONDS = 120
# Makes the machine, and becomes its first process. What belongs to the kernel, and so to this machine too, is read-only there,
# which has systemd leave it alone; of devices it has those that every process may have.
INIT = r"""
set -e
box=$1
root=$box/root
mount -t overlay overlay -o "lowerdir=/,upperdir=$box/upper,workdir=$box/work" "$root"
mount -t proc proc "$root/proc"
mount --bind "$root/proc/sys" "$root/proc/sys"
mount -o remount,bind,ro "$root/proc/sys"
mount -t sysfs sysfs -o ro "$root/sys"
mount -t tmpfs cgroup "$root/sys/fs/cgroup"
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
    umount "$root/sys/fs/cgroup"
    mount -t cgroup2 cgroup "$root/sys/fs/cgroup"
else
    mkdir "$root/sys/fs/cgroup/systemd"
    mount -t cgroup -o none,name=systemd cgroup "$root/sys/fs/cgroup/systemd"
fi
mount -t tmpfs run "$root/run"
mount -t tmpfs tmp "$root/tmp"
mount -t tmpfs dev "$root/dev"
for device in null zero full random urandom tty; do
    : > "$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
done
ln -s /proc/self/fd "$root/dev/fd"
mkdir "$root/dev/shm" "$root/dev/pts"
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
: > "$root/etc/fstab"
printf '[Unit]\nDescription=The box\nWants=systemd-journald.service\n' > "$root/etc/systemd/system/box.target"
ip link set lo up
mkdir -p "$root/run/before"
cd "$root"
pivot_root . run/before
exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin container=larder sh -c 'umount -l /run/before && exec setpriv \
    --bounding-set=-sys_module,-sys_time,-sys_boot,-sys_rawio,-mknod,-syslog \
    /lib/systemd/systemd --system --unit=box.target --log-target=journal --show-status=no'
"""


class Box:
    """One machine, from its start to the end of the `with`."""

    def __init__(self, folder, files=()):
        """`files`: where each lies in the box, such as `root/package.deb`, and the file."""
        self.folder, self.files = pathlib.Path(folder), dict(files)
        self.log = self.folder / "console.txt"
        self.process, self.init = None, None
        whole = os.path.exists("/sys/fs/cgroup/cgroup.controllers")
        self.group = pathlib.Path("/sys/fs/cgroup" if whole else "/sys/fs/cgroup/systemd", f"larder-box-{os.getpid()}")

    def __enter__(self):
        for name in ("upper", "work", "root"):
            (self.folder / name).mkdir(parents=True)
        for place, file in self.files.items():
            (self.folder / "upper" / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, self.folder / "upper" / place)
        self.group.mkdir()
        with self.log.open("wb") as log:
            # --kill-child: whatever ends this process ends the machine.
            self.process = subprocess.Popen(
                ["unshare", "--mount", "--pid", "--fork", "--kill-child=SIGKILL", "--uts", "--ipc", "--net",
                 "--cgroup", "--propagation", "private", "sh", "-c", INIT, "box", self.folder],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, preexec_fn=self._join,
            )
        try:
            self._wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _join(self):
        (self.group / "cgroup.procs").write_text("0")

    def _wait(self):
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise Failed(f"the box ended with {self.process.returncode}:\n{self.tail()}")
            children = pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
            if children and pathlib.Path(f"/proc/{children[0]}/comm").read_text().strip() == "systemd":
                self.init = children[0]
                if self.run("systemctl", "is-active", "box.target", expect=None).stdout.strip() == "active":
                    return
            time.sleep(0.1)
        raise Failed(f"systemd was not up within {START_SECONDS} s:\n{self.tail()}")

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self._remove_group()

    def _remove_group(self):
        """Its processes were killed, and are gone within moments."""
        deadline = time.monotonic() + START_SECONDS
        while self.group.exists():
            groups = [group for group, _, _ in os.walk(self.group, topdown=False)]
            try:
                for group in groups:
                    os.rmdir(group)
            except OSError as error:
                if time.monotonic() > deadline:
                    raise Failed(f"the box leaves its control group: {error}") from error
                time.sleep(0.05)

    def run(self, *line, expect=0, user=None):
        """Runs a command there. Without `expect` its code does not matter."""
        as_user = ["runuser", "-u", user, "--"] if user else []
        done = subprocess.run(
            ["nsenter", "--target", self.init, "--mount", "--pid", "--uts", "--ipc", "--net", "--root", "--wd",
             "env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive",
             *as_user, *map(str, line)],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=COMMAND_SECONDS,
        )
        if expect is not None and done.returncode != expect:
            said = f"{done.stdout[-2000:]}{done.stderr[-2000:]}"
            raise Failed(f"{' '.join(map(str, line))} ended with {done.returncode}:\n{said}\n{self.tail()}")
        return done

    def tail(self):
        """What was said last: by the machine's services, or while there were none."""
        if self.init:
            return self.run("journalctl", "--no-pager", "--no-hostname", "--lines=25", expect=None).stdout
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-40:])
