//! The passages of Rust source: those of its comments, and its texts, such as errors and log lines.
//!
//! A comment is a run of lines with the same mark: `//`, `///` or `//!`. Its text is Markdown. Texts of
//! tests are data, and left out.

use super::{Passage, markdown};

/// A comment's mark and its lines, each with its number.
type Comment<'a> = (&'a str, Vec<(&'a str, usize)>);

/// The passages of all comments, of which the first opens it, and all texts that are not of tests.
pub(super) fn passages(source: &str, is_test: bool) -> Vec<Passage> {
    let mut scanner = Scanner::default();
    let comments = comments(source, &mut scanner);
    let tests = source.lines().zip(1..).find(|(line, _)| *line == "#[cfg(test)]");
    let mut passages = scanner.texts;
    passages.retain(|text| !is_test && tests.is_none_or(|(_, number)| text.line < number));
    for (_, lines) in comments {
        let mut found = markdown::passages(lines.into_iter());
        if let Some(first) = found.first_mut() {
            first.opens = true;
        }
        passages.extend(found);
    }
    passages
}

/// The source without comments, and with empty texts.
pub(crate) fn code(source: &str) -> String {
    let mut scanner = Scanner::default();
    for (line, number) in source.lines().zip(1..) {
        scanner.line(line, number);
        scanner.code.push('\n');
    }
    scanner.code
}

fn comments<'a>(source: &'a str, scanner: &mut Scanner) -> Vec<Comment<'a>> {
    let mut comments: Vec<Comment<'_>> = Vec::new();
    // A run goes on only from a line that is nothing but comment.
    let mut alone_before = false;
    for (line, number) in source.lines().zip(1..) {
        let Some(at) = scanner.line(line, number) else {
            alone_before = false;
            continue;
        };
        let alone = line[..at].trim().is_empty();
        let text = &line[at..];
        let mark = ["///", "//!"].into_iter().find(|mark| text.starts_with(mark)).unwrap_or("//");
        let text = text[mark.len()..].strip_prefix(' ').unwrap_or(&text[mark.len()..]);
        match comments.last_mut().filter(|(last, _)| alone && alone_before && *last == mark) {
            Some((_, lines)) => lines.push((text, number)),
            None => comments.push((mark, vec![(text, number)])),
        }
        alone_before = alone;
    }
    comments
}

/// The literal or comment that a line begins in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Within {
    #[default]
    Code,
    Text,
    /// With the number of signs that close it.
    Raw(usize),
    Block,
}

#[derive(Debug, Default)]
struct Scanner {
    within: Within,
    /// The text that has begun.
    text: String,
    begun: usize,
    /// True if the line before ended in a backslash.
    goes_on: bool,
    texts: Vec<Passage>,
    /// The code so far.
    code: String,
}

impl Scanner {
    /// Reads a line, and finds where its comment begins.
    fn line(&mut self, line: &str, number: usize) -> Option<usize> {
        let goes_on = std::mem::take(&mut self.goes_on);
        let mut at = if goes_on { line.len() - line.trim_start().len() } else { 0 };
        while let Some(sign) = line[at..].chars().next() {
            let rest = &line[at..];
            at += match self.within {
                Within::Code => {
                    if rest.starts_with("//") {
                        return Some(at);
                    }
                    let (next, step) = enter(rest, line[..at].chars().next_back());
                    if next == Within::Code && (step == sign.len_utf8() || sign != '\'') {
                        self.code.push_str(&rest[..step]);
                    }
                    self.within = next;
                    self.begun = number;
                    step
                }
                Within::Text if sign == '\\' => self.escaped(rest),
                Within::Text if sign == '"' => self.leave(1),
                Within::Raw(signs) if sign == '"' && rest[1..].starts_with(&"#".repeat(signs)) => {
                    self.leave(1 + signs)
                }
                Within::Block if rest.starts_with("*/") => self.leave(2),
                Within::Text | Within::Raw(_) => {
                    self.text.push(sign);
                    sign.len_utf8()
                }
                Within::Block => sign.len_utf8(),
            };
        }
        if !self.goes_on && matches!(self.within, Within::Text | Within::Raw(_)) {
            self.text.push('\n');
        }
        None
    }

