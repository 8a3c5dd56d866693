//! The examples that AWS publishes for S3 ("Authenticating Requests: Using the Authorization Header",
//! transferring the payload in a single chunk).

use super::*;

const TIME: &str = "20130524T000000Z";
const HOST: (&str, &str) = ("host", "examplebucket.s3.amazonaws.com");
const DATE: (&str, &str) = ("x-amz-date", TIME);

fn signer() -> Signer {
    let secret = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";
    Signer::new(Credentials::new("AKIAIOSFODNN7EXAMPLE", secret, "us-east-1").unwrap())
}

fn signature(header: &str) -> &str {
    header.rsplit_once("Signature=").expect("it ends with the signature").1
}

#[test]
fn get_object_signs_as_published() {
    let request = Signed {
        method: "GET",
        path: "/test.txt",
        query: "",
        headers: &[HOST, ("range", "bytes=0-9"), ("x-amz-content-sha256", EMPTY_PAYLOAD), DATE],
        payload: EMPTY_PAYLOAD,
    };
    assert_eq!(
        signer().authorization(TIME, &request),
        "AWS4-HMAC-SHA256 \
         Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, \
         SignedHeaders=host;range;x-amz-content-sha256;x-amz-date, \
         Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
    );
}

#[test]
fn put_object_signs_as_published() {
    let payload = hex(&Sha256::digest(b"Welcome to Amazon S3."));
    let mut path = String::new();
    encode_path("/test$file.text", &mut path);
    assert_eq!(path, "/test%24file.text");
    let request = Signed {
        method: "PUT",
        path: &path,
        query: "",
        headers: &[
            ("date", "Fri, 24 May 2013 00:00:00 GMT"),
            HOST,
            ("x-amz-content-sha256", &payload),
            DATE,
            ("x-amz-storage-class", "REDUCED_REDUNDANCY"),
        ],
        payload: &payload,
    };
    assert_eq!(
        signature(&signer().authorization(TIME, &request)),
        "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd"
    );
}

#[test]
fn queries_sign_as_published() {
    for (query, expected) in [
        ("lifecycle=", "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"),
        ("max-keys=2&prefix=J", "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"),
    ] {
        let request = Signed {
            method: "GET",
            path: "/",
            query,
            headers: &[HOST, ("x-amz-content-sha256", EMPTY_PAYLOAD), DATE],
            payload: EMPTY_PAYLOAD,
        };
        assert_eq!(signature(&signer().authorization(TIME, &request)), expected, "{query}");
    }
}

#[test]
fn a_new_day_takes_a_new_key() {
    let request =
        Signed { method: "GET", path: "/", query: "", headers: &[HOST], payload: EMPTY_PAYLOAD };
    let mut signer = signer();
    let first = signer.authorization(TIME, &request);
    let next = signer.authorization("20130525T000000Z", &request);
    assert!(next.contains("/20130525/"), "{next}");
    assert_ne!(signature(&first), signature(&next));
    assert_eq!(first, signer.authorization(TIME, &request));
}

#[test]
fn empty_payload_is_the_digest_of_nothing() {
    assert_eq!(EMPTY_PAYLOAD, hex(&Sha256::digest(b"")));
}

#[test]
fn only_unreserved_characters_stand_for_themselves() {
    let mut text = String::new();
    encode_path("a/b c~d-e_f.ü+=&", &mut text);
    assert_eq!(text, "a/b%20c~d-e_f.%C3%BC%2B%3D%26");
    text.clear();
    encode_value("a/b", &mut text);
    assert_eq!(text, "a%2Fb");
}

#[test]
fn dates_follow_the_calendar() {
    for (seconds, text) in [
        (0, "19700101T000000Z"),
        (951_782_399, "20000228T235959Z"),
        (951_782_400, "20000229T000000Z"),
        (1_369_353_600, "20130524T000000Z"),
        (4_107_542_399, "21000228T235959Z"),
        (4_107_542_400, "21000301T000000Z"),
    ] {
        assert_eq!(amz_date(UNIX_EPOCH + Duration::from_secs(seconds)), text);
    }
}

#[test]
fn secrets_are_not_printed() {
    assert!(!format!("{:?}", signer()).contains("wJalr"));
}

#[test]
fn keys_that_cannot_stand_in_a_header_are_refused() {
    for (access_key, region) in [("", "r"), ("a b", "r"), ("ä", "r"), ("a/b", "r"), ("a", "r\n")] {
        let error = Credentials::new(access_key, "secret", region).unwrap_err().to_string();
        assert!(error.starts_with("AWS_"), "{error}");
    }
}
