//! Copies that a data server makes of what it or another holds.

use larder_roles::breakdown::CountsStatus;
use larder_roles::wire::{CopyEnd, CopyOrder};
use larder_types::codec::decode;

use super::*;

const MAKER: ServerId = ServerId(2);
const MAKER_TOKEN: [u8; 32] = [8; 32];

/// A data server that holds what [`write`] writes there, and another that makes copies.
struct Pair {
    holder: Served,
    maker: Served,
    dirs: [tempfile::TempDir; 2],
}

impl Pair {
    async fn start() -> Self {
        let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let (map, mut hears) = Map::founded();
        map.add("maker", ServerRole::Data, Some(MAKER_TOKEN));
        let (authority, holder) = (authority(), open(dirs[0].path(), 11, &map).await.unwrap());
        let holder = Served::start_as(&authority, (ME, DiskId(0)), holder).await;
        let maker = open_as(MAKER, dirs[1].path(), 12, &map).await.unwrap();
        let maker = Served::start_as(&authority, (MAKER, DiskId(1)), maker).await;
        for (server, of) in [(ME, &holder), (MAKER, &maker)] {
            let addresses = vec![of.address.clone()];
            map.done(Command::ServerStarted(server, of.node.boot(), addresses, Vec::new()));
            of.opened(&mut hears).await;
        }
        assert_eq!(holder.call(write(5), b"bytes").await.0, DataReply::Written);
        Self { holder, maker, dirs }
    }

    /// Asks the maker for a copy of [`chunk`] at other blocks.
    async fn copy(&self, holders: &[ServerId]) -> DataReply {
        let order = CopyOrder {
            chunk: chunk(),
            holders: holders.to_vec(),
            grant: grant(),
            extents: vec![Extent { first: 9, blocks: 1 }],
            max_wait_ms: 20_000,
        };
        self.maker.call(DataCall::Copy(Box::new(order)), b"").await.0
    }

    async fn copied_bytes(&self) -> (DataReply, Bytes) {
        let extents = vec![Extent { first: 9, blocks: 1 }];
        self.maker.call(DataCall::Read { lv: LV, extents, from: 0, len: 5 }, b"").await
    }

    fn close(self) {
        self.holder.node.close();
        self.maker.node.close();
    }
}

/// A copy's grant.
fn grant() -> Grant {
    Grant { pg: PgId(0), op: OpId { view: VIEW, seq: OpSeq(2) }, attempt: 9 }
}

