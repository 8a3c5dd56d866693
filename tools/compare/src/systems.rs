//! The systems of a comparison: how each is found, started and named.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::args::SystemsArgs;
use crate::error::CompareError;

/// Most ports that one system listens on.
const PORTS_MAX: usize = 12;

/// File into which the script of a system writes that it is ready.
pub(crate) const READY: &str = "ready";

/// A system in one setting: what is always true of it.
#[derive(Debug)]
pub(crate) struct Kind {
    /// Name in tables.
    pub(crate) name: &'static str,
    /// The setting's name.
    pub(crate) setting: &'static str,
    /// The durability of an object when its put is answered.
    pub(crate) durability: &'static str,
    /// The program; `None`: larder, or of the floor this one.
    pub(crate) peer: Option<&'static Peer>,
    /// Its arguments. `{data}` stands for the empty directory, `{config}` for the file, and `{s3}`
    /// and `{p1}` to `{p11}` for free ports. Of a system with a script they are only shown.
    pub(crate) arguments: &'static [&'static str],
    /// Variables of its environment beside the keys.
    pub(crate) environment: &'static [(&'static str, &'static str)],
    /// The configuration file, in which `{access}` and `{secret}` stand for the keys and `{random}`
    /// for 32 random bytes besides; empty if there is none.
    pub(crate) config: &'static str,
    /// The script for `sh` that starts it if it has several processes; empty if it is one process. `{program}`
    /// stands for the program, and `{ready}` for a file to write a line into when everything runs and is configured.
    pub(crate) script: &'static str,
    /// True if it keeps nothing.
    pub(crate) floor: bool,
}

/// A program of somebody else's.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    pub(crate) program: &'static str,
    /// The arguments that make it print its version.
    version: &'static [&'static str],
    /// Commands that install it.
    install: &'static str,
    /// Commands to give it once it runs, each until it succeeds; `{node}` stands for what the first
    /// prints.
    pub(crate) admission: &'static [&'static [&'static str]],
}

pub(crate) const SEAWEEDFS: Peer = Peer {
    program: "weed",
    version: &["version"],
    install: "build ./weed of https://github.com/seaweedfs/seaweedfs, or take a release",
    admission: &[],
};

const MINIO: Peer = Peer {
    program: "minio",
    version: &["--version"],
    install: "go install github.com/minio/minio@latest",
    admission: &[],
};

const MINIO_ARGUMENTS: &[&str] =
    &["server", "{data}", "--address=127.0.0.1:{s3}", "--console-address=127.0.0.1:{p1}"];

pub(crate) const GARAGE: Peer = Peer {
    program: "garage",
    version: &["--version"],
    install: "cargo install garage",
    admission: &[
        &["-c", "{config}", "node", "id", "-q"],
        &["-c", "{config}", "layout", "assign", "-z", "here", "-c", "1T", "{node}"],
        &["-c", "{config}", "layout", "apply", "--version", "1"],
        &["-c", "{config}", "key", "import", "--yes", "{access}", "{secret}"],
        &["-c", "{config}", "key", "allow", "--create-bucket", "{access}"],
    ],
};

const RUSTFS: Peer = Peer {
    program: "rustfs",
    version: &["--version"],
    install: "build rustfs of https://github.com/rustfs/rustfs at a tag, or take a release",
    admission: &[],
};

const RUSTFS_ARGUMENTS: &[&str] = &["server", "--address", "127.0.0.1:{s3}", "{data}"];

/// Garage's configuration; `$sync` says whether metadata and content are synced.
macro_rules! garage_config {
    ($sync:literal) => {
        concat!(
            "metadata_dir = \"{data}/meta\"\ndata_dir = \"{data}/data\"\n",
            "db_engine = \"lmdb\"\nreplication_factor = 1\n",
            "metadata_fsync = ",
            $sync,
            "\ndata_fsync = ",
            $sync,
            "\nrpc_secret = \"{random}\"\nrpc_bind_addr = \"127.0.0.1:{p1}\"\n",
            "rpc_public_addr = \"127.0.0.1:{p1}\"\n",
            "[s3_api]\ns3_region = \"us-east-1\"\napi_bind_addr = \"127.0.0.1:{s3}\"\n",
        )
    };
}

