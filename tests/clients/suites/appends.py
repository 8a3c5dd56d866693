"""Appends at an offset, and records of many clients on one key."""

import threading

from harness import Checks, content, fails, md5

checks = Checks("appends")
refused = Checks("appends refused")

MIB = 1024 * 1024


def record(raw, bucket, key, body, headers=None):
    """Appends a record; where it begins."""
    answer = raw.signed("PUT", f"/{bucket}/{key}", headers={"x-larder-append": "record", **(headers or {})}, body=body)
    assert answer.status == 200, answer
    offset = int(answer.headers["x-larder-offset"])
    assert int(answer.headers["x-amz-object-size"]) == offset + len(body), answer
    return offset


@checks
def an_object_grows_by_appends_of_every_size(bench):
    bucket, whole = bench.bucket(), b""
    for turn, size in enumerate([1, 2048, 2049, 70_000, 9 * MIB, 3, 4096]):
        body = content(turn, size)
        answer = bench.s3.put_object(Bucket=bucket, Key="k", Body=body, WriteOffsetBytes=len(whole))
        whole += body
        assert answer["Size"] == len(whole), answer
        head = bench.s3.head_object(Bucket=bucket, Key="k")
        assert (head["ContentLength"], head["ETag"]) == (len(whole), answer["ETag"]), head
    got = bench.s3.get_object(Bucket=bucket, Key="k")
    assert md5(got["Body"].read()) == md5(whole)
    for first, last in ((0, 0), (2040, 2060), (4000, 80_000), (70_000, 9 * MIB), (len(whole) - 10, len(whole) - 1)):
        part = bench.s3.get_object(Bucket=bucket, Key="k", Range=f"bytes={first}-{last}")["Body"].read()
        assert part == whole[first:last + 1], (first, last)
    listed = bench.s3.list_objects_v2(Bucket=bucket)["Contents"]
    assert [(entry["Key"], entry["Size"], entry["ETag"]) for entry in listed] == [("k", len(whole), got["ETag"])]


@checks
def small_large_and_multipart_objects_can_be_appended_to(bench):
    bucket = bench.bucket()
    objects = {"empty": b"", "small": b"hello", "chunk": content(1, 100_000), "stream": content(2, 17 * MIB)}
    for key, body in objects.items():
        bench.s3.put_object(Bucket=bucket, Key=key, **({"Body": body} if body else {}))
    upload = bench.s3.create_multipart_upload(Bucket=bucket, Key="parts")["UploadId"]
    parts = [content(3, 6 * MIB), content(4, 1000)]
    named = [
        {"PartNumber": n, "ETag": bench.s3.upload_part(
            Bucket=bucket, Key="parts", UploadId=upload, PartNumber=n, Body=body)["ETag"]}
        for n, body in enumerate(parts, 1)
    ]
    bench.s3.complete_multipart_upload(Bucket=bucket, Key="parts", UploadId=upload, MultipartUpload={"Parts": named})
    objects["parts"] = b"".join(parts)
    for key, body in objects.items():
        tail = content(key, 5000)
        bench.s3.put_object(Bucket=bucket, Key=key, Body=tail, WriteOffsetBytes=len(body))
        assert md5(bench.s3.get_object(Bucket=bucket, Key=key)["Body"].read()) == md5(body + tail), key
        bench.s3.copy_object(Bucket=bucket, Key=f"{key}.copy", CopySource={"Bucket": bucket, "Key": key})
        copy = bench.s3.get_object(Bucket=bucket, Key=f"{key}.copy")
        assert md5(copy["Body"].read()) == md5(body + tail), key
        size = bench.s3.get_object_attributes(Bucket=bucket, Key=key, ObjectAttributes=["ObjectSize", "ObjectParts"])
        assert size["ObjectSize"] == len(body + tail) and "ObjectParts" not in size, size
        bench.s3.delete_object(Bucket=bucket, Key=key)
        with fails("NoSuchKey", 404):
            bench.s3.get_object(Bucket=bucket, Key=key)


