//! Kinds of directories, and what the commands that serve do to those of others. `tests/commands/kinds.rs` has every
//! command.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::Parser;

use super::*;
use crate::args::{Command, Program};
use crate::cluster::{self, admin_client};

const ALL: [Kind; 8] = [
    Kind::Store,
    Kind::Machine,
    Kind::Worker,
    Kind::DevCluster,
    Kind::Manager,
    Kind::Meta,
    Kind::Data,
    Kind::Proxy,
];

/// Every file below a directory with its bytes; directories have none.
fn contents(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.extend(contents(&path));
            all.insert(path, Vec::new());
        } else {
            let bytes = fs::read(&path).unwrap();
            all.insert(path, bytes);
        }
    }
    all
}

fn write(dir: &Path, names: &[&str]) {
    for name in names {
        let path = dir.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("bytes of {name}")).unwrap();
    }
}

/// A directory as releases without the marker leave it.
fn unmarked(kind: Kind, dir: &Path) {
    let names: &[&str] = match kind {
        Kind::Store => &["manager/map", "log/0", "kv/current", "data0", "lock"],
        Kind::Machine => &["node.toml", "manager/quorum/log", "meta/identity.pem", "lock"],
        Kind::Worker => &["spool/1", "log/0", "kv/current", "status.json", "lock"],
        Kind::DevCluster => &["cluster.toml", "node-1/manager/role.toml", "lock"],
        _ => &["quorum/log", "authority.pem", "identity.pem", "lock"],
    };
    write(dir, names);
}

/// Runs a command on a directory, and gives its exit code away as text: it has no other face.
fn run(kind: Kind, dir: &Path, scratch: &Path) -> String {
    let (dir, config) = (dir.display().to_string(), scratch.join("role.toml"));
    let role_toml = format!("dir = {dir:?}\nlisten = \"127.0.0.1:0\"\nmanagers = []\n");
    fs::write(&config, role_toml).unwrap();
    let config = config.display().to_string();
    let words: Vec<&str> = match kind {
        Kind::Store => vec!["server", &dir, "--listen", "127.0.0.1:0", "--metrics-listen", "off"],
        Kind::Machine => vec!["server", &dir, "--peer", "127.0.0.1:1"],
        Kind::Worker => {
            vec!["pack", &dir, "--backend", "file:///nowhere", "--listen", "127.0.0.1:0"]
        }
        Kind::DevCluster => vec!["dev-cluster", &dir],
        Kind::Manager => vec!["manager", "--config", &config],
        Kind::Meta => vec!["meta", "--config", &config],
        Kind::Data => vec!["data", "--config", &config],
        Kind::Proxy => vec!["proxy", "--config", &config],
        Kind::Backend => panic!("no command has a backend as its directory"),
    };
    let words = std::iter::once("larder").chain(words);
    let code = match Program::try_parse_from(words).unwrap().command {
        Command::Server(args) => crate::server::run(&args),
        Command::Pack(args) => crate::pack::run(*args),
        Command::DevCluster(args) => crate::dev::run(&args, &[]),
        Command::Manager(args) => cluster::run(ServerRole::Manager, &args),
        Command::Meta(args) => cluster::run(ServerRole::Meta, &args),
        Command::Data(args) => cluster::run(ServerRole::Data, &args),
        Command::Proxy(args) => cluster::run(ServerRole::Proxy, &args),
        other => panic!("{other:?} does not serve"),
    };
    format!("{code:?}")
}

#[test]
fn directories_without_a_marker_are_recognised_and_bound() {
    for kind in [Kind::Store, Kind::Machine, Kind::Worker, Kind::DevCluster, Kind::Manager] {
        let dir = tempfile::tempdir().unwrap();
        unmarked(kind, dir.path());
        check(dir.path(), kind).unwrap();
        drop(bind(dir.path(), kind).unwrap());
        assert_eq!(read(dir.path()).unwrap(), Some(kind));
    }
}

#[test]
fn a_refusal_names_what_it_is_and_the_right_command() {
    let dir = tempfile::tempdir().unwrap();
    let _held = bind(dir.path(), Kind::Store).unwrap();
    let error = check(dir.path(), Kind::Worker).unwrap_err().to_string();
    let right = format!("larder server {}", dir.path().display());
    assert!(error.contains("the store of a single node") && error.contains(&right), "{error}");
}

