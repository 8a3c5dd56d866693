"""Copies: within and across buckets, with metadata kept or replaced, with conditions on the source."""

import datetime

from harness import Checks, content, fails

checks = Checks("copies")

MIB = 1024 * 1024


def source(bench, size=50_000):
    bucket, data = bench.bucket("from"), content("source", size)
    put = bench.s3.put_object(
        Bucket=bucket, Key="s", Body=data, ContentType="text/x-old", CacheControl="no-cache",
        Metadata={"kind": "old"}, Tagging="t=1")
    return bucket, data, put["ETag"]


@checks
def a_copy_has_the_same_bytes_and_attributes(bench):
    other = bench.bucket("to")
    for size in (0, 100, 50_000, 20 * MIB):
        bucket, data, etag = source(bench, size)
        done = bench.s3.copy_object(Bucket=other, Key="c", CopySource={"Bucket": bucket, "Key": "s"})
        assert done["CopyObjectResult"]["ETag"] == etag and done["CopyObjectResult"]["LastModified"]
        got = bench.s3.get_object(Bucket=other, Key="c")
        assert got["Body"].read() == data
        assert (got["ContentType"], got["CacheControl"], got["Metadata"]) == ("text/x-old", "no-cache", {"kind": "old"})
        tags = bench.s3.get_object_tagging(Bucket=other, Key="c")["TagSet"]
        assert tags == [{"Key": "t", "Value": "1"}]
        bench.s3.delete_object(Bucket=bucket, Key="s")
        assert bench.s3.get_object(Bucket=other, Key="c")["Body"].read() == data, "the copy lives by itself"


@checks
def a_copy_may_replace_metadata_and_tags(bench):
    bucket, data, _ = source(bench)
    bench.s3.copy_object(
        Bucket=bucket, Key="c", CopySource={"Bucket": bucket, "Key": "s"}, MetadataDirective="REPLACE",
        ContentType="text/x-new", Metadata={"kind": "new"}, TaggingDirective="REPLACE", Tagging="t=2&u=3")
    got = bench.s3.get_object(Bucket=bucket, Key="c")
    assert (got["ContentType"], got["Metadata"], got.get("CacheControl")) == ("text/x-new", {"kind": "new"}, None)
    assert got["Body"].read() == data and got["TagCount"] == 2


@checks
def an_object_is_copied_onto_itself_only_with_a_change(bench):
    bucket, data, _ = source(bench)
    itself = {"Bucket": bucket, "Key": "s"}
    with fails("InvalidRequest", 400):
        bench.s3.copy_object(Bucket=bucket, Key="s", CopySource=itself)
    bench.s3.copy_object(
        Bucket=bucket, Key="s", CopySource=itself, MetadataDirective="REPLACE", Metadata={"kind": "new"})
    got = bench.s3.get_object(Bucket=bucket, Key="s")
    assert got["Body"].read() == data and got["Metadata"] == {"kind": "new"}


@checks
def sources_with_odd_keys_are_found(bench):
    bucket = bench.bucket()
    for number, key in enumerate(["a b", "a+b", "a%b", "ü/ö", "a/../b", "q?x=1", "中", "a&b=c"]):
        bench.s3.put_object(Bucket=bucket, Key=key, Body=key.encode())
        bench.s3.copy_object(Bucket=bucket, Key=f"c{number}", CopySource={"Bucket": bucket, "Key": key})
        assert bench.s3.get_object(Bucket=bucket, Key=f"c{number}")["Body"].read() == key.encode(), key


@checks
def a_missing_source_is_named(bench):
    bucket = bench.bucket()
    with fails("NoSuchKey", 404):
        bench.s3.copy_object(Bucket=bucket, Key="c", CopySource={"Bucket": bucket, "Key": "none"})
    with fails("NoSuchBucket", 404):
        bench.s3.copy_object(Bucket=bucket, Key="c", CopySource={"Bucket": "no-such-bucket", "Key": "k"})
    with fails("NoSuchBucket", 404):
        bench.s3.copy_object(Bucket="no-such-bucket", Key="c", CopySource={"Bucket": bucket, "Key": "k"})


