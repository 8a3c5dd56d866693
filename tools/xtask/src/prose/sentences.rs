//! The sentences of a passage, and their words.
//!
//! Markdown is taken out first: a link is its text, a code span one word whatever it contains. A
//! sentence ends at a full stop, question or exclamation mark before white space. It does not end
//! inside a parenthesis that opened within it, at an abbreviation, or at an ellipsis that a small
//! letter follows.

/// Abbreviations that a sentence goes on after.
const INSIDE: [&str; 9] = ["e.g.", "i.e.", "cf.", "vs.", "ca.", "approx.", "incl.", "resp.", "al."];
/// Abbreviations that end a sentence if a capital follows.
const EITHER: [&str; 3] = ["etc.", "...", "…"];
const CLOSERS: [char; 6] = ['"', '”', '’', '\'', ')', ']'];

/// The sentences of a passage without its markup.
pub(super) fn of(passage: &str) -> Vec<String> {
    let text = plain(passage);
    let (mut sentences, mut sentence, mut depth) = (Vec::new(), String::new(), 0_usize);
    let mut words = text.split_whitespace().peekable();
    while let Some(word) = words.next() {
        let whole = sentence.is_empty() && word.starts_with('(');
        if !sentence.is_empty() {
            sentence.push(' ');
        }
        sentence.push_str(word);
        // A parenthesis around whole sentences holds none together.
        let opened = word.matches('(').count() - usize::from(whole);
        depth = (depth + opened).saturating_sub(word.matches(')').count());
        if depth == 0 && ends(word, words.peek().copied()) {
            sentences.push(std::mem::take(&mut sentence));
        }
    }
    if !sentence.is_empty() {
        sentences.push(sentence);
    }
    sentences
}

/// The words of a sentence: what has a letter or a digit.
pub(super) fn words(sentence: &str) -> impl Iterator<Item = &str> {
    let parts = sentence.split(|c: char| c.is_whitespace() || c == '—');
    parts.filter(|part| part.contains(char::is_alphanumeric))
}

fn ends(word: &str, next: Option<&str>) -> bool {
    let bare = word.trim_end_matches(CLOSERS);
    if !bare.ends_with(['.', '?', '!', '…']) {
        return false;
    }
    let lower = bare.trim_start_matches(['(', '"', '“', '[']).to_lowercase();
    let small = next.is_some_and(|next| next.starts_with(char::is_lowercase));
    let either = EITHER.iter().any(|end| lower.ends_with(end));
    let aside = word.ends_with(')');
    !(INSIDE.contains(&lower.as_str()) || (either || aside) && small)
}

/// Takes Markdown out of a passage.
fn plain(passage: &str) -> String {
    let mut text = String::with_capacity(passage.len());
    let mut rest = passage;
    while let Some(first) = rest.chars().next() {
        let taken = match first {
            '`' => code(rest).inspect(|(span, _)| text.push_str(span)),
            '!' if rest.starts_with("![") => link(&rest[1..]).map(|(_, after)| ("", after)),
            '[' => link(rest).inspect(|(shown, _)| text.push_str(&plain(shown))),
            '<' => tag(rest),
            '*' => Some(("", &rest[1..])),
            _ => None,
        };
        rest = taken.map_or_else(
            || {
                text.push(first);
                &rest[first.len_utf8()..]
            },
            |(_, after)| after,
        );
    }
    text
}

/// A code span as one word, and the text after it.
fn code(text: &str) -> Option<(&str, &str)> {
    let inside = text.trim_start_matches('`');
    let fence = &text[..text.len() - inside.len()];
    let end = inside.find(fence)?;
    let word = inside[..end].split_whitespace().next().unwrap_or_default();
    // A span's own punctuation ends no sentence and opens no parenthesis.
    let word = word.split(['(', ')', '.', '?', '!', '…']).find(|part| !part.is_empty());
    let word = word.filter(|word| word.contains(char::is_alphanumeric)).unwrap_or("code");
    Some((word, &inside[end + fence.len()..]))
}

/// The text of a link, and the text after it.
fn link(text: &str) -> Option<(&str, &str)> {
    let mut depth = 0_usize;
    let close = text.find(|c| {
        depth = match c {
            '[' => depth + 1,
            ']' => depth - 1,
            _ => depth,
        };
        depth == 0
    })?;
    let (shown, after) = (&text[1..close], &text[close + 1..]);
    let target = match after.chars().next() {
        Some('(') => after.find(')'),
        Some('[') => after.find(']'),
        _ => None,
    };
    Some((shown, target.map_or(after, |end| &after[end + 1..])))
}

/// An HTML tag is no text; an address in angle brackets is one word, and stays.
fn tag(text: &str) -> Option<(&str, &str)> {
    let inside = text[1..].split_once('>')?;
    let name = inside.0.trim_start_matches('/');
    let is_tag = name.starts_with(|c: char| c.is_ascii_lowercase()) && !name.contains([':', ' ']);
    is_tag.then_some(("", inside.1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn splits(passage: &str, expected: &[&str]) {
        assert_eq!(of(passage), expected);
    }

    #[test]
    fn marks_before_white_space_end_sentences() {
        splits("One. Two? Three! “Four.” Five", &["One.", "Two?", "Three!", "“Four.”", "Five"]);
        splits("It speaks S3. Then it waits.", &["It speaks S3.", "Then it waits."]);
    }

    #[test]
    fn abbreviations_and_numbers_end_none() {
        splits(
            "It is fast, e.g. 1.5 s, i.e. (cf. Larder 0.9.2) at v1.2.",
            &["It is fast, e.g. 1.5 s, i.e. (cf. Larder 0.9.2) at v1.2."],
        );
        splits(
            "Puts, gets, etc. are counted. Puts, etc. Gets too.",
            &["Puts, gets, etc. are counted.", "Puts, etc.", "Gets too."],
        );
    }

    #[test]
    fn an_ellipsis_ends_a_sentence_before_a_capital() {
        splits(
            "It waits … and goes on... slowly… Then",
            &["It waits … and goes on... slowly…", "Then"],
        );
    }

    #[test]
    fn a_parenthesis_inside_a_sentence_belongs_to_it() {
        splits(
            "It holds (so far. Later too.) and on. Next.",
            &["It holds (so far. Later too.) and on.", "Next."],
        );
        splits("First. (Second. Third.) Fourth.", &["First.", "(Second.", "Third.)", "Fourth."]);
    }

    #[test]
    fn a_code_span_is_one_word() {
        let found = of("Open `larder server ./data (x.` now. In `file.rs`. Then ``a ` b.`` too");
        assert_eq!(found, ["Open larder now.", "In file.", "Then a too"]);
        assert_eq!(words(&found[0]).count(), 3);
    }

    #[test]
    fn a_link_is_its_text() {
        splits(
            "See [the `x.rs` page](a/b.md#c. d), ![A picture.](p.svg) [`Foo`] and [it][ref].",
            &["See the x page, Foo and it."],
        );
        splits(
            "Go to <https://a.example/b. c> **now**.<br>",
            &["Go to <https://a.example/b.", "c> now."],
        );
    }

    #[test]
    fn signs_are_no_words() {
        assert_eq!(words("a + b = 2 – three, 5 %—or so").count(), 7);
    }
}
