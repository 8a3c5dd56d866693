//! The page: tables.

use std::fmt::Write;

use larder_plot::{commit, machine, number};

use super::measure::{Found, Growth, Rack, Step};
use crate::Options;

const MICROS: f64 = 1e6;

/// The made part of the page.
pub(super) fn page(found: &Found, options: &Options) -> String {
    let mut text = String::new();
    let quick = if options.quick { " --quick" } else { "" };
    let setup = &found.setup;
    let _ = writeln!(
        text,
        "Commit {}; {}:\n\n```console\n$ larder-papers scale --seed {}{quick}\n```\n",
        commit(),
        machine(),
        options.seed
    );
    let count = |count: u32| number(f64::from(count));
    let _ = writeln!(
        text,
        "### {} servers, {} disks, {} volumes, {} groups\n\n| | |\n|---|---:|",
        count(setup.servers),
        count(setup.servers * setup.disks),
        count(setup.volumes),
        count(setup.groups)
    );
    let volumes = f64::from(setup.volumes);
    let millis = |took: std::time::Duration| number(took.as_secs_f64() * 1000.0);
    for (name, value) in [
        ("map, KiB", number(found.map_bytes as f64 / 1024.0)),
        ("of it for a volume, bytes", number(found.volumes_bytes as f64 / volumes)),
        ("encode the map, ms", millis(found.encode)),
        ("decode it, ms", millis(found.decode)),
        ("messages of servers a second", number(found.messages_per_s)),
        ("KiB of these a second, without frames", number(found.messages_bytes_per_s / 1024.0)),
    ] {
        let _ = writeln!(text, "| {name} | {value} |");
    }
    text.push_str("\n### Commands of the managers' log\n\n| command | bytes |\n|---|---:|\n");
    for (name, bytes) in &found.commands {
        let _ = writeln!(text, "| {name} | {bytes} |");
    }
    text.push_str("\n### Steps of the leading manager\n\n| step | steps | mean, µs | longest, µs |\n|---|---:|---:|---:|\n");
    for Step { name, count, mean, max } in &found.steps {
        let (mean, max) = (mean.as_secs_f64() * MICROS, max.as_secs_f64() * MICROS);
        let _ = writeln!(text, "| {name} | {count} | {} | {} |", number(mean), number(max));
    }
    let Rack { servers, volumes, worse, groups, worse_groups } = found.rack;
    let _ = writeln!(
        text,
        "\n### A rack of {servers} servers is lost\n\n| | lose one | lose more |\n|---|---:|---:|\n\
         | volumes | {} | {worse} |\n| groups | {} | {worse_groups} |",
        number(volumes as f64),
        number(groups as f64)
    );
    let Growth { before, after, members, members_least, copies, copies_least } = found.growth;
    let row = |name: &str, moved: usize, least: usize| {
        let (moved, least) = (moved as f64, least as f64);
        format!("| {name} | {} | {} | {:.2} |\n", number(moved), number(least), moved / least)
    };
    let _ = writeln!(
        text,
        "\n### {before} servers become {after}\n\n| moved | | least for even shares | moved ÷ least |\n\
         |---|---:|---:|---:|\n{}{}",
        row("members of groups", members, members_least),
        row("copies of volumes", copies, copies_least)
    );
    text.trim_end().to_owned()
}
