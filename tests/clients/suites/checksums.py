"""S3's checksums: verified, stored, returned; as headers and as trailers."""

import base64
import hashlib
import zlib

from harness import Checks, content, fails
from sigv4 import UNSIGNED_TRAILER, plain_chunks, sha256

checks = Checks("checksums")


def crc64nvme(data):
    from awscrt import checksums

    return checksums.crc64nvme(data).to_bytes(8, "big")


def crc32c(data):
    from awscrt import checksums

    return checksums.crc32c(data).to_bytes(4, "big")


ALGORITHMS = {
    "CRC32": lambda data: zlib.crc32(data).to_bytes(4, "big"),
    "CRC32C": crc32c,
    "CRC64NVME": crc64nvme,
    "SHA1": lambda data: hashlib.sha1(data).digest(),
    "SHA256": lambda data: hashlib.sha256(data).digest(),
}


def encoded(algorithm, data):
    return base64.b64encode(ALGORITHMS[algorithm](data)).decode()


def header(algorithm):
    return f"x-amz-checksum-{algorithm.lower()}"


@checks
def each_algorithm_is_verified_stored_and_returned(bench):
    bucket = bench.bucket()
    for algorithm in ALGORITHMS:
        for size in (0, 10, 100_000, 9_000_000):
            data, field = content((algorithm, size), size), f"Checksum{algorithm}"
            expected = encoded(algorithm, data)
            put = bench.s3.put_object(Bucket=bucket, Key=algorithm, Body=data, **{field: expected})
            assert put[field] == expected, (algorithm, size, put)
            head = bench.s3.head_object(Bucket=bucket, Key=algorithm, ChecksumMode="ENABLED")
            assert head[field] == expected and head["ChecksumType"] == "FULL_OBJECT", (algorithm, size, head)
            got = bench.s3.get_object(Bucket=bucket, Key=algorithm, ChecksumMode="ENABLED")
            assert got["Body"].read() == data and got[field] == expected


@checks
def the_sdk_computes_each_algorithm(bench):
    bucket = bench.bucket()
    for algorithm in ALGORITHMS:
        data = content(algorithm, 50_000)
        put = bench.s3.put_object(Bucket=bucket, Key=algorithm, Body=data, ChecksumAlgorithm=algorithm)
        assert put[f"Checksum{algorithm}"] == encoded(algorithm, data)
        listed = {o["Key"]: o for o in bench.s3.list_objects_v2(Bucket=bucket)["Contents"]}
        assert listed[algorithm]["ChecksumAlgorithm"] == [algorithm], listed[algorithm]


@checks
def a_wrong_checksum_puts_nothing(bench):
    bucket = bench.bucket()
    bench.s3.put_object(Bucket=bucket, Key="k", Body=b"old")
    for algorithm in ALGORITHMS:
        for size in (10, 100_000, 9_000_000):
            data = content((algorithm, size), size)
            with fails("BadDigest", 400):
                wrong = encoded(algorithm, data + b"!")
                bench.s3.put_object(Bucket=bucket, Key="k", Body=data, **{f"Checksum{algorithm}": wrong})
    assert bench.s3.get_object(Bucket=bucket, Key="k")["Body"].read() == b"old"


@checks
def a_checksum_of_another_length_is_refused(bench):
    bucket, raw = bench.bucket(), bench.raw()
    for algorithm in ALGORITHMS:
        for value in ("", "AAAA", "not base64!"):
            answer = raw.signed("PUT", f"/{bucket}/k", headers={header(algorithm): value}, body=b"x")
            assert answer.status == 400, f"{algorithm} {value!r}: {answer}"
    with fails("404", 404):
        bench.s3.head_object(Bucket=bucket, Key="k")


@checks
def checksums_are_returned_only_when_asked_for(bench):
    bucket = bench.bucket()
    bench.s3.put_object(Bucket=bucket, Key="k", Body=b"x", ChecksumAlgorithm="SHA256")
    plain = bench.server.boto3(response_checksum_validation="when_required")
    assert "ChecksumSHA256" not in plain.head_object(Bucket=bucket, Key="k")
    assert "ChecksumSHA256" in plain.head_object(Bucket=bucket, Key="k", ChecksumMode="ENABLED")


