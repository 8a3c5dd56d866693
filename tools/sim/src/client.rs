//! Simulated clients: each makes one call after the other, and notes the answers.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;

use larder_env::SeededRng;
use larder_types::limits::INLINE_BYTES_MAX;
use larder_types::{Attributes, Condition, ObjectKey, Target};

use crate::content::{HEAD_BYTES, content, etag_of, len_of, tags, value};
use crate::history::{CallCondition, CallId, CallResult, History, Invocation, Moment, Shown};
use crate::index::BUCKET;
use crate::mix::{CallKind, Mix};
use crate::proxy::append::AppendPlan;
use crate::proxy::condition_of;
use crate::proxy::large::UploadPlan;
use crate::proxy::put::{DropAt, Payload, PutRequest};
use crate::proxy_context::{ProxyContext, Task};
use crate::setup::Setup;

/// One key in so many is appended to.
const LOGS_ONE_IN: usize = 3;

/// Most keys of a page.
const PAGE_MAX: u64 = 4;

/// The result that a task leaves for its client.
#[derive(Debug)]
enum Left {
    Answer(CallResult),
    /// The object that a get showed, and the values that it read.
    Read(Option<Shown>, Vec<u64>),
    /// Keys with what they show, and whether there may be more.
    List(Option<(Vec<(ObjectKey, Shown)>, bool)>),
}

type Slip = Rc<RefCell<Option<Left>>>;

/// A call that must be answered at rest, of a key or of all.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Probe {
    Get(usize),
    Put(usize),
    PutStream(usize),
    Delete(usize),
    List,
}

/// A call, for who reads a timeline: its name, and of a call of one key this and what is asked.
pub(crate) struct Called {
    name: &'static str,
    of: Option<(usize, Invocation)>,
}

impl fmt::Display for Called {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.of {
            Some((key, asked)) => write!(f, "{} of key {key}, {asked:?},", self.name),
            None => write!(f, "{}", self.name),
        }
    }
}

/// The events that a client waits for.
enum Waiting {
    Call(CallId, Slip),
    /// A list of what is behind a key, or of all.
    List(Moment, Option<ObjectKey>, Slip),
}

/// All clients, their keys and values.
pub(crate) struct Clients {
    rng: SeededRng,
    mix: Mix,
    /// Pieces of keys that are appended to are coalesced.
    coalesces: bool,
    pub(crate) keys: Vec<ObjectKey>,
    waiting: Vec<Option<Waiting>>,
    /// The last key of the page that each client was shown, if it has not seen the rest.
    pages: Vec<Option<ObjectKey>>,
    pub(crate) history: History,
    next_value: u64,
    next_tags: u64,
    /// The value put last to each key, as far as anybody knows.
    latest: Vec<u64>,
    /// Where each key's object ends, as far as anybody knows.
    ends: Vec<u64>,
    ballast: usize,
    /// Calls are probes by now: no proxy drops them on purpose.
    is_probing: bool,
    /// Calls so far that were refused or not answered.
    pub(crate) unserved: u64,
}

impl Clients {
    pub(crate) fn new(setup: &Setup, rng: SeededRng) -> Self {
        let keys: Vec<ObjectKey> = (0..setup.keys)
            .map(|n| ObjectKey::new(&format!("dir{}/key-{n}", n % 3)).expect("a short key"))
            .collect();
        Self {
            rng,
            mix: setup.mix.clone(),
            coalesces: setup.coalesces,
            waiting: (0..setup.clients).map(|_| None).collect(),
            pages: vec![None; setup.clients],
            history: History::new(keys.len()),
            next_value: 1,
            next_tags: 1,
            latest: vec![0; keys.len()],
            ends: vec![0; keys.len()],
            ballast: setup.ballast,
            is_probing: false,
            unserved: 0,
            keys,
        }
    }

    pub(crate) fn busy(&self) -> bool {
        self.waiting.iter().any(Option::is_some)
    }

