//! `larder status --breakdown`: what servers counted since their starts, in the tables of section 6.3 of the paper on GFS.
//!
//! # Invariants
//!
//! 1. Percentages are tenths, rounded so that each column is 100.0 in sum: of what rounding down leaves, those get a tenth that
//!    lost most, and of equal ones the first.
//! 2. Kinds and sizes of another release get rows and columns, behind those that this one knows. Beyond [`FOREIGN_COUNTS_MAX`] of
//!    a table they share one.
//! 3. A server adds to the tables of its role, and to no others.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;

use larder_roles::breakdown::{
    CLIENT_TABLE, CountStatus, CountsStatus, DISK_TABLE, META_TABLE, OpSize, Sum,
};
use larder_roles::limits::FOREIGN_COUNTS_MAX;
use larder_roles::meta::MetaRequests;
use serde::Serialize;

use crate::quantity::{bytes, span};

/// Columns of the tables by size.
const OF_CLIENTS: [&str; 3] = ["read", "write", "append"];
const OF_DISK: [&str; 5] = ["read_cached", "read", "read_copy", "verify", "write"];
/// Kinds and sizes of other releases beyond those that get names of their own.
const OTHER: &str = "other";
/// Least characters of a row's name, and of a column.
const NAME: usize = 14;
const COLUMN: usize = 12;
/// Tenths of a percent in all.
const WHOLE: u64 = 1000;

/// The document that is printed.
#[derive(Debug, Serialize)]
pub(crate) struct Breakdown {
    /// True if the servers are those of the latest map; else of the last one known.
    is_latest: bool,
    pub(crate) servers: Vec<Server>,
    /// Sums over those that are counted; none is 0.
    counts: Vec<CountStatus>,
}

/// A server whose counts are wanted.
#[derive(Debug, Serialize)]
pub(crate) struct Server {
    pub(crate) name: String,
    pub(crate) role: &'static str,
    pub(crate) is_counted: bool,
    /// Seconds for which it has counted: those since its start.
    #[serde(skip_serializing_if = "Option::is_none")]
    age_s: Option<u64>,
    /// The reason why it is not counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    missing: Option<Missing>,
}

/// The reason why a server is not counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Missing {
    /// By the managers' map.
    Down,
    /// It does not know the question.
    EarlierRelease,
    /// Nothing came in time.
    NoAnswer,
    /// Counts that no server tells.
    Unsound,
    /// The server whose identity the command uses may not request it.
    NotAsked,
}

/// The answer of a server.
pub(crate) struct ServerCounts {
    pub(crate) name: String,
    pub(crate) role: &'static str,
    pub(crate) counts: Result<CountsStatus, Missing>,
}

impl Breakdown {
    /// Adds up what servers told.
    pub(crate) fn of(is_latest: bool, reported: Vec<ServerCounts>) -> Self {
        let mut servers = Vec::new();
        let mut sums: BTreeMap<[String; 3], Sum> = BTreeMap::new();
        let (mut kinds, mut sizes) = (Foreign::default(), Foreign::default());
        for ServerCounts { name, role, counts } in reported {
            let (age_s, missing) = (counts.as_ref().ok().map(|it| it.age_s), counts.as_ref().err());
            let missing = missing.copied();
            servers.push(Server { name, role, is_counted: missing.is_none(), age_s, missing });
            let counts = counts.map(|it| it.counts).unwrap_or_default();
            for count in counts.into_iter().filter(|count| may_report(role, &count.table)) {
                let CountStatus { table, kind, size, ops, bytes, waited_us, served_us } = count;
                let is_known = is_kind(&table, &kind);
                let kind = kinds.named(&table, kind, is_known);
                let is_size = size.is_empty() || OpSize::all().any(|it| it.name() == size);
                let size = sizes.named(&table, size, is_size);
                let sum = sums.entry([table, kind, size]).or_default();
                *sum = sum_of(*sum, Sum { ops, bytes, waited_us, served_us });
            }
        }
        let counts = sums.into_iter().map(|([table, kind, size], sum)| {
            let Sum { ops, bytes, waited_us, served_us } = sum;
            CountStatus { table, kind, size, ops, bytes, waited_us, served_us }
        });
        Self { is_latest, servers, counts: counts.collect() }
    }

    /// True if no server is missing but those that may not be asked.
    pub(crate) fn is_whole(&self) -> bool {
        let is_well = |it: &Server| matches!(it.missing, None | Some(Missing::NotAsked));
        self.is_latest && self.servers.iter().all(is_well)
    }
}

