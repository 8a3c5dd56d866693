//! Chooses the requests of a run. Pure: no clock, no network.
//!
//! # Invariants
//! - A run's keys begin with a name of its own, so that no run meets another's objects.
//! - No request of a run can fail because of another of the same run: an object is deleted only by
//!   the worker that alone reads it.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::client::Client;
use crate::content::Content;
use crate::error::CallError;
use crate::sign::encode_value;

/// The operation that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Puts of new objects.
    Put,
    /// Records appended to some objects, evenly at random.
    Append {
        /// Objects that are appended to.
        objects: u64,
    },
    /// Reads of preloaded objects, evenly at random.
    Get,
    /// Questions for their heads, evenly at random.
    Head,
    /// All three, on preloaded objects and on those put meanwhile.
    Mixed(Mix),
    /// Deletes of preloaded objects, each once.
    Delete,
    /// Pages of preloaded objects, each page begun at random.
    List {
        /// Keys asked for.
        page: u64,
    },
}

impl Operation {
    /// Its name on the command line.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Put => "put",
            Self::Append { .. } => "append",
            Self::Get => "get",
            Self::Head => "head",
            Self::Mixed(_) => "mixed",
            Self::Delete => "delete",
            Self::List { .. } => "list",
        }
    }
}

/// Shares of a mixed load, in percent; they add up to 100.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mix {
    get: u8,
    put: u8,
}

impl std::str::FromStr for Mix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let shares: Option<Vec<u8>> = text.split(',').map(|share| share.parse().ok()).collect();
        match shares.as_deref() {
            Some(&[get, put, delete])
                if u16::from(get) + u16::from(put) + u16::from(delete) == 100 =>
            {
                Ok(Self { get, put })
            }
            _ => Err(format!(
                "{text:?} is not a mix: write the percentages of get, put and delete, which add up \
                 to 100, as in 70,25,5"
            )),
        }
    }
}

/// One request, on objects by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// Put this object.
    Put(u64),
    /// Append a record to it.
    Append(u64),
    /// Read it.
    Get(u64),
    /// Ask for its head.
    Head(u64),
    /// Delete it.
    Delete(u64),
    /// List the `page` keys that follow object `after`.
    List {
        /// The object before the page.
        after: u64,
        /// Keys asked for.
        page: u64,
    },
}

/// The supply of keys that the workers of a run share.
#[derive(Debug)]
pub struct Supply {
    preloaded: u64,
    next_put: AtomicU64,
    next_delete: AtomicU64,
}

impl Supply {
    /// Objects `0` to `preloaded - 1` are there; puts begin after them.
    #[must_use]
    pub fn new(preloaded: u64) -> Arc<Self> {
        Arc::new(Self {
            preloaded,
            next_put: AtomicU64::new(preloaded),
            next_delete: AtomicU64::new(0),
        })
    }
}

/// Chooses one worker's requests.
#[derive(Debug)]
pub struct Source {
    operation: Operation,
    supply: Arc<Supply>,
    random: Random,
    /// The objects that this worker of a mixed load alone reads and deletes.
    own: Vec<u64>,
}

impl Source {
    /// The source of the `worker`-th of `workers`.
    #[must_use]
    pub fn new(operation: Operation, supply: &Arc<Supply>, worker: usize, workers: usize) -> Self {
        let own = match operation {
            Operation::Mixed(_) => (worker as u64..supply.preloaded).step_by(workers).collect(),
            _ => Vec::new(),
        };
        Self { operation, supply: Arc::clone(supply), random: Random(worker as u64), own }
    }

    /// The next request; `None` when there is nothing left to delete.
    pub fn choose(&mut self) -> Option<Call> {
        let preloaded = self.supply.preloaded;
        match self.operation {
            Operation::Put => Some(self.put()),
            Operation::Append { objects } => Some(Call::Append(self.random.below(objects))),
            Operation::Get => Some(Call::Get(self.random.below(preloaded))),
            Operation::Head => Some(Call::Head(self.random.below(preloaded))),
            Operation::List { page } => {
                let starts = preloaded.saturating_sub(page).max(1);
                Some(Call::List { after: self.random.below(starts), page })
            }
            Operation::Delete => {
                let index = self.supply.next_delete.fetch_add(1, Ordering::Relaxed);
                (index < preloaded).then_some(Call::Delete(index))
            }
            Operation::Mixed(mix) => Some(self.mixed(mix)),
        }
    }

    /// Notes the result of a request that [`Source::choose`] gave.
    pub fn settle(&mut self, call: Call, succeeded: bool) {
        if let (Operation::Mixed(_), Call::Put(index), true) = (self.operation, call, succeeded) {
            self.own.push(index);
        }
    }

    fn put(&self) -> Call {
        Call::Put(self.supply.next_put.fetch_add(1, Ordering::Relaxed))
    }