    /// The next call of a client, to be run by a proxy.
    pub(crate) fn next_call(&mut self, client: usize, context: &ProxyContext) -> (Called, Task) {
        assert!(self.waiting[client].is_none(), "a client makes one call at a time");
        if let Some(after) = self.pages[client].take_if(|_| !self.rng.one_in(3)) {
            return (Called { name: "list on", of: None }, self.list(client, Some(after), context));
        }
        let key = self.rng.below(self.keys.len() as u64) as usize;
        let (name, asked, task, slip) = match self.mix.draw_call(&mut self.rng) {
            CallKind::Get => self.get(key, context),
            CallKind::List => {
                return (Called { name: "list", of: None }, self.list(client, None, context));
            }
            CallKind::Delete => self.delete(key, context),
            CallKind::SetTags => self.set_tags(key, context),
            CallKind::Upload => self.upload(key, context),
            CallKind::PutStream => self.put_stream(key, context),
            CallKind::Append if key.is_multiple_of(LOGS_ONE_IN) => self.append(key, context),
            CallKind::Append | CallKind::Put => self.put(key, context),
        };
        let call = self.history.begin(key, asked);
        self.waiting[client] = Some(Waiting::Call(call, slip));
        (Called { name, of: Some((key, asked)) }, task)
    }

    /// Every key is seen, and written in one way or another; at last all are listed.
    pub(crate) fn probes(&mut self) -> Vec<Probe> {
        let mut probes: Vec<Probe> = (0..self.keys.len()).map(Probe::Get).collect();
        for key in 0..self.keys.len() {
            probes.push(match self.rng.below(6) {
                0 => Probe::Delete(key),
                1 => Probe::PutStream(key),
                _ => Probe::Put(key),
            });
        }
        probes.push(Probe::List);
        probes
    }

    /// Begins a probe.
    pub(crate) fn probe(&mut self, client: usize, probe: Probe, context: &ProxyContext) -> Task {
        assert!(self.waiting[client].is_none(), "a client makes one call at a time");
        self.is_probing = true;
        let (key, (_, asked, task, slip)) = match probe {
            Probe::Get(key) => (key, self.get(key, context)),
            Probe::Put(key) => (key, self.put(key, context)),
            Probe::PutStream(key) => (key, self.put_stream(key, context)),
            Probe::Delete(key) => (key, self.delete(key, context)),
            Probe::List => return self.list(client, None, context),
        };
        let call = self.history.begin(key, asked);
        self.waiting[client] = Some(Waiting::Call(call, slip));
        task
    }

