//! Puts in order, to measure what writing in parallel gains, volumes that follow PGs, and reads that wait for METAX. Only
//! with the feature `ablation`, which no release has. The environment says what a process does without.

/// True if this process, a proxy, writes data only after METAX was persisted: a word of its command line has that of the
/// variable in it, such as `node-2/`.
pub(crate) fn writes_are_ordered() -> bool {
    let asked = std::env::var("LARDER_ORDERED");
    asked.is_ok_and(|asked| std::env::args().any(|word| word.contains(&asked)))
}

/// True if this process, a manager, has the volumes of a PG follow its members.
pub(crate) fn groups_are_left_out() -> bool {
    std::env::var_os("LARDER_WITHOUT_GROUPS").is_some()
}

/// True if this process, a proxy, reads nothing before METAX has named it.
pub(crate) fn locations_are_left_out() -> bool {
    std::env::var_os("LARDER_WITHOUT_LOCATIONS").is_some()
}
