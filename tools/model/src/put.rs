//! One put from its grant to its outcome ("A put" and "Crashes" in `ARCHITECTURE.md`): attempts, acknowledgements, write
//! policies, and the resolving of a put in doubt: fence, verify, decide.
//!
//! One request of one proxy, whose data goes to n replicas, of which the policy wants k; up to three
//! attempts, each in extents of its own. Writes arrive late and several times. Data servers restart
//! and lose what they had not synced; copies rot; a replica is removed for good; the meta primary
//! restarts and loses ops above the commit point. A proxy that dies is one that does nothing any more: no
//! state is needed for it, and a resolution may begin at any time.
//!
//! | action | in the code |
//! |---|---|
//! | `Persist` | `protocol/pg/commit.rs`, `advance`: `Persisted` |
//! | `Regrant` | not built yet (`Op::Regrant` is stored and taken, never issued) |
//! | `Arrive`, `Write`, `Sync` | `volume/pv.rs`, `admit`; `volume/execute.rs` |
//! | `Answer` | `roles/proxy/remote_roles/write.rs`; with one replica `roles/ticket.rs` |
//! | `Tell` | `Call::Commit`; `protocol/pg/calls.rs`, `commit_put` |
//! | `Harden` | `protocol/pg/commit.rs`, `advance`, of the outcome |
//! | `Read` | `protocol/pg/read.rs` |
//! | `Resolve` | `protocol/pg/resolve.rs`, `begin_resolution` |
//! | `Fence` | `DataRequest::Void`; `volume/pv.rs`, `void`; an `Open` of a later view does the same |
//! | `Verify` | `volume/verify.rs`; `volume/pv.rs`, `never_wrote` |
//! | `Withdraw` | `roles/proxy/remote_roles/put.rs`, `take_back` |
//! | `RollForward`, `Revoke` | `protocol/pg/resolve.rs`, `decide`; `Revoke` of a put that was taken back: `Call::Withdraw` |
//! | `Lose` | `protocol/pg/replicate.rs`, `begin_view`, `cut` |
//! | `Restart`, `Rot`, `Remove` | faults |
//!
//! The model allows more than the design asks for. Each replica is verified as soon as it alone is fenced, and the decision
//! falls as soon as enough is known for it. A resolution that waits for all is one of these.
//!
//! Losses of synced copies are bounded below k: of k − 1 any, an acknowledged put must survive.

mod variants;

pub use variants::{Bounds, Property, Variant};

use crate::explore::{Model, Sometimes};
use crate::ids::Servers;

const ATTEMPTS: usize = 3;

/// The knowledge of one attempt, by replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Attempt {
    /// Its op is below the commit point.
    persisted: bool,
    /// Its op was cut off.
    lost: bool,
    queued: Servers,
    /// Written, not synced.
    cached: Servers,
    synced: Servers,
    /// Synced once, and gone.
    rotten: Servers,
    /// Acknowledgements that left.
    acked: Servers,
    /// Servers that know in this run that they acknowledged.
    remembers: Servers,
    /// Servers that are not in the run that the grant names.
    restarted: Servers,
    voided: Servers,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Outcome {
    /// `told` by its proxy, which asks for no other attempt any more; or rolled forward.
    Committed {
        attempt: usize,
        holders: Servers,
        reported: bool,
    },
    Revoked,
    /// The put's own op was cut off.
    Gone,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Resolution {
    attempt: usize,
    fenced: Servers,
    verified: Servers,
    never: Servers,
    mismatched: Servers,
}

/// See the module's head.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    attempts: [Attempt; ATTEMPTS],
    /// Attempts issued.
    issued: usize,
    /// The attempt that the log names.
    current: usize,
    /// The proxy's answer: the attempt and its holders.
    answered: Option<(usize, Servers)>,
    /// The proxy has taken the put back: it answers no client any more.
    withdrawn: bool,
    outcome: Option<Outcome>,
    /// The outcome is below the commit point.
    hard: bool,
    /// A reader got the bytes.
    seen: bool,
    resolution: Option<Resolution>,
    removed: Servers,
    rolled_forward: bool,
    restarts: u8,
    losses: u8,
    views: u8,
}