    /// A client's call is over; `left` is false if its proxy died with it.
    pub(crate) fn done(&mut self, client: usize) -> &'static str {
        let Some(waiting) = self.waiting[client].take() else { return "nothing" };
        match waiting {
            Waiting::Call(call, slip) => {
                let answered = match slip.take() {
                    Some(Left::Answer(answered)) => answered,
                    Some(Left::Read(shown, values)) => {
                        self.history.read(&values);
                        CallResult::Shows(shown)
                    }
                    _ => CallResult::Unknown,
                };
                self.history.end(call, answered);
                let is_unserved = matches!(answered, CallResult::Refused | CallResult::Unknown);
                self.unserved += u64::from(is_unserved);
                if let CallResult::Ends(size) = answered {
                    self.ends[call.key()] = size;
                }
                match answered {
                    CallResult::Done => "done",
                    CallResult::Grown(_) => "appended",
                    CallResult::Ends(_) => "ends elsewhere",
                    CallResult::Shows(Some(_)) => "shown",
                    CallResult::Shows(None) => "absent",
                    CallResult::Unmet => "condition failed",
                    CallResult::NoSuchKey => "no such key",
                    CallResult::Refused => "refused",
                    CallResult::Unknown => "no answer",
                }
            }
            Waiting::List(begun, after, slip) => match slip.take() {
                Some(Left::List(Some((listed, is_cut)))) => {
                    let last = listed.last().filter(|_| is_cut).map(|(key, _)| key.clone());
                    self.listed(begun, (after.as_ref(), last.as_ref()), &listed);
                    self.pages[client] = last;
                    "listed"
                }
                _ => {
                    self.unserved += 1;
                    "no answer"
                }
            },
        }
    }

    /// A list saw every key behind the first and up to the last that is given: those that it names, and the absence of the
    /// others. One that is named twice is seen as something that nobody put.
    fn listed(
        &mut self,
        begun: Moment,
        (after, last): (Option<&ObjectKey>, Option<&ObjectKey>),
        listed: &[(ObjectKey, Shown)],
    ) {
        let is_in = |key: &ObjectKey| {
            after.is_none_or(|after| key > after) && last.is_none_or(|last| key <= last)
        };
        for (at, key) in self.keys.iter().enumerate().filter(|(_, key)| is_in(key)) {
            let mut found = listed.iter().filter(|(name, _)| name == key).map(|(_, shown)| *shown);
            let first = found.next();
            let shown = match found.next() {
                Some(_) => Some(Shown { value: u128::MAX, tags: u64::MAX, size: 0 }),
                None => first,
            };
            self.history.saw(at, begun, shown);
        }
    }

    /// A list of what is behind a key, or of all; half of them end after a few keys.
    fn list(&mut self, client: usize, after: Option<ObjectKey>, context: &ProxyContext) -> Task {
        let (slip, context) = (Slip::default(), context.clone());
        let page = self.rng.one_in(2).then(|| 1 + self.rng.below(PAGE_MAX) as usize);
        let begun = self.history.now();
        self.waiting[client] = Some(Waiting::List(begun, after.clone(), slip.clone()));
        Box::pin(async move {
            let listed = context.list(after, page).await;
            *slip.borrow_mut() = Some(Left::List(listed));
        })
    }

    /// A get; of a key that is appended to, where pieces are coalesced, often behind that.
    fn get(
        &mut self,
        key: usize,
        context: &ProxyContext,
    ) -> (&'static str, Invocation, Task, Slip) {
        let coalesces = self.coalesces && key.is_multiple_of(LOGS_ONE_IN) && !self.rng.one_in(3);
        let (key, context) = (self.keys[key].clone(), context.clone());
        let (task, slip) = left(async move {
            if coalesces {
                context.coalesce(&key).await;
            }
            let found = context.get(&key).await;
            found.map_or(Left::Answer(CallResult::Unknown), |(shown, read)| Left::Read(shown, read))
        });
        ("get", Invocation::Get, task, slip)
    }

    fn delete(
        &mut self,
        key: usize,
        context: &ProxyContext,
    ) -> (&'static str, Invocation, Task, Slip) {
        let on = self.draw_if(key, 4);
        let (key, context) = (self.keys[key].clone(), context.clone());
        let (task, slip) = noted(async move { context.delete(key, condition_of(on)).await });
        ("delete", Invocation::Delete(on), task, slip)
    }

    fn set_tags(
        &mut self,
        key: usize,
        context: &ProxyContext,
    ) -> (&'static str, Invocation, Task, Slip) {
        let number = self.next_tags;
        self.next_tags += 1;
        let (key, context) = (self.keys[key].clone(), context.clone());
        let (task, slip) = noted(async move { context.set_tags(key, tags(number)).await });
        ("set tags", Invocation::SetTags(number), task, slip)
    }

    fn put(
        &mut self,
        key: usize,
        context: &ProxyContext,
    ) -> (&'static str, Invocation, Task, Slip) {
        let size = match self.rng.below(100) {
            0..=39 => self.inline_size(),
            40..=94 => INLINE_BYTES_MAX as usize + 1 + self.rng.below(40_000) as usize,
            _ => 60_000 + self.rng.below(80_000) as usize,
        };
        let (value, on) = (self.new_value(key, size), self.draw_if(key, 4));
        let wanted = self.wanted(key, value, on);
        let (bytes, context) = (content(value, size), context.clone());
        let (task, slip) =
            noted(async move { answered(context.put(wanted, Payload::Bytes(bytes)).await) });
        ("put", Invocation::Put(value, on), task, slip)
    }

    fn put_stream(
        &mut self,
        key: usize,
        context: &ProxyContext,
    ) -> (&'static str, Invocation, Task, Slip) {
        let chunk_bytes = HEAD_BYTES + self.rng.below(9_000) as usize;
        let size = chunk_bytes + 1 + self.rng.below(chunk_bytes as u64 * 3) as usize;
        let (value, on) = (self.new_value(key, size), self.draw_if(key, 6));
        let wanted = self.wanted(key, value, on);
        let (bytes, context) = (content(value, size), context.clone());
        let (task, slip) =
            noted(async move { answered(context.put_stream(wanted, bytes, chunk_bytes).await) });
        ("put of a stream", Invocation::Put(value, on), task, slip)
    }

    /// An append: a record, or at the offset where the object was last known to end.
    fn append(
        &mut self,
        key: usize,
        context: &ProxyContext,
    ) -> (&'static str, Invocation, Task, Slip) {
        let (size, chunk_bytes) = match self.rng.below(3) {
            0 => (self.inline_size(), None),
            1 => {
                let size = HEAD_BYTES + self.rng.below(20_000) as usize;
                (size, Some(size))
            }
            _ => {
                let size = 1_000 + self.rng.below(20_000) as usize;
                (size, Some(500 + self.rng.below(8_000) as usize))
            }
        };
        let at = self.rng.one_in(3).then(|| self.ends[key]);
        let (value, on) = (self.fresh_value(size), self.draw_if(key, 12));
        self.ends[key] += len_of(value);
        let plan = AppendPlan {
            wanted: PutRequest { attributes: Attributes::default(), ..self.wanted(key, value, on) },
            bytes: content(value, size),
            at,
            chunk_bytes,
        };
        let context = context.clone();
        let (task, slip) = noted(async move { context.append(plan).await });
        ("append", Invocation::Append(value, at, on), task, slip)
    }

    fn inline_size(&mut self) -> usize {
        HEAD_BYTES + self.rng.below(u64::from(INLINE_BYTES_MAX) - HEAD_BYTES as u64 + 1) as usize
    }

    fn upload(
        &mut self,
        key: usize,
        context: &ProxyContext,
    ) -> (&'static str, Invocation, Task, Slip) {
        let sizes: Vec<usize> =
            (0..1 + self.rng.below(4)).map(|_| 3001 + self.rng.below(9_000) as usize).collect();
        let size = sizes.iter().sum();
        let (value, on) = (self.new_value(key, size), self.draw_if(key, 6));
        let whole = content(value, size);
        let mut from = 0;
        let parts = sizes
            .iter()
            .map(|size| {
                from += size;
                whole.slice(from - size..from)
            })
            .collect();
        let plan = UploadPlan {
            key: self.keys[key].clone(),
            etag: etag_of(value),
            parts,
            chunk_bytes: 4_000 + self.rng.below(8_000) as usize,
            put_again: self.rng.one_in(3),
            abort: self.rng.one_in(4),
            condition: condition_of(on),
        };
        let context = context.clone();
        let (task, slip) = noted(async move { context.upload(plan).await });
        ("upload", Invocation::Put(value, on), task, slip)
    }

    fn wanted(&mut self, key: usize, value: u64, on: CallCondition) -> PutRequest {
        let drop_at = match self.rng.below(40) {
            _ if self.is_probing => None,
            0 => Some(DropAt::Sent),
            1 | 2 => Some(DropAt::Granted),
            3 => Some(DropAt::Durable),
            _ => None,
        };
        let ballast = if self.ballast > 0 && self.rng.one_in(3) { self.ballast } else { 0 };
        PutRequest {
            key: self.keys[key].clone(),
            target: Target::Version,
            etag: etag_of(value),
            attributes: Attributes {
                content_type: (ballast > 0).then(|| "b".repeat(ballast)),
                ..Attributes::default()
            },
            condition: condition_of(on),
            drop_at,
        }
    }

    /// A value that is to take the place of what a key has.
    fn new_value(&mut self, key: usize, size: usize) -> u64 {
        let value = self.fresh_value(size);
        self.latest[key] = value;
        self.ends[key] = len_of(value);
        value
    }

    fn fresh_value(&mut self, size: usize) -> u64 {
        let number = self.next_value;
        self.next_value += 1;
        value(number, size)
    }

    /// A condition once in `one_in` times.
    fn draw_if(&mut self, key: usize, one_in: u64) -> CallCondition {
        if !self.rng.one_in(one_in) {
            return CallCondition::Always;
        }
        match self.rng.below(3) {
            0 => CallCondition::Absent,
            1 => CallCondition::Present,
            // Of the last value, or of none that was.
            _ => CallCondition::Value(self.latest[key] + u64::from(self.rng.one_in(3))),
        }
    }
}

