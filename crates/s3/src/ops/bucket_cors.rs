//! Operations on the CORS rules of a bucket, and the rules as S3's XML has them.

use http::HeaderMap;
use http::header::CONTENT_LENGTH;
use larder_objects::Objects;
use larder_types::limits::CORS_BYTES_MAX;
use larder_types::{CorsError, CorsMethod, CorsRule, CorsRules};
use s3s::dto::{
    CORSRule, DeleteBucketCorsInput, DeleteBucketCorsOutput, GetBucketCorsInput,
    GetBucketCorsOutput, PutBucketCorsInput, PutBucketCorsOutput,
};
use s3s::{S3Error, S3ErrorCode, S3Request, S3Response, S3Result};

use super::face::Face;
use super::probes::Setting;
use crate::errors::{error, from_store};

pub(crate) async fn put<O: Objects>(
    face: &Face<O>,
    request: S3Request<PutBucketCorsInput>,
) -> S3Result<S3Response<PutBucketCorsOutput>> {
    let input = request.input;
    let bucket = face.bucket(&input.bucket, input.expected_bucket_owner.as_deref())?;
    check_length(&request.headers)?;
    let rules = input.cors_configuration.cors_rules.into_iter().map(of_xml);
    let rules = CorsRules::new(rules.collect::<S3Result<_>>()?).map_err(refused)?;
    face.store.set_cors(&bucket, Some(rules)).await.map_err(from_store)?;
    Ok(S3Response::new(PutBucketCorsOutput {}))
}

pub(crate) fn get<O: Objects>(
    face: &Face<O>,
    request: S3Request<GetBucketCorsInput>,
) -> S3Result<S3Response<GetBucketCorsOutput>> {
    let input = request.input;
    let bucket = face.bucket(&input.bucket, input.expected_bucket_owner.as_deref())?;
    let record = face.store.bucket(&bucket).map_err(from_store)?;
    let rules = record.cors.ok_or_else(|| Setting::Cors.is_absent())?;
    let cors_rules = Some(rules.as_slice().iter().map(to_xml).collect());
    Ok(S3Response::new(GetBucketCorsOutput { cors_rules }))
}

pub(crate) async fn delete<O: Objects>(
    face: &Face<O>,
    request: S3Request<DeleteBucketCorsInput>,
) -> S3Result<S3Response<DeleteBucketCorsOutput>> {
    let input = request.input;
    let bucket = face.bucket(&input.bucket, input.expected_bucket_owner.as_deref())?;
    face.store.set_cors(&bucket, None).await.map_err(from_store)?;
    Ok(S3Response::new(DeleteBucketCorsOutput {}))
}

/// Rules that are stored fit the limit; what stands between them in a document is to do so, too.
fn check_length(headers: &HeaderMap) -> S3Result<()> {
    let bytes = |name: &str| headers.get(name)?.to_str().ok()?.parse::<u64>().ok();
    let length = bytes("x-amz-decoded-content-length").or_else(|| bytes(CONTENT_LENGTH.as_str()));
    match length {
        Some(bytes) if bytes > CORS_BYTES_MAX as u64 => Err(refused(CorsError::TooLong)),
        _ => Ok(()),
    }
}

fn of_xml(rule: CORSRule) -> S3Result<CorsRule> {
    let method = |name: String| {
        name.parse::<CorsMethod>().map_err(|_| {
            let message = format!(
                "Found unsupported HTTP method in CORS config. Unsupported method is {name}"
            );
            error(S3ErrorCode::InvalidRequest, message)
        })
    };
    let max_age_s = rule.max_age_seconds.map(u32::try_from).transpose();
    Ok(CorsRule {
        id: rule.id,
        methods: rule.allowed_methods.into_iter().map(method).collect::<S3Result<_>>()?,
        origins: rule.allowed_origins,
        headers: rule.allowed_headers.unwrap_or_default(),
        exposed: rule.expose_headers.unwrap_or_default(),
        max_age_s: max_age_s.map_err(|_| refused(CorsError::MaxAge))?,
    })
}

fn to_xml(rule: &CorsRule) -> CORSRule {
    let unless_empty = |names: &Vec<String>| (!names.is_empty()).then(|| names.clone());
    CORSRule {
        allowed_headers: unless_empty(&rule.headers),
        allowed_methods: rule.methods.iter().map(|it| it.as_str().to_owned()).collect(),
        allowed_origins: rule.origins.clone(),
        expose_headers: unless_empty(&rule.exposed),
        id: rule.id.clone(),
        max_age_seconds: rule.max_age_s.and_then(|seconds| i32::try_from(seconds).ok()),
    }
}

fn refused(why: CorsError) -> S3Error {
    let code = match why {
        CorsError::NoRules | CorsError::Empty => S3ErrorCode::MalformedXML,
        CorsError::TooLong => S3ErrorCode::MaxMessageLengthExceeded,
        CorsError::TooManyRules
        | CorsError::LongId
        | CorsError::Wildcards { .. }
        | CorsError::ExposedWildcard(_)
        | CorsError::NotAHeader { .. }
        | CorsError::MaxAge => S3ErrorCode::InvalidRequest,
    };
    error(code, why.to_string())
}
