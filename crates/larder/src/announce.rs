//! The lines by which a server says where it serves: sentences for people, or one line of the log where that is JSON.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

use crate::credentials::{self, Root};
use crate::logging;

/// Tells the operator what to do next.
pub(crate) fn serves(
    addr: SocketAddr,
    metrics: Option<SocketAddr>,
    root: &Root,
    region: &str,
    dir: &Path,
) {
    let file = dir.join(credentials::FILE);
    if logging::is_json() {
        let metrics = metrics.map(|addr| addr.to_string());
        tracing::info!(
            s3 = %addr, metrics, credentials = %file.display(), is_open = !addr.ip().is_loopback(),
            "Larder serves S3"
        );
        return;
    }
    eprintln!("Larder serves S3 on http://{addr}");
    metrics_on(metrics);
    if !addr.ip().is_loopback() {
        eprintln!(
            "S3 is plain HTTP here: before others reach it, put a proxy that ends TLS in front"
        );
    }
    let shows = root.show_once(&file);
    let secret = if shows { root.keys.secret_key.as_str() } else { "YOUR-SECRET-KEY" };
    eprintln!("Try:");
    eprintln!(
        "  AWS_ACCESS_KEY_ID={} AWS_SECRET_ACCESS_KEY={secret} AWS_DEFAULT_REGION={} aws \
         --endpoint-url http://{} s3 mb s3://first",
        root.keys.access_key,
        region,
        reached_at(addr)
    );
}

/// Says where metrics are.
pub(crate) fn metrics_on(metrics: Option<SocketAddr>) {
    match metrics {
        _ if logging::is_json() => {
            tracing::info!(metrics = metrics.map(|addr| addr.to_string()), "metrics listener")
        }
        Some(metrics) => eprintln!("Metrics are on http://{metrics}/metrics"),
        None => eprintln!("Metrics are off"),
    }
}

/// Says which machine of a cluster this is.
pub(crate) fn machine(name: &str, machines: usize, listen: &str, root: Option<&Root>, dir: &Path) {
    let file = dir.join(credentials::FILE);
    if logging::is_json() {
        let credentials = file.display();
        tracing::info!(name, machines, s3 = listen, %credentials, "a machine of a cluster starts");
        return;
    }
    eprintln!(
        "This is {name}, one of {machines} machines. It serves S3 on {listen} once the cluster is formed"
    );
    if let Some(root) = root {
        root.show_once(&file);
    }
}

/// An address that a client of this machine can name: one for all of a machine's addresses is none.
fn reached_at(addr: SocketAddr) -> SocketAddr {
    let ip = match addr.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    SocketAddr::new(ip, addr.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_shown_an_address_that_it_can_name() {
        for (listen, shown) in [
            ("0.0.0.0:9000", "127.0.0.1:9000"),
            ("[::]:9000", "[::1]:9000"),
            ("192.0.2.7:80", "192.0.2.7:80"),
        ] {
            assert_eq!(reached_at(listen.parse().unwrap()), shown.parse().unwrap());
        }
    }
}
