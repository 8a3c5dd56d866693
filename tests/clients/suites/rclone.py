"""rclone: sync, check, move, mount-free reads; also with every file as a multipart upload."""

from harness import ACCESS, SECRET, Checks, command, content

checks = Checks("rclone")


def rclone(bench, *line, expect=0):
    environment = {
        "RCLONE_CONFIG": str(bench.scratch / "no-rclone.conf"), "RCLONE_CONFIG_L_TYPE": "s3",
        "RCLONE_CONFIG_L_PROVIDER": "Other", "RCLONE_CONFIG_L_ENDPOINT": bench.server.endpoint,
        "RCLONE_CONFIG_L_ACCESS_KEY_ID": ACCESS, "RCLONE_CONFIG_L_SECRET_ACCESS_KEY": SECRET,
        "RCLONE_CONFIG_L_REGION": "us-east-1", "RCLONE_RETRIES": "1", "RCLONE_LOW_LEVEL_RETRIES": "1",
    }
    return command(["rclone", "-v", *line], environment, expect=expect)


def filled(bench):
    folder = bench.folder()
    for name, size in (("a", 10), ("b c/ü+", 3000), ("d/e/f", 70_000), ("large", 12_000_000), ("empty", 0),
                       ("d/e/ga%b", 5), ("-dash", 1), ("many/" + "x" * 100, 100)):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content(name, size))
    return folder


def round_trip(bench, *flags):
    bucket, folder, back = bench.bucket("rclone"), filled(bench), bench.folder()
    rclone(bench, "sync", *flags, str(folder), f"L:{bucket}/tree")
    assert "0 differences" in rclone(bench, "check", *flags, str(folder), f"L:{bucket}/tree")
    assert "0 differences" in rclone(bench, "check", "--download", *flags, str(folder), f"L:{bucket}/tree")
    rclone(bench, "sync", *flags, f"L:{bucket}/tree", str(back))
    names = sorted(p.relative_to(folder) for p in folder.rglob("*") if p.is_file())
    assert names == sorted(p.relative_to(back) for p in back.rglob("*") if p.is_file())
    assert all((folder / n).read_bytes() == (back / n).read_bytes() for n in names)
    return bucket, folder


@checks
def a_folder_is_synced_and_checked(bench):
    bucket, folder = round_trip(bench)
    (folder / "a").write_bytes(b"changed and longer")
    (folder / "empty").unlink()
    rclone(bench, "sync", str(folder), f"L:{bucket}/tree")
    assert "0 differences" in rclone(bench, "check", str(folder), f"L:{bucket}/tree")
    assert "There was nothing to transfer" in rclone(bench, "sync", str(folder), f"L:{bucket}/tree")


@checks
def a_folder_is_synced_with_every_file_in_parts(bench):
    round_trip(bench, "--s3-upload-cutoff", "0", "--s3-chunk-size", "5Mi")


@checks
def modification_times_survive(bench):
    bucket, folder = bench.bucket("rclone"), filled(bench)
    rclone(bench, "copy", str(folder), f"L:{bucket}")
    assert "-:" not in rclone(bench, "lsl", f"L:{bucket}")
    output = rclone(bench, "sync", "--dry-run", str(folder), f"L:{bucket}")
    assert "Skipped copy" not in output, output


@checks
def objects_are_copied_and_moved_within_the_server(bench):
    bucket, folder = bench.bucket("rclone"), filled(bench)
    rclone(bench, "copy", str(folder), f"L:{bucket}/one")
    rclone(bench, "copy", f"L:{bucket}/one", f"L:{bucket}/two")
    rclone(bench, "move", f"L:{bucket}/two", f"L:{bucket}/three")
    assert "0 differences" in rclone(bench, "check", str(folder), f"L:{bucket}/three")
    assert rclone(bench, "size", f"L:{bucket}/three").count("Total objects: 8") == 1
    rclone(bench, "purge", f"L:{bucket}")
    names = [b["Name"] for b in bench.s3.list_buckets()["Buckets"]]
    assert bucket not in names


@checks
def a_stream_of_unknown_length_is_put(bench):
    bucket = bench.bucket("rclone")
    environment_free = content("rcat", 9_000_000)
    path = bench.file(environment_free)
    rclone(bench, "copyto", str(path), f"L:{bucket}/k")
    assert "hasher" not in rclone(bench, "md5sum", f"L:{bucket}")
    assert bench.s3.get_object(Bucket=bucket, Key="k")["Body"].read() == environment_free
