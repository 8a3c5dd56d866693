//! `larder pack status`: what a worker says of itself, with its bill.

use std::fmt::Write;
use std::path::Path;
use std::process::ExitCode;

use larder_pack::{RequestClass, Status, WorkersStatus};
use serde_json::{Value, json};

use crate::exit;
use crate::kind::{self, Kind};

const MIB: f64 = 1024.0 * 1024.0;

/// Prints it; the exit code says whether the worker runs.
pub(crate) fn show(dir: &Path, as_json: bool) -> ExitCode {
    if let Err(error) = kind::allow(dir, |found| found == Kind::Worker) {
        eprintln!("error: {error}");
        return exit::code(exit::CANNOT_START);
    }
    let status = match Status::read(dir) {
        Ok(status) => status,
        Err(error) => {
            let dir = dir.display();
            eprintln!("error: {dir} has no status of a worker that can be read: {error}");
            return exit::code(exit::CANNOT_START);
        }
    };
    let workers = match WorkersStatus::read(dir) {
        Ok(workers) => workers,
        Err(error) => {
            eprintln!("error: what the worker says of the others cannot be read: {error}");
            None
        }
    };
    if as_json {
        println!("{}", document(&status, workers.as_ref()));
    } else {
        print!("{}", text(&status));
        print!("{}", workers.as_ref().map(of_workers).unwrap_or_default());
    }
    exit::code(if status.is_fresh() { exit::OK } else { exit::FAULTS })
}

fn document(status: &Status, workers: Option<&WorkersStatus>) -> Value {
    json!({
        "status": status,
        "workers": workers,
        "age_ms": status.age_ms(),
        "heard": status.is_fresh(),
        "bill": {
            "currency": status.prices.currency,
            "cost": status.cost(),
            "direct_cost": status.direct_cost(),
        },
    })
}

fn text(status: &Status) -> String {
    let mut out = String::new();
    // Writing into a string does not fail.
    let _ok = write_text(status, &mut out);
    out
}

/// The other workers of the bucket.
fn of_workers(workers: &WorkersStatus) -> String {
    let seconds = |ms: u64| format!("{} s ago", ms / 1000);
    let mut out = format!(
        "\n{:16} {:>12} {:>12} {:>14} {:>14}  answers at\n",
        "other workers", "seen", "heard", "bytes behind", "not uploaded"
    );
    for other in &workers.others {
        let received = other.unheard_ms.map_or_else(|| "never".to_owned(), seconds);
        let address = other.address.as_deref().unwrap_or("-");
        let (seen, behind) = (seconds(other.unseen_ms), other.behind_bytes);
        let (name, waiting) = (&other.name, other.not_uploaded);
        // Writing into a string does not fail.
        let _ok = writeln!(
            out,
            "{name:16} {seen:>12} {received:>12} {behind:>14} {waiting:>14}  {address}"
        );
    }
    out
}

fn write_text(status: &Status, out: &mut String) -> std::fmt::Result {
    let (totals, now, prices) = (&status.totals, &status.now, &status.prices);
    let seconds = status.age_ms() / 1000;
    let state = match (status.is_fresh(), status.running) {
        (true, _) => format!("runs (heard {seconds} s ago)"),
        (false, false) => format!("was stopped, {seconds} s ago"),
        (false, true) => format!("does not run: last heard {seconds} s ago"),
    };
    writeln!(out, "worker {}      {state}", status.worker)?;
    let waiting = now.waiting_bytes as f64 / MIB;
    writeln!(out, "not uploaded  {} blobs, {waiting:.1} MiB of objects", now.waiting_blobs)?;
    let (packed, up) = (totals.packed_bytes as f64 / MIB, totals.uploaded_bytes as f64 / MIB);
    writeln!(out, "uploaded      {} blobs, {up:.1} MiB; {packed:.1} MiB packed", totals.blobs)?;
    writeln!(out, "cache         {:.1} MiB", now.cache_bytes as f64 / MIB)?;
    writeln!(
        out,
        "backend       at most {} requests at once, {} refused for now so far{}",
        now.requests_max,
        totals.throttled,
        if now.budget_spent { "; the budget is used up: UPLOADS WAIT" } else { "" }
    )?;
    let currency = &prices.currency;
    writeln!(
        out,
        "\n{:8} {:>12} {:>14} {:>12} {:>14}",
        "", "requests", currency, "direct", currency
    )?;
    for class in RequestClass::ALL {
        let (made, direct) = (*totals.requests.of(class), *totals.direct.of(class));
        let (cost, instead) = (made as f64 * prices.of(class), direct as f64 * prices.of(class));
        writeln!(out, "{:8} {made:>12} {cost:>14.6} {direct:>12} {instead:>14.6}", class.name())?;
    }
    let (made, direct) = (totals.requests.total(), totals.direct.total());
    let (cost, instead) = (status.cost(), status.direct_cost());
    writeln!(out, "{:8} {made:>12} {cost:>14.6} {direct:>12} {instead:>14.6}", "bill")
}

#[cfg(test)]
mod tests {
    use larder_pack::{Moment, OtherStatus, Prices, Requests, Totals};

    use super::*;

    fn sample() -> Status {
        Status {
            version: 1,
            worker: 1,
            running: true,
            written_ms: 0,
            since_ms: 0,
            totals: Totals {
                requests: Requests { put: 2, part: 128, ..Requests::default() },
                direct: Requests { put: 131_072, ..Requests::default() },
                ..Totals::default()
            },
            prices: Prices::default(),
            now: Moment { budget_spent: true, ..Moment::default() },
        }
    }

    #[test]
    fn the_other_workers_stand_below_it() {
        let other = OtherStatus {
            name: "b".into(),
            worker: 7,
            address: Some("host:9002".into()),
            unseen_ms: 3000,
            unheard_ms: None,
            behind_bytes: 12,
            not_uploaded: 5,
        };
        let (name, address) = ("a".into(), None);
        let workers = WorkersStatus {
            version: 1,
            name,
            address,
            unseen_ms: 3000,
            handed_on: 0,
            others: vec![other],
        };
        let text = of_workers(&workers);
        let words: Vec<_> = text.lines().last().unwrap().split_whitespace().collect();
        assert_eq!(words, ["b", "3", "s", "ago", "never", "12", "5", "host:9002"]);
        assert_eq!(document(&sample(), Some(&workers))["workers"]["others"][0]["name"], "b");
    }

    #[test]
    fn the_bill_stands_beside_that_of_direct_writing() {
        let text = text(&sample());
        let line =
            |name: &str| text.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
        let words: Vec<_> = line("bill").split_whitespace().map(str::to_owned).collect();
        assert_eq!(words, ["bill", "130", "0.000650", "131072", "0.655360"]);
        assert!(line("worker").contains("does not run"), "{text}");
        assert!(line("backend").contains("UPLOADS WAIT"), "{text}");
        let document = document(&sample(), None);
        assert_eq!(document["heard"], false);
        assert_eq!(document["status"]["totals"]["requests"]["part"], 128);
        assert!((document["bill"]["direct_cost"].as_f64().unwrap() - 0.655_36).abs() < 1e-9);
    }
}
