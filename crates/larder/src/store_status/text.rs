//! The state of a single node for people.

use std::io::Write;
use std::time::{Duration, UNIX_EPOCH};

use larder_roles::observed::Growth;

use super::document::Document;
use crate::cluster::status::background;
use crate::cluster::status::space;
use crate::quantity::{bytes, span};
use crate::wall_clock::utc;

pub(super) fn write_text(
    out: &mut impl Write,
    document: &Document,
    now_ms: u64,
) -> std::io::Result<()> {
    let Document { verdict, since_ms, release, began_ms, space, growth, load, .. } = document;
    let ago = |ms: u64| span(now_ms.saturating_sub(ms) / 1000);
    writeln!(out, "{verdict}\n")?;
    let since = utc(UNIX_EPOCH + Duration::from_millis(*since_ms));
    writeln!(out, "since {since}, {} ago, as far as this process has seen", ago(*since_ms))?;
    writeln!(out, "up for {}", ago(*began_ms))?;
    writeln!(out, "release {release}")?;
    if !document.is_ready {
        writeln!(out, "NOT READY: load balancers are told to send nothing (/readyz)")?;
    }
    if let Some(since_ms) = document.index_damaged_since_ms {
        let since = utc(UNIX_EPOCH + Duration::from_millis(since_ms));
        writeln!(out, "READ-ONLY: the index is damaged since {since}, {} ago", ago(since_ms))?;
    }
    writeln!(
        out,
        "load: {:.1} requests a second, of which {:.1} failed",
        load.requests_per_s, load.failed_per_s
    )?;
    writeln!(
        out,
        "space: {}, {} free, {} waiting for reuse",
        space.text(),
        bytes(space.free),
        bytes(space.waiting)
    )?;
    if space.unknown > 0 {
        let unread = bytes(space.unknown);
        writeln!(out, "  of {unread} it is not known yet: the index is read behind the start")?;
    }
    if let Some(Growth { bytes: grown, within_s, .. }) = growth {
        writeln!(out, "  {} less free than {} ago", bytes(*grown), span(*within_s))?;
    }
    writeln!(out, "log {}, index {}", bytes(document.log_bytes), bytes(document.index_bytes))?;
    if document.puts_in_doubt > 0 {
        let (count, for_s) = (document.puts_in_doubt, document.put_in_doubt_oldest_ms / 1000);
        writeln!(out, "puts in doubt: {count}, the oldest for {for_s} s")?;
    }
    let (objects, size) = (document.objects, document.object_bytes);
    space::buckets(out, &document.buckets, (objects, size), document.pgs_uncounted)?;
    if let Some(number) = document.region {
        writeln!(out, "region: {number} of several; `larder region status` shows more")?;
    }
    writeln!(out, "\nbackground work")?;
    background::work(out, &document.progress)
}
