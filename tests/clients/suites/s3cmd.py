"""s3cmd: put, get, sync, copy, move, delete, multipart. It signs for its default region, `US`, until it is told another."""

from harness import ACCESS, SECRET, Checks, command, content

checks = Checks("s3cmd")


def s3cmd(bench, *line, expect=0):
    config = bench.scratch / "s3cfg"
    if not config.exists():
        address = f"127.0.0.1:{bench.server.port}"
        config.write_text(
            f"[default]\naccess_key = {ACCESS}\nsecret_key = {SECRET}\nhost_base = {address}\n"
            f"host_bucket = {address}\nuse_https = False\nmax_retries = 1\n"
        )
    return command(["s3cmd", "-c", config, "--no-progress", *line], expect=expect)


@checks
def buckets_are_made_listed_and_removed(bench):
    s3cmd(bench, "mb", "s3://s3cmd-made")
    assert "s3://s3cmd-made" in s3cmd(bench, "ls")
    s3cmd(bench, "rb", "s3://s3cmd-made")
    assert "s3://s3cmd-made" not in s3cmd(bench, "ls")


@checks
def a_file_goes_up_and_down(bench):
    bucket, data = bench.bucket(), content("s3cmd", 100_000)
    back = bench.folder() / "back"
    s3cmd(bench, "put", bench.file(data), f"s3://{bucket}/d/ü b+c")
    s3cmd(bench, "get", f"s3://{bucket}/d/ü b+c", back)
    assert back.read_bytes() == data
    assert "d/ü b+c" in s3cmd(bench, "ls", "--recursive", f"s3://{bucket}")
    assert "100000" in s3cmd(bench, "info", f"s3://{bucket}/d/ü b+c")


@checks
def a_file_goes_up_in_parts(bench):
    bucket, data = bench.bucket(), content("s3cmd-parts", 17_000_000)
    back = bench.folder() / "back"
    s3cmd(bench, "put", "--multipart-chunk-size-mb=5", bench.file(data), f"s3://{bucket}/large")
    assert bench.s3.head_object(Bucket=bucket, Key="large")["ETag"].endswith('-4"')
    s3cmd(bench, "get", f"s3://{bucket}/large", back)
    assert back.read_bytes() == data


@checks
def a_folder_is_synced_both_ways(bench):
    bucket, folder, back = bench.bucket(), bench.folder(), bench.folder()
    for name in ("a", "b/c", "b/d e", "f/ü"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content(name, 5000))
    s3cmd(bench, "sync", f"{folder}/", f"s3://{bucket}/tree/")
    s3cmd(bench, "sync", f"s3://{bucket}/tree/", f"{back}/")
    files = lambda top: {str(p.relative_to(top)): p.read_bytes() for p in top.rglob("*") if p.is_file()}
    assert files(folder) == files(back)
    (folder / "a").unlink()
    (folder / "b/c").write_bytes(b"changed")
    s3cmd(bench, "sync", "--delete-removed", f"{folder}/", f"s3://{bucket}/tree/")
    keys = [o["Key"] for o in bench.s3.list_objects_v2(Bucket=bucket)["Contents"]]
    assert keys == ["tree/b/c", "tree/b/d e", "tree/f/ü"], keys
    assert bench.s3.get_object(Bucket=bucket, Key="tree/b/c")["Body"].read() == b"changed"


@checks
def objects_are_copied_moved_and_deleted(bench):
    bucket = bench.bucket()
    bench.s3.put_object(Bucket=bucket, Key="a", Body=b"x")
    s3cmd(bench, "cp", f"s3://{bucket}/a", f"s3://{bucket}/b")
    s3cmd(bench, "mv", f"s3://{bucket}/b", f"s3://{bucket}/c")
    assert [o["Key"] for o in bench.s3.list_objects_v2(Bucket=bucket)["Contents"]] == ["a", "c"]
    s3cmd(bench, "del", f"s3://{bucket}/a", f"s3://{bucket}/c")
    assert "Contents" not in bench.s3.list_objects_v2(Bucket=bucket)


@checks
def a_whole_bucket_is_deleted(bench):
    bucket = bench.bucket()
    for number in range(25):
        bench.s3.put_object(Bucket=bucket, Key=f"k/{number}", Body=b"x")
    assert "25 objects" in s3cmd(bench, "du", f"s3://{bucket}").replace("25 ", "25 ")
    s3cmd(bench, "del", "--recursive", "--force", f"s3://{bucket}")
    s3cmd(bench, "rb", f"s3://{bucket}")