#[test]
fn an_operators_command_refuses_a_store() {
    let dir = tempfile::tempdir().unwrap();
    unmarked(Kind::Store, dir.path());
    let before = contents(dir.path());
    let error = admin_client::config(dir.path()).unwrap_err().to_string();
    assert!(error.contains("the store of a single node"), "{error}");
    assert!(contents(dir.path()) == before);
}

#[test]
fn a_store_is_no_backend_and_takes_no_extracted_objects() {
    let (dir, scratch) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    unmarked(Kind::Store, dir.path());
    let before = contents(dir.path());
    let (store, worker) = (dir.path().display().to_string(), scratch.path().join("worker"));
    let (backend, worker) = (format!("file://{store}"), worker.display().to_string());
    let success = format!("{:?}", std::process::ExitCode::SUCCESS);
    for words in [
        vec!["larder", "pack", &worker, "--backend", &backend, "--listen", "127.0.0.1:0"],
        vec!["larder", "pack", "extract", "no-blob", &store],
        vec!["larder", "pack", "status", &store],
    ] {
        let Command::Pack(args) = Program::try_parse_from(words).unwrap().command else {
            panic!("it is pack")
        };
        assert_ne!(format!("{:?}", crate::pack::run(*args)), success);
        assert!(contents(dir.path()) == before && !Path::new(&worker).exists());
    }
}

#[test]
fn a_first_start_without_its_port_makes_nothing() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path().join("store").display().to_string();
    let words = ["larder", "server", &dir, "--listen", &address, "--metrics-listen", "off"];
    let Command::Server(args) = Program::try_parse_from(words).unwrap().command else {
        panic!("it is server")
    };
    let failed = format!("{:?}", crate::exit::code(crate::exit::CANNOT_START));
    assert_eq!(format!("{:?}", crate::server::run(&args)), failed);
    assert!(!Path::new(&dir).exists());
}

#[test]
fn a_marker_has_golden_text_and_another_version_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let text = "version = 1\nkind = \"dev-cluster\"\nid = \"00c0ffee00c0ffee\"\n";
    fs::write(dir.path().join(MARKER), text).unwrap();
    check(dir.path(), Kind::DevCluster).unwrap();
    fs::write(dir.path().join(MARKER), text.replace("version = 1", "version = 2")).unwrap();
    let error = check(dir.path(), Kind::DevCluster).unwrap_err().to_string();
    assert!(error.contains("version 2"), "{error}");
}

/// Runs what is to be refused, and gives its exit code away as text.
fn pack(words: &[&str]) -> String {
    let words = ["larder", "pack"].iter().chain(words);
    let Command::Pack(args) = Program::try_parse_from(words).unwrap().command else {
        panic!("it is pack")
    };
    format!("{:?}", crate::pack::run(*args))
}

fn success() -> String {
    format!("{:?}", std::process::ExitCode::SUCCESS)
}

#[test]
fn of_two_kinds_that_race_for_a_directory_one_has_it() {
    for _round in 0..100 {
        let scratch = tempfile::tempdir().unwrap();
        let (dir, barrier) = (scratch.path().join("dir"), std::sync::Barrier::new(2));
        let bound = std::thread::scope(|scope| {
            let racer = |kind| {
                let (dir, barrier) = (&dir, &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    let held = bind(dir, kind);
                    // Nobody lets go before both have tried.
                    barrier.wait();
                    held.map(|_held| kind)
                })
            };
            let racers = [racer(Kind::Store), racer(Kind::Worker)];
            racers.map(|racer| racer.join().unwrap())
        });
        let won: Vec<Kind> = bound.iter().flatten().copied().collect();
        assert!(won.len() == 1, "{bound:?}");
        let error = bound.iter().find_map(|it| it.as_ref().err()).unwrap();
        let is_told = matches!(error, KindError::InUse { .. } | KindError::Other { .. });
        assert!(is_told, "{error}");
    }
}

