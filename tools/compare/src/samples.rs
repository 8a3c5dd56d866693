//! Results for tests of what is made of them.

use crate::results::{About, Entrant, Figures, Machine, Results, Row};
use crate::works::{Op, Work};

pub(crate) const SMALL: u64 = 8 << 10;

pub(crate) fn entrant(system: &str, setting: &str, floor: bool) -> Entrant {
    Entrant {
        system: system.into(),
        version: "1.2".into(),
        setting: setting.into(),
        durability: "all synced".into(),
        command: format!("{system} {{data}}"),
        floor,
    }
}

pub(crate) fn figures(ops_s: f64, cpu: f64) -> Figures {
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
        memory_end_bytes: Some(48 << 20),
        put_bytes: 1_000_000,
        written_bytes: 1_250_000,
        occupied_bytes: 1_100_000,
    }
}

pub(crate) fn row(round: u64, system: &str, work: Work, figures: Option<Figures>) -> Row {
    let failure = figures.is_none().then(|| "it ended before it was ready".to_owned());
    let (version, setting) = ("1.2".to_owned(), "default".to_owned());
    Row { round, system: system.into(), version, setting, work, figures, failure }
}

/// Larder, the floor and a peer that fails in the second of two rounds.
pub(crate) fn small() -> Results {
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
        command: "larder-compare systems".into(),
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
    Results { about, rows, at_peaks: Vec::new() }
}
