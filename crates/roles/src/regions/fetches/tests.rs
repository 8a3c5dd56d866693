use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;

use super::*;

const TIMEOUT: Duration = Duration::from_secs(60);

#[tokio::test]
async fn entries_are_opened_while_one_before_them_is_sent() {
    let third = Arc::new(Notify::new());
    let opening = stream::iter(0..3).map(async |number| {
        if number == 2 {
            third.notify_one();
        }
        number
    });
    let mut ahead = Ahead { opening: pin!(opening.buffered(1)), opened: VecDeque::new() };
    let sent = ahead.beside(third.notified());
    timeout(TIMEOUT, sent).await.expect("what waits for its turn goes on");
    assert_eq!(ahead.opened, [0, 1, 2]);
}

#[tokio::test]
async fn no_more_entries_are_opened_before_their_turn_than_there_is_room_for() {
    let opening = stream::iter(0..1_000).map(async |number| number);
    let mut ahead = Ahead { opening: pin!(opening.buffered(1)), opened: VecDeque::new() };
    let sent = ahead.beside(tokio::task::yield_now());
    timeout(TIMEOUT, sent).await.expect("it is sent, whatever else could be opened");
    assert_eq!(ahead.opened.len(), REGION_OPENS_MAX);
}
