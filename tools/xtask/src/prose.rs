//! Sentences of pages, comments and texts are short and plain.
//!
//! Limits, openings and refused phrases are data, in `rules.toml`. Pages are checked unless a rule
//! exempts them. Comments, texts and pages of a crate are checked once `rules.toml` lists it as done.

mod markdown;
mod rust;
mod sentences;

use std::collections::BTreeMap;

pub(crate) use self::rust::code;
use crate::Failure;
use crate::rules::{Prose, Rules};
use crate::tree::{Source, Tree, within_crate};

const DECISIONS: &str = "docs/adr/";
/// Words of a sentence that a fault quotes.
const QUOTED: usize = 8;

/// A stretch of text without structure: a paragraph, an item of a list, a cell of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Passage {
    /// Where it begins, counted from 1.
    line: usize,
    text: String,
    /// True for the first passage of a comment, which opens it.
    opens: bool,
    /// True for a cell of a table.
    is_cell: bool,
}

/// Reports each sentence that is too long or refused, with its file and line.
pub(crate) fn check(rules: &Rules, tree: &Tree) -> Result<(), Failure> {
    let rules = &rules.prose;
    let mut faults = Vec::new();
    for source in tree.files.iter().filter(|source| rules.holds(&source.path)) {
        faults.extend(faults_of(source, rules));
    }
    for path in rules.exempt.keys() {
        if !tree.files.iter().any(|source| source.path.starts_with(path.as_str())) {
            faults.push(format!("{path}: is gone; remove it from [prose.exempt]"));
        }
    }
    for folder in &rules.crates {
        let is_of =
            |source: &Source| within_crate(&source.path).is_some_and(|(of, _)| of == folder);
        if !tree.files.iter().any(is_of) {
            faults.push(format!("{folder}: is gone; remove it from `crates` of [prose]"));
        }
    }
    Failure::of("prose", faults)
}

/// Reports the faults of all files whose path begins with one of `paths`, listed as done or not.
pub(crate) fn look(rules: &Rules, tree: &Tree, paths: &[String]) -> Result<(), Failure> {
    let chosen = |source: &&Source| paths.iter().any(|path| source.path.starts_with(path.as_str()));
    let mut faults = Vec::new();
    let mut counts = BTreeMap::new();
    for source in tree.files.iter().filter(chosen) {
        let found = faults_of(source, &rules.prose);
        let mut folders = source.path.splitn(3, '/');
        let group = [folders.next(), folders.next()].into_iter().flatten().collect::<Vec<_>>();
        *counts.entry(group.join("/")).or_insert(0) += found.len();
        faults.extend(found);
    }
    for (group, count) in counts {
        println!("{count:5} {group}");
    }
    Failure::of("prose", faults)
}

impl Prose {
    /// True if the check holds this file to the rules.
    fn holds(&self, path: &str) -> bool {
        if self.exempt.keys().any(|exempt| path.starts_with(exempt.as_str())) {
            return false;
        }
        if let Some((folder, file)) = within_crate(path) {
            let is_done = self.crates.iter().any(|done| done == folder);
            return is_done && (file.ends_with(".rs") || file.ends_with(".md"));
        }
        let number = path.strip_prefix(DECISIONS).and_then(|name| name.split('-').next());
        let old = number.and_then(|n| n.parse().ok()).is_some_and(|n: u32| n < self.decisions_from);
        let listed = self.pages.iter().any(|page| path.starts_with(page.as_str()));
        path.ends_with(".md") && listed && !old
    }
}

