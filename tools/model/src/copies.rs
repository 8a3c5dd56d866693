//! Copies of a worker's directory: which of the blobs count that their processes upload (`pack/owner/counting.rs`,
//! `pack/owner/numbering.rs`).
//!
//! One worker. A directory is copied at any moment, also while a process runs on it. Processes start on any of them, are
//! killed between any two steps and start again; a directory may lose its log and index. The backend does a request at any
//! moment after it was sent, also after its process is gone, or never. Its answer may come late, which is the same as no
//! answer and a question. Creates are conditional, and blobs are put without a condition under a name that has the process's
//! number. A reader (a peer, a rebuild) lists and judges at any moment. Another worker, the heir, may take over.
//!
//! | action | in the code |
//! |---|---|
//! | `Step(_, Begun)`, `Step(_, Listed)` | `pack/owner/numbering.rs`, `number`: the first list, `refuse_older_copy` |
//! | `Step(_, MayAsk)`, `Step(_, Asked)` | `take` |
//! | `Step(_, Owns)`, `Step(_, Closing)` | `close`, the second list |
//! | `Step(_, ListedAgain)`, `Step(_, Decided)`, `Step(_, Recording)` | `decide`, `check_owner`, `record` |
//! | `Step(_, Runs)`, `Step(_, Uploading)`, `Step(_, Looked)` | `pack/upload/uploader.rs`, `upload`, with `check` at its end |
//! | `Seal` | `pack/commit/committer.rs` |
//! | `List`, `Accept` | `pack/peers/follow.rs`, `catch_up`; `pack/start/rebuild/footers.rs`, `list`; `pack/owner/counting.rs`, `decided` |
//! | `Claim`, `HeirSteps` | `pack/owner/identity.rs`, `claim`; `pack/owner/takeover_fence.rs`, `inherit` |
//!
//! A blob's content is the number of the directory that sealed it. A reader's reads of numbers, records, claims and takeover fences are one step, after its
//! list: each of them only ever tells more.

mod process;
mod rules;
mod variants;

pub use variants::{Bounds, Property, Variant};

use crate::explore::{Model, Sometimes};

/// Most directories.
const DIRECTORIES: usize = 3;
/// Most numbers, with one before all.
const NUMBERS: usize = 6;
/// Most blobs of a directory.
const BLOBS: usize = 3;

/// A set of blobs, by process and number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Blobs(u16);

/// The record of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
enum Record {
    #[default]
    None,
    Closed,
    From(u8),
}

/// Phase of a process. A step's name is that of the phase it leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Phase {
    /// No process runs.
    #[default]
    Off,
    /// It has done nothing.
    Begun,
    /// It has listed.
    Listed(Blobs),
    /// It knows all that counts. Here and below the last number is where it begins, if that was decided so early.
    MayAsk(u8),
    /// It asks for a number.
    Asked(u8, u8),
    /// It has the number.
    Owns(u8, u8),
    /// It closes those before.
    Closing(u8, u8),
    /// It has listed again.
    ListedAgain(u8, Blobs),
    /// It knows where it begins.
    Decided(u8, u8),
    /// It writes that down.
    Recording(u8, u8),
    /// It may upload.
    Runs(u8),
    /// A blob is on its way.
    Uploading(u8),
    /// The blob is there, and nobody has a greater number.
    Looked(u8),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Directory {
    is_there: bool,
    /// Content of each blob; 0 if it is not sealed yet.
    log: [u8; BLOBS],
    uploaded: u8,
    /// It knows nothing, and is made anew from the backend.
    is_blank: bool,
    losses: u8,
    /// The number asked for, and who drew: only if that is kept in the directory.
    intent: (u8, u8),
    phase: Phase,
}

/// Phase of the heir.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Heir {
    /// There is none.
    #[default]
    None,
    /// It has claimed, or asked for that.
    Claims,
    /// It waits for the numbers that it closes.
    Closes(u8),
    /// It has closed them.
    Closed,
    /// It has listed.
    Listed(Blobs),
    /// It has sent its takeover fence.
    Done,
}

