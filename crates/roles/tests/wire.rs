//! The messages between roles keep their bytes: `docs/formats/roles.md`.

use std::collections::BTreeMap;

use bytes::Bytes;
use larder_protocol::copy_pacing::{CopyNeed, CopyTurn};
use larder_protocol::digest::{IndexSum, Summed, TableSum};
use larder_protocol::manager::policy::{ManagerMessage, ServerMessage};
use larder_protocol::manager::state::{Command, MapPlace, MapVersion, Outcome};
use larder_protocol::pg::CopyPriority;
use larder_protocol::region::entry::{EntryKind, Object};
use larder_protocol::region::journal::{Batch, VoidReason};
use larder_protocol::region::listing::{Item, ListedPage, PageRequest, Selection};
use larder_protocol::region::{Entry, Id, Name, Slot, Token, Void};
use larder_protocol::scheduler::{Load, Report};
use larder_protocol::{
    Answer, AppendCall, AppendDone, AppendRefusal, Call, CoalesceCall, CoalescePlan,
    CoalesceRequest, Content, DataAnswer, DataRequest, Description, PeerMessage, PutCall, Refusal,
    RowSpan,
};
use larder_roles::breakdown::{CountStatus, CountsStatus};
use larder_roles::keys::{KeysTaken, PreviousTaken};
use larder_roles::observed::{HealthIssue, IssueDuration, Observations, Place, SpaceSample};
use larder_roles::progress::{
    AwayReplica, BackgroundStatus, BucketUsage, CompactionStatus, DigestsStatus, DiskRoomStatus,
    DoubtsStatus, FileStatus, FloorStatus, FloorsStatus, LogKept, LogStatus, Progress, PutInDoubt,
    RebuildStatus, ScrubStatus, SpaceStatus, VolumeStatus,
};
use larder_roles::wire::{
    Beat, CopyEnd, CopyOrder, CopyState, DataCall, DataMessage, DataReply, DeletionEnd,
    JournalReply, JournalShown, KeyReply, ListRefusal, ManagerCall, ManagerMessageIn, ManagerReply,
    MetaCall, MetaMessage, MetaReply, PartRefusal, ProxyCall, ProxyMessage, ProxyReply, RemotePart,
    RemoteVersion,
};
use larder_types::codec::encode;
use larder_types::{
    Amendments, Appended, Attributes, BootId, BucketId, BucketName, Chunk, Condition, ETag, Epoch,
    Extent, Grant, GrantKey, Holders, HybridClock, LvId, Metax, ObjectKey, OpId, OpSeq, Origin,
    PartRef, PgId, PiecesId, PvId, RegionId, Request, ServerId, SessionId, Stamp, Target, View,
};

const GOLDEN: &str = include_str!("golden/roles.hex");

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn progress() -> Progress {
    Progress {
        background: BackgroundStatus {
            bytes_per_s_max: 1,
            bytes_per_s_allowed: 2,
            bytes_per_s: 3,
            under_way: 4,
            yields: 5,
            rebuild_bytes: 6,
            scrub_bytes: 7,
            digest_bytes: 32,
        },
        rebuild: RebuildStatus { chunks: 8, left: 9, lost: 10, single: 11, made: 12, failed: 13 },
        scrub: Some(ScrubStatus {
            period_ms: 14,
            oldest_ms: 15,
            share: Some(16),
            rounds: 17,
            bad: 18,
            right: 19,
            bad_since_start: 20,
            unanswered: 21,
            never: 31,
        }),
        floors: FloorsStatus {
            volumes: 22,
            closed: 23,
            lag_ops_max: 24,
            waiting_bytes: 25,
            furthest: vec![FloorStatus {
                volume: 26,
                pg: 27,
                floor: Some(28),
                lag_ops: 29,
                waiting_bytes: 30,
            }],
        },
        digests: Some(DigestsStatus {
            period_ms: 33,
            groups: 34,
            equal: 35,
            oldest_ms: 36,
            under_way: Some(37),
            begun: 38,
            found_equal: 39,
            found_odd: 40,
            found_unclear: 41,
            void: 42,
            differing: 43,
            differing_groups: vec![44, 45],
        }),
        compaction: CompactionStatus {
            fragmented: 46,
            under_way: 47,
            bytes_wanted: 48,
            bytes_made: 49,
            walks: 50,
            chunks: 51,
            bytes: 52,
            failed: 53,
        },
        log: LogStatus {
            disk_bytes: 54,
            untrimmed_bytes: 55,
            trimmed_bytes: 56,
            written_per_s: 57,
            trimmed_per_s: 58,
            kept: LogKept::OpenPut { pg: 59, op: 60 },
        },
    }
}

