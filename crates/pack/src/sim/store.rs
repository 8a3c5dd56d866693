//! A backend that fails as one does: requests that take effect and are answered with an error, or later, or twice;
//! lists that do not show what is new.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use larder_env::SeededRng;
use object_store::memory::InMemory;
use object_store::path::Path as Name;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, ObjectStoreExt, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult,
    Result,
};
use parking_lot::Mutex;

use crate::backend::Backend;
use crate::format::blob;
use crate::ids::WorkerId;
use crate::owner::counting::{self, Counting, Known, Listed, RECORD};

/// The backend of a simulation. Its objects outlive every process.
#[derive(Debug)]
pub(crate) struct SimStore {
    inner: InMemory,
    state: Mutex<State>,
}

struct State {
    rng: SeededRng,
    /// Nothing fails and everything is seen.
    is_calm: bool,
    /// Lists show everything.
    is_prompt: bool,
    /// Writes of names with this in them fail, and come late.
    late_part: Option<&'static str>,
    /// Requests that were answered with an error and have not taken effect yet.
    late: Vec<Late>,
    /// Objects that lists do not show yet.
    unlisted: Vec<Name>,
    /// Numbers and records of processes that were ever there.
    made: BTreeSet<Name>,
    /// Objects that were removed, and that a late request made again.
    back: BTreeSet<Name>,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State").field("late", &self.late.len()).finish_non_exhaustive()
    }
}

/// An object that is still on its way.
#[derive(Debug, Clone)]
struct Late {
    name: Name,
    bytes: Bytes,
    mode: PutMode,
}

/// The fate of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Done,
    /// And again later.
    Twice,
    Failed,
    FailedAndDone,
    FailedAndLate,
}

impl SimStore {
    pub(crate) fn new(seed: u64) -> Arc<Self> {
        let (late, unlisted) = (Vec::new(), Vec::new());
        let rng = SeededRng::new(seed);
        let (is_calm, is_prompt, late_part) = (false, false, None);
        let (made, back) = (BTreeSet::new(), BTreeSet::new());
        let state = State { rng, is_calm, is_prompt, late_part, late, unlisted, made, back };
        Arc::new(Self { inner: InMemory::new(), state: Mutex::new(state) })
    }

    /// From now on lists show everything.
    pub(crate) fn set_prompt(&self) {
        let mut state = self.state.lock();
        state.is_prompt = true;
        state.unlisted.clear();
    }

    /// From now on writes of names with this in them are answered with an error, and come late.
    pub(crate) fn set_late(&self, part: Option<&'static str>) {
        self.state.lock().late_part = part;
    }

    pub(crate) fn set_calm(&self, is_calm: bool) {
        self.state.lock().is_calm = is_calm;
    }

    /// Lets a request take effect that was answered long ago; false if there is none.
    pub(crate) async fn deliver_one_late(&self) -> bool {
        let Late { name, bytes, mode } = {
            let mut state = self.state.lock();
            let number = state.late.len() as u64;
            if number == 0 {
                return false;
            }
            let at = state.rng.below(number) as usize;
            state.late.swap_remove(at)
        };
        let Some(other) = other_of_process(&name) else {
            // One that is there meanwhile stays, if that is the condition.
            let _exists = self.take(&name, bytes, &mode).await;
            return true;
        };
        // Once both were removed only one of them comes back. By then no request for a number is
        // under way any more of a process that has sent its record (`numbering/forgetting.rs`).
        // Alone, either may come.
        let (was_there, is_other_back) = {
            let state = self.state.lock();
            (state.made.contains(&name), state.back.contains(&other))
        };
        if was_there && is_other_back && self.inner.head(&other).await.is_ok() {
            return true;
        }
        if self.take(&name, bytes, &mode).await.is_ok() && was_there {
            self.state.lock().back.insert(name);
        }
        true
    }

    async fn take(&self, name: &Name, bytes: Bytes, mode: &PutMode) -> Result<()> {
        let options = PutOptions { mode: mode.clone(), ..PutOptions::default() };
        self.inner.put_opts(name, bytes.into(), options).await?;
        if other_of_process(name).is_some() {
            self.state.lock().made.insert(name.clone());
        }
        Ok(())
    }

    /// Names of all blobs below a prefix that count.
    pub(crate) async fn counted(self: &Arc<Self>, prefix: &str) -> BTreeSet<String> {
        let all = self.listed(prefix).await.into_iter();
        all.map(|blob| blob.name.path()).collect()
    }

    /// The last blob of a worker that counts; 0 if none does.
    pub(crate) async fn last_that_counts(self: &Arc<Self>, prefix: &str, worker: WorkerId) -> u64 {
        let ids = self.listed(prefix).await.into_iter().map(|blob| blob.name.id);
        ids.filter(|id| id.worker == worker).map(|id| id.seq).max().unwrap_or(0)
    }

    async fn listed(self: &Arc<Self>, prefix: &str) -> Vec<Listed> {
        let was_calm = std::mem::replace(&mut self.state.lock().is_calm, true);
        let backend = Backend::over(self.clone()).below(prefix);
        let listed = Listed::all(backend.names(blob::PREFIX).await.unwrap()).unwrap();
        let counting = Counting::read(&backend, &Known::default()).await.unwrap();
        self.set_calm(was_calm);
        counting.counted(listed).unwrap()
    }

