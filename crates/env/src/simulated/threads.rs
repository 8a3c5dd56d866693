//! Threads of a simulation: threads of the system of which one runs at a time, until it waits. The seed decides which
//! is next. The thread that began the simulation gives them their turns ([`Threads::run_one`]) and stands still
//! meanwhile. So what else it runs, such as a runtime of tasks, is one more that takes turns.
//!
//! ```text
//!              run_one              wait, sleep, join
//!   Ready ───────────────▶ running ───────────────────▶ Waiting
//!     ▲                       │                            │
//!     └── notify, time, end of the joined ─────────────────┘
//! ```
//!
//! # Invariants
//!
//! 1. At most one thread of a simulation runs: one of these, or the one that began it.
//! 2. A wait ends only by a notification, by the end of the joined thread, or by time: a lost wake-up shows.
//! 3. A turn costs no more while many threads have ended or wait: ready threads, and the causes of waits, are sets of
//!    their own.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use super::{WORLD, World, elapsed};
use crate::SeededRng;

/// Longest turn of a thread, in real time: after that it is taken to be stuck at a lock.
const TURN_MAX: Duration = Duration::from_secs(60);
/// Others overtake at one in so many switch points.
const SWITCHES_ONE_IN: u64 = 8;
/// Longest time that others go on at a slow point, in milliseconds.
const SLOW_MS_MAX: u64 = 1500;

/// Names a thread of a simulation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ThreadId(u64);

/// The cause of a thread's wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Cause {
    /// A notification at this address, which is only compared.
    Condvar(usize),
    /// The end of another thread.
    Join(ThreadId),
    /// Time alone.
    Sleep,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Doing {
    Ready,
    Running,
    Waiting(Cause, Option<Duration>),
}

struct Thread {
    name: String,
    doing: Doing,
    /// Notified when its turn comes.
    turn: Arc<parking_lot::Condvar>,
}

struct State {
    /// Threads that have not ended.
    threads: BTreeMap<ThreadId, Thread>,
    ready: BTreeSet<ThreadId>,
    /// Waiting threads, by their causes.
    waiting: BTreeSet<(Cause, ThreadId)>,
    /// Waiting threads, by the latest end of their waits.
    due: BTreeSet<(Duration, ThreadId)>,
    /// The thread whose turn it is; `None` if it is the one that began the simulation.
    running: Option<ThreadId>,
    next: u64,
    rng: SeededRng,
    /// Woken when a thread becomes ready.
    waker: Option<Waker>,
    panicked: Vec<String>,
    /// True once the simulation is over: waiting threads unwind.
    is_over: bool,
}

impl State {
    /// Sets what a thread does from now on.
    fn set(&mut self, id: ThreadId, doing: Doing) {
        let Some(thread) = self.threads.get_mut(&id) else { return };
        let before = std::mem::replace(&mut thread.doing, doing);
        self.leave(id, before);
        match doing {
            Doing::Ready => {
                self.ready.insert(id);
            }
            Doing::Running => {}
            Doing::Waiting(cause, until) => {
                self.waiting.insert((cause, id));
                self.due.extend(until.map(|until| (until, id)));
            }
        }
    }

    fn end(&mut self, id: ThreadId) {
        if let Some(thread) = self.threads.remove(&id) {
            self.leave(id, thread.doing);
        }
    }

    fn leave(&mut self, id: ThreadId, before: Doing) {
        match before {
            Doing::Ready => {
                self.ready.remove(&id);
            }
            Doing::Running => {}
            Doing::Waiting(cause, until) => {
                self.waiting.remove(&(cause, id));
                if let Some(until) = until {
                    self.due.remove(&(until, id));
                }
            }
        }
    }

    /// The threads that wait for this, in order.
    fn waiting_for(&self, cause: Cause) -> Vec<ThreadId> {
        let all = self.waiting.range((cause, ThreadId(0))..=(cause, ThreadId(u64::MAX)));
        all.map(|(_, id)| *id).collect()
    }

