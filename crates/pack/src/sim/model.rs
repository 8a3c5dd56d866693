//! The model of a packed store. It should show every change that was answered, in order, and after
//! the loss of a directory those of the blobs that were uploaded.

use std::collections::BTreeMap;

use larder_types::UploadId;

use crate::ids::BlobId;

/// The effect of one change. Values are numbers, each given once; an object is a sequence of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Effect {
    Set { key: String, values: Vec<u64> },
    Remove { key: String },
    Begin { upload: Option<UploadId>, key: String },
    Part { upload: UploadId, number: u16, value: u64 },
    Complete { upload: UploadId, key: String, values: Vec<u64> },
    Abort { upload: UploadId },
}

/// An open upload.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Open {
    pub(crate) key: String,
    pub(crate) parts: BTreeMap<u16, u64>,
}

/// The state that there should be.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) objects: BTreeMap<String, Vec<u64>>,
    pub(crate) uploads: BTreeMap<UploadId, Open>,
}

/// All that was answered, with the blob that has it, since there was this.
#[derive(Debug, Clone, Default)]
pub(crate) struct History {
    base: State,
    changes: Vec<(BlobId, Effect)>,
    pub(crate) now: State,
}

impl State {
    fn apply(&mut self, effect: &Effect) {
        match effect.clone() {
            Effect::Set { key, values } => {
                self.objects.insert(key, values);
            }
            Effect::Remove { key } => {
                self.objects.remove(&key);
            }
            Effect::Begin { upload, key } => {
                let upload = upload.expect("an upload that was begun has an id");
                self.uploads.insert(upload, Open { key, parts: BTreeMap::new() });
            }
            Effect::Part { upload, number, value } => {
                let open = self.uploads.get_mut(&upload).expect("parts are put into open uploads");
                open.parts.insert(number, value);
            }
            Effect::Complete { upload, key, values } => {
                self.uploads.remove(&upload);
                self.objects.insert(key, values);
            }
            Effect::Abort { upload } => {
                self.uploads.remove(&upload);
            }
        }
    }
}

impl History {
    /// Begins a history: the changes that are answered from now on, to a store that shows this.
    pub(crate) fn since(base: State) -> Self {
        Self { now: base.clone(), base, changes: Vec::new() }
    }

    pub(crate) fn push(&mut self, blob: BlobId, effect: Effect) {
        self.now.apply(&effect);
        self.changes.push((blob, effect));
    }

    /// Everything after this blob is lost.
    pub(crate) fn cut_after(&mut self, last: BlobId) {
        self.changes.retain(|(blob, _)| *blob <= last);
        self.now = self.base.clone();
        for (_, effect) in &self.changes {
            self.now.apply(effect);
        }
    }
}
