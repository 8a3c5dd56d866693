//! `larder region list` and `larder region status`.

use std::fmt::Write;
use std::path::Path;

use larder_link::{Known, PeerStatus, RegionStatus};
use serde_json::{Value, json};

use super::{RegionError, members};
use crate::exit;

/// Seconds for which a region may lack changes before that is worth a line: it asks every two seconds.
const LACKS_SECONDS_MAX: f64 = 5.0;

/// Prints the list of regions in a directory.
pub(super) fn list(dir: &Path, as_json: bool) -> Result<u8, RegionError> {
    let members = members(dir)?;
    let paused =
        |known: &Known| members.peers.iter().any(|peer| peer.number == known.number && peer.paused);
    let is_own = |known: &Known| known.number == members.own.number;
    let state = |known: &Known| match known {
        known if known.removed => "removed",
        known if is_own(known) => "this one",
        known if paused(known) => "paused",
        _ => "",
    };
    let mut all = members.exchanged();
    all.sort_by_key(|known| known.number);
    if as_json {
        let regions = all.iter().map(|it| {
            json!({
                "number": it.number, "name": it.name, "address": it.address,
                "fingerprint": it.fingerprint.to_string(), "removed": it.removed,
                "paused": paused(it), "own": is_own(it), "mib_per_s": members.rate(it.number),
                "compressed": members.is_compressed(it.number),
            })
        });
        println!(
            "{}",
            json!({ "listen": members.own.listen, "regions": Value::from_iter(regions) })
        );
        return Ok(exit::OK);
    }
    println!("{:>6} {:16} {:32} {:9} fingerprint of its key", "region", "name", "address", "");
    for it in &all {
        let (number, name, address, key) = (it.number, &it.name, &it.address, it.fingerprint);
        println!("{number:>6} {name:16} {address:32} {:9} {key}", state(it));
    }
    Ok(exit::OK)
}

/// Prints the status that the server wrote last; the exit code is 0 if all is well.
pub(super) fn status(dir: &Path, as_json: bool) -> Result<u8, RegionError> {
    let members = members(dir)?;
    let status = RegionStatus::read(dir)?;
    let is_well = !members.own.removed && status.as_ref().is_some_and(is_well);
    if as_json {
        println!("{}", document(status.as_ref(), members.own.removed));
    } else if let Some(status) = &status {
        print!("{}", text(status, members.own.removed));
    } else {
        println!(
            "region {} ({})  its server has not said anything yet",
            members.own.number, members.own.name
        );
    }
    if status.is_none_or(|status| !status.is_fresh()) {
        eprintln!(
            "the server does not run, or was not started since: this is how it was. Start (or restart) `larder server {}`",
            dir.display()
        );
    }
    Ok(if is_well { exit::OK } else { exit::FAULTS })
}

fn is_well(status: &RegionStatus) -> bool {
    status.is_fresh() && status.peers.iter().all(|peer| peer.paused || peer.is_well())
}

fn document(status: Option<&RegionStatus>, is_removed: bool) -> Value {
    json!({
        "status": status,
        "age_ms": status.map(RegionStatus::age_ms),
        "heard": status.is_some_and(RegionStatus::is_fresh),
        "well": !is_removed && status.is_some_and(is_well),
        "removed": is_removed,
    })
}

fn text(status: &RegionStatus, is_removed: bool) -> String {
    let mut out = String::new();
    // Writing into a string does not fail.
    let _ok = write_text(status, is_removed, &mut out);
    out
}

fn write_text(status: &RegionStatus, is_removed: bool, out: &mut String) -> std::fmt::Result {
    let seconds = status.age_ms() / 1000;
    let state = match (is_removed, status.is_fresh()) {
        (true, _) => "was removed from its regions".to_owned(),
        (_, true) => format!("heard {seconds} s ago"),
        (_, false) => format!("OLD: last heard {seconds} s ago"),
    };
    writeln!(out, "region {} ({})  {state}", status.number, status.name)?;
    let (number, operations) = ("region", "operations");
    let behind = "behind";
    writeln!(
        out,
        "{number:>6} {:16} {:12} {operations:>12} {:>14} {behind:>10} {:>12} {:>10}",
        "name", "", "bytes", "bytes/s", "left"
    )?;
    for peer in &status.peers {
        let (number, name, state) = (peer.number, &peer.name, state_of(peer));
        let (operations, bytes) = (peer.operations_behind, peer.bytes_behind);
        let (behind, left) = (duration(peer.seconds_behind), duration(peer.seconds_left));
        let rate = peer.bytes_per_s;
        writeln!(
            out,
            "{number:>6} {name:16} {state:12} {operations:>12} {bytes:>14} {behind:>10} {rate:>12.0} {left:>10}"
        )?;
        match &peer.unreachable {
            _ if peer.paused => {
                writeln!(out, "       the numbers are those of when it was paused")?;
            }
            Some(why) => {
                writeln!(out, "       {why}")?;
                writeln!(out, "       the numbers are those of when it answered last")?;
            }
            None => {}
        }
        if let Some(alarm) = &peer.alarm {
            writeln!(out, "       ALARM: {alarm}")?;
        }
        if let Some(oldest) = oldest(peer) {
            writeln!(out, "       {oldest}")?;
        }
        if let Some(lacks) = lacks(peer) {
            writeln!(out, "       {lacks}")?;
        }
    }
    Ok(())
}

/// Names the oldest change that is behind, if it cannot be had or taken, or nothing is.
fn oldest(peer: &PeerStatus) -> Option<String> {
    let oldest = peer.oldest.as_ref().filter(|it| peer.stuck || it.why.is_some())?;
    let why = oldest.why.as_ref().map_or_else(String::new, |why| format!(": {why}"));
    Some(format!("its oldest change that is not here is of {}/{}{why}", oldest.bucket, oldest.key))
}

