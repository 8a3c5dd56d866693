use md5::Digest as _;
use proptest::prelude::*;

use super::*;

fn known(message: &[u8]) -> [u8; 16] {
    md5::Md5::digest(message).into()
}

fn pieces(message: &[u8], cuts: &[usize]) -> [u8; 16] {
    let (mut md5, mut at) = (Md5::default(), 0);
    for cut in cuts {
        let end = (at + cut).min(message.len());
        md5.update(&message[at..end]);
        at = end;
    }
    md5.update(&message[at..]);
    md5.finish()
}

#[test]
fn the_rfc_s_examples_hold() {
    assert_eq!(Md5::default().finish(), known(b""));
    assert_eq!(pieces(b"message digest", &[3])[..4], [0xf9, 0x6b, 0x69, 0x7d]);
}

proptest! {
    #[test]
    fn any_message_in_any_pieces_is_digested_as_others_do_it(
        message in prop::collection::vec(any::<u8>(), 0..1000),
        cuts in prop::collection::vec(0_usize..200, 0..8),
    ) {
        prop_assert_eq!(pieces(&message, &cuts), known(&message));
    }

    #[test]
    fn a_batch_gives_what_each_message_gives_alone(
        messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..2000), 0..40),
    ) {
        let mut digests = vec![Md5::default(); messages.len()];
        let mut jobs: Vec<Job<'_>> = digests
            .iter_mut()
            .zip(&messages)
            .map(|(md5, message)| {
                let blocks = md5.begin(message);
                Job::new(*md5.state(), &message[blocks])
            })
            .collect();
        digest_all(&mut jobs);
        let states: Vec<State> = jobs.iter().map(|job| job.state).collect();
        for ((mut md5, state), message) in digests.into_iter().zip(states).zip(&messages) {
            *md5.state() = state;
            prop_assert_eq!(md5.finish(), known(message));
        }
    }
}
