//! Arrows point down only: every crate of the workspace depends on what `rules.toml` allows it, and
//! pure crates contain none of the words through which the outside would come in.

use std::collections::BTreeSet;

use crate::Failure;
use crate::metadata::{Metadata, Package};
use crate::rules::{Layer, Rules};
use crate::tree::{Source, Tree};

/// Reports each dependency and word that is not allowed.
pub(crate) fn check(rules: &Rules, metadata: &Metadata, tree: &Tree) -> Result<(), Failure> {
    let mut faults = Vec::new();
    let members: BTreeSet<&str> = metadata.members().map(|p| p.name.as_str()).collect();
    for package in metadata.members() {
        match rules.layers.get(&package.name) {
            Some(layer) => {
                edges(package, layer, &members, &mut faults);
                words(package, layer, tree, &mut faults);
            }
            None => faults.push(format!("{}: has no layer in rules.toml", package.name)),
        }
    }
    for name in rules.layers.keys().filter(|n| !members.contains(n.as_str())) {
        faults.push(format!("{name}: has a layer in rules.toml but is not in the workspace"));
    }
    Failure::of("layers", faults)
}

fn edges(package: &Package, layer: &Layer, members: &BTreeSet<&str>, faults: &mut Vec<String>) {
    for dependency in &package.dependencies {
        let name = &dependency.name;
        let in_tests = dependency.kind.as_deref() == Some("dev");
        let allowed = if members.contains(name.as_str()) {
            layer.may_use.contains(name) || in_tests && layer.tests_may_use.contains(name)
        } else {
            in_tests || layer.outside.as_ref().is_none_or(|outside| outside.contains(name))
        };
        if !allowed {
            faults.push(format!("{}: may not depend on {name}", package.name));
        }
    }
}

fn words(package: &Package, layer: &Layer, tree: &Tree, faults: &mut Vec<String>) {
    for source in tree.rust_of(&package.manifest_path).filter(|s| !s.is_test()) {
        for (number, line) in code_lines(source) {
            for word in layer.words.iter().filter(|w| line.contains(w.as_str())) {
                faults.push(format!("{}:{number}: a pure crate may not use {word}", source.path));
            }
        }
    }
}

/// Lines that are not comments, up to the tests at the file's end.
fn code_lines(source: &Source) -> impl Iterator<Item = (usize, &str)> {
    let lines = source.text.lines().enumerate();
    lines
        .take_while(|(_, line)| *line != "#[cfg(test)]")
        .filter(|(_, line)| !line.trim_start().starts_with("//"))
        .map(|(index, line)| (index + 1, line))
}
