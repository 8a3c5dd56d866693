//! Larder with worse ports: `larder-compare larder …` is `larder …` with disks and a network that are slower than this
//! machine's, or that do without a part of the design. It is for measurement: put nothing of value into it.
//!
//! The variable [`VARIABLE`] names a file of [`Sections`]. A role's process takes up the section of its node, or else
//! that of all. Without the variable this is `larder`, to the byte of what it does.
//!
//! # Invariants
//!
//! 1. The ports of a process are chosen once, before it opens a file or a connection, on its first thread.
//! 2. Servers, roles and state machines know nothing of it.

mod files;
mod network;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::num::NonZeroU64;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use larder_roles::meta::LOG_DIR;
use larder_roles::store::DATA_FILE;
use serde::{Deserialize, Serialize};

use crate::error::CompareError;
use files::{Files, ModelledReads};
use network::Delayed;

/// Word after which this program is `larder`.
pub(crate) const WORD: &str = "larder";
/// Variable that names the file of sections.
pub(crate) const VARIABLE: &str = "LARDER_PORTS";
/// The section of nodes without one of their own.
const ALL: &str = "all";
/// Commands whose processes have worse ports.
const ROLES: [&str; 5] = ["server", "manager", "meta", "data", "proxy"];

/// The ports of a process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Ports {
    /// Microseconds that a question to another server and its answer take longer.
    pub(crate) network_us: u64,
    /// Microseconds that a sync takes at least.
    pub(crate) sync_us: u64,
    /// Microseconds that a read of data takes at least, from a modelled device without a page cache; 0 for the real one.
    pub(crate) read_us: u64,
    /// Reads that this device serves at once.
    pub(crate) read_lanes: u16,
    /// Milliseconds for which it stands still, of every `stall_every_ms`.
    pub(crate) stall_ms: u64,
    /// See `stall_ms`.
    pub(crate) stall_every_ms: u64,
    /// Each object's data is a file of its own; of a data server.
    pub(crate) plain_files: bool,
    /// METAX is three writes, each durable before the next; of a meta server.
    pub(crate) separate_metax: bool,
}

/// The ports of a development cluster's nodes: `[all]`, and `[node-N]` in its place for one node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Sections(BTreeMap<String, Ports>);

impl Sections {
    /// The same for all nodes.
    pub(crate) fn all(ports: Ports) -> Self {
        Self([(ALL.to_owned(), ports)].into())
    }

    /// With others for a node, counted from 1.
    pub(crate) fn with_node(mut self, number: usize, ports: Ports) -> Self {
        self.0.insert(format!("node-{number}"), ports);
        self
    }

    /// Writes the file.
    pub(crate) fn write(&self, path: &Path) -> Result<(), CompareError> {
        let text = toml::to_string(self).expect("numbers and switches always encode");
        std::fs::write(path, text)
            .map_err(|source| CompareError::File { path: path.to_owned(), source })
    }

    fn read(path: &Path) -> Result<Self, CompareError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| CompareError::File { path: path.to_owned(), source })?;
        let wrong = |reason: String| CompareError::Document { path: path.to_owned(), reason };
        let sections: Self =
            toml::from_str(&text).map_err(|error| wrong(error.message().to_owned()))?;
        match sections.0.keys().find(|name| *name != ALL && !name.starts_with("node-")) {
            Some(name) => Err(wrong(format!("[{name}] is neither [{ALL}] nor [node-N]"))),
            None => Ok(sections),
        }
    }

    /// Those of the process with this command line, after the name of the program.
    fn of(&self, line: &[OsString]) -> Option<Ports> {
        let is_role = line.first().is_some_and(|word| ROLES.iter().any(|role| word == role));
        let named = node_of(line).and_then(|node| self.0.get(node.to_str()?));
        named.or_else(|| self.0.get(ALL)).copied().filter(|_| is_role)
    }
}

/// The folder of a node in a development cluster, if the configuration is that of one of its roles: `node-N/ROLE/role.toml`.
fn node_of(line: &[OsString]) -> Option<&OsStr> {
    let option = line.iter().position(|word| word == "--config")?;
    Path::new(line.get(option + 1)?).ancestors().nth(2)?.file_name()
}

/// Runs `larder` in this process. The line begins with its name.
pub(crate) fn run(line: &[OsString]) -> Result<ExitCode, CompareError> {
    if let Some(path) = std::env::var_os(VARIABLE)
        && let Some(ports) = Sections::read(Path::new(&path))?.of(&line[1..])
    {
        eprintln!("the ports of this process are worse, for measurement: {ports:?}");
        install(ports);
    }
    Ok(larder::run(line.to_vec(), &[WORD]))
}

/// Makes this process's ports worse. Threads that start later inherit that timers are precise.
fn install(ports: Ports) {
    // A kernel that refuses leaves timers 50 us late, as they usually are.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    let reads = ModelledReads {
        read_min: Duration::from_micros(ports.read_us),
        lanes: ports.read_lanes,
        stall: Duration::from_millis(ports.stall_ms),
        stall_every: Duration::from_millis(ports.stall_every_ms),
    };
    let chosen = Files {
        reads: (ports.read_us > 0).then(|| (DATA_FILE.to_owned(), reads)),
        sync_min: Duration::from_micros(ports.sync_us),
        plain_files: ports.plain_files.then(|| DATA_FILE.to_owned()),
        separate_metax: ports.separate_metax.then(|| LOG_DIR.to_owned()),
    };
    larder_env::wrap_files(move |root, name, file| files::shaped(&chosen, root, name, file));
    let one_way = Duration::from_micros(ports.network_us) / 2;
    if !one_way.is_zero() {
        larder_net::wrap_sockets(move |socket| Box::new(Delayed::new(socket, one_way)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> Vec<OsString> {
        text.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn a_node_with_a_section_has_that_one_and_all_others_have_that_of_all() {
        let all = Ports { sync_us: 30, ..Ports::default() };
        let third = Ports { read_us: 7, ..Ports::default() };
        let sections = Sections::all(all).with_node(3, third);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ports.toml");
        sections.write(&path).unwrap();
        let read = Sections::read(&path).unwrap();
        assert_eq!(read, sections);
        let of = |text| read.of(&line(text));
        assert_eq!(of("data --config /c/node-3/data/role.toml --while-stdin-open"), Some(third));
        assert_eq!(of("meta --config /c/node-1/meta/role.toml"), Some(all));
        assert_eq!(of("server /d"), Some(all));
        assert_eq!(of("dev-cluster /c"), None, "it founds the cluster, and serves nothing");
    }

    #[test]
    fn mistakes_in_the_file_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ports.toml");
        for (text, named) in [("[all]\nsync_uss = 1\n", "sync_uss"), ("[nod-1]\n", "nod-1")] {
            std::fs::write(&path, text).unwrap();
            let error = Sections::read(&path).unwrap_err().to_string();
            assert!(error.contains(named) && error.contains("ports.toml"), "{error}");
        }
    }
}
