//! Stores that become regions: `larder region`.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use larder_link::{PeerStatus, RegionStatus};
use larder_types::RegionId;
use serde_json::Value;

use crate::process::{QUIET, Scratch, a_free_address, contents, end, outcome, start};

/// Output and exit code of a command.
struct Ended {
    code: i32,
    said: String,
    complained: String,
}

fn larder(words: &[&str]) -> Ended {
    let program =
        Command::new(env!("CARGO_BIN_EXE_larder")).args(words).stdin(Stdio::null()).output();
    let Output { status, stdout, stderr } = program.unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ended { code: status.code().unwrap(), said: text(stdout), complained: text(stderr) }
}

/// Runs a command that must succeed; its output.
fn done(words: &[&str]) -> String {
    let ended = larder(words);
    assert_eq!(ended.code, 0, "{words:?}: {}{}", ended.said, ended.complained);
    ended.said
}

/// Runs a command that must be refused; its error.
fn refused(words: &[&str], code: i32) -> String {
    let ended = larder(words);
    assert_eq!(ended.code, code, "{words:?}: {}{}", ended.said, ended.complained);
    assert!(
        ended.said.is_empty() && ended.complained.starts_with("error: "),
        "{}",
        ended.complained
    );
    ended.complained
}

/// Makes a store: its server has run.
fn a_store(scratch: &Scratch, name: &str) -> String {
    let dir = scratch.path(name);
    end(serve(&dir));
    dir
}

/// Starts the server of a region, which lets others join.
fn serve(dir: &str) -> Child {
    let mut server = start(&[&["server", dir], &QUIET[..]].concat(), &[]);
    let started = outcome(&mut server);
    assert!(started.served, "{}", started.said);
    server
}

/// The regions that a directory knows.
fn listed(dir: &str) -> Vec<Value> {
    let list: Value = serde_json::from_str(&done(&["region", "list", dir, "--json"])).unwrap();
    list["regions"].as_array().unwrap().clone()
}

fn created(scratch: &Scratch, name: &str) -> String {
    let dir = a_store(scratch, name);
    done(&["region", "create", &dir, "--name", name, "--listen", &a_free_address()]);
    dir
}

/// Has a store join, with another token of the first one.
fn joined(scratch: &Scratch, first: &str, name: &str) -> String {
    let dir = a_store(scratch, name);
    let token = done(&["region", "token", first]);
    let address = a_free_address();
    let printed =
        done(&["region", "join", &dir, token.trim(), "--name", name, "--listen", &address]);
    assert!(printed.contains("start (or restart) its server"), "{printed}");
    dir
}

#[test]
fn stores_become_regions_that_know_each_other() {
    let scratch = Scratch::new();
    let dir = a_store(&scratch, "one");
    let listen = a_free_address();
    let advertise = ["--advertise", "eu.example.org:7001"];
    let create = ["region", "create", &dir, "--name", "eu", "--listen", &listen];
    let printed = done(&[&create[..], &advertise].concat());
    assert!(printed.contains("is region 1 (eu), reached at eu.example.org:7001"), "{printed}");
    assert!(printed.contains(&format!("listens for other regions on {listen}")), "{printed}");
    let text = done(&["region", "list", &dir]);
    let line: Vec<_> = text.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(line[..5], ["1", "eu", "eu.example.org:7001", "this", "one"]);
    let again = refused(&create, 2);
    assert!(again.contains("is region 1 (eu) already"), "{again}");

    let first = created(&scratch, "two");
    let serving = serve(&first);
    let second = joined(&scratch, &first, "three");
    let third = joined(&scratch, &first, "four");
    end(serving);
    for dir in [&first, &third] {
        let names: Vec<_> = listed(dir).iter().map(|it| it["name"].clone()).collect();
        assert_eq!(names, ["two", "three", "four"], "{dir}");
    }
    let numbers: Vec<_> = listed(&second).iter().map(|it| it["number"].clone()).collect();
    assert_eq!(numbers, [1, 2], "the third joined later");
}

