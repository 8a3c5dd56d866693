use bytes::Bytes;
use larder_protocol::AppendRefusal;
use larder_protocol::limits::{REGION_FETCH_IDS_MAX, REGION_REQUEST_PGS_MAX};
use larder_protocol::region::deletion::CloseAnswer;
use larder_protocol::region::home::HomeAnswer;
use larder_protocol::region::journal::VoidReason;
use larder_protocol::region::listing::{RegionKey, Selection};
use larder_protocol::region::{EntryKind, Id, Slot, Sum};
use larder_types::codec::{CodecError, decode, encode};
use larder_types::limits::PART_NUMBER_MAX;
use larder_types::{
    Appended, Attributes, ChecksumAlgorithm, ChecksumKind, Condition, ETag, Epoch, EtagList,
    HomeScope, HomeState, HomeTerm, HybridClock, Metax, ObjectKey, OpId, OpSeq, Origin, Stamp,
    UploadId, UploadRow, View,
};
use proptest::prelude::*;
use serde::de::DeserializeOwned;

use super::*;
use crate::frame;
use crate::identity::Fingerprint;
use crate::limits::{CHANGE_BYTES_MAX, CHANGE_HEAD_BYTES_MAX, NAMED_BYTES_MAX};
use crate::token::TokenRecord;

fn stamp(clock: u64) -> Stamp {
    Stamp { clock: HybridClock(clock), region: RegionId(2) }
}

fn entry() -> Entry {
    let op = OpId { view: View(3), seq: OpSeq(300) };
    let origin = Origin { region: RegionId(2), pg: PgId(17), op };
    Entry { at: stamp(0x1234), origin, what: EntryKind::Purged }
}

fn name(slot: Slot) -> Name {
    Name { bucket: BucketId(4), key: ObjectKey::new("a/b").unwrap(), slot }
}

fn token(through: u64) -> Token {
    Token { through: OpSeq(through) }
}

fn range() -> Range {
    Range { from: vec![1, 2], to: Some(vec![3]) }
}

fn buckets() -> Buckets {
    vec![(BucketId(4), bucket())]
}

fn known() -> RegionList {
    let (number, fingerprint) = (RegionId(2), Fingerprint([9; 32]));
    let (name, address) = ("eu".parse().unwrap(), "eu.example:7001".parse().unwrap());
    RegionList { regions: vec![Known { number, name, address, fingerprint, removed: true }] }
}

fn requests() -> Vec<(&'static str, Request)> {
    let join = Join {
        token: TokenRecord::fixed(7, None).id(),
        proof: [5; 32],
        name: "eu".parse().unwrap(),
        address: "eu.example:7001".parse().unwrap(),
    };
    vec![
        ("hello", Request::Hello),
        (
            "ask",
            Request::IdsQuery(IdsQuery {
                pgs: vec![(PgId(17), token(300), token(299))],
                ids_max: 1000,
            }),
        ),
        ("walk", Request::Walk(Walk { range: range() })),
        ("list", Request::List(List { range: Range { to: None, ..range() } })),
        (
            "fetch",
            Request::Fetch(Fetch {
                names: vec![(name(Slot::Null), true), (name(Slot::Version(stamp(5))), false)],
            }),
        ),
        ("members", Request::Members(known())),
        ("join", Request::Join(join)),
        ("report", Request::Report(Report { pgs: vec![(PgId(17), token(299))] })),
        ("close-bucket", Request::CloseBucket(close(2))),
        (
            "end-closed",
            Request::EndClosed(EndClosed { bucket: bucket(), mark: Some(mark()), delete: true }),
        ),
        ("ask-home", ask_home(HomeRequest::Look)),
        ("ask-home: prepare", ask_home(HomeRequest::Prepare)),
        ("ask-home: give", ask_home(HomeRequest::Give(300, HomeScope::Writes))),
        ("ask-home: claim", ask_home(HomeRequest::Claim(home().term, HomeScope::Conditions))),
        ("tell-homes", Request::TellHomes(TellHomes { homes: vec![(bucket(), home())] })),
        ("change: put", change(put())),
        ("change: delete", change(ChangeKind::Delete)),
        ("change: tags", change(ChangeKind::Tags(vec![("a".into(), "b".into())]))),
        ("keys", Request::Keys(keys())),
        ("change: append", change(append())),
        ("fetch-since", Request::FetchSince(since(vec![(1, base()), (2, base())]))),
        ("change: upload: begin", upload_step(begin())),
        ("change: upload: part", upload_step(part(7, Bytes::from_static(b"abc")))),
        (
            "change: upload: show",
            upload_step(UploadStep::Show { upload: upload(), after: 300, parts_max: 1000 }),
        ),
        ("change: upload: complete", upload_step(complete(1, "07"))),
        ("change: upload: abort", upload_step(UploadStep::Abort { upload: upload() })),
        ("fetch-part", Request::FetchPart(fetch_part())),
    ]
}

