//! Root's keys: where they come from, and what a start tells of them.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::Child;

use larder_identity::Role;

use crate::process::{QUIET, Scratch, a_free_address, a_token, end, outcome, run, start};

#[test]
fn half_a_pair_of_keys_is_an_error_of_settings_that_names_the_other_half() {
    let scratch = Scratch::new();
    let (dir, secret) = (scratch.path("dir"), scratch.path("secret"));
    let backend = format!("file://{}", scratch.path("blobs"));
    let role = scratch.file(
        "proxy.toml",
        &format!(
            "dir = {dir:?}\nlisten = \"127.0.0.1:0\"\ns3_listen = \"127.0.0.1:0\"\n\
             managers = [\"0@127.0.0.1:1\"]\njoin = {:?}",
            a_token(Role::Proxy)
        ),
    );
    let free = a_free_address();
    let one = scratch.file("larder.toml", "copies = 1");
    let peer = ["server", &dir, "--config", &one, "--peer", &free, "--secret-file", &secret];
    let keys = ["LARDER_ROOT_ACCESS_KEY", "LARDER_ROOT_SECRET_KEY"];
    for words in [
        [&["server", &dir], &QUIET[..]].concat(),
        [&["pack", &dir, "--backend", &backend], &QUIET[..]].concat(),
        [&peer[..], &QUIET].concat(),
        vec!["proxy", "--config", &role],
    ] {
        for (set, missing) in [(keys[0], keys[1]), (keys[1], keys[0])] {
            let ended = run(&words, &[(set, "half-of-them")]);
            assert_eq!(ended.code, Some(2), "{words:?}: {ended:?}");
            let said = format!("error: {set} is set but {missing} is not: set both, or neither");
            assert!(ended.said.contains(&said), "{words:?}: {}", ended.said);
        }
    }
}

#[test]
fn newly_drawn_keys_are_announced() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path().join("store");
    let words = [&["server", dir.to_str().unwrap()], &QUIET[..]].concat();
    let first = run(&words, &[]);
    assert!(first.served && !first.said.contains("warning"), "{first:?}");
    fs::remove_file(dir.join("credentials.toml")).unwrap();
    let mut child = start(&words, &[]);
    let again = outcome(&mut child);
    end(child);
    let file = dir.join("credentials.toml").display().to_string();
    assert!(again.said.contains("clients with the old ones are refused"), "{}", again.said);
    assert!(again.said.contains(&file), "{}", again.said);
}

/// Stderr of a process that is stopped once it has printed `until`.
fn wait_for_output(mut child: Child, until: &str) -> String {
    let mut stderr = child.stderr.take().unwrap();
    let mut said = Vec::new();
    while !String::from_utf8_lossy(&said).contains(until) {
        let mut piece = [0; 4096];
        let len = stderr.read(&mut piece).unwrap();
        assert!(len > 0, "it ended: {}", String::from_utf8_lossy(&said));
        said.extend_from_slice(&piece[..len]);
    }
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    stderr.read_to_end(&mut said).unwrap();
    child.wait().unwrap();
    String::from_utf8(said).unwrap()
}

/// The file is named, and the keys are neither shown nor taken for shown: nobody looks at a pipe.
fn names_its_file(said: &str, file: &Path) {
    let named = format!("Root credentials are kept in {}\n", file.display());
    assert_eq!(said.matches(&named).count(), 1, "{said}");
    let kept = fs::read_to_string(file).unwrap();
    let secret = kept.lines().find_map(|line| line.strip_prefix("secret_key = ")).unwrap();
    assert!(!said.contains(secret.trim_matches('"')), "{said}");
    assert!(kept.starts_with("# Not shown yet"), "no terminal has shown them: {kept}");
}

#[test]
fn every_start_names_the_file_of_its_keys() {
    let scratch = Scratch::new();
    let backend = format!("file://{}", scratch.path("blobs"));
    let (secret, free) = (scratch.path("secret"), a_free_address());
    let one = scratch.file("larder.toml", "copies = 1");
    let dirs = ["store", "worker", "machine"].map(|name| scratch.path(name));
    let [store, worker, machine] = &dirs;
    let peer = ["--config", &one, "--peer", &free, "--secret-file", &secret];
    let last_of_a_face = "s3 mb s3://first";
    for (words, dir, last) in [
        (vec!["server", store], store, last_of_a_face),
        (vec!["pack", worker, "--backend", &backend], worker, last_of_a_face),
        ([&["server", machine], &peer[..]].concat(), machine, "the proxy has started"),
    ] {
        for _start in 0..2 {
            let said = wait_for_output(start(&[&words[..], &QUIET].concat(), &[]), last);
            names_its_file(&said, &Path::new(dir).join("credentials.toml"));
        }
    }
}

#[test]
fn a_proxy_names_the_file_that_its_configuration_names() {
    let scratch = tempfile::tempdir().unwrap();
    // The program tells paths without links.
    let dir = scratch.path().canonicalize().unwrap();
    let child = start(&["dev-cluster", dir.to_str().unwrap(), "--nodes", "1"], &[]);
    let said = wait_for_output(child, "SIGTERM or Ctrl-C stops all of it");
    let file = dir.join("credentials.toml");
    names_its_file(&said, &file);
    let role = fs::read_to_string(dir.join("node-1/proxy/role.toml")).unwrap();
    assert!(role.contains(&format!("credentials = {:?}", file.display().to_string())), "{role}");
    let said = fs::read_to_string(dir.join("node-1/proxy/process.log")).unwrap();
    names_its_file(&said, &file);
}