#[test]
fn a_server_runs_on_while_its_store_becomes_a_region() {
    let scratch = Scratch::new();
    let dir = scratch.path("dir");
    let mut server = serve(&dir);
    done(&["region", "create", &dir, "--name", "eu", "--listen", &a_free_address()]);
    assert_eq!(server.try_wait().unwrap(), None);
    end(server);
    end(serve(&dir));
}

#[test]
fn a_directory_without_a_store_does_not_become_a_region() {
    let scratch = Scratch::new();
    let (dir, file) = (scratch.path("dir"), scratch.file("file", "x"));
    for dir in [&dir, &file] {
        let place = ["--name", "eu", "--listen", "127.0.0.1:7001"];
        let said = refused(&[&["region", "create", dir], &place[..]].concat(), 3);
        assert!(
            said.contains(&format!("has no store: start `larder server {dir}` once")),
            "{said}"
        );
        assert!(!Path::new(&dir).join("region").exists());
    }
    assert!(!Path::new(&dir).exists());
}

#[test]
fn a_wrong_setting_of_a_region_leaves_nothing() {
    let scratch = Scratch::new();
    let dir = a_store(&scratch, "dir");
    let before = contents(Path::new(&dir));
    let create = |words: &[&str], says: &str| {
        let said = larder(&[&["region", "create", &dir], words].concat());
        assert_eq!(said.code, 2, "{words:?}: {}", said.complained);
        assert!(said.complained.contains(says), "{words:?}: {}", said.complained);
    };
    create(&["--name", "EU", "--listen", "127.0.0.1:7001"], "a-z, 0-9 and -");
    create(&["--name", "eu"], "--listen");
    for listen in ["127.0.0.1", "127.0.0.1:0", "7001", "0.0.0.0:0"] {
        create(&["--name", "eu", "--listen", listen], "--listen");
    }
    create(&["--name", "eu", "--listen", "0.0.0.0:7001"], "--advertise is needed");
    let with = ["--name", "eu", "--listen", "0.0.0.0:7001", "--advertise"];
    create(&[&with[..], &["0.0.0.0:7001"]].concat(), "name the host");
    create(&[&with[..], &["eu.example.org"]].concat(), "HOST:PORT");
    let join = |token: &str| {
        let place = ["--name", "eu", "--listen", "127.0.0.1:7001"];
        refused(&[&["region", "join", &dir, token], &place[..]].concat(), 2)
    };
    assert!(join("nonsense").contains("this is no token of a region"));
    assert!(join("larder-region-1.AAAA").contains("mistyped or incomplete"));
    assert!(join("larder-region-9.AAAA").contains("a later release (version 9)"));
    for command in ["token", "list", "status"] {
        let said = refused(&["region", command, &dir], 2);
        assert!(said.contains("is no region: run `larder region create`"), "{said}");
    }
    assert!(before == contents(Path::new(&dir)), "something was changed");
}

#[test]
fn a_token_is_for_one_region_and_of_the_first_one() {
    let scratch = Scratch::new();
    let first = created(&scratch, "one");
    let token = done(&["region", "token", &first]);
    let join = |dir: &str, name: &str| {
        let address = a_free_address();
        larder(&["region", "join", dir, token.trim(), "--name", name, "--listen", &address])
    };
    let (second, third) = (a_store(&scratch, "two"), a_store(&scratch, "three"));
    let away = join(&second, "two");
    assert_eq!(away.code, 1);
    assert!(away.complained.contains("does not answer"), "{}", away.complained);
    let serving = serve(&first);
    assert_eq!(join(&second, "two").code, 0);
    let used = join(&third, "three");
    assert_eq!(used.code, 1);
    assert!(used.complained.contains("this token was used"), "{}", used.complained);
    end(serving);
    let said = refused(&["region", "token", &second], 2);
    assert!(said.contains("only region 1 (one) gives tokens"), "{said}");
    // The secret is its owner's alone.
    let mode = |name: &str| {
        let about = fs::metadata(Path::new(&first).join("region").join(name)).unwrap();
        std::os::unix::fs::PermissionsExt::mode(&about.permissions()) & 0o777
    };
    assert_eq!([mode("members"), mode("identity"), mode("")], [0o600, 0o600, 0o700]);
}

