//! What makes a process worse, for `larder bench ordered`. Only with the feature `ablation`: a release refuses a
//! configuration with this section, since it knows no such field.

use std::time::Duration;

use larder_env::ablation::DiskAblation;
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
    /// Data is written only after METAX was persisted; of a proxy.
    pub(crate) ordered: bool,
    /// Each object's data is a file of its own; of a data server.
    pub(crate) plain_files: bool,
    /// METAX is three writes, each durable before the next; of a meta server.
    pub(crate) separate_metax: bool,
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
        larder_env::ablation::choose(DiskAblation {
            sync_min: Duration::from_micros(self.sync_us),
            plain_files: self.plain_files.then(|| DATA_FILE.to_owned()),
            separate_metax: self.separate_metax.then(|| LOG_DIR.to_owned()),
        });
        larder_net::ablation::choose(Duration::from_micros(self.network_us) / 2);
        if self.ordered {
            larder_roles::ablation::order_writes();
        }
        if self.without_groups {
            larder_roles::ablation::leave_out_groups();
        }
    }
}
