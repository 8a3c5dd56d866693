//! Requests by hand, for what no client library sends. For tests only.

use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

use crate::client::Ask;

/// The head of a request, with more header lines.
pub fn head(ask: &Ask, more: &str) -> String {
    let request = ask.build();
    let mut head = format!("{} {} HTTP/1.1\r\n{more}", request.method(), request.uri());
    for (name, value) in request.headers() {
        head.push_str(&format!("{name}: {}\r\n", value.to_str().unwrap()));
    }
    head.push_str("\r\n");
    head
}

/// Reads one answer with a body of known length. `None` if the connection ends before.
pub async fn read_answer(stream: &mut TcpStream) -> Option<String> {
    let mut read = Vec::new();
    while !read.ends_with(b"\r\n\r\n") {
        read.push(stream.read_u8().await.ok()?);
    }
    let head = String::from_utf8_lossy(&read).to_lowercase();
    let length = head
        .split_once("content-length: ")
        .and_then(|(_, rest)| rest.split_once("\r\n").and_then(|(length, _)| length.parse().ok()));
    let mut body = vec![0; length.unwrap_or(0)];
    stream.read_exact(&mut body).await.ok()?;
    read.extend_from_slice(&body);
    Some(String::from_utf8_lossy(&read).into_owned())
}
