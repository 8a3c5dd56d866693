//! The background work of meta servers, as they report it: rebuild, scrub, floors, comparisons of indexes,
//! compaction, and how far their log is trimmed.

use std::io::Write;
use std::time::Duration;

use bytes::Bytes;
use larder_net::Peer;
use larder_protocol::manager::state::{ServerRecord, ServerRole, ServerState, Topology};
use larder_roles::observed::IssueDuration;
use larder_roles::peers::Peers;
use larder_roles::progress::{
    BackgroundStatus, CompactionStatus, DigestsStatus, DoubtsStatus, FloorsStatus, LogKept,
    LogStatus, Progress, RebuildStatus, ScrubStatus, SpaceStatus,
};
use larder_roles::wire::{MetaCall, MetaReply, MetaService};
use larder_types::ServerId;
use larder_types::codec::decode;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::bar::bar;
use super::doubts::{self, Doubts};

/// The time that a meta server has to answer.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Thousandths of a round.
const WHOLE: usize = 1000;

/// The report of a meta server.
#[derive(Debug, Serialize)]
pub(super) struct Background {
    pub(super) server: u32,
    pub(super) name: String,
    /// `None` if it did not answer.
    pub(super) progress: Option<Progress>,
    /// Puts in doubt; `None` if it did not answer, or is of an earlier release.
    pub(super) doubts: Option<Doubts>,
    /// The same of its volumes.
    #[serde(skip)]
    pub(super) space: Option<SpaceStatus>,
}

/// The meta servers that are up, by number.
fn metas(map: &Topology) -> impl Iterator<Item = (ServerId, &ServerRecord)> {
    let is_asked =
        |it: &ServerRecord| it.state == ServerState::Up && it.roles.contains(&ServerRole::Meta);
    map.servers.iter().filter(move |(_, it)| is_asked(it)).map(|(id, it)| (*id, it))
}

/// Asks all meta servers that are up for their space alone, side by side. One that does not answer is left out.
pub(super) async fn spaces(
    peers: &Peers<MetaService>,
    map: &Topology,
) -> Vec<(ServerId, SpaceStatus)> {
    let mut asked = JoinSet::new();
    for (id, _) in metas(map) {
        let peer = peers.of(map, id);
        asked.spawn(async move {
            let asked = StatusQuery { server: id, peer, deadline: Instant::now() + TIMEOUT };
            let space = asked.fetch(MetaCall::Space, &MetaReply::Space).await;
            Some((id, space?))
        });
    }
    asked.join_all().await.into_iter().flatten().collect()
}

/// Asks all meta servers that are up, side by side; by server.
pub(super) async fn ask(peers: &Peers<MetaService>, map: &Topology) -> Vec<Background> {
    let mut asked = JoinSet::new();
    for (id, record) in metas(map) {
        let (peer, name) = (peers.of(map, id), record.name.clone());
        asked.spawn(async move {
            let asked = StatusQuery { server: id, peer, deadline: Instant::now() + TIMEOUT };
            let progress = asked.fetch(MetaCall::Progress, &MetaReply::Progress).await;
            let doubts = asked.fetch::<DoubtsStatus>(MetaCall::Doubts, &MetaReply::Doubts).await;
            let space = asked.fetch(MetaCall::Space, &MetaReply::Space).await;
            (Background { server: id.0, name, progress, doubts: None, space }, doubts)
        });
    }
    let named = asked.join_all().await.into_iter().map(|(background, doubts)| {
        let doubts = doubts.map(|doubts| Doubts::of(doubts, map));
        Background { doubts, ..background }
    });
    let mut all: Vec<Background> = named.collect();
    all.sort_by_key(|it| it.server);
    all
}

/// A meta server that is asked.
struct StatusQuery {
    server: ServerId,
    peer: Option<Peer<MetaService>>,
    deadline: Instant,
}

impl StatusQuery {
    /// Asks for something that comes in the payload; `None` if it does not answer, or is of an earlier release.
    async fn fetch<T: DeserializeOwned>(&self, call: MetaCall, expected: &MetaReply) -> Option<T> {
        let peer = self.peer.as_ref()?;
        let (reply, payload) = peer.call(&call, Bytes::new(), self.deadline).await.ok()?;
        let fetched = match reply == *expected {
            true => decode("answer of a meta server", &payload).map_err(|error| error.to_string()),
            false => Err(format!("{reply:?}")),
        };
        let server = self.server;
        fetched
            .inspect_err(
                |error| tracing::warn!(%server, %error, "a server's status cannot be decoded"),
            )
            .ok()
    }
}

