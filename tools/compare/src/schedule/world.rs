//! The simulation: clients, primaries, proxies and disks as events in time, around the machines of
//! `larder_protocol::scheduler`, which are the ones that ship.
//!
//! ```text
//!  client ─hop─▶ primary: Front ─▶ asker: Balance ─hop─▶ disk: Meter ─hop─▶ asker ─▶ Front ─hop─▶ client
//! ```
//!
//! A closed loop: each client asks again when it is answered. A read takes one hop to the primary, one to a disk, and two
//! back. A write goes to all copies and is answered when all have it. What the processors take is left out, and so are
//! caches, hedges, and the log of the metadata: disks are all there is.
//!
//! # Invariants
//!
//! 1. One seed gives one run: events of the same time happen in the order in which they were made.
//! 2. Each request is answered once, and at any time all clients are waiting.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use larder_protocol::scheduler::primary_queue::Effect;
use larder_protocol::scheduler::{
    Balance, Group, Kind as Does, Policy, PrimaryQueue, QueuedRequest, ReadWrite, Report,
    SIZE_CLASSES, Window,
};
use larder_types::DiskId;

use super::disk::{BYTES, Disk, Job, Kind, Trouble};
use super::layout::{COPIES, KeyDraw, Keys, Placement, group, layout};
use larder_bench::histogram::Histogram;
use larder_bench::workload::Random;

/// One way through the network, switches and kernels included: half of the 100 µs of a round trip within a data centre.
const HOP_US: u64 = 50;

/// In which order requests of a key are carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// In none: a read may pass the write before it, as in stores that are only eventually consistent.
    None,
    /// By dependencies.
    Of(ReadWrite),
}

/// Processes that choose holders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Askers {
    pub(super) primaries: usize,
    /// With some, every other read is balanced by a proxy and not by its primary.
    pub(super) proxies: usize,
}

/// A run.
#[derive(Debug, Clone)]
pub(super) struct Setup {
    pub(super) policy: Policy,
    pub(super) kind: Kind,
    pub(super) trouble: Trouble,
    /// Servers, disks and placement groups.
    pub(super) shape: (u64, u64, u64),
    pub(super) placement: Placement,
    pub(super) askers: Askers,
    pub(super) in_flight: usize,
    pub(super) objects: u64,
    pub(super) keys: Keys,
    pub(super) reads_percent: u64,
    /// Reads of the key that the request before asked for.
    pub(super) equal_percent: u64,
    pub(super) order: Order,
    /// 0 is none.
    pub(super) window_us: u64,
    pub(super) loaded_from: usize,
    /// Requests that count; a fifth as many before them do not: the first ones come all at once, and meet disks of which
    /// nothing was heard.
    pub(super) requests: u64,
    /// The run is at least as long.
    pub(super) least_us: u64,
    pub(super) seed: u64,
}

/// Figures of one run.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) per_s: f64,
    /// Of reads.
    pub(super) mean_us: f64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    pub(super) p999_us: f64,
    /// Requests that were one with another that acted, in percent of all.
    pub(super) merged_percent: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    AtPrimary(usize),
    Wake(usize),
    AtDisk { disk: usize, work: u64, writes: bool },
    Served { disk: usize, work: u64, began_us: u64 },
    Answer { disk: usize, work: u64, answer: usize },
    AtClient(usize),
}

#[derive(Debug, Clone, Copy)]
struct Client {
    key: u64,
    reads: bool,
    began_us: u64,
}

/// A group under way.
#[derive(Debug)]
struct Work {
    primary: usize,
    /// Its number at the primary's front, if it passed one.
    number: Option<u64>,
    members: Vec<usize>,
    asker: usize,
    sent_us: u64,
    answers_missing: usize,
}

struct World<'a> {
    setup: &'a Setup,
    now_us: u64,
    made: u64,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    dice: Random,
    draw: KeyDraw,
    groups: Vec<[DiskId; COPIES]>,
    disks: Vec<Disk>,
    fronts: Vec<PrimaryQueue<u64, usize>>,
    balances: Vec<Balance>,
    clients: Vec<Client>,
    last_key: u64,
    works: BTreeMap<u64, Work>,
    last_work: u64,
    /// Reports on their way to an asker.
    reports: Vec<Report>,
    free_reports: Vec<usize>,
    counts: Counts,
}