@checks
def another_offset_is_refused_and_changes_nothing(bench):
    bucket = bench.bucket()
    append = lambda offset, **more: bench.s3.put_object(
        Bucket=bucket, Key="k", Body=b"x" * 10, WriteOffsetBytes=offset, **more)
    with fails("InvalidWriteOffset", 400):
        append(5)
    append(0)
    for offset in (0, 9, 11):
        with fails("InvalidWriteOffset", 400):
            append(offset)
    with fails("InvalidRequest", 400):
        append(10, Metadata={"a": "b"})
    with fails("InvalidRequest", 400):
        bench.s3.put_object(Bucket=bucket, Key="k", Body=b"", WriteOffsetBytes=10)
    assert bench.s3.get_object(Bucket=bucket, Key="k")["Body"].read() == b"x" * 10


@checks
def attributes_are_those_of_the_append_that_makes_the_object(bench):
    bucket = bench.bucket()
    bench.s3.put_object(
        Bucket=bucket, Key="k", Body=b"a", WriteOffsetBytes=0, ContentType="text/plain", Metadata={"colour": "blue"})
    bench.s3.put_object(Bucket=bucket, Key="k", Body=b"b", WriteOffsetBytes=1, ContentType="text/html")
    record(bench.raw(), bucket, "k", b"c", {"x-amz-meta-colour": "red"})
    head = bench.s3.head_object(Bucket=bucket, Key="k")
    assert (head["ContentType"], head["Metadata"]) == ("text/plain", {"colour": "blue"}), head
    assert bench.s3.get_object(Bucket=bucket, Key="k")["Body"].read() == b"abc"


@checks
def conditions_hold_of_the_object_that_grows(bench):
    bucket = bench.bucket()
    etag = bench.s3.put_object(Bucket=bucket, Key="k", Body=b"a", WriteOffsetBytes=0, IfNoneMatch="*")["ETag"]
    with fails("PreconditionFailed", 412):
        bench.s3.put_object(Bucket=bucket, Key="k", Body=b"b", WriteOffsetBytes=1, IfNoneMatch="*")
    bench.s3.put_object(Bucket=bucket, Key="k", Body=b"b", WriteOffsetBytes=1, IfMatch=etag)
    with fails("PreconditionFailed", 412):
        bench.s3.put_object(Bucket=bucket, Key="k", Body=b"c", WriteOffsetBytes=2, IfMatch=etag)
    assert bench.s3.get_object(Bucket=bucket, Key="k")["Body"].read() == b"ab"


@checks
def a_full_object_checksum_goes_on(bench):
    bucket = bench.bucket()
    bench.s3.put_object(Bucket=bucket, Key="k", Body=b"1234", ChecksumAlgorithm="CRC32")
    bench.s3.put_object(Bucket=bucket, Key="k", Body=b"56", WriteOffsetBytes=4, ChecksumAlgorithm="CRC32C")
    record(bench.raw(), bucket, "k", b"789")
    got = bench.s3.get_object(Bucket=bucket, Key="k", ChecksumMode="ENABLED")
    assert (got["ChecksumCRC32"], got["ChecksumType"]) == ("y/Q5Jg==", "FULL_OBJECT"), got
    assert got["Body"].read() == b"123456789"
    with fails("BadDigest", 400):
        bench.s3.put_object(Bucket=bucket, Key="k", Body=b"0", WriteOffsetBytes=9, ChecksumCRC32="AAAAAA==")


@checks
def of_racing_appends_at_one_offset_exactly_one_wins(bench):
    bucket, end = bench.bucket(), 0
    for turn, size in enumerate([10, 5000, 100_000, 10]):
        start, won, lost = threading.Barrier(8), [], []

        def run(number, end=end, size=size, turn=turn, start=start, won=won, lost=lost):
            start.wait()
            answer = bench.raw().signed(
                "PUT", f"/{bucket}/k", headers={"x-amz-write-offset-bytes": str(end)}, body=content((turn, number), size))
            (won if answer.status == 200 else lost).append((number, answer.code))

        run_all(run, 8)
        assert len(won) == 1 and {code for _, code in lost} == {"InvalidWriteOffset"}, (won, lost)
        body = bench.s3.get_object(Bucket=bucket, Key="k", Range=f"bytes={end}-")["Body"].read()
        assert body == content((turn, won[0][0]), size)
        end += size