/// Larder, without which nothing is compared.
pub(crate) const LARDER: &str = "larder";
/// The floor server, which larder is compared with first.
pub(crate) const FLOOR: &str = "floor";

/// All of them, in the order of the tables.
pub(crate) static KINDS: [Kind; 10] = [
    Kind {
        name: LARDER,
        setting: "default",
        durability: "content and metadata synced",
        peer: None,
        arguments: &["server", "{data}", "--listen", "127.0.0.1:{s3}", "--metrics-listen", "off"],
        environment: &[],
        config: "",
        script: "",
        floor: false,
    },
    Kind {
        name: FLOOR,
        setting: "S3",
        durability: "nothing is kept; HTTP, authentication and digests as in larder",
        peer: None,
        arguments: &["floor", "--listen", "127.0.0.1:{s3}"],
        environment: &[],
        config: "",
        script: "",
        floor: true,
    },
    Kind {
        name: "bare floor",
        setting: "HTTP",
        durability: "nothing is kept; HTTP alone",
        peer: None,
        arguments: &["floor", "--bare", "--listen", "127.0.0.1:{s3}"],
        environment: &[],
        config: "",
        script: "",
        floor: true,
    },
    Kind {
        name: "SeaweedFS",
        setting: "default",
        durability: "nothing synced; its setting fsync reaches no put over S3",
        peer: Some(&SEAWEEDFS),
        arguments: &[
            "server",
            "-dir={data}",
            "-ip=127.0.0.1",
            "-master.port={p1}",
            "-master.port.grpc={p2}",
            "-master.telemetry=false",
            "-volume.port={p3}",
            "-volume.port.grpc={p4}",
            "-volume.max=100",
            "-volume.preStopSeconds=1",
            "-filer.port={p5}",
            "-filer.port.grpc={p6}",
            "-filer.localSocket={data}/filer.socket",
            "-s3",
            "-s3.port={s3}",
            "-s3.port.grpc={p7}",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            "-s3.localSocket={data}/s3.socket",
            "-s3.config={config}",
        ],
        environment: &[],
        config: r#"{"identities": [{"name": "bench", "actions": ["Admin", "Read", "Write", "List"],
  "credentials": [{"accessKey": "{access}", "secretKey": "{secret}"}]}]}
"#,
        script: "",
        floor: false,
    },
    Kind {
        name: "MinIO",
        setting: "default",
        durability: "content and metadata synced, their directory entries not",
        peer: Some(&MINIO),
        arguments: MINIO_ARGUMENTS,
        environment: &[],
        config: "",
        script: "",
        floor: false,
    },
    Kind {
        name: "MinIO",
        setting: "durable",
        durability: "all synced: after each put everything on the machine is (MINIO_FS_OSYNC)",
        peer: Some(&MINIO),
        arguments: MINIO_ARGUMENTS,
        environment: &[("MINIO_FS_OSYNC", "on")],
        config: "",
        script: "",
        floor: false,
    },
    Kind {
        name: "Garage",
        setting: "default",
        durability: "nothing synced",
        peer: Some(&GARAGE),
        arguments: &["-c", "{config}", "server"],
        environment: &[],
        config: garage_config!("false"),
        script: "",
        floor: false,
    },
    Kind {
        name: "Garage",
        setting: "durable",
        durability: "content and metadata synced (metadata_fsync, data_fsync)",
        peer: Some(&GARAGE),
        arguments: &["-c", "{config}", "server"],
        environment: &[],
        config: garage_config!("true"),
        script: "",
        floor: false,
    },
    Kind {
        name: "RustFS",
        setting: "default",
        durability: "content synced, metadata not (1.0.0-rc.2); nothing (1.0.0-beta.8 and before)",
        peer: Some(&RUSTFS),
        arguments: RUSTFS_ARGUMENTS,
        environment: &[],
        config: "",
        script: "",
        floor: false,
    },
    Kind {
        name: "RustFS",
        setting: "durable",
        durability: "content, metadata and directory entries synced (1.0.0-beta.9 and later)",
        peer: Some(&RUSTFS),
        arguments: RUSTFS_ARGUMENTS,
        environment: &[
            ("RUSTFS_DURABILITY_MODE", "strict"),
            ("RUSTFS_NEW_BUCKET_DURABILITY_MODE", "inherit"),
        ],
        config: "",
        script: "",
        floor: false,
    },
];