fn doubts() -> DoubtsStatus {
    let away = vec![AwayReplica { server: 4, disk: 6 }];
    let put = PutInDoubt {
        pg: 3,
        op: 1000,
        bucket: 2,
        key: "a/b".to_owned(),
        volume: 7,
        open_ms: 300,
        away,
    };
    DoubtsStatus { puts: 1, oldest: vec![put] }
}

fn said() -> Vec<String> {
    let (pg, view, lv) = (PgId(3), View(300), LvId(7));
    let op = OpId { view, seq: OpSeq(1000) };
    let grant = Grant { pg, op, attempt: 1 };
    let extents = vec![Extent { first: 16, blocks: 2 }];
    let key = ObjectKey::new("a/b").expect("a key");
    let floor = GrantKey { view, seq: OpSeq(9) };
    let holders = Holders::default().with(0).with(2);
    let commit = Call::Commit { op, attempt: 1, holders };
    let (lvs, boot) = (Vec::new(), BootId(77));
    let chunk = Chunk {
        grant,
        seed: 99,
        lv,
        extents: extents.clone(),
        len: 5000,
        sums: vec![u64::MAX],
        holders,
    };
    let (clock, version) = (HybridClock::at_ms(5), MapVersion(12));
    let granted = Answer::Granted {
        grant,
        lv,
        extents: extents.clone(),
        replicas: holders,
        clock,
        as_of: version,
    };
    let (boots, sessions) = (Vec::new(), Vec::new());
    let volumes = ManagerMessage::Volumes { pg, view, boot, version, lvs, boots, sessions };
    let create = ManagerMessage::CreatePv {
        lv,
        pg,
        replica: 1,
        disk: larder_types::DiskId(2),
        pv: PvId(4),
        blocks: 100,
        map: MapVersion(300),
    };
    let (led, beside) = (vec![(pg, view)], vec![(ServerId(5), boot)]);
    let beat = Beat { boot, sent_ms: 300, led, heard_by: Some(ServerId(4)), beside };
    let created = ServerMessage::Created(lv, 1, larder_types::DiskId(2), PvId(4));
    let scan = MetaCall::Scan {
        pgs: vec![(pg, view)],
        map: MapVersion(12),
        settled: true,
        from: b"V".to_vec(),
        to: Some(b"W".to_vec()),
        count_max: 50,
    };
    vec![
        hex(&encode(&MetaCall::Call { pg, view, call: commit.clone() })),
        hex(&encode(&MetaCall::Await { pg, view, op })),
        hex(&encode(&MetaCall::Find { pg, view, bucket: BucketId(2), key })),
        hex(&encode(&MetaCall::GetRow { pg, view, row: b"O".to_vec() })),
        hex(&encode(&scan)),
        hex(&encode(&MetaReply::Answered(granted))),
        hex(&encode(&MetaReply::Found(None))),
        hex(&encode(&MetaReply::Row(true))),
        hex(&encode(&MetaReply::Rows(Some(b"V".to_vec())))),
        hex(&encode(&MetaReply::Refused(Refusal::NotPrimary))),
        hex(&encode(&MetaMessage::Peer(pg))),
        hex(&encode(&MetaMessage::Call { pg, view, call: commit })),
        hex(&encode(&MetaMessage::Floor { session: SessionId(5), floor: 6 })),
        hex(&encode(&MetaMessage::Manager(volumes))),
        hex(&encode(&DataCall::Write { lv, grant, extents: extents.clone(), len: 5000 })),
        hex(&encode(&DataCall::Read { lv, extents, from: 64, len: 128 })),
        hex(&encode(&DataCall::Pg { lv, request: DataRequest::Open { view, floor, boot } })),
        hex(&encode(&DataReply::Written)),
        hex(&encode(&DataReply::Full)),
        hex(&encode(&DataReply::NotWritten)),
        hex(&encode(&DataReply::Bytes)),
        hex(&encode(&DataReply::Unreadable)),
        hex(&encode(&DataReply::Pg(DataAnswer::Floor(floor)))),
        hex(&encode(&DataMessage::Manager(create))),
        hex(&encode(&ManagerCall::Map(MapVersion(12)))),
        hex(&encode(&ManagerCall::Propose(Command::CloseSession(SessionId(5))))),
        hex(&encode(&ManagerReply::Map)),
        hex(&encode(&ManagerReply::Unchanged)),
        hex(&encode(&ManagerReply::Applied(Ok(Outcome::Lv(lv))))),
        hex(&encode(&ManagerReply::NotLeader(Some(ServerId(4))))),
        hex(&encode(&ManagerReply::Unknown)),
        hex(&encode(&ManagerReply::Busy)),
        hex(&encode(&ManagerMessageIn::Peer)),
        hex(&encode(&ManagerMessageIn::Server(ServerMessage::Heartbeat(boot)))),
        hex(&encode(&ManagerMessageIn::Server(created))),
        hex(&encode(&ManagerMessageIn::HandedOn(ServerId(4), ServerMessage::Told(boot, pg, view)))),
        hex(&encode(&ManagerMessageIn::HandedBack(ServerId(4), ManagerMessage::WhoAreYou))),
        hex(&encode(&ManagerMessageIn::Beat(beat))),
        hex(&encode(&ManagerMessageIn::Server(ServerMessage::Unheard(
            boot,
            pg,
            view,
            vec![ServerId(4)],
        )))),
        hex(&encode(&ProxyMessage::Manager(ManagerMessage::WhoAreYou))),
        hex(&encode(&Call::Suspect { grant, server: ServerId(6) })),
        hex(&encode(&ManagerMessage::Vacate(lv, 2, version))),
        hex(&encode(&ServerMessage::Rebuilt(lv, 2, larder_types::DiskId(6)))),
        hex(&encode(&ServerMessage::Vacated(lv, 2, view, version))),
        hex(&encode(&MetaCall::Progress)),
        hex(&encode(&MetaReply::Progress)),
        hex(&encode(&DataCall::Verify(Box::new(chunk.clone())))),
        hex(&encode(&DataCall::Load)),
        hex(&encode(&DataReply::Verified(CopyState::Damaged))),
        hex(&encode(&DataReply::Load(300))),
        hex(&encode(&progress())),
        hex(&encode(&Call::Append(Box::new(append())))),
        hex(&encode(&Answer::Appended(Box::new(AppendDone { op, clock, made: made() })))),
        hex(&encode(&Refusal::Append(AppendRefusal::Offset { size: 307 }))),
        hex(&encode(&Call::Put(Box::new(put())))),
        hex(&encode(&Call::NoRoom { op, replicas: holders })),
        hex(&encode(&Refusal::TooFewCopies)),
        hex(&encode(&ServerMessage::NoRoom(boot, larder_types::DiskId(6)))),
        hex(&encode(&ServerMessage::Lacks(boot, pg, view))),
        hex(&encode(&PeerMessage::AskDigest { view, at: op })),
        hex(&encode(&PeerMessage::Digest { view, at: op, sum: Summed::Sum(sum()) })),
        hex(&encode(&PeerMessage::Digest { view, at: op, sum: Summed::Nothing })),
        hex(&encode(&PeerMessage::Digest { view, at: op, sum: Summed::Unreadable })),
        hex(&encode(&PeerMessage::IsOdd { view, at: op })),
        hex(&encode(&ManagerCall::Authority)),
        hex(&encode(&ManagerReply::NoAuthority)),
        hex(&encode(&ManagerReply::Authority)),
        hex(&encode(&Call::Withdraw { op, disk_full: true })),
        hex(&encode(&Call::Settle(RowSpan { from: b"V".to_vec(), to: Some(b"W".to_vec()) }))),
        hex(&encode(&Answer::Settled(Some(b"V".to_vec())))),
        hex(&encode(&Refusal::InDoubt)),
        hex(&encode(&MetaCall::Doubts)),
        hex(&encode(&MetaReply::Doubts)),
        hex(&encode(&MetaMessage::Finished {
            session: SessionId(5),
            below: 300,
            open: vec![6, 299],
        })),
        hex(&encode(&doubts())),
        hex(&encode(&DataReply::BytesAnd(report()))),
        hex(&encode(&DataReply::UnreadableAnd(Report::default()))),
        hex(&encode(&ManagerReply::OlderManager(ServerId(300)))),
        hex(&encode(&MetaCall::Journals {
            pgs: vec![(pg, view, Token { through: OpSeq(301) })],
            map: version,
            ids_max: 1000,
            settled: true,
            wait_ms: 2000,
        })),
        hex(&encode(&MetaReply::Journals)),
        hex(&encode(&journals())),
        hex(&encode(&MetaCall::Kept {
            pgs: vec![(pg, view)],
            keys: vec![(BucketId(2), ObjectKey::new("a/b").expect("a key"))],
        })),
        hex(&encode(&MetaReply::Kept)),
        hex(&encode(&vec![
            KeyReply::Rows(Some(vec![1, 2]), None),
            KeyReply::NotNow,
            KeyReply::Unknown,
        ])),
        hex(&encode(&MetaCall::TellPositions(vec![(pg, vec![(RegionId(2), OpSeq(301))])]))),
        hex(&encode(&MetaCall::Positions { pg, view, op: OpSeq(301), count: 1, wait_ms: 5000 })),
        hex(&encode(&MetaReply::Positions(vec![(RegionId(2), OpSeq(301))]))),
        hex(&encode(&ProxyCall::Look(
            BucketName::new("abc").expect("a name"),
            ObjectKey::new("k").expect("a key"),
        ))),
        hex(&encode(&ProxyCall::Change(RegionId(2)))),
        hex(&encode(&ProxyReply::Looked(true))),
        hex(&encode(&ProxyReply::Changed)),
        hex(&encode(&ProxyReply::NotGateway)),
        hex(&encode(&ProxyCall::Deletion(
            BucketId(300),
            BucketName::new("abc").expect("a name"),
            Epoch(2),
            301,
        ))),
        hex(&encode(&ProxyReply::NotNow("why".to_owned()))),
        hex(&encode(&ProxyReply::Deletion(DeletionEnd::Deleted))),
        hex(&encode(&ProxyReply::Deletion(DeletionEnd::NotEmpty))),
        hex(&encode(&ProxyReply::Deletion(DeletionEnd::Failed("why".to_owned())))),
        hex(&encode(&ProxyReply::Deletion(DeletionEnd::Unknown))),
        hex(&encode(&ProxyCall::List(BucketName::new("abc").expect("a name"), 301, page_ask()))),
        hex(&encode(&ProxyReply::Listed)),
        hex(&encode(&ProxyReply::NotListed(ListRefusal::NoSuchBucket))),
        hex(&encode(&ProxyReply::NotListed(ListRefusal::SlowDown))),
        hex(&encode(&ProxyReply::NotListed(ListRefusal::Unavailable("why".to_owned())))),
        hex(&encode(&ProxyCall::Clients)),
        hex(&encode(&ProxyReply::Clients(300))),
        hex(&encode(&ListedPage { items: vec![Item::Group("a/".into())], is_truncated: true })),
        hex(&encode(&ProxyCall::Part(remote_part()))),
        hex(&encode(&ProxyReply::There)),
        hex(&encode(&ProxyReply::Part)),
        hex(&encode(&ProxyReply::NoPart(PartRefusal::Changed))),
        hex(&encode(&ProxyReply::NoPart(PartRefusal::SlowDown))),
        hex(&encode(&ProxyReply::NoPart(PartRefusal::Unavailable("why".to_owned())))),
        hex(&encode(&remote_version())),
        hex(&encode(&MetaCall::Space)),
        hex(&encode(&MetaReply::Space)),
        hex(&encode(&space())),
        hex(&encode(&MetaMessage::Peers)),
        hex(&encode(&a_batch())),
        hex(&encode(&ProxyCall::Keys)),
        hex(&encode(&ProxyReply::Keys(keys_taken(None)))),
        hex(&encode(&ProxyReply::Keys(keys_taken(Some(300))))),
        hex(&encode(&MetaMessage::Manager(ManagerMessage::TooFewServers(BootId(300), pg)))),
        hex(&encode(&Call::PlanCoalesce(Box::new(CoalesceRequest {
            bucket: BucketId(2),
            key: ObjectKey::new("a/b").expect("a key"),
            from: 300,
        })))),
        hex(&encode(&Call::Coalesce(Box::new(coalesce())))),
        hex(&encode(&Answer::Plan(Some(Box::new(coalesce_plan()))))),
        hex(&encode(&Answer::Plan(None))),
        hex(&encode(&DataCall::Copy(Box::new(CopyOrder {
            chunk: chunk.clone(),
            holders: vec![ServerId(4), ServerId(300)],
            grant,
            extents: chunk.extents.clone(),
            max_wait_ms: 30_000,
        })))),
        hex(&encode(&DataCall::ReadVerified { chunk: Box::new(chunk), from: 65_536, len: 300 })),
        hex(&encode(&DataReply::Copied(CopyEnd::Durable, Vec::new()))),
        hex(&encode(&DataReply::Copied(CopyEnd::NoHolder, vec![ServerId(300)]))),
        hex(&encode(&ServerMessage::Copies { boot, sent_ms: 301, need: copy_need() })),
        hex(&encode(&ManagerMessage::CopyTurn { boot, sent_ms: 301, turn: copy_turn() })),
        hex(&encode(&MetaCall::Counts)),
        hex(&encode(&MetaReply::Counts)),
        hex(&encode(&DataCall::Counts)),
        hex(&encode(&DataReply::Counts)),
        hex(&encode(&ProxyCall::Counts)),
        hex(&encode(&ProxyReply::Counts)),
        hex(&encode(&counts())),
        hex(&encode(&ManagerCall::Observed)),
        hex(&encode(&ManagerReply::Observed)),
        hex(&encode(&observed())),
        hex(&encode(&DataCall::Room)),
        hex(&encode(&DataReply::Room)),
        hex(&encode(&DiskRoomStatus {
            disk: 300,
            lacks_room: true,
            file: Some(FileStatus { held: 1 << 20, spare: 301 }),
        })),
        hex(&encode(&DiskRoomStatus { disk: 6, lacks_room: false, file: None })),
        hex(&encode(&ManagerCall::MapSince { known: version, timeline: Some(300) })),
        hex(&encode(&ManagerCall::MapPage(MapPlace::Lv(LvId(301))))),
        hex(&encode(&ManagerReply::MapChanges)),
        hex(&encode(&ManagerReply::MapPage)),
        hex(&encode(&ServerMessage::StartedAfter {
            before: BootId(300),
            boot,
            addresses: vec!["d0:1".to_owned()],
            has: vec![(pg, Some(view)), (PgId(301), None)],
        })),
        hex(&encode(&ManagerCall::Committed)),
        hex(&encode(&ManagerReply::Committed(MapVersion(300)))),
        hex(&encode(&ManagerReply::NoQuorum)),
    ]
}

