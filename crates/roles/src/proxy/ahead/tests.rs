use std::sync::Mutex;

use futures::stream;
use futures::task::noop_waker_ref;
use tokio::sync::oneshot;

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

#[test]
fn the_window_grows_while_the_client_waits_and_pieces_come_in_order() {
    let (disk, places) = (Arc::<Disk>::default(), Places::default());
    let mut read = Ahead::new(disk.reads(40), &places);
    assert!(poll(&mut read).is_pending() && poll(&mut read).is_pending());
    assert_eq!((disk.asked(), places.taken()), (2, 1), "every client waits for the first piece");
    let mut widths = Vec::new();
    for number in 0..40 {
        widths.push(disk.asked());
        disk.gives(Ok(number));
        assert_eq!(poll(&mut read), Poll::Ready(Some(Ok(number))));
        if number < 39 {
            assert!(poll(&mut read).is_pending());
        }
    }
    assert_eq!(widths[..6], [2, 4, 4, 4, 4, 4]);
    assert_eq!(poll(&mut read), Poll::Ready(None));
    assert_eq!(places.taken(), 0);
}

#[test]
fn a_client_that_takes_slowly_has_a_small_window() {
    let (disk, places) = (Arc::<Disk>::default(), Places::default());
    let mut read = Ahead::new(disk.reads(10), &places);
    assert!(poll(&mut read).is_pending());
    for number in 0..9 {
        // All that was asked for is there before the client asks for more.
        let mut polled = Poll::Pending;
        while polled.is_pending() {
            while disk.asked() > 0 {
                disk.gives(Ok(0));
            }
            polled = poll(&mut read);
        }
        assert_eq!(polled, Poll::Ready(Some(Ok(0))), "piece {number}");
        assert!(disk.asked() <= 1 && places.taken() <= 1);
    }
}

#[test]
fn the_window_shrinks_when_pieces_wait_for_the_client() {
    let (disk, places) = (Arc::<Disk>::default(), Places::default());
    let mut read = Ahead::new(disk.reads(99), &places);
    for _ in 0..4 {
        assert!(poll(&mut read).is_pending());
        disk.gives(Ok(0));
        assert_eq!(poll(&mut read), Poll::Ready(Some(Ok(0))));
    }
    assert!(poll(&mut read).is_pending());
    assert_eq!((disk.asked(), places.taken()), (4, 4), "a client that takes all at once");
    for _ in 0..8 {
        while disk.asked() > 0 {
            disk.gives(Ok(0));
        }
        assert_eq!(poll(&mut read), Poll::Ready(Some(Ok(0))));
    }
    assert_eq!((disk.asked(), places.taken()), (0, 0), "nothing is read before it asks");
    assert!(poll(&mut read).is_pending());
    assert_eq!(disk.asked(), 2, "it waits, and the window grows again");
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
fn a_row_that_cannot_be_read_is_told_behind_what_came_before() {
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