@checks
def each_record_of_many_clients_is_there_once_and_whole(bench):
    bucket, writers, each = bench.bucket(), 8, 25
    written, failed = {}, []

    def run(writer):
        try:
            raw = bench.raw()
            for n in range(each):
                body = content((writer, n), 20 + (writer * 977 + n * 331) % 9000)
                written[(writer, n)] = (record(raw, bucket, "log", body), body)
        except Exception as error:
            failed.append(repr(error))

    def read():
        seen = 0
        while len(written) < writers * each and not failed:
            answer = bench.raw().signed("GET", f"/{bucket}/log")
            if answer.status == 200:
                assert len(answer.body) >= seen, "what was seen is not gone"
                seen = len(answer.body)

    reader = threading.Thread(target=read)
    reader.start()
    run_all(run, writers)
    reader.join()
    assert not failed, failed
    whole, end = bench.s3.get_object(Bucket=bucket, Key="log")["Body"].read(), 0
    for offset, body in sorted(written.values()):
        assert offset == end, f"a gap or an overlap at {end}"
        assert whole[offset:offset + len(body)] == body, f"the record at {offset} is another"
        end += len(body)
    assert end == len(whole)
    for writer in range(writers):
        offsets = [written[(writer, n)][0] for n in range(each)]
        assert offsets == sorted(offsets), "a client's records are in its order"


@checks
def what_is_not_a_record_is_refused_by_name(bench):
    bucket, raw = bench.bucket(), bench.raw()
    ask = lambda headers, body=b"x": raw.signed("PUT", f"/{bucket}/k", headers=headers, body=body)
    answer = ask({"x-larder-append": "line"})
    assert (answer.status, answer.code) == (400, "InvalidArgument"), answer
    answer = ask({"x-larder-append": "record", "x-amz-write-offset-bytes": "0"})
    assert (answer.status, answer.code) == (400, "InvalidRequest"), answer
    assert raw.signed("GET", f"/{bucket}/k").status == 404


@checks
def a_record_too_large_is_refused_before_it_is_sent(bench):
    from botocore.exceptions import ClientError

    bucket, s3 = bench.bucket(), bench.server.boto3()
    s3.meta.events.register(
        "before-sign.s3.PutObject", lambda request, **_: request.headers.add_header("x-larder-append", "record"))
    largest = content(1, 8 * MIB)
    answer = s3.put_object(Bucket=bucket, Key="k", Body=largest)
    assert answer["ResponseMetadata"]["HTTPHeaders"]["x-larder-offset"] == "0", answer
    try:
        s3.put_object(Bucket=bucket, Key="k", Body=largest + b"x")
        raise AssertionError("it was taken")
    except ClientError as error:
        told = error.response["Error"]
        assert told["Code"] == "EntityTooLarge", told
        assert "x-larder-append" in told["Message"] and "x-amz-write-offset-bytes" in told["Message"], told
    assert md5(s3.get_object(Bucket=bucket, Key="k")["Body"].read()) == md5(largest)


@refused
def a_store_that_takes_no_appends_says_so(bench):
    bucket, raw = bench.bucket(), bench.raw()
    bench.s3.put_object(Bucket=bucket, Key="k", Body=b"12345")
    for headers in ({"x-amz-write-offset-bytes": "5"}, {"x-larder-append": "record"}):
        answer = raw.signed("PUT", f"/{bucket}/k", headers=headers, body=b"678")
        assert (answer.status, answer.code) == (501, "NotImplemented"), answer
        assert all(name.encode() in answer.body for name in headers), answer
    assert bench.s3.get_object(Bucket=bucket, Key="k")["Body"].read() == b"12345"


def run_all(run, count):
    threads = [threading.Thread(target=run, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
