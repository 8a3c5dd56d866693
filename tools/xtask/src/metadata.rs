//! The output of `cargo metadata`, cut down to what the checks read.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde::Deserialize;

use crate::Failure;

/// The platform whose dependency graph is checked: the one Larder is released for.
const PLATFORM: &str = "x86_64-unknown-linux-gnu";

/// Workspace members and everything they are built from.
#[derive(Debug, Deserialize)]
pub(crate) struct Metadata {
    pub(crate) packages: Vec<Package>,
    workspace_members: BTreeSet<String>,
    resolve: Resolve,
}

/// One crate in one version.
#[derive(Debug, Deserialize)]
pub(crate) struct Package {
    id: String,
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) license: Option<String>,
    pub(crate) manifest_path: std::path::PathBuf,
    pub(crate) dependencies: Vec<Dependency>,
}

/// A line of a manifest.
#[derive(Debug, Deserialize)]
pub(crate) struct Dependency {
    pub(crate) name: String,
    /// `None` for a normal dependency, else `dev` or `build`.
    pub(crate) kind: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Debug, Deserialize)]
struct Node {
    id: String,
}

impl Metadata {
    /// Asks cargo.
    pub(crate) fn read() -> Result<Self, Failure> {
        let mut cargo = Command::new(crate::cargo());
        cargo.args(["metadata", "--format-version=1", "--locked", "--filter-platform", PLATFORM]);
        let output = cargo.output().map_err(|e| Failure::start("cargo metadata", e))?;
        if !output.status.success() {
            let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(Failure::Command { line: "cargo metadata".to_owned(), detail: stderr });
        }
        serde_json::from_slice(&output.stdout).map_err(|e| Failure::Metadata(e.to_string()))
    }

    /// The crates of the workspace.
    pub(crate) fn members(&self) -> impl Iterator<Item = &Package> {
        self.packages.iter().filter(|p| self.workspace_members.contains(&p.id))
    }

    /// The crates from outside that are built on [`PLATFORM`], by name.
    pub(crate) fn outside(&self) -> BTreeMap<&str, Vec<&Package>> {
        let built: BTreeSet<&str> = self.resolve.nodes.iter().map(|n| n.id.as_str()).collect();
        let mut outside: BTreeMap<&str, Vec<&Package>> = BTreeMap::new();
        for package in &self.packages {
            let ours = self.workspace_members.contains(&package.id);
            if !ours && built.contains(package.id.as_str()) {
                outside.entry(&package.name).or_default().push(package);
            }
        }
        outside
    }
}
