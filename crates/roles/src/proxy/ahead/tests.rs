use std::sync::Mutex;
use std::time::Duration;

use futures::stream;
use futures::task::noop_waker_ref;
use tokio::sync::oneshot;
use tokio::time::advance;

use super::*;

/// Pieces that are read when the test says so.
#[derive(Default)]
struct Disk(Mutex<VecDeque<oneshot::Sender<Result<Bytes, &'static str>>>>);

impl Disk {
    /// Reads of so many pieces, which tell the disk when they are begun.
    fn reads(self: &Arc<Self>, pieces: usize) -> PieceReads<&'static str> {
        let disk = self.clone();
        Box::pin(stream::iter(0..pieces).map(move |_| {
            let (give, given) = oneshot::channel();
            disk.0.lock().unwrap().push_back(give);
            let read: PieceRead<_> = Box::pin(async move { given.await.expect("it is read") });
            Ok(read)
        }))
    }

    /// Pieces that are asked for and not read.
    fn asked(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    /// The first that was asked for has been read.
    fn gives(&self, outcome: Result<u8, &'static str>) {
        let give = self.0.lock().unwrap().pop_front().expect("a piece is asked for");
        drop(give.send(outcome.map(|byte| Bytes::from(vec![byte]))));
    }
}

fn poll(read: &mut Ahead<&'static str>) -> Poll<Option<Result<u8, &'static str>>> {
    let polled = read.poll_next_unpin(&mut Context::from_waker(noop_waker_ref()));
    polled.map(|piece| piece.map(|piece| piece.map(|bytes| bytes[0])))
}

/// So long takes the disk for a piece.
const DISK_TIME: Duration = Duration::from_millis(10);

/// A client that takes all as it comes, of a disk that takes its time: the pieces that were asked for at once.
async fn hungry(disk: &Disk, read: &mut Ahead<&'static str>, pieces: u8) -> Vec<usize> {
    let mut widths = Vec::new();
    for number in 0..pieces {
        assert!(poll(read).is_pending());
        widths.push(disk.asked());
        advance(DISK_TIME).await;
        disk.gives(Ok(number));
        assert_eq!(poll(read), Poll::Ready(Some(Ok(number))));
    }
    widths
}

#[tokio::test(start_paused = true)]
async fn the_window_grows_while_the_client_waits_and_pieces_come_in_order() {
    let (disk, places) = (Arc::<Disk>::default(), Places::default());
    let mut read = Ahead::new(disk.reads(40), &places);
    assert_eq!(hungry(&disk, &mut read, 40).await[..5], [2, 4, 8, 8, 8]);
    assert_eq!(poll(&mut read), Poll::Ready(None));
    assert_eq!(places.taken(), 0);
}

#[tokio::test(start_paused = true)]
async fn of_a_slow_client_nothing_is_read_before_it_asks() {
    let (disk, places) = (Arc::<Disk>::default(), Places::default());
    let mut read = Ahead::new(disk.reads(200), &places);
    hungry(&disk, &mut read, 10).await;
    assert_eq!((disk.asked(), places.taken()), (7, 7));
    // From now on it takes longer than the disk, whether the piece is there when it asks or not.
    for _ in 0..5 * READ_WINDOW_CALM_PIECES {
        advance(3 * DISK_TIME).await;
        let mut polled = poll(&mut read);
        while polled.is_pending() {
            advance(DISK_TIME).await;
            while disk.asked() > 0 {
                disk.gives(Ok(0));
            }
            polled = poll(&mut read);
        }
        assert!(matches!(polled, Poll::Ready(Some(Ok(_)))));
    }
    assert_eq!((disk.asked(), places.taken()), (0, 0));
    assert_eq!(hungry(&disk, &mut read, 4).await, [1, 2, 4, 8], "a client that is fast again");
}

#[test]
fn a_lookup_that_takes_long_holds_nothing_up_and_is_waited_for() {
    let (disk, places) = (Arc::<Disk>::default(), Places::default());
    let (look, looked) = oneshot::channel::<()>();
    let behind = disk.reads(1);
    let rest = stream::once(async move { drop(looked.await) }).flat_map(move |()| stream::empty());
    let lookup = disk.reads(1).chain(rest).chain(behind);
    let mut read = Ahead::new(Box::pin(lookup), &places);
    assert!(poll(&mut read).is_pending());
    assert_eq!((disk.asked(), places.taken()), (1, 0), "no place is held for a lookup");
    disk.gives(Ok(1));
    assert_eq!(poll(&mut read), Poll::Ready(Some(Ok(1))));
    assert!(poll(&mut read).is_pending());
    drop(look);
    assert!(poll(&mut read).is_pending());
    disk.gives(Ok(2));
    assert_eq!(poll(&mut read), Poll::Ready(Some(Ok(2))));
    assert_eq!(poll(&mut read), Poll::Ready(None));
}

#[test]
fn without_a_place_a_read_goes_on_piece_by_piece() {
    let (disk, places) = (Arc::<Disk>::default(), Places::default());
    let all = places.0.clone().try_acquire_many_owned(READ_AHEAD_PIECES_MAX as u32).unwrap();
    let mut read = Ahead::new(disk.reads(3), &places);
    for number in 0..2 {
        assert!(poll(&mut read).is_pending());
        assert_eq!(disk.asked(), 1);
        disk.gives(Ok(number));
        assert_eq!(poll(&mut read), Poll::Ready(Some(Ok(number))));
    }
    drop(all);
    assert!(poll(&mut read).is_pending());
    assert_eq!(disk.asked(), 1, "one is left");
}

#[test]
fn nothing_follows_a_piece_that_failed_and_its_places_are_free_again() {
    let (disk, places) = (Arc::<Disk>::default(), Places::default());
    let mut read = Ahead::new(disk.reads(9), &places);
    assert!(poll(&mut read).is_pending());
    disk.gives(Err("bad"));
    disk.gives(Ok(1));
    assert_eq!(poll(&mut read), Poll::Ready(Some(Err("bad"))));
    assert_eq!(poll(&mut read), Poll::Ready(None));
    assert_eq!(places.taken(), 0);
}

#[test]
fn an_unreadable_row_is_reported_after_the_rows_before_it() {
    let (disk, places) = (Arc::<Disk>::default(), Places::default());
    let failing = disk.reads(1).chain(stream::iter([Err("no row")]));
    let mut read = Ahead::new(Box::pin(failing), &places);
    assert!(poll(&mut read).is_pending());
    disk.gives(Ok(7));
    assert_eq!(poll(&mut read), Poll::Ready(Some(Ok(7))));
    assert_eq!(poll(&mut read), Poll::Ready(Some(Err("no row"))));
    assert_eq!(poll(&mut read), Poll::Ready(None));
}

#[test]
fn a_read_that_is_dropped_leaves_its_places() {
    let (disk, places) = (Arc::<Disk>::default(), Places::default());
    let mut read = Ahead::new(disk.reads(9), &places);
    assert!(poll(&mut read).is_pending());
    assert_eq!(places.taken(), 1);
    drop(read);
    assert_eq!(places.taken(), 0);
}
