//! The table of planted bugs, `docs/planted-bugs.md`: what each is says the comment at it in the source.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use larder_sim::planted::{IN_SOURCE, NAMES};

use super::{SEEDS, options};

/// Set to a file, it has the table written there: each bug is looked for from seed 0 on then, which takes ten minutes.
pub const FILE: &str = "LARDER_PLANTED_TABLE";

const TABLE: &str = include_str!("../../../../docs/planted-bugs.md");

/// Crates with bugs, and where they are described.
const SOURCES: &[(&str, &str)] = &[
    ("protocol", include_str!("../../../../crates/protocol/src/planted.rs")),
    ("volume", include_str!("../../../../crates/volume/src/planted.rs")),
    ("metalog", include_str!("../../../../crates/metalog/src/bugs.rs")),
    ("sim", include_str!("../../src/planted.rs")),
];

/// The crate of a bug, and its description there.
fn described(in_source: &str) -> (&'static str, String) {
    let path = in_source.replace(' ', "");
    let (of, fields) = path.split_once('{').unwrap_or((&path, ""));
    let last = of.rsplit("::").next().unwrap_or(of);
    let ident = fields.split(':').next().filter(|field| !field.is_empty()).unwrap_or(last);
    let of = of.strip_prefix("larder_").and_then(|of| of.split("::").next()).unwrap_or("sim");
    let (of, source) = SOURCES.iter().find(|(name, _)| *name == of).expect("a crate with bugs");
    let (variant, field) = (format!("{ident},"), format!("pub {ident}: bool,"));
    let lines: Vec<&str> = source.lines().map(str::trim).collect();
    let at = lines.iter().position(|line| *line == variant || *line == field);
    let above = lines[..at.expect("the bug is there")].iter().rev();
    let comment = above.skip_while(|line| line.starts_with("#["));
    let mut said: Vec<&str> = comment.map_while(|line| line.strip_prefix("/// ")).collect();
    said.reverse();
    (of, said.join(" "))
}

/// The beginning of a row.
fn begin_of(name: &str, in_source: &str) -> String {
    let (of, what) = described(in_source);
    format!("| `{name}` | {of} | {what} |")
}

/// Of what kind the seeds are that look for it.
fn kind(name: &str) -> String {
    let options = options(name);
    let one_of = [
        (options.restless, "restless"),
        (options.heavy_log, "heavy log"),
        (options.early, "early starts"),
        (options.coalesces, "coalescing"),
        (options.ops != larder_sim::Options::default().ops, "long"),
    ];
    let kinds = one_of.iter().filter(|(is, _)| *is).map(|(_, kind)| *kind);
    let members =
        format!("{} member{}", options.members, if options.members > 1 { "s" } else { "" });
    std::iter::once(members.as_str()).chain(kinds).collect::<Vec<_>>().join(", ")
}

/// Writes the table, with the first seed that finds each bug.
pub fn write(file: &Path, found: &[(&'static str, Option<u64>)]) {
    let found: BTreeMap<&str, Option<u64>> = found.iter().copied().collect();
    let (head, _) = TABLE.split_once("| bug |").unwrap_or((TABLE, ""));
    let mut table = format!(
        "{head}| bug | crate | what is wrong | seeds | found by |\n|---|---|---|---|---|\n"
    );
    for (name, in_source) in NAMES.iter().zip(IN_SOURCE) {
        let seed = found.get(name).copied().flatten();
        let seed = seed.map_or(format!("none of {SEEDS}"), |seed| seed.to_string());
        let row = writeln!(table, "{} {} | {seed} |", begin_of(name, in_source), kind(name));
        row.expect("a string takes it");
    }
    std::fs::write(file, table).expect("the table is written");
}

#[test]
fn the_table_has_every_planted_bug_as_the_source_tells_of_it() {
    for (name, in_source) in NAMES.iter().zip(IN_SOURCE) {
        let begin = begin_of(name, in_source);
        assert!(TABLE.contains(&begin), "{FILE}=docs/planted-bugs.md writes it anew: {begin}");
    }
    let rows = TABLE.lines().filter(|line| line.starts_with("| `")).count();
    assert_eq!(rows, NAMES.len(), "none is there that is no more");
}