/// A system that is there.
#[derive(Debug)]
pub(crate) struct System {
    pub(crate) kind: &'static Kind,
    pub(crate) program: PathBuf,
    pub(crate) version: String,
}

impl Kind {
    /// Its name on the command line.
    fn id(&self) -> String {
        format!("{}-{}", self.name, self.setting).to_lowercase().replace(' ', "-")
    }
}

/// Those of `kinds` whose names begin with one of `prefixes`; all if there are none.
fn chosen(kinds: &'static [Kind], prefixes: &[String]) -> Result<Vec<&'static Kind>, CompareError> {
    for prefix in prefixes {
        if !kinds.iter().any(|kind| kind.id().starts_with(prefix)) {
            let ids: Vec<String> = kinds.iter().map(Kind::id).collect();
            let reason = format!("no system begins with {prefix:?}; there are {}", ids.join(", "));
            return Err(CompareError::usage("--systems", reason));
        }
    }
    let is_chosen = |kind: &Kind| prefixes.iter().any(|prefix| kind.id().starts_with(prefix));
    Ok(kinds.iter().filter(|kind| prefixes.is_empty() || is_chosen(kind)).collect())
}

/// All systems of `kinds` that are there and that `args` choose, and a line for each peer that is not there.
pub(crate) fn find(
    kinds: &'static [Kind],
    args: &SystemsArgs,
) -> Result<(Vec<System>, Vec<String>), CompareError> {
    let this = std::env::current_exe().map_err(CompareError::System)?;
    let larder = args.larder.clone().unwrap_or_else(|| this.with_file_name(LARDER));
    let (peers, path) = (args.peers.as_deref(), std::env::var_os("PATH"));
    let (mut found, mut absent) = (Vec::new(), Vec::new());
    for kind in chosen(kinds, &args.systems)? {
        let program = match kind.peer {
            None if kind.floor => Some(this.clone()),
            None => Some(find_larder(&larder)?),
            Some(peer) => find_program(peer.program, peers, path.as_deref()),
        };
        let Some(program) = program else {
            absent.extend(kind.peer.map(|peer| how_to_install(kind.name, peer)));
            continue;
        };
        let version = version(kind, &program).map_err(CompareError::System)?;
        found.push(System { kind, program, version });
    }
    absent.dedup();
    Ok((found, absent))
}

/// The larder to measure.
fn find_larder(file: &Path) -> Result<PathBuf, CompareError> {
    // It is started in another folder than this one.
    file.canonicalize().map_err(|error| {
        let file = file.display();
        let remedy = "build it with `cargo build --release`, or name one";
        CompareError::usage("--larder", format!("{file}: {error}; {remedy}"))
    })
}

fn how_to_install(name: &str, peer: &Peer) -> String {
    format!("{name} is left out: there is no {}. To install it: {}", peer.program, peer.install)
}

/// The first executable file of this name, in `peers` or else in the folders of `path`.
fn find_program(name: &str, peers: Option<&Path>, path: Option<&OsStr>) -> Option<PathBuf> {
    let folders = peers.map(Path::to_owned).into_iter();
    let mut candidates =
        folders.chain(path.into_iter().flat_map(std::env::split_paths)).map(|f| f.join(name));
    let found = candidates.find(|file| {
        fs::metadata(file).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
    })?;
    // A server is started in another folder than this one.
    found.canonicalize().ok()
}

fn version(kind: &Kind, program: &Path) -> io::Result<String> {
    // A program built by `go install` does not know its own version, but Go does.
    if let Some(version) = kind.peer.and_then(|_| go_version(program)) {
        return Ok(version);
    }
    let question = kind.peer.map_or(&["--version"][..], |peer| peer.version);
    let output = Command::new(program).args(question).output()?;
    Ok(printed_version(&String::from_utf8_lossy(&output.stdout)))
}

/// The first word of the first line that looks like a version, from its first digit on: SeaweedFS
/// has a size before it, Garage where it was built from.
fn printed_version(text: &str) -> String {
    let mut words = text.lines().next().unwrap_or_default().split_ascii_whitespace();
    let is_version =
        |word: &&str| word.contains('.') && word.contains(|c: char| c.is_ascii_digit());
    let version = words.find(is_version).unwrap_or_default();
    version.trim_start_matches(|c: char| !c.is_ascii_digit()).to_owned()
}

/// The version of the module that a Go program was built from, if it was installed as one.
fn go_version(program: &Path) -> Option<String> {
    let output = Command::new("go").args(["version", "-m"]).arg(program).output().ok()?;
    module_version(&String::from_utf8_lossy(&output.stdout))
}

fn module_version(text: &str) -> Option<String> {
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix("mod\t"))?;
    let version = line.split('\t').nth(1)?;
    version.starts_with('v').then(|| version.to_owned())
}