fn observed() -> Observations {
    let exact = |for_ms| IssueDuration { for_ms, is_exact: true };
    let fill = |place| SpaceSample { place, taken: 1 << 20, within_s: 301 };
    Observations {
        issues: vec![
            (HealthIssue::NoLeader, IssueDuration { for_ms: 300, is_exact: false }),
            (HealthIssue::PgsInactive, exact(301)),
            (HealthIssue::PgsIncomplete, exact(302)),
            (HealthIssue::CopiesMissing, exact(303)),
            (HealthIssue::ServerDown(4, 305), exact(304)),
            (HealthIssue::NearlyFull(Place::Disk(6)), exact(305)),
        ],
        fills: vec![fill(Place::Cluster), fill(Place::Server(4)), fill(Place::Disk(6))],
    }
}

fn counts() -> CountsStatus {
    let [table, kind, size] = ["disk", "read", "1K..8K"].map(str::to_owned);
    let (ops, bytes) = (300, 1 << 20);
    let count = CountStatus { table, kind, size, ops, bytes, waited_us: 301, served_us: 302 };
    CountsStatus { age_s: 303, counts: vec![count] }
}

fn copy_need() -> CopyNeed {
    CopyNeed { priority: CopyPriority::new(2, false), made: 300, bytes_per_s: 301, waits: true }
}

