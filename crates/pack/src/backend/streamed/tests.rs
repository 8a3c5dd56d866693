use std::io::IoSlice;

use hmac::{Hmac, KeyInit, Mac};
use larder_env::{Disk, DiskError, OpenMode, SimDisk};
use object_store::StaticCredentialProvider;
use object_store::aws::AwsCredential;
use object_store::azure::{AzureAccessKey, AzureCredential};
use object_store::client::HttpRequestBody;

use super::*;

const TAIL: &[u8] = b"behind the file";

/// Counts the bytes that are read.
struct Counted(Arc<dyn DiskFile>, AtomicU64);

impl DiskFile for Counted {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize, DiskError> {
        self.1.fetch_add(buf.len() as u64, Ordering::Relaxed);
        self.0.read_at(offset, buf)
    }

    fn read_cached_at(&self, offset: u64, buf: &mut [u8]) -> Result<Option<usize>, DiskError> {
        self.0.read_cached_at(offset, buf)
    }

    fn read_device_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize, DiskError> {
        self.0.read_device_at(offset, buf)
    }

    fn write_at(&self, offset: u64, parts: &[IoSlice<'_>]) -> Result<(), DiskError> {
        self.0.write_at(offset, parts)
    }

    fn sync(&self) -> Result<(), DiskError> {
        self.0.sync()
    }

    fn allocate(&self, offset: u64, len: u64) -> Result<(), DiskError> {
        self.0.allocate(offset, len)
    }

    fn set_len(&self, len: u64) -> Result<(), DiskError> {
        self.0.set_len(len)
    }

    fn len(&self) -> Result<u64, DiskError> {
        self.0.len()
    }
}

/// So many bytes in a file, and some behind them.
fn source(file_bytes: u64) -> (Source, Vec<u8>, Arc<Counted>) {
    let bytes: Vec<u8> = (0..file_bytes).map(|at| (at / 777) as u8).collect();
    let file = SimDisk::new(1, 1 << 30).open("f", OpenMode::CreateNew).unwrap();
    file.write_at(0, &[IoSlice::new(&bytes)]).unwrap();
    let counted = Arc::new(Counted(file, AtomicU64::new(0)));
    let source = Source::new(counted.clone(), file_bytes, Bytes::from_static(TAIL));
    (source, [&bytes[..], TAIL].concat(), counted)
}

#[tokio::test]
async fn pieces_are_read_a_few_ahead_of_the_wire() {
    let pieces = 40;
    let (source, bytes, counted) = source(pieces * SPOOL_READ_BYTES);
    let streamed = Streamed::new(&source, &Signs::Google);
    let (mut stream, mut came) = (streamed.pieces(), Vec::new());
    while let Some(piece) = stream.try_next().await.unwrap() {
        came.extend_from_slice(&piece);
        let ahead = counted.1.load(Ordering::Relaxed).saturating_sub(came.len() as u64);
        assert!(ahead <= STREAM_PIECES_AHEAD as u64 * SPOOL_READ_BYTES, "{ahead} bytes ahead");
        assert_eq!(streamed.sent(), came.len() as u64);
    }
    assert_eq!(came, bytes);
}

#[tokio::test]
async fn any_bytes_are_read_from_file_and_tail() {
    let (source, bytes, _) = source(1000);
    for (from, to) in [(0, 0), (0, 1000), (990, 1010), (1000, 1010), (1005, source.len()), (7, 9)] {
        let read = source.read(from..to).await.unwrap().concat();
        assert_eq!(read, bytes[from as usize..to as usize], "{from}..{to}");
    }
}

#[tokio::test]
async fn a_file_that_is_too_short_is_no_body() {
    let (short, ..) = source(1000);
    let long = Source { file_bytes: 1001, ..short };
    let streamed = Streamed::new(&long, &Signs::Google);
    assert!(streamed.pieces().try_collect::<Vec<_>>().await.is_err());
}

fn hmac(key: &[u8], text: &str) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).unwrap();
    mac.update(text.as_bytes());
    mac.finalize().into_bytes().to_vec()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn text<'a>(request: &'a HttpRequest, name: &str) -> &'a str {
    request.headers().get(name).map_or("", |value| value.to_str().unwrap())
}

fn empty_put(url: &str) -> HttpRequest {
    let request = http::Request::put(url).header("content-length", "0");
    request.body(HttpRequestBody::empty()).unwrap()
}

fn aws(credential: &AwsCredential) -> AwsAuthorizer<'_> {
    AwsAuthorizer::new(credential, "s3", "eu-north-1")
}

