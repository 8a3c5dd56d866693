//! The passages of the comments in Rust source.
//!
//! A comment is a run of lines with the same mark: `//`, `///` or `//!`. Its text is Markdown.

use super::{Passage, markdown};

/// A comment's mark and its lines, each with its number.
type Comment<'a> = (&'a str, Vec<(&'a str, usize)>);

/// The passages of all comments; the first passage of each opens it.
pub(super) fn passages(source: &str) -> Vec<Passage> {
    let mut passages = Vec::new();
    for (_, lines) in comments(source) {
        let mut found = markdown::passages(lines.into_iter());
        if let Some(first) = found.first_mut() {
            first.opens = true;
        }
        passages.extend(found);
    }
    passages
}

fn comments(source: &str) -> Vec<Comment<'_>> {
    let mut comments: Vec<Comment<'_>> = Vec::new();
    let mut within = Within::Code;
    // A run goes on only from a line that is nothing but comment.
    let mut alone_before = false;
    for (line, number) in source.lines().zip(1..) {
        let Some(at) = comment(line, &mut within) else {
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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Within {
    Code,
    Text,
    /// With the number of signs that close it.
    Raw(usize),
    Block,
}

/// Where the comment of a line begins.
fn comment(line: &str, within: &mut Within) -> Option<usize> {
    let mut at = 0;
    while let Some(sign) = line[at..].chars().next() {
        let rest = &line[at..];
        at += match *within {
            Within::Code => {
                if rest.starts_with("//") {
                    return Some(at);
                }
                let (next, step) = enter(rest, line[..at].chars().next_back());
                *within = next;
                step
            }
            Within::Text if sign == '\\' => 1 + rest.chars().nth(1).map_or(0, char::len_utf8),
            Within::Text => {
                if sign == '"' {
                    *within = Within::Code;
                }
                sign.len_utf8()
            }
            Within::Raw(signs) => {
                let close = sign == '"' && rest[1..].starts_with(&"#".repeat(signs));
                if close {
                    *within = Within::Code;
                }
                sign.len_utf8() + if close { signs } else { 0 }
            }
            Within::Block if rest.starts_with("*/") => {
                *within = Within::Code;
                2
            }
            Within::Block => sign.len_utf8(),
        };
    }
    None
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
        passages(source).into_iter().map(|p| (p.line, p.text, p.opens)).collect()
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
    fn literals_hold_no_comments() {
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
