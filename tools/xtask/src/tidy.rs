//! The text of the tree is in order: short files, speaking names, a head on every module, nothing
//! unfinished, no stray whitespace.

use std::collections::BTreeSet;
use std::path::Path;

use crate::Failure;
use crate::rules::{Rules, Tidy};
use crate::tree::{Source, Tree};

/// Reports each fault with its file and line.
pub(crate) fn check(rules: &Rules, tree: &Tree) -> Result<(), Failure> {
    let (mut faults, mut used) = (Vec::new(), BTreeSet::new());
    for source in &tree.files {
        name(source, &rules.tidy, &mut faults);
        whitespace(source, &mut faults);
        if source.is_rust() {
            rust(source, &rules.tidy, &mut faults);
            words(source, &rules.tidy, &mut used, &mut faults);
        }
    }
    examples(tree, &mut faults);
    for exception in rules.tidy.exceptions.keys().filter(|e| !used.contains(*e)) {
        faults.push(format!("{exception}: is gone; remove it from [tidy.exceptions]"));
    }
    Failure::of("tidy", faults)
}

fn name(source: &Source, tidy: &Tidy, faults: &mut Vec<String>) {
    let stems = source.path.split('/').filter_map(|part| Path::new(part).file_stem()?.to_str());
    for stem in stems.filter(|stem| tidy.names.iter().any(|n| n == stem)) {
        faults
            .push(format!("{}: the name `{stem}` says nothing about what is inside", source.path));
    }
}

fn whitespace(source: &Source, faults: &mut Vec<String>) {
    let tabs_belong = source.path.ends_with(".patch") || source.path.starts_with("LICENSE");
    for (index, line) in source.text.split('\n').enumerate() {
        let at = || format!("{}:{}", source.path, index + 1);
        if line.ends_with([' ', '\t', '\r']) {
            faults.push(format!("{}: whitespace at the end of the line", at()));
        }
        if line.contains('\t') && !tabs_belong {
            faults.push(format!("{}: a TAB; use spaces", at()));
        }
    }
    if !source.text.is_empty() && !source.text.ends_with('\n') {
        faults.push(format!("{}: the last line has no end", source.path));
    }
}

fn rust(source: &Source, tidy: &Tidy, faults: &mut Vec<String>) {
    let path = &source.path;
    let lines = source.text.lines().count();
    if lines > tidy.lines_max && !source.is_test() {
        faults.push(format!("{path}: {lines} lines; find the wall inside and split it there"));
    }
    if !source.text.starts_with("//! ") && !source.is_test() {
        faults.push(format!("{path}:1: no `//!` head that says what the module is for"));
    }
}

/// Examples in comments are tests. A crate that has none says so, as looking for them takes its time.
fn examples(tree: &Tree, faults: &mut Vec<String>) {
    let manifests = tree.files.iter().filter(|source| source.path.ends_with("/Cargo.toml"));
    let without = manifests.filter(|manifest| manifest.text.contains("doctest = false"));
    for folder in without.filter_map(|manifest| manifest.path.strip_suffix("Cargo.toml")) {
        let sources = format!("{folder}src/");
        for source in tree.files.iter().filter(|s| s.is_rust() && s.path.starts_with(&sources)) {
            let fences = source.text.lines().enumerate().filter_map(|(index, line)| {
                let comment = line.trim_start().strip_prefix("//")?;
                Some((index + 1, comment.trim_start_matches(['/', '!', ' ']).strip_prefix("```")?))
            });
            for (line, kind) in fences.step_by(2) {
                if matches!(kind, "" | "rust" | "no_run" | "should_panic" | "compile_fail") {
                    let path = &source.path;
                    faults.push(format!(
                        "{path}:{line}: an example that is not run: mark it `text`, or remove `doctest = false` in {folder}Cargo.toml"
                    ));
                }
            }
        }
    }
}

fn words(source: &Source, tidy: &Tidy, used: &mut BTreeSet<String>, faults: &mut Vec<String>) {
    let path = &source.path;
    for (index, line) in source.text.lines().enumerate() {
        for (word, remedy) in tidy.words.iter().filter(|(word, _)| line.contains(word.as_str())) {
            let exception = format!("{path}: {word}");
            if tidy.exceptions.contains_key(&exception) {
                used.insert(exception);
            } else {
                faults.push(format!("{path}:{}: `{word}`: {remedy}", index + 1));
            }
        }
    }
}
