//! Makes a development cluster: founds it, with a place and a token for each process.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use larder_protocol::manager::state::{NewServer, ServerRole, Settings};
use larder_protocol::placement::{FailureDomains, MachineId, Weight};
use larder_protocol::scheduler::Policy;
use larder_roles::quorum::{Founding, found};
use larder_types::ServerId;
use larder_types::limits::BLOCK_BYTES;
use serde::Serialize;

use super::layout::{Layout, PartPlace, PartRole};
use super::{DevError, file_error};
use crate::args::DevClusterArgs;
use crate::credentials::{self, Root};
use crate::kind::{self, Kind, LockedDirectory};
use crate::private_file;

/// File of the layout.
const LAYOUT: &str = "cluster.toml";
/// File of the root credentials, the same for all proxies.
pub(super) const CREDENTIALS: &str = credentials::FILE;
/// The configuration of a process, in its directory.
const CONFIGURATION: &str = "role.toml";
/// Files that may lie in a process's directory of a cluster that was not made whole. No process of it has run.
const BEFORE_MADE: [&str; 6] =
    [CONFIGURATION, "authority.pem", "identity.pem", "lock", "quorum", "tokens"];
/// The id of the manager that founds a cluster.
const FOUNDER: ServerId = ServerId(0);
/// Default number of nodes of a cluster.
const NODES: usize = 3;
/// Copies of everything where there are as many nodes.
const COPIES: usize = 3;
/// PGs: few, so that a start is quick.
const PG_COUNT: u32 = 32;
/// MiB of a volume: small, as many of them lie on one disk.
const VOLUME_MIB: u32 = 64;
/// A meta server's share.
const WEIGHT: Weight = Weight(100);

/// The configuration of one process, as it is written.
#[derive(Serialize)]
struct Written<'a> {
    dir: &'a Path,
    listen: &'a str,
    managers: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    join: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    s3_listen: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    credentials: Option<&'a Path>,
    #[serde(skip_serializing_if = "Option::is_none")]
    read_policy: Option<&'a str>,
    log_segment_mib: u64,
}

/// Takes up the cluster in a directory, or makes one.
pub(super) fn open_or_make(args: &DevClusterArgs) -> Result<(Layout, LockedDirectory), DevError> {
    let (root, nodes) = (&args.dir, args.nodes.map(usize::from));
    let held = kind::bind(root, Kind::DevCluster)?;
    let root = &root.canonicalize().map_err(|source| file_error(root, source))?;
    let path = root.join(LAYOUT);
    let layout = match fs::read_to_string(&path) {
        Ok(text) => {
            let layout = read(&path, &text)?;
            // Before the proxies, of which each would draw its own.
            credentials(root)?.warn_if_replaced(&root.join(CREDENTIALS), false);
            layout
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            clear(root)?;
            make(root, &path, nodes.unwrap_or(NODES), args)?
        }
        Err(error) => return Err(file_error(&path, error)),
    };
    let found = layout.nodes.len();
    match nodes {
        Some(asked) if asked != found => {
            Err(DevError::Nodes { dir: root.display().to_string(), found, asked })
        }
        _ => Ok((layout, held)),
    }
}

fn read(path: &Path, text: &str) -> Result<Layout, DevError> {
    toml::from_str(text).map_err(|error| DevError::Layout {
        path: path.display().to_string(),
        reason: error.message().to_owned(),
    })
}

/// Root's keys, which all proxies share.
pub(super) fn credentials(root: &Path) -> Result<Root, DevError> {
    let keys = credentials::load_file(&root.join(CREDENTIALS));
    keys.map_err(|error| DevError::Found(error.to_string()))
}

/// Removes the nodes of a cluster that was not made whole. Of one in which a process has run nothing is removed.
fn clear(root: &Path) -> Result<(), DevError> {
    let nodes = private_file::entries(root).map_err(|source| file_error(root, source))?;
    let is_node = |dir: &&PathBuf| {
        let name = dir.file_name().and_then(|name| name.to_str());
        let number = name.and_then(|name| name.strip_prefix("node-"));
        number.is_some_and(|number| number.parse::<usize>().is_ok())
    };
    let nodes: Vec<_> = nodes.iter().filter(is_node).collect();
    for node in &nodes {
        let is_role = |name: &str| PartRole::ALL.iter().any(|role| role.name() == name);
        let mut foreign = private_file::first_other(node, is_role);
        for role in PartRole::ALL {
            let dir = node.join(role.name());
            foreign = foreign.and_then(|found| match found {
                None => private_file::first_other(&dir, |name| BEFORE_MADE.contains(&name)),
                found => Ok(found),
            });
        }
        if let Some(found) = foreign.map_err(|source| file_error(node, source))? {
            let (dir, found) = (root.display().to_string(), found.display().to_string());
            return Err(DevError::NoLayout { dir, found });
        }
    }
    nodes
        .iter()
        .try_for_each(|node| fs::remove_dir_all(node).map_err(|source| file_error(node, source)))
}