/// True if a server of this role counts for this table. A store has all roles.
fn may_report(role: &str, table: &str) -> bool {
    match table {
        CLIENT_TABLE => matches!(role, "proxy" | "store"),
        META_TABLE => matches!(role, "meta" | "store"),
        DISK_TABLE => matches!(role, "data" | "store"),
        _ => false,
    }
}

/// True if this release counts such a kind.
fn is_kind(table: &str, kind: &str) -> bool {
    match table {
        CLIENT_TABLE => OF_CLIENTS.contains(&kind),
        META_TABLE => MetaRequests::kinds().any(|it| it == kind),
        _ => OF_DISK.contains(&kind),
    }
}

/// Names of tables that this release does not know: a server that makes them up gets no more memory than others.
#[derive(Default)]
struct Foreign(BTreeMap<String, BTreeSet<String>>);

impl Foreign {
    /// The name under which it is counted.
    fn named(&mut self, table: &str, name: String, is_known: bool) -> String {
        if is_known {
            return name;
        }
        let names = self.0.entry(table.to_owned()).or_default();
        if names.len() < FOREIGN_COUNTS_MAX {
            names.insert(name.clone());
        }
        if names.contains(&name) { name } else { OTHER.to_owned() }
    }
}

fn sum_of(one: Sum, other: Sum) -> Sum {
    // Numbers of a server that makes them up end at the most that there is.
    Sum {
        ops: one.ops.saturating_add(other.ops),
        bytes: one.bytes.saturating_add(other.bytes),
        waited_us: one.waited_us.saturating_add(other.waited_us),
        served_us: one.served_us.saturating_add(other.served_us),
    }
}

/// Prints the tables.
pub(crate) fn write_text(out: &mut impl Write, all: &Breakdown) -> std::io::Result<()> {
    servers(out, all)?;
    let (clients, disk) = (
        Grid::of(&all.counts, CLIENT_TABLE, &OF_CLIENTS),
        Grid::of(&all.counts, DISK_TABLE, &OF_DISK),
    );
    writeln!(out, "\noperations of clients by size, % (Table 4)")?;
    clients.percent(out, |sum| sum.ops)?;
    clients.totals(out, "operations", |sum| sum.ops.to_string())?;
    clients.totals(out, "ms each", |sum| each(sum.served_us, sum.ops))?;
    writeln!(out, "\nbytes of objects by size of operation, % (Table 5)")?;
    clients.percent(out, |sum| sum.bytes)?;
    clients.totals(out, "bytes", |sum| bytes(sum.bytes))?;
    writeln!(out, "\nrequests to meta servers by kind, % (Table 6)")?;
    requests(out, &all.counts)?;
    writeln!(out, "\noperations on data disks by size, %")?;
    disk.percent(out, |sum| sum.ops)?;
    disk.totals(out, "operations", |sum| sum.ops.to_string())?;
    disk.totals(out, "bytes", |sum| bytes(sum.bytes))?;
    disk.totals(out, "ms waited each", |sum| each(sum.waited_us, sum.ops))?;
    disk.totals(out, "ms each", |sum| each(sum.served_us, sum.ops))
}

/// Writes of which servers the tables are.
fn servers(out: &mut impl Write, all: &Breakdown) -> std::io::Result<()> {
    if !all.is_latest {
        writeln!(
            out,
            "NO MANAGER LEADS, or no leader is reachable: servers that were added since the last map known are missing"
        )?;
    }
    let counted = all.servers.iter().filter(|server| server.is_counted).count();
    write!(out, "counted since the start of each server, of {counted} of {}", all.servers.len())?;
    let ages = all.servers.iter().filter_map(|server| Some((server.age_s?, server)));
    if let Some((age_s, Server { name, role, .. })) = ages.min_by_key(|(age_s, _)| *age_s) {
        write!(out, "; the youngest, {name} ({role}), started {} ago", span(age_s))?;
    }
    writeln!(out)?;
    let missing =
        |server: &Server| server.missing.map(|why| (server.name.clone(), server.role, why));
    let mut not_asked = BTreeSet::new();
    for (name, role, why) in all.servers.iter().filter_map(missing) {
        let why = match why {
            Missing::Down => "is down",
            Missing::EarlierRelease => "is of a release that has no breakdown",
            Missing::NoAnswer => "does not answer",
            Missing::Unsound => "told counts that no server has: use one release everywhere",
            Missing::NotAsked => {
                not_asked.insert(role);
                continue;
            }
        };
        writeln!(out, "NOT COUNTED: {name} ({role}) {why}")?;
    }
    if !not_asked.is_empty() {
        let roles = not_asked.into_iter().collect::<Vec<_>>().join(", ");
        writeln!(
            out,
            "NOT ASKED: servers of the roles {roles}, as the server of this configuration may not ask them. \
             Give --config FILE of a manager or of a proxy"
        )?;
    }
    Ok(())
}

