use std::fs;
use std::path::Path;

use super::*;
use crate::document::{self, with_part};
use crate::plots;
use crate::results::{AtPeak, Peak};
use crate::samples::{SMALL, entrant, figures, row, small};

fn rendered(results: &Results) -> String {
    render(results, &plots::all(results), &document::named(None).unwrap())
}

#[test]
fn medians_ratios_and_failures_are_shown() {
    let text = rendered(&small());
    for line in [
        "## 2026-11-21, commit abc: all systems",
        "A CPU, 2 cores, 2.0 GiB, Linux 6.1, ext4",
        "| Peer | 1.2 | default | all synced | `Peer {data}` |",
        "Other is left out.",
        "### Larder against the others\n\nMedians of each round's own ratio. Of CPU and p99 less is better, of ops/s \
         more.\n\n| | CPU ÷ floor | CPU ÷ Peer | ops/s ÷ Peer | p99 ÷ Peer |",
        "| put 8 KiB | 2.25 (2.00–2.50) | 0.10 | 4.00 | 1.00 |",
        "### Server CPU, µs per operation\n\n| | larder | floor | Peer |\n|---|---:|---:|---:|\n\
         | put 8 KiB | 95.0 (90.0–100) | 42.5 (40.0–45.0) | 1,000 |",
        "| put 8 KiB | 8,173 (4,000–12,345) | 20,000 | 1,000 |",
        "| put 8 KiB | 1.50 / 9.00 / 20.0 |",
        "| put 8 KiB | 64.0 | 64.0 | 64.0 |",
        "### Bytes written per byte put\n\nAs the kernel accounts them to the server.\n\n| | larder | Peer |\n|---|---:|---:|\n\
         | put 8 KiB | 1.25 | 1.25 |\n| all of these | 1.25 | 1.25 |",
        "- round 2, Peer (default), put 8 KiB: it ended before it was ready",
        "(../plots/cpu-by-size.svg)",
    ] {
        assert!(text.contains(line), "{line}\n---\n{text}");
    }
    assert!(!text.lines().any(|line| line.ends_with(' ')), "{text}");
}

#[test]
fn pages_and_plots_are_what_their_rows_give() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    for name in [None, Some("amd"), Some("durable"), Some("million"), Some("cluster")] {
        let part = document::named(name).unwrap();
        let results = Results::read(&docs.join(part.rows())).unwrap();
        let plots = plots::all(&results);
        let page = docs.join(part.page());
        let made = with_part(&page, &part, &render(&results, &plots, &part)).unwrap();
        let remedy = format!("make it again from {} with --from", part.rows());
        assert!(made == fs::read_to_string(&page).unwrap(), "{}: {remedy}", page.display());
        for plot in plots {
            let file = docs.join(part.plots()).join(plot.file);
            assert!(plot.svg == fs::read_to_string(&file).unwrap(), "{}: {remedy}", file.display());
        }
    }
}

#[test]
fn larder_is_shown_beside_each_peak_that_it_was_offered() {
    let mut results = small();
    let peak = |round, p99_us| Peak {
        round,
        system: "Peer".into(),
        setting: "default".into(),
        work: Work::new(Op::Put, SMALL),
        ops_s: 1_000.0,
        p99_us,
    };
    let larder = figures(999.0, 100.0);
    results.at_peaks = vec![
        AtPeak { peak: peak(1, 90_000.0), larder: Some(larder), failure: None },
        AtPeak { peak: peak(2, 50_000.0), larder: None, failure: Some("it ended".into()) },
    ];
    let text = rendered(&results);
    for line in [
        "| Peer | 1,000 | 70.0 (50.0–90.0) | 999 | 9.00 | 0.10 |",
        "- round 2, larder at the peak of Peer (default): it ended",
    ] {
        assert!(text.contains(line), "{line}\n---\n{text}");
    }
    assert!(!rendered(&small()).contains("peak load"), "nothing to show");
}

#[test]
fn memory_with_a_million_objects_is_that_at_the_end() {
    let mut results = small();
    let work = Work::new(Op::ListMillion, SMALL);
    results.rows.push(row(1, "larder", work, Some(figures(100.0, 9.0))));
    let text = rendered(&results);
    assert!(text.contains("after a million objects"), "{text}");
    assert!(text.contains("| list 1000 keys of a million | 48.0 | – | – |"), "{text}");
}

#[test]
fn works_that_nobody_did_and_tables_without_a_cell_are_left_out() {
    let mut results = small();
    for row in &mut results.rows {
        if let Some(figures) = &mut row.figures {
            figures.put_bytes = 0;
            figures.server_cpu_us_per_op = None;
        }
    }
    let text = rendered(&results);
    assert!(!text.contains("Bytes written") && !text.contains("Server CPU, µs"), "{text}");
    assert!(text.contains("Operations per second"));
}

#[test]
fn settings_of_one_system_are_told_apart() {
    let mut results = small();
    results.about.systems.push(entrant("Peer", "durable", false));
    let text = rendered(&results);
    assert!(text.contains("CPU ÷ Peer (default)") && text.contains("CPU ÷ Peer (durable)"));
}

#[test]
fn rows_are_kept_as_text_and_read_again() {
    let results = small();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.json");
    fs::write(&path, results.json()).unwrap();
    assert_eq!(Results::read(&path).unwrap(), results);
    let rows = results.json().lines().filter(|line| line.contains("\"round\":")).count();
    assert_eq!(rows, results.rows.len(), "a line for each row");
    fs::write(&path, "{}").unwrap();
    let error = Results::read(&path).unwrap_err().to_string();
    assert!(error.contains("rows.json") && error.contains("about"), "{error}");
}

#[test]
fn plots_have_a_line_for_each_system_and_are_left_out_without_any() {
    let points = plots::all(&small()).into_iter().map(|plot| {
        assert!(plot.svg.contains(">larder<") && !plot.svg.contains("NaN"), "{}", plot.file);
        (plot.file, plot.svg.matches("<circle").count())
    });
    assert_eq!(
        points.collect::<Vec<_>>(),
        [
            ("throughput-by-size.svg", 3),
            ("cpu-by-size.svg", 3),
            // Throughput, p50 and p99.
            ("scaling-by-connections.svg", 9),
        ]
    );
    assert!(!rendered(&small()).contains("latency-by-load.svg"));
}