/// A step. Numbers are attempt and replica.
#[derive(Debug, Clone, Copy)]
pub enum Action {
    /// An attempt's op is below the commit point.
    Persist(usize),
    /// The proxy asks for a new attempt and gets it.
    Regrant,
    /// A write reaches a replica and is queued.
    Arrive(usize, usize),
    /// A queued write is done.
    Write(usize, usize),
    /// A write is synced and acknowledged.
    Sync(usize, usize),
    /// The proxy answers its client.
    Answer(usize, Servers),
    /// The proxy takes the put back.
    Withdraw,
    /// The primary learns of it.
    Tell,
    /// The outcome is below the commit point.
    Harden,
    /// A reader is shown the version.
    Read,
    /// The primary begins to resolve the put.
    Resolve,
    /// A replica has voided the grant.
    Fence(usize),
    /// A replica says what it has.
    Verify(usize),
    /// The put is committed with the copies that verified.
    RollForward,
    /// The put is revoked.
    Revoke,
    /// The primary restarts: ops from this one on are lost.
    Lose(Cut),
    /// A data server restarts; of these attempts what was not synced is there all the same.
    Restart(usize, Servers),
    /// A synced copy rots.
    Rot(usize, usize),
    /// The manager removes a replica for good.
    Remove(usize),
}

/// Where a log is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// Before the put.
    Put,
    /// Before an attempt's op.
    Attempt(usize),
    /// Before the outcome.
    Outcome,
    /// Nowhere: what was there is now below the commit point.
    Nothing,
}

/// See the module's head.
#[derive(Debug, Clone, Copy)]
pub struct Put {
    /// The size of the model.
    pub bounds: Bounds,
    /// The reading to check.
    pub variant: Variant,
}

impl Put {
    fn all(&self) -> Servers {
        Servers::first(self.bounds.replicas)
    }

    /// The acknowledgements that the proxy counts for an attempt.
    fn counted(&self, state: &State, attempt: usize) -> Servers {
        let issued = &state.attempts[..state.issued];
        match self.variant {
            Variant::MixedAttempts => {
                issued.iter().fold(Servers::NONE, |all, each| all.union(each.acked))
            }
            // An attempt that replaces a lost one bears its number.
            Variant::AttemptsNumberedAnew if attempt > 0 && issued[attempt - 1].lost => {
                issued[attempt - 1].acked.union(issued[attempt].acked)
            }
            _ => issued[attempt].acked,
        }
    }

    fn proxy_actions(&self, state: &State, out: &mut Vec<Action>) {
        if state.answered.is_some() {
            return;
        }
        if !state.withdrawn {
            out.push(Action::Withdraw);
        } else if self.variant != Variant::AnswerAfterWithdrawal {
            return;
        }
        let latest = state.issued - 1;
        for attempt in 0..state.issued {
            if attempt != latest && self.variant != Variant::EarlierAttemptCounts {
                continue;
            }
            let persisted = match self.variant {
                Variant::PersistedOfAnyAttempt => state.attempts[0].persisted,
                Variant::AnswerWithoutPersisted => true,
                _ => state.attempts[attempt].persisted,
            };
            if persisted {
                let choices = self.counted(state, attempt).subsets();
                let enough = choices.filter(|holders| holders.count() >= self.bounds.policy);
                out.extend(enough.map(|holders| Action::Answer(attempt, holders)));
            }
        }
        let free = state.resolution.is_none() || self.variant == Variant::RegrantWhileResolving;
        if state.issued < self.bounds.attempts && state.outcome.is_none() && free {
            out.push(Action::Regrant);
        }
    }