@checks
def conditions_on_the_source_are_obeyed(bench):
    bucket, _, etag = source(bench)
    hour, now = datetime.timedelta(hours=1), datetime.datetime.now(datetime.timezone.utc)
    copy = lambda **condition: bench.s3.copy_object(
        Bucket=bucket, Key="c", CopySource={"Bucket": bucket, "Key": "s"}, **condition)
    copy(CopySourceIfMatch=etag)
    copy(CopySourceIfNoneMatch='"other"')
    copy(CopySourceIfModifiedSince=now - hour)
    copy(CopySourceIfUnmodifiedSince=now + hour)
    for bad in (
        {"CopySourceIfMatch": '"other"'}, {"CopySourceIfNoneMatch": etag},
        {"CopySourceIfUnmodifiedSince": now - hour},
    ):
        with fails("PreconditionFailed", 412):
            copy(**bad)


@checks
def parts_are_copied_whole_and_in_ranges(bench):
    bucket, data, _ = source(bench, 12 * MIB)
    upload = bench.s3.create_multipart_upload(Bucket=bucket, Key="c")["UploadId"]
    copy = lambda number, **more: bench.s3.upload_part_copy(
        Bucket=bucket, Key="c", UploadId=upload, PartNumber=number, CopySource={"Bucket": bucket, "Key": "s"},
        **more)["CopyPartResult"]["ETag"]
    first, second = copy(1), copy(2, CopySourceRange=f"bytes=100-{5 * MIB + 299}")
    third = copy(3, CopySourceRange="bytes=0-0")
    for bad in ("bytes=0-99999999", "bytes=5-1", "0-5", "bytes=12-"):
        with fails(("InvalidArgument", "InvalidRange", "InvalidRequest")):
            copy(4, CopySourceRange=bad)
    parts = [{"PartNumber": n, "ETag": e} for n, e in ((1, first), (2, second), (3, third))]
    bench.s3.complete_multipart_upload(Bucket=bucket, Key="c", UploadId=upload, MultipartUpload={"Parts": parts})
    got = bench.s3.get_object(Bucket=bucket, Key="c")["Body"].read()
    assert got == data + data[100 : 5 * MIB + 300] + data[:1]


@checks
def a_copy_of_an_object_in_parts_has_its_bytes(bench):
    bucket, data = bench.bucket(), content("parts", 11 * MIB)
    upload = bench.s3.create_multipart_upload(Bucket=bucket, Key="s")["UploadId"]
    parts = []
    for number, piece in enumerate((data[: 5 * MIB], data[5 * MIB :]), 1):
        part = bench.s3.upload_part(Bucket=bucket, Key="s", UploadId=upload, PartNumber=number, Body=piece)
        parts.append({"PartNumber": number, "ETag": part["ETag"]})
    bench.s3.complete_multipart_upload(Bucket=bucket, Key="s", UploadId=upload, MultipartUpload={"Parts": parts})
    bench.s3.copy_object(Bucket=bucket, Key="c", CopySource={"Bucket": bucket, "Key": "s"})
    bench.s3.delete_object(Bucket=bucket, Key="s")
    assert bench.s3.get_object(Bucket=bucket, Key="c")["Body"].read() == data


@checks
def a_copy_keeps_or_changes_the_checksum(bench):
    bucket = bench.bucket()
    put = bench.s3.put_object(Bucket=bucket, Key="s", Body=b"hello", ChecksumAlgorithm="SHA256")
    bench.s3.copy_object(Bucket=bucket, Key="c", CopySource={"Bucket": bucket, "Key": "s"})
    head = bench.s3.head_object(Bucket=bucket, Key="c", ChecksumMode="ENABLED")
    assert head["ChecksumSHA256"] == put["ChecksumSHA256"], head
    done = bench.s3.copy_object(
        Bucket=bucket, Key="d", CopySource={"Bucket": bucket, "Key": "s"}, ChecksumAlgorithm="CRC32")
    assert done["CopyObjectResult"]["ChecksumCRC32"] == "NhCmhg==", done
