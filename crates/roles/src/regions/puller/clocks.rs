//! Asks other regions for their number of groups and their clocks, and holds this store's clock back by these.

use larder_protocol::EventTime;
use larder_protocol::clock_offsets::{ClockDifference, ClockOffsets, ClockReading};
use larder_types::RegionId;
use larder_types::limits::PG_COUNT_MAX;

use super::super::inbox::Message;
use super::Puller;
use crate::clock::now;
use crate::limits::REGION_CLOCKS_MS;
use crate::proxy::RegionAccess;

/// The other regions' clocks.
#[derive(Debug, Default)]
pub(super) struct Clocks {
    offsets: ClockOffsets<RegionId>,
    /// Time of the first look.
    began_ms: Option<u64>,
    /// This machine's clock is ahead of a majority.
    is_ahead: bool,
}

impl<R: RegionAccess> Puller<R> {
    /// Asks the regions that are to be asked now.
    pub(super) fn greet(&mut self) {
        let now = now();
        let members = self.shared.region_endpoint.members().borrow().clone();
        let peers: Vec<RegionId> =
            members.live().filter(|peer| !peer.paused).map(|peer| peer.number).collect();
        self.clocks.offsets.set_others(peers.iter().copied());
        for region in peers {
            if self.clocks.offsets.is_due(now, region) {
                self.clocks.offsets.asked(now.steady_ms, region);
                self.say_hello(region);
            }
        }
        self.hold_back(now);
    }

    fn say_hello(&self, region: RegionId) {
        let (shared, inbox) = (self.shared.clone(), self.inbox.clone());
        // Requests to a region that answered once say whether it is reached.
        let is_first = !self.pg_counts.contains_key(&region);
        self.shared.runtime.spawn(async move {
            let sent_ms = now().steady_ms;
            let said = match shared.link_to(region) {
                Ok(link) => link.hello().await,
                Err(error) => Err(error),
            };
            let received_ms = now().steady_ms;
            let is_sound = |count: u32| count.is_power_of_two() && count <= PG_COUNT_MAX;
            let received = match said {
                Ok(hello) if is_sound(hello.pg_count) => {
                    let clock_ms = hello.now_ms;
                    Some((hello.pg_count, ClockReading { sent_ms, received_ms, clock_ms }))
                }
                Ok(hello) => {
                    tracing::error!(%region, pg_count = hello.pg_count, "a region reports more groups than it may have");
                    shared.watch.unsound(region);
                    None
                }
                Err(error) => {
                    if is_first {
                        shared.watch.unanswered(region, &error);
                    }
                    None
                }
            };
            inbox.send(Message::Hello(region, received));
        });
    }

    pub(super) fn hear_hello(&mut self, region: RegionId, received: Option<(u32, ClockReading)>) {
        self.clocks.offsets.answered(region, received.map(|(_, reading)| reading));
        if let Some((pg_count, _)) = received
            && self.pg_counts.insert(region, pg_count) != Some(pg_count)
        {
            self.shared.watch.answered(region);
            self.pull = None;
        }
        self.hold_back(now());
    }

    /// Holds this store's clock back, and shows operators if it is ahead.
    fn hold_back(&mut self, now: EventTime) {
        let Clocks { offsets, began_ms, is_ahead } = &mut self.clocks;
        let (dates, judges) = (offsets.bound(now.steady_ms), offsets.judging_bound(now.steady_ms));
        self.shared.clock().set_bounds(dates, judges);
        let began_ms = *began_ms.get_or_insert(now.steady_ms);
        let is_late = now.steady_ms.saturating_sub(began_ms) >= REGION_CLOCKS_MS;
        if offsets.has_asked_all() || is_late {
            self.shared.clocks.send_if_modified(|known| !std::mem::replace(known, true));
        }
        let ahead_ms = offsets.ahead_ms(now);
        let was_ahead = std::mem::replace(is_ahead, ahead_ms > 0);
        let watch = &self.shared.watch;
        match (was_ahead, *is_ahead) {
            (false, true) => {
                let behind: Vec<String> =
                    offsets.differing(now).map(|(region, _)| region.to_string()).collect();
                watch.counters().count_alarm();
                tracing::error!(
                    ahead_s = ahead_ms / 1000,
                    regions = behind.join(", "),
                    "this machine's clock is ahead of those of other regions. Set the clocks, and keep them with NTP"
                );
            }
            (true, false) => {
                tracing::info!("this machine's clock is not ahead of other regions' any more")
            }
            _ => {}
        }
        watch.counters().set_clock_ahead(ahead_ms);
        watch.set_clocks(offsets.differing(now).map(|(region, differs)| {
            let what = match differs {
                ClockDifference::Ahead(ms) => {
                    format!("its clock is {} s ahead of this region's. Set the clocks", ms / 1000)
                }
                ClockDifference::Behind(ms) if ahead_ms > 0 => format!(
                    "this region's clock is {} s ahead of its and most others. Set the clocks",
                    ms / 1000
                ),
                ClockDifference::Behind(ms) => {
                    format!("its clock is {} s behind this region's. Set the clocks", ms / 1000)
                }
            };
            (region, what)
        }));
    }
}
