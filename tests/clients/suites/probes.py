"""What clients probe for: answered as AWS does; and what is not there says so."""

from harness import Checks, fails

checks = Checks("probes")

REFUSALS = ("NotImplemented", "AccessControlListNotSupported", "InvalidRequest")


@checks
def versioning_is_off(bench):
    bucket = bench.bucket()
    assert "Status" not in bench.s3.get_bucket_versioning(Bucket=bucket)


@checks
def a_bucket_is_not_public(bench):
    bucket = bench.bucket()
    assert bench.s3.get_bucket_policy_status(Bucket=bucket)["PolicyStatus"]["IsPublic"] is False


@checks
def absent_settings_are_named_as_absent(bench):
    bucket = bench.bucket()
    for call, code in (
        (bench.s3.get_bucket_policy, "NoSuchBucketPolicy"),
        (bench.s3.get_bucket_lifecycle_configuration, "NoSuchLifecycleConfiguration"),
        (bench.s3.get_bucket_cors, "NoSuchCORSConfiguration"),
        (bench.s3.get_bucket_tagging, "NoSuchTagSet"),
        (bench.s3.get_bucket_website, "NoSuchWebsiteConfiguration"),
        (bench.s3.get_object_lock_configuration, "ObjectLockConfigurationNotFoundError"),
        (bench.s3.get_bucket_replication, "ReplicationConfigurationNotFoundError"),
        (bench.s3.get_public_access_block, "NoSuchPublicAccessBlockConfiguration"),
    ):
        with fails(code, 404):
            call(Bucket=bucket)


@checks
def encryption_is_answered_as_aws_does_or_named_as_absent(bench):
    from botocore.exceptions import ClientError

    bucket = bench.bucket()
    try:
        rules = bench.s3.get_bucket_encryption(Bucket=bucket)["ServerSideEncryptionConfiguration"]["Rules"]
        assert rules
    except ClientError as error:
        assert error.response["Error"]["Code"] == "ServerSideEncryptionConfigurationNotFoundError", error


@checks
def access_lists_name_the_owner_with_full_control(bench):
    bucket = bench.bucket()
    bench.s3.put_object(Bucket=bucket, Key="k", Body=b"x")
    for acl in (bench.s3.get_bucket_acl(Bucket=bucket), bench.s3.get_object_acl(Bucket=bucket, Key="k")):
        assert [g["Permission"] for g in acl["Grants"]] == ["FULL_CONTROL"], acl
        assert acl["Owner"]["ID"] == acl["Grants"][0]["Grantee"]["ID"]


@checks
def settings_at_their_default_are_readable(bench):
    bucket = bench.bucket()
    assert bench.s3.get_bucket_request_payment(Bucket=bucket)["Payer"] == "BucketOwner"
    assert "LoggingEnabled" not in bench.s3.get_bucket_logging(Bucket=bucket)
    controls = bench.s3.get_bucket_ownership_controls(Bucket=bucket)["OwnershipControls"]
    assert controls["Rules"] == [{"ObjectOwnership": "BucketOwnerEnforced"}]
    assert "TopicConfigurations" not in bench.s3.get_bucket_notification_configuration(Bucket=bucket)


@checks
def what_is_not_there_says_so(bench):
    """Never silently "ok": a setting that is not kept must not look kept."""
    bucket, s3 = bench.bucket(), bench.s3
    s3.put_object(Bucket=bucket, Key="k", Body=b"x")
    rule = {"ID": "r", "Status": "Enabled", "Filter": {"Prefix": ""}, "Expiration": {"Days": 1}}
    for name, call in {
        "versioning": lambda: s3.put_bucket_versioning(
            Bucket=bucket, VersioningConfiguration={"Status": "Enabled"}),
        "lifecycle": lambda: s3.put_bucket_lifecycle_configuration(
            Bucket=bucket, LifecycleConfiguration={"Rules": [rule]}),
        "policy": lambda: s3.put_bucket_policy(Bucket=bucket, Policy='{"Version":"2012-10-17","Statement":[]}'),
        "website": lambda: s3.put_bucket_website(
            Bucket=bucket, WebsiteConfiguration={"IndexDocument": {"Suffix": "i"}}),
        "retention": lambda: s3.put_object_retention(
            Bucket=bucket, Key="k", Retention={"Mode": "GOVERNANCE", "RetainUntilDate": "2040-01-01T00:00:00Z"}),
        "legal hold": lambda: s3.put_object_legal_hold(Bucket=bucket, Key="k", LegalHold={"Status": "ON"}),
        "encryption with a customer key": lambda: s3.put_object(
            Bucket=bucket, Key="e", Body=b"x", SSECustomerAlgorithm="AES256", SSECustomerKey="k" * 32),
        "encryption with KMS": lambda: s3.put_object(
            Bucket=bucket, Key="e", Body=b"x", ServerSideEncryption="aws:kms", SSEKMSKeyId="key"),
        "encryption": lambda: s3.put_object(Bucket=bucket, Key="e", Body=b"x", ServerSideEncryption="AES256"),
        "object lock": lambda: s3.put_object(
            Bucket=bucket, Key="e", Body=b"x", ObjectLockMode="COMPLIANCE",
            ObjectLockRetainUntilDate="2040-01-01T00:00:00Z"),
        "public access list": lambda: s3.put_object(Bucket=bucket, Key="e", Body=b"x", ACL="public-read"),
        "select": lambda: s3.select_object_content(
            Bucket=bucket, Key="k", Expression="select 1", ExpressionType="SQL",
            InputSerialization={"CSV": {}}, OutputSerialization={"CSV": {}}),
        "restore": lambda: s3.restore_object(Bucket=bucket, Key="k", RestoreRequest={"Days": 1}),
    }.items():
        try:
            with fails(REFUSALS):
                call()
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from None
    with fails("404", 404):
        s3.head_object(Bucket=bucket, Key="e")


@checks
def malformed_bodies_are_named(bench):
    import base64
    import hashlib

    bucket, raw = bench.bucket(), bench.raw()
    for body in (b"", b"<Delete>", b"not xml", b"<Delete><Object></Object></Delete>", b"\xff\xfe"):
        digest = base64.b64encode(hashlib.md5(body).digest()).decode()
        answer = raw.signed("POST", f"/{bucket}", [("delete", "")], {"content-md5": digest}, body)
        assert answer.status == 400, f"{body!r}: {answer}"


@checks
def a_missing_length_is_named(bench):
    bucket, raw = bench.bucket(), bench.raw()
    head = raw.signer().headers("PUT", f"/{bucket}/k", [], {"host": raw.host}, "UNSIGNED-PAYLOAD")
    answer = raw.send("PUT", f"/{bucket}/k", headers=head, body=None)
    assert answer.status in (200, 411), answer
