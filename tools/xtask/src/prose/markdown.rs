//! The passages of Markdown: paragraphs, items of lists, cells of tables.
//!
//! Headings, code, comments and the targets of references are no passages. A list ends the sentence
//! before it, as each item is a passage of its own.

use super::Passage;

/// The passages of these lines, each with its number.
pub(super) fn passages<'a>(lines: impl Iterator<Item = (&'a str, usize)>) -> Vec<Passage> {
    let mut reader = Reader::default();
    for (line, number) in lines {
        reader.line(line, number);
    }
    reader.end();
    reader.passages
}

#[derive(Debug, Default)]
struct Reader {
    passages: Vec<Passage>,
    open: Option<Passage>,
    /// The mark that closes the code block we are in.
    fence: Option<&'static str>,
    in_comment: bool,
    /// True between a list's first item and the next line that is not part of it.
    in_list: bool,
}

impl Reader {
    fn line(&mut self, line: &str, number: usize) {
        let text = line.trim();
        if let Some(fence) = self.fence {
            if text.starts_with(fence) {
                self.fence = None;
            }
            return;
        }
        if let Some(fence) = ["```", "~~~"].into_iter().find(|fence| text.starts_with(fence)) {
            self.end();
            self.fence = Some(fence);
            return;
        }
        if self.in_comment || text.starts_with("<!--") {
            self.end();
            self.in_comment = !text.contains("-->");
            return;
        }
        let text = text.trim_start_matches(['>', ' ']);
        let indented = line.starts_with("    ");
        if text.is_empty() || text.starts_with('#') || is_rule(text) || is_target(text) {
            self.end();
        } else if text.starts_with('|') {
            self.end();
            self.in_list = false;
            for cell in cells(text).into_iter().map(str::to_owned) {
                let passage = Passage { line: number, text: cell, opens: false, is_cell: true };
                self.passages.push(passage);
            }
        } else if let Some(item) = item(text).filter(|_| !indented || self.in_list) {
            self.end();
            self.in_list = true;
            self.push(number, item);
        } else if let Some(open) = &mut self.open {
            open.text.push(' ');
            open.text.push_str(text);
        } else {
            self.in_list &= line.starts_with(' ');
            // Without a list around it, it is code.
            if !indented || self.in_list {
                self.push(number, text);
            }
        }
    }

    fn push(&mut self, line: usize, text: &str) {
        self.open = Some(Passage { line, text: text.to_owned(), opens: false, is_cell: false });
    }

    fn end(&mut self) {
        self.passages.extend(self.open.take());
    }
}

/// The text of an item without its mark.
fn item(text: &str) -> Option<&str> {
    let after = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let after = if after.len() < text.len() {
        after.strip_prefix(['.', ')'])
    } else {
        text.strip_prefix(['-', '*', '+'])
    }?;
    after.strip_prefix(' ').map(str::trim_start)
}

fn is_rule(text: &str) -> bool {
    text.len() > 2 && text.chars().all(|c| "-=*_ ".contains(c))
}

fn is_target(text: &str) -> bool {
    text.starts_with('[') && !text.starts_with("[^") && text.contains("]: ")
}

/// The cells of a row; a bar inside a code span or after a backslash separates none.
fn cells(row: &str) -> Vec<&str> {
    let (mut cells, mut begin, mut in_code, mut before) = (Vec::new(), 0, false, ' ');
    for (at, sign) in row.char_indices() {
        match sign {
            '`' => in_code = !in_code,
            '|' if !in_code && before != '\\' => {
                cells.push(row[begin..at].trim());
                begin = at + 1;
            }
            _ => {}
        }
        before = sign;
    }
    cells.push(row[begin..].trim());
    cells.retain(|cell| cell.contains(char::is_alphanumeric));
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(page: &str) -> Vec<(usize, String)> {
        passages(page.lines().zip(1..)).into_iter().map(|p| (p.line, p.text)).collect()
    }

    #[test]
    fn a_paragraph_goes_over_lines_and_ends_at_a_list() {
        let page = "# Head\nIt holds\nthese:\n- one\n  more\n- two\n\n  of two\n1. three\n\nEnd";
        let expected = [
            (2, "It holds these:"),
            (4, "one more"),
            (6, "two"),
            (8, "of two"),
            (9, "three"),
            (11, "End"),
        ];
        assert_eq!(texts(page), expected.map(|(line, text)| (line, text.to_owned())));
    }

    #[test]
    fn code_comments_and_targets_are_left_out() {
        let page = "```text\nA b.\n```\n    code\n\n<!-- no\nno -->\n[a]: b\n---\n> quoted";
        assert_eq!(texts(page), [(10, "quoted".to_owned())]);
    }

    #[test]
    fn a_table_is_read_cell_by_cell() {
        let page = "| a `x | y` | b \\| c |\n|---|---:|\n| d | |";
        let expected = [(1, "a `x | y`"), (1, "b \\| c"), (3, "d")];
        assert_eq!(texts(page), expected.map(|(line, text)| (line, text.to_owned())));
    }
}
