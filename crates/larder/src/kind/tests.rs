//! Every command against every kind of directory.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::Parser;

use super::*;
use crate::args::{Command, Program};
use crate::cluster::{self, RoleConfig};

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
    };
    let words = std::iter::once("larder").chain(words);
    let code = match Program::try_parse_from(words).unwrap().command {
        Command::Server(args) => crate::server::run(&args),
        Command::Pack(args) => crate::pack::run(args),
        Command::DevCluster(args) => crate::dev::run(&args),
        Command::Manager(args) => cluster::run(ServerRole::Manager, &args),
        Command::Meta(args) => cluster::run(ServerRole::Meta, &args),
        Command::Data(args) => cluster::run(ServerRole::Data, &args),
        Command::Proxy(args) => cluster::run(ServerRole::Proxy, &args),
        other => panic!("{other:?} does not serve"),
    };
    format!("{code:?}")
}

#[test]
fn a_wrong_word_changes_no_byte() {
    let success = format!("{:?}", std::process::ExitCode::SUCCESS);
    for is_marked in [false, true] {
        for has in ALL {
            let (dir, scratch) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
            if is_marked {
                bind(dir.path(), has).unwrap();
            } else {
                unmarked(has, dir.path());
            }
            let before = contents(dir.path());
            let found = found(dir.path()).unwrap().unwrap();
            for command in ALL.into_iter().filter(|command| *command != found) {
                let code = run(command, dir.path(), scratch.path());
                assert_ne!(code, success, "{command:?} ran on {found:?}");
                assert!(contents(dir.path()) == before, "{command:?} changed {found:?}");
            }
        }
    }
}

#[test]
fn directories_without_a_marker_are_recognised_and_bound() {
    for kind in [Kind::Store, Kind::Machine, Kind::Worker, Kind::DevCluster, Kind::Manager] {
        let dir = tempfile::tempdir().unwrap();
        unmarked(kind, dir.path());
        check(dir.path(), kind).unwrap();
        bind(dir.path(), kind).unwrap();
        assert_eq!(read(dir.path()).unwrap(), Some(kind));
    }
}

#[test]
fn a_refusal_names_what_it_is_and_the_right_command() {
    let dir = tempfile::tempdir().unwrap();
    bind(dir.path(), Kind::Store).unwrap();
    let error = check(dir.path(), Kind::Worker).unwrap_err().to_string();
    let right = format!("larder server {}", dir.path().display());
    assert!(error.contains("the store of a single node") && error.contains(&right), "{error}");
}

#[test]
fn an_operators_command_refuses_a_store() {
    let dir = tempfile::tempdir().unwrap();
    unmarked(Kind::Store, dir.path());
    let before = contents(dir.path());
    let error = RoleConfig::load(dir.path()).unwrap_err().to_string();
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
        assert_ne!(format!("{:?}", crate::pack::run(args)), success);
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
