//! A bucket that was deleted, or deleted and made again, while a proxy has an old map.

use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::FutureExt;
use futures::future::join_all;
use larder_objects::{ListRequest, ObjectError, Objects};
use larder_protocol::manager::state::{Command, Outcome};
use larder_types::{BucketName, BucketRecord, CorsMethod, CorsRule, CorsRules, Epoch, ObjectKey};
use tokio::time::{Instant, timeout};

use super::{Cluster, soon};
use crate::limits::BUCKET_QUESTION_PAUSE;
use crate::proxy::role_access::RoleAccess;

impl Cluster {
    /// Deletes the bucket; the proxy does not hear of it.
    fn delete_unseen(&self) {
        let managers = &self.world.managers;
        managers.agree(Command::BeginDeletion(self.bucket.name.clone()));
        let marked = managers.epoch(self.bucket.id).expect("it is marked");
        let BucketRecord { id, name, .. } = self.bucket.clone();
        managers.agree(Command::EndDeletionOf(id, name, marked, true));
    }

    /// Deletes the bucket and makes it again, with a key in it.
    fn remake_unseen(&self, key: &ObjectKey) -> BucketRecord {
        self.delete_unseen();
        let make = Command::CreateBucket(self.bucket.name.clone(), None, 0);
        let Outcome::Bucket(anew) = self.world.managers.agree(make) else { panic!("no bucket") };
        self.world.index.lock().show(anew.id, key);
        *anew
    }
}

fn key() -> ObjectKey {
    ObjectKey::new("key").expect("it is a key")
}

