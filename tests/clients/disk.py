"""A file with an ext4 file system in it, mounted: a disk that can be small, and that can lose its power. Needs root."""

import fcntl
import os
import pathlib
import struct
import subprocess

COMMIT_SECONDS = 300
# Where a kernel with cgroups of the first version has what limits a disk.
BLKIO = pathlib.Path("/sys/fs/cgroup/blkio")
EXT4_IOC_SHUTDOWN = 0x8004587D
NO_LOG_FLUSH = 2


def sh(*line):
    subprocess.run([str(word) for word in line], check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


class Disk:
    """A mounted file. Its file system commits by itself only every `COMMIT_SECONDS`."""

    def __init__(self, folder, size):
        self.mount_point, self._folder, self._number = folder / "mnt", folder, 0
        self.mount_point.mkdir()
        self._file = folder / "disk-0"
        with self._file.open("wb") as file:
            file.truncate(size)
        sh("mkfs.ext4", "-q", "-F", self._file)
        self.mount()

    def mount(self):
        sh("mount", "-o", f"loop,commit={COMMIT_SECONDS}", self._file, self.mount_point)

    def unmount(self):
        if os.path.ismount(self.mount_point):
            sh("umount", self.mount_point)

    def slow(self, pid, writes_per_second):
        """The disk takes only so many writes a second from a process; what ends that. Fails where the kernel cannot."""
        assert BLKIO.is_dir(), f"a slow disk needs {BLKIO}"
        device = os.stat(self.mount_point).st_dev
        group = BLKIO / f"larder-test-{os.getpid()}-{os.minor(device)}"
        group.mkdir()
        limit = f"{os.major(device)}:{os.minor(device)} {writes_per_second}"
        (group / "blkio.throttle.write_iops_device").write_text(limit)
        (group / "cgroup.procs").write_text(str(pid))

        def end():
            (BLKIO / "cgroup.procs").write_text(str(pid))
            group.rmdir()

        return end

    def copy(self):
        """Copies the backing file as it is now; the copy is mounted from the next `mount` on. Gives the old file."""
        self._number += 1
        copy = self._folder / f"disk-{self._number}"
        sh("cp", "--sparse=always", self._file, copy)
        old, self._file = self._file, copy
        return old

    def shut_down(self):
        """The file system goes down at once: what is not on the backing file is lost, syncs under way fail."""
        handle = os.open(self.mount_point, os.O_RDONLY)
        try:
            fcntl.ioctl(handle, EXT4_IOC_SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
        finally:
            os.close(handle)