#[test]
fn regions_are_paused_resumed_and_removed() {
    let scratch = Scratch::new();
    let first = created(&scratch, "one");
    let serving = serve(&first);
    let second = joined(&scratch, &first, "two");
    end(serving);
    let of = |what: &str| listed(&first)[1][what].clone();
    let unknown = refused(&["region", "pause", &first, "x"], 2);
    assert!(unknown.contains("no other region is named \"x\"; there is two"), "{unknown}");
    let printed = done(&["region", "pause", &first, "two"]);
    assert!(
        printed.contains("nothing is pulled from two until `larder region resume"),
        "{printed}"
    );
    assert!(done(&["region", "pause", &first, "two"]).contains("nothing to do"));
    assert_eq!((of("paused"), listed(&second)[0]["paused"].clone()), (true.into(), false.into()));
    assert!(done(&["region", "list", &first]).contains("paused"));
    done(&["region", "resume", &first, "two"]);
    assert_eq!(of("paused"), false);

    let before = contents(Path::new(&first));
    let printed = done(&["region", "remove", &first, "two"]);
    assert!(printed.contains("would be removed") && printed.contains("add --yes"), "{printed}");
    assert!(before == contents(Path::new(&first)));
    let printed = done(&["region", "remove", &second, "one"]);
    assert!(printed.contains("no region can join afterwards"), "{printed}");
    let printed = done(&["region", "remove", &first, "two", "--yes"]);
    assert!(printed.contains("region 2 (two) is removed for good"), "{printed}");
    assert_eq!(of("removed"), true);
    let gone = refused(&["region", "remove", &first, "two", "--yes"], 2);
    assert!(gone.contains("there is none"), "{gone}");
}

#[test]
fn a_status_is_as_good_as_the_server_that_wrote_it_is_alive() {
    let scratch = Scratch::new();
    let dir = created(&scratch, "one");
    let status = || larder(&["region", "status", &dir]);
    let none = status();
    assert_eq!(none.code, 1);
    assert!(none.said.contains("has not said anything yet"), "{}", none.said);
    assert!(none.complained.contains("Start (or restart) `larder server"), "{}", none.complained);
    let peer = PeerStatus {
        number: RegionId(2),
        name: "two".parse().unwrap(),
        paused: false,
        unreachable: None,
        comparing: true,
        operations_behind: 5,
        bytes_behind: 700,
        seconds_behind: Some(2.0),
        bytes_per_s: 100.0,
        seconds_left: Some(7.0),
        alarm: None,
        oldest: None,
        stuck: false,
        lacks_seconds: 0.0,
        lacks_groups: 0,
        asked_seconds: 0.5,
    };
    let write = |peer: &PeerStatus, age_ms: u64| {
        let mut status = RegionStatus::now(RegionId(1), "one".parse().unwrap(), vec![peer.clone()]);
        status.written_ms -= age_ms;
        status.write(Path::new(&dir)).unwrap();
    };
    write(&peer, 0);
    let ended = status();
    assert_eq!(ended.code, 0, "{}", ended.complained);
    assert!(ended.said.contains("comparing") && ended.said.contains("700"), "{}", ended.said);
    let json: Value = serde_json::from_str(&done(&["region", "status", &dir, "--json"])).unwrap();
    assert_eq!(
        (json["well"].clone(), json["status"]["peers"][0]["name"].clone()),
        (true.into(), "two".into())
    );
    write(&peer, 11_000);
    let ended = status();
    assert_eq!(ended.code, 1);
    assert!(ended.said.contains("OLD: last heard 11 s ago"), "{}", ended.said);
    write(&PeerStatus { unreachable: Some("two.example:1 does not answer".into()), ..peer }, 0);
    let ended = status();
    assert_eq!(ended.code, 1);
    assert!(ended.said.contains("two.example:1 does not answer"), "{}", ended.said);
}