fn make(root: &Path, path: &Path, nodes: usize, args: &DevClusterArgs) -> Result<Layout, DevError> {
    let layout = Layout::draw(root, nodes).map_err(DevError::System)?;
    credentials(root)?;
    let credentials = root.join(CREDENTIALS);
    let mut places = layout
        .nodes
        .iter()
        .enumerate()
        .flat_map(|(number, node)| node.parts.iter().map(move |part| (number, node, part)));
    let (_, first_node, founder) = places.next().expect("a cluster has a node with a manager");
    let rest: Vec<_> = places.collect();
    let server = |number: usize, name: &str, part: &PartPlace| NewServer {
        name: format!("{name}-{}", part.role.name()),
        roles: BTreeSet::from([role(part.role)]),
        addresses: vec![part.listen.clone()],
        domains: FailureDomains { machine: MachineId(number as u32), ..FailureDomains::default() },
        weight: WEIGHT,
    };
    let founding = Founding {
        settings: settings(nodes),
        manager: server(0, &first_node.name, founder),
        servers: rest.iter().map(|(at, node, part)| server(*at, &node.name, part)).collect(),
        expires: None,
    };
    let tokens =
        found(&founder.dir, founding).map_err(|error| DevError::Found(error.to_string()))?;
    let mut tokens: Vec<_> = tokens.into_iter().map(|(id, token)| (id, Some(token))).collect();
    tokens.insert(0, (FOUNDER, None));
    let all: Vec<_> = std::iter::once((0, first_node, founder)).chain(rest).collect();
    // All of them: a process that starts while one is down asks another.
    let managers: Vec<String> = all
        .iter()
        .zip(&tokens)
        .filter(|((_, _, part), _)| part.role == PartRole::Manager)
        .map(|((_, _, part), (id, _))| format!("{id}@{}", part.listen))
        .collect();
    for ((_, node, part), (_, token)) in all.into_iter().zip(tokens) {
        let is_proxy = part.role == PartRole::Proxy;
        let written = Written {
            dir: &part.dir,
            listen: &part.listen,
            managers: &managers,
            join: token.map(|token| token.to_string()),
            s3_listen: is_proxy.then_some(&node.s3),
            credentials: is_proxy.then_some(&credentials),
            read_policy: args.read_policy.filter(|_| is_proxy).map(Policy::name),
            log_segment_mib: 4,
        };
        let text = toml::to_string(&written).map_err(|error| DevError::Found(error.to_string()))?;
        let file = part.dir.join(CONFIGURATION);
        fs::create_dir_all(&part.dir).map_err(|source| file_error(&part.dir, source))?;
        private_file::write(&file, &text).map_err(|source| file_error(&file, source))?;
    }
    // Last: a directory without it was not made whole.
    let text = toml::to_string(&layout).map_err(|error| DevError::Found(error.to_string()))?;
    private_file::write(path, &text).map_err(|source| file_error(path, source))?;
    Ok(layout)
}

fn settings(nodes: usize) -> Settings {
    let copies = nodes.min(COPIES) as u8;
    Settings {
        pg_count: PG_COUNT,
        members: copies,
        min_members: copies / 2 + 1,
        copies,
        min_copies: copies.div_ceil(2),
        lv_blocks: VOLUME_MIB * 1024 * 1024 / BLOCK_BYTES,
    }
}

fn role(role: PartRole) -> ServerRole {
    match role {
        PartRole::Manager => ServerRole::Manager,
        PartRole::Meta => ServerRole::Meta,
        PartRole::Data => ServerRole::Data,
        PartRole::Proxy => ServerRole::Proxy,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(dir: &Path, names: &[&str]) {
        for name in names {
            let path = dir.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "x").unwrap();
        }
    }

    fn args(dir: &Path) -> DevClusterArgs {
        use clap::Parser;
        let words = ["larder", "dev-cluster", &dir.display().to_string(), "--nodes", "1"];
        let crate::args::Command::DevCluster(args) =
            crate::args::Program::try_parse_from(words).unwrap().command
        else {
            panic!("it is dev-cluster")
        };
        args
    }

    #[test]
    fn a_first_start_that_was_cut_off_begins_anew() {
        let dir = tempfile::tempdir().unwrap();
        drop(open_or_make(&args(dir.path())).unwrap());
        let role = dir.path().join("node-1/meta").join(CONFIGURATION);
        let before = fs::read(&role).unwrap();
        fs::remove_file(dir.path().join(LAYOUT)).unwrap();
        drop(open_or_make(&args(dir.path())).unwrap());
        assert_ne!(fs::read(&role).unwrap(), before, "another cluster");
    }

    #[test]
    fn a_cluster_that_has_run_is_not_removed_without_its_layout() {
        let dir = tempfile::tempdir().unwrap();
        drop(open_or_make(&args(dir.path())).unwrap());
        fs::remove_file(dir.path().join(LAYOUT)).unwrap();
        write(dir.path(), &["node-1/data/data0"]);
        let error = open_or_make(&args(dir.path())).err().unwrap().to_string();
        assert!(error.contains("data0"), "{error}");
        assert!(dir.path().join("node-1/manager/identity.pem").exists());
    }
}
