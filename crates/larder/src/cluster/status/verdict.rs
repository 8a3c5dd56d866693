//! The state of a cluster in one line: what is wrong, and what to do.

use super::background;
use super::space::Space;
use super::{Server, Status};
use crate::quantity::bytes;

/// From so many hundredths on a disk or machine is nearly full.
const FULL_PERCENT: u64 = 90;
/// Names in the line.
const NAMES_MAX: usize = 3;

/// The worst that there is to say.
pub(super) fn of(status: &Status) -> String {
    let Status { is_latest, servers, pgs, volumes, background, space, .. } = status;
    let down = named(servers.iter().filter(|it| it.state == "down"));
    if !is_latest {
        return "NOT WELL: no manager leads, or none is reached. Start machines with managers: most of them are needed".to_owned();
    }
    if pgs.inactive > 0 {
        let why = match down {
            Some(down) => format!(": {down} down. Start what is down"),
            None => ". They are given primaries within seconds: if not, see the managers' logs"
                .to_owned(),
        };
        let (inactive, total) = (pgs.inactive, pgs.total);
        return format!("NOT WELL: {inactive} of {total} placement groups are not served{why}");
    }
    if let Some(down) = down {
        return format!(
            "NOT WELL: {down} down. Start what is down, or `larder remove` what will not come back"
        );
    }
    if background::has_doubts(background) {
        return "NOT WELL: puts are in doubt, and their keys answer 503. The list below says what they wait for".to_owned();
    }
    if background::has_differing(background) {
        return "NOT WELL: members of a placement group differ. See their log".to_owned();
    }
    if volumes.degraded > 0 {
        return format!(
            "NOT WELL YET: {} of {} copies of volumes are there, the others are being made. Wait, and look for `rebuild` below",
            volumes.replicas_current, volumes.replicas_wanted
        );
    }
    if pgs.clean < pgs.total {
        return format!(
            "NOT WELL YET: {} of {} placement groups have all their members, the others are getting theirs. Wait",
            pgs.clean, pgs.total
        );
    }
    let is_full = |it: &&Server| it.space.bytes > 0 && it.space.percent() >= FULL_PERCENT;
    let there = || servers.iter().filter(|it| it.state != "removed");
    if space.all.bytes > 0 && space.all.percent() >= FULL_PERCENT {
        return format!(
            "NEARLY FULL: {}. Add a disk or a machine, or delete objects",
            percent(&space.all)
        );
    }
    if let Some(full) = there().filter(is_full).max_by_key(|it| it.space.percent()) {
        return format!(
            "well, but {} is nearly full: {}. Volumes move to emptier disks by themselves",
            full.name,
            percent(&full.space)
        );
    }
    let up = there().count();
    format!("well: all {up} servers are up, all copies are there, {}", percent(&space.all))
}

fn percent(space: &Space) -> String {
    format!("{} % of {} taken", space.percent(), bytes(space.bytes))
}

/// Names of servers, if there are any, with the verb that follows.
fn named<'a>(servers: impl Iterator<Item = &'a Server>) -> Option<String> {
    let names: Vec<&str> = servers.map(|server| server.name.as_str()).collect();
    let more = names.len().saturating_sub(NAMES_MAX);
    let shown = names[..names.len() - more].join(", ");
    match (names.len(), more) {
        (0, _) => None,
        (1, _) => Some(format!("{shown} is")),
        (_, 0) => Some(format!("{shown} are")),
        (_, more) => Some(format!("{shown} and {more} more are")),
    }
}
