//! The program as a process: refused starts change no file, one of two starts wins, and starts name the file of their keys.

#![allow(clippy::unwrap_used)]

mod keys;
mod kinds;
mod ports;
mod process;
mod regions;
mod status;

use std::fs;
use std::path::Path;

use process::{QUIET, Scratch, a_free_address, contents, end, leaves_nothing, outcome, run, start};

#[test]
fn a_wrong_setting_of_a_node_leaves_nothing() {
    let scratch = Scratch::new();
    let (dir, taken) = (scratch.path("dir"), scratch.taken());
    let with = |config: &str, words: &[&str], variables: &[(&str, &str)]| {
        let config = scratch.file("larder.toml", config);
        let all = [&["server", &dir, "--config", &config], &QUIET[..], words].concat();
        leaves_nothing(&all, variables, &dir);
    };
    with("", &[], &[("LARDER_ROOT_ACCESS_KEY", "half")]);
    with("", &[], &[("LARDER_ROOT_ACCESS_KEY", "whole"), ("LARDER_ROOT_SECRET_KEY", "short")]);
    with("", &["--secret-file", "/nowhere"], &[]);
    for config in [
        "domains = [\"https://a\"]",
        "region = \"Nowhere!\"",
        "data = \"..\"",
        "data = \"log\"",
        "data = \"/dev/there-is-no-such-disk\"",
        "data = \"/dev/null\"",
    ] {
        with(config, &[], &[]);
    }
    let config = scratch.file("larder.toml", &format!("metrics_listen = {taken:?}"));
    let words = ["server", &dir, "--config", &config, "--listen", "127.0.0.1:0"];
    leaves_nothing(&words, &[], &dir);
}

#[test]
fn a_wrong_setting_of_a_machine_leaves_nothing() {
    let scratch = Scratch::new();
    let (dir, secret) = (scratch.path("dir"), scratch.path("secret"));
    // Its port is free: only what is wrong besides may refuse it.
    let free = a_free_address();
    let with = |config: &str, variables: &[(&str, &str)]| {
        let config = scratch.file("larder.toml", config);
        let peer = ["--peer", &free, "--secret-file", &secret];
        let all = [&["server", &dir, "--config", &config], &QUIET[..], &peer].concat();
        leaves_nothing(&all, variables, &dir);
    };
    with("copies = 3", &[]);
    with("copies = 1\ndomains = [\"https://a\"]", &[]);
    with("copies = 1\ndata = \"/dev/null\"", &[]);
    with("copies = 1", &[("LARDER_ROOT_SECRET_KEY", "half-a-key")]);
}

#[test]
fn a_wrong_setting_of_a_worker_leaves_nothing() {
    let scratch = Scratch::new();
    let (dir, blobs) = (scratch.path("dir"), format!("file://{}", scratch.path("blobs")));
    let taken = scratch.taken();
    let file = format!("file://{}", scratch.file("a-file", "x"));
    let below = format!("{file}/blobs");
    let with = |backend: &str, config: &str, words: &[&str], variables: &[(&str, &str)]| {
        let config = scratch.file("pack.toml", config);
        let head = ["pack", &dir, "--backend", backend, "--config", &config];
        leaves_nothing(&[&head[..], &QUIET, words].concat(), variables, &dir);
        assert!(!Path::new(&scratch.path("blobs")).exists(), "{words:?} made the backend");
    };
    for backend in ["s3:/bucket", "s3://", "file://blobs", "nonsense", &file, &below] {
        with(backend, "", &[], &[]);
    }
    for words in [
        &["--blob-mib", "0"][..],
        &["--packed-kib", "9999999"],
        &["--spool-mib", "1"],
        &["--packing-threads", "0"],
        &["--repack-below", "100"],
        &["--cache-mib", "1"],
        &["--requests-per-second", "0"],
        &["--mount", "photos:/nowhere"],
        &["--worker", "a", "--peer-listen", &taken],
        &["--worker", "a", "--look-s", "0"],
    ] {
        with(&blobs, "", words, &[]);
    }
    for config in ["[prices]\nget = -1.0", "domains = [\"https://a\"]", "region = \"Nowhere!\""] {
        with(&blobs, config, &[], &[]);
    }
    with(&blobs, "", &[], &[("LARDER_ROOT_ACCESS_KEY", "half")]);
}

