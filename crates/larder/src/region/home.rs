//! `larder region home`: shows and moves the home of a bucket, which decides about conditions for all regions.
//!
//! The command writes an order into the gateway's directory. The running server carries it out, and shows in its status what comes
//! of that.

use std::path::Path;
use std::time::Duration;

use larder_link::{HomeOrder, HomeStatus, Members, Order, RegionStatus};
use larder_types::{BucketName, HomeScope, HomeState};
use tokio::time::{Instant, sleep};

use super::args::{HomeArgs, Place};
use super::{RegionError, live_members};
use crate::exit;

/// How long the command waits until an order is carried out.
const PATIENCE: Duration = Duration::from_secs(15);
/// Pause between two looks at the status, which the server writes every second.
const LOOK: Duration = Duration::from_millis(200);

pub(super) fn home(args: &HomeArgs) -> Result<u8, RegionError> {
    let (dir, name) = (&args.dir, args.bucket.as_str());
    let bucket = BucketName::new(name).map_err(|_| RegionError::NoBucket(name.to_owned()))?;
    let members = live_members(dir)?;
    let wanted = match args.place {
        None => {
            let status = RegionStatus::read(dir)?.filter(RegionStatus::is_heard);
            let Some(status) = status else { return Err(RegionError::Silent(dir.clone())) };
            println!("{}", told(&members, name, of(&status, name)));
            return Ok(exit::OK);
        }
        Some(Place::Here) if args.all_writes => Order::Here(HomeScope::Writes),
        Some(Place::Here) => Order::Here(HomeScope::Conditions),
        Some(Place::None) => Order::Nowhere,
    };
    larder_link::order(dir, HomeOrder { bucket, order: wanted })?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(RegionError::System)?.block_on(outcome(dir, &members, name, wanted))
}

/// Waits until the order is carried out.
async fn outcome(
    dir: &Path,
    members: &Members,
    bucket: &str,
    wanted: Order,
) -> Result<u8, RegionError> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let status = RegionStatus::read(dir)?.filter(RegionStatus::is_heard);
        let known = status.as_ref().and_then(|status| of(status, bucket));
        let is_forgotten = !larder_link::orders(dir)?.iter().any(|it| it.bucket.as_str() == bucket);
        if is_forgotten && status.is_some() && known.is_none_or(|known| is_so(known, wanted)) {
            println!("{}", told(members, bucket, known));
            return Ok(exit::OK);
        }
        // It cannot be carried out here.
        if is_forgotten && known.is_some_and(|known| known.order.is_none() && known.why.is_some()) {
            println!("{}", told(members, bucket, known));
            return Ok(exit::FAULTS);
        }
        if Instant::now() >= deadline {
            println!("{}", told(members, bucket, known));
            let waits = match &status {
                Some(_) => "the server goes on trying; `larder region home` shows what comes of it",
                None => "its server does not run: it is carried out once it does",
            };
            println!("ordered, and not so yet: {waits}");
            return Ok(exit::FAULTS);
        }
        sleep(LOOK).await;
    }
}

fn of<'a>(status: &'a RegionStatus, bucket: &str) -> Option<&'a HomeStatus> {
    status.homes.iter().find(|home| home.bucket == bucket)
}

fn is_so(known: &HomeStatus, wanted: Order) -> bool {
    // The status may be of a moment before.
    if known.order.is_some() {
        return false;
    }
    match (wanted, known.home) {
        (Order::Here(scope), Some(home)) => home.state == HomeState::Here && home.scope == scope,
        (Order::Here(_), None) => false,
        (Order::Nowhere, home) => home.is_none_or(|home| home.state == HomeState::Nowhere),
    }
}

/// What is known of a bucket's home, as sentences.
pub(super) fn told(members: &Members, bucket: &str, known: Option<&HomeStatus>) -> String {
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
        None => format!("{bucket} has no home: conditions hold within a region"),
        Some(home) => {
            let region = name(home.term.of);
            match home.state {
                HomeState::Nowhere => {
                    format!("{bucket} has no home any more: conditions hold within a region")
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
    if let Some(why) = known.and_then(|known| known.why.as_ref()) {
        lines.push_str("\n  not yet: ");
        lines.push_str(why);
    }
    lines
}

#[cfg(test)]
mod tests {
    use larder_types::{Home, HomeTerm, RegionId};

    use super::*;

    fn status(state: HomeState, scope: HomeScope) -> HomeStatus {
        let home = Some(Home { term: HomeTerm { count: 3, of: RegionId(1) }, scope, state });
        HomeStatus { bucket: "photos".to_owned(), home, order: None, why: None }
    }

    #[test]
    fn an_order_is_carried_out_once_the_record_says_so() {
        let here = Order::Here(HomeScope::Conditions);
        let state = |state| status(state, HomeScope::Conditions);
        assert!(is_so(&state(HomeState::Here), here));
        assert!(!is_so(&status(HomeState::Here, HomeScope::Writes), here));
        assert!(!is_so(&state(HomeState::Claimed(true)), here));
        assert!(!is_so(&state(HomeState::Elsewhere), here));
        assert!(is_so(&state(HomeState::Nowhere), Order::Nowhere));
        assert!(!is_so(&state(HomeState::Here), Order::Nowhere));
        assert!(is_so(&HomeStatus { home: None, ..state(HomeState::Here) }, Order::Nowhere));
    }

    #[test]
    fn the_home_is_told_with_the_region_that_has_it_and_what_it_waits_for() {
        let dir = tempfile::tempdir().unwrap();
        let (name, address) = ("eu".parse().unwrap(), "127.0.0.1:7001".parse().unwrap());
        let members =
            larder_link::found(dir.path(), name, "127.0.0.1:7001".to_owned(), address).unwrap();
        let here = status(HomeState::Here, HomeScope::Writes);
        let text = told(&members, "photos", Some(&here));
        assert_eq!(text, "this region is the home of photos: all changes go there");
        let order = Some(Order::Here(HomeScope::Conditions));
        let why = Some("region us does not answer".to_owned());
        let waits = HomeStatus { order, why, ..status(HomeState::Nowhere, HomeScope::Conditions) };
        let text = told(&members, "photos", Some(&waits));
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[1], "  ordered: this region is to be the home");
        assert_eq!(lines[2], "  not yet: region us does not answer");
        assert!(told(&members, "photos", None).starts_with("photos has no home: "));
    }
}
