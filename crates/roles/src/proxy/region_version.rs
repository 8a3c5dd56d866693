//! Another region's version, as a put of its body here needs it.

use larder_protocol::region::{Entry, RemoteChange, RemotePutCall, entry};
use larder_protocol::{Call, Description, PutCall};
use larder_types::{Amendments, Metax, Origin, PartRef, Stamp};

/// See the module's head.
#[derive(Debug, Clone)]
pub(super) struct RegionVersion {
    metax: Metax,
    at: Stamp,
    origin: Origin,
    parts: Vec<PartRef>,
    amended: Amendments,
}

impl RegionVersion {
    pub(super) fn of(entry: &Entry, object: &entry::Object) -> Self {
        let entry::Object { metax, parts, amended, .. } = object.clone();
        Self { metax, at: entry.at, origin: entry.origin, parts, amended }
    }

    /// The description that the other region gave, in place of the one derived from the bytes.
    pub(super) fn description(&self) -> Description {
        let Metax { size, etag, checksum, attributes, .. } = self.metax.clone();
        Description { size, etag, checksum, attributes }
    }

    /// Makes the call that puts it.
    pub(super) fn call(&self, put: PutCall) -> Call {
        let Self { at, origin, parts, amended, .. } = self.clone();
        Call::RemoteChange(Box::new(RemoteChange::Put(Box::new(RemotePutCall {
            put,
            at,
            origin,
            parts,
            amended,
        }))))
    }
}
