//! Every command against every kind of directory.

use std::collections::BTreeSet;
use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use larder_identity::{Authority, Role, Roles};
use larder_types::{ClusterId, ServerId};

use crate::process::contents;

/// A kind of directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Store,
    Machine,
    Worker,
    DevCluster,
    Manager,
    Meta,
    Data,
    Proxy,
    Backend,
}

use Kind::{Backend, Data, DevCluster, Machine, Manager, Meta, Proxy, Store, Worker};

const KINDS: [Kind; 9] = [Store, Machine, Worker, DevCluster, Manager, Meta, Data, Proxy, Backend];
const ROLES: &[Kind] = &[Manager, Meta, Data, Proxy];

impl Kind {
    /// As `larder-dir.toml` names it; a backend has none.
    fn marker(self) -> Option<&'static str> {
        Some(match self {
            Store => "store",
            Machine => "machine",
            Worker => "worker",
            DevCluster => "dev-cluster",
            Manager => "manager",
            Meta => "meta",
            Data => "data",
            Proxy => "proxy",
            Backend => return None,
        })
    }

    fn role(self) -> Option<Role> {
        Some(match self {
            Manager => Role::Manager,
            Meta => Role::Meta,
            Data => Role::Data,
            Proxy => Role::Proxy,
            _ => return None,
        })
    }

    /// The command that such a directory is for.
    fn command(self, dir: &str) -> String {
        match self {
            Store => format!("run `larder server {dir}`"),
            Machine => format!("run `larder server {dir} --peer HOST:PORT …`"),
            Worker => format!("run `larder pack {dir} --backend URL`"),
            DevCluster => format!("run `larder dev-cluster {dir}`"),
            Manager => "run `larder manager --config FILE`".to_owned(),
            Meta => "run `larder meta --config FILE`".to_owned(),
            Data => "run `larder data --config FILE`".to_owned(),
            Proxy => "run `larder proxy --config FILE`".to_owned(),
            Backend => format!("run `larder pack DIR --backend file://{dir}`"),
        }
    }

    /// Makes a directory of the kind: marked, or as releases without the marker left it.
    fn make(self, dir: &Path, is_marked: bool) {
        let names: &[&str] = match self {
            Store => &["manager/map", "log/0", "kv/current", "data0", "lock"],
            Machine => &["node.toml", "manager/quorum/log", "meta/lock", "lock"],
            Worker => &["spool/1", "log/0", "kv/current", "status.json", "lock"],
            DevCluster => &["cluster.toml", "node-1/manager/role.toml", "lock"],
            Backend => &["claims/00000000000000a1", "blobs/a"],
            _ => &["log/0", "lock"],
        };
        for name in names {
            let path = dir.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("bytes of {name}")).unwrap();
        }
        if let Some(role) = self.role() {
            let authority = Authority::create(ClusterId(7)).unwrap();
            let identity = authority.identity(ServerId(3), Roles::of(&[role])).unwrap();
            identity.save(&dir.join("identity.pem")).unwrap();
        }
        if let (true, Some(kind)) = (is_marked, self.marker()) {
            let text = format!("version = 1\nkind = {kind:?}\nid = \"00c0ffee00c0ffee\"\n");
            fs::write(dir.join("larder-dir.toml"), text).unwrap();
        }
    }
}

/// A way to hand a directory to a command.
struct Case {
    /// The command with its subcommand.
    command: &'static str,
    words: Vec<String>,
    /// Kinds that it takes.
    takes: &'static [Kind],
    /// The expected words for kinds of which the error names no command.
    says: fn(Kind, &str) -> Option<String>,
    /// It takes no directory, and has only to leave alone the one that it is started in.
    has_no_directory: bool,
}

/// Names of the directory itself and of a configuration that names it, for those who build [`Case`]s.
struct Named<'a> {
    dir: &'a str,
    /// `dir` of this configuration is the directory.
    config: &'a str,
    elsewhere: &'a str,
    taken: &'a str,
}

