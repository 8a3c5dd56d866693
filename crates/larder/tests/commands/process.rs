//! Processes of the program, and the directories that they are started on.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use larder_identity::{Role, Roles, TokenRecord};
use larder_types::ServerId;

/// Result of a start.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// It served, until it was killed.
    pub(crate) served: bool,
    pub(crate) code: Option<i32>,
    pub(crate) said: String,
}

pub(crate) fn start(words: &[&str], variables: &[(&str, &str)]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_larder"))
        .args(words)
        .env_remove("LARDER_ROOT_ACCESS_KEY")
        .env_remove("LARDER_ROOT_SECRET_KEY")
        .envs(variables.iter().copied())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Waits until a process serves, or has ended.
pub(crate) fn outcome(child: &mut Child) -> Outcome {
    let mut said = String::new();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    while let Some(line) = lines.next() {
        said.push_str(&line.unwrap());
        said.push('\n');
        let serves = ["Larder serves S3 on", "waiting for", "the manager has started", "This is "];
        if serves.iter().any(|serves| said.contains(serves)) {
            // A process whose last words nobody takes would end.
            std::thread::spawn(move || lines.for_each(drop));
            return Outcome { served: true, code: None, said };
        }
    }
    Outcome { served: false, code: child.wait().unwrap().code(), said }
}

/// Starts a process that is killed if it serves.
pub(crate) fn run(words: &[&str], variables: &[(&str, &str)]) -> Outcome {
    let mut child = start(words, variables);
    let outcome = outcome(&mut child);
    end(child);
    outcome
}

pub(crate) fn end(mut child: Child) {
    let _has_ended = child.kill();
    child.wait().unwrap();
}

/// Every file below a directory with its bytes; directories and sockets have none.
pub(crate) fn contents(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let bytes = if path.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
        if path.is_dir() {
            all.extend(contents(&path));
        }
        all.insert(path, bytes);
    }
    all
}

/// Files and addresses that wrong settings name.
pub(crate) struct Scratch {
    dir: tempfile::TempDir,
    taken: TcpListener,
}

impl Scratch {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let secret = Command::new(env!("CARGO_BIN_EXE_larder")).arg("secret").output().unwrap();
        let path = dir.path().join("secret");
        fs::write(&path, secret.stdout).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        fs::set_permissions(&path, mode).unwrap();
        Self { dir, taken }
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    pub(crate) fn file(&self, name: &str, text: &str) -> String {
        fs::write(self.dir.path().join(name), text).unwrap();
        self.path(name)
    }

    pub(crate) fn taken(&self) -> String {
        self.taken.local_addr().unwrap().to_string()
    }
}

/// A start with one wrong setting leaves a directory that was missing missing, and an empty one empty. Gives away what
/// each start said.
pub(crate) fn leaves_nothing(words: &[&str], variables: &[(&str, &str)], dir: &str) -> [String; 2] {
    let dir = Path::new(dir);
    [false, true].map(|exists| {
        if exists {
            fs::create_dir(dir).unwrap();
        }
        let ended = run(words, variables);
        assert!(!ended.served && ended.code != Some(0), "{words:?} was taken: {ended:?}");
        if exists {
            let left = contents(dir);
            assert!(left.is_empty(), "{words:?} left {:?}; {}", left.keys(), ended.said);
            fs::remove_dir(dir).unwrap();
        } else {
            let left = dir.exists().then(|| contents(dir));
            assert!(left.is_none(), "{words:?} made {left:?}; {}", ended.said);
        }
        ended.said
    })
}

/// A token of no cluster.
pub(crate) fn a_token(role: Role) -> String {
    let roles = Roles::of(&[role]);
    TokenRecord::issue([7; 32], ServerId(3), roles, None).unwrap().1.to_string()
}

/// An address that nobody listened at just now.
pub(crate) fn a_free_address() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

pub(crate) const QUIET: [&str; 4] = ["--listen", "127.0.0.1:0", "--metrics-listen", "off"];
