//! Ports that the server is to listen at, the other machines of its cluster, and the secret that they share.

use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::time::Duration;

use super::{Finding, Patient};
use crate::node;
use crate::serving::METRICS_DEFAULT;

/// Time that another machine has to answer.
const ANSWER_MAX: Duration = Duration::from_secs(2);

pub(super) fn check(patient: &Patient) -> Vec<Finding> {
    let Patient { config, is_running, .. } = patient;
    let mut findings = vec![port("S3 address", &config.listen, "`listen`", *is_running)];
    match config.metrics_listen.as_deref() {
        Some("off") => {}
        given => {
            let address = given.unwrap_or(METRICS_DEFAULT);
            findings.push(port("metrics", address, "`metrics_listen`", *is_running));
        }
    }
    if !config.peers.is_empty() {
        findings.extend(cluster(patient));
    }
    findings
}

fn port(check: &'static str, address: &str, setting: &str, is_running: bool) -> Finding {
    match TcpListener::bind(address) {
        Ok(_) => Finding::ok(check, format!("{address} is free")),
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse && is_running => {
            Finding::ok(check, format!("{address} is taken, as a server runs here"))
        }
        Err(error) => Finding::fault(
            check,
            format!("{address} cannot be listened at: {error}"),
            format!("stop what has it, or name another with {setting}"),
        ),
    }
}

/// The name of this machine in its cluster, its secret, and the others that it reaches.
fn cluster(patient: &Patient) -> Vec<Finding> {
    let Patient { dir, config, is_running, .. } = patient;
    let me = match node::whoami(dir, config) {
        Ok(me) => me,
        Err(error) => {
            return vec![Finding::fault(
                "this machine",
                error.to_string(),
                "set `me`, or mend the list of `peers`",
            )];
        }
    };
    let mut findings = vec![port("peers' port", &me, "`peers`, on all machines", *is_running)];
    findings.extend(secret(patient));
    // Side by side: each may take as long as it has.
    std::thread::scope(|scope| {
        let others = config.peers.iter().filter(|peer| **peer != me);
        let asked: Vec<_> = others.map(|peer| scope.spawn(|| reached(peer))).collect();
        findings.extend(asked.into_iter().filter_map(|it| it.join().ok()));
    });
    findings
}

fn secret(patient: &Patient) -> Option<Finding> {
    const CHECK: &str = "secret";
    let file = patient.config.secret_file.as_ref()?;
    Some(match node::check_secret(file) {
        Ok(()) => Finding::ok(CHECK, format!("{} is one", file.display())),
        Err(error) => Finding::fault(
            CHECK,
            error.to_string(),
            "copy the file of another machine, and let the server alone read it; `larder secret` makes one for a new cluster",
        ),
    })
}

fn reached(peer: &str) -> Finding {
    const CHECK: &str = "peer";
    let addresses = match peer.to_socket_addrs() {
        Ok(addresses) => addresses,
        Err(error) => {
            return Finding::fault(
                CHECK,
                format!("{peer} stands for no address: {error}"),
                "mend the name, DNS or /etc/hosts",
            );
        }
    };
    let mut failed = "it stands for no address".to_owned();
    for address in addresses {
        match TcpStream::connect_timeout(&address, ANSWER_MAX) {
            Ok(_) => return Finding::ok(CHECK, format!("{peer} answers at {address}")),
            Err(error) => failed = format!("{address}: {error}"),
        }
    }
    Finding::warning(
        CHECK,
        format!("{peer} does not answer: {failed}"),
        "start it, or open that port between the machines",
    )
}

#[cfg(test)]
mod tests {
    use super::super::Grade;
    use super::*;

    #[test]
    fn a_taken_port_is_a_fault_unless_a_server_runs_here() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap().to_string();
        assert_eq!(port("S3 address", &address, "`listen`", false).grade, Grade::Fault);
        assert_eq!(port("S3 address", &address, "`listen`", true).grade, Grade::Ok);
        assert_eq!(reached(&address).grade, Grade::Ok);
        drop(taken);
        assert_eq!(port("S3 address", &address, "`listen`", false).grade, Grade::Ok);
        assert_eq!(reached(&address).grade, Grade::Warning);
    }

    #[test]
    fn an_address_of_another_machine_cannot_be_listened_at() {
        // Of a network for documentation.
        assert_eq!(port("S3 address", "192.0.2.1:9000", "`listen`", true).grade, Grade::Fault);
    }
}
