//! The state of a cluster in one line: what is wrong, since when, and what to do.

use larder_roles::observed::{HealthIssue, Place};

use super::background;
use super::growth::foretold;
use super::issues::{since, since_first};
use super::space::{FULL_PERCENT, Space};
use super::{Server, Status};
use crate::quantity::bytes;

/// Names in the line.
const NAMES_MAX: usize = 3;

/// The worst that there is to say.
pub(super) fn of(status: &Status) -> String {
    let Status { is_latest, servers, pgs, volumes, background, space, issues, .. } = status;
    let is_down = |it: &&Server| it.state == "down";
    let down = named(servers.iter().filter(is_down));
    let are_many = servers.iter().filter(is_down).count() > 1;
    let for_time = |of: &dyn Fn(HealthIssue) -> bool| since(issues.longest(of));
    if !is_latest {
        let time = for_time(&|it| it == HealthIssue::NoLeader);
        return format!(
            "NOT WELL: no manager leads, or none is reached{time}. Start machines with managers: most of them are needed"
        );
    }
    if pgs.inactive > 0 {
        let time = for_time(&|it| it == HealthIssue::PgsInactive);
        let why = match down {
            Some(down) => format!(": {down} down. Start what is down"),
            None => ". They are given primaries within seconds: if not, see the managers' logs"
                .to_owned(),
        };
        let (inactive, total) = (pgs.inactive, pgs.total);
        return format!(
            "NOT WELL: {inactive} of {total} placement groups are not served{time}{why}"
        );
    }
    if let Some(down) = down {
        let time = issues.longest(|it| matches!(it, HealthIssue::ServerDown(..)));
        let time = if are_many { since_first(time) } else { since(time) };
        return format!(
            "NOT WELL: {down} down{time}. Start what is down, or `larder remove` what will not come back"
        );
    }
    if background::has_doubts(background) {
        let time = since(background::doubts_last(background));
        return format!(
            "NOT WELL: puts are in doubt{time}, and their keys answer 503. The list below says what they wait for"
        );
    }
    if background::has_differing(background) {
        return "NOT WELL: members of a placement group differ. See their log".to_owned();
    }
    if let Some(full) = joined(space.full.iter().map(String::as_str)) {
        return format!(
            "NOT WELL: new volumes find no room, and puts may get 507: the file systems of {full} are full. Make them larger, add a machine, or delete many objects"
        );
    }
    if volumes.degraded > 0 {
        let time = for_time(&|it| it == HealthIssue::CopiesMissing);
        let rest = match volumes.replicas_rebuilding {
            0 => "none of the others is being made: a disk with room for them is awaited",
            _ => "the others are being made. Wait, and look for `rebuild` below",
        };
        return format!(
            "NOT WELL YET: {} of {} copies of volumes are there{time}, {rest}",
            volumes.replicas_current, volumes.replicas_wanted
        );
    }
    if pgs.clean < pgs.total {
        let time = for_time(&|it| it == HealthIssue::PgsIncomplete);
        return format!(
            "NOT WELL YET: {} of {} placement groups have all their members{time}, the others are getting theirs. Wait",
            pgs.clean, pgs.total
        );
    }
    fullness(status).unwrap_or_else(|| {
        let up = servers.iter().filter(|it| it.state == "up").count();
        format!(
            "well: all {up} servers are up, all copies are there, {}{}",
            percent(&space.all),
            foretold(status.growth.as_ref())
        )
    })
}

/// The cluster, or the fullest server, if it is nearly full.
fn fullness(status: &Status) -> Option<String> {
    let Status { servers, space, issues, .. } = status;
    let for_time = |place| since(issues.longest(|it| it == HealthIssue::NearlyFull(place)));
    if space.all.bytes > 0 && space.all.percent() >= FULL_PERCENT {
        return Some(format!(
            "NEARLY FULL: {}{}{}. Add a disk or a machine, or delete objects",
            percent(&space.all),
            for_time(Place::Cluster),
            foretold(status.growth.as_ref())
        ));
    }
    let is_full = |it: &&Server| it.space.bytes > 0 && it.space.percent() >= FULL_PERCENT;
    let there = servers.iter().filter(|it| it.state != "removed");
    let full = there.filter(is_full).max_by_key(|it| it.space.percent())?;
    Some(format!(
        "well, but {} is nearly full: {}{}{}. Volumes move to emptier disks by themselves",
        full.name,
        percent(&full.space),
        for_time(Place::Server(full.id)),
        foretold(full.growth.as_ref())
    ))
}

fn percent(space: &Space) -> String {
    format!("{} % of {} taken", space.percent(), bytes(space.bytes))
}

/// Names of servers, if there are any, with the verb that follows.
fn named<'a>(servers: impl Iterator<Item = &'a Server> + Clone) -> Option<String> {
    let verb = if servers.clone().count() == 1 { "is" } else { "are" };
    joined(servers.map(|server| server.name.as_str())).map(|names| format!("{names} {verb}"))
}

/// The first of several names, and how many more there are.
fn joined<'a>(names: impl Iterator<Item = &'a str>) -> Option<String> {
    let names: Vec<&str> = names.collect();
    let more = names.len().saturating_sub(NAMES_MAX);
    let shown = names[..names.len() - more].join(", ");
    match (names.len(), more) {
        (0, _) => None,
        (_, 0) => Some(shown),
        (_, more) => Some(format!("{shown} and {more} more")),
    }
}
