//! A request through the face: HTTP, signature, digests and answer, with nothing stored. The client
//! sends the same signed bytes again and again, which costs next to nothing.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::SystemTime;

use larder_bench::sign::{Credentials, EMPTY_PAYLOAD, Signed, Signer, amz_date, hex};
use sha2::{Digest, Sha256};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::Outcome;

const ACCESS: &str = "AKLARDERMICRO";
const SECRET: &str = "a-secret-for-counting";
const BODY: [u8; 8192] = [7; 8192];

pub(crate) fn get(count: u64) -> Outcome {
    run("GET", &[], count)
}

pub(crate) fn put(count: u64) -> Outcome {
    run("PUT", &BODY, count)
}

fn run(method: &str, body: &[u8], count: u64) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0"))?;
    let address = listener.local_addr()?;
    let (stop, stopped) = oneshot::channel::<()>();
    let root = larder_s3::Credentials { access_key: ACCESS.into(), secret_key: SECRET.into() };
    let (method, body) = (method.to_owned(), body.to_vec());
    let client = std::thread::spawn(move || {
        let sent = exchange(&address.to_string(), &method, &body, count);
        drop(stop);
        sent.map_err(|error| error.to_string())
    });
    runtime.block_on(larder_floor::serve(listener, root, async move {
        let _ended = stopped.await;
    }))?;
    client.join().map_err(|_| "the client panicked")??;
    Ok(())
}

fn exchange(host: &str, method: &str, body: &[u8], count: u64) -> Outcome {
    let mut stream = TcpStream::connect(host)?;
    // The floor answers gets with the size that was put last.
    let (put, request) = (request(host, "PUT", &BODY)?, request(host, method, body)?);
    let mut answer = vec![0; 64 * 1024];
    for sent in std::iter::once(&put).chain((0..count).map(|_| &request)) {
        stream.write_all(sent)?;
        read_answer(&mut stream, &mut answer)?;
    }
    Ok(())
}

fn request(host: &str, method: &str, body: &[u8]) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
    let mut signer = Signer::new(Credentials::new(ACCESS, SECRET, "us-east-1")?);
    let time = amz_date(SystemTime::now());
    let digest = hex(&Sha256::digest(body));
    let payload = if body.is_empty() { EMPTY_PAYLOAD } else { &digest };
    let path = "/bench/object";
    let headers =
        [("host", host), ("x-amz-content-sha256", payload), ("x-amz-date", time.as_str())];
    let signed = Signed { method, path, query: "", headers: &headers, payload };
    let authorization = signer.authorization(&time, &signed);
    let mut request = format!("{method} {path} HTTP/1.1\r\n");
    for (name, value) in headers {
        request += &format!("{name}: {value}\r\n");
    }
    request += &format!("authorization: {authorization}\r\ncontent-length: {}\r\n\r\n", body.len());
    Ok([request.as_bytes(), body].concat())
}

/// Reads one whole answer, which must be 200.
fn read_answer(stream: &mut TcpStream, buffer: &mut [u8]) -> Outcome {
    let mut filled = 0;
    loop {
        filled += match stream.read(&mut buffer[filled..])? {
            0 => return Err("the server closed the connection".into()),
            read => read,
        };
        let text = &buffer[..filled];
        let Some(head) = text.windows(4).position(|window| window == b"\r\n\r\n") else { continue };
        let head_text = String::from_utf8_lossy(&text[..head]).to_ascii_lowercase();
        if !head_text.starts_with("http/1.1 200") {
            return Err(head_text.into());
        }
        let length = head_text
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "))
            .ok_or("an answer without a length")?;
        if filled >= head + 4 + length.trim().parse::<usize>()? {
            return Ok(());
        }
    }
}