/// Milliseconds of each of some operations; nothing where their time is not measured.
fn each(us: u64, ops: u64) -> String {
    match (us, ops) {
        (0, _) | (_, 0) => "-".to_owned(),
        (us, ops) => format!("{:.2}", us as f64 / 1000.0 / ops as f64),
    }
}

/// Operations of some kinds, which are columns, by size.
struct Grid<'a> {
    kinds: Vec<&'a str>,
    sizes: Vec<&'a str>,
    /// By kind, then by size.
    cells: Vec<Vec<Sum>>,
}

impl<'a> Grid<'a> {
    fn of(counts: &'a [CountStatus], table: &str, kinds: &[&'a str]) -> Self {
        let mut grid = Self {
            kinds: kinds.to_vec(),
            sizes: OpSize::all().map(OpSize::name).collect(),
            cells: Vec::new(),
        };
        let of_table = || counts.iter().filter(|count| count.table == table);
        for count in of_table() {
            let [kind, size] = [count.kind.as_str(), count.size.as_str()];
            for (known, name) in [(&mut grid.kinds, kind), (&mut grid.sizes, size)] {
                if !known.contains(&name) {
                    known.push(name);
                }
            }
        }
        grid.cells = vec![vec![Sum::default(); grid.sizes.len()]; grid.kinds.len()];
        for CountStatus { kind, size, ops, bytes, waited_us, served_us, .. } in of_table() {
            let kind = grid.kinds.iter().position(|known| known == kind);
            let size = grid.sizes.iter().position(|known| known == size);
            if let (Some(kind), Some(size)) = (kind, size) {
                let (ops, bytes, waited_us, served_us) = (*ops, *bytes, *waited_us, *served_us);
                grid.cells[kind][size] = Sum { ops, bytes, waited_us, served_us };
            }
        }
        grid
    }

    /// Writes the columns' names, and a row of each size.
    fn percent(&self, out: &mut impl Write, of: fn(&Sum) -> u64) -> std::io::Result<()> {
        self.row(out, "", |kind| self.kinds[kind].to_owned())?;
        let values = |cells: &Vec<Sum>| cells.iter().map(of).collect::<Vec<u64>>();
        let columns: Vec<Vec<String>> =
            self.cells.iter().map(|cells| percentages(&values(cells))).collect();
        for (at, size) in self.sizes.iter().enumerate() {
            self.row(out, size, |kind| columns[kind][at].clone())?;
        }
        Ok(())
    }

    /// Writes a row of what each column has in all.
    fn totals(
        &self,
        out: &mut impl Write,
        name: &str,
        of: impl Fn(&Sum) -> String,
    ) -> std::io::Result<()> {
        let total = |kind: usize| self.cells[kind].iter().copied().fold(Sum::default(), sum_of);
        self.row(out, name, |kind| of(&total(kind)))
    }

    fn row(
        &self,
        out: &mut impl Write,
        name: &str,
        cell: impl Fn(usize) -> String,
    ) -> std::io::Result<()> {
        let (name_width, column) = (longest(&self.sizes, NAME), longest(&self.kinds, COLUMN));
        let cells = (0..self.kinds.len()).map(|kind| format!("{:>column$}", cell(kind)));
        writeln!(out, "{name:name_width$}{}", cells.collect::<String>())
    }
}

/// Characters that each of these names has room in, with a space between them; at least `least`.
fn longest(names: &[&str], least: usize) -> usize {
    names.iter().map(|name| name.len() + 1).fold(least, usize::max)
}

/// Writes the requests of each kind, the most frequent first.
fn requests(out: &mut impl Write, counts: &[CountStatus]) -> std::io::Result<()> {
    let mut kinds: Vec<&CountStatus> =
        counts.iter().filter(|count| count.table == META_TABLE).collect();
    kinds.sort_by(|one, other| (other.ops, &one.kind).cmp(&(one.ops, &other.kind)));
    let percent = percentages(&kinds.iter().map(|count| count.ops).collect::<Vec<u64>>());
    let all = kinds.iter().fold(0, |all: u64, count| all.saturating_add(count.ops));
    let names: Vec<&str> = kinds.iter().map(|count| count.kind.as_str()).collect();
    let width = longest(&names, NAME);
    let mut row = |name: &str, [percent, requests, ms]: [&str; 3]| {
        let line = format!("{name:width$}{percent:>COLUMN$}{requests:>COLUMN$}{ms:>COLUMN$}");
        writeln!(out, "{}", line.trim_end())
    };
    row("", ["%", "requests", "ms each"])?;
    for (count, percent) in kinds.into_iter().zip(&percent) {
        let CountStatus { kind, ops, served_us, .. } = count;
        row(kind, [percent, &ops.to_string(), &each(*served_us, *ops)])?;
    }
    row("all", ["", &all.to_string(), ""])
}

