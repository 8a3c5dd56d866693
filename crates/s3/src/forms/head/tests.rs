use http_body_util::Full;

use super::*;

const FORM: &str = "--xx\r\nContent-Disposition: form-data; name=\"ACL\"\r\n\r\nprivate\r\n\
    --xx\r\nContent-Type: text/xml\r\ncontent-disposition:form-data; name=\"empty\"\r\n\r\n\r\n\
    --xx\r\nContent-Disposition: form-data; name=\"bare\"; filename=\"f\"\r\n\r\n\
    --xx\r\nContent-Disposition: form-data; name=\"v\"\r\n\r\nname=\"file\"\r\n\r\n\n--xx\r\n--xxy\r\n--xx--\r\n\
    --xx\r\nContent-Disposition: form-data; name=\"FILE\"; filename=\"f\"\r\nA: b\r\nC: d\r\n\r\n";
const FILE: &str =
    "\r\n--xx\r\nContent-Disposition: form-data; name=\"late\"\r\n\r\n1\r\n--xx--\r\n";
const FIELDS: [(&str, &str); 4] = [
    ("acl", "private"),
    ("empty", ""),
    ("bare", ""),
    ("v", "name=\"file\"\r\n\r\n\n--xx\r\n--xxy\r\n--xx--"),
];

fn kind(kind: &str) -> HeaderMap {
    HeaderMap::from_iter([(CONTENT_TYPE, kind.parse().unwrap())])
}

fn head(pieces: &[&[u8]]) -> S3Result<Option<FormHead>> {
    let mut reader = Reader::new("xx");
    for (index, piece) in pieces.iter().enumerate() {
        if reader.feed(piece)? {
            let mut head = reader.into_head();
            pieces[index + 1..].iter().for_each(|piece| head.rest.extend_from_slice(piece));
            return Ok(Some(head));
        }
    }
    Ok(None)
}

fn code(form: &str) -> Option<S3ErrorCode> {
    head(&[form.as_bytes()]).err().map(|refused| refused.code().clone())
}

#[test]
fn the_fields_before_the_file_are_read_wherever_the_body_is_cut() {
    let expected = FIELDS.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let form = format!("{FORM}{FILE}");
    for at in 0..form.len() {
        let head = head(&[&form.as_bytes()[..at], &form.as_bytes()[at..]]).unwrap().unwrap();
        assert_eq!((&head.fields[..], &head.rest[..]), (&expected[..], FILE.as_bytes()), "{at}");
    }
    let led = format!("\r\n{form}");
    assert_eq!(head(&[led.as_bytes()]).unwrap().unwrap().fields, expected);
}

#[test]
fn the_files_name_comes_without_its_folders() {
    let name = |rest: &str| {
        let disposition = format!("Content-Disposition: form-data; name=\"file\"{rest}");
        let form = format!("--xx\r\n{disposition}\r\n\r\n");
        head(&[form.as_bytes()]).unwrap().unwrap().file_name
    };
    for (rest, named) in [
        ("", ""),
        ("; filename=\"\"", ""),
        ("; filename=\"a b.txt\"", "a b.txt"),
        ("; filename=\"C:\\d\\a.txt\"; x=1", "a.txt"),
        ("; x=\"1\"; filename=\"/d/\u{e9}\"", "\u{e9}"),
        ("; filename=\"/d/\"", ""),
    ] {
        assert_eq!(name(rest), named, "{rest}");
    }
}

#[test]
fn a_head_that_can_be_read_in_two_ways_is_malformed() {
    let disposition = "Content-Disposition: form-data; name=";
    for form in [
        "x".to_owned(),
        "\r\n\r\n--xx".to_owned(),
        "--xxy\r\n".to_owned().to_owned(),
        "--xx\r\n".to_owned(),
        "--xx\r\nContent-Type: a/b\r\n".to_owned(),
        "--xx\r\nno header\r\n".to_owned(),
        format!("--xx\r\n{disposition}\"\"\r\n"),
        format!("--xx\r\n{disposition}a\r\n"),
        format!("--xx\r\n{disposition}\"a\\\"b\"\r\n"),
        format!("--xx\r\n{disposition}\"a\nb\"\r\n"),
        format!("--xx\r\n{disposition}\"a\"\nContent-Type: a/b\r\n"),
        format!("--xx\r\n{disposition}\"a\"\r\n{disposition}\"b\"\r\n"),
    ] {
        let refused = code(&format!("{form}\r\n"));
        assert_eq!(refused, Some(S3ErrorCode::MalformedPOSTRequest), "{form:?}");
    }
    let value =
        [format!("--xx\r\n{disposition}\"a\"\r\n\r\n").as_bytes(), b"\xff\r\n--xx\r\n"].concat();
    assert_eq!(head(&[&value]).unwrap_err().code(), &S3ErrorCode::MalformedPOSTRequest);
}

#[tokio::test]
async fn a_form_names_its_boundary_and_has_a_file() {
    let read = async |named: &str, form: &str| {
        let mut body = Full::new(Bytes::copy_from_slice(form.as_bytes()));
        FormHead::read(&kind(named), &mut body).await.map(|head| head.fields.len())
    };
    assert_eq!(read("multipart/form-data; boundary=\"xx\"", FORM).await.unwrap(), 4);
    assert_eq!(read("multipart/form-data;Boundary=xx", FORM).await.unwrap(), 4);
    let half = &FORM[..FORM.len() - 2];
    for (named, form) in [
        ("multipart/form-data", FORM),
        ("multipart/form-data; boundary=", FORM),
        ("multipart/form-data; boundary=yy", FORM),
        ("multipart/form-data; boundary=xx", half),
        ("multipart/form-data; boundary=xx", ""),
    ] {
        let refused = read(named, form).await.unwrap_err();
        assert_eq!(refused.code(), &S3ErrorCode::MalformedPOSTRequest, "{named}");
    }
}

#[test]
fn a_head_that_comes_byte_by_byte_is_read_once() {
    let long = "y\n".repeat(20_000);
    let form =
        format!("--xx\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n{long}\r\n{FORM}");
    let mut reader = Reader::new("xx");
    let mut came = 0;
    for byte in form.as_bytes() {
        came += 1;
        if reader.feed(&[*byte]).unwrap() {
            break;
        }
        assert!(reader.looked_at <= came, "{} of {came}", reader.looked_at);
    }
    assert_eq!((came, reader.looked_at), (form.len(), form.len()));
}

#[test]
fn a_head_is_cut_at_the_limit() {
    let part = "--xx\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n";
    let value = "y".repeat(FORM_HEAD_BYTES_MAX - part.len() - 2 - FORM.len());
    let fits = format!("{part}{value}\r\n{FORM}");
    assert_eq!(head(&[fits.as_bytes(), FILE.as_bytes()]).unwrap().unwrap().rest, FILE);
    for piece in [1, 1000, usize::MAX] {
        let larger = format!("{part}y{value}\r\n{FORM}");
        let pieces: Vec<&[u8]> = larger.as_bytes().chunks(piece).collect();
        assert_eq!(head(&pieces).unwrap_err().code(), &S3ErrorCode::AccessDenied, "{piece}");
    }
}
