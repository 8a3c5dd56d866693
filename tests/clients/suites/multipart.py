"""Uploads in parts: created, listed, completed, aborted, and their edges."""

import threading
import time
import urllib.request

from harness import Checks, Server, content, default_binary, fails, md5
from sigv4 import sha256

checks = Checks("multipart")

MIB = 1024 * 1024
PART = 5 * MIB


def begin(bench, bucket, key="k", **more):
    return bench.s3.create_multipart_upload(Bucket=bucket, Key=key, **more)["UploadId"]


def put_part(bench, bucket, upload, number, data, key="k"):
    part = bench.s3.upload_part(Bucket=bucket, Key=key, UploadId=upload, PartNumber=number, Body=data)
    return {"PartNumber": number, "ETag": part["ETag"]}


def complete(bench, bucket, upload, parts, key="k", **more):
    return bench.s3.complete_multipart_upload(
        Bucket=bucket, Key=key, UploadId=upload, MultipartUpload={"Parts": parts}, **more)


def body(bench, bucket, key="k", **more):
    return bench.s3.get_object(Bucket=bucket, Key=key, **more)["Body"].read()


@checks
def parts_become_one_object_with_a_composite_etag(bench):
    bucket, pieces = bench.bucket(), [content(("p", n), size) for n, size in enumerate((PART, 6 * MIB, 123))]
    upload = begin(bench, bucket, ContentType="text/x-parts", Metadata={"m": "1"}, Tagging="t=1")
    parts = [put_part(bench, bucket, upload, number, data) for number, data in enumerate(pieces, 1)]
    assert [p["ETag"] for p in parts] == [f'"{md5(data)}"' for data in pieces]
    with fails("404", 404):
        bench.s3.head_object(Bucket=bucket, Key="k")
    done = complete(bench, bucket, upload, parts)
    etag = f'"{md5(b"".join(bytes.fromhex(md5(data)) for data in pieces))}-3"'
    assert (done["ETag"], done["Bucket"], done["Key"]) == (etag, bucket, "k") and done["Location"]
    got = bench.s3.get_object(Bucket=bucket, Key="k")
    assert got["Body"].read() == b"".join(pieces) and got["ETag"] == etag
    assert (got["ContentType"], got["Metadata"], got["TagCount"]) == ("text/x-parts", {"m": "1"}, 1)
    assert bench.s3.list_objects_v2(Bucket=bucket)["Contents"][0]["ETag"] == etag


@checks
def ranges_cross_part_borders(bench):
    bucket, pieces = bench.bucket(), [content(("p", n), size) for n, size in enumerate((PART + 1, PART + 7, 99))]
    upload = begin(bench, bucket)
    complete(bench, bucket, upload, [put_part(bench, bucket, upload, n, d) for n, d in enumerate(pieces, 1)])
    whole = b"".join(pieces)
    for first, last in ((PART - 3, PART + 5), (0, 10), (PART, 2 * PART + 9), (len(whole) - 120, len(whole) - 1)):
        assert body(bench, bucket, Range=f"bytes={first}-{last}") == whole[first : last + 1], (first, last)


@checks
def parts_are_read_by_number(bench):
    bucket, pieces = bench.bucket(), [content(("p", n), size) for n, size in enumerate((PART, PART + 9, 77))]
    upload = begin(bench, bucket)
    complete(bench, bucket, upload, [put_part(bench, bucket, upload, n, d) for n, d in zip((2, 5, 9), pieces)])
    for number, data in zip((2, 5, 9), pieces):
        got = bench.s3.get_object(Bucket=bucket, Key="k", PartNumber=number)
        assert got["Body"].read() == data and got["PartsCount"] == 3, number
        assert got["ResponseMetadata"]["HTTPStatusCode"] == 206
        assert bench.s3.head_object(Bucket=bucket, Key="k", PartNumber=number)["ContentLength"] == len(data)
    with fails(("InvalidPart", "InvalidPartNumber", "InvalidRange")):
        bench.s3.get_object(Bucket=bucket, Key="k", PartNumber=4)
    bench.s3.put_object(Bucket=bucket, Key="plain", Body=b"x")
    assert body(bench, bucket, "plain", PartNumber=1) == b"x"


