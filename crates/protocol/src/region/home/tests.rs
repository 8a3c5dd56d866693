use super::*;

const EU: RegionId = RegionId(1);
const US: RegionId = RegionId(2);
const JP: RegionId = RegionId(3);
const SCOPE: HomeScope = HomeScope::Conditions;

fn home(count: u64, of: RegionId, state: HomeState) -> Home {
    Home { term: HomeTerm { count, of }, scope: SCOPE, state }
}

/// The machine of US, among three.
fn begun(known: Option<Home>) -> (Taking, Vec<Effect>) {
    let mut out = Vec::new();
    let taking = Taking::begin(US, [EU, JP].into_iter(), (known, SCOPE), &mut out);
    (taking, out)
}

fn stepped(taking: &mut Taking, event: Event) -> Vec<Effect> {
    let mut out = Vec::new();
    taking.step(event, &mut out);
    out
}

fn knows(from: RegionId, known: Option<Home>) -> Event {
    Event::Answered(from, Some(HomeAnswer::Knows(known)))
}

fn yours(from: RegionId, home: Home, is_level: bool) -> Event {
    Event::Answered(from, Some(HomeAnswer::Yours { home: home.as_remote(), is_level }))
}

#[test]
fn a_claim_counts_once_all_have_accepted_it_and_nothing_is_missing() {
    let (mut it, asked) = begun(None);
    assert_eq!(
        asked,
        [Effect::Ask(EU, HomeRequest::Prepare), Effect::Ask(JP, HomeRequest::Prepare)]
    );
    let nowhere = home(6, JP, HomeState::Nowhere);
    assert_eq!(stepped(&mut it, Event::Answered(JP, Some(HomeAnswer::Behind))), []);
    assert_eq!(stepped(&mut it, knows(EU, Some(nowhere))), [Effect::Wait]);
    assert_eq!(stepped(&mut it, Event::Waited), [Effect::Ask(JP, HomeRequest::Prepare)]);
    let coming = home(7, US, HomeState::Claimed(true));
    let set = Effect::Set { expected: None, next: coming };
    assert_eq!(stepped(&mut it, knows(JP, None)), [set], "above all that is known");
    let claim = HomeRequest::Claim(coming.term, SCOPE);
    let both = [Effect::Ask(EU, claim), Effect::Ask(JP, claim)];
    assert_eq!(stepped(&mut it, Event::Set(true)), both);
    assert_eq!(stepped(&mut it, yours(EU, coming, true)), []);
    assert_eq!(stepped(&mut it, yours(JP, coming, false)), [Effect::Wait]);
    assert_eq!(stepped(&mut it, yours(EU, coming, true)), [], "it was told already");
    assert_eq!(stepped(&mut it, Event::Waited), [Effect::Ask(JP, claim)]);
    let here = Effect::Set { expected: Some(coming), next: home(7, US, HomeState::Here) };
    assert_eq!(stepped(&mut it, yours(JP, coming, true)), [here]);
    assert_eq!(stepped(&mut it, Event::Set(true)), [Effect::End(Ok(()))]);
    assert!(it.is_over());
}

#[test]
fn a_region_learns_from_others_that_it_is_the_home() {
    let given = home(3, US, HomeState::Given);
    for (known, owed) in [
        (None, true),
        (Some(home(2, EU, HomeState::Elsewhere)), true),
        (Some(home(3, US, HomeState::Coming(EU))), false),
        (Some(home(4, US, HomeState::Nowhere)), false),
        (Some(home(4, JP, HomeState::Elsewhere)), false),
    ] {
        assert_eq!(is_owed(US, known.as_ref(), given), owed, "{known:?}");
        assert!(!is_owed(JP, known.as_ref(), given), "it is another's");
        assert_eq!(
            merge_home(US, known.as_ref(), given),
            None,
            "its own terms come from who gave it"
        );
    }
    assert!(!is_owed(US, None, home(3, US, HomeState::Nowhere)));
    // So it asks, and the answer is that of the first time.
    let again = reply(Some(&given), (US, HomeRequest::Give(2, SCOPE)));
    assert_eq!(again, Reply::Yours(given));
}

#[test]
fn a_home_is_requested_from_its_region_and_taken_once_nothing_is_missing() {
    let (mut it, asked) = begun(Some(home(3, EU, HomeState::Elsewhere)));
    let give = Effect::Ask(EU, HomeRequest::Give(3, SCOPE));
    assert_eq!(asked, [give]);
    let behind = Event::Answered(EU, Some(HomeAnswer::Behind));
    assert_eq!(stepped(&mut it, behind), [Effect::Wait]);
    assert_eq!(stepped(&mut it, Event::Waited), [give]);
    let coming = home(4, US, HomeState::Coming(EU));
    let expected = Some(home(3, EU, HomeState::Elsewhere));
    let set = Effect::Set { expected, next: coming };
    assert_eq!(stepped(&mut it, yours(EU, coming, true)), [set]);
    let again = Effect::Ask(EU, HomeRequest::Give(4, SCOPE));
    assert_eq!(
        stepped(&mut it, Event::Set(true)),
        [again],
        "before it was written down it may have lacked something"
    );
    let here = Effect::Set { expected: Some(coming), next: home(4, US, HomeState::Here) };
    assert_eq!(stepped(&mut it, yours(EU, coming, true)), [here]);
    // After a restart it goes on with the record.
    assert_eq!(begun(Some(coming)).1, [again]);
}