    /// Takes an escaped sign; a line that ends in one goes on in the next.
    fn escaped(&mut self, rest: &str) -> usize {
        let escaped = rest.chars().nth(1);
        match escaped {
            Some('n') => self.text.push('\n'),
            Some(sign) => self.text.push(sign),
            None => self.goes_on = true,
        }
        1 + escaped.map_or(0, char::len_utf8)
    }

    /// Ends a text: an empty line, or one that is indented, begins another passage of it.
    fn leave(&mut self, step: usize) -> usize {
        self.within = Within::Code;
        let mut passage = String::new();
        for line in std::mem::take(&mut self.text).lines().chain([""]) {
            let is_apart = line.starts_with("  ") && !line.trim().is_empty();
            if (line.is_empty() || is_apart) && !passage.trim().is_empty() {
                let text = std::mem::take(&mut passage);
                let passage = Passage { line: self.begun, text, opens: false, is_cell: false };
                self.texts.push(passage);
            }
            passage.push_str(line);
            passage.push(' ');
        }
        step
    }
}

/// The literal or comment that this sign of code begins, and the length of its mark.
fn enter(rest: &str, before: Option<char>) -> (Within, usize) {
    let sign = rest.chars().next().unwrap_or(' ');
    let in_name = before.is_some_and(|c| c.is_alphanumeric() && c != 'b' && c != 'c' || c == '_');
    if sign == '"' {
        return (Within::Text, 1);
    }
    if rest.starts_with("/*") {
        return (Within::Block, 2);
    }
    if sign == 'r' && !in_name {
        let signs = rest[1..].chars().take_while(|c| *c == '#').count();
        if rest[1 + signs..].starts_with('"') {
            return (Within::Raw(signs), 2 + signs);
        }
    }
    // A character; a lifetime has no second quote.
    if sign == '\'' {
        let mut inside = rest.chars().skip(1);
        if inside.next() == Some('\\') {
            let close = rest[2..].char_indices().skip(1).find(|(_, c)| *c == '\'');
            return (Within::Code, close.map_or(1, |(at, _)| at + 3));
        }
        if inside.next() == Some('\'') {
            let inner = rest[1..].chars().next().map_or(0, char::len_utf8);
            return (Within::Code, inner + 2);
        }
    }
    (Within::Code, sign.len_utf8())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(source: &str) -> Vec<(usize, String, bool)> {
        let comments =
            passages(source, false).into_iter().filter(|p| p.opens || !source.contains('"'));
        comments.map(|p| (p.line, p.text, p.opens)).collect()
    }

    #[test]
    fn a_text_is_a_passage_unless_it_is_of_a_test() {
        let source = "#[error(\"one \\\"two\\\" \\\n    three {0}\")]\nlet a = \"four\nfive\n\nsix\n  7 seven\";\n#[cfg(test)]\nlet b = \"eight\";";
        let found: Vec<(usize, String)> = passages(source, false)
            .into_iter()
            .map(|p| (p.line, p.text.trim().to_owned()))
            .collect();
        let expected = [(1, "one \"two\" three {0}"), (3, "four five"), (3, "six"), (3, "7 seven")];
        assert_eq!(found, expected.map(|(line, text)| (line, text.to_owned())));
    }

    #[test]
    fn a_comment_is_a_run_of_lines_with_one_mark() {
        let source = "//! Head,\n//! goes on.\n//!\n//! More.\n\n/// Doc.\nfn a() { // Beside.\n// Alone.\n}";
        let expected = [
            (1, "Head, goes on.", true),
            (4, "More.", false),
            (6, "Doc.", true),
            (7, "Beside.", true),
            (8, "Alone.", true),
        ];
        assert_eq!(
            texts(source),
            expected.map(|(line, text, opens)| (line, text.to_owned(), opens))
        );
    }

    #[test]
    fn texts_hold_no_comments() {
        let source = r##"let a = ("//", '"', '\'', r#"" // "#, b"\" //", 'a'); // One.
let b = "
// text";
/* // no
*/ let c: &'a str = ""; // Two."##;
        let expected = [(1, "One.".to_owned(), true), (5, "Two.".to_owned(), true)];
        assert_eq!(texts(source), expected);
    }

    #[test]
    fn examples_in_comments_are_code() {
        let source = "/// Does it:\n/// ```\n/// let a = 1;\n/// ```\n/// Then ends.\n";
        let expected = [(1, "Does it:".to_owned(), true), (5, "Then ends.".to_owned(), false)];
        assert_eq!(texts(source), expected);
    }
}
