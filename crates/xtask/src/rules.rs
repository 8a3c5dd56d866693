//! The rules of `rules.toml`, read.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::Failure;

const SOURCE: &str = include_str!("../rules.toml");

/// All rules.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rules {
    /// By crate of the workspace.
    pub(crate) layers: BTreeMap<String, Layer>,
    pub(crate) licences: Licences,
    /// By crate from outside: why two versions of it are built.
    pub(crate) duplicates: BTreeMap<String, String>,
    pub(crate) tidy: Tidy,
}

/// What one crate of the workspace may depend on and contain.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Layer {
    pub(crate) may_use: Vec<String>,
    #[serde(default)]
    pub(crate) tests_may_use: Vec<String>,
    pub(crate) outside: Option<Vec<String>>,
    #[serde(default)]
    pub(crate) words: Vec<String>,
}

/// Which licences may be linked.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Licences {
    pub(crate) allowed: Vec<String>,
}

/// What the text of the tree is held to.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Tidy {
    pub(crate) lines_max: usize,
    pub(crate) names: Vec<String>,
    pub(crate) words: BTreeMap<String, String>,
    pub(crate) exceptions: BTreeMap<String, String>,
}

impl Rules {
    /// Reads the rules this program was built with.
    pub(crate) fn read() -> Result<Self, Failure> {
        toml::from_str(SOURCE).map_err(|e| Failure::Rules(e.to_string()))
    }
}