fn copy_turn() -> CopyTurn {
    CopyTurn { upto: CopyPriority::FIRST, bytes_per_s: 302 }
}

fn keys_taken(last_s: Option<u64>) -> KeysTaken {
    let previous = Some(PreviousTaken { requests: 300, last_s });
    KeysTaken { generation: 300, access_key: "key".to_owned(), is_fixed: false, previous }
}

fn space() -> SpaceStatus {
    let volume = VolumeStatus { volume: 300, blocks: 70_000, free: 5, waiting: 6, unread: 7 };
    let bucket = BucketUsage { bucket: 2, objects: 300, bytes: 1 << 40 };
    let other_buckets = BucketUsage { bucket: 3, objects: 4, bytes: 5 };
    SpaceStatus { volumes: vec![volume], buckets: vec![bucket], other_buckets, uncounted: 1 }
}

fn remote_part() -> RemotePart {
    let RemoteVersion { name, regions, entry } = remote_version();
    RemotePart { name, at: entry.at, regions, from: 300, len: 8 << 20 }
}

fn remote_version() -> RemoteVersion {
    let at = Stamp { clock: HybridClock(400), region: RegionId(2) };
    let op = OpId { view: View(300), seq: OpSeq(302) };
    let origin = Origin { region: RegionId(2), pg: PgId(3), op };
    let key = ObjectKey::new("a/b").expect("a key");
    let name = Name { bucket: BucketId(2), key, slot: Slot::Null };
    let metax =
        Metax { region: at.region, ..Metax::new(17 << 20, at.clock, ETag::Parts([3; 16], 2)) };
    let parts = vec![PartRef { number: 1, len: 8 << 20 }, PartRef { number: 300, len: 9 << 20 }];
    let object = Object { metax, parts, pieces: BTreeMap::new(), amended: Amendments::default() };
    let entry = Entry { at, origin, what: EntryKind::Object(object.into()) };
    RemoteVersion { name, regions: vec![RegionId(2), RegionId(300)], entry }
}

