//! Root's keys: where they come from, and what a start tells of them.

use std::fs;

use larder_net::Role;

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
fn keys_that_are_drawn_anew_are_told_of() {
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
