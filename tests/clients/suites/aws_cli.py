"""`aws s3` and `aws s3api`."""

import json
import urllib.request

from harness import Checks, aws_environment, command, content

checks = Checks("aws-cli")

MIB = 1024 * 1024


def aws(bench, *line, expect=0):
    return command(["aws", *line], aws_environment(bench.server), expect=expect)


def api(bench, *line):
    output = aws(bench, "s3api", *line)
    return json.loads(output) if output.strip() else {}


def tree(folder, files):
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def read_tree(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


FILES = {"a.txt": b"a", "b c/ü.txt": b"umlaut", "deep/er/x+y.bin": content("x", 70_000), "empty": b""}


@checks
def buckets_are_made_and_removed(bench):
    aws(bench, "s3", "mb", "s3://cli-made")
    assert "cli-made" in aws(bench, "s3", "ls")
    aws(bench, "s3", "rb", "s3://cli-made")
    assert "cli-made" not in aws(bench, "s3", "ls")


@checks
def files_are_copied_both_ways(bench):
    bucket, data = bench.bucket(), content("cp", 300_000)
    aws(bench, "s3", "cp", bench.file(data), f"s3://{bucket}/dir/file")
    back = bench.folder() / "back"
    aws(bench, "s3", "cp", f"s3://{bucket}/dir/file", back)
    assert back.read_bytes() == data
    assert "file" in aws(bench, "s3", "ls", f"s3://{bucket}/dir/")
    assert "PRE dir/" in aws(bench, "s3", "ls", f"s3://{bucket}")
    listed = aws(bench, "s3", "ls", f"s3://{bucket}", "--recursive", "--summarize")
    assert "Total Objects: 1" in listed and "Total Size: 300000" in listed


@checks
def streams_are_copied_both_ways(bench):
    bucket, data = bench.bucket(), b"from a pipe " * 1000
    command(["aws", "s3", "cp", "-", f"s3://{bucket}/pipe"], aws_environment(bench.server), stdin=data)
    assert aws(bench, "s3", "cp", f"s3://{bucket}/pipe", "-").encode() == data


@checks
def a_100_mib_file_goes_up_and_down_in_parts(bench):
    bucket, data = bench.bucket(), content("large", 100 * MIB)
    path, back = bench.file(data), bench.folder() / "back"
    aws(bench, "s3", "cp", "--no-progress", path, f"s3://{bucket}/large")
    assert bench.s3.head_object(Bucket=bucket, Key="large")["ETag"].endswith('-13"')
    aws(bench, "s3", "cp", "--no-progress", f"s3://{bucket}/large", back)
    assert back.read_bytes() == data
    aws(bench, "s3", "cp", "--no-progress", f"s3://{bucket}/large", f"s3://{bucket}/copy")
    assert bench.s3.head_object(Bucket=bucket, Key="copy")["ContentLength"] == len(data)
    aws(bench, "s3", "rm", f"s3://{bucket}", "--recursive")


@checks
def folders_are_synced_both_ways(bench):
    bucket, folder, back = bench.bucket(), bench.folder(), bench.folder()
    tree(folder, FILES)
    aws(bench, "s3", "sync", folder, f"s3://{bucket}/tree")
    aws(bench, "s3", "sync", f"s3://{bucket}/tree", back)
    assert read_tree(back) == FILES
    assert "upload" not in aws(bench, "s3", "sync", folder, f"s3://{bucket}/tree"), "nothing has changed"
    (folder / "a.txt").write_bytes(b"changed")
    (folder / "empty").unlink()
    output = aws(bench, "s3", "sync", "--delete", folder, f"s3://{bucket}/tree")
    assert output.count("upload:") == 1 and output.count("delete:") == 1, output
    aws(bench, "s3", "sync", "--delete", f"s3://{bucket}/tree", back)
    assert read_tree(back) == read_tree(folder)


@checks
def objects_are_moved_and_removed(bench):
    bucket = bench.bucket()
    aws(bench, "s3", "cp", bench.file(b"moving"), f"s3://{bucket}/from")
    aws(bench, "s3", "mv", f"s3://{bucket}/from", f"s3://{bucket}/to")
    keys = [o["Key"] for o in bench.s3.list_objects_v2(Bucket=bucket)["Contents"]]
    assert keys == ["to"]
    aws(bench, "s3", "rm", f"s3://{bucket}/to")
    aws(bench, "s3", "rb", f"s3://{bucket}")


@checks
def a_full_bucket_is_removed_by_force(bench):
    bucket = bench.bucket()
    for number in range(30):
        bench.s3.put_object(Bucket=bucket, Key=f"k{number}", Body=b"x")
    assert "BucketNotEmpty" in aws(bench, "s3", "rb", f"s3://{bucket}", expect=1)
    aws(bench, "s3", "rb", "--force", f"s3://{bucket}")


@checks
def presigned_links_are_followed(bench):
    bucket = bench.bucket()
    bench.s3.put_object(Bucket=bucket, Key="a b", Body=b"linked")
    # Unless told otherwise, the CLI presigns by version 2 for us-east-1.
    config = bench.scratch / "presigns"
    config.write_text("[default]\ns3 =\n    signature_version = s3v4\n")
    environment = {**aws_environment(bench.server), "AWS_CONFIG_FILE": str(config)}
    link = command(["aws", "s3", "presign", f"s3://{bucket}/a b"], environment).strip()
    assert urllib.request.urlopen(link, timeout=20).read() == b"linked"


@checks
def api_objects_and_lists(bench):
    bucket = bench.bucket()
    path = bench.file(b"by api")
    put = api(bench, "put-object", "--bucket", bucket, "--key", "k", "--body", str(path), "--metadata", "a=1",
              "--checksum-algorithm", "SHA256")
    assert put["ETag"] and put["ChecksumSHA256"]
    head = api(bench, "head-object", "--bucket", bucket, "--key", "k")
    assert (head["ContentLength"], head["Metadata"]) == (6, {"a": "1"})
    out = bench.folder() / "out"
    api(bench, "get-object", "--bucket", bucket, "--key", "k", "--range", "bytes=3-5", str(out))
    assert out.read_bytes() == b"api"
    assert api(bench, "list-objects-v2", "--bucket", bucket)["Contents"][0]["Key"] == "k"
    assert api(bench, "list-object-versions", "--bucket", bucket)["Versions"][0]["VersionId"] == "null"
    api(bench, "put-object-tagging", "--bucket", bucket, "--key", "k", "--tagging", "TagSet=[{Key=t,Value=v}]")
    assert api(bench, "get-object-tagging", "--bucket", bucket, "--key", "k")["TagSet"] == [{"Key": "t", "Value": "v"}]
    attributes = api(bench, "get-object-attributes", "--bucket", bucket, "--key", "k",
                     "--object-attributes", "ObjectSize")
    assert attributes["ObjectSize"] == 6
    deleted = api(bench, "delete-objects", "--bucket", bucket, "--delete", "Objects=[{Key=k}]")
    assert deleted["Deleted"][0]["Key"] == "k"
    api(bench, "delete-bucket", "--bucket", bucket)


@checks
def api_uploads_in_parts(bench):
    bucket = bench.bucket()
    upload = api(bench, "create-multipart-upload", "--bucket", bucket, "--key", "k")["UploadId"]
    part = api(bench, "upload-part", "--bucket", bucket, "--key", "k", "--upload-id", upload, "--part-number", "1",
               "--body", str(bench.file(b"only part")))
    named = ["--bucket", bucket, "--key", "k", "--upload-id", upload]
    assert len(api(bench, "list-parts", *named)["Parts"]) == 1
    assert api(bench, "list-multipart-uploads", "--bucket", bucket)["Uploads"][0]["UploadId"] == upload
    parts = json.dumps({"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]})
    api(bench, "complete-multipart-upload", *named, "--multipart-upload", parts)
    assert bench.s3.get_object(Bucket=bucket, Key="k")["Body"].read() == b"only part"
