//! Ports that are taken: a first start finds that out before it makes anything.

use larder_identity::Role;

use crate::process::{Scratch, a_free_address, a_token, leaves_nothing};

/// Each start with this one setting wrong leaves nothing, and says which it is.
fn refuses(words: &[&str], dir: &str, expected: &[&str]) {
    for said in leaves_nothing(words, &[], dir) {
        let is_sentence = said.starts_with("error: ") && said.lines().count() == 1;
        assert!(
            is_sentence && expected.iter().all(|expected| said.contains(expected)),
            "{words:?}: {said}"
        );
    }
}

#[test]
fn a_taken_port_of_a_node_is_named_and_nothing_is_made() {
    let scratch = Scratch::new();
    let (dir, taken) = (scratch.path("dir"), scratch.taken());
    let off = ["server", &dir, "--listen", &taken, "--metrics-listen", "off"];
    refuses(&off, &dir, &[&taken, "--listen"]);
    let metrics = ["server", &dir, "--listen", "127.0.0.1:0", "--metrics-listen", &taken];
    refuses(&metrics, &dir, &[&taken, "--metrics-listen"]);
}

#[test]
fn a_taken_port_of_a_machine_is_named_and_nothing_is_made() {
    let scratch = Scratch::new();
    let (dir, secret, taken) = (scratch.path("dir"), scratch.path("secret"), scratch.taken());
    let one = scratch.file("larder.toml", "copies = 1");
    let free = a_free_address();
    let head = ["server", &dir, "--config", &one, "--secret-file", &secret];
    for (name, listen, metrics, expected) in [
        (&taken, "127.0.0.1:0", "off", "--peer"),
        (&free, &taken, "off", "--listen"),
        (&free, "127.0.0.1:0", &taken, "--metrics-listen"),
    ] {
        let ports = ["--peer", name, "--listen", listen, "--metrics-listen", metrics];
        refuses(&[&head[..], &ports].concat(), &dir, &[&taken, expected]);
    }
}

#[test]
fn a_taken_port_of_a_worker_is_named_and_nothing_is_made() {
    let scratch = Scratch::new();
    let (dir, taken, blobs) = (scratch.path("dir"), scratch.taken(), scratch.path("blobs"));
    let backend = format!("file://{blobs}");
    let head = ["pack", &dir, "--backend", &backend];
    for (listen, metrics, expected) in
        [(&*taken, "off", "--listen"), ("127.0.0.1:0", &taken, "--metrics-listen")]
    {
        let ports = ["--listen", listen, "--metrics-listen", metrics];
        refuses(&[&head[..], &ports].concat(), &dir, &[&taken, expected]);
        assert!(!std::path::Path::new(&blobs).exists(), "it made the backend");
    }
}

#[test]
fn a_taken_port_of_a_role_is_named_and_nothing_is_made() {
    let scratch = Scratch::new();
    let (dir, taken, free) = (scratch.path("dir"), scratch.taken(), "127.0.0.1:0".to_owned());
    let manager = a_free_address();
    for (role, name) in [(Role::Meta, "meta"), (Role::Data, "data"), (Role::Proxy, "proxy")] {
        for field in ["listen", "metrics_listen", "s3_listen"] {
            if field == "s3_listen" && role != Role::Proxy {
                continue;
            }
            let address = |of: &str| if of == field { &taken } else { &free };
            let lines = format!(
                "dir = {dir:?}\nlisten = {:?}\nmetrics_listen = {:?}\ns3_listen = {:?}\n\
                 managers = [\"0@{manager}\"]\njoin = {:?}\n",
                address("listen"),
                address("metrics_listen"),
                address("s3_listen"),
                a_token(role),
            );
            let config = scratch.file("role.toml", &lines);
            let expected = format!("set {field}\n");
            refuses(&[name, "--config", &config], &dir, &[&taken, &expected]);
        }
    }
}