/// A reader between its two steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
enum Reader {
    #[default]
    Idle,
    Listed(Blobs),
    /// It has read the rest first: what counts, and the newest process, if its last blob is undecided.
    Knows(Blobs, u8),
}

/// See the module's head.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    sent: Blobs,
    there: Blobs,
    contents: [[u8; BLOBS]; NUMBERS],
    /// The process that has each number.
    numbers: [u8; NUMBERS],
    /// The process that asks for the next.
    asking: u8,
    records: [Record; NUMBERS],
    /// Where a record under way says that its process begins, or 0.
    recording: [u8; NUMBERS],
    /// Closings under way.
    closing: u8,
    directories: [Directory; DIRECTORIES],
    heir: Heir,
    is_claimed: bool,
    /// Through which blob the heir knows the worker.
    takeover_fence: Option<u8>,
    /// Takeover fences under way.
    takeover_fences: u8,
    reader: Reader,
    acknowledged: Blobs,
    accepted: Blobs,
    /// A reader left out what it must not.
    has_lacked: bool,
    kills: u8,
    losses: u8,
}

/// A step.
#[derive(Debug, Clone, Copy)]
pub enum Action {
    /// A process starts.
    Start(usize),
    /// A process goes on from this phase.
    Step(usize, Phase),
    /// It seals a blob.
    Seal(usize),
    /// It is killed.
    Kill(usize),
    /// A directory is copied.
    Copy(usize, usize),
    /// It loses log and index.
    Lose(usize),
    /// The backend gives the next number to one who asks.
    Number(u8),
    /// It makes a process's record.
    Record(u8),
    /// It makes the record that closes a process.
    Close(u8),
    /// It has this blob: process, number.
    Blob(u8, u8),
    /// It has the heir's claim.
    Claim,
    /// It has the heir's takeover fence.
    TakeoverFence(u8),
    /// A reader begins.
    List,
    /// It accepts what counts.
    Accept,
    /// The heir goes on from there.
    HeirSteps(Heir),
    /// It is killed, and starts again.
    HeirKilled,
}

/// See the module's head.
#[derive(Debug, Clone, Copy)]
pub struct Copies {
    /// The size of the model.
    pub bounds: Bounds,
    /// The reading to check.
    pub variant: Variant,
}

impl Blobs {
    const NONE: Self = Self(0);

    fn only(process: u8, seq: u8) -> Self {
        Self(1 << ((process - 1) as usize * BLOBS + seq as usize - 1))
    }

    fn has(self, process: u8, seq: u8) -> bool {
        self.0 & Self::only(process, seq).0 != 0
    }

    fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    fn within(self, other: Self) -> bool {
        self.0 & !other.0 == 0
    }

    fn len(self) -> u32 {
        self.0.count_ones()
    }

    /// Process and number of each.
    fn iter(self) -> impl Iterator<Item = (u8, u8)> {
        (0..u16::BITS as u8)
            .filter(move |bit| self.0 & 1 << bit != 0)
            .map(|bit| (bit / BLOBS as u8 + 1, bit % BLOBS as u8 + 1))
    }

    fn filter(self, mut is_kept: impl FnMut(u8, u8) -> bool) -> Self {
        let kept = self.iter().filter(|(process, seq)| is_kept(*process, *seq));
        kept.fold(Self::NONE, |all, (process, seq)| all.with(Self::only(process, seq)))
    }
}

impl Copies {
    fn is(&self, variant: Variant) -> bool {
        self.variant == variant
    }

    fn successor_actions(&self, state: &State, out: &mut Vec<Action>) {
        let heir = state.heir;
        let goes_on = match heir {
            Heir::None => self.bounds.heir,
            Heir::Claims => state.is_claimed,
            Heir::Closes(numbers) => {
                state.have_records(numbers) || self.is(Variant::HeirDoesNotClose)
            }
            Heir::Closed | Heir::Listed(_) => true,
            Heir::Done => false,
        };
        if goes_on {
            out.push(Action::HeirSteps(heir));
        }
        let may_die = !matches!(heir, Heir::None | Heir::Claims | Heir::Done)
            || state.takeover_fence.is_none() && heir == Heir::Done;
        if may_die && state.kills < self.bounds.kills {
            out.push(Action::HeirKilled);
        }
        if heir == Heir::Claims && !state.is_claimed {
            out.push(Action::Claim);
        }
        let under_way = (0..=self.bounds.blobs).filter(|seq| state.takeover_fences & 1 << seq != 0);
        out.extend(under_way.map(Action::TakeoverFence));
    }