    /// Ends the waits whose time has come.
    fn advance_to(&mut self, now: Duration) {
        while let Some((until, id)) = self.due.first().copied()
            && until <= now
        {
            self.set(id, Doing::Ready);
        }
    }

    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

type Enter = dyn Fn(&mut dyn FnMut()) + Send + Sync;

/// See the module's head.
pub struct Threads {
    state: Mutex<State>,
    /// Notified when the turn is again that of the thread that began the simulation.
    back: parking_lot::Condvar,
    enter: Box<Enter>,
}

impl fmt::Debug for Threads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Threads").finish_non_exhaustive()
    }
}

/// The panic by which a thread unwinds when its simulation is over.
struct Over;

impl super::Simulation {
    /// Makes [`spawn`](crate::threads::spawn) start threads of this simulation, on this thread and on those. `enter`
    /// runs the work of each, once it has set up the state that is the thread's own.
    ///
    /// # Panics
    /// If it has threads already.
    #[must_use]
    pub fn threads(
        &self,
        seed: u64,
        enter: impl Fn(&mut dyn FnMut()) + Send + Sync + 'static,
    ) -> Arc<Threads> {
        let state = State {
            threads: BTreeMap::new(),
            ready: BTreeSet::new(),
            waiting: BTreeSet::new(),
            due: BTreeSet::new(),
            running: None,
            next: 0,
            rng: SeededRng::new(seed),
            waker: None,
            panicked: Vec::new(),
            is_over: false,
        };
        let threads = Arc::new(Threads {
            state: Mutex::new(state),
            back: parking_lot::Condvar::new(),
            enter: Box::new(enter),
        });
        WORLD.with_borrow_mut(|world| {
            let world = world.as_mut().expect("the simulation is this thread's");
            assert!(world.threads.replace(threads.clone()).is_none(), "it has threads once");
        });
        threads
    }
}

impl Threads {
    /// Runs one ready thread until it waits; `false` if none is ready.
    ///
    /// # Panics
    /// If the thread does not come to wait: it is stuck at a lock of a waiting thread.
    pub fn run_one(&self) -> bool {
        let now = elapsed();
        let mut state = self.state.lock();
        assert_eq!(state.running, None, "one runs at a time");
        if let Some(now) = now {
            state.advance_to(now);
        }
        let count = state.ready.len() as u64;
        if count == 0 {
            return false;
        }
        let nth = state.rng.below(count) as usize;
        let next = *state.ready.iter().nth(nth).expect("so many are ready");
        state.set(next, Doing::Running);
        state.running = Some(next);
        state.threads[&next].turn.notify_one();
        while state.running.is_some() {
            let is_late = self.back.wait_for(&mut state, TURN_MAX).timed_out();
            let name = || state.running.map(|id| state.threads[&id].name.clone());
            assert!(!is_late, "{:?} does not come to wait", name());
        }
        true
    }

    /// Time since the beginning of the simulation at which the first wait is due.
    #[must_use]
    pub fn next_due(&self) -> Option<Duration> {
        self.state.lock().due.first().map(|(until, _)| *until)
    }

