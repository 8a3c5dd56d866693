"""A bucket of a packed store as a directory, used by programs that know only files: tar, git, make and a C compiler.

What they leave is compared with what they leave on a disk, read over S3, and read again after a kill -9 and a new mount. Wants
root and /dev/fuse.

    python3 tests/clients/mount.py [--binary PATH] [--only NAME]
"""

import argparse
import contextlib
import errno
import os
import pathlib
import shutil
import subprocess
import sys
import time

from harness import Bench, Checks, PackServer, command, content, default_binary, fails, run_checks, scratch_folder

BUCKET = "files"
GIT = {
    "GIT_AUTHOR_NAME": "A", "GIT_AUTHOR_EMAIL": "a@larder.test", "GIT_COMMITTER_NAME": "A",
    "GIT_COMMITTER_EMAIL": "a@larder.test", "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull,
}
# What S3 clients change is seen within the mount's second.
SEEN_SECONDS = 5

checks = Checks("mount")


class MountServer(PackServer):
    """A packed store with one bucket mounted."""

    def __init__(self, binary, directory, blobs, path):
        super().__init__(binary, directory, blobs)
        self.path = pathlib.Path(path)

    def first_start(self):
        """Makes the bucket, without a mount, and starts again with one."""
        self.start()
        self.boto3().create_bucket(Bucket=BUCKET)
        assert self.stop() == 0, "the first stop was not clean"
        self.path.mkdir()
        self.extra = ["--mount", f"{BUCKET}:{self.path}"]
        return self.start()

    def clean_up(self):
        """Nothing stays mounted, whatever happened."""
        self.kill()
        subprocess.run(["umount", "-l", self.path], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@contextlib.contextmanager
def refused(number):
    """The body must fail with this errno."""
    try:
        yield
    except OSError as error:
        assert error.errno == number, f"expected {errno.errorcode[number]}, got {error}"
        return
    raise AssertionError(f"expected {errno.errorcode[number]}, but it succeeded")


def eventually(check, what):
    deadline = time.monotonic() + SEEN_SECONDS
    while not check():
        assert time.monotonic() < deadline, f"not within {SEEN_SECONDS} s: {what}"
        time.sleep(0.05)


def folder(bench):
    """A new directory of the mount."""
    bench.folders = getattr(bench, "folders", 0) + 1
    path = bench.server.path / f"check-{bench.folders}"
    path.mkdir()
    return path


def key(bench, path):
    return str(path.relative_to(bench.server.path))


def over_s3(bench, path):
    return bench.s3.get_object(Bucket=BUCKET, Key=key(bench, path))["Body"].read()


def make_tree(root):
    """A small tree with what programs make: long files, empty ones, scripts, links, directories in each other."""
    for number in range(6):
        below = root / f"dir {number}" / "ü"
        below.mkdir(parents=True)
        for size in (0, 1, 4097, 70_000):
            (below / f"file-{size}").write_bytes(content(f"{number} {size}", size))
    (root / "large").write_bytes(content("large", 3_000_000))
    (root / "empty").mkdir()
    script = root / "run.sh"
    script.write_text("#!/bin/sh\necho it runs\n")
    script.chmod(0o755)
    (root / "link").symlink_to("run.sh")


def picture(root):
    """All that a program sees of a tree."""
    seen = {}
    for path in sorted(root.rglob("*")):
        stat = path.lstat()
        body = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None
        seen[str(path.relative_to(root))] = (oct(stat.st_mode), int(stat.st_mtime) if path.is_file() else 0, body)
    return seen


def git(*arguments, cwd):
    return command(["git", *arguments], environment=GIT, cwd=cwd)


@checks
def files_are_objects(bench):
    here = folder(bench)
    path = here / "hello"
    path.write_text("hello")
    assert over_s3(bench, path) == b"hello"
    bench.s3.put_object(Bucket=BUCKET, Key=key(bench, here / "theirs" / "deep"), Body=b"from S3")
    assert (here / "theirs" / "deep").read_bytes() == b"from S3"
    assert sorted(os.listdir(here)) == ["hello", "theirs"]
    bench.s3.put_object(Bucket=BUCKET, Key=key(bench, path), Body=b"replaced over S3")
    eventually(lambda: path.read_bytes() == b"replaced over S3", "what S3 clients put")
    bench.s3.delete_object(Bucket=BUCKET, Key=key(bench, path))
    eventually(lambda: not path.exists(), "what S3 clients delete")


@checks
def a_file_appears_when_it_is_closed_or_synced(bench):
    path = folder(bench) / "slow"
    with path.open("wb") as file:
        file.write(b"one")
        file.flush()
        assert path.stat().st_size == 3 and path.name in os.listdir(path.parent)
        with fails(("404", "NoSuchKey")):
            over_s3(bench, path)
        os.fsync(file.fileno())
        assert over_s3(bench, path) == b"one"
        file.write(b", two")
    assert over_s3(bench, path) == b"one, two"


@checks
def files_are_appended_patched_and_cut(bench):
    path, body = folder(bench) / "file", bytearray(content("patched", 300_000))
    path.write_bytes(body)
    with path.open("ab") as file:
        file.write(b"the end")
    with path.open("r+b") as file:
        file.seek(100_000)
        file.write(b"patched")
    body[100_000:100_007] = b"patched"
    assert path.read_bytes() == bytes(body) + b"the end" == over_s3(bench, path)
    os.truncate(path, 1000)
    assert path.read_bytes() == bytes(body[:1000]) == over_s3(bench, path)
    with path.open("wb"):
        pass
    assert over_s3(bench, path) == b""


@checks
def large_files_are_read_anywhere(bench):
    path, body = folder(bench) / "large", content("anywhere", 20_000_000)
    path.write_bytes(body)
    assert path.read_bytes() == body == over_s3(bench, path)
    with path.open("rb") as file:
        for at in (0, 65_535, 9_999_999, len(body) - 1):
            file.seek(at)
            assert file.read(100_000) == body[at:at + 100_000]


@checks
def names_are_changed(bench):
    here = folder(bench)
    (here / "a").write_text("a")
    (here / "b").write_text("b")
    (here / "a").rename(here / "b")
    assert (here / "b").read_text() == "a" and os.listdir(here) == ["b"]
    (here / "d" / "e").mkdir(parents=True)
    for number in range(50):
        (here / "d" / "e" / str(number)).write_text(str(number))
    (here / "d").rename(here / "moved")
    assert sorted(os.listdir(here)) == ["b", "moved"]
    assert {name: (here / "moved" / "e" / name).read_text() for name in os.listdir(here / "moved" / "e")} == {
        str(number): str(number) for number in range(50)
    }
    with refused(errno.ENOTEMPTY):
        (here / "moved").rmdir()
    with refused(errno.EEXIST):
        (here / "moved").mkdir()
    shutil.rmtree(here / "moved")
    (here / "b").unlink()
    assert os.listdir(here) == []
    here.rmdir()
    with refused(errno.ENOENT):
        os.listdir(here)


@checks
def a_directory_of_many_is_listed_once(bench):
    here, wanted = folder(bench), {f"file-{number}" for number in range(1100)}
    for name in wanted:
        bench.s3.put_object(Bucket=BUCKET, Key=key(bench, here / name), Body=b"x")
    names = os.listdir(here)
    assert len(names) == len(wanted) and set(names) == wanted


@checks
def who_has_a_file_open_keeps_it(bench):
    path = folder(bench) / "file"
    path.write_text("kept")
    with path.open() as file:
        path.unlink()
        assert file.read() == "kept"
    with path.open("w+") as file:
        path.unlink()
        file.write("nowhere")
        file.seek(0)
        assert file.read() == "nowhere"
    assert not path.exists()
    with fails(("404", "NoSuchKey")):
        over_s3(bench, path)


@checks
def what_files_do_not_have_here_is_refused(bench):
    path = folder(bench) / "file"
    path.write_text("x")
    with refused(errno.EPERM):
        os.link(path, path.with_name("hard"))
    with refused(errno.EPERM):
        os.mkfifo(path.with_name("pipe"))
    with refused(errno.EPERM):
        os.chown(path, 12345, 12345)
    with refused(errno.EOPNOTSUPP):
        os.setxattr(path, "user.colour", b"red")
    with refused(errno.EPERM):
        os.chmod(path, 0o4755)
    with refused(errno.ENAMETOOLONG):
        path.with_name("n" * 256).write_text("x")
    os.chmod(path, 0o600)
    os.utime(path, (1, 1_000_000_000))
    assert (oct(path.stat().st_mode), path.stat().st_mtime) == ("0o100600", 1_000_000_000)


@checks
def tar_unpacks_what_it_packed(bench):
    scratch, here = bench.folder(), folder(bench)
    tree = scratch / "tree"
    tree.mkdir()
    make_tree(tree)
    command(["tar", "cf", scratch / "tree.tar", "-C", tree, "."])
    command(["tar", "xf", scratch / "tree.tar", "-C", here])
    assert picture(here) == picture(tree)
    assert command([here / "run.sh"]) == "it runs\n"
    command(["tar", "cf", scratch / "again.tar", "-C", here, "."])
    again = scratch / "again"
    again.mkdir()
    command(["tar", "xf", scratch / "again.tar", "-C", again])
    assert picture(again) == picture(tree)


@checks
def git_commits_and_clones(bench):
    here = folder(bench)
    first, second = here / "first", here / "second"
    first.mkdir()
    git("init", "-q", cwd=first)
    for number in range(3):
        (first / f"source-{number}.c").write_bytes(content(number, 2000))
        git("add", "-A", cwd=first)
        git("commit", "-q", "-m", f"Add {number}", cwd=first)
    (first / "source-0.c").unlink()
    git("commit", "-q", "-a", "-m", "Remove one", cwd=first)
    git("clone", "-q", "--no-local", first, second, cwd=here)
    for clone in (first, second):
        git("fsck", "--strict", cwd=clone)
        assert git("status", "--porcelain", cwd=clone) == ""
        assert git("log", "--oneline", cwd=clone).count("\n") == 4
    git("gc", "-q", cwd=second)
    git("fsck", "--strict", cwd=second)
    outside = bench.folder() / "outside"
    git("clone", "-q", second, outside, cwd=here)
    assert (outside / "source-2.c").read_bytes() == content(2, 2000)


@checks
def a_program_is_built(bench):
    here = folder(bench)
    (here / "answer.h").write_text("int answer(void);\n")
    (here / "answer.c").write_text('#include "answer.h"\nint answer(void) { return 42; }\n')
    (here / "main.c").write_text(
        '#include <stdio.h>\n#include "answer.h"\nint main(void) { printf("%d\\n", answer()); return 0; }\n'
    )
    (here / "Makefile").write_text(
        "program: main.o libanswer.a\n\tgcc -o $@ main.o -L. -lanswer\n"
        "libanswer.a: answer.o\n\tar rcs $@ answer.o\n"
        "%.o: %.c answer.h\n\tgcc -c -o $@ $<\n"
    )
    command(["make", "-j2"], cwd=here)
    assert command([here / "program"]) == "42\n"
    assert "up to date" in command(["make"], cwd=here)
    (here / "answer.c").write_text('#include "answer.h"\nint answer(void) { return 43; }\n')
    command(["make"], cwd=here)
    assert command([here / "program"]) == "43\n"


@checks
def what_was_closed_outlives_a_kill(bench):
    here, server = folder(bench), bench.server
    make_tree(here)
    before, held = picture(here), (here / "held").open("w")
    held.write("not closed")
    held.flush()
    server.kill()
    with contextlib.suppress(OSError):
        held.close()
    server.start()
    assert picture(here) == before, "what was never closed is not there, the rest is"
    assert server.metric("larder_mount_lookups_total") > 0
    assert server.metric("larder_mount_lost_files_total") == 0


@checks
def it_unmounts_clean_and_saves_what_is_open(bench):
    server = bench.server
    path = folder(bench) / "open"
    with path.open("w") as file:
        file.write("saved at the end")
        file.flush()
        assert server.stop() == 0
        with contextlib.suppress(OSError):
            file.close()
    assert not os.path.ismount(server.path) and os.listdir(server.path) == []
    server.start()
    assert path.read_text() == "saved at the end"
    assert server.stop() == 0
    assert not os.path.ismount(server.path)
    server.start()


@checks
def what_cannot_be_mounted_is_refused(bench):
    server, scratch = bench.server, bench.folder()
    assert server.stop() == 0
    (scratch / "full").mkdir()
    (scratch / "full" / "file").write_text("x")
    (scratch / "empty").mkdir()
    line = [server.binary, *server.command(), *server.flags(), "--mount"]
    assert "is not empty" in command([*line, f"{BUCKET}:{scratch / 'full'}"], expect=3)
    assert "does not exist" in command([*line, f"nothing:{scratch / 'empty'}"], expect=3)
    assert "cannot be mounted on" in command([*line, f"{BUCKET}:{scratch / 'nowhere'}"], expect=3)
    command([*line, "files"], expect=2)
    server.start()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=pathlib.Path, default=default_binary())
    parser.add_argument("--only", help="only checks whose name contains this")
    arguments = parser.parse_args()
    with scratch_folder() as scratch:
        server = MountServer(arguments.binary, scratch / "worker", scratch / "blobs", scratch / "files")
        (scratch / "blobs").mkdir()
        try:
            os.close(os.open("/dev/fuse", os.O_RDWR))
            server.first_start()
            passed, failed = run_checks([checks], Bench(server, scratch), arguments.only)
            if failed:
                print(server.log_tail())
        except (OSError, AssertionError) as error:
            print(f"FAIL mount: {error}")
            passed, failed = 0, 1
        finally:
            server.clean_up()
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