fn case(command: &'static str, words: &[&str], takes: &'static [Kind]) -> Case {
    let command_words = command.split(' ').chain(words.iter().copied());
    let words = command_words.map(str::to_owned).collect();
    Case { command, words, takes, says: |_, _| None, has_no_directory: false }
}

/// The commands that serve, and those of packing.
fn that_serve(named: &Named<'_>) -> Vec<Case> {
    let Named { dir, config, elsewhere, taken } = *named;
    let backend = format!("file://{dir}");
    let quiet = ["--listen", taken, "--metrics-listen", "off"];
    let with = |words: &[&'static str]| -> Vec<&str> { [&[dir], words, &quiet[..]].concat() };
    let mut cases = vec![
        case("server", &with(&[]), &[Store]),
        case("server", &with(&["--peer", "127.0.0.1:1"]), &[Machine]),
        case("pack", &with(&["--backend", "file:///nowhere"]), &[Worker]),
        case("pack", &[&[elsewhere, "--backend", &backend], &quiet[..]].concat(), &[Backend]),
        case("pack status", &[dir], &[Worker]),
        case("pack inspect", &[dir], &[]),
        case("pack extract", &[dir, elsewhere], &[]),
        case("pack extract", &["no-blob", dir], &[]),
        case("dev-cluster", &[dir], &[DevCluster]),
        case("bench fill", &[dir, "--objects", "1"], &[Store]),
    ];
    let roles: [(&'static str, &'static [Kind]); 4] =
        [("manager", &[Manager]), ("meta", &[Meta]), ("data", &[Data]), ("proxy", &[Proxy])];
    for (command, takes) in roles {
        cases.push(case(command, &["--config", config], takes));
        cases.push(case(command, &["--config", dir], takes));
    }
    cases
}

/// The commands of operators. They take the configuration of a server or the directory of a machine.
fn of_operators(named: &Named<'_>) -> Vec<Case> {
    let mut cases = Vec::new();
    for (command, words) in [
        ("token", &["--name", "m", "--role", "meta", "--machine", "1"][..]),
        ("drain", &["m"]),
        ("remove", &["m", "--yes"]),
        ("disk drain", &["m", "1"]),
        ("disk remove", &["m", "1", "--yes"]),
        ("rebalance plan", &[]),
        ("rebalance status", &[]),
        ("rebalance pause", &[]),
        ("rebalance start", &[]),
        ("bucket policy", &["photos", "all"]),
        ("keys rotate", &["--into", named.elsewhere]),
        ("keys retire", &["--yes"]),
    ] {
        let with = |config| [&["--config", config], words].concat();
        let mut of_server = case(command, &with(named.config), &[Manager]);
        of_server.says = |kind, _| ROLES.contains(&kind).then(|| "with a manager's".to_owned());
        cases.push(of_server);
        cases.push(case(command, &with(named.dir), &[Machine]));
    }
    cases.push(case("status", &["--config", named.config], ROLES));
    cases.push(case("status", &["--config", named.dir], &[Store, Machine, Worker, DevCluster]));
    cases.push(case("status", &[named.dir], &[Store, Machine, Worker, DevCluster]));
    let words = [named.dir, "--breakdown"];
    let mut breakdown = case("status", &words, &[Store, Machine, DevCluster]);
    breakdown.says =
        |kind, _| (kind == Worker).then(|| "--breakdown is of stores and clusters".to_owned());
    cases.push(breakdown);
    for case in cases.iter_mut().filter(|case| case.takes == [Machine]) {
        case.says = |kind, dir| {
            (kind == DevCluster).then(|| format!("such as {dir}/node-1/manager/role.toml"))
        };
    }
    cases.push(case("bucket usage", &["--config", named.config], ROLES));
    let mut usage = case("bucket usage", &[named.dir, "--json"], &[Store, Machine, DevCluster]);
    usage.says = |kind, dir| (kind == Worker).then(|| format!("`larder pack status {dir}`"));
    cases.push(usage);
    cases.push(case("keys status", &["--config", named.config], ROLES));
    for (command, words) in
        [("keys status", &[][..]), ("keys rotate", &["--at-once"]), ("keys retire", &["--yes"])]
    {
        let words = [&[named.dir], words].concat();
        let mut of_dir = case(command, &words, &[Store, Machine, DevCluster]);
        of_dir.says = |kind, _| (kind == Worker).then(|| "keys are rotated by hand".to_owned());
        cases.push(of_dir);
    }
    let of_servers = &[Machine, Manager, Meta, Data, Proxy];
    cases.push(case("recover take", &["no-recovery", named.dir], of_servers));
    cases.push(case("doctor", &[named.dir], &[Store, Machine]));
    let mut inspect = case("inspect", &[named.dir], &[Store, Manager, Meta, Data]);
    inspect.says = |kind, dir| match kind {
        Machine => Some(format!("`larder inspect {dir}/manager`")),
        Proxy => Some("the directory of a manager, meta or data server".to_owned()),
        _ => None,
    };
    cases.push(inspect);
    cases
}

/// The commands of regions. They take the store of a single node.
fn of_regions(named: &Named<'_>) -> Vec<Case> {
    let Named { dir, taken, .. } = *named;
    let token = "larder-region-1.BwAAAAAAAAABAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQICAgICAgICAgICAgICAgICAgICAgICAg\
                 ICAgICAgICc3RvcmUuZXhhbXBsZTo3MDAxX-JVHA";
    let place = ["--name", "a", "--listen", taken];
    let mut cases = vec![
        case("region create", &[&[dir], &place[..]].concat(), &[Store, Proxy]),
        case("region join", &[&[dir, token], &place[..]].concat(), &[Store, Proxy]),
        case("region remove", &[dir, "b", "--yes"], &[Store, Proxy]),
    ];
    for command in ["region token", "region list", "region status"] {
        cases.push(case(command, &[dir], &[Store, Proxy]));
    }
    for command in
        ["region compress", "region home", "region pause", "region rate", "region resume"]
    {
        cases.push(case(command, &[dir, "b"], &[Store, Proxy]));
    }
    for case in &mut cases {
        case.says = |kind, _| {
            let said = match kind {
                Manager | Meta | Data => "name the directory of one of the cluster's proxies",
                // It has no proxy yet.
                Machine => "belongs to no cluster yet: start its server once",
                DevCluster => "which becomes no region",
                _ => return None,
            };
            Some(said.to_owned())
        };
    }
    for (command, value) in [("region policy", "2"), ("region bucket", "local")] {
        let mut case = case(command, &[dir, "photos", value], &[Store, Machine]);
        case.says =
            |kind, _| (kind == DevCluster).then(|| "it is a development cluster".to_owned());
        cases.push(case);
    }
    cases
}

/// The commands that measure, and those that are given no directory.
fn that_measure(named: &Named<'_>) -> Vec<Case> {
    let Named { dir, elsewhere, .. } = *named;
    let mut cases = vec![case("man", &[dir], &[])];
    let given_none = cases.len();
    for command in [
        "bench put",
        "bench append",
        "bench get",
        "bench head",
        "bench mixed",
        "bench delete",
        "bench list",
    ] {
        cases.push(case(command, &["--endpoint", "http://127.0.0.1:1"], &[]));
    }
    cases.push(case("bench replay", &[dir, "--endpoint", "http://127.0.0.1:1"], &[]));
    for command in ["region drill", "region compare"] {
        cases.push(case(command, &["a=http://127.0.0.1:1", "b=http://127.0.0.1:1"], &[]));
    }
    cases.push(case("recover make", &["no-map", "--out", elsewhere], &[]));
    cases.push(case("secret", &[], &[]));
    cases.push(case("completions", &["bash"], &[]));
    cases[given_none..].iter_mut().for_each(|case| case.has_no_directory = true);
    cases
}

fn all(named: &Named<'_>) -> Vec<Case> {
    let all = [that_serve(named), of_operators(named), of_regions(named), that_measure(named)];
    all.into_iter().flatten().collect()
}

/// Runs the program in a directory until it ends.
fn ended(words: &[String], within: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_larder"))
        .args(words)
        .current_dir(within)
        .env_remove("LARDER_ROOT_ACCESS_KEY")
        .env_remove("LARDER_ROOT_SECRET_KEY")
        .env_remove("AWS_ACCESS_KEY_ID")
        .env_remove("AWS_SECRET_ACCESS_KEY")
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

/// Runs all commands on one directory.
fn try_all(kind: Kind, is_marked: bool) {
    let (home, scratch) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    // Without links, as the program names what a directory is inside of.
    let dir = home.path().canonicalize().unwrap();
    kind.make(&dir, is_marked);
    let name = dir.to_str().unwrap();
    let config = scratch.path().join("role.toml");
    let managers = "managers = [\"0@127.0.0.1:1\"]";
    fs::write(&config, format!("dir = {name:?}\nlisten = \"127.0.0.1:0\"\n{managers}\n")).unwrap();
    let elsewhere = scratch.path().join("elsewhere");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let named = Named {
        dir: name,
        config: config.to_str().unwrap(),
        elsewhere: elsewhere.to_str().unwrap(),
        taken: &taken.local_addr().unwrap().to_string(),
    };
    let before = contents(&dir);
    for case in all(&named).into_iter().filter(|case| !case.takes.contains(&kind)) {
        let Case { words, .. } = &case;
        let output = ended(words, &dir);
        let said = String::from_utf8(output.stderr).unwrap();
        let about = format!("{words:?} on {kind:?}, marked: {is_marked}: {said}");
        assert!(contents(&dir) == before, "changed: {about}");
        assert!(!elsewhere.exists(), "made something elsewhere: {about}");
        if case.has_no_directory {
            continue;
        }
        assert!(matches!(output.status.code(), Some(2 | 3)), "{:?}: {about}", output.status);
        let expected = (case.says)(kind, name).unwrap_or_else(|| kind.command(name));
        let is_sentence = said.starts_with("error: ") && said.lines().count() == 1;
        assert!(is_sentence && said.contains(&expected), "no {expected:?}: {about}");
        assert!(output.stdout.is_empty(), "it printed: {about}");
    }
}

#[test]
fn a_mistyped_confirmation_changes_nothing_and_shows_the_right_command() {
    KINDS.into_iter().for_each(|kind| try_all(kind, true));
}

#[test]
fn a_wrong_word_changes_no_byte_of_a_directory_without_a_marker() {
    KINDS.into_iter().filter(|kind| kind.marker().is_some()).for_each(|kind| try_all(kind, false));
}

/// Commands that `-h` lists, with their subcommands.
fn listed(path: &[String]) -> Vec<String> {
    let words: Vec<String> = path.iter().cloned().chain(["-h".to_owned()]).collect();
    let help = ended(&words, Path::new("/"));
    let help = String::from_utf8(help.stdout).unwrap();
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    // Wrapped lines are indented further.
    let named = lines.take_while(|line| !line.is_empty()).filter_map(|line| {
        let line = line.strip_prefix("  ")?;
        line.split(' ').next().filter(|name| !name.is_empty() && *name != "help")
    });
    let below = named.flat_map(|name| {
        listed(&path.iter().cloned().chain([name.to_owned()]).collect::<Vec<_>>())
    });
    let below: Vec<String> = below.collect();
    // Packing serves without a subcommand, too.
    let is_one = below.is_empty() || path == ["pack"];
    below.into_iter().chain(is_one.then(|| path.join(" "))).collect()
}

#[test]
fn every_command_is_tried() {
    let named = Named { dir: "d", config: "c", elsewhere: "e", taken: "t" };
    let tried: BTreeSet<String> = all(&named).iter().map(|case| case.command.to_owned()).collect();
    let listed: BTreeSet<String> = listed(&[]).into_iter().collect();
    assert!(listed.len() > 20, "{listed:?}");
    assert_eq!(tried, listed);
}