/// Counters since the warm-up ended.
#[derive(Default)]
struct Counts {
    counting_since_us: Option<u64>,
    answered: u64,
    reads: Histogram,
    reads_sum_us: u64,
    reads_answered: u64,
    merged: u64,
}

/// Runs it.
pub(super) fn run(setup: &Setup) -> Outcome {
    let mut world = World::new(setup);
    (0..setup.in_flight).for_each(|client| world.ask(client));
    let warm = setup.requests / 5;
    while world.counts.answered < setup.requests || world.counted_us() < setup.least_us {
        let Reverse((now_us, _, event)) =
            world.events.pop().expect("all clients wait for something");
        assert!(now_us >= world.now_us, "time goes forward");
        world.now_us = now_us;
        world.happens(event);
        if world.counts.counting_since_us.is_none() && world.counts.answered >= warm {
            world.counts = Counts { counting_since_us: Some(now_us), ..Counts::default() };
        }
    }
    world.outcome()
}

impl<'a> World<'a> {
    fn new(setup: &'a Setup) -> Self {
        let mut dice = Random(setup.seed);
        let groups = layout(setup.placement, setup.shape, &mut dice);
        let Askers { primaries, proxies } = setup.askers;
        let read_write = match setup.order {
            Order::Of(read_write) => read_write,
            Order::None => ReadWrite::Passes,
        };
        let window = || Window::new(setup.window_us, setup.loaded_from);
        let of_disk = |disk| if disk == 0 { setup.trouble } else { Trouble::None };
        let askers = primaries + proxies;
        Self {
            setup,
            now_us: 0,
            made: 0,
            events: BinaryHeap::new(),
            draw: KeyDraw::new(setup.keys, setup.objects),
            groups,
            disks: (0..setup.shape.1).map(|disk| Disk::new(setup.kind, of_disk(disk))).collect(),
            fronts: (0..primaries).map(|_| PrimaryQueue::new(window(), read_write)).collect(),
            balances: (0..askers).map(|_| Balance::new(setup.policy, askers as u32)).collect(),
            clients: vec![Client { key: 0, reads: true, began_us: 0 }; setup.in_flight],
            last_key: 0,
            works: BTreeMap::new(),
            last_work: 0,
            reports: Vec::new(),
            free_reports: Vec::new(),
            counts: Counts::default(),
            dice,
        }
    }

    fn at(&mut self, when_us: u64, event: Event) {
        self.made += 1;
        self.events.push(Reverse((when_us, self.made, event)));
    }

    fn happens(&mut self, event: Event) {
        match event {
            Event::AtPrimary(client) => self.at_primary(client),
            Event::Wake(primary) => {
                let mut outbox = Vec::new();
                self.fronts[primary].due(self.now_us, &mut outbox);
                self.perform(primary, outbox);
            }
            Event::AtDisk { disk, work, writes } => {
                self.disks[disk].arrived(Job { work, writes });
                self.serve(disk);
            }
            Event::Served { disk, work, began_us } => {
                self.disks[disk].served(self.now_us - began_us);
                let answer = self.free_reports.pop().unwrap_or(self.reports.len());
                let report = self.disks[disk].meter.report([0; SIZE_CLASSES]);
                match self.reports.get_mut(answer) {
                    Some(place) => *place = report,
                    None => self.reports.push(report),
                }
                self.at(self.now_us + HOP_US, Event::Answer { disk, work, answer });
                self.serve(disk);
            }
            Event::Answer { disk, work, answer } => self.answer(disk, work, answer),
            Event::AtClient(client) => self.at_client(client),
        }
    }

    /// A client asks.
    fn ask(&mut self, client: usize) {
        let reads = self.dice.below(100) < self.setup.reads_percent;
        let repeats = reads && self.dice.below(100) < self.setup.equal_percent;
        let key = if repeats { self.last_key } else { self.draw.draw(&mut self.dice) };
        self.last_key = key;
        self.clients[client] = Client { key, reads, began_us: self.now_us };
        self.at(self.now_us + HOP_US, Event::AtPrimary(client));
    }

    fn at_primary(&mut self, client: usize) {
        let Client { key, reads, .. } = self.clients[client];
        let primary = group(key, self.setup.shape.2) % self.setup.askers.primaries;
        // Data of 4 KiB lies in extents: puts of it are one with none.
        let kind = if reads { Does::LookUp { version: None } } else { Does::OtherChange };
        if self.setup.order == Order::None {
            self.begin(primary, None, (key, reads), vec![client]);
            return;
        }
        let mut outbox = Vec::new();
        let front = &mut self.fronts[primary];
        let taken =
            front.arrived(self.now_us, key, client, QueuedRequest::plain(kind), &mut outbox);
        taken.expect("fewer are in flight than may wait");
        self.perform(primary, outbox);
    }

