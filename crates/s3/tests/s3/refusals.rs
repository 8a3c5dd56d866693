//! The words and elements of refusals, and the fate of a connection on which a request is refused before its body was read.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::client::{Ask, Server, Sign};
use crate::wire::{head, read_answer};

/// Requests that are refused by their heads, with what S3 calls the error.
fn refused(server: &Server, bytes: usize) -> Vec<(Ask, &'static str)> {
    let put = |path: &str| server.ask("PUT", path).body(vec![7; bytes]).payload("UNSIGNED-PAYLOAD");
    vec![
        (put("/no-such-bucket/k"), "NoSuchBucket"),
        (put("/bkt/k").header("x-amz-storage-class", "NO_SUCH_CLASS"), "InvalidStorageClass"),
        (put("/bkt/k").header("x-amz-acl", "public-read"), "AccessControlListNotSupported"),
        (put("/bkt/k").header("content-md5", "AAAA"), "InvalidDigest"),
        (put("/bkt/k").sign(Sign::Not), "AccessDenied"),
    ]
}

/// The client reads the refusal first, then sends the body and its next request.
#[tokio::test]
async fn a_refused_put_leaves_its_connection_usable() {
    let server = Server::bucket().await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    for bytes in [10, 250_000, 10, 10, 10, 250_000, 10, 10, 10, 10] {
        for (ask, code) in refused(&server, bytes) {
            let length = format!("content-length: {bytes}\r\n");
            stream.write_all(head(&ask, &length).as_bytes()).await.unwrap();
            let answer = read_answer(&mut stream).await.expect("an answer");
            assert!(answer.contains(code), "{bytes} {code}: {answer}");
            stream.write_all(&vec![7; bytes]).await.unwrap();
            let next = server.ask("PUT", "/bkt/good").body("");
            stream.write_all(head(&next, "content-length: 0\r\n").as_bytes()).await.unwrap();
            let answer = read_answer(&mut stream).await;
            assert!(
                answer.as_deref().unwrap_or("").starts_with("HTTP/1.1 200"),
                "{bytes} {code}: {answer:?}"
            );
        }
    }
}

/// The client sends all of the body before it reads.
#[tokio::test]
async fn a_large_refused_put_shows_the_error_whole() {
    const BYTES: usize = 4 * 1024 * 1024;
    let server = Server::bucket().await;
    let body = vec![7; BYTES];
    for round in 0..4 {
        for (ask, code) in refused(&server, BYTES) {
            let mut stream = TcpStream::connect(server.address).await.unwrap();
            let length = format!("content-length: {BYTES}\r\n");
            stream.write_all(head(&ask, &length).as_bytes()).await.unwrap();
            let sent = stream.write_all(&body).await;
            let mut answer = String::new();
            let read = stream.read_to_string(&mut answer).await;
            assert!(sent.is_ok() && read.is_ok(), "{round} {code}: {sent:?} {read:?} {answer}");
            assert!(answer.contains("connection: close"), "{answer}");
            assert!(answer.contains(code) && answer.ends_with("</Error>"), "{code}: {answer}");
        }
    }
}

/// A lingering connection ends, whatever its client does.
#[tokio::test]
async fn a_client_that_goes_on_sending_is_cut_off() {
    let server = Server::bucket().await;
    let ask = server.ask("PUT", "/no-such-bucket/k").payload("UNSIGNED-PAYLOAD");
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(head(&ask, "content-length: 5000000000\r\n").as_bytes()).await.unwrap();
    let piece = vec![7; 1024 * 1024];
    let mut sent = 0;
    while stream.write_all(&piece).await.is_ok() {
        sent += 1;
        assert!(sent < 1000, "a gigabyte was read of a refused put");
    }
}