@checks
def content_md5_is_verified(bench):
    bucket, raw = bench.bucket(), bench.raw()
    digest = lambda data: base64.b64encode(hashlib.md5(data).digest()).decode()
    for size in (0, 10, 100_000, 9_000_000):
        data = content(size, size)
        right = raw.signed("PUT", f"/{bucket}/k", headers={"content-md5": digest(data)}, body=data)
        assert right.status == 200, right
        wrong = raw.signed("PUT", f"/{bucket}/k", headers={"content-md5": digest(data + b"!")}, body=data)
        assert (wrong.status, wrong.code) == (400, "BadDigest"), wrong
    for nonsense in ("", "AAAA", "not base64 at all"):
        answer = raw.signed("PUT", f"/{bucket}/k", headers={"content-md5": nonsense}, body=b"x")
        assert (answer.status, answer.code) == (400, "InvalidDigest"), f"{nonsense!r}: {answer}"


@checks
def a_wrong_payload_hash_puts_nothing(bench):
    bucket, raw = bench.bucket(), bench.raw()
    for size in (10, 100_000, 9_000_000):
        answer = raw.signed("PUT", f"/{bucket}/k", body=content(size, size), payload=sha256(b"another"))
        assert (answer.status, answer.code) == (400, "XAmzContentSHA256Mismatch"), answer
    with fails("404", 404):
        bench.s3.head_object(Bucket=bucket, Key="k")


def with_trailer(raw, path, data, trailers, chunk=65_536, algorithm=None):
    chunks = [data[at : at + chunk] for at in range(0, len(data), chunk)]
    headers = {
        "content-encoding": "aws-chunked", "x-amz-decoded-content-length": str(len(data)),
        "x-amz-trailer": ",".join(name for name, _ in trailers),
    }
    if algorithm:
        headers["x-amz-sdk-checksum-algorithm"] = algorithm
    return raw.signed("PUT", path, headers=headers, body=plain_chunks(chunks, trailers), payload=UNSIGNED_TRAILER)


@checks
def trailers_of_each_algorithm_are_verified_and_stored(bench):
    bucket, raw = bench.bucket(), bench.raw()
    for algorithm in ALGORITHMS:
        for size in (0, 1, 65_536, 200_000, 9_000_000):
            data = content((algorithm, size), size)
            answer = with_trailer(
                raw, f"/{bucket}/{algorithm}", data, [(header(algorithm), encoded(algorithm, data))],
                algorithm=algorithm)
            assert answer.status == 200, f"{algorithm} {size}: {answer}"
            got = bench.s3.get_object(Bucket=bucket, Key=algorithm, ChecksumMode="ENABLED")
            assert got["Body"].read() == data and got[f"Checksum{algorithm}"] == encoded(algorithm, data)
            assert "aws-chunked" not in got.get("ContentEncoding", ""), "aws-chunked is framing, not content"


@checks
def a_wrong_trailer_puts_nothing(bench):
    bucket, raw = bench.bucket(), bench.raw()
    for algorithm in ALGORITHMS:
        for size in (1, 200_000, 9_000_000):
            data = content((algorithm, size), size)
            answer = with_trailer(raw, f"/{bucket}/k", data, [(header(algorithm), encoded(algorithm, data + b"!"))])
            assert (answer.status, answer.code) == (400, "BadDigest"), f"{algorithm} {size}: {answer}"
    with fails("404", 404):
        bench.s3.head_object(Bucket=bucket, Key="k")


@checks
def a_promised_trailer_that_is_missing_puts_nothing(bench):
    bucket, raw = bench.bucket(), bench.raw()
    headers = {
        "content-encoding": "aws-chunked", "x-amz-decoded-content-length": "5", "x-amz-trailer": header("CRC32"),
    }
    answer = raw.signed(
        "PUT", f"/{bucket}/k", headers=headers, body=plain_chunks([b"hello"], []), payload=UNSIGNED_TRAILER)
    assert answer.status == 400, answer
    with fails("404", 404):
        bench.s3.head_object(Bucket=bucket, Key="k")