    fn server_actions(&self, state: &State, out: &mut Vec<Action>) {
        for (number, attempt) in state.attempts[..state.issued].iter().enumerate() {
            for at in self.all().iter().filter(|at| !state.removed.has(*at)) {
                let is_there = attempt.cached.has(at) || attempt.synced.has(at);
                if attempt.queued.has(at) {
                    out.push(Action::Write(number, at));
                } else if !is_there && !attempt.rotten.has(at) && !attempt.voided.has(at) {
                    out.push(Action::Arrive(number, at));
                }
                if attempt.cached.has(at) {
                    out.push(Action::Sync(number, at));
                }
                if attempt.synced.has(at) && state.losses < self.bounds.losses {
                    out.push(Action::Rot(number, at));
                }
            }
        }
        for at in self.all().iter().filter(|at| !state.removed.has(*at)) {
            if state.restarts < self.bounds.restarts {
                let attempts = state.attempts.iter().enumerate();
                let unsynced = attempts
                    .filter(|(_, attempt)| attempt.cached.has(at))
                    .fold(Servers::NONE, |all, (number, _)| all.with(number));
                out.extend(unsynced.subsets().map(|kept| Action::Restart(at, kept)));
            }
            if state.losses < self.bounds.losses {
                out.push(Action::Remove(at));
            }
        }
    }

    fn primary_actions(&self, state: &State, out: &mut Vec<Action>) {
        let unpersisted = (0..=state.current)
            .find(|at| !state.attempts[*at].persisted && !state.attempts[*at].lost);
        out.extend(unpersisted.map(Action::Persist));
        match state.outcome {
            None => {
                if let Some((attempt, _)) = state.answered
                    && attempt == state.current
                    && state.attempts[attempt].persisted
                {
                    out.push(Action::Tell);
                }
                if state.withdrawn {
                    out.push(Action::Revoke);
                }
                match &state.resolution {
                    None => out.push(Action::Resolve),
                    Some(resolution) => self.resolution_actions(state, resolution, out),
                }
            }
            Some(Outcome::Gone) => {}
            Some(_) if !state.hard && unpersisted.is_none() => out.push(Action::Harden),
            Some(_) => {}
        }
        if !state.seen && self.shows(state) {
            out.push(Action::Read);
        }
        if state.views < self.bounds.views && !matches!(state.outcome, Some(Outcome::Gone)) {
            out.push(Action::Lose(Cut::Nothing));
            if state.outcome.is_some() && !state.hard {
                out.push(Action::Lose(Cut::Outcome));
            }
            if !state.attempts[0].persisted {
                out.push(Action::Lose(Cut::Put));
            }
            let later = (1..=state.current)
                .filter(|at| !state.attempts[*at].persisted && !state.attempts[*at].lost);
            out.extend(later.map(|at| Action::Lose(Cut::Attempt(at))));
        }
    }

    /// True if a reader is shown the version.
    fn shows(&self, state: &State) -> bool {
        match state.outcome {
            Some(Outcome::Committed { reported, .. }) => {
                state.hard || reported || self.variant == Variant::ReadBeforeOutcomeCommitted
            }
            None => {
                let attempt = &state.attempts[state.current];
                self.variant == Variant::ReadPending
                    && !attempt.cached.union(attempt.synced).is_empty()
            }
            _ => false,
        }
    }

    fn resolution_actions(&self, state: &State, known: &Resolution, out: &mut Vec<Action>) {
        let attempt = &state.attempts[known.attempt];
        let judged = known.verified.union(known.never).union(known.mismatched);
        for at in self.all().iter().filter(|at| !state.removed.has(*at)) {
            if !known.fenced.has(at)
                && (!attempt.queued.has(at) || self.variant == Variant::VoidBeforeDrain)
            {
                out.push(Action::Fence(at));
            }
            let fenced = known.fenced.has(at) || self.variant == Variant::VerifyBeforeFence;
            if fenced && !judged.has(at) {
                out.push(Action::Verify(at));
            }
        }
        let persisted = attempt.persisted || self.variant == Variant::RollForwardUnpersisted;
        if !known.verified.is_empty() && persisted {
            out.push(Action::RollForward);
        }
        if self.may_revoke(state, known, judged) {
            out.push(Action::Revoke);
        }
    }

    fn may_revoke(&self, state: &State, known: &Resolution, judged: Servers) -> bool {
        let (n, k) = (self.bounds.replicas, self.bounds.policy);
        let never = match self.variant {
            Variant::MismatchMeansNeverWritten => known.never.union(known.mismatched),
            _ => known.never,
        };
        let beyond_reach = match self.variant {
            Variant::PolicyTakenForAll => !never.is_empty(),
            Variant::RevokeOnOneMismatch => !known.mismatched.union(never).is_empty(),
            _ => never.count() > n - k,
        };
        let none_verifies =
            known.verified.is_empty() && self.all().within(judged.union(state.removed));
        beyond_reach || none_verifies
    }