@checks
def parts_may_come_in_any_order_and_at_once(bench):
    bucket, pieces = bench.bucket(), {n: content(("p", n), PART if n < 8 else 10) for n in range(1, 9)}
    upload, parts = begin(bench, bucket), {}

    def put(number):
        parts[number] = put_part(bench, bucket, upload, number, pieces[number])

    threads = [threading.Thread(target=put, args=(n,)) for n in reversed(pieces)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    complete(bench, bucket, upload, [parts[n] for n in sorted(parts)])
    assert body(bench, bucket) == b"".join(pieces[n] for n in sorted(pieces))


@checks
def a_part_put_again_replaces_the_first(bench):
    bucket = bench.bucket()
    upload = begin(bench, bucket)
    old = put_part(bench, bucket, upload, 1, b"old" * 100_000)
    new = put_part(bench, bucket, upload, 1, b"new" * 30)
    with fails("InvalidPart", 400):
        complete(bench, bucket, upload, [old])
    complete(bench, bucket, upload, [new])
    assert body(bench, bucket) == b"new" * 30


@checks
def parts_not_named_are_left_out(bench):
    bucket = bench.bucket()
    upload = begin(bench, bucket)
    put_part(bench, bucket, upload, 1, b"unused")
    two, three = put_part(bench, bucket, upload, 2, b"2" * PART), put_part(bench, bucket, upload, 3, b"3")
    complete(bench, bucket, upload, [two, three])
    assert body(bench, bucket) == b"2" * PART + b"3"


@checks
def bad_completions_are_refused_and_change_nothing(bench):
    bucket = bench.bucket()
    upload = begin(bench, bucket)
    one, two = put_part(bench, bucket, upload, 1, b"1" * PART), put_part(bench, bucket, upload, 2, b"2" * 100)
    three = put_part(bench, bucket, upload, 3, b"3")
    with fails("InvalidPartOrder", 400):
        complete(bench, bucket, upload, [two, one])
    with fails("InvalidPart", 400):
        complete(bench, bucket, upload, [one, {"PartNumber": 2, "ETag": '"' + "0" * 32 + '"'}])
    with fails("InvalidPart", 400):
        complete(bench, bucket, upload, [one, {"PartNumber": 9, "ETag": two["ETag"]}])
    with fails("EntityTooSmall", 400):
        complete(bench, bucket, upload, [one, two, three])
    with fails(("MalformedXML", "InvalidRequest"), 400):
        complete(bench, bucket, upload, [])
    with fails("404", 404):
        bench.s3.head_object(Bucket=bucket, Key="k")
    complete(bench, bucket, upload, [one, two])
    assert body(bench, bucket) == b"1" * PART + b"2" * 100


@checks
def part_numbers_go_from_1_to_10000(bench):
    bucket = bench.bucket()
    upload = begin(bench, bucket)
    for number in (0, 10_001, -1):
        with fails("InvalidArgument", 400):
            put_part(bench, bucket, upload, number, b"x")
    complete(bench, bucket, upload, [put_part(bench, bucket, upload, 10_000, b"last")])
    assert body(bench, bucket) == b"last"


@checks
def an_unknown_upload_is_named(bench):
    bucket = bench.bucket()
    known = begin(bench, bucket)
    for upload in ("none", known[:-1] + ("0" if known[-1] != "0" else "1")):
        for call in (
            lambda: put_part(bench, bucket, upload, 1, b"x"),
            lambda: bench.s3.list_parts(Bucket=bucket, Key="k", UploadId=upload),
            lambda: complete(bench, bucket, upload, [{"PartNumber": 1, "ETag": '"x"'}]),
            lambda: bench.s3.abort_multipart_upload(Bucket=bucket, Key="k", UploadId=upload),
        ):
            with fails("NoSuchUpload", 404):
                call()
    with fails("NoSuchUpload", 404):
        put_part(bench, bucket, known, 1, b"x", key="another-key")


@checks
def an_aborted_upload_is_gone(bench):
    bucket = bench.bucket()
    bench.s3.put_object(Bucket=bucket, Key="k", Body=b"before")
    upload = begin(bench, bucket)
    part = put_part(bench, bucket, upload, 1, b"x" * 200_000)
    bench.s3.abort_multipart_upload(Bucket=bucket, Key="k", UploadId=upload)
    with fails("NoSuchUpload", 404):
        complete(bench, bucket, upload, [part])
    with fails("NoSuchUpload", 404):
        put_part(bench, bucket, upload, 2, b"x")
    assert "Uploads" not in bench.s3.list_multipart_uploads(Bucket=bucket)
    assert body(bench, bucket) == b"before"


@checks
def a_completion_may_be_repeated(bench):
    bucket = bench.bucket()
    upload = begin(bench, bucket)
    parts = [put_part(bench, bucket, upload, 1, b"x" * 3000)]
    first, second = complete(bench, bucket, upload, parts), complete(bench, bucket, upload, parts)
    assert first["ETag"] == second["ETag"] and body(bench, bucket) == b"x" * 3000


@checks
def parts_are_listed_in_pages(bench):
    bucket = bench.bucket()
    upload = begin(bench, bucket)
    sizes = {n: 10 + n for n in (1, 2, 3, 7, 8, 500, 10_000)}
    for number, size in sizes.items():
        put_part(bench, bucket, upload, number, b"p" * size)
    seen, marker = {}, 0
    while True:
        page = bench.s3.list_parts(Bucket=bucket, Key="k", UploadId=upload, MaxParts=3, PartNumberMarker=marker)
        assert len(page.get("Parts", [])) <= 3
        seen |= {p["PartNumber"]: p["Size"] for p in page.get("Parts", [])}
        assert all(p["ETag"] == f'"{md5(b"p" * p["Size"])}"' for p in page["Parts"])
        if not page["IsTruncated"]:
            break
        marker = page["NextPartNumberMarker"]
    assert seen == sizes and list(seen) == sorted(sizes)
    assert page["StorageClass"] == "STANDARD" and page["Initiator"]["ID"] and page["Owner"]["ID"]


@checks
def uploads_are_listed_in_pages_and_groups(bench):
    bucket = bench.bucket()
    keys = ["a", "b/1", "b/2", "c", "c", "c", "d d+", "e/x"]
    begun = sorted((key, begin(bench, bucket, key)) for key in keys)
    seen, markers = [], {}
    for _ in range(20):
        page = bench.s3.list_multipart_uploads(Bucket=bucket, MaxUploads=2, **markers)
        seen += [(u["Key"], u["UploadId"]) for u in page.get("Uploads", [])]
        if not page["IsTruncated"]:
            break
        markers = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}
    assert sorted(seen) == begun and [k for k, _ in seen] == sorted(keys), seen
    page = bench.s3.list_multipart_uploads(Bucket=bucket, Delimiter="/")
    assert [p["Prefix"] for p in page["CommonPrefixes"]] == ["b/", "e/"]
    assert [u["Key"] for u in page["Uploads"]] == ["a", "c", "c", "c", "d d+"]
    page = bench.s3.list_multipart_uploads(Bucket=bucket, Prefix="b/")
    assert [u["Key"] for u in page["Uploads"]] == ["b/1", "b/2"]