    /// Ready once a thread is ready. The time at which a wait is due does not wake it.
    pub fn poll_ready(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.state.lock();
        if !state.ready.is_empty() {
            return Poll::Ready(());
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Names of threads that panicked.
    #[must_use]
    pub fn panics(&self) -> Vec<String> {
        self.state.lock().panicked.clone()
    }

    /// Names of the threads that have not ended, and what each does.
    #[must_use]
    pub fn left(&self) -> Vec<String> {
        let state = self.state.lock();
        let left = state.threads.values();
        left.map(|thread| format!("{} ({:?})", thread.name, thread.doing)).collect()
    }

    /// Makes all waiting threads unwind.
    pub(super) fn abandon(&self) {
        let mut state = self.state.lock();
        state.is_over = true;
        for thread in state.threads.values() {
            thread.turn.notify_one();
        }
    }

    /// Ends the thread's turn, and returns at its next one.
    fn wait(&self, me: ThreadId, doing: Doing) {
        let mut state = self.state.lock();
        state.set(me, doing);
        self.yield_turn(&mut state);
        self.await_turn(state, me);
    }

    fn yield_turn(&self, state: &mut State) {
        state.running = None;
        self.back.notify_one();
    }

    fn await_turn(&self, mut state: MutexGuard<'_, State>, me: ThreadId) {
        let turn = state.threads[&me].turn.clone();
        while state.running != Some(me) {
            if state.is_over {
                drop(state);
                resume_unwind(Box::new(Over));
            }
            turn.wait(&mut state);
        }
    }

    fn begin(&self, name: &str) -> ThreadId {
        let mut state = self.state.lock();
        let id = ThreadId(state.next);
        state.next += 1;
        let thread = Thread { name: name.to_owned(), doing: Doing::Running, turn: Arc::default() };
        state.threads.insert(id, thread);
        state.set(id, Doing::Ready);
        state.wake();
        id
    }

    /// Runs a thread of the simulation on this one of the system.
    fn run(&self, me: ThreadId, run: impl FnOnce()) {
        let mut run = Some(run);
        let ended = catch_unwind(AssertUnwindSafe(|| {
            self.await_turn(self.state.lock(), me);
            (self.enter)(&mut || {
                if let Some(run) = run.take() {
                    run();
                }
            });
        }));
        let mut state = self.state.lock();
        let name = state.threads[&me].name.clone();
        match ended {
            Err(panic) if !panic.is::<Over>() => state.panicked.push(name),
            _ => {}
        }
        for id in state.waiting_for(Cause::Join(me)) {
            state.set(id, Doing::Ready);
        }
        state.end(me);
        state.wake();
        self.yield_turn(&mut state);
    }

    fn has_ended(&self, id: ThreadId) -> bool {
        !self.state.lock().threads.contains_key(&id)
    }

    fn notify(&self, at: usize, is_all: bool) {
        let mut state = self.state.lock();
        let mut waiting = state.waiting_for(Cause::Condvar(at));
        if !is_all && waiting.len() > 1 {
            waiting = vec![waiting[state.rng.below(waiting.len() as u64) as usize]];
        }
        for id in waiting {
            state.set(id, Doing::Ready);
        }
        state.wake();
    }
}

/// The threads of this thread's simulation, and its id if it is one of them.
fn mine() -> Option<(Arc<Threads>, Option<ThreadId>)> {
    WORLD.with_borrow(|world| {
        let world = world.as_ref()?;
        Some((world.threads.clone()?, world.me))
    })
}

/// True where [`spawn`] starts threads of a simulation.
#[must_use]
pub fn are_simulated() -> bool {
    mine().is_some()
}

/// Waits for this long while others run, if this is a thread of a simulation.
pub fn sleep(duration: Duration) {
    if let Some((threads, Some(me))) = mine() {
        threads.wait(me, Doing::Waiting(Cause::Sleep, until(duration)));
    }
}

fn until(duration: Duration) -> Option<Duration> {
    elapsed().map(|now| now.saturating_add(duration))
}

/// Marks where others may overtake a thread: it holds no lock here.
pub fn switch_point() {
    let Some((threads, Some(me))) = mine() else { return };
    let switches = threads.state.lock().rng.one_in(SWITCHES_ONE_IN);
    if switches {
        threads.wait(me, Doing::Ready);
    }
}

/// Marks where a thread has worked for long, and others may have gone on: it holds no lock here.
pub fn slow_point() {
    let Some((threads, Some(_))) = mine() else { return };
    let ms = {
        let rng = &mut threads.state.lock().rng;
        if rng.one_in(2) { rng.below(SLOW_MS_MAX) } else { 0 }
    };
    sleep(Duration::from_millis(ms));
}

/// Starts a thread, of this thread's simulation if it has one.
///
/// # Errors
/// The system's, if it gives none.
pub fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
    let builder = std::thread::Builder::new().name(name.to_owned());
    let Some((threads, _)) = mine() else {
        return Ok(JoinHandle(Started::Real(builder.spawn(run)?)));
    };
    let id = threads.begin(name);
    let world = WORLD.with_borrow(|world| world.clone());
    let of = threads.clone();
    builder.spawn(move || {
        WORLD.set(world.map(|world| World { me: Some(id), ..world }));
        of.run(id, run);
    })?;
    Ok(JoinHandle(Started::Simulated(threads, id)))
}

/// A thread that was started.
#[derive(Debug)]
pub struct JoinHandle<T>(Started<T>);

#[derive(Debug)]
enum Started<T> {
    Real(std::thread::JoinHandle<T>),
    Simulated(Arc<Threads>, ThreadId),
}

impl JoinHandle<()> {
    /// Waits for the thread's end. The thread that began the simulation runs others meanwhile, but lets no time pass.
    ///
    /// # Errors
    /// The thread's panic; [`Threads::panics`] has those of a simulation instead.
    ///
    /// # Panics
    /// If time would have to pass.
    pub fn join(self) -> std::thread::Result<()> {
        let (threads, id) = match self.0 {
            Started::Real(thread) => return thread.join(),
            Started::Simulated(threads, id) => (threads, id),
        };
        while !threads.has_ended(id) {
            match mine() {
                Some((_, Some(me))) => threads.wait(me, Doing::Waiting(Cause::Join(id), None)),
                _ => assert!(
                    threads.run_one(),
                    "{:?} wait for time that stands still",
                    threads.left()
                ),
            }
        }
        Ok(())
    }
}

/// A condition that threads wait for.
#[derive(Debug, Default)]
pub struct Condvar(parking_lot::Condvar);

impl Condvar {
    /// Makes a condition that no thread waits for.
    #[must_use]
    pub const fn new() -> Self {
        Self(parking_lot::Condvar::new())
    }