fn answered<T>(result: Result<T, CallResult>) -> CallResult {
    result.map_or_else(|answered| answered, |_done| CallResult::Done)
}

fn noted(call: impl Future<Output = CallResult> + 'static) -> (Task, Slip) {
    left(async move { Left::Answer(call.await) })
}

fn left(call: impl Future<Output = Left> + 'static) -> (Task, Slip) {
    let slip = Slip::default();
    let to = slip.clone();
    let task = Box::pin(async move {
        let left = call.await;
        *to.borrow_mut() = Some(left);
    });
    (task, slip)
}

impl ProxyContext {
    async fn delete(&self, key: ObjectKey, condition: Condition) -> CallResult {
        let (pg, open) = (self.pg_of(&key), self.begin_request());
        let call = larder_protocol::Call::Delete {
            request: open.request,
            bucket: BUCKET,
            epoch: crate::index::EPOCH,
            key,
            condition,
        };
        answered(self.op(pg, call).await)
    }

    async fn set_tags(&self, key: ObjectKey, tags: Vec<(String, String)>) -> CallResult {
        let (pg, open) = (self.pg_of(&key), self.begin_request());
        let request = open.request;
        let call = larder_protocol::Call::SetTags { request, bucket: BUCKET, key, tags };
        answered(self.op(pg, call).await)
    }
}