#[test]
fn a_wrong_setting_of_a_role_leaves_nothing() {
    let scratch = Scratch::new();
    let (dir, taken) = (scratch.path("dir"), scratch.taken());
    let founds = "listen = \"127.0.0.1:0\"\n[found]\nname = \"m\"";
    let with = |role: &str, lines: &str, variables: &[(&str, &str)]| {
        let config = scratch.file("role.toml", &format!("dir = {dir:?}\n{lines}"));
        leaves_nothing(&[role, "--config", &config], variables, &dir);
    };
    with("manager", &format!("listen = {taken:?}\n[found]\nname = \"m\""), &[]);
    with("manager", &format!("metrics_listen = {taken:?}\n{founds}"), &[]);
    // A token for a server that nobody is asked for: what is wrong besides is found before.
    let made = {
        let manager = scratch.path("manager");
        let config = scratch.file("m.toml", &format!("dir = {manager:?}\n{founds}"));
        let mut running = start(&["manager", "--config", &config], &[]);
        assert!(outcome(&mut running).served);
        end(running);
        manager
    };
    assert!(Path::new(&made).join("identity.pem").exists());
    for role in ["manager", "meta", "data", "proxy"] {
        let own = "listen = \"127.0.0.1:0\"\ns3_listen = \"127.0.0.1:0\"\n";
        with(role, own, &[]);
        with(role, &format!("{own}join = \"nonsense\"\nmanagers = [\"0@127.0.0.1:1\"]"), &[]);
    }
    with("data", "data = \"..\"", &[]);
}

/// Both the directory and the port are another's: the directory is looked at first.
#[test]
fn a_directory_in_use_is_refused_before_a_port_is_opened() {
    let scratch = Scratch::new();
    let (dir, taken) = (scratch.path("dir"), scratch.taken());
    let (secret, backend) = (scratch.path("secret"), format!("file://{}", scratch.path("blobs")));
    let role = |metrics: &str| {
        let own = "listen = \"127.0.0.1:0\"\ns3_listen = \"127.0.0.1:0\"\n";
        let found = "[found]\nname = \"m\"";
        scratch
            .file("m.toml", &format!("dir = {dir:?}\nmetrics_listen = {metrics:?}\n{own}{found}"))
    };
    let free = a_free_address();
    let one = scratch.file("larder.toml", "copies = 1");
    let peer = ["server", &dir, "--config", &one, "--peer", &free, "--secret-file", &secret];
    for words in [
        vec!["manager"],
        vec!["server", &dir],
        vec!["pack", &dir, "--backend", &backend],
        peer.to_vec(),
    ] {
        let begun = |metrics: &str| {
            let config = role(metrics);
            let words = match words[0] {
                "manager" => vec!["manager", "--config", &config],
                _ => {
                    [&words[..], &["--listen", "127.0.0.1:0", "--metrics-listen", metrics]].concat()
                }
            };
            start(&words, &[])
        };
        let mut holder = begun("off");
        assert!(outcome(&mut holder).served, "{words:?}");
        let mut other = begun(&taken);
        let refused = outcome(&mut other);
        end(other);
        end(holder);
        fs::remove_dir_all(&dir).unwrap();
        assert!(refused.said.contains("is in use by another process"), "{words:?}: {refused:?}");
    }
}

#[test]
fn of_two_commands_that_race_for_a_directory_one_has_it() {
    for _round in 0..8 {
        let scratch = tempfile::tempdir().unwrap();
        let path = |name: &str| scratch.path().join(name).display().to_string();
        let (dir, blobs) = (path("dir"), format!("file://{}", path("blobs")));
        let mut server = start(&[&["server", &dir], &QUIET[..]].concat(), &[]);
        let mut pack = start(&[&["pack", &dir, "--backend", &blobs], &QUIET[..]].concat(), &[]);
        let (served, packed) = (outcome(&mut server), outcome(&mut pack));
        let marker = fs::read_to_string(scratch.path().join("dir/larder-dir.toml")).unwrap();
        end(server);
        end(pack);
        assert!(served.served != packed.served, "{served:?}\n{packed:?}");
        let (kind, loser) =
            if served.served { ("\"store\"", packed) } else { ("\"worker\"", served) };
        assert!(marker.contains(kind), "the loser's marker: {marker}\n{loser:?}");
        let in_use = loser.said.contains("is in use by another process");
        assert!(in_use || loser.said.contains("or name another directory"), "{}", loser.said);
    }
}

#[test]
fn another_clusters_manager_is_not_founded_anew() {
    let scratch = Scratch::new();
    let (dir, secret) = (scratch.path("dir"), scratch.path("secret"));
    let manager = scratch.path("dir/manager");
    fs::create_dir(&dir).unwrap();
    let founds = format!("dir = {manager:?}\nlisten = \"127.0.0.1:0\"\n[found]\nname = \"m\"\n");
    let config = scratch.file("role.toml", &founds);
    let mut running = start(&["manager", "--config", &config], &[]);
    assert!(outcome(&mut running).served);
    end(running);
    let free = a_free_address();
    let one = scratch.file("larder.toml", "copies = 1");
    let words = ["server", &dir, "--peer", &free, "--secret-file", &secret, "--config", &one];
    let words = [&words[..], &QUIET].concat();
    // As it is made now, and as releases without the marker leave it.
    for is_marked in [true, false] {
        if !is_marked {
            fs::remove_file(Path::new(&manager).join("larder-dir.toml")).unwrap();
        }
        let before = contents(Path::new(&dir));
        let ended = run(&words, &[]);
        assert!(!ended.served, "{ended:?}");
        assert!(ended.said.contains("the directory of a manager"), "{}", ended.said);
        let after = contents(Path::new(&dir));
        assert!(before == after, "changed {:?}", after.keys());
    }
}
