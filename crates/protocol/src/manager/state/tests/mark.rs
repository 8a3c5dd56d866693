use larder_types::MapVersion;

use super::*;

#[test]
fn a_map_reaches_the_marks_of_all_before_it_and_none_of_those_after_it() {
    let mut log = Log::cluster(2);
    let mut marks = vec![log.0.map_mark().unwrap()];
    let name = BucketName::new("abc").unwrap();
    log.done(Command::CreateBucket(name, None, 11));
    marks.push(log.0.map_mark().unwrap());
    log.view(0, 0, &[0, 1]).unwrap();
    marks.push(log.0.map_mark().unwrap());
    log.lv(&[0, 1]).unwrap();
    marks.push(log.0.map_mark().unwrap());
    for (at, mark) in marks.iter().enumerate() {
        for (before, other) in marks.iter().enumerate() {
            assert_eq!(other.is_reached_by(mark), before <= at, "{other:?} by {mark:?}");
        }
    }
}

#[test]
fn a_map_of_an_older_copy_that_went_on_reaches_no_mark_of_what_it_lacks() {
    let mut log = Log::cluster(2);
    let mut copy = Log::cluster(2);
    log.view(0, 0, &[0, 1]).unwrap();
    log.lv(&[0, 1]).unwrap();
    let mark = log.0.map_mark().unwrap();
    // Versions alone do not tell.
    for number in 0..20 {
        let name = BucketName::new(&format!("bucket-{number}")).unwrap();
        copy.done(Command::CreateBucket(name, None, 11));
    }
    let other = copy.0.map_mark().unwrap();
    assert!(mark.version < other.version && !mark.is_reached_by(&other));
    let of_another = MapMark { cluster: ClusterId(99), ..mark };
    assert!(!mark.is_reached_by(&of_another) && mark.is_reached_by(&mark));
    assert_eq!(Topology::default().map_mark(), None, "it is not founded");
}

#[test]
fn the_mark_is_encoded_as_ever() {
    let next =
        NextIds { server: ServerId(2), disk: DiskId(3), bucket: BucketId(300), token: TokenId(4) };
    let (cluster, version) = (ClusterId(5), MapVersion(300));
    let mark = MapMark { cluster, version, next, volumes: 6, view: View(7) };
    let bytes = mark.encode();
    assert_eq!(bytes, [1, 5, 0xac, 2, 2, 3, 0xac, 2, 4, 6, 7]);
    assert_eq!(MapMark::decode(&bytes), Ok(mark));
    assert!(MapMark::decode(&bytes[..5]).is_err());
}