#[test]
fn a_directory_in_use_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let held = bind(dir.path(), Kind::Store).unwrap();
    let error = bind(dir.path(), Kind::Store).unwrap_err().to_string();
    assert!(error.contains("is in use by another process"), "{error}");
    drop(held);
    bind(dir.path(), Kind::Store).unwrap();
}

#[test]
fn a_start_that_makes_nothing_leaves_the_directory_as_it_was() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path().join("a/b");
    drop(bind(&dir, Kind::Store).unwrap());
    assert!(contents(scratch.path()).is_empty());
    fs::create_dir_all(&dir).unwrap();
    let held = bind(&dir, Kind::Store).unwrap();
    fs::write(dir.join("lock"), "").unwrap();
    drop(held);
    assert!(dir.exists() && contents(&dir).is_empty());
    let held = bind(&dir, Kind::Store).unwrap();
    fs::write(dir.join("data0"), "x").unwrap();
    drop(held);
    assert_eq!(read(&dir).unwrap(), Some(Kind::Store));
}

#[test]
fn a_directory_inside_another_is_refused() {
    let (scratch, link) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let outer = scratch.path().join("outer");
    unmarked(Kind::Store, &outer);
    let linked = link.path().join("link");
    std::os::unix::fs::symlink(&outer, &linked).unwrap();
    let before = contents(&outer);
    let (files, blobs) = (tempfile::tempdir().unwrap(), link.path().join("blobs"));
    for inner in [outer.join("kv"), outer.join("manager"), outer.join("a/b"), linked.join("kv")] {
        for command in ALL {
            assert_ne!(run(command, &inner, files.path()), success(), "{command:?} in a store");
            assert!(contents(&outer) == before, "{command:?} changed the store");
            let error = check(&inner, command).unwrap_err().to_string();
            let names = error.contains(&format!("inside {}", outer.display()));
            assert!(names && error.contains("the store of a single node"), "{error}");
        }
        let (worker, backend) =
            (blobs.display().to_string(), format!("file://{}", inner.display()));
        assert_ne!(pack(&[&worker, "--backend", &backend, "--listen", "127.0.0.1:0"]), success());
        assert_ne!(pack(&["extract", "no-blob", &inner.display().to_string()]), success());
        assert!(contents(&outer) == before && !blobs.exists());
    }
}

#[test]
fn a_development_clusters_directory_holds_its_servers_alone() {
    let dir = tempfile::tempdir().unwrap();
    unmarked(Kind::DevCluster, dir.path());
    for (role, kind) in [("manager", Kind::Manager), ("meta", Kind::Meta), ("proxy", Kind::Proxy)] {
        check(&dir.path().join("node-1").join(role), kind).unwrap();
        check(&dir.path().join("node-1").join(role), Kind::Store).unwrap_err();
    }
    check(&dir.path().join("node-1/meta"), Kind::Data).unwrap_err();
    check(&dir.path().join("other/meta"), Kind::Meta).unwrap_err();
    check(&dir.path().join("node-1/meta/kv"), Kind::Meta).unwrap_err();
}

#[test]
fn roles_beside_each_other_are_no_machine_around_them() {
    let dir = tempfile::tempdir().unwrap();
    unmarked(Kind::Manager, &dir.path().join("manager"));
    check(&dir.path().join("meta"), Kind::Meta).unwrap();
    check(&dir.path().join("manager"), Kind::Manager).unwrap();
}

#[test]
fn a_backend_that_overlaps_the_directory_is_refused() {
    let scratch = tempfile::tempdir().unwrap();
    let at = |name: &str| scratch.path().join(name).display().to_string();
    for (dir, backend) in [("d", "d"), ("d", "d/kv"), ("d/worker", "d"), ("d", "x/../d")] {
        fs::create_dir_all(scratch.path().join("x")).unwrap();
        let backend = format!("file://{}", at(backend));
        let words = [&at(dir), "--backend", &backend, "--listen", "127.0.0.1:0"];
        assert_ne!(pack(&words), success(), "{dir} over {backend}");
        assert!(!scratch.path().join("d").exists(), "{dir} over {backend}");
    }
}