    fn verify(&self, state: &mut State, at: usize) {
        let Some(resolution) = &mut state.resolution else { return };
        let attempt = &mut state.attempts[resolution.attempt];
        if attempt.cached.has(at) && self.variant != Variant::VerifyFromCache {
            attempt.cached = attempt.cached.without(at);
            attempt.synced = attempt.synced.with(at);
            attempt.acked = attempt.acked.with(at);
            attempt.remembers = attempt.remembers.with(at);
        }
        let same_run = !attempt.restarted.has(at) || self.variant == Variant::BootIgnored;
        if attempt.synced.has(at) || attempt.cached.has(at) {
            resolution.verified = resolution.verified.with(at);
        } else if same_run && !attempt.remembers.has(at) {
            resolution.never = resolution.never.with(at);
        } else {
            resolution.mismatched = resolution.mismatched.with(at);
        }
    }

    fn restart(&self, state: &mut State, at: usize, kept: Servers) {
        for (number, attempt) in state.attempts[..state.issued].iter_mut().enumerate() {
            if attempt.cached.has(at) && kept.has(number) {
                attempt.synced = attempt.synced.with(at);
            }
            attempt.cached = attempt.cached.without(at);
            attempt.queued = attempt.queued.without(at);
            attempt.remembers = attempt.remembers.without(at);
            attempt.restarted = attempt.restarted.with(at);
            if self.variant == Variant::VoidInMemory {
                attempt.voided = attempt.voided.without(at);
            }
        }
        state.restarts += 1;
    }

    fn lose(state: &mut State, cut: Cut) {
        state.views += 1;
        state.resolution = None;
        if cut != Cut::Nothing {
            state.outcome = None;
        }
        match cut {
            Cut::Put => {
                for attempt in &mut state.attempts[..state.issued] {
                    attempt.lost = true;
                }
                state.outcome = Some(Outcome::Gone);
            }
            Cut::Attempt(first) => {
                for attempt in &mut state.attempts[first..state.issued] {
                    attempt.lost = !attempt.persisted;
                }
                let known = |at: &usize| !state.attempts[*at].lost;
                state.current = (0..first).rev().find(known).unwrap_or(0);
            }
            Cut::Outcome | Cut::Nothing => {}
        }
        if cut != Cut::Put {
            for attempt in &mut state.attempts[..=state.current] {
                attempt.persisted |= !attempt.lost;
            }
            state.hard = state.outcome.is_some();
        }
    }
}

impl Model for Put {
    type State = State;
    type Action = Action;
    type Property = Property;

