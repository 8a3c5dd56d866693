//! `larder region home`: shows and moves the home of a bucket, which decides about conditions for all regions.
//!
//! The command writes an order into the gateway's directory. The running server carries it out, and shows in its status what comes
//! of that.

use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use larder_link::{HomeOrder, HomeStatus, Members, Order, RegionStatus};
use larder_types::{BucketName, HomeScope, HomeState, RegionId};
use tokio::time::{Instant, sleep};

use super::{RegionError, live_members};
use crate::args::region::{HomeArgs, Place};
use crate::exit;

/// Longest wait of the command for its order to be carried out.
const TIMEOUT: Duration = Duration::from_secs(15);
/// Pause between two looks at the status, which the server writes every second.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

pub(super) fn home(args: &HomeArgs) -> Result<u8, RegionError> {
    let dir = &args.dir;
    let members = live_members(dir)?;
    let Some(name) = args.bucket.as_deref() else {
        let status = region_status(dir)?;
        let homes = status.homes.iter();
        homes.for_each(|known| println!("{}", describe(&members, &known.bucket, Some(known))));
        return Ok(exit::OK);
    };
    let bucket = BucketName::new(name).map_err(|_| RegionError::NoBucket(name.to_owned()))?;
    let wanted = match args.place {
        None => {
            println!("{}", describe(&members, name, of(&region_status(dir)?, name)));
            return Ok(exit::OK);
        }
        Some(Place::Here) if args.all_writes => Order::Here(HomeScope::Writes),
        Some(Place::Here) => Order::Here(HomeScope::Conditions),
        Some(Place::None) => Order::Nowhere,
    };
    larder_link::submit_order(dir, HomeOrder { bucket, order: wanted })?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(RegionError::System)?.block_on(outcome(dir, &members, name, wanted))
}

fn region_status(dir: &Path) -> Result<RegionStatus, RegionError> {
    let status = RegionStatus::read(dir)?.filter(RegionStatus::is_fresh);
    status.ok_or_else(|| RegionError::Silent(dir.to_owned()))
}

/// Waits until the order is carried out, or found to be one that cannot be.
async fn outcome(
    dir: &Path,
    members: &Members,
    bucket: &str,
    wanted: Order,
) -> Result<u8, RegionError> {
    let (deadline, mut taken_ms) = (Instant::now() + TIMEOUT, None);
    loop {
        let status = RegionStatus::read(dir)?.filter(RegionStatus::is_fresh);
        if !larder_link::asked::<HomeOrder>(dir)?.iter().any(|it| it.bucket.as_str() == bucket) {
            taken_ms =
                taken_ms.or(Some(UNIX_EPOCH.elapsed().unwrap_or_default().as_millis() as u64));
        }
        // An earlier one does not know the result yet.
        let later = |status: &&RegionStatus| taken_ms.is_some_and(|at| status.written_ms > at);
        if let Some(status) = status.as_ref().filter(later) {
            let known = of(status, bucket);
            println!("{}", describe(members, bucket, known));
            return Ok(if is_so(known, wanted) { exit::OK } else { exit::FAULTS });
        }
        if Instant::now() >= deadline {
            let waits = match &status {
                Some(status) => {
                    println!("{}", describe(members, bucket, of(status, bucket)));
                    "the server goes on trying; `larder region home` shows what comes of it"
                }
                None => "its server does not run: it is carried out once it does",
            };
            println!("ordered, and not so yet: {waits}. Order the opposite to take it back");
            return Ok(exit::FAULTS);
        }
        sleep(POLL_INTERVAL).await;
    }
}

fn of<'a>(status: &'a RegionStatus, bucket: &str) -> Option<&'a HomeStatus> {
    status.homes.iter().find(|home| home.bucket == bucket)
}

fn is_so(known: Option<&HomeStatus>, wanted: Order) -> bool {
    // A reason that is left is that of an order which could not be carried out.
    if known.is_some_and(|known| known.order.is_some() || known.why.is_some()) {
        return false;
    }
    match (wanted, known.and_then(|known| known.home)) {
        (Order::Here(scope), Some(home)) => home.state == HomeState::Here && home.scope == scope,
        (Order::Here(_), None) => false,
        (Order::Nowhere, home) => home.is_none_or(|home| home.state == HomeState::Nowhere),
    }
}