#[test]
fn a_backend_is_used_as_a_backend_alone() {
    let scratch = tempfile::tempdir().unwrap();
    for claim in ["claims/00000000000000a1", "workers/one/claims/00000000000100a1"] {
        let dir = tempfile::tempdir().unwrap();
        write(
            dir.path(),
            &[claim, "blobs/00000000000000a1-0000000000000001-018bcfe56800-0000000009"],
        );
        let before = contents(dir.path());
        for command in ALL {
            for place in [dir.path().to_owned(), dir.path().join("blobs")] {
                assert_ne!(run(command, &place, scratch.path()), success(), "{command:?}");
                assert!(contents(dir.path()) == before, "{command:?} changed a backend");
                let error = check(&place, command).unwrap_err().to_string();
                assert!(error.contains("the backend of a pack worker"), "{error}");
            }
        }
        check_backend(dir.path(), &scratch.path().join("worker")).unwrap();
    }
}

#[test]
fn a_store_with_what_wrong_commands_left_is_a_store() {
    for residue in [&["node-1/meta/lock", "cluster.toml"][..], &["identity.pem"], &["node.toml"]] {
        let dir = tempfile::tempdir().unwrap();
        unmarked(Kind::Store, dir.path());
        write(dir.path(), residue);
        assert_eq!(found(dir.path()).unwrap(), Some(Kind::Store), "{residue:?}");
    }
}

#[test]
fn an_unreadable_marker_is_reported_with_the_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let marker = dir.path().join(MARKER);
    let refusal = || check(dir.path(), Kind::Store).unwrap_err().to_string();
    fs::write(&marker, "").unwrap();
    assert!(refusal().contains("is empty: delete it"), "{}", refusal());
    fs::write(&marker, "version = 2\nkind = \"pantry\"\nshelf = 7\n").unwrap();
    assert!(refusal().contains("it has version 2, this release knows 1"), "{}", refusal());
    fs::write(&marker, "version = 1\nkind = \"backend\"\nid = \"00c0ffee00c0ffee\"\n").unwrap();
    assert!(refusal().contains("cannot be read"), "{}", refusal());
    fs::remove_file(&marker).unwrap();
    // Not by a program: until it runs, it would hold the locks of tests beside this one.
    let (fifo, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR);
    rustix::fs::mknodat(rustix::fs::CWD, &marker, fifo, mode, 0).unwrap();
    assert!(refusal().contains("it is not a file"), "{}", refusal());
}

#[test]
fn an_operators_command_on_a_development_cluster_names_a_configuration() {
    let dir = tempfile::tempdir().unwrap();
    unmarked(Kind::DevCluster, dir.path());
    let error = admin_client::config(dir.path()).unwrap_err().to_string();
    assert!(error.contains("node-1/manager/role.toml"), "{error}");
}

#[test]
fn a_directory_that_cannot_be_bound_is_as_it_was() {
    // Long enough for the marker's name and too long for its draft's, of a path's 4095 bytes.
    const DIR_BYTES: usize = 4070;
    let scratch = tempfile::tempdir().unwrap();
    let mut dir = scratch.path().to_owned();
    while dir.as_os_str().len() + 202 < DIR_BYTES {
        dir.push("d".repeat(150));
    }
    dir.push("d".repeat(DIR_BYTES - dir.as_os_str().len() - 1));
    let error = bind(&dir, Kind::Store).unwrap_err();
    assert!(matches!(error, KindError::Bind { .. }), "{error}");
    assert!(error.to_string().contains("the directory is as it was"), "{error}");
    assert!(contents(scratch.path()).is_empty(), "directories are left");
}

#[test]
fn a_directory_around_another_is_refused() {
    for name in ["kv", "manager", "old"] {
        let (dir, scratch) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        unmarked(Kind::Store, &dir.path().join(name));
        let before = contents(dir.path());
        for command in ALL {
            assert_ne!(run(command, dir.path(), scratch.path()), success(), "{command:?}");
            assert!(contents(dir.path()) == before, "{command:?} changed the store");
            let error = check(dir.path(), command).unwrap_err().to_string();
            assert!(error.contains("the store of a single node"), "{error}");
        }
    }
}