@checks
def parts_with_checksums_make_a_composite(bench):
    bucket = bench.bucket()
    for algorithm in ("CRC32", "CRC32C", "SHA1", "SHA256"):
        field = f"Checksum{algorithm}"
        upload = bench.s3.create_multipart_upload(Bucket=bucket, Key=algorithm, ChecksumAlgorithm=algorithm)
        assert upload["ChecksumAlgorithm"] == algorithm
        parts, digests = [], b""
        for number, size in ((1, 5 * 1024 * 1024), (2, 70_000)):
            data = content((algorithm, number), size)
            part = bench.s3.upload_part(
                Bucket=bucket, Key=algorithm, UploadId=upload["UploadId"], PartNumber=number, Body=data,
                ChecksumAlgorithm=algorithm)
            assert part[field] == encoded(algorithm, data)
            digests += ALGORITHMS[algorithm](data)
            parts.append({"PartNumber": number, "ETag": part["ETag"], field: part[field]})
        done = bench.s3.complete_multipart_upload(
            Bucket=bucket, Key=algorithm, UploadId=upload["UploadId"], MultipartUpload={"Parts": parts})
        composite = base64.b64encode(ALGORITHMS[algorithm](digests)).decode() + "-2"
        assert done[field] == composite, (algorithm, done)
        head = bench.s3.head_object(Bucket=bucket, Key=algorithm, ChecksumMode="ENABLED")
        assert head[field] == composite and head["ChecksumType"] == "COMPOSITE", head


@checks
def crcs_of_parts_make_the_crc_of_the_whole(bench):
    bucket = bench.bucket()
    for algorithm in ("CRC32", "CRC32C", "CRC64NVME"):
        field, key = f"Checksum{algorithm}", algorithm
        upload = bench.s3.create_multipart_upload(
            Bucket=bucket, Key=key, ChecksumAlgorithm=algorithm, ChecksumType="FULL_OBJECT")["UploadId"]
        parts, whole = [], b""
        for number, size in ((1, 5 * 1024 * 1024), (2, 6 * 1024 * 1024), (3, 70_001)):
            data = content((algorithm, number), size)
            part = bench.s3.upload_part(
                Bucket=bucket, Key=key, UploadId=upload, PartNumber=number, Body=data, ChecksumAlgorithm=algorithm)
            whole += data
            parts.append({"PartNumber": number, "ETag": part["ETag"], field: part[field]})
        complete = lambda checksum, upload=upload, key=key, parts=parts, field=field: (
            bench.s3.complete_multipart_upload(
                Bucket=bucket, Key=key, UploadId=upload, MultipartUpload={"Parts": parts},
                ChecksumType="FULL_OBJECT", **{field: checksum}))
        with fails("BadDigest", 400):
            complete(encoded(algorithm, whole + b"!"))
        done = complete(encoded(algorithm, whole))
        assert done[field] == encoded(algorithm, whole) and done["ChecksumType"] == "FULL_OBJECT", done
        got = bench.s3.get_object(Bucket=bucket, Key=key, ChecksumMode="ENABLED")
        assert got["Body"].read() == whole and got[field] == encoded(algorithm, whole)


@checks
def object_attributes_name_size_etag_and_checksum(bench):
    bucket, data = bench.bucket(), content("attributes", 40_000)
    put = bench.s3.put_object(Bucket=bucket, Key="k", Body=data, ChecksumAlgorithm="SHA256")
    got = bench.s3.get_object_attributes(
        Bucket=bucket, Key="k", ObjectAttributes=["ETag", "Checksum", "ObjectSize", "StorageClass"])
    assert got["ObjectSize"] == 40_000 and got["ETag"].strip('"') == put["ETag"].strip('"'), got
    assert got["Checksum"]["ChecksumSHA256"] == encoded("SHA256", data) and got["StorageClass"] == "STANDARD"