/// Describes a bucket's home in sentences.
pub(super) fn describe(members: &Members, bucket: &str, known: Option<&HomeStatus>) -> String {
    let name = |number| match members.peer(number) {
        _ if members.own.number == number => "this region".to_owned(),
        Some(peer) => format!("region {number} ({})", peer.name),
        None => format!("region {number}"),
    };
    let home = known.and_then(|known| known.home);
    let of_it = |scope| match scope {
        HomeScope::Conditions => "changes with conditions go there",
        HomeScope::Writes => "all changes go there",
    };
    let mut lines = match home {
        None => format!("{bucket} has no home, or is not there: conditions hold within a region"),
        Some(home) => {
            let region = name(home.term.of);
            match home.state {
                HomeState::Nowhere => {
                    format!("{bucket} has no home any more: conditions hold within a region")
                }
                HomeState::Elsewhere | HomeState::Given if is_removed(members, home.term.of) => {
                    format!(
                        "{region} was the home of {bucket}, and was removed: order `here` at a region that is left"
                    )
                }
                HomeState::Here | HomeState::Elsewhere | HomeState::Given => {
                    format!("{region} is the home of {bucket}: {}", of_it(home.scope))
                }
                HomeState::Coming(_) | HomeState::Claimed(_) => format!(
                    "{region} is about to become the home of {bucket}: changes that are to go there get 503 until then"
                ),
            }
        }
    };
    match known.and_then(|known| known.order) {
        Some(Order::Here(_)) => lines.push_str("\n  ordered: this region is to be the home"),
        Some(Order::Nowhere) => lines.push_str("\n  ordered: the home is to be given up"),
        None => {}
    }
    if let Some((order, why)) = known.and_then(|known| Some((known.order, known.why.as_ref()?))) {
        lines.push_str(if order.is_some() { "\n  not yet: " } else { "\n  not done: " });
        lines.push_str(why);
    }
    lines
}

fn is_removed(members: &Members, number: RegionId) -> bool {
    members.own.number != number && members.live().all(|peer| peer.number != number)
}

#[cfg(test)]
mod tests {
    use larder_types::{Home, HomeTerm};

    use super::*;

    fn status(state: HomeState, scope: HomeScope) -> HomeStatus {
        let home = Some(Home { term: HomeTerm { count: 3, of: RegionId(1) }, scope, state });
        HomeStatus { bucket: "photos".to_owned(), home, order: None, why: None }
    }

    #[test]
    fn an_order_is_executed_once_it_is_recorded() {
        let here = Order::Here(HomeScope::Conditions);
        let is = |known: HomeStatus, wanted| is_so(Some(&known), wanted);
        let state = |state| status(state, HomeScope::Conditions);
        assert!(is(state(HomeState::Here), here));
        assert!(!is(status(HomeState::Here, HomeScope::Writes), here));
        assert!(!is(state(HomeState::Claimed(true)), here));
        assert!(!is(state(HomeState::Elsewhere), here));
        assert!(is(state(HomeState::Nowhere), Order::Nowhere));
        assert!(!is(state(HomeState::Here), Order::Nowhere));
        assert!(is(HomeStatus { home: None, ..state(HomeState::Here) }, Order::Nowhere));
        assert!(is_so(None, Order::Nowhere) && !is_so(None, here));
        let why = Some("there is no such bucket here".to_owned());
        let refused = HomeStatus { home: None, why, ..state(HomeState::Here) };
        assert!(!is(refused, Order::Nowhere), "it could not be carried out");
    }

    #[test]
    fn the_home_is_told_with_the_region_that_has_it_and_what_it_waits_for() {
        let dir = tempfile::tempdir().unwrap();
        let (name, address) = ("eu".parse().unwrap(), "127.0.0.1:7001".parse().unwrap());
        let members =
            larder_link::found(dir.path(), name, "127.0.0.1:7001".to_owned(), address).unwrap();
        let here = status(HomeState::Here, HomeScope::Writes);
        let text = describe(&members, "photos", Some(&here));
        assert_eq!(text, "this region is the home of photos: all changes go there");
        let order = Some(Order::Here(HomeScope::Conditions));
        let why = Some("region us does not answer".to_owned());
        let waits = HomeStatus { order, why, ..status(HomeState::Nowhere, HomeScope::Conditions) };
        let text = describe(&members, "photos", Some(&waits));
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[1], "  ordered: this region is to be the home");
        assert_eq!(lines[2], "  not yet: region us does not answer");
        assert!(
            describe(&members, "photos", None).starts_with("photos has no home, or is not there: ")
        );
        let term = HomeTerm { count: 3, of: RegionId(7) };
        let gone = Home { term, ..status(HomeState::Given, HomeScope::Writes).home.unwrap() };
        let gone = HomeStatus { home: Some(gone), ..here };
        assert!(
            describe(&members, "photos", Some(&gone))
                .starts_with("region 7 was the home of photos, and was removed")
        );
    }
}