    fn at(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Releases the lock until the condition is notified.
    pub fn wait<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>) {
        match mine() {
            Some((threads, me)) => self.wait_in(guard, &threads, me, None),
            None => self.0.wait(guard),
        }
    }

    /// Like [`wait`](Self::wait), for `longest` at most.
    pub fn wait_for<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>, longest: Duration) {
        match mine() {
            Some((threads, me)) => self.wait_in(guard, &threads, me, until(longest)),
            None => {
                self.0.wait_for(guard, longest);
            }
        }
    }

    fn wait_in<T: ?Sized>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        threads: &Threads,
        me: Option<ThreadId>,
        until: Option<Duration>,
    ) {
        let me =
            me.expect("what runs on the thread of a simulation itself waits for no other thread");
        let doing = Doing::Waiting(Cause::Condvar(self.at()), until);
        MutexGuard::unlocked(guard, || threads.wait(me, doing));
    }

    /// Ends the wait of one thread.
    pub fn notify_one(&self) {
        match mine() {
            Some((threads, _)) => threads.notify(self.at(), false),
            None => {
                self.0.notify_one();
            }
        }
    }

    /// Ends the waits of all threads.
    pub fn notify_all(&self) {
        match mine() {
            Some((threads, _)) => threads.notify(self.at(), true),
            None => {
                self.0.notify_all();
            }
        }
    }
}

/// Wakes a thread that waits for a future.
#[derive(Default)]
struct Woken {
    is_woken: Mutex<bool>,
    changed: Condvar,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        *self.is_woken.lock() = true;
        self.changed.notify_one();
    }
}

/// Waits for a future on a thread of a simulation, while others run.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(woken.clone());
    let (mut cx, mut future) = (Context::from_waker(&waker), pin!(future));
    loop {
        if let Poll::Ready(done) = future.as_mut().poll(&mut cx) {
            return done;
        }
        let mut is_woken = woken.is_woken.lock();
        while !*is_woken {
            woken.changed.wait(&mut is_woken);
        }
        *is_woken = false;
    }
}

#[cfg(test)]
mod tests;
