//! The paths that the modules of a file name, and the names that they have from other modules.

use std::collections::BTreeMap;

use super::Path;
use crate::prose::code;

/// Words that begin an item or a statement; an attribute before another word is of an expression or a field.
const ITEMS: [&str; 16] = [
    "async",
    "const",
    "enum",
    "extern",
    "fn",
    "impl",
    "let",
    "macro_rules",
    "mod",
    "pub",
    "static",
    "struct",
    "trait",
    "type",
    "unsafe",
    "use",
];

/// The paths and names of one module.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Uses {
    /// Paths as they are written: the first part is `crate`, `self`, `super` or a name.
    pub(super) paths: Vec<Path>,
    /// Imported names, each with its path.
    pub(super) names: BTreeMap<String, Path>,
    /// Modules that only tests have.
    pub(super) tests: Vec<String>,
}

/// The uses of a file's module, whose path is empty, and of those that are written in it.
pub(super) fn uses(source: &str) -> Vec<(Path, Uses)> {
    let code = code(source);
    let mut reader = Reader { tokens: tokens(&code), at: 0 };
    let mut all = Vec::new();
    reader.module(Path::new(), &mut all);
    all
}

/// Names, `::`, and each other sign by itself.
fn tokens(code: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = code.trim_start();
    while let Some(sign) = rest.chars().next() {
        let length = if sign.is_alphanumeric() || sign == '_' {
            rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len())
        } else if rest.starts_with("::") {
            2
        } else {
            sign.len_utf8()
        };
        tokens.push(&rest[..length]);
        rest = rest[length..].trim_start();
    }
    tokens
}

struct Reader<'a> {
    tokens: Vec<&'a str>,
    at: usize,
}

impl<'a> Reader<'a> {
    fn peek(&self, ahead: usize) -> &'a str {
        self.tokens.get(self.at + ahead).copied().unwrap_or_default()
    }

    /// Reads a module up to the brace that ends it, or the end of the file.
    fn module(&mut self, path: Path, all: &mut Vec<(Path, Uses)>) {
        let (mut uses, mut depth) = (Uses::default(), 0usize);
        while self.at < self.tokens.len() {
            match self.peek(0) {
                "{" => depth += 1,
                "}" if depth == 0 => break,
                "}" => depth -= 1,
                "#" if self.is_of_tests() => {
                    self.skip_item(&mut uses.tests);
                    continue;
                }
                // Not the lifetimes that a returned type captures.
                "use" if self.peek(1) != "<" => {
                    self.at += 1;
                    self.import(Path::new(), &mut uses);
                    continue;
                }
                "mod" if self.peek(2) == "{" => {
                    let inner = [&path[..], &[self.peek(1).to_owned()]].concat();
                    self.at += 3;
                    self.module(inner, all);
                }
                word if is_name(word) && self.peek(1) == "::" => {
                    uses.paths.push(self.path());
                    continue;
                }
                _ => {}
            }
            self.at += 1;
        }
        all.push((path, uses));
    }

    /// Reads names that `::` joins.
    fn path(&mut self) -> Path {
        let mut path = vec![self.peek(0).to_owned()];
        self.at += 1;
        while self.peek(0) == "::" && is_name(self.peek(1)) {
            path.push(self.peek(1).to_owned());
            self.at += 2;
        }
        path
    }

    /// Reads a tree of imports below `before`.
    fn import(&mut self, before: Path, uses: &mut Uses) {
        let (mut path, mut is_named) = (before, false);
        loop {
            match self.peek(0) {
                "{" => {
                    self.at += 1;
                    while !matches!(self.peek(0), "}" | "") {
                        self.import(path.clone(), uses);
                    }
                    self.at += 1;
                    return;
                }
                "," => {
                    self.at += 1;
                    break;
                }
                // The brace is the caller's.
                "}" | "" => break,
                ";" => {
                    self.at += 1;
                    break;
                }
                "as" => {
                    uses.names.insert(self.peek(1).to_owned(), path.clone());
                    self.at += 2;
                }
                word => {
                    if is_name(word) && (path.is_empty() || word != "self") {
                        path.push(word.to_owned());
                    }
                    is_named |= is_name(word) || word == "*";
                    self.at += 1;
                }
            }
        }
        if is_named {
            let name = path.last().cloned().unwrap_or_default();
            uses.names.entry(name).or_insert_with(|| path.clone());
            uses.paths.push(path);
        }
    }

    /// True at an attribute by which something is compiled for tests alone.
    fn is_of_tests(&self) -> bool {
        let attribute =
            |words: &[&str]| words.iter().enumerate().all(|(at, word)| self.peek(at) == *word);
        attribute(&["#", "[", "cfg", "(", "test"])
            || attribute(&["#", "[", "cfg", "(", "all", "(", "test"])
    }

    /// Passes the attributes and the item that begin here. Notes the name of a module.
    fn skip_item(&mut self, tests: &mut Vec<String>) {
        while self.peek(0) == "#" {
            self.at += 1;
            self.skip_group();
        }
        if !ITEMS.contains(&self.peek(0)) {
            return;
        }
        if self.peek(0) == "pub" {
            self.at += 1;
            if self.peek(0) == "(" {
                self.skip_group();
            }
        }
        if self.peek(0) == "mod" {
            tests.push(self.peek(1).to_owned());
        }
        let is_import = self.peek(0) == "use";
        while self.at < self.tokens.len() {
            match self.peek(0) {
                ";" => {
                    self.at += 1;
                    return;
                }
                "{" if !is_import => return self.skip_group(),
                "{" | "(" | "[" => self.skip_group(),
                _ => self.at += 1,
            }
        }
    }

    /// Passes what brackets hold, with them.
    fn skip_group(&mut self) {
        let mut depth = 0usize;
        while self.at < self.tokens.len() {
            match self.peek(0) {
                "{" | "(" | "[" => depth += 1,
                "}" | ")" | "]" => depth = depth.saturating_sub(1),
                _ => {}
            }
            self.at += 1;
            if depth == 0 {
                return;
            }
        }
    }
}

fn is_name(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}
