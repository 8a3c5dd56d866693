//! Ablations of the processes of a new cluster, for `larder bench ordered`; in a release none.

use super::layout::PartRole;
use crate::args::DevClusterArgs;

/// The section `ablation` of the configuration of a role of this node.
#[cfg(feature = "ablation")]
pub(super) fn section(args: &DevClusterArgs, node: usize, role: PartRole) -> toml::Table {
    let mut section = args.ablation.clone();
    if role == PartRole::Proxy && args.ordered_node == Some(node + 1) {
        section.insert("ordered".to_owned(), true.into());
    }
    if args.worse_node == Some(node + 1) {
        section.extend(args.worse.clone());
    }
    section
}

#[cfg(not(feature = "ablation"))]
pub(super) fn section(_args: &DevClusterArgs, _node: usize, _role: PartRole) -> toml::Table {
    toml::Table::new()
}