/// The values of the words in braces, for one start of one system.
#[derive(Debug)]
pub(crate) struct Places {
    pairs: Vec<(String, String)>,
    /// Where it will serve S3.
    pub(crate) port: u16,
}

impl Places {
    /// Takes ports that are free now. Nothing keeps another program from taking them before the
    /// system does; then it does not come up, and the row says so.
    pub(crate) fn new(directory: &Path, keys: &Keys) -> io::Result<Self> {
        let listeners = (0..PORTS_MAX)
            .map(|_| TcpListener::bind("127.0.0.1:0"))
            .collect::<io::Result<Vec<_>>>()?;
        let mut pairs = vec![
            ("{data}".to_owned(), directory.join("data").display().to_string()),
            ("{config}".to_owned(), directory.join("config").display().to_string()),
            ("{ready}".to_owned(), directory.join(READY).display().to_string()),
            ("{access}".to_owned(), keys.access.clone()),
            ("{secret}".to_owned(), keys.secret.clone()),
            ("{random}".to_owned(), keys.secret.chars().rev().collect()),
        ];
        let mut port = 0;
        for (index, listener) in listeners.iter().enumerate() {
            let free = listener.local_addr()?.port();
            let name = if index == 0 { "{s3}".to_owned() } else { format!("{{p{index}}}") };
            if index == 0 {
                port = free;
            }
            pairs.push((name, free.to_string()));
        }
        Ok(Self { pairs, port })
    }

    /// Sets the place that a name stands for.
    pub(crate) fn set(&mut self, name: &str, value: String) {
        self.pairs.push((name.to_owned(), value));
    }

    pub(crate) fn fill(&self, template: &str) -> String {
        self.pairs.iter().fold(template.to_owned(), |text, (name, value)| text.replace(name, value))
    }
}

/// The keys of all systems of a comparison, in the form that the most particular of them takes.
#[derive(Debug)]
pub(crate) struct Keys {
    /// `GK` and 24 hexadecimal digits.
    pub(crate) access: String,
    /// 64 hexadecimal digits.
    pub(crate) secret: String,
}

impl System {
    /// The command that starts it, for its places.
    pub(crate) fn command(&self, places: &Places, keys: &Keys) -> Command {
        let mut command = if self.kind.script.is_empty() {
            let mut command = Command::new(&self.program);
            command.args(self.kind.arguments.iter().map(|argument| places.fill(argument)));
            command
        } else {
            let mut command = Command::new("sh");
            command.arg("-c").arg(places.fill(self.kind.script));
            command
        };
        command
            .env("LARDER_ROOT_ACCESS_KEY", &keys.access)
            .env("LARDER_ROOT_SECRET_KEY", &keys.secret)
            .env("MINIO_ROOT_USER", &keys.access)
            .env("MINIO_ROOT_PASSWORD", &keys.secret)
            .env("MINIO_BROWSER", "off")
            .env("MINIO_UPDATE", "off")
            .env("RUSTFS_ACCESS_KEY", &keys.access)
            .env("RUSTFS_SECRET_KEY", &keys.secret)
            .env("RUSTFS_CONSOLE_ENABLE", "false")
            .env("RUSTFS_REGION", "us-east-1")
            .envs(self.kind.environment.iter().copied());
        command
    }

