use std::fs;
use std::path::Path;

use super::*;
use crate::document::{self, with_part};
use crate::measured::About;
use crate::results::Machine;

fn row(round: u64, variant: Variant, connections: u64, p50_us: f64) -> Row {
    Row {
        round,
        delays: USUAL,
        variant,
        work: Work { size: SIZES[0], connections },
        ops_s: 1e6 / p50_us,
        p50_us: Some(p50_us),
        p99_us: None,
        server_cpu_us_per_op: Some(100.0),
        errors: 0,
    }
}

fn results(rows: Vec<Row>) -> Results {
    let machine = Machine {
        processor: "P".into(),
        cores: 2,
        memory_mib: 1024,
        kernel: "6.1".into(),
        file_system: "ext4".into(),
        load_average: "0.50".into(),
    };
    let about = About {
        date: "2026-01-01".into(),
        commit: "c".into(),
        command: "larder-compare ordered".into(),
        machine,
        rounds: 3,
        measured_ms: 500,
    };
    Results { about, rows }
}

#[test]
fn ratios_are_those_of_each_round_and_stand_beside_the_bounds() {
    // The second round was slow for both.
    let rows = vec![
        row(1, Variant::Parallel, ALONE, 1500.0),
        row(1, Variant::Ordered, ALONE, 3000.0),
        row(2, Variant::Parallel, ALONE, 6000.0),
        row(2, Variant::Ordered, ALONE, 10_000.0),
        row(3, Variant::Parallel, ALONE, 2000.0),
        row(3, Variant::Ordered, ALONE, 4000.0),
        row(3, Variant::PlainFiles, ALONE, 5000.0),
    ];
    let part = document::of_command("ordered", "ordered");
    let text = page(&results(rows), &[], &part);
    let line = "| 200 µs, 1 ms | 8 KiB | 1,400 | 2,000 | 2,600 | 4,000 | 46 % | 50 % (40–50) |";
    assert!(text.contains(line), "{text}");
    let line = "| 200 µs, 1 ms | 8 KiB | data in plain files | 1.71 | 2.50 (2.50–2.50) | – | – |";
    assert!(text.contains(line), "{text}");
}

#[test]
fn the_page_and_its_plots_are_what_the_rows_give() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let part = document::of_command("ordered", "ordered");
    let results = Results::read(&docs.join(part.rows()), &part).unwrap();
    let plots = plots(&results);
    let path = docs.join(part.page());
    let made = with_part(&path, &part, &page(&results, &plots, &part)).unwrap();
    assert!(made == fs::read_to_string(&path).unwrap(), "make it again with --from");
    for plot in plots {
        let file = docs.join(part.plots()).join(plot.file);
        assert!(plot.svg == fs::read_to_string(&file).unwrap(), "{}", file.display());
    }
}

#[test]
fn plots_have_a_panel_for_each_size_and_dashed_bounds() {
    let rows =
        vec![row(1, Variant::Parallel, ALONE, 1500.0), row(1, Variant::Ordered, ALONE, 3000.0)];
    let plots = plots(&results(rows));
    let files: Vec<&str> = plots.iter().map(|plot| plot.file).collect();
    assert_eq!(files, ["latency-by-sync.svg", "latency-by-network.svg"], "nobody put together");
    assert!(plots[0].svg.contains("stroke-dasharray") && plots[0].svg.contains("512 KiB"));
}

#[test]
fn rows_are_read_as_they_were_written() {
    let results = results(vec![row(1, Variant::SeparateMetax, TOGETHER, 1000.0)]);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rows.json");
    fs::write(&path, results.json()).unwrap();
    assert_eq!(Results::read(&path, &document::of_command("ordered", "ordered")).unwrap(), results);
}