pub(super) fn write_text(out: &mut impl Write, all: &[Background]) -> std::io::Result<()> {
    if all.is_empty() {
        return Ok(());
    }
    writeln!(out, "\nbackground work of meta servers")?;
    for Background { name, progress, doubts, .. } in all {
        let Some(progress) = progress else {
            writeln!(out, "  {name}: does not answer")?;
            continue;
        };
        write!(out, "  {name}: ")?;
        work(out, progress)?;
        if let Some(doubts) = doubts {
            doubts::write_text(out, doubts)?;
        }
    }
    Ok(())
}

/// The background work of one meta server: its rate, then a line for each kind of work.
pub(crate) fn work(out: &mut impl Write, progress: &Progress) -> std::io::Result<()> {
    let Progress { background, rebuild, scrub, floors, digests, compaction, log } = progress;
    writeln!(out, "{}", rate(background))?;
    if let Some(line) = missing(rebuild) {
        writeln!(out, "    rebuild  {line}")?;
    }
    writeln!(out, "    scrub    {}", verified(scrub.as_ref()))?;
    if let Some(bad) = scrub.map(|scrub| scrub.bad).filter(|bad| *bad > 0) {
        writeln!(out, "    {bad} DAMAGED copies were found: see its log for their disks")?;
    }
    // A single node has neither.
    if floors.volumes > 0 {
        writeln!(out, "    floors   {}", behind(floors))?;
    }
    if floors.volumes > 0 || digests.is_some() {
        writeln!(out, "    indexes  {}", compared(digests.as_ref()))?;
    }
    if let Some(DigestsStatus { differing: 1.., differing_groups, .. }) = digests {
        writeln!(out, "    DIFFERING members, of groups {differing_groups:?}: see its log")?;
    }
    if let Some(line) = fragmented(compaction) {
        writeln!(out, "    compact  {line}")?;
    }
    writeln!(out, "    log      {}", trimmed(log))?;
    Ok(())
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1024 * 1024)
}

fn rate(now: &BackgroundStatus) -> String {
    let (per_s, allowed, most) =
        (mib(now.bytes_per_s), mib(now.bytes_per_s_allowed), mib(now.bytes_per_s_max));
    let yields = if allowed < most { ": it yields to clients" } else { "" };
    format!("{per_s:.1} MiB/s, allowed {allowed:.0} of {most:.0}{yields}")
}

/// Of copies that are missing, if any are.
fn missing(now: &RebuildStatus) -> Option<String> {
    let RebuildStatus { chunks, left, lost, single, failed, .. } = *now;
    (chunks > 0).then(|| {
        let bar = bar(chunks.saturating_sub(left) as usize, chunks as usize);
        format!(
            "{bar}  {left} of {chunks} chunks lack a copy; at the last walk {single} had one, {lost} none; {failed} tries failed"
        )
    })
}

fn verified(now: Option<&ScrubStatus>) -> String {
    let Some(now) = now else { return "off".to_owned() };
    let (oldest, period) = (time(now.oldest_ms), time(now.period_ms));
    let late = if now.oldest_ms > now.period_ms { ", LATE" } else { "" };
    let round = match now.share {
        Some(share) => format!("{}  round {}", bar(share as usize, WHOLE), now.rounds + 1),
        None => format!("{} rounds done, none under way", now.rounds),
    };
    let known = match now.never {
        0 => format!("every copy verified within {oldest}"),
        never => format!("{never} groups not verified in the {oldest} since records began"),
    };
    format!("{round}; {known} (wanted: {period}{late})")
}

fn behind(now: &FloorsStatus) -> String {
    let FloorsStatus { volumes, closed, lag_ops_max, waiting_bytes, .. } = now;
    let mib = waiting_bytes / (1024 * 1024);
    format!(
        "of {volumes} volumes, {closed} not open; at most {lag_ops_max} ops behind; {mib} MiB not reusable before"
    )
}

