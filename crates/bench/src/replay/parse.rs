//! Reads a trace: on each line `milliseconds OPERATION name bytes`.
//!
//! Blank lines and lines that begin with `#` are skipped. The milliseconds must be a number and are
//! otherwise not used: what counts is the order of the lines.

use std::collections::HashMap;
use std::io::BufRead;

use larder_types::limits::KEY_BYTES_MAX;

use crate::BenchError;
use crate::units::OBJECT_BYTES_MAX;

/// Most requests of one trace: all are kept in memory.
const REQUESTS_MAX: usize = 10_000_000;

/// An index into [`Trace::names`].
pub(crate) type NameIndex = usize;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    Put,
    Get,
    Delete,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) operation: Operation,
    pub(crate) name: NameIndex,
    pub(crate) bytes: u64,
}

/// A trace, its names each kept once.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    /// In the order of their first request.
    pub(crate) names: Vec<String>,
    /// In the order of the file.
    pub(crate) requests: Vec<Request>,
}

impl Trace {
    /// Reads a trace to its end.
    pub(crate) fn read(input: impl BufRead) -> Result<Self, BenchError> {
        let mut trace = Self::default();
        let mut known = HashMap::new();
        for (index, line) in input.lines().enumerate() {
            let refuse = |reason| BenchError::Trace { line: index + 1, reason };
            let line = line.map_err(|error| refuse(error.to_string()))?;
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            if trace.requests.len() == REQUESTS_MAX {
                return Err(refuse(format!(
                    "a trace has at most {REQUESTS_MAX} requests: split it"
                )));
            }
            let (operation, name, bytes) = parse_line(line).map_err(refuse)?;
            let name = *known.entry(name.to_owned()).or_insert_with(|| {
                trace.names.push(name.to_owned());
                trace.names.len() - 1
            });
            trace.requests.push(Request { operation, name, bytes });
        }
        Ok(trace)
    }
}

fn parse_line(line: &str) -> Result<(Operation, &str, u64), String> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let &[milliseconds, operation, name, bytes] = fields.as_slice() else {
        return Err(format!(
            "it has {} fields: write milliseconds, operation, name and bytes",
            fields.len()
        ));
    };
    if milliseconds.parse::<u64>().is_err() {
        return Err(format!("{milliseconds:?} is not a number of milliseconds"));
    }
    let operation = match operation {
        "PUT" => Operation::Put,
        "GET" => Operation::Get,
        "DELETE" => Operation::Delete,
        other => return Err(format!("{other:?} is not an operation: write PUT, GET or DELETE")),
    };
    if name.len() > KEY_BYTES_MAX {
        return Err(format!("the name has {} bytes, a key at most {KEY_BYTES_MAX}", name.len()));
    }
    match bytes.parse() {
        Ok(bytes) if bytes <= OBJECT_BYTES_MAX => Ok((operation, name, bytes)),
        _ => Err(format!("{bytes:?} is not a number of bytes from 0 to {OBJECT_BYTES_MAX}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_keep_the_order_of_the_file_and_names_are_kept_once() {
        let text = "# a comment\n1 PUT a 5\n\n  2 DELETE b 7\r\n2 GET a 5\n";
        let trace = Trace::read(text.as_bytes()).unwrap();
        assert_eq!(trace.names, ["a", "b"]);
        let expected = [(Operation::Put, 0, 5), (Operation::Delete, 1, 7), (Operation::Get, 0, 5)];
        assert_eq!(
            trace.requests,
            expected.map(|(operation, name, bytes)| Request { operation, name, bytes })
        );
    }

    #[test]
    fn a_bad_line_is_named_with_what_would_be_right() {
        let long = format!("1 PUT {} 5", "n".repeat(KEY_BYTES_MAX + 1));
        for (line, expected) in [
            ("1 PUT a", "3 fields"),
            ("1 PUT a b 5", "5 fields"),
            ("x PUT a 5", "milliseconds"),
            ("1 put a 5", "PUT, GET or DELETE"),
            ("1 PUT a -5", "number of bytes"),
            ("1 PUT a 5368709121", "number of bytes"),
            (&long, "1024"),
        ] {
            let text = format!("1 PUT a 5\n{line}\n");
            let error = Trace::read(text.as_bytes()).expect_err(line).to_string();
            assert!(error.starts_with("line 2: ") && error.contains(expected), "{error}");
        }
    }

    #[test]
    fn bytes_that_are_not_text_are_named_by_line() {
        let error = Trace::read(&b"1 PUT a 5\n\xff\n"[..]).unwrap_err().to_string();
        assert!(error.starts_with("line 2: "), "{error}");
    }
}