fn fetch_part() -> FetchPart {
    FetchPart { name: name(Slot::Null), at: Some(stamp(5)), from: 300, bytes_max: 5000 }
}

fn upload() -> UploadId {
    UploadId { pg: PgId(17), op: OpId { view: View(3), seq: OpSeq(300) } }
}

fn begin() -> UploadStep {
    let ChangeKind::Put { attributes, .. } = put() else { unreachable!() };
    let checksum = Some((ChecksumAlgorithm::Sha256, ChecksumKind::Composite));
    UploadStep::Begin { attributes, checksum }
}

fn part(number: u16, bytes: Bytes) -> UploadStep {
    UploadStep::Part { upload: upload(), number, md5: [7; 16], checksum: None, bytes }
}

fn complete(count: usize, etag: &str) -> UploadStep {
    let checksum = Some((ChecksumAlgorithm::Crc32, vec![1, 2, 3, 4]));
    let named = PartNamed { number: 300, etag: etag.to_owned(), checksum: checksum.clone() };
    let parts = vec![named; count];
    UploadStep::Complete { upload: upload(), parts, checksum, size: Some(300) }
}

fn upload_step(step: UploadStep) -> Request {
    change(ChangeKind::Upload(step))
}

fn upload_answers() -> [(&'static str, UploadAnswer); 9] {
    let key = ObjectKey::new("a/b").unwrap();
    let (clock, attributes) = (HybridClock(0x1234), Attributes::default());
    let row = UploadRow { upload: upload(), key, clock, attributes, checksum: None };
    let parts = vec![(300, *keys_reply().keys[0].object.clone().unwrap())];
    let (upload, is_truncated) = (Box::new(row), true);
    let refused = UploadAnswer::Refused;
    [
        ("answer: upload: begun", UploadAnswer::Begun(upload.upload)),
        ("answer: upload: shown", UploadAnswer::Shown { upload, parts, is_truncated }),
        (
            "answer: upload: completed",
            UploadAnswer::Completed {
                etag: ETag::Parts([7; 16], 2),
                checksum: None,
                size: 300,
                clock,
            },
        ),
        ("answer: upload: none", refused(UploadRefusal::NoSuchUpload)),
        ("answer: upload: part", refused(UploadRefusal::Part { number: 300 })),
        ("answer: upload: order", refused(UploadRefusal::Order)),
        ("answer: upload: too small", refused(UploadRefusal::TooSmall { number: 300, bytes: 5 })),
        ("answer: upload: size", refused(UploadRefusal::Size)),
        ("answer: upload: checksum", refused(UploadRefusal::Checksum)),
    ]
}

fn keys() -> Keys {
    let selection = Selection { prefix: "a".into(), delimiter: Some("/".into()) };
    let ask = KeysRequest { selection, from: b"a/c".to_vec(), keys_max: 1001 };
    Keys { bucket: bucket(), ask, regions: vec![RegionId(1), RegionId(2)] }
}

fn keys_reply() -> KeysAnswer {
    let metax = Metax {
        size: 300,
        clock: HybridClock(0x1234),
        region: RegionId(2),
        etag: ETag::Md5([7; 16]),
        checksum: None,
        attributes: Attributes { storage_class: Some("STANDARD".into()), ..Attributes::default() },
        expires_ms: None,
        encryption: None,
        retention: None,
    };
    let key = |key: &str, object, leaves_out| {
        let key = ObjectKey::new(key).unwrap();
        RegionKey { key, at: stamp(0x1234), object, leaves_out }
    };
    let keys = vec![key("a/c", Some(Box::new(metax)), true), key("ab", None, false)];
    KeysAnswer { keys, rest: Some(b"ac".to_vec()) }
}

fn home() -> Home {
    let term = HomeTerm { count: 300, of: RegionId(2) };
    Home { term, scope: HomeScope::Conditions, state: HomeState::Elsewhere }
}

fn ask_home(ask: HomeRequest) -> Request {
    let regions = vec![RegionId(1), RegionId(2)];
    Request::AskHome(AskHome { bucket: bucket(), ask, regions })
}

fn put() -> ChangeKind {
    let attributes = Attributes { content_type: Some("a/b".into()), ..Attributes::default() };
    let attributes = Box::new(attributes);
    ChangeKind::Put { attributes, md5: [7; 16], checksum: None, bytes: Bytes::from_static(b"abc") }
}

fn append() -> ChangeKind {
    let ChangeKind::Put { attributes, md5, checksum, bytes } = put() else { unreachable!() };
    ChangeKind::Append { offset: Some(300), attributes, md5, checksum, bytes }
}

fn base() -> Base {
    Base { at: stamp(5), size: 300 }
}

fn since(bases: Vec<(u32, Base)>) -> FetchSince {
    let names = [false, true, true].map(|with_bytes| (name(Slot::Null), with_bytes));
    FetchSince { names: names.to_vec(), bases }
}

fn appended() -> Appended {
    Appended { offset: 300, size: 303, etag: ETag::Parts([7; 16], 2), checksum: None }
}

fn change(kind: ChangeKind) -> Request {
    let condition = Condition { if_none_match: Some(EtagList::Any), ..Condition::default() };
    let key = ObjectKey::new("a/b").unwrap();
    Request::Change(Box::new(Change { bucket: bucket(), key, condition, kind }))
}

fn change_answers() -> [(&'static str, ChangeAnswer); 11] {
    [
        ("answer: put", ChangeAnswer::Made(Some(HybridClock(0x1234)))),
        ("answer: deleted", ChangeAnswer::Made(None)),
        ("answer: condition failed", ChangeAnswer::ConditionFailed),
        ("answer: no such key", ChangeAnswer::NoSuchKey),
        ("answer: no such bucket", ChangeAnswer::NoSuchBucket),
        ("answer: not home", ChangeAnswer::NotHome(Some(home()))),
        ("answer: full", ChangeAnswer::Full),
        ("answer: slow down", ChangeAnswer::SlowDown),
        ("answer: unavailable", ChangeAnswer::Unavailable("why".into())),
        ("answer: appended", ChangeAnswer::Appended(appended(), HybridClock(0x1234))),
        (
            "answer: append refused",
            ChangeAnswer::AppendRefused(AppendRefusal::Offset { size: 300 }),
        ),
    ]
}

fn home_answers() -> [(&'static str, HomeAnswer); 6] {
    [
        ("answer: knows", HomeAnswer::Knows(Some(home()))),
        ("answer: knows none", HomeAnswer::Knows(None)),
        ("answer: behind", HomeAnswer::Behind),
        ("answer: yours", HomeAnswer::Yours { home: home(), is_level: true }),
        ("answer: no bucket", HomeAnswer::Absent),
        ("answer: other regions than asked", HomeAnswer::OtherRegions),
    ]
}

fn bucket() -> BucketName {
    BucketName::new("photos").unwrap()
}

fn close(regions: u16) -> CloseBucket {
    CloseBucket { bucket: bucket(), regions: (1..=regions).map(RegionId).collect() }
}

fn mark() -> Mark {
    Mark { bucket: BucketId(300), epoch: Epoch(2) }
}

fn reported() -> IdsReply {
    let ids = vec![(OpSeq(300), entry().id(name(Slot::Null)))];
    let batch = Batch { ids, token: token(300), last: OpSeq(400), left: (7, 9000) };
    let void = |why| Void { why, resume: token(500) };
    let pgs = vec![
        (PgId(17), Ok(batch)),
        (PgId(18), Err(void(VoidReason::Overrun))),
        (PgId(19), Err(void(VoidReason::Ahead))),
    ];
    IdsReply { pgs, buckets: buckets() }
}

fn walked() -> WalkAnswer {
    let sum = Sum { count: 2, hash: 1 << 100 };
    let rest = Some(Range { from: vec![3], to: None });
    WalkAnswer { summed: Summed { runs: vec![(range(), sum)], rest }, buckets: buckets() }
}

fn listed() -> ListAnswer {
    let ids: Vec<Id> = vec![entry().id(name(Slot::Version(stamp(5))))];
    ListAnswer { listed: Listed { ids, rest: Some(range()) }, buckets: buckets() }
}

fn written<T>(what: &'static str, value: &T) -> (&'static str, Vec<u8>)
where
    T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug,
{
    let bytes = encode(value);
    assert_eq!(decode::<T>("message", &bytes).as_ref(), Ok(value), "{what} is read back");
    (what, bytes)
}

#[test]
fn messages_have_golden_bytes() {
    let mut all: Vec<_> = requests().iter().map(|(what, it)| written(what, it)).collect();
    let hello = Hello { number: RegionId(2), pg_count: 256, now_ms: 1_800_000_000_000 };
    all.push(written("answer to hello", &hello));
    all.push(written("answer to ask", &reported()));
    all.push(written("answer to walk", &walked()));
    all.push(written("answer to list", &listed()));
    all.push(written("answer to keys", &KeysReply::Keys(keys_reply())));
    all.push(written("answer to keys: no bucket", &KeysReply::NoBucket));
    all.push(written("answer to keys: other regions", &KeysReply::OtherRegions));
    all.push(written("answer to members", &known()));
    all.push(written("answer to join", &Joined { number: RegionId(3), known: known() }));
    all.push(written("answer: closed", &CloseAnswer::Closed(mark())));
    all.push(written("answer: absent", &CloseAnswer::Absent));
    all.push(written("answer: has objects", &CloseAnswer::HasObjects));
    all.push(written("answer: other regions", &CloseAnswer::OtherRegions));
    all.push(written("answer: has a home", &CloseAnswer::HasHome));
    all.push(written("answer to end-closed", &true));
    all.extend(home_answers().map(|(name, answer)| written(name, &answer)));
    all.extend(change_answers().map(|(name, answer)| written(name, &answer)));
    let of_uploads = upload_answers().map(|(name, it)| (name, ChangeAnswer::Upload(it)));
    all.extend(of_uploads.map(|(name, answer)| written(name, &answer)));
    let (name, bytes) = (name(Slot::Null), 70_000);
    let fetched = Fetched { name, entry: Some(entry()), bytes, is_withheld: false };
    all.push(("entry of a fetch", frame::head(&fetched).unwrap().to_vec()));
    all.push((
        "entry that is gone",
        frame::head(&Fetched { entry: None, bytes: 0, ..fetched.clone() }).unwrap().to_vec(),
    ));
    let withheld = Fetched { entry: None, bytes: 0, is_withheld: true, ..fetched };
    all.push(("entry that is withheld", frame::head(&withheld).unwrap().to_vec()));
    let refusals = [
        ("busy", Declined::Busy),
        ("not ready", Declined::NotReady),
        ("unsound", Declined::Unsound("why".into())),
        ("stranger", Declined::Stranger),
        ("removed", Declined::Removed),
        ("token unknown", Declined::Join(JoinRefused::TokenUnknown)),
        ("token expired", Declined::Join(JoinRefused::TokenExpired)),
        ("token used", Declined::Join(JoinRefused::TokenUsed)),
        ("name taken", Declined::Join(JoinRefused::NameTaken)),
        ("full", Declined::Join(JoinRefused::Full)),
        ("key known", Declined::Join(JoinRefused::KeyKnown)),
    ];
    all.extend(refusals.iter().map(|(what, it)| written(what, it)));
    crate::golden::check(include_str!("../../tests/golden/messages.hex"), &all);
}

#[test]
fn requests_within_their_bounds_pass_and_others_do_not() {
    for (what, request) in requests() {
        assert_eq!(request.check(), Ok(()), "{what}");
        assert_eq!(Some(request.name()), what.split(':').next());
    }
    let pg = (PgId(1), token(0), token(0));
    let names = |count| Request::Fetch(Fetch { names: vec![(name(Slot::Null), true); count] });
    let endless = HomeTerm { count: u64::MAX, of: RegionId(2) };
    let wrong = [
        Request::IdsQuery(IdsQuery { pgs: Vec::new(), ids_max: 1 }),
        Request::Report(Report { pgs: Vec::new() }),
        Request::Report(Report { pgs: vec![(PgId(1), token(0)); REGION_SERVED_PGS_MAX + 1] }),
        Request::IdsQuery(IdsQuery { pgs: vec![pg; REGION_SERVED_PGS_MAX + 1], ids_max: 1 }),
        Request::IdsQuery(IdsQuery { pgs: vec![pg], ids_max: 0 }),
        Request::Walk(Walk { range: Range { from: vec![3], to: Some(vec![3]) } }),
        names(0),
        Request::CloseBucket(close(REGIONS_MAX as u16 + 1)),
        Request::TellHomes(TellHomes { homes: vec![(bucket(), home()); HOMES_REPORTED_MAX + 1] }),
        Request::TellHomes(TellHomes { homes: vec![(bucket(), Home { term: endless, ..home() })] }),
        ask_home(HomeRequest::Give(u64::MAX, HomeScope::Writes)),
        ask_home(HomeRequest::Claim(endless, HomeScope::Writes)),
        Request::Keys(Keys { ask: KeysRequest { keys_max: 0, ..keys().ask }, ..keys() }),
        Request::Keys(Keys { regions: vec![RegionId(1); REGIONS_MAX + 1], ..keys() }),
        change(ChangeKind::Tags(vec![("a".repeat(CHANGE_HEAD_BYTES_MAX), String::new())])),
        upload_step(part(0, Bytes::new())),
        upload_step(part(PART_NUMBER_MAX + 1, Bytes::new())),
        upload_step(part(1, vec![0; CHANGE_BYTES_MAX + 1].into())),
        upload_step(complete(usize::from(PART_NUMBER_MAX) + 1, "07")),
        upload_step(complete(1, &"0".repeat(NAMED_BYTES_MAX + 1))),
        upload_step(UploadStep::Show { upload: upload(), after: 0, parts_max: u16::MAX }),
        names(REGION_SERVED_ENTRIES_MAX + 1),
        Request::FetchSince(since(vec![(0, base())])),
        Request::FetchSince(since(vec![(3, base())])),
        Request::FetchSince(since(vec![(2, base()), (1, base())])),
        Request::FetchSince(since(vec![(1, base()), (1, base())])),
        Request::FetchSince(since(vec![(1, Base { size: 0, ..base() })])),
        Request::FetchPart(FetchPart { at: None, ..fetch_part() }),
        Request::FetchPart(FetchPart { bytes_max: 0, ..fetch_part() }),
    ];
    for request in wrong {
        assert!(matches!(request.check(), Err(Declined::Unsound(_))), "{request:?}");
    }
    let of_another_release = [
        Request::IdsQuery(IdsQuery {
            pgs: vec![pg; REGION_REQUEST_PGS_MAX + 1],
            ids_max: u32::MAX,
        }),
        names(REGION_FETCH_IDS_MAX + 1),
    ];
    for request in of_another_release {
        assert_eq!(request.check(), Ok(()), "it may ask for more than this one does");
    }
}

#[test]
fn a_later_version_is_named_as_such() {
    let mut bytes = encode(&Request::Hello);
    bytes[0] = 2;
    let later = decode::<Request>("request of a region", &bytes);
    assert!(matches!(later, Err(CodecError::Version { found: 2, .. })), "{later:?}");
}

/// Reads bytes as all that the wire may bring: none ends the process.
fn read_as_anything(bytes: &[u8]) {
    if let Ok(request) = decode::<Request>("request", bytes) {
        let _is_sound = request.check();
    }
    drop(decode::<Hello>("answer", bytes));
    drop(decode::<IdsReply>("answer", bytes));
    drop(decode::<WalkAnswer>("answer", bytes));
    drop(decode::<ListAnswer>("answer", bytes));
    drop(decode::<RegionList>("answer", bytes));
    drop(decode::<Joined>("answer", bytes));
    drop(decode::<Fetched>("answer", bytes));
    drop(decode::<Declined>("answer", bytes));
    drop(decode::<HomeAnswer>("answer", bytes));
    drop(decode::<ChangeAnswer>("answer", bytes));
}

proptest! {
    #[test]
    fn hostile_bytes_are_refused(body in proptest::collection::vec(any::<u8>(), 0..200)) {
        read_as_anything(&body);
        read_as_anything(&[&[1], &body[..]].concat());
    }

    #[test]
    fn spoiled_messages_are_refused(which in 0..23_usize, at in any::<prop::sample::Index>(), with in any::<u8>()) {
        let mut all: Vec<_> = requests().iter().map(|(_, it)| encode(it)).collect();
        all.extend([encode(&reported()), encode(&walked()), encode(&listed())]);
        let bytes = &mut all[which];
        let at = at.index(bytes.len());
        bytes[at] = with;
        read_as_anything(bytes);
        read_as_anything(&bytes[..at]);
    }
}