    /// Lists show everything from now on.
    pub(crate) fn catch_up(&self) {
        self.state.lock().unlisted.clear();
    }

    pub(crate) async fn names(&self, prefix: &str) -> Vec<String> {
        let found = self.inner.list(Some(&Name::from(prefix)));
        let mut names: Vec<_> =
            found.map_ok(|object| object.location.to_string()).try_collect().await.unwrap();
        names.sort();
        names
    }

    pub(crate) async fn get(&self, name: &str) -> Option<Bytes> {
        self.inner.get(&Name::from(name)).await.ok()?.bytes().await.ok()
    }

    pub(crate) async fn set(&self, name: &str, bytes: Bytes) {
        self.inner.put(&Name::from(name), bytes.into()).await.unwrap();
    }

    pub(crate) async fn remove(&self, name: &str) {
        self.inner.delete(&Name::from(name)).await.unwrap();
    }

    fn fate_of_write(&self, name: &Name) -> Fate {
        let late_part = {
            let state = self.state.lock();
            state.late_part.filter(|_| !state.is_calm)
        };
        match late_part.is_some_and(|part| name.as_ref().contains(part)) {
            true => Fate::FailedAndLate,
            false => self.fate(),
        }
    }

    fn fate(&self) -> Fate {
        let mut state = self.state.lock();
        if state.is_calm {
            return Fate::Done;
        }
        match state.rng.below(20) {
            0 => Fate::Failed,
            1 => Fate::FailedAndDone,
            2 => Fate::FailedAndLate,
            3 => Fate::Twice,
            _ => Fate::Done,
        }
    }

    /// The request is on its way: others go on meanwhile.
    async fn travel(&self) {
        let steps = {
            let mut state = self.state.lock();
            if state.is_calm { 0 } else { state.rng.below(3) }
        };
        for _ in 0..steps {
            let mut is_first = true;
            std::future::poll_fn(|_| match std::mem::take(&mut is_first) {
                true => std::task::Poll::Pending,
                false => std::task::Poll::Ready(()),
            })
            .await;
        }
    }

    async fn write(&self, name: &Name, bytes: Bytes, mode: PutMode) -> Result<()> {
        self.travel().await;
        let fate = self.fate_of_write(name);
        let mut taken = Ok(());
        if matches!(fate, Fate::Done | Fate::Twice | Fate::FailedAndDone) {
            {
                let mut state = self.state.lock();
                let is_late = !state.is_calm && !state.is_prompt && state.rng.one_in(3);
                if is_late && mode != PutMode::Create {
                    state.unlisted.push(name.clone());
                }
            }
            taken = self.take(name, bytes.clone(), &mode).await;
        }
        if matches!(fate, Fate::Twice | Fate::FailedAndLate) {
            self.state.lock().late.push(Late { name: name.clone(), bytes, mode });
        }
        match fate {
            Fate::Done | Fate::Twice => taken,
            _ => Err(Error::Generic { store: "sim", source: "timed out".into() }),
        }
    }
}

/// The name of the record that belongs to a process's number, or of the number that belongs to a record.
fn other_of_process(name: &Name) -> Option<Name> {
    let name = name.as_ref();
    let is_process =
        name.starts_with(counting::PREFIX) || name.contains(&format!("/{}/", counting::PREFIX));
    is_process.then(|| match name.strip_suffix(RECORD) {
        Some(number) => Name::from(number),
        None => Name::from(format!("{name}{RECORD}")),
    })
}

impl fmt::Display for SimStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a simulated store")
    }
}

#[async_trait]
impl ObjectStore for SimStore {
    async fn put_opts(
        &self,
        name: &Name,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        let bytes = Bytes::from(payload);
        self.write(name, bytes, options.mode).await?;
        Ok(PutResult { e_tag: None, version: None, extensions: Default::default() })
    }

    async fn put_multipart_opts(
        &self,
        _name: &Name,
        _options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        panic!("blobs of a simulation are small")
    }

    async fn get_opts(&self, name: &Name, options: GetOptions) -> Result<GetResult> {
        self.travel().await;
        if matches!(self.fate(), Fate::Failed) {
            return Err(Error::Generic { store: "sim", source: "timed out".into() });
        }
        self.inner.get_opts(name, options).await
    }

    fn delete_stream(
        &self,
        names: BoxStream<'static, Result<Name>>,
    ) -> BoxStream<'static, Result<Name>> {
        // A stream outlives the borrow of this store: its fate is decided at once.
        let fate = self.fate();
        let inner = self.inner.delete_stream(names);
        match fate {
            Fate::Failed | Fate::FailedAndLate => {
                let error = Error::Generic { store: "sim", source: "timed out".into() };
                stream::once(async { Err(error) }).boxed()
            }
            Fate::FailedAndDone => inner
                .map(|_| Err(Error::Generic { store: "sim", source: "timed out".into() }))
                .boxed(),
            Fate::Done | Fate::Twice => inner,
        }
    }

    fn list(&self, prefix: Option<&Name>) -> BoxStream<'static, Result<ObjectMeta>> {
        let unlisted = {
            let state = self.state.lock();
            if state.is_calm { Vec::new() } else { state.unlisted.clone() }
        };
        let listed = self.inner.list(prefix);
        listed
            .try_filter(move |object| {
                let is_seen = !unlisted.contains(&object.location);
                async move { is_seen }
            })
            .boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Name>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Name, to: &Name, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}
