//! Room on the disk of a data server.

use larder_roles::progress::{FileNow, RoomNow};
use larder_types::codec::decode;

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn the_room_of_a_disk_is_that_of_its_file_system() {
    let dir = tempfile::tempdir().unwrap();
    let (map, mut hears) = Map::founded();
    let served = Served::start(open(dir.path(), 11, &map).await.unwrap()).await;
    served.opened(&mut hears).await;
    let room = async || {
        let (reply, payload) = served.call(DataCall::Room, b"").await;
        assert_eq!(reply, DataReply::Room);
        decode::<RoomNow>("room", &payload).unwrap()
    };
    let before = room().await;
    assert_eq!((before.disk, before.file.map(|file| file.held)), (served.disk.0, Some(0)));
    assert_eq!(served.call(write(5), b"bytes").await.0, DataReply::Written);
    let FileNow { held, spare } = room().await.file.expect("it is no device");
    assert_eq!(held, 1 << 20, "the least by which a physical volume grows");
    assert_eq!(spare, served.node.server().spare_bytes());
    // Operators ask with whatever certificate their machine has.
    let data = Peer::<DataService>::new(&served.data, ME, served.address.clone());
    let deadline = Instant::now() + Duration::from_secs(30);
    let answer = data.call(&DataCall::Room, Bytes::new(), deadline).await;
    assert_eq!(answer.unwrap().0, DataReply::Room);
    served.node.close();
}