    fn mixed(&mut self, mix: Mix) -> Call {
        let share = self.random.below(100);
        // A put also stands in for what has no object to act on.
        if self.own.is_empty() || (mix.get..mix.get + mix.put).contains(&(share as u8)) {
            return self.put();
        }
        let place = self.random.below(self.own.len() as u64) as usize;
        match share < u64::from(mix.get) {
            true => Call::Get(self.own[place]),
            false => Call::Delete(self.own.swap_remove(place)),
        }
    }
}

/// The names of a run's objects, and their content.
#[derive(Debug)]
pub struct Keyspace {
    /// Beginning of all keys, with its `/`.
    pub prefix: String,
    /// Bytes of each object.
    pub size: u64,
    /// Objects preloaded.
    pub preloaded: u64,
    /// True if the endpoint is a floor server, which keeps nothing and reads one file under every key.
    pub floor: bool,
}

impl Keyspace {
    /// Makes the request and checks the answer; gives the bytes of the object moved.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn perform(&self, client: &mut Client, call: Call) -> Result<u64, CallError> {
        match call {
            Call::Put(index) => {
                let key = self.key(index);
                client.put(&key, Content::new(&key, self.size)).await?;
                Ok(self.size)
            }
            Call::Append(index) => {
                let key = self.key(index);
                client.append(&key, Content::new(&key, self.size)).await?;
                Ok(self.size)
            }
            Call::Get(index) => {
                let key = self.key(index);
                let content = match self.floor {
                    true => Content::of_floor(self.size),
                    false => Content::new(&key, self.size),
                };
                client.get(&key, content).await?;
                Ok(self.size)
            }
            Call::Head(index) => {
                client.head(&self.key(index), self.size).await?;
                Ok(0)
            }
            Call::Delete(index) => {
                client.delete(&self.key(index)).await?;
                Ok(0)
            }
            Call::List { after, page } => {
                let text = client.query_bucket(&self.page_query(after, page)).await?;
                self.check_page(&text, after, page)?;
                Ok(0)
            }
        }
    }

    /// Finds keys of the run's objects after this one, at most a page of them; none at the end.
    ///
    /// # Errors
    /// [`CallError`]; [`CallError::Wrong`] if the page has a key that comes before.
    pub async fn find(&self, client: &mut Client, after: &str) -> Result<Vec<String>, CallError> {
        let mut query = "list-type=2&max-keys=1000&prefix=".to_owned();
        encode_value(&self.prefix, &mut query);
        query.push_str("&start-after=");
        encode_value(after, &mut query);
        let text = client.query_bucket(&query).await?;
        let key = |entry: &str| entry.split_once('<').map(|(key, _)| key.to_owned());
        let keys: Vec<String> = text.split("<Key>").skip(1).filter_map(key).collect();
        match keys.iter().all(|key| key.as_str() > after && key.starts_with(&self.prefix)) {
            true => Ok(keys),
            false => Err(CallError::Wrong("a list has a key that was not asked for")),
        }
    }

    fn page_query(&self, after: u64, page: u64) -> String {
        let mut query = format!("list-type=2&max-keys={page}&prefix=");
        encode_value(&self.prefix, &mut query);
        query.push_str("&start-after=");
        encode_value(&self.key(after), &mut query);
        query
    }

    /// Compares the keys of a page with those that were preloaded: all, in order, and no other.
    fn check_page(&self, text: &str, after: u64, page: u64) -> Result<(), CallError> {
        let end = if self.floor { 0 } else { self.preloaded.min(after + 1 + page) };
        let mut expected = after + 1..end;
        let mut key = String::new();
        for entry in text.split("<Key>").skip(1) {
            let index = expected.next().ok_or(CallError::Wrong("a list has keys too many"))?;
            key.clear();
            self.push_key(index, &mut key);
            if entry.split_once('<').map(|(found, _)| found) != Some(&key) {
                return Err(CallError::Wrong("a list lacks a key or has another"));
            }
        }
        match expected.is_empty() {
            true => Ok(()),
            false => Err(CallError::Wrong("a list ends too early")),
        }
    }

    /// Object `index`'s key: keys sort as their numbers do, and end in the size.
    fn key(&self, index: u64) -> String {
        let mut key = String::with_capacity(self.prefix.len() + 32);
        self.push_key(index, &mut key);
        key
    }

    fn push_key(&self, index: u64, key: &mut String) {
        let _ = write!(key, "{}{index:010}-{}", self.prefix, self.size);
    }
}

/// A small generator for choices (splitmix64).
#[derive(Debug)]
pub struct Random(pub u64);

impl Random {
    /// A number below `bound`, which is not 0; the bias is below `bound` in 2^64.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^= word >> 31;
        ((u128::from(word) * u128::from(bound)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests;