fn faults_of(source: &Source, rules: &Prose) -> Vec<String> {
    let passages = if source.is_rust() {
        rust::passages(&source.text, source.is_test())
    } else if source.path.ends_with(".md") {
        markdown::passages(source.text.lines().zip(1..))
    } else {
        Vec::new()
    };
    let mut faults = Vec::new();
    for passage in &passages {
        let at = format!("{}:{}", source.path, passage.line);
        let is_layout = passage.is_cell && source.path.starts_with(&rules.layouts);
        let longest = |sentence: &str| {
            let parts = sentence.split(|c| is_layout && matches!(c, ',' | ';' | ':'));
            parts.map(|part| sentences::words(part).count()).max().unwrap_or(0)
        };
        for (index, sentence) in sentences::of(&passage.text).iter().enumerate() {
            let words: Vec<&str> = sentences::words(sentence).collect();
            let quoted = || words.iter().take(QUOTED).copied().collect::<Vec<_>>().join(" ");
            let length = longest(sentence);
            if length > rules.words_max {
                faults.push(format!("{at}: {length} words: {} …", quoted()));
            }
            let first = words.first().map(|word| word.trim_matches(|c: char| !c.is_alphabetic()));
            let first = first.unwrap_or_default();
            if passage.opens && index == 0 && rules.openings.iter().any(|o| is(o, first)) {
                faults.push(format!("{at}: a comment opens with `{first}`: {} …", quoted()));
            }
            let plain = words.join(" ").to_lowercase();
            for (phrase, remedy) in rules.phrases.iter().filter(|(p, _)| has(&plain, p)) {
                faults.push(format!("{at}: \"{phrase}\": {remedy}: {} …", quoted()));
            }
        }
    }
    faults
}

fn is(opening: &str, word: &str) -> bool {
    opening.eq_ignore_ascii_case(word)
}

/// True if the text has the phrase, and no word of it is a part of a longer one.
fn has(text: &str, phrase: &str) -> bool {
    let cuts = |one: Option<char>, other: Option<char>| {
        [one, other].into_iter().all(|sign| sign.is_some_and(char::is_alphanumeric))
    };
    text.match_indices(phrase).any(|(at, _)| {
        let (before, after) = (&text[..at], &text[at + phrase.len()..]);
        !cuts(before.chars().next_back(), phrase.chars().next())
            && !cuts(phrase.chars().next_back(), after.chars().next())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules() -> Prose {
        Prose {
            words_max: 5,
            pages: vec!["README.md".to_owned(), "docs/".to_owned()],
            layouts: "docs/formats/".to_owned(),
            decisions_from: 66,
            exempt: BTreeMap::from([("docs/made.md".to_owned(), "generated".to_owned())]),
            crates: vec!["kv".to_owned()],
            openings: vec!["Whether".to_owned()],
            phrases: BTreeMap::from([("told of".to_owned(), "name it".to_owned())]),
        }
    }

    fn faults(path: &str, text: &str) -> Vec<String> {
        faults_of(&Source { path: path.to_owned(), text: text.to_owned() }, &rules())
    }

    #[test]
    fn pages_new_decisions_and_listed_crates_are_held() {
        let held = [
            "README.md",
            "docs/pack.md",
            "docs/adr/0066-x.md",
            "crates/kv/src/lib.rs",
            "crates/kv/README.md",
        ];
        let free = [
            "CHANGELOG.md",
            "docs/made.md",
            "docs/adr/0065-x.md",
            "crates/kvs/src/lib.rs",
            "docs/plan.svg",
        ];
        assert!(held.iter().all(|path| rules().holds(path)));
        assert!(!free.iter().any(|path| rules().holds(path)));
    }

    #[test]
    fn a_long_sentence_is_named_with_its_line_and_its_words() {
        let text =
            "# A heading that has more than five words\n\nShort. One two three four five six.";
        assert_eq!(
            faults("docs/a.md", text),
            ["docs/a.md:3: 6 words: One two three four five six. …"]
        );
    }

    #[test]
    fn fields_of_a_layout_are_counted_one_by_one() {
        let table = "| id (u32), three words more, six words of one field alone |";
        assert_eq!(faults("docs/formats/a.md", table).len(), 1);
        assert!(faults("docs/formats/a.md", "| id (u32), three words more; the end |").is_empty());
        assert_eq!(faults("docs/a.md", "| id (u32), three words more; the end |").len(), 1);
    }

    #[test]
    fn only_the_first_word_of_a_comment_opens_it() {
        let text = "/// Whether it is.\n///\n/// Whether not.\nfn a() {}\n// Says whether.\n";
        let found = faults("crates/kv/src/lib.rs", text);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("crates/kv/src/lib.rs:1: a comment opens with `Whether`"));
    }

    #[test]
    fn a_refused_phrase_is_found_across_lines_and_not_inside_words() {
        let found = faults("docs/a.md", "It is Told\nof. It is untold of. Told off.");
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("\"told of\": name it"));
        assert!(has("see design §5", "design §") && !has("redesign §5", "design §"));
    }
}
