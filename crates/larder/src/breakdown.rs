//! `larder status --breakdown`: what servers counted since their starts, in the tables of section 6.3 of the paper on GFS.
//!
//! # Invariants
//!
//! 1. Percentages are tenths, rounded so that each column is 100.0 in sum: of what rounding down leaves, those get a tenth that
//!    lost most, and of equal ones the first.
//! 2. Kinds and sizes of another release get rows and columns, behind those that this one knows.

use std::collections::BTreeMap;
use std::io::Write;

use larder_roles::breakdown::{
    CLIENT_TABLE, CountNow, CountsNow, DISK_TABLE, META_TABLE, OpSize, Sum,
};
use serde::Serialize;

use crate::quantity::bytes;

/// Columns of the tables by size.
const OF_CLIENTS: [&str; 3] = ["read", "write", "append"];
const OF_DISK: [&str; 5] = ["read_cached", "read", "read_copy", "verify", "write"];
/// Characters of a row's name, and of a column.
const NAME: usize = 14;
const COLUMN: usize = 12;
/// Tenths of a percent in all.
const WHOLE: u64 = 1000;

/// The document that is printed.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Breakdown {
    pub(crate) servers: Vec<Server>,
    /// Sums over those that are counted; none is 0.
    counts: Vec<CountNow>,
}

/// A server whose counts are wanted.
#[derive(Debug, Serialize)]
pub(crate) struct Server {
    pub(crate) name: String,
    pub(crate) role: &'static str,
    /// False if it is down, or did not tell.
    pub(crate) is_counted: bool,
}

impl Breakdown {
    /// Adds up what servers told: `None` of one that did not.
    pub(crate) fn of(told: Vec<(String, &'static str, Option<CountsNow>)>) -> Self {
        let mut servers = Vec::new();
        let mut sums: BTreeMap<[String; 3], Sum> = BTreeMap::new();
        for (name, role, counts) in told {
            servers.push(Server { name, role, is_counted: counts.is_some() });
            for count in counts.unwrap_or_default().counts {
                let CountNow { table, kind, size, ops, bytes, waited_us, served_us } = count;
                let sum = sums.entry([table, kind, size]).or_default();
                *sum = sum_of(*sum, Sum { ops, bytes, waited_us, served_us });
            }
        }
        let counts = sums.into_iter().map(|([table, kind, size], sum)| {
            let Sum { ops, bytes, waited_us, served_us } = sum;
            CountNow { table, kind, size, ops, bytes, waited_us, served_us }
        });
        Self { servers, counts: counts.collect() }
    }

    /// True if no server is missing.
    pub(crate) fn is_whole(&self) -> bool {
        self.servers.iter().all(|server| server.is_counted)
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
pub(crate) fn people(out: &mut impl Write, all: &Breakdown) -> std::io::Result<()> {
    let counted = all.servers.iter().filter(|server| server.is_counted).count();
    writeln!(out, "counted since the start of each server, of {counted} of {}", all.servers.len())?;
    for server in all.servers.iter().filter(|server| !server.is_counted) {
        let Server { name, role, .. } = server;
        writeln!(
            out,
            "NOT COUNTED: {name} ({role}) is down, of an earlier release, or does not answer the server in whose name this asks"
        )?;
    }
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
    fn of(counts: &'a [CountNow], table: &str, kinds: &[&'a str]) -> Self {
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
        for CountNow { kind, size, ops, bytes, waited_us, served_us, .. } in of_table() {
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
        let cells = (0..self.kinds.len()).map(|kind| format!("{:>COLUMN$}", cell(kind)));
        writeln!(out, "{name:NAME$}{}", cells.collect::<String>())
    }
}

/// Writes the requests of each kind, the most frequent first.
fn requests(out: &mut impl Write, counts: &[CountNow]) -> std::io::Result<()> {
    let mut kinds: Vec<&CountNow> =
        counts.iter().filter(|count| count.table == META_TABLE).collect();
    kinds.sort_by(|one, other| (other.ops, &one.kind).cmp(&(one.ops, &other.kind)));
    let percent = percentages(&kinds.iter().map(|count| count.ops).collect::<Vec<u64>>());
    let all = kinds.iter().fold(0, |all: u64, count| all.saturating_add(count.ops));
    let mut row = |name: &str, [percent, requests, ms]: [&str; 3]| {
        let line = format!("{name:NAME$}{percent:>COLUMN$}{requests:>COLUMN$}{ms:>COLUMN$}");
        writeln!(out, "{}", line.trim_end())
    };
    row("", ["%", "requests", "ms each"])?;
    for (count, percent) in kinds.into_iter().zip(&percent) {
        let CountNow { kind, ops, served_us, .. } = count;
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

    fn count([table, kind, size]: [&str; 3], ops: u64, bytes: u64) -> CountNow {
        let [table, kind, size] = [table, kind, size].map(str::to_owned);
        CountNow { table, kind, size, ops, bytes, waited_us: 0, served_us: 0 }
    }

    fn shown(all: &Breakdown) -> String {
        let mut out = Vec::new();
        people(&mut out, all).expect("memory takes it");
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

    #[test]
    fn what_several_servers_told_is_added_up() {
        let told = |counts| Some(CountsNow { counts });
        let of = |kind, size| ["client", kind, size];
        let one = vec![count(of("read", "0"), 1, 0), count(of("write", "1K..8K"), 3, 9000)];
        let other = vec![count(of("write", "1K..8K"), 1, 1000), count(of("sing", "tiny"), 2, 4)];
        let all = Breakdown::of(vec![
            ("a".to_owned(), "proxy", told(one)),
            ("b".to_owned(), "proxy", told(other)),
            ("c".to_owned(), "data", None),
        ]);
        assert!(!all.is_whole());
        let expected = [
            count(of("read", "0"), 1, 0),
            count(of("sing", "tiny"), 2, 4),
            count(of("write", "1K..8K"), 4, 10_000),
        ];
        assert_eq!(all.counts, expected);
        let text = shown(&all);
        for line in [
            "counted since the start of each server, of 2 of 3",
            "                      read       write      append        sing",
            "tiny                   0.0         0.0           -       100.0",
            "operations               1           4           0           2",
        ] {
            assert!(text.lines().any(|it| it == line), "{line:?} is not in\n{text}");
        }
        assert!(text.contains("NOT COUNTED: c (data)"), "{text}");
    }

    #[test]
    fn requests_are_told_by_kind_with_the_time_of_those_that_have_one() {
        let of = |kind| ["meta", kind, ""];
        let put = CountNow { served_us: 6000, ..count(of("put"), 4, 0) };
        let counts = vec![count(of("list"), 1, 0), put, count(of("look_up"), 7, 0)];
        let told = Some(CountsNow { counts });
        let text = shown(&Breakdown::of(vec![("a".to_owned(), "meta", told)]));
        let rows = "look_up               58.4           7           -\n\
                    put                   33.3           4        1.50\n\
                    list                   8.3           1           -\n\
                    all                                 12\n";
        assert!(text.contains(rows), "{text}");
    }
}