fn page_ask() -> PageRequest {
    let selection = Selection { prefix: "a".into(), delimiter: Some("/".into()) };
    PageRequest { selection, after: Some("ab".into()), items_max: 300 }
}

fn journals() -> Vec<(PgId, JournalReply)> {
    let at = Stamp { clock: HybridClock(400), region: RegionId(2) };
    let op = OpId { view: View(300), seq: OpSeq(302) };
    let origin = Origin { region: RegionId(2), pg: PgId(3), op };
    let key = ObjectKey::new("a/b").expect("a key");
    let name = Name { bucket: BucketId(2), key, slot: Slot::Null };
    let id = Id { name, at, origin, is_purged: false, bytes: 303, print: 304 };
    let token = Token { through: OpSeq(302) };
    let batch = Ok(Batch { ids: vec![(OpSeq(302), id)], token, last: OpSeq(302), left: (1, 305) });
    let (applied, forgotten) = (OpSeq(306), OpSeq(9));
    let void = Err(Void { why: VoidReason::Ahead, resume: Token { through: applied } });
    vec![
        (PgId(3), JournalReply::Shows(JournalShown { applied, forgotten, map: 300, batch })),
        (PgId(4), JournalReply::Shows(JournalShown { applied, forgotten, map: 300, batch: void })),
        (PgId(5), JournalReply::NotNow),
    ]
}