/// Shares of a sum as text; nothing of one that is 0.
fn percentages(values: &[u64]) -> Vec<String> {
    let Some(tenths) = tenths(values) else { return vec!["-".to_owned(); values.len()] };
    let text = |(value, tenths): (&u64, u64)| match (value, tenths) {
        (1.., 0) => "< 0.1".to_owned(),
        (_, tenths) => format!("{}.{}", tenths / 10, tenths % 10),
    };
    values.iter().zip(tenths).map(text).collect()
}

/// Tenths of a percent that are [`WHOLE`] in sum; `None` of values that are all 0.
fn tenths(values: &[u64]) -> Option<Vec<u64>> {
    let all: u128 = values.iter().map(|value| u128::from(*value)).sum();
    if all == 0 {
        return None;
    }
    let exact = |value: &u64| u128::from(*value) * u128::from(WHOLE);
    let mut tenths: Vec<u64> = values.iter().map(|value| (exact(value) / all) as u64).collect();
    let mut by_loss: Vec<usize> = (0..values.len()).collect();
    by_loss.sort_by_key(|at| std::cmp::Reverse(exact(&values[*at]) % all));
    let left = WHOLE - tenths.iter().sum::<u64>();
    for at in by_loss.into_iter().take(left as usize) {
        tenths[at] += 1;
    }
    Some(tenths)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count([table, kind, size]: [&str; 3], ops: u64, bytes: u64) -> CountStatus {
        let [table, kind, size] = [table, kind, size].map(str::to_owned);
        CountStatus { table, kind, size, ops, bytes, waited_us: 0, served_us: 0 }
    }

    fn shown(all: &Breakdown) -> String {
        let mut out = Vec::new();
        write_text(&mut out, all).expect("memory takes it");
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn shares_are_a_hundred_percent_in_sum() {
        for (values, expected) in [
            (&[1, 1, 1][..], &["33.4", "33.3", "33.3"][..]),
            (&[0, 0], &["-", "-"]),
            (&[0, 7], &["0.0", "100.0"]),
            (&[1, 1_000_000], &["< 0.1", "100.0"]),
            (&[1, 1, 1, 1, 1, 1, 1], &["14.3", "14.3", "14.3", "14.3", "14.3", "14.3", "14.2"]),
            (&[u64::MAX, u64::MAX], &["50.0", "50.0"]),
            (&[], &[]),
        ] {
            assert_eq!(percentages(values), expected, "{values:?}");
        }
        let mut values = vec![0; 9];
        for step in 1..2000_u64 {
            values[(step % 9) as usize] += step.wrapping_mul(0x9E37_79B9) % 1000;
            let sum: u64 = tenths(&values).map_or(WHOLE, |tenths| tenths.iter().sum());
            assert_eq!(sum, WHOLE, "{values:?}");
        }
    }

    fn reported(name: &str, role: &'static str, counts: Vec<CountStatus>) -> ServerCounts {
        ServerCounts {
            name: name.to_owned(),
            role,
            counts: Ok(CountsStatus { age_s: 200, counts }),
        }
    }

    fn missing(name: &str, role: &'static str, why: Missing) -> ServerCounts {
        ServerCounts { name: name.to_owned(), role, counts: Err(why) }
    }

    #[test]
    fn what_several_servers_told_is_added_up() {
        let of = |kind, size| ["client", kind, size];
        let one = vec![count(of("read", "0"), 1, 0), count(of("write", "1K..8K"), 3, 9000)];
        let other = vec![count(of("write", "1K..8K"), 1, 1000), count(of("sing", "tiny"), 2, 4)];
        let mut young = reported("b", "proxy", other);
        young.counts.as_mut().expect("it told").age_s = 61;
        let all = Breakdown::of(
            true,
            vec![reported("a", "proxy", one), young, missing("c", "data", Missing::Down)],
        );
        assert!(!all.is_whole());
        let expected = [
            count(of("read", "0"), 1, 0),
            count(of("sing", "tiny"), 2, 4),
            count(of("write", "1K..8K"), 4, 10_000),
        ];
        assert_eq!(all.counts, expected);
        let text = shown(&all);
        for line in [
            "counted since the start of each server, of 2 of 3; the youngest, b (proxy), started 1 minute ago",
            "NOT COUNTED: c (data) is down",
            "                      read       write      append        sing",
            "tiny                   0.0         0.0           -       100.0",
            "operations               1           4           0           2",
        ] {
            assert!(text.lines().any(|it| it == line), "{line:?} is not in\n{text}");
        }
    }

    #[test]
    fn a_server_is_missing_unless_it_may_not_be_asked() {
        for (why, said) in [
            (Missing::Down, "NOT COUNTED: b (meta) is down\n"),
            (Missing::EarlierRelease, "NOT COUNTED: b (meta) is of a release that"),
            (Missing::NoAnswer, "NOT COUNTED: b (meta) does not answer\n"),
            (Missing::Unsound, "NOT COUNTED: b (meta) told counts that"),
        ] {
            let all = Breakdown::of(
                true,
                vec![reported("a", "meta", Vec::new()), missing("b", "meta", why)],
            );
            let text = shown(&all);
            assert!(!all.is_whole() && text.contains(said), "{said:?} is not in\n{text}");
        }
        let not_asked = |name| missing(name, "proxy", Missing::NotAsked);
        let servers = || vec![reported("a", "meta", Vec::new()), not_asked("b"), not_asked("c")];
        let all = Breakdown::of(true, servers());
        let text = shown(&all);
        assert!(all.is_whole() && !text.contains("NOT COUNTED"), "{text}");
        assert_eq!(text.matches("NOT ASKED: servers of the roles proxy, ").count(), 1, "{text}");
        let old = Breakdown::of(false, servers());
        assert!(!old.is_whole() && shown(&old).starts_with("NO MANAGER LEADS"), "it may be old");
    }

    #[test]
    fn a_server_adds_to_the_tables_of_its_role_alone() {
        let counts = || {
            let of = |(table, kind)| count([table, kind, "0"], 1, 0);
            let tables = [("client", "read"), ("meta", "put"), ("disk", "read"), ("songs", "sing")];
            tables.map(of).to_vec()
        };
        for (role, expected) in [
            ("proxy", &["client"][..]),
            ("meta", &["meta"]),
            ("data", &["disk"]),
            ("store", &["client", "disk", "meta"]),
        ] {
            let all = Breakdown::of(true, vec![reported("a", role, counts())]);
            let tables: Vec<&str> = all.counts.iter().map(|it| it.table.as_str()).collect();
            assert_eq!(tables, expected, "{role}");
        }
    }

    #[test]
    fn names_that_a_server_makes_up_share_a_place_beyond_some() {
        let made_up = |at: usize| count(["client", &format!("k{at}"), &format!("s{at}")], 1, 2);
        let counts: Vec<CountStatus> = (0..1000).map(made_up).collect();
        let known = count(["client", "read", "0"], 1, 0);
        let all = Breakdown::of(true, vec![reported("a", "proxy", [counts, vec![known]].concat())]);
        assert_eq!(all.counts.len(), FOREIGN_COUNTS_MAX + 2);
        let of = |kind| all.counts.iter().find(|it| it.kind == kind).map(|it| (it.ops, it.bytes));
        let beyond = 1000 - FOREIGN_COUNTS_MAX as u64;
        assert_eq!((of("read"), of("other")), (Some((1, 0)), Some((beyond, 2 * beyond))));
        assert!(shown(&all).len() < 64 * 1024, "the tables stay readable");
    }

    #[test]
    fn long_names_shift_no_column() {
        let of = |kind| count(["meta", kind, ""], 1, 0);
        let longest = "k".repeat(64);
        for kind in ["complete_upload", &longest] {
            let text =
                shown(&Breakdown::of(true, vec![reported("a", "meta", vec![of("put"), of(kind)])]));
            let ends = |row: &str| {
                let line = text.lines().find(|line| line.starts_with(row)).expect("a row");
                line.find("50.0").expect("its share")
            };
            assert_eq!(ends(kind), ends("put "), "{text}");
        }
    }

    #[test]
    fn requests_are_told_by_kind_with_the_time_of_those_that_have_one() {
        let of = |kind| ["meta", kind, ""];
        let put = CountStatus { served_us: 6000, ..count(of("put"), 4, 0) };
        let counts = vec![count(of("list"), 1, 0), put, count(of("look_up"), 7, 0)];
        let text = shown(&Breakdown::of(true, vec![reported("a", "meta", counts)]));
        let rows = "look_up               58.4           7           -\n\
                    put                   33.3           4        1.50\n\
                    list                   8.3           1           -\n\
                    all                                 12\n";
        assert!(text.contains(rows), "{text}");
    }
}
