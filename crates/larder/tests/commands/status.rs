//! `larder status DIR` of a running store, and `larder doctor DIR`.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use crate::process::{QUIET, Scratch, a_free_address, end, outcome, start};

fn status(words: &[&str]) -> Output {
    let all = [&["status"], words].concat();
    Command::new(env!("CARGO_BIN_EXE_larder")).args(all).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn a_running_store_reports_its_status() {
    let scratch = Scratch::new();
    // Longer than the address of a socket may be.
    let dir = scratch.path(&"d".repeat(150));
    let mut server = start(&[&["server", &dir], &QUIET[..]].concat(), &[]);
    assert!(outcome(&mut server).served);
    let shown = status(&[&dir]);
    let lines: Vec<&str> = text(&shown.stdout).lines().collect();
    assert_eq!(shown.status.code(), Some(0), "{shown:?}");
    assert!(lines[0].starts_with("well: 0 % of "), "{lines:?}");
    assert!(lines.contains(&"buckets: 0, with 0 objects of 0 B, each counted once"), "{lines:?}");
    let printed = status(&[&dir, "--json"]);
    let printed: Value = serde_json::from_slice(&printed.stdout).unwrap();
    let verdict = printed["verdict"].as_str().unwrap();
    assert!(verdict.starts_with("well: 0 % of "), "{verdict}");
    assert_eq!(
        (&printed["is_well"], &printed["is_ready"]),
        (&Value::Bool(true), &Value::Bool(true))
    );
    let usage = |words: &[&str]| {
        let all = [&["bucket", "usage", &dir], words].concat();
        Command::new(env!("CARGO_BIN_EXE_larder")).args(all).output().unwrap()
    };
    let counted: Value = serde_json::from_slice(&usage(&["--json"]).stdout).unwrap();
    let none = serde_json::json!({
        "is_exact": true, "pgs_uncounted": 0, "buckets": [], "buckets_not_named": 0, "objects": 0, "bytes": 0
    });
    assert_eq!(counted, none);
    let missing = usage(&["--bucket", "photos"]);
    assert_eq!(missing.status.code(), Some(2), "{missing:?}");
    assert_eq!(text(&missing.stderr), "error: there is no bucket \"photos\"\n");
    let space = |field: &str| printed["space"][field].as_u64().unwrap();
    assert_eq!(space("bytes"), space("used") + space("waiting") + space("free") + space("unknown"));
    assert!(space("free") > 0, "{printed}");
    end(server);
}

#[test]
fn a_store_that_nobody_serves_is_not_well() {
    let scratch = Scratch::new();
    let dir = scratch.path("dir");
    let mut server = start(&[&["server", &dir], &QUIET[..]].concat(), &[]);
    assert!(outcome(&mut server).served);
    end(server);
    // Killed: the socket is still there.
    assert!(fs::metadata(Path::new(&dir).join("status.sock")).unwrap().file_type().is_socket());
    let shown = status(&[&dir]);
    assert_eq!(shown.status.code(), Some(1), "{shown:?}");
    let expected = format!("error: NOT WELL: no server runs on {dir}");
    assert!(text(&shown.stderr).starts_with(&expected), "{shown:?}");
    // The next start takes its place.
    let mut server = start(&[&["server", &dir], &QUIET[..]].concat(), &[]);
    assert!(outcome(&mut server).served);
    assert_eq!(status(&[&dir]).status.code(), Some(0));
    end(server);
}

#[test]
fn what_is_not_there_or_said_twice_is_refused() {
    let scratch = Scratch::new();
    let missing = scratch.path("missing");
    let shown = status(&[&missing]);
    assert_eq!(shown.status.code(), Some(2), "{shown:?}");
    assert!(text(&shown.stderr).contains(&missing), "{shown:?}");
    let empty = scratch.path("empty");
    fs::create_dir(&empty).unwrap();
    let shown = status(&[&empty]);
    assert_eq!(shown.status.code(), Some(1), "{shown:?}");
    assert!(text(&shown.stderr).contains(&format!("is in {empty} yet")), "{shown:?}");
    for words in [&[][..], &["a", "--config", "b"]] {
        let shown = status(words);
        assert_eq!(shown.status.code(), Some(2), "{shown:?}");
    }
}

#[test]
fn a_development_cluster_is_queried_by_its_directory() {
    let scratch = Scratch::new();
    let dir = scratch.path("dir");
    fs::create_dir_all(Path::new(&dir).join("node-1/proxy")).unwrap();
    fs::write(Path::new(&dir).join("cluster.toml"), "").unwrap();
    let shown = status(&[&dir]);
    assert_eq!(shown.status.code(), Some(2), "{shown:?}");
    assert!(text(&shown.stderr).contains("node-1/proxy/role.toml"), "{shown:?}");
}

fn doctor(words: &[&str]) -> Output {
    let all = [&["doctor"], words].concat();
    Command::new(env!("CARGO_BIN_EXE_larder")).args(all).output().unwrap()
}

/// The finding of a check, by its name.
fn found(printed: &Output, check: &str) -> Value {
    let all: Vec<Value> = serde_json::from_slice(&printed.stdout).unwrap();
    all.into_iter().find(|it| it["check"] == check).unwrap()
}

#[test]
fn a_machine_is_examined_before_the_start_and_while_it_serves() {
    let scratch = Scratch::new();
    let (dir, free, taken) = (scratch.path("dir"), a_free_address(), scratch.taken());
    let settings = |listen: &str| {
        scratch.file("larder.toml", &format!("listen = {listen:?}\nmetrics_listen = \"off\"\n"))
    };
    let printed = doctor(&[&dir, "--config", &settings(&free), "--json"]);
    assert_eq!(printed.status.code(), Some(0), "{printed:?}");
    assert!(!Path::new(&dir).exists(), "it made the directory");
    let printed = doctor(&[&dir, "--config", &settings(&taken), "--json"]);
    assert_eq!(printed.status.code(), Some(1), "{printed:?}");
    assert_eq!(found(&printed, "S3 address")["grade"], "fault");

    let config = settings(&free);
    let words = ["server", &dir, "--config", &config];
    let mut server = start(&words, &[]);
    assert!(outcome(&mut server).served);
    let printed = doctor(&[&dir, "--config", &config, "--json"]);
    assert_eq!(printed.status.code(), Some(0), "{printed:?}");
    assert!(found(&printed, "S3 address")["saw"].as_str().unwrap().contains("a server runs here"));
    assert!(found(&printed, "directory")["saw"].as_str().unwrap().contains("a single node"));
    end(server);
}

#[test]
fn a_machine_of_a_cluster_is_examined_with_its_peers() {
    let scratch = Scratch::new();
    let (dir, secret) = (scratch.path("dir"), scratch.path("secret"));
    let (me, other, taken) = (a_free_address(), a_free_address(), scratch.taken());
    let peers = format!("{:?}", [&me, &other, &taken]);
    let settings = format!(
        "listen = \"127.0.0.1:0\"\nmetrics_listen = \"off\"\npeers = {peers}\nme = {me:?}\nsecret_file = {secret:?}\n"
    );
    let config = scratch.file("larder.toml", &settings);
    let printed = doctor(&[&dir, "--config", &config]);
    let said = text(&printed.stdout);
    assert_eq!(printed.status.code(), Some(0), "{said}");
    assert!(said.contains(&format!("WARNING  peer         {other} does not answer")), "{said}");
    assert!(said.contains(&format!("ok       peer         {taken} answers")), "{said}");
    assert!(said.contains(&format!("{secret} is one")), "{said}");
    fs::write(&secret, "nonsense").unwrap();
    let printed = doctor(&[&dir, "--config", &config]);
    assert_eq!(printed.status.code(), Some(1), "{printed:?}");
    assert!(text(&printed.stdout).contains("FAULT    secret"), "{printed:?}");
}