    fn successor_steps(&self, state: &mut State, from: Heir) {
        state.heir = match from {
            Heir::None => Heir::Claims,
            Heir::Claims if self.is(Variant::HeirListsFirst) => Heir::Listed(state.there),
            Heir::Claims => Heir::Closes(self.closes_before(state, state.latest() + 1)),
            Heir::Closes(_) => Heir::Closed,
            Heir::Closed => Heir::Listed(state.there),
            Heir::Listed(listed) => {
                if self.is(Variant::HeirListsFirst) {
                    self.closes_before(state, state.latest() + 1);
                }
                let counted = listed.filter(|process, seq| state.counts_by_records(process, seq));
                let last = counted.iter().map(|(_, seq)| seq).max().unwrap_or(0);
                state.takeover_fences |= 1 << last;
                Heir::Done
            }
            Heir::Done => unreachable!("it has no more steps"),
        };
    }

    /// Sends closings of all numbers below that have no record; through which number that is.
    fn closes_before(&self, state: &mut State, end: u8) -> u8 {
        let is_heir = end > state.latest();
        let closes = if is_heir {
            !self.is(Variant::HeirDoesNotClose)
        } else {
            !self.is(Variant::NumbersNotClosed)
        };
        for number in (1..end).filter(|_| closes) {
            if state.records[number as usize] == Record::None {
                state.closing |= 1 << number;
            }
        }
        end - 1
    }

    fn backend_actions(&self, state: &State, out: &mut Vec<Action>) {
        let askers = (0..u8::BITS as u8).filter(|bit| state.asking & 1 << bit != 0);
        out.extend(askers.map(Action::Number));
        for number in 1..=state.latest() {
            if state.recording[number as usize] != 0 {
                out.push(Action::Record(number));
            }
            if state.closing & 1 << number != 0 {
                out.push(Action::Close(number));
            }
        }
        let under_way = state.sent.without(state.there);
        out.extend(under_way.iter().map(|(process, seq)| Action::Blob(process, seq)));
    }

    fn accept(&self, state: &mut State) {
        let (listed, counting, undecided) = match std::mem::take(&mut state.reader) {
            Reader::Idle => {
                state.reader = if self.is(Variant::ReaderListsLast) {
                    let (counting, undecided) = self.reader_knows(state);
                    Reader::Knows(counting, undecided)
                } else {
                    Reader::Listed(state.there)
                };
                return;
            }
            Reader::Listed(listed) => {
                let (counting, undecided) = self.reader_knows(state);
                (listed, counting, undecided)
            }
            Reader::Knows(counting, undecided) => (state.there, counting, undecided),
        };
        let counted = listed.filter(|process, seq| counting.has(process, seq));
        let accepted = self.decided(state, listed, counted, undecided);
        let lacking = state
            .acknowledged
            .filter(|process, seq| listed.has(process, seq) && !accepted.has(process, seq));
        state.has_lacked = lacking.len() > u32::from(state.takeover_fence.is_none());
        state.accepted = state.accepted.with(accepted);
    }
}

impl Model for Copies {
    type State = State;
    type Action = Action;
    type Property = Property;