    /// That command as the document shows it.
    pub(crate) fn command_line(&self) -> String {
        let ours = if self.kind.floor { env!("CARGO_PKG_NAME") } else { LARDER };
        let program = self.kind.peer.map_or(ours, |peer| peer.program);
        let variables =
            self.kind.environment.iter().map(|(name, value)| format!("{name}={value} "));
        format!("{}{program} {}", variables.collect::<String>(), self.kind.arguments.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clusters::CLUSTERS;

    fn executable(folder: &Path, name: &str, mode: u32) {
        let file = folder.join(name);
        fs::write(&file, "").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_peer_is_found_in_its_folder_before_the_path() {
        let (peers, path) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let find = |name| find_program(name, Some(peers.path()), Some(path.path().as_os_str()));
        assert_eq!(find("minio"), None);
        executable(path.path(), "minio", 0o755);
        assert_eq!(find("minio"), Some(path.path().canonicalize().unwrap().join("minio")));
        executable(peers.path(), "minio", 0o644);
        assert!(find("minio").unwrap().starts_with(path.path().canonicalize().unwrap()));
        executable(peers.path(), "minio", 0o755);
        assert!(find("minio").unwrap().starts_with(peers.path().canonicalize().unwrap()));
        assert_eq!(find_program("minio", None, None), None);
    }

    #[test]
    fn systems_are_chosen_by_how_their_names_begin() {
        let ids = |prefixes: &[&str]| -> Vec<String> {
            let prefixes: Vec<String> = prefixes.iter().map(ToString::to_string).collect();
            chosen(&KINDS, &prefixes).unwrap().iter().map(|kind| kind.id()).collect()
        };
        assert_eq!(ids(&[]).len(), KINDS.len());
        assert_eq!(ids(&["garage-durable", "floor"]), ["floor-s3", "garage-durable"]);
        let error = chosen(&KINDS, &["minnio".into()]).unwrap_err().to_string();
        assert!(error.contains("minnio") && error.contains("bare-floor-http"), "{error}");
    }

    #[test]
    fn an_absent_peer_is_named_with_its_remedy() {
        let line = how_to_install("MinIO", &MINIO);
        assert!(line.contains("MinIO") && line.contains("go install"), "{line}");
    }

    #[test]
    fn versions_of_go_modules_are_those_of_the_build() {
        let text = "/bin/x: go1.26\n\tpath\tgithub.com/a/b\n\tmod\tgithub.com/a/b\tv1.2.3\th1:\n";
        assert_eq!(module_version(text).as_deref(), Some("v1.2.3"));
        assert_eq!(module_version("\tmod\tgithub.com/a/b\t(devel)\t\n"), None);
        assert_eq!(module_version(""), None);
    }

    #[test]
    fn printed_versions_are_the_words_with_numbers_and_points() {
        assert_eq!(printed_version("version 30GB 4.44  linux amd64\nsee x.y.1"), "4.44");
        assert_eq!(printed_version("garage cargo:2.5.0 [features: lmdb]"), "2.5.0");
        assert_eq!(printed_version("larder 0.1.0\n"), "0.1.0");
        assert_eq!(printed_version(""), "");
    }

    #[test]
    fn every_place_in_a_command_or_a_file_is_filled() {
        let keys = Keys { access: "GK01".into(), secret: "ab".into() };
        let mut places = Places::new(Path::new("/d"), &keys).unwrap();
        places.set("{node}", "n".into());
        places.set("{program}", "p".into());
        for kind in KINDS.iter().chain(&CLUSTERS) {
            let admission = kind.peer.map_or(&[][..], |peer| peer.admission);
            for template in kind.arguments.iter().chain(admission.iter().copied().flatten()) {
                let filled = places.fill(template);
                assert!(!filled.contains(['{', '}']), "{filled}");
            }
            let config = places.fill(kind.config);
            assert!(!config.contains("{p") && !config.contains("t}"), "{config}");
            let script = places.fill(kind.script);
            assert!(!script.contains("{p") && !script.contains("y}"), "{script}");
        }
    }

    #[test]
    fn ports_differ_and_settings_of_one_system_have_different_names() {
        let keys = Keys { access: String::new(), secret: String::new() };
        let places = Places::new(Path::new("/d"), &keys).unwrap();
        let mut ports: Vec<_> = places.pairs[6..].iter().map(|(_, port)| port).collect();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), PORTS_MAX);
        for kinds in [&KINDS[..], &CLUSTERS[..]] {
            let mut names: Vec<_> = kinds.iter().map(|kind| (kind.name, kind.setting)).collect();
            names.dedup();
            assert_eq!(names.len(), kinds.len());
        }
    }
}
