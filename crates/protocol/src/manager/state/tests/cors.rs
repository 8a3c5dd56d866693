use super::*;
use larder_types::limits::{CORS_ALL_BYTES_MAX, CORS_BYTES_MAX};
use larder_types::{CorsMethod, CorsRule, CorsRules};

/// One rule, by which these origins may read and write.
pub(super) fn rules(origins: &[&str]) -> CorsRules {
    let rule = CorsRule {
        id: None,
        methods: vec![CorsMethod::Get, CorsMethod::Put],
        origins: origins.iter().map(|&origin| origin.to_owned()).collect(),
        headers: Vec::new(),
        exposed: Vec::new(),
        max_age_s: None,
    };
    CorsRules::new(vec![rule]).unwrap()
}

pub(super) fn set(name: &str, rules: Option<CorsRules>) -> Command {
    Command::SetCors(BucketName::new(name).unwrap(), rules)
}

#[test]
fn cors_rules_stay_until_they_are_removed_or_their_bucket_is_and_leave_the_epoch() {
    let mut log = Log::cluster(1);
    let name = BucketName::new("photos").unwrap();
    assert_eq!(log.apply(set("photos", None)), Err(Refusal::NoSuchBucket));
    log.done(Command::CreateBucket(name.clone(), None, 5));
    assert_eq!(log.done(set("photos", None)), Outcome::Already);
    let given = Some(rules(&["*"]));
    let Outcome::Bucket(reported) = log.done(set("photos", given.clone())) else { panic!() };
    assert_eq!((reported.epoch, &reported.cors), (Epoch(1), &None), "an answer is short");
    assert_eq!(log.0.buckets[&name].cors, given);
    assert_eq!(log.done(set("photos", given.clone())), Outcome::Already);
    assert_eq!(Topology::decode(&log.0.encode()).as_ref(), Ok(&log.0));
    let Outcome::Bucket(marked) = log.done(Command::BeginDeletion(name.clone())) else { panic!() };
    assert_eq!((marked.epoch, &marked.cors), (Epoch(2), &None));
    assert_eq!(log.0.buckets[&name].cors, given, "it may live on");
    log.done(Command::EndDeletionOf(marked.id, name.clone(), Epoch(2), true));
    log.done(Command::CreateBucket(name.clone(), None, 6));
    assert_eq!(log.0.buckets[&name].cors, None, "another bucket has the name");
}

#[test]
fn the_cors_rules_of_all_buckets_together_are_bounded() {
    let mut log = Log::cluster(1);
    let longest = || rules(&["o".repeat(CORS_BYTES_MAX - 16).as_str()]);
    let fitting = CORS_ALL_BYTES_MAX / longest().bytes();
    for number in 0..=fitting {
        let name = BucketName::new(&format!("bucket-{number}")).unwrap();
        log.done(Command::CreateBucket(name, None, 5));
    }
    (0..fitting).for_each(|number| {
        log.done(set(&format!("bucket-{number}"), Some(longest())));
    });
    let last = format!("bucket-{fitting}");
    assert_eq!(log.apply(set(&last, Some(longest()))), Err(Refusal::TooMuchCors));
    assert_eq!(
        log.done(set("bucket-0", Some(longest()))),
        Outcome::Already,
        "its own do not count"
    );
    log.done(set("bucket-0", None));
    log.done(set(&last, Some(longest())));
}