#[test]
fn what_a_removed_region_gave_is_claimed_from_all_that_are_left() {
    let mut out = Vec::new();
    let given = home(4, US, HomeState::Coming(RegionId(9)));
    let _it = Taking::begin(US, [EU, JP].into_iter(), (Some(given), SCOPE), &mut out);
    let claim = HomeRequest::Claim(given.term, SCOPE);
    assert_eq!(out, [Effect::Ask(EU, claim), Effect::Ask(JP, claim)]);
    let gone = home(3, RegionId(9), HomeState::Elsewhere);
    let (_, asked) = begun(Some(gone));
    assert_eq!(
        asked,
        [Effect::Ask(EU, HomeRequest::Prepare), Effect::Ask(JP, HomeRequest::Prepare)]
    );
}

#[test]
fn a_claim_that_fails_is_withdrawn_only_if_nobody_can_have_the_home() {
    let refused = |first: Option<Home>| {
        let (mut it, _) = begun(first);
        stepped(&mut it, knows(EU, None));
        stepped(&mut it, knows(JP, None));
        stepped(&mut it, Event::Set(true));
        (stepped(&mut it, Event::Answered(JP, None)), it)
    };
    let (out, mut it) = refused(None);
    let coming = Some(home(1, US, HomeState::Claimed(true)));
    let next = home(2, US, HomeState::Nowhere);
    assert_eq!(out, [Effect::Set { expected: coming, next }]);
    let ended = [Effect::End(Err(HomeRefused::NoAnswer(JP)))];
    assert_eq!(stepped(&mut it, Event::Set(true)), ended);
    // A region that was removed had it, and may have given it to another.
    let (out, it) = refused(Some(home(3, RegionId(9), HomeState::Elsewhere)));
    assert_eq!(out, ended);
    assert_eq!(it.home.map(|home| home.state), Some(HomeState::Claimed(false)));
}

#[test]
fn of_two_claims_at_once_the_later_one_counts() {
    let claimed = |known: Home, term| reply(Some(&known), (JP, HomeRequest::Claim(term, SCOPE)));
    let later = HomeTerm { count: 7, of: JP };
    let accepted = Reply::Accept(home(7, JP, HomeState::Elsewhere));
    assert_eq!(claimed(home(7, US, HomeState::Claimed(true)), later), accepted);
    let earlier = HomeTerm { count: 6, of: JP };
    let mine = home(7, US, HomeState::Claimed(true));
    assert_eq!(claimed(mine, earlier), Reply::Say(HomeAnswer::Knows(Some(mine))));
    let here = home(5, US, HomeState::Here);
    assert_eq!(claimed(here, later), Reply::Say(HomeAnswer::Knows(Some(here))), "it gives it");
    let yours = home(7, JP, HomeState::Elsewhere);
    assert_eq!(claimed(yours, later), Reply::Yours(yours), "asked again");
    // The earlier one is made again above the other, a few times.
    let (mut it, _) = begun(None);
    stepped(&mut it, knows(EU, None));
    stepped(&mut it, knows(JP, None));
    stepped(&mut it, Event::Set(true));
    for count in [4, 8] {
        let theirs = home(count, JP, HomeState::Claimed(true));
        let out = stepped(&mut it, knows(JP, Some(theirs)));
        let [Effect::Set { next, .. }] = out[..] else { panic!("{out:?}") };
        assert_eq!(next, home(count + 1, US, HomeState::Claimed(true)));
        stepped(&mut it, Event::Set(true));
    }
    let out = stepped(&mut it, knows(JP, Some(home(20, JP, HomeState::Claimed(true)))));
    assert!(matches!(out[..], [Effect::Set { next: Home { state: HomeState::Nowhere, .. }, .. }]));
}

#[test]
fn only_who_has_the_home_gives_it_and_says_again_that_it_did() {
    let give = (US, HomeRequest::Give(9, HomeScope::Writes));
    let given = Home { scope: HomeScope::Writes, ..home(10, US, HomeState::Given) };
    assert_eq!(reply(Some(&home(3, EU, HomeState::Here)), give), Reply::Give(given));
    assert_eq!(reply(Some(&given), give), Reply::Yours(given));
    for other in [
        Some(home(10, US, HomeState::Elsewhere)),
        Some(home(10, JP, HomeState::Given)),
        Some(home(3, EU, HomeState::Claimed(true))),
        Some(home(3, EU, HomeState::Nowhere)),
        None,
    ] {
        assert_eq!(reply(other.as_ref(), give), Reply::Say(HomeAnswer::Knows(other)));
    }
    let anothers = HomeRequest::Claim(HomeTerm { count: 9, of: JP }, SCOPE);
    assert_eq!(reply(None, (US, anothers)), Reply::Say(HomeAnswer::Knows(None)));
}

#[test]
fn what_others_tell_replaces_older_records_but_not_ones_own_home() {
    let reported = home(5, JP, HomeState::Here);
    let elsewhere = Some(home(5, JP, HomeState::Elsewhere));
    assert_eq!(merge_home(US, None, reported), elsewhere);
    assert_eq!(merge_home(US, Some(&home(4, EU, HomeState::Given)), reported), elsewhere);
    assert_eq!(merge_home(US, Some(&home(5, JP, HomeState::Elsewhere)), reported), None);
    assert_eq!(
        merge_home(US, Some(&home(6, EU, HomeState::Nowhere)), reported),
        None,
        "it is older"
    );
    assert_eq!(merge_home(US, Some(&home(4, US, HomeState::Here)), reported), None);
    assert_eq!(merge_home(US, Some(&home(4, US, HomeState::Claimed(true))), reported), None);
    assert_eq!(merge_home(JP, None, reported), None, "nobody else knows better");
    let nowhere = home(6, JP, HomeState::Nowhere);
    assert_eq!(merge_home(JP, None, nowhere), Some(nowhere), "as before it lost its record");
    assert_eq!(
        merge_home(US, None, home(u64::MAX, JP, HomeState::Elsewhere)),
        None,
        "no count ends"
    );
}