#[tokio::test]
async fn a_key_is_looked_up_again_in_the_bucket_that_was_made_anew() {
    let cluster = Cluster::begin().await;
    let (name, key) = (&cluster.bucket.name, key());
    let anew = cluster.remake_unseen(&key);
    let (found, ()) = tokio::join!(soon(cluster.proxy.open(name, &key)), async {
        tokio::task::yield_now().await;
        cluster.world.managers.publish();
    });
    assert_eq!(found.map(|opened| opened.bucket), Ok(anew.id));
    assert_eq!(cluster.proxy.counters().bucket_waits.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_bucket_that_was_made_anew_is_listed() {
    let cluster = Cluster::begin().await;
    cluster.remake_unseen(&key());
    let request = ListRequest { max: 10, ..ListRequest::default() };
    let list = cluster.proxy.list(&cluster.bucket.name, request);
    let (listed, ()) = tokio::join!(soon(list), async {
        tokio::task::yield_now().await;
        cluster.world.managers.publish();
    });
    assert_eq!(listed.map(|page| page.items.len()), Ok(1));
}

#[tokio::test]
async fn a_deleted_bucket_is_reported_once_the_deletion_is_known() {
    let cluster = Cluster::begin().await;
    cluster.delete_unseen();
    let (name, key) = (&cluster.bucket.name, key());
    let (found, ()) = tokio::join!(soon(cluster.proxy.open(name, &key)), async {
        tokio::task::yield_now().await;
        cluster.world.managers.publish();
    });
    assert_eq!(found.map(|opened| opened.bucket), Err(ObjectError::NoSuchBucket));
}

#[tokio::test]
async fn that_a_key_is_not_there_is_not_said_by_an_old_map() {
    let cluster = Cluster::begin().await;
    cluster.delete_unseen();
    let found = soon(cluster.proxy.open(&cluster.bucket.name, &key())).await;
    let said = found.map(|opened| opened.bucket);
    assert!(matches!(said, Err(ObjectError::Unavailable { .. })), "{said:?}");
}

#[tokio::test]
async fn a_deletion_ends_for_the_bucket_that_was_marked_and_under_older_managers_for_its_name() {
    for has_older in [false, true] {
        let cluster = Cluster::begin().await;
        let managers = &cluster.world.managers;
        managers.has_older.store(has_older, Ordering::Relaxed);
        let BucketRecord { id, name, .. } = cluster.bucket.clone();
        managers.proposed.lock().clear();
        assert_eq!(soon(cluster.proxy.delete_bucket(&name)).await, Ok(()));
        assert_eq!(managers.epoch(id), None, "it is gone");
        let mut proposed = vec![
            Command::BeginDeletion(name.clone()),
            Command::EndDeletionOf(id, name.clone(), Epoch(2), true),
        ];
        if has_older {
            proposed.push(Command::EndDeletion(name, Epoch(2), true));
        }
        assert_eq!(*managers.proposed.lock(), proposed);
    }
}

#[tokio::test]
async fn a_deletion_whose_mark_was_taken_over_says_that_it_is_to_be_tried_again() {
    let cluster = Cluster::begin().await;
    let BucketRecord { id, name, .. } = cluster.bucket.clone();
    let marked = soon(cluster.proxy.access.begin_deletion(&name)).await.expect("it is marked");
    cluster.world.managers.agree(Command::EndDeletionOf(id, name, marked.epoch, false));
    let ended = soon(cluster.proxy.access.end_deletion(marked, true)).await;
    assert!(matches!(ended, Err(ObjectError::Unavailable { .. })), "{ended:?}");
    assert!(cluster.world.managers.epoch(id).is_some(), "it lives on");
}

#[tokio::test]
async fn the_end_of_a_deletion_by_name_is_not_repeated_when_its_answer_is_lost() {
    let cluster = Cluster::begin().await;
    let managers = &cluster.world.managers;
    let name = cluster.bucket.name.clone();
    let marked = soon(cluster.proxy.access.begin_deletion(&name)).await.expect("it is marked");
    managers.has_older.store(true, Ordering::Relaxed);
    *managers.unheard.lock() = 1;
    managers.proposed.lock().clear();
    let ended = soon(cluster.proxy.access.end_deletion(marked.clone(), true)).await;
    assert!(matches!(ended, Err(ObjectError::Unavailable { .. })), "{ended:?}");
    // Another may have the name by now.
    let by_name = Command::EndDeletion(name.clone(), marked.epoch, true);
    let by_id = Command::EndDeletionOf(marked.id, name, marked.epoch, true);
    assert_eq!(*managers.proposed.lock(), [by_id, by_name]);
}

#[tokio::test]
async fn cors_rules_are_agreed_on_and_shown_when_they_are_said_to_be_set() {
    let cluster = Cluster::begin().await;
    let managers = &cluster.world.managers;
    let name = &cluster.bucket.name;
    let rule = CorsRule {
        id: None,
        methods: vec![CorsMethod::Get],
        origins: vec!["*".to_owned()],
        headers: Vec::new(),
        exposed: Vec::new(),
        max_age_s: None,
    };
    let rules = CorsRules::new(vec![rule]).ok();
    managers.proposed.lock().clear();
    // The first answer is lost: what is proposed again is so already.
    *managers.unheard.lock() = 1;
    assert_eq!(soon(cluster.proxy.set_cors(name, rules.clone())).await, Ok(()));
    assert_eq!(cluster.proxy.cors(name), rules);
    assert_eq!(soon(cluster.proxy.set_cors(name, None)).await, Ok(()));
    assert_eq!(cluster.proxy.cors(name), None);
    let set = |rules| Command::SetCors(name.clone(), rules);
    assert_eq!(*managers.proposed.lock(), [set(rules.clone()), set(rules.clone()), set(None)]);
    cluster.delete_unseen();
    let refused = soon(cluster.proxy.set_cors(name, rules)).await;
    assert_eq!(refused, Err(ObjectError::NoSuchBucket));
}

impl Cluster {
    /// Makes a bucket through another proxy; this one does not hear of it.
    fn make_unseen(&self, name: &str) -> BucketName {
        let name = BucketName::new(name).expect("it is a name");
        self.world.managers.agree(Command::CreateBucket(name.clone(), None, 0));
        name
    }

    /// Waits until the proxy has asked the managers.
    async fn until_asked(&self) {
        let asked = async {
            while self.questions() == 0 {
                tokio::task::yield_now().await;
            }
        };
        timeout(Duration::from_secs(5), asked).await.expect("it asks");
    }

    fn questions(&self) -> u64 {
        self.proxy.counters().bucket_questions.load(Ordering::Relaxed)
    }
}

#[tokio::test]
async fn a_bucket_made_through_another_proxy_is_there_once_this_one_has_caught_up() {
    let cluster = Cluster::begin().await;
    let name = cluster.make_unseen("elsewhere");
    assert!(!cluster.proxy.has_bucket(&name));
    let (caught_up, ()) = tokio::join!(soon(cluster.proxy.catch_up()), async {
        cluster.until_asked().await;
        assert!(!cluster.proxy.has_bucket(&name), "the map is still on its way");
        cluster.world.managers.publish();
    });
    assert_eq!(caught_up, Ok(()));
    assert!(cluster.proxy.has_bucket(&name));
    assert_eq!(cluster.questions(), 1);
}

#[tokio::test]
async fn a_bucket_made_anew_is_not_missing_while_only_its_deletion_is_known() {
    let cluster = Cluster::begin().await;
    let (name, key) = (&cluster.bucket.name, key());
    cluster.delete_unseen();
    let managers = &cluster.world.managers;
    let (found, anew) = tokio::join!(soon(cluster.proxy.open(name, &key)), async {
        tokio::task::yield_now().await;
        managers.publish();
        // Made anew and answered, before the proxy has looked at the map without it.
        let make = Command::CreateBucket(name.clone(), None, 0);
        let Outcome::Bucket(anew) = managers.agree(make) else { panic!("no bucket") };
        cluster.world.index.lock().show(anew.id, &key);
        cluster.until_asked().await;
        managers.publish();
        anew
    });
    assert_eq!(found.map(|opened| opened.bucket), Ok(anew.id));
}

#[tokio::test]
async fn many_requests_for_unknown_buckets_are_few_questions() {
    let cluster = Cluster::begin().await;
    let rounds = 5;
    let begun = Instant::now();
    for _ in 0..rounds {
        // All but the first that is polled come before that one's question begins, or share the next.
        let all = join_all((0..1000).map(|_| cluster.proxy.catch_up()));
        assert!(soon(all).await.iter().all(Result::is_ok));
    }
    let questions = cluster.questions();
    assert!((rounds..=2 * rounds).contains(&questions), "{questions}");
    let shortest = BUCKET_QUESTION_PAUSE * (questions - 1) as u32;
    assert!(begun.elapsed() >= shortest, "{questions} questions in {:?}", begun.elapsed());
}

#[tokio::test]
async fn callers_that_go_away_hold_up_no_question() {
    let cluster = Cluster::begin().await;
    for _ in 0..3 {
        let caller = cluster.proxy.catch_up().now_or_never();
        assert_eq!(caller, None, "the managers take a moment");
    }
    assert_eq!(soon(cluster.proxy.catch_up()).await, Ok(()));
}

#[tokio::test]
async fn no_bucket_is_called_missing_while_the_managers_cannot_be_asked() {
    let cluster = Cluster::begin().await;
    cluster.world.managers.has_no_leader.store(true, Ordering::Relaxed);
    let refused = soon(cluster.proxy.catch_up()).await;
    assert!(matches!(refused, Err(ObjectError::Unavailable { .. })), "{refused:?}");
    let failed = &cluster.proxy.counters().bucket_questions_failed;
    assert_eq!(failed.load(Ordering::Relaxed), 1);
    cluster.world.managers.has_no_leader.store(false, Ordering::Relaxed);
    assert_eq!(soon(cluster.proxy.catch_up()).await, Ok(()));
}