fn report() -> Report {
    let small = Load { requests: 300, bytes: 4096 };
    let huge = Load { requests: 1, bytes: 8 << 20 };
    let waiting = [small, Load::default(), Load::default(), huge];
    Report { waiting, service_us: [100, 0, 0, 50_000], lanes: 32 }
}

fn sum() -> IndexSum {
    let table = |table, rows| TableSum { table, rows, hash: [table; 16] };
    IndexSum { tables: vec![table(b'K', 300), table(b'V', 7)] }
}

fn append() -> AppendCall {
    let (etag, attributes) = (ETag::Md5([3; 16]), Attributes::default());
    AppendCall {
        request: Request { session: SessionId(5), number: 9, floor: 8 },
        bucket: BucketId(2),
        epoch: Epoch(1),
        key: ObjectKey::new("a/b").expect("a key"),
        offset: Some(300),
        description: Description { size: 7, etag, checksum: None, attributes },
        content: Content::Inline(Bytes::from_static(b"append!")),
        condition: Condition::default(),
    }
}

fn coalesce() -> CoalesceCall {
    let AppendCall { request, bucket, epoch, key, content, .. } = append();
    let pieces = PiecesId { pg: PgId(3), op: OpId { view: View(2), seq: OpSeq(301) } };
    CoalesceCall { request, bucket, epoch, key, pieces, window: 300..307, content }
}

fn coalesce_plan() -> CoalescePlan {
    let CoalesceCall { pieces, window, .. } = coalesce();
    CoalescePlan { pieces, window: Some(window), settled: 299, goes_on: true, is_held: true }
}

fn put() -> PutCall {
    let AppendCall { request, bucket, epoch, key, description, condition, .. } = append();
    let content = Content::Data { len: 7, seed: 300, sums: vec![301] };
    let target = Target::Version;
    PutCall {
        request,
        bucket,
        epoch,
        key,
        target,
        description,
        content,
        condition,
        required_copies: 2,
    }
}

fn made() -> Appended {
    Appended { offset: 300, size: 307, etag: ETag::Parts([3; 16], 2), checksum: None }
}

fn a_batch() -> Vec<(PgId, Bytes)> {
    vec![(PgId(1), Bytes::from_static(b"one")), (PgId(300), Bytes::from_static(b""))]
}

#[test]
fn messages_keep_their_bytes() {
    let golden: Vec<&str> = GOLDEN.lines().collect();
    assert_eq!(said(), golden, "bytes that another release understands have changed");
}