@checks
def uploads_of_one_key_do_not_mix(bench):
    bucket = bench.bucket()
    first, second = begin(bench, bucket), begin(bench, bucket)
    one, two = put_part(bench, bucket, first, 1, b"first"), put_part(bench, bucket, second, 1, b"second")
    complete(bench, bucket, second, [two])
    assert body(bench, bucket) == b"second"
    complete(bench, bucket, first, [one])
    assert body(bench, bucket) == b"first"


@checks
def deletes_and_puts_during_an_upload_are_replaced_by_its_completion(bench):
    bucket = bench.bucket()
    upload = begin(bench, bucket)
    part = put_part(bench, bucket, upload, 1, b"uploaded")
    bench.s3.put_object(Bucket=bucket, Key="k", Body=b"put")
    bench.s3.delete_object(Bucket=bucket, Key="k")
    complete(bench, bucket, upload, [part])
    assert body(bench, bucket) == b"uploaded"


@checks
def a_part_with_wrong_bytes_is_not_kept(bench):
    bucket, raw = bench.bucket(), bench.raw()
    upload = begin(bench, bucket)
    query = [("partNumber", "1"), ("uploadId", upload)]
    answer = raw.signed("PUT", f"/{bucket}/k", query=query, body=b"x" * 90_000, payload=sha256(b"another"))
    assert (answer.status, answer.code) == (400, "XAmzContentSHA256Mismatch"), answer
    assert "Parts" not in bench.s3.list_parts(Bucket=bucket, Key="k", UploadId=upload)


@checks
def a_completion_checks_the_announced_size(bench):
    bucket = bench.bucket()
    upload = begin(bench, bucket)
    parts = [put_part(bench, bucket, upload, 1, b"x" * 3000)]
    with fails("InvalidRequest", 400):
        complete(bench, bucket, upload, parts, MpuObjectSize=2999)
    complete(bench, bucket, upload, parts, MpuObjectSize=3000)


@checks
def the_sdk_transfers_a_large_file_both_ways(bench):
    from boto3.s3.transfer import TransferConfig

    bucket, data = bench.bucket(), content("large", 64 * MIB + 4321)
    path, back = bench.file(data), bench.folder() / "back"
    config = TransferConfig(multipart_threshold=8 * MIB, multipart_chunksize=8 * MIB, max_concurrency=8)
    bench.s3.upload_file(str(path), bucket, "large", Config=config)
    bench.s3.download_file(bucket, "large", str(back), Config=config)
    assert back.read_bytes() == data


@checks
def an_upload_that_nobody_ends_is_aborted(bench):
    config = bench.scratch / "upload-life.toml"
    config.write_text('upload_life = "4s"\n')
    server = Server(default_binary(), bench.scratch / "upload-life", extra=["--config", config]).start()
    try:
        s3 = server.boto3()
        s3.create_bucket(Bucket="left")
        begun = time.monotonic()
        upload = s3.create_multipart_upload(Bucket="left", Key="k")["UploadId"]
        s3.upload_part(Bucket="left", Key="k", UploadId=upload, PartNumber=1, Body=b"x")
        while s3.list_multipart_uploads(Bucket="left").get("Uploads"):
            assert time.monotonic() < begun + 30, "it is there still"
            time.sleep(0.1)
        assert time.monotonic() > begun + 3.9, "it is aborted too early"
        with urllib.request.urlopen(server.metrics_url(), timeout=5) as answer:
            assert "larder_uploads_expired_total 1\n" in answer.read().decode()
        s3.delete_bucket(Bucket="left")
    finally:
        server.kill()
