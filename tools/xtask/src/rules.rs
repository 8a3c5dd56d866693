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
    /// By module, such as `roles/meta`: those of its children that are left in circles.
    pub(crate) circles: BTreeMap<String, Vec<String>>,
    pub(crate) licences: Licences,
    /// By crate from outside: why two versions of it are built.
    pub(crate) duplicates: BTreeMap<String, String>,
    pub(crate) tidy: Tidy,
    pub(crate) prose: Prose,
}

/// Dependencies and words that one crate of the workspace may have.
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

/// The licences that may be linked.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Licences {
    pub(crate) allowed: Vec<String>,
}

/// The rules for the text of the tree.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Tidy {
    pub(crate) lines_max: usize,
    pub(crate) names: Vec<String>,
    pub(crate) words: BTreeMap<String, String>,
    pub(crate) exceptions: BTreeMap<String, String>,
}

/// The rules for sentences.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Prose {
    /// Most words of a sentence.
    pub(crate) words_max: usize,
    /// Beginnings of the paths of pages.
    pub(crate) pages: Vec<String>,
    /// The beginning of the paths of formats, where a cell of a table lists fields.
    pub(crate) layouts: String,
    /// The number of the first decision that is checked.
    pub(crate) decisions_from: u32,
    /// By the beginning of a path: the reason that it is not checked.
    pub(crate) exempt: BTreeMap<String, String>,
    /// Folders of `crates/` and `tools/` whose comments are checked.
    pub(crate) crates: Vec<String>,
    /// Words that open no comment.
    pub(crate) openings: Vec<String>,
    /// Refused phrases, in small letters, each with what to write instead.
    pub(crate) phrases: BTreeMap<String, String>,
}

impl Rules {
    /// Reads the rules this program was built with.
    pub(crate) fn read() -> Result<Self, Failure> {
        toml::from_str(SOURCE).map_err(|e| Failure::Rules(e.to_string()))
    }
}
