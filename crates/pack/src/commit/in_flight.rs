//! Large objects that are being uploaded, before the index references them, so that the garbage collector spares them.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::ids::StandaloneId;

/// Objects that are being written, or were and are not yet named by the index.
#[derive(Debug, Default)]
pub(crate) struct StandalonesInFlight(Mutex<BTreeSet<StandaloneId>>);

/// Keeps one object in the set; dropping this takes it out.
#[derive(Debug)]
pub(crate) struct InFlightUpload {
    all: Arc<StandalonesInFlight>,
    id: StandaloneId,
}

impl StandalonesInFlight {
    pub(crate) fn enter(self: &Arc<Self>, id: StandaloneId) -> InFlightUpload {
        self.0.lock().insert(id);
        InFlightUpload { all: self.clone(), id }
    }

    pub(crate) fn has(&self, id: StandaloneId) -> bool {
        self.0.lock().contains(&id)
    }
}

impl InFlightUpload {
    pub(crate) fn id(&self) -> StandaloneId {
        self.id
    }
}

impl Drop for InFlightUpload {
    fn drop(&mut self) {
        self.all.0.lock().remove(&self.id);
    }
}