/// Says what the region lacks of this one, if it has for long.
fn lacks(peer: &PeerStatus) -> Option<String> {
    let PeerStatus { asked_seconds: asked, lacks_seconds: lacks, lacks_groups: groups, .. } = peer;
    if *asked > LACKS_SECONDS_MAX {
        return Some(format!("it has not asked for changes of this region for {asked:.0} s"));
    }
    let plural = if *groups == 1 { "" } else { "s" };
    (*lacks > LACKS_SECONDS_MAX).then(|| {
        format!(
            "it lacks changes of this region, for {lacks:.0} s, in {groups} placement group{plural}"
        )
    })
}

fn state_of(peer: &PeerStatus) -> &'static str {
    match peer {
        _ if peer.paused => "paused",
        _ if peer.unreachable.is_some() => "UNREACHABLE",
        _ if peer.stuck => "STUCK",
        _ if peer.comparing => "comparing",
        _ if peer.operations_behind > 0 => "pulling",
        _ => "level",
    }
}

fn duration(seconds: Option<f64>) -> String {
    seconds.map_or_else(|| "-".to_owned(), |seconds| format!("{seconds:.1} s"))
}

#[cfg(test)]
mod tests {
    use larder_link::OldestChange;
    use larder_types::RegionId;

    use super::*;

    fn peer(number: u16, name: &str) -> PeerStatus {
        PeerStatus {
            number: RegionId(number),
            name: name.parse().unwrap(),
            paused: false,
            unreachable: None,
            comparing: false,
            operations_behind: 0,
            bytes_behind: 0,
            seconds_behind: None,
            bytes_per_s: 0.0,
            seconds_left: None,
            alarm: None,
            oldest: None,
            stuck: false,
            lacks_seconds: 0.0,
            lacks_groups: 0,
            asked_seconds: 0.1,
        }
    }

    fn status(peers: Vec<PeerStatus>) -> RegionStatus {
        RegionStatus::now(RegionId(1), "eu".parse().unwrap(), peers)
    }

    #[test]
    fn each_region_has_its_line_and_what_is_wrong_stands_below_it() {
        let pulling = PeerStatus {
            operations_behind: 12,
            bytes_behind: 3456,
            seconds_behind: Some(1.5),
            bytes_per_s: 1000.0,
            seconds_left: Some(3.456),
            alarm: Some("a clock is ahead".into()),
            oldest: Some(OldestChange {
                bucket: "photos".into(),
                key: "cat.jpg".into(),
                why: Some("it cannot be taken here: no space is left".into()),
            }),
            ..peer(2, "us")
        };
        let away = PeerStatus { unreachable: Some("no answer".into()), ..peer(3, "asia") };
        let shown = text(&status(vec![pulling, away]), false);
        let lines: Vec<Vec<&str>> =
            shown.lines().map(|it| it.split_whitespace().collect()).collect();
        assert_eq!(lines[0], ["region", "1", "(eu)", "heard", "0", "s", "ago"]);
        let us = ["2", "us", "pulling", "12", "3456", "1.5", "s", "1000", "3.5", "s"];
        assert_eq!(lines[2], us);
        let columns: Vec<_> = shown.lines().filter_map(|line| line.find("pulling")).collect();
        assert_eq!(columns, [24], "names are as wide as their column");
        assert_eq!(lines[3], ["ALARM:", "a", "clock", "is", "ahead"]);
        let oldest = "       its oldest change that is not here is of photos/cat.jpg: it cannot be taken here: no space is left";
        assert_eq!(shown.lines().nth(4), Some(oldest));
        assert_eq!(lines[5][..3], ["3", "asia", "UNREACHABLE"]);
        assert_eq!(lines[6], ["no", "answer"]);
        assert_eq!(lines[7][..4], ["the", "numbers", "are", "those"]);
    }

    #[test]
    fn a_region_that_lacks_changes_for_long_is_named() {
        let below =
            |peer: PeerStatus| text(&status(vec![peer]), false).lines().nth(3).map(str::to_owned);
        let us = || peer(2, "us");
        assert_eq!(below(PeerStatus { lacks_seconds: 4.0, lacks_groups: 3, ..us() }), None);
        let lacks = below(PeerStatus { lacks_seconds: 61.4, lacks_groups: 3, ..us() });
        let wanted = "       it lacks changes of this region, for 61 s, in 3 placement groups";
        assert_eq!(lacks.as_deref(), Some(wanted));
        let silent = below(PeerStatus { asked_seconds: 7.0, lacks_seconds: 9.0, ..us() });
        let wanted = "       it has not asked for changes of this region for 7 s";
        assert_eq!(silent.as_deref(), Some(wanted));
    }

    #[test]
    fn all_is_well_if_every_region_that_is_pulled_from_is_level_or_comes_closer() {
        let away = PeerStatus { unreachable: Some("no answer".into()), ..peer(2, "us") };
        let stuck = PeerStatus { stuck: true, ..peer(2, "us") };
        assert!(is_well(&status(vec![])));
        assert!(is_well(&status(vec![PeerStatus { operations_behind: 3, ..peer(2, "us") }])));
        assert!(!is_well(&status(vec![peer(3, "x"), away.clone()])));
        assert!(!is_well(&status(vec![stuck])));
        assert!(is_well(&status(vec![PeerStatus { paused: true, ..away }])));
        let old = RegionStatus { written_ms: 5, ..status(vec![]) };
        assert!(!is_well(&old));
        assert!(text(&old, false).contains("OLD: last heard"));
        assert!(text(&old, true).contains("was removed from its regions"));
        assert_eq!(document(Some(&old), false)["well"], false);
        assert_eq!(document(None, false)["heard"], false);
    }
}