    const SOMETIMES: &'static [Sometimes<State>] = &[
        ("a blob that came late is void", |state| {
            state.there.iter().any(|(process, seq)| !state.counts_by_records(process, seq))
        }),
        ("a blob that came late is found by its directory", |state| {
            state.directories.iter().any(|directory| match directory.phase {
                Phase::ListedAgain(_, listed) if (directory.uploaded as usize) < BLOBS => {
                    let next = directory.uploaded + 1;
                    listed.iter().any(|(process, seq)| {
                        let content = state.contents[process as usize][seq as usize - 1];
                        seq == next && content == directory.log[seq as usize - 1] && content != 0
                    })
                }
                _ => false,
            })
        }),
        ("two processes uploaded", |state| {
            (1..NUMBERS as u8).filter(|n| state.acknowledged.iter().any(|(m, _)| m == *n)).count()
                > 1
        }),
        ("two copies uploaded, one after the other", |state| {
            let mut by = state
                .acknowledged
                .iter()
                .map(|(process, seq)| state.contents[process as usize][seq as usize - 1]);
            let first = by.next();
            by.any(|other| Some(other) != first)
        }),
        ("a number without a record was closed", |state| state.records.contains(&Record::Closed)),
        ("a process is gone that has a number and no record", |state| {
            state
                .records
                .iter()
                .zip(state.numbers)
                .any(|(record, holder)| holder == GONE && *record == Record::None)
        }),
        ("a reader accepted", |state| state.accepted != Blobs::NONE),
        ("an heir's takeover fence leaves out a blob that came late", |state| {
            let last = state.takeover_fence.unwrap_or(u8::MAX);
            state.there.iter().any(|(_, seq)| seq > last)
        }),
    ];

    fn initial(&self) -> State {
        let mut directories = [Directory::default(); DIRECTORIES];
        directories[0].is_there = true;
        State {
            sent: Blobs::NONE,
            there: Blobs::NONE,
            contents: [[0; BLOBS]; NUMBERS],
            numbers: [0; NUMBERS],
            asking: 0,
            records: [Record::None; NUMBERS],
            recording: [0; NUMBERS],
            closing: 0,
            directories,
            heir: Heir::None,
            is_claimed: false,
            takeover_fence: None,
            takeover_fences: 0,
            reader: Reader::Idle,
            acknowledged: Blobs::NONE,
            accepted: Blobs::NONE,
            has_lacked: false,
            kills: 0,
            losses: 0,
        }
    }

    fn actions(&self, state: &State, out: &mut Vec<Action>) {
        for at in 0..self.bounds.directories {
            self.directory_actions(state, at, out);
        }
        self.backend_actions(state, out);
        self.successor_actions(state, out);
        out.push(if state.reader == Reader::Idle { Action::List } else { Action::Accept });
    }

    fn apply(&self, state: &mut State, action: Action) {
        match action {
            Action::Start(at) => state.directories[at].phase = Phase::Begun,
            Action::Step(at, phase) => self.step(state, at, phase),
            Action::Seal(at) => state.seal(at),
            Action::Kill(at) => {
                state.kills += 1;
                self.stop(state, at);
            }
            Action::Copy(from, to) => {
                state.directories[to] = Directory { phase: Phase::Off, ..state.directories[from] };
            }
            Action::Lose(at) => {
                state.losses += 1;
                let losses = state.directories[at].losses + 1;
                state.directories[at] =
                    Directory { is_there: true, is_blank: true, losses, ..Directory::default() };
            }
            Action::Number(asker) => {
                let next = state.latest() + 1;
                state.numbers[next as usize] = asker;
                state.asking = 0;
            }
            Action::Record(number) => {
                let from = state.recording[number as usize];
                state.write_record(number, Record::From(from));
            }
            Action::Close(number) => state.write_record(number, Record::Closed),
            Action::Blob(process, seq) => state.there = state.there.with(Blobs::only(process, seq)),
            Action::Claim => state.is_claimed = true,
            Action::TakeoverFence(last) => {
                (state.takeover_fence, state.takeover_fences) = (Some(last), 0)
            }
            Action::List | Action::Accept => self.accept(state),
            Action::HeirSteps(from) => self.successor_steps(state, from),
            Action::HeirKilled => {
                state.kills += 1;
                state.heir = Heir::Claims;
            }
        }
        if state.takeover_fence.is_some() {
            (state.heir, state.takeover_fences) = (Heir::Done, 0);
        }
    }

    fn broken(&self, state: &State) -> Option<Property> {
        state.broken(self)
    }
}

/// Has numbers of processes that are gone.
const GONE: u8 = 7;
