//! No circles: of the modules in one module, none uses another that uses it, itself or through others.
//!
//! The rule holds at each level of a crate, for all that a module contains. A module may use its parent: that alone
//! makes no circle. A name that the parent only re-exports counts as the module's that defines it. Tests are left out.
//!
//! Imports and paths are read as text. Calls of methods, and names that come by `*`, are not seen.

mod graph;
mod uses;

use std::collections::{BTreeMap, BTreeSet};

use self::graph::circles;
use self::uses::{Uses, uses};
use crate::Failure;
use crate::rules::Rules;
use crate::tree::{Source, Tree, within_crate};

/// Re-exports that are followed from one name.
const FOLLOWED_MAX: usize = 8;
/// Edges of a circle that a fault names.
const EDGES_SHOWN: usize = 12;

/// The names of a module and of those that it is in, from the crate's root on.
type Path = Vec<String>;

/// The modules of a crate.
#[derive(Debug, Default)]
struct Modules {
    of: BTreeMap<Path, Module>,
}

#[derive(Debug, Default)]
struct Module {
    /// The file, below the crate's sources.
    file: String,
    uses: Uses,
}

/// Modules that siblings of one module use, each with the files in which they do.
type Edges = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

/// Reports each circle that is not among those that are left, and each of these that is gone.
pub(crate) fn check(rules: &Rules, tree: &Tree) -> Result<(), Failure> {
    let mut faults = Vec::new();
    let mut found = BTreeSet::new();
    for (name, sources) in crates(tree) {
        for (place, edges) in Modules::read(&sources).levels() {
            let place = [&[name.to_owned()], &place[..]].concat().join("/");
            for circle in circles(&edges) {
                let left = rules.circles.get(&place).is_some_and(|left| {
                    circle.iter().all(|module| left.iter().any(|it| it == module))
                });
                if left {
                    found.extend(circle.into_iter().map(|module| (place.clone(), module)));
                } else {
                    faults.push(described(&place, &circle, &edges));
                }
            }
        }
    }
    for (place, left) in &rules.circles {
        let gone =
            left.iter().filter(|module| !found.contains(&(place.clone(), (*module).clone())));
        faults.extend(
            gone.map(|module| {
                format!("{place}: {module} is in no circle; remove it from [circles]")
            }),
        );
    }
    Failure::of("circles", faults)
}

/// The sources of each crate, without those of its tests.
fn crates(tree: &Tree) -> BTreeMap<&str, Vec<(&str, &Source)>> {
    let mut crates: BTreeMap<&str, Vec<_>> = BTreeMap::new();
    for source in tree.files.iter().filter(|source| source.is_rust() && !source.is_test()) {
        let of = within_crate(&source.path);
        if let Some((name, file)) =
            of.and_then(|(name, path)| Some((name, path.strip_prefix("src/")?)))
        {
            crates.entry(name).or_default().push((file, source));
        }
    }
    crates
}

fn described(place: &str, circle: &BTreeSet<String>, edges: &Edges) -> String {
    let within = circle.iter().filter_map(|from| Some((from, edges.get(from)?)));
    let within = within.flat_map(|(from, to)| to.iter().map(move |(to, files)| (from, to, files)));
    let within = within.filter(|(_, to, _)| circle.contains(*to));
    let lines = within.map(|(from, to, files)| {
        let file = files.first().map_or("", String::as_str);
        format!("\n    {from} uses {to} in {file}")
    });
    let names: Vec<&str> = circle.iter().map(String::as_str).collect();
    let lines: String = lines.take(EDGES_SHOWN).collect();
    format!("{place}: a circle of {}{lines}", names.join(", "))
}

impl Modules {
    fn read(sources: &[(&str, &Source)]) -> Self {
        let mut modules = Self::default();
        let mut tests = Vec::new();
        for (file, source) in sources {
            let path = path_of(file);
            for (inner, uses) in uses(&source.text) {
                let path = [&path[..], &inner[..]].concat();
                tests.extend(
                    uses.tests.iter().map(|test| [&path[..], std::slice::from_ref(test)].concat()),
                );
                modules.of.insert(path, Module { file: (*file).to_owned(), uses });
            }
        }
        modules.of.retain(|path, _| !tests.iter().any(|test| path.starts_with(test)));
        modules
    }

    /// The uses among the children of each module that has some.
    fn levels(&self) -> BTreeMap<Path, Edges> {
        let mut levels: BTreeMap<Path, Edges> = BTreeMap::new();
        for (from, module) in &self.of {
            for used in &module.uses.paths {
                let Some(to) = self.target(from, used, 0) else { continue };
                let level = from.iter().zip(&to).take_while(|(from, to)| from == to).count();
                // Else one of them contains the other.
                if let (Some(user), Some(used)) = (from.get(level), to.get(level)) {
                    let edges = levels.entry(from[..level].to_vec()).or_default();
                    let files = edges.entry(user.clone()).or_default().entry(used.clone());
                    files.or_default().insert(module.file.clone());
                }
            }
        }
        levels
    }

    /// The module that defines what a path names in a module; `None` if it is of another crate.
    fn target(&self, from: &Path, used: &Path, followed: usize) -> Option<Path> {
        let (first, rest) = used.split_first()?;
        let (mut at, rest) = match first.as_str() {
            "crate" => (Path::new(), rest),
            "self" => (from.clone(), rest),
            "super" => {
                let up = used.iter().take_while(|part| *part == "super").count();
                (from[..from.len().checked_sub(up)?].to_vec(), &used[up..])
            }
            child if self.of.contains_key(&[&from[..], &[child.to_owned()]].concat()) => {
                (from.clone(), &used[..])
            }
            _ => return None,
        };
        for (index, part) in rest.iter().enumerate() {
            at.push(part.clone());
            if self.of.contains_key(&at) {
                continue;
            }
            at.pop();
            // A name that this module has from another one.
            let named = self.of.get(&at).and_then(|module| module.uses.names.get(part));
            if let Some(named) = named.filter(|_| followed < FOLLOWED_MAX) {
                let named = [&named[..], &rest[index + 1..]].concat();
                return self.target(&at, &named, followed + 1);
            }
            break;
        }
        Some(at)
    }
}

/// The module of a file below a crate's sources.
fn path_of(file: &str) -> Path {
    let file = file.strip_suffix(".rs").unwrap_or(file);
    let mut path: Path = file.split('/').map(str::to_owned).collect();
    if path.last().is_some_and(|last| ["lib", "main", "mod"].contains(&last.as_str())) {
        path.pop();
    }
    path
}

#[cfg(test)]
mod tests;