fn compared(now: Option<&DigestsStatus>) -> String {
    let Some(now) = now else { return "not compared".to_owned() };
    let DigestsStatus { groups, equal, found_odd, .. } = now;
    let (oldest, period) = (time(now.oldest_ms), time(now.period_ms));
    let late = if now.oldest_ms > now.period_ms { ", LATE" } else { "" };
    let mended = match found_odd {
        0 => String::new(),
        odd => format!("; {odd} had to be taken anew"),
    };
    format!(
        "of {groups} groups, {equal} found equal; {oldest} since it was last known of all (wanted: {period}{late}){mended}"
    )
}

/// Of volumes that are badly fragmented, if any are or were.
fn fragmented(now: &CompactionStatus) -> Option<String> {
    let CompactionStatus { fragmented, under_way, bytes_wanted, bytes_made, walks, .. } = *now;
    if fragmented == 0 && walks == 0 {
        return None;
    }
    let since = format!("{:.1} MiB moved since the start", mib(now.bytes));
    let failed = match now.failed {
        0 => String::new(),
        failed => format!(", {failed} tries failed"),
    };
    if under_way == 0 {
        return Some(format!(
            "{fragmented} volumes badly fragmented, none under way; {since}{failed}"
        ));
    }
    // The amount to be moved is a rough figure.
    let bar = bar(bytes_made.min(bytes_wanted) as usize, bytes_wanted as usize);
    let (made, wanted) = (mib(bytes_made), mib(bytes_wanted));
    Some(format!(
        "{bar}  of {fragmented} badly fragmented volumes {under_way} under way, {made:.1} of {wanted:.1} MiB; {since}{failed}"
    ))
}

fn trimmed(now: &LogStatus) -> String {
    let why = match now.kept {
        LogKept::BeingWritten => "the rest is trimmed".to_owned(),
        LogKept::ToBeFlushed => "to be trimmed when the index is flushed".to_owned(),
        LogKept::OpenPut { pg, op } => {
            format!("kept for a put without an outcome, op {op} of group {pg}")
        }
        LogKept::Request { pg, op } => {
            format!("kept for a request that may be repeated, op {op} of group {pg}")
        }
        LogKept::NotApplied { pg, op } => {
            format!("kept as the index does not show op {op} of group {pg} yet")
        }
    };
    let (disk, untrimmed) = (mib(now.disk_bytes), mib(now.untrimmed_bytes));
    let (written, freed) = (mib(now.written_per_s), mib(now.trimmed_per_s));
    format!(
        "{untrimmed:.1} MiB in use of {disk:.0} on disk: {why}; {written:.1} MiB/s written, {freed:.1} trimmed"
    )
}

/// True if members of some group were found to differ.
pub(super) fn has_differing(all: &[Background]) -> bool {
    let digests = all.iter().filter_map(|it| it.progress.as_ref()?.digests.as_ref());
    digests.into_iter().any(|digests| digests.differing > 0)
}

/// The time for which a put has been in doubt, at least: as long as its group's primary knows.
pub(super) fn doubts_last(all: &[Background]) -> Option<IssueDuration> {
    let oldest = all.iter().filter_map(|it| it.doubts.as_ref()?.oldest_s()).max()?;
    Some(IssueDuration { for_ms: oldest.saturating_mul(1000), is_exact: false })
}

/// Tells if any put is in doubt.
pub(super) fn has_doubts(all: &[Background]) -> bool {
    all.iter().filter_map(|it| it.doubts.as_ref()).any(Doubts::are_there)
}

