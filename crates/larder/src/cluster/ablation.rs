//! Delays and left-out optimisations of a process, for `larder bench ordered` and `policies`. Only with the feature `ablation`: a release refuses a
//! configuration with this section, since it knows no such field.

use std::time::Duration;

use larder_env::ablation::{DiskAblation, ReadAblation};
use larder_roles::meta::LOG_DIR;
use larder_roles::store::DATA_FILE;
use serde::Deserialize;

/// The section `[ablation]` of a role's configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Ablation {
    /// Microseconds that a question to another server and its answer take longer.
    pub(crate) network_us: u64,
    /// Microseconds that a sync takes at least.
    pub(crate) sync_us: u64,
    /// Microseconds that a read of data takes at least, from a modelled device without a page cache; 0 for the real one.
    pub(crate) read_us: u64,
    /// Reads that this device serves at once.
    pub(crate) read_lanes: u16,
    /// Milliseconds for which it stands still, of every `stall_every_ms`.
    pub(crate) stall_ms: u64,
    /// See `stall_ms`.
    pub(crate) stall_every_ms: u64,
    /// Data is written only after METAX was persisted; of a proxy.
    pub(crate) ordered: bool,
    /// Each object's data is a file of its own; of a data server.
    pub(crate) plain_files: bool,
    /// METAX is three writes, each durable before the next; of a meta server.
    pub(crate) separate_metax: bool,
    /// Nothing is read before METAX has named it; of a proxy.
    pub(crate) without_locations: bool,
    /// The volumes of a PG follow its members, so that a PG that moves moves data; of a manager.
    pub(crate) without_groups: bool,
}

impl Ablation {
    /// Makes this process worse; before it opens or connects anything, and on its first thread.
    pub(crate) fn begin(&self) {
        tracing::warn!(
            ?self,
            "this process is made worse, for measurement: put nothing of value into it"
        );
        let reads = ReadAblation {
            read_min: Duration::from_micros(self.read_us),
            lanes: self.read_lanes,
            stall: Duration::from_millis(self.stall_ms),
            stall_every: Duration::from_millis(self.stall_every_ms),
        };
        larder_env::ablation::choose(DiskAblation {
            reads: (self.read_us > 0).then(|| (DATA_FILE.to_owned(), reads)),
            sync_min: Duration::from_micros(self.sync_us),
            plain_files: self.plain_files.then(|| DATA_FILE.to_owned()),
            separate_metax: self.separate_metax.then(|| LOG_DIR.to_owned()),
        });
        larder_net::ablation::choose(Duration::from_micros(self.network_us) / 2);
        if self.ordered {
            larder_roles::ablation::order_writes();
        }
        if self.without_locations {
            larder_roles::ablation::leave_out_locations();
        }
        if self.without_groups {
            larder_roles::ablation::leave_out_groups();
        }
    }
}