    const SOMETIMES: &'static [Sometimes<State>] = &[
        ("the put is committed by its proxy", |state| {
            state.answered.is_some()
                && matches!(state.outcome, Some(Outcome::Committed { .. }))
                && !state.rolled_forward
        }),
        ("an acknowledged put is rolled forward", |state| {
            state.answered.is_some() && state.rolled_forward
        }),
        ("a put that nobody acknowledged is rolled forward and read", |state| {
            state.answered.is_none() && state.rolled_forward && state.seen
        }),
        ("a put is revoked for good", |state| {
            state.outcome == Some(Outcome::Revoked) && state.hard
        }),
        ("a put is revoked that had a copy", |state| {
            let attempt = &state.attempts[state.current];
            state.outcome == Some(Outcome::Revoked) && !attempt.cached.is_empty()
        }),
    ];

    fn initial(&self) -> State {
        State {
            attempts: [Attempt::default(); ATTEMPTS],
            issued: 1,
            current: 0,
            answered: None,
            withdrawn: false,
            outcome: None,
            hard: false,
            seen: false,
            resolution: None,
            removed: Servers::NONE,
            rolled_forward: false,
            restarts: 0,
            losses: 0,
            views: 0,
        }
    }

    fn actions(&self, state: &State, out: &mut Vec<Action>) {
        self.proxy_actions(state, out);
        self.server_actions(state, out);
        self.primary_actions(state, out);
    }

    fn apply(&self, state: &mut State, action: Action) {
        match action {
            Action::Persist(attempt) => state.attempts[attempt].persisted = true,
            Action::Regrant => {
                state.current = state.issued;
                state.issued += 1;
            }
            Action::Arrive(attempt, at) => {
                let attempt = &mut state.attempts[attempt];
                attempt.queued = attempt.queued.with(at);
            }
            Action::Write(attempt, at) => {
                let attempt = &mut state.attempts[attempt];
                attempt.queued = attempt.queued.without(at);
                attempt.cached = attempt.cached.with(at);
                if self.variant == Variant::AckBeforeSync {
                    attempt.acked = attempt.acked.with(at);
                }
            }
            Action::Sync(attempt, at) => {
                let attempt = &mut state.attempts[attempt];
                attempt.cached = attempt.cached.without(at);
                attempt.synced = attempt.synced.with(at);
                attempt.acked = attempt.acked.with(at);
                attempt.remembers = attempt.remembers.with(at);
            }
            Action::Answer(attempt, holders) => state.answered = Some((attempt, holders)),
            Action::Withdraw => state.withdrawn = true,
            Action::Tell => {
                if let Some((attempt, holders)) = state.answered {
                    state.outcome = Some(Outcome::Committed { attempt, holders, reported: true });
                    state.resolution = None;
                }
            }
            Action::Harden => state.hard = true,
            Action::Read => state.seen = true,
            Action::Resolve => {
                let attempt = state.current;
                state.resolution = Some(Resolution { attempt, ..Resolution::default() });
            }
            Action::Fence(at) => {
                if let Some(resolution) = &mut state.resolution {
                    let attempt = &mut state.attempts[resolution.attempt];
                    attempt.voided = attempt.voided.with(at);
                    resolution.fenced = resolution.fenced.with(at);
                }
            }
            Action::Verify(at) => self.verify(state, at),
            Action::RollForward => {
                if let Some(Resolution { attempt, verified, .. }) = state.resolution.take() {
                    state.outcome =
                        Some(Outcome::Committed { attempt, holders: verified, reported: false });
                    state.rolled_forward = true;
                }
            }
            Action::Revoke => {
                state.outcome = Some(Outcome::Revoked);
                state.resolution = None;
            }
            Action::Lose(cut) => Self::lose(state, cut),
            Action::Restart(at, kept) => self.restart(state, at, kept),
            Action::Rot(attempt, at) => {
                let attempt = &mut state.attempts[attempt];
                attempt.synced = attempt.synced.without(at);
                attempt.rotten = attempt.rotten.with(at);
                state.losses += 1;
            }
            Action::Remove(at) => {
                for attempt in &mut state.attempts {
                    attempt.queued = attempt.queued.without(at);
                    attempt.cached = attempt.cached.without(at);
                    if attempt.synced.has(at) {
                        attempt.synced = attempt.synced.without(at);
                        attempt.rotten = attempt.rotten.with(at);
                    }
                }
                state.removed = state.removed.with(at);
                state.losses += 1;
            }
        }
    }

    fn broken(&self, state: &State) -> Option<Property> {
        let ended = matches!(state.outcome, Some(Outcome::Revoked | Outcome::Gone));
        if state.answered.is_some() && ended {
            return Some(Property::AcknowledgedIsNotRevoked);
        }
        if state.seen && ended {
            return Some(Property::SeenStays);
        }
        if let Some(Outcome::Committed { attempt, holders, .. }) = state.outcome {
            let attempt = &state.attempts[attempt];
            if !holders.within(attempt.synced.union(attempt.rotten)) {
                return Some(Property::HoldersHold);
            }
        }
        let attempt = match (state.outcome, state.answered) {
            (Some(Outcome::Committed { attempt, .. }), Some(_)) => Some(attempt),
            (_, answered) => answered.map(|(attempt, _)| attempt),
        };
        if attempt.is_some_and(|attempt| state.attempts[attempt].synced.is_empty()) {
            return Some(Property::AcknowledgedIsReadable);
        }
        None
    }
}
