use super::*;
use crate::compare::plots;
use crate::compare::results::{About, Machine, Row};

const SMALL: u64 = 8 << 10;

fn entrant(system: &str, setting: &str, floor: bool) -> Entrant {
    Entrant {
        system: system.into(),
        version: "1.2".into(),
        setting: setting.into(),
        durability: "all synced".into(),
        command: format!("{system} {{data}}"),
        floor,
    }
}

fn figures(ops_s: f64, cpu: f64) -> Figures {
    Figures {
        ops_s,
        mib_s: ops_s / 128.0,
        p50_us: Some(1_500.0),
        p99_us: Some(9_000.0),
        p999_us: Some(20_000.0),
        errors: 0,
        error_kind: String::new(),
        unsent: 0,
        server_cpu_us_per_op: Some(cpu),
        client_cpu_us_per_op: Some(20.0),
        memory_peak_bytes: 64 << 20,
        put_bytes: 1_000_000,
        written_bytes: 1_250_000,
        occupied_bytes: 1_100_000,
    }
}

fn row(round: u64, system: &str, work: Work, figures: Option<Figures>) -> Row {
    let failure = figures.is_none().then(|| "it ended before it was ready".to_owned());
    let (version, setting) = ("1.2".to_owned(), "default".to_owned());
    Row { round, system: system.into(), version, setting, work, figures, failure }
}

/// Larder, the floor and a peer that fails in the second of two rounds.
fn small() -> Results {
    let put = Work::new(Op::Put, SMALL);
    let rows = vec![
        row(1, "larder", put, Some(figures(4_000.0, 100.0))),
        row(1, "floor", put, Some(figures(20_000.0, 40.0))),
        row(1, "Peer", put, Some(figures(1_000.0, 1_000.0))),
        row(2, "larder", put, Some(figures(12_345.0, 90.0))),
        row(2, "floor", put, Some(figures(20_000.0, 45.0))),
        row(2, "Peer", put, None),
    ];
    let machine = Machine {
        processor: "A CPU".into(),
        cores: 2,
        memory_mib: 2048,
        kernel: "6.1".into(),
        file_system: "ext4".into(),
        load_average: "0.50".into(),
    };
    let about = About {
        date: "2026-11-21".into(),
        commit: "abc".into(),
        command: "larder bench compare".into(),
        machine,
        seed: 7,
        rounds: 2,
        measured_ms: 1000,
        warm_up_ms: 500,
        listed: 5000,
        systems: vec![
            entrant("larder", "default", false),
            entrant("floor", "default", true),
            entrant("Peer", "default", false),
        ],
        absent: vec!["Other is left out".into()],
    };
    Results { about, rows }
}

fn rendered(results: &Results) -> String {
    render(results, &plots::all(results))
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
        "(plots/cpu-by-size.svg)",
    ] {
        assert!(text.contains(line), "{line}\n---\n{text}");
    }
    assert!(!text.lines().any(|line| line.ends_with(' ')), "{text}");
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
    std::fs::write(&path, results.json()).unwrap();
    assert_eq!(Results::read(&path).unwrap(), results);
    let rows = results.json().lines().filter(|line| line.contains("\"round\":")).count();
    assert_eq!(rows, results.rows.len(), "a line for each row");
    std::fs::write(&path, "{}").unwrap();
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

#[test]
fn numbers_have_three_digits_or_groups() {
    for (value, text) in [
        (0.104, "0.10"),
        (9.99, "9.99"),
        (9.996, "10.0"),
        (42.25, "42.2"),
        (99.96, "100"),
        (1234.4, "1,234"),
        (-1_234_567.0, "-1,234,567"),
    ] {
        assert_eq!(number(value), text);
    }
}