/// A time in the largest unit of which there is more than one.
fn time(ms: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "min")];
    let unit = UNITS.into_iter().find(|(unit, _)| ms >= 2 * unit);
    unit.map_or_else(|| format!("{} s", ms / 1000), |(unit, name)| format!("{} {name}", ms / unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(all: &[Background]) -> String {
        let mut out = Vec::new();
        write_text(&mut out, all).expect("memory takes it");
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn rebuild_scrub_and_floors_are_told_with_bars() {
        const MIB: u64 = 1024 * 1024;
        let background = BackgroundStatus {
            bytes_per_s_max: 64 * MIB,
            bytes_per_s_allowed: 8 * MIB,
            bytes_per_s: 3 * MIB / 2,
            ..BackgroundStatus::default()
        };
        let rebuild = RebuildStatus { chunks: 8, left: 2, single: 1, ..RebuildStatus::default() };
        let scrub = ScrubStatus {
            period_ms: 14 * 86_400_000,
            oldest_ms: 15 * 86_400_000,
            share: Some(999),
            rounds: 2,
            bad: 3,
            ..ScrubStatus::default()
        };
        let floors = FloorsStatus { volumes: 4, lag_ops_max: 17, ..FloorsStatus::default() };
        let digests = DigestsStatus {
            period_ms: 14 * 86_400_000,
            oldest_ms: 3 * 86_400_000,
            groups: 9,
            equal: 7,
            found_odd: 1,
            differing: 1,
            differing_groups: vec![5],
            ..DigestsStatus::default()
        };
        let digests = Some(digests);
        let compaction = CompactionStatus {
            fragmented: 3,
            under_way: 2,
            bytes_wanted: 4 * MIB,
            bytes_made: MIB,
            walks: 1,
            bytes: 9 * MIB,
            ..CompactionStatus::default()
        };
        let log = LogStatus {
            disk_bytes: 192 * MIB,
            untrimmed_bytes: 70 * MIB,
            written_per_s: 3 * MIB / 2,
            kept: LogKept::OpenPut { pg: 5, op: 77 },
            ..LogStatus::default()
        };
        let scrub = Some(scrub);
        let progress =
            Some(Progress { background, rebuild, scrub, floors, digests, compaction, log });
        let all = [
            Background {
                server: 1,
                name: "meta-1".to_owned(),
                progress,
                doubts: None,
                space: None,
            },
            Background {
                server: 2,
                name: "meta-2".to_owned(),
                progress: None,
                doubts: None,
                space: None,
            },
        ];
        assert!(has_differing(&all) && !has_differing(&all[1..]));
        let text = shown(&all);
        for line in [
            "meta-1: 1.5 MiB/s, allowed 8 of 64: it yields to clients",
            "[###############-----]  75 %  2 of 8 chunks lack a copy",
            "[###################-]  99 %  round 3; every copy verified within 15 d (wanted: 14 d, LATE)",
            "3 DAMAGED copies",
            "at most 17 ops behind",
            "of 9 groups, 7 found equal; 3 d since it was last known of all (wanted: 14 d); 1 had to be taken anew",
            "DIFFERING members, of groups [5]",
            "compact  [#####---------------]  25 %  of 3 badly fragmented volumes 2 under way, 1.0 of 4.0 MiB; 9.0 MiB moved",
            "log      70.0 MiB in use of 192 on disk: kept for a put without an outcome, op 77 of group 5; 1.5 MiB/s written",
            "meta-2: does not answer",
        ] {
            assert!(text.contains(line), "{line:?} is not in\n{text}");
        }
    }

    #[test]
    fn where_all_is_well_little_is_said() {
        let progress = Progress {
            background: BackgroundStatus::default(),
            rebuild: RebuildStatus::default(),
            scrub: None,
            floors: FloorsStatus { volumes: 1, ..FloorsStatus::default() },
            digests: None,
            compaction: CompactionStatus::default(),
            log: LogStatus::default(),
        };
        let new = ScrubStatus { period_ms: 7_200_000, never: 3, ..ScrubStatus::default() };
        let fetched = verified(Some(&new));
        assert!(fetched.contains("3 groups not verified in the "), "nothing is claimed: {fetched}");
        let background = || Background {
            server: 1,
            name: "meta-1".to_owned(),
            progress: None,
            doubts: None,
            space: None,
        };
        let alone = Progress { floors: FloorsStatus::default(), ..progress.clone() };
        let text = shown(&[Background { progress: Some(progress), ..background() }]);
        assert!(text.contains("not compared") && !text.contains("DIFFERING"), "{text}");
        assert!(text.contains("scrub    off") && !text.contains("rebuild"), "{text}");
        assert!(text.contains("the rest is trimmed") && !text.contains("compact"), "{text}");
        let alone = Background { progress: Some(alone), ..background() };
        let text = shown(&[alone]);
        assert!(!text.contains("floors") && !text.contains("indexes"), "a single node: {text}");
        assert_eq!((time(3_000), time(7_200_000)), ("3 s".to_owned(), "2 h".to_owned()));
    }
}
