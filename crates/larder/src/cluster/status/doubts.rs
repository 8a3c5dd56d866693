//! The part of `larder status` that names puts in doubt, and the servers and disks whose return would settle them.

use std::io::Write;

use larder_protocol::manager::state::Topology;
use larder_roles::progress::{DoubtsStatus, PutInDoubt};
use larder_types::ServerId;
use serde::Serialize;

/// Puts that are shown of a server; the others are counted.
const ROWS_SHOWN_MAX: usize = 10;

/// Puts in doubt of the groups that a server leads.
#[derive(Debug, Serialize)]
pub(super) struct Doubts {
    puts: u64,
    oldest: Vec<Doubt>,
}

#[derive(Debug, Serialize)]
struct Doubt {
    /// `None` if the bucket is gone.
    bucket: Option<String>,
    key: String,
    pg: u32,
    op: u64,
    volume: u32,
    seconds: u64,
    /// Replicas that may have its data and are out of reach.
    waits_for: Vec<Away>,
}

#[derive(Debug, Serialize)]
struct Away {
    server: u32,
    name: String,
    disk: u32,
}

impl Doubts {
    /// With the names that the map knows.
    pub(super) fn of(now: DoubtsStatus, map: &Topology) -> Self {
        let named = |put: PutInDoubt| {
            let mut buckets = map.buckets.iter();
            let bucket = buckets.find(|(_, record)| record.id.0 == put.bucket);
            let waits_for = put.away.iter().map(|away| {
                let record = map.servers.get(&ServerId(away.server));
                let name = record.map_or_else(String::new, |record| record.name.clone());
                Away { server: away.server, name, disk: away.disk }
            });
            Doubt {
                bucket: bucket.map(|(name, _)| name.to_string()),
                waits_for: waits_for.collect(),
                key: put.key,
                pg: put.pg,
                op: put.op,
                volume: put.volume,
                seconds: put.open_ms / 1000,
            }
        };
        Self { puts: now.puts, oldest: now.oldest.into_iter().map(named).collect() }
    }

    /// Seconds for which the oldest is open.
    pub(super) fn oldest_s(&self) -> Option<u64> {
        self.oldest.iter().map(|it| it.seconds).max()
    }

    pub(super) fn are_there(&self) -> bool {
        self.puts > 0
    }
}

pub(super) fn write_text(out: &mut impl Write, doubts: &Doubts) -> std::io::Result<()> {
    for put in doubts.oldest.iter().take(ROWS_SHOWN_MAX) {
        let Doubt { bucket, key, pg, volume, seconds, .. } = put;
        let bucket = bucket.as_deref().unwrap_or("(deleted)");
        let remedy = remedy(&put.waits_for);
        writeln!(
            out,
            "    IN DOUBT for {seconds} s: bucket {bucket}, key {key:?} (pg {pg}, volume {volume}): {remedy}",
        )?;
    }
    let shown = doubts.oldest.len().min(ROWS_SHOWN_MAX) as u64;
    if doubts.puts > shown {
        writeln!(out, "    IN DOUBT: {} more puts", doubts.puts - shown)?;
    }
    Ok(())
}

fn remedy(waits_for: &[Away]) -> String {
    if waits_for.is_empty() {
        return "its data servers are within reach and cannot tell: see their logs".to_owned();
    }
    let named = |it: &Away| format!("server {} ({}) with disk {}", it.server, it.name, it.disk);
    let named: Vec<String> = waits_for.iter().map(named).collect();
    format!("bring back {}, or remove what is lost for good", named.join(" and "))
}

#[cfg(test)]
mod tests {
    use larder_roles::progress::AwayReplica;

    use super::*;

    #[test]
    fn a_put_in_doubt_is_named_with_what_ends_it() {
        let put = |key: &str, away: &[AwayReplica]| PutInDoubt {
            pg: 3,
            op: 77,
            bucket: 2,
            key: key.to_owned(),
            volume: 9,
            open_ms: 61_500,
            away: away.to_vec(),
        };
        let oldest = vec![put("a/b", &[AwayReplica { server: 4, disk: 6 }]), put("c", &[])];
        let doubts = Doubts::of(DoubtsStatus { puts: 12, oldest }, &Topology::default());
        let mut out = Vec::new();
        write_text(&mut out, &doubts).unwrap();
        let text = String::from_utf8(out).unwrap();
        for line in [
            "IN DOUBT for 61 s: bucket (deleted), key \"a/b\" (pg 3, volume 9): bring back server 4 () with disk 6, or remove",
            "key \"c\" (pg 3, volume 9): its data servers are within reach and cannot tell",
            "IN DOUBT: 10 more puts",
        ] {
            assert!(text.contains(line), "{line:?} is not in\n{text}");
        }
    }
}