fn aws_keys() -> AwsCredential {
    AwsCredential { key_id: "KEY".into(), secret_key: "secret".into(), token: Some("t".into()) }
}

fn of_s3(source: &Source) -> Streamed {
    let keys = StaticCredentialProvider::new(aws_keys());
    Streamed::new(source, &Signs::S3(Arc::new(keys)))
}

#[tokio::test]
async fn s3_gets_the_sum_of_the_body_and_a_signature_for_it() {
    let (source, bytes, _) = source(2 * SPOOL_READ_BYTES + 5);
    let mut request = empty_put("http://s3.test/bucket/x");
    let nothing: [u8; 32] = Sha256::digest(b"").into();
    aws(&aws_keys()).try_authorize(&mut request, Some(&nothing)).unwrap();
    of_s3(&source).prepare(&mut request).await.unwrap();
    assert_eq!(text(&request, "content-length"), bytes.len().to_string());
    let sum = hex(&Sha256::digest(&bytes));
    assert_eq!(text(&request, "x-amz-content-sha256"), sum);
    // https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html
    let names = "host;x-amz-content-sha256;x-amz-date;x-amz-security-token";
    let date = text(&request, "x-amz-date");
    let scope = format!("{}/eu-north-1/s3/aws4_request", &date[..8]);
    let canonical = format!(
        "PUT\n/bucket/x\n\nhost:s3.test\nx-amz-content-sha256:{sum}\nx-amz-date:{date}\n\
         x-amz-security-token:t\n\n{names}\n{sum}"
    );
    let hashed = hex(&Sha256::digest(canonical.as_bytes()));
    let signed = format!("AWS4-HMAC-SHA256\n{date}\n{scope}\n{hashed}");
    let steps = [&date[..8], "eu-north-1", "s3", "aws4_request", &signed];
    let signature = steps.iter().fold(b"AWS4secret".to_vec(), |key, step| hmac(&key, step));
    let expected = format!(
        "AWS4-HMAC-SHA256 Credential=KEY/{scope}, SignedHeaders={names}, Signature={}",
        hex(&signature)
    );
    assert_eq!(text(&request, "authorization"), expected);
}

#[tokio::test]
async fn a_body_that_is_not_to_be_signed_is_not_read_for_that() {
    let (source, bytes, counted) = source(SPOOL_READ_BYTES);
    let mut request = empty_put("http://s3.test/bucket/x");
    aws(&aws_keys()).with_sign_payload(false).try_authorize(&mut request, None).unwrap();
    let before = text(&request, "authorization").to_owned();
    of_s3(&source).prepare(&mut request).await.unwrap();
    assert_eq!(text(&request, "authorization"), before);
    assert_eq!(text(&request, "content-length"), bytes.len().to_string());
    assert_eq!(counted.1.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn azure_gets_a_signature_for_the_length() {
    let (source, bytes, _) = source(1000);
    let key = || AzureCredential::AccessKey(AzureAccessKey::try_new("c2VjcmV0").unwrap());
    let mut request = empty_put("http://azure.test/container/x");
    request.headers_mut().insert("x-ms-blob-type", HeaderValue::from_static("BlockBlob"));
    AzureAuthorizer::new(&key(), "me").try_authorize(&mut request).unwrap();
    let credentials = Arc::new(StaticCredentialProvider::new(key()));
    let signs = Signs::Azure { credentials, account: "me".to_owned() };
    Streamed::new(&source, &signs).prepare(&mut request).await.unwrap();
    // https://learn.microsoft.com/en-us/rest/api/storageservices/authorize-with-shared-key
    let of_azure = ["x-ms-blob-type", "x-ms-version"];
    let of_azure = of_azure.map(|name| format!("{name}:{}\n", text(&request, name))).concat();
    let (len, date) = (bytes.len(), text(&request, "date"));
    let signed = format!("PUT\n\n\n{len}\n\n\n{date}\n\n\n\n\n\n{of_azure}/me/container/x");
    let signature = hmac(b"secret", &signed);
    let all = request.headers().get_all("authorization").iter().collect::<Vec<_>>();
    let [said] = all[..] else { panic!("{all:?}") };
    let said = said.to_str().unwrap().strip_prefix("SharedKey me:").unwrap();
    assert_eq!(base64_of(&signature), said);
}

/// RFC 4648.
fn base64_of(bytes: &[u8]) -> String {
    const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let bits = three.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte));
        let bits = bits << (8 * (3 - three.len()));
        for letter in 0..4 {
            let at = (bits >> (18 - 6 * letter)) as usize & 63;
            text.push(if letter > three.len() { '=' } else { char::from(LETTERS[at]) });
        }
    }
    text
}