    fn perform(&mut self, primary: usize, outbox: Vec<Effect<u64, usize>>) {
        for effect in outbox {
            match effect {
                Effect::WakeAt(at_us) => self.at(at_us, Event::Wake(primary)),
                Effect::Begin(number, Group { key, kind, members, .. }) => {
                    let reads = matches!(kind, Does::LookUp { .. });
                    self.begin(primary, Some(number), (key, reads), members);
                }
            }
        }
    }

    /// A group begins: its requests go to a holder, or to all.
    fn begin(
        &mut self,
        primary: usize,
        number: Option<u64>,
        (key, reads): (u64, bool),
        members: Vec<usize>,
    ) {
        self.last_work += 1;
        let Askers { primaries, proxies } = self.setup.askers;
        let by_proxy = reads && proxies > 0 && self.dice.below(2) == 0;
        let asker =
            if by_proxy { primaries + self.dice.below(proxies as u64) as usize } else { primary };
        let holders = self.groups[group(key, self.setup.shape.2)];
        let draw = self.dice.below(u64::MAX);
        let chosen = match reads {
            true => {
                let chosen = self.balances[asker].choose(self.now_us, &holders, BYTES, draw);
                vec![chosen.expect("each group has holders")]
            }
            false => holders.to_vec(),
        };
        for disk in &chosen {
            self.balances[asker].sent(self.now_us, *disk, BYTES);
            let event =
                Event::AtDisk { disk: disk.0 as usize, work: self.last_work, writes: !reads };
            self.at(self.now_us + HOP_US, event);
        }
        self.counts.merged += members.len() as u64 - 1;
        let answers_missing = chosen.len();
        let sent_us = self.now_us;
        let work = Work { primary, number, members, asker, sent_us, answers_missing };
        self.works.insert(self.last_work, work);
    }

    fn serve(&mut self, disk: usize) {
        while let Some((job, done_us)) = self.disks[disk].next(self.now_us, &mut self.dice) {
            let Job { work, .. } = job;
            self.at(done_us, Event::Served { disk, work, began_us: self.now_us });
        }
    }

    fn answer(&mut self, disk: usize, number: u64, answer: usize) {
        let report = self.reports[answer];
        self.free_reports.push(answer);
        let work = self.works.get_mut(&number).expect("what is answered is under way");
        let took_us = self.now_us - work.sent_us;
        let balance = &mut self.balances[work.asker];
        balance.answered(self.now_us, DiskId(disk as u32), BYTES, took_us, report);
        work.answers_missing -= 1;
        if work.answers_missing > 0 {
            return;
        }
        let work = self.works.remove(&number).expect("it was there");
        for client in work.members {
            self.at(self.now_us + HOP_US, Event::AtClient(client));
        }
        if let Some(number) = work.number {
            let mut outbox = Vec::new();
            self.fronts[work.primary].ended(self.now_us, number, &mut outbox);
            self.perform(work.primary, outbox);
        }
    }

    fn at_client(&mut self, client: usize) {
        let Client { reads, began_us, .. } = self.clients[client];
        let took_us = self.now_us - began_us;
        self.counts.answered += 1;
        if reads {
            self.counts.reads.record(Duration::from_micros(took_us));
            self.counts.reads_sum_us += took_us;
            self.counts.reads_answered += 1;
        }
        self.ask(client);
    }

    fn counted_us(&self) -> u64 {
        self.counts.counting_since_us.map_or(0, |since_us| self.now_us - since_us)
    }

    fn outcome(&self) -> Outcome {
        let counts = &self.counts;
        let micros = |per_million| {
            counts.reads.quantile(per_million).map_or(0.0, |it| it.as_secs_f64() * 1e6)
        };
        Outcome {
            per_s: counts.answered as f64 * 1e6 / self.counted_us() as f64,
            mean_us: counts.reads_sum_us as f64 / counts.reads_answered as f64,
            p50_us: micros(500_000),
            p99_us: micros(990_000),
            p999_us: micros(999_000),
            merged_percent: 100.0 * counts.merged as f64 / counts.answered as f64,
        }
    }
}