fn durable(damaged: &[ServerId]) -> DataReply {
    DataReply::Copied(CopyEnd::Durable, damaged.to_vec())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_is_made_of_what_another_data_server_holds() {
    let pair = Pair::start().await;
    assert_eq!(pair.copy(&[ME]).await, durable(&[]));
    assert_eq!(pair.copied_bytes().await.1, Bytes::from_static(b"bytes"));
    let (made, gave) = (pair.maker.node.copies(), pair.holder.node.copies());
    assert_eq!(
        (made.made.get(), made.bytes.get(), made.failed.get(), made.under_way()),
        (1, 5, 0, 0)
    );
    assert_eq!((gave.given.get(), gave.made.get()), (5, 0));
    pair.close();
}

/// Kinds and sizes of a server's operations, with how many there were and their bytes.
async fn counted(of: &Served) -> Vec<(String, String, u64, u64)> {
    let (reply, payload) = of.call(DataCall::Counts, b"").await;
    assert_eq!(reply, DataReply::Counts);
    let CountsStatus { counts, .. } = decode("counts", &payload).unwrap();
    assert!(counts.iter().all(|it| it.table == "disk"), "{counts:?}");
    counts.into_iter().map(|it| (it.kind, it.size, it.ops, it.bytes)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_operation_is_counted_in_the_cell_of_its_kind_and_size() {
    let pair = Pair::start().await;
    let cell = |kind: &str, bytes| (kind.to_owned(), "1B..1K".to_owned(), 1, bytes);
    assert_eq!(counted(&pair.holder).await, [cell("write", 5)]);
    assert_eq!(counted(&pair.maker).await, []);
    assert_eq!(pair.copy(&[ME]).await, durable(&[]));
    assert_eq!(counted(&pair.holder).await, [cell("read_copy", 5), cell("write", 5)]);
    assert_eq!(counted(&pair.maker).await, [cell("write", 5)]);
    let elsewhere = Box::new(Chunk { lv: LvId(9), ..chunk() });
    let verified = pair.maker.call(DataCall::Verify(elsewhere), b"").await.0;
    assert_eq!(verified, DataReply::Verified(CopyState::Unreadable));
    assert_eq!(counted(&pair.maker).await, [cell("write", 5)], "it failed");
    let verified = pair.holder.call(DataCall::Verify(Box::new(chunk())), b"").await.0;
    assert_eq!(verified, DataReply::Verified(CopyState::Right));
    pair.copied_bytes().await;
    let [kind, ..] = &counted(&pair.maker).await[..] else { panic!("a read is counted") };
    // A meta server asked for it, as one of an earlier release does for a copy: it is no client's.
    assert_eq!(*kind, cell("read_copy", 5));
    let of_holder = counted(&pair.holder).await;
    assert_eq!(of_holder, [cell("read_copy", 5), cell("verify", 5), cell("write", 5)]);
    pair.close();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chunk_moves_within_a_data_server_without_the_network() {
    let pair = Pair::start().await;
    assert_eq!(pair.maker.call(write(5), b"bytes").await.0, DataReply::Written);
    assert_eq!(pair.copy(&[MAKER, ME]).await, durable(&[]));
    assert_eq!(pair.copied_bytes().await.1, Bytes::from_static(b"bytes"));
    assert_eq!(pair.holder.node.copies().given.get(), 0);
    pair.close();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_holder_reports_it_and_another_supplies_the_bytes() {
    let pair = Pair::start().await;
    rot(&pair.dirs[0].path().join("data0"), b"bytes");
    let none = DataReply::Copied(CopyEnd::NoHolder, vec![ME]);
    assert_eq!(pair.copy(&[ME]).await, none, "nobody else holds it");
    assert_eq!(pair.maker.node.copies().failed.get(), 1);
    assert_eq!(pair.maker.call(write(5), b"bytes").await.0, DataReply::Written);
    assert_eq!(pair.copy(&[ME, MAKER]).await, durable(&[ME]));
    assert_eq!(pair.copied_bytes().await.1, Bytes::from_static(b"bytes"));
    pair.close();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_under_a_grant_that_is_void_is_not_written() {
    let pair = Pair::start().await;
    let floor = GrantKey { view: VIEW, seq: OpSeq(3) };
    let raised = pair.maker.pg(DataRequest::RaiseFloor { floor }).await;
    assert_eq!(raised, DataAnswer::Floor(floor));
    let refused = DataReply::Copied(CopyEnd::NotWritten, Vec::new());
    assert_eq!(pair.copy(&[ME]).await, refused);
    assert_ne!(pair.copied_bytes().await.1, Bytes::from_static(b"bytes"));
    pair.close();
}

#[tokio::test(flavor = "multi_thread")]
async fn holders_that_are_gone_or_unknown_give_nothing() {
    let pair = Pair::start().await;
    let none = DataReply::Copied(CopyEnd::NoHolder, Vec::new());
    assert_eq!(pair.copy(&[ServerId(77)]).await, none, "it is not in the map");
    assert_eq!(pair.copy(&[]).await, none);
    assert_eq!(pair.copy(&[ServerId(77), ME]).await, durable(&[]), "the next one has it");
    pair.close();
}

#[tokio::test(flavor = "multi_thread")]
async fn data_servers_read_what_they_copy_and_may_nothing_else() {
    let pair = Pair::start().await;
    let deadline = || Instant::now() + Duration::from_secs(30);
    let (from, len, chunk) = (0, 5, Box::new(chunk()));
    let verified = DataCall::ReadVerified { chunk: chunk.clone(), from, len };
    // The endpoints are a meta server's, a manager's and a proxy's.
    for endpoint in &pair.holder.endpoints {
        let peer = Peer::<DataService>::new(endpoint, ME, pair.holder.address.clone());
        let answer = peer.call(&verified, Bytes::new(), deadline()).await;
        assert!(answer.is_err(), "only data servers read so: {answer:?}");
    }
    let data = Peer::<DataService>::new(&pair.holder.data, ME, pair.holder.address.clone());
    let answer = data.call(&verified, Bytes::new(), deadline()).await.unwrap();
    assert_eq!(answer, (DataReply::Bytes, Bytes::from_static(b"bytes")));
    for (from, len) in [(1, 4), (0, 4), (0, 6), (u32::MAX, 5), (0, 0)] {
        let torn = DataCall::ReadVerified { chunk: chunk.clone(), from, len };
        let answer = data.call(&torn, Bytes::new(), deadline()).await.unwrap();
        assert!(matches!(answer.0, DataReply::UnreadableAnd(_)), "{from}, {len}: {answer:?}");
    }
    let (extents, max_wait_ms) = (chunk.extents.clone(), 20_000);
    let order =
        CopyOrder { chunk: *chunk, holders: vec![ME], grant: grant(), extents, max_wait_ms };
    for call in [write(5), read(0, 5), DataCall::Load, DataCall::Copy(Box::new(order))] {
        let answer = data.call(&call, Bytes::from_static(b"other"), deadline()).await;
        assert!(answer.is_err(), "a data server may not ask {call:?}: {answer:?}");
    }
    pair.close();
}
