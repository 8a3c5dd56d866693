//! Operations on the CORS rules of a bucket, and the rules as S3's XML has them.

use http::Response;
use larder_objects::Objects;
use larder_types::limits::CORS_BYTES_MAX;
use larder_types::{CorsError, CorsMethod, CorsRule, CorsRules};
use s3s::dto::{CORSRule, GetBucketCorsOutput};
use s3s::{Body, S3Error, S3ErrorCode, S3Result};

use super::gateway::{Gateway, Request};
use super::settings::absent;
use crate::answer;
use crate::errors::{error, from_store};
use crate::request::xml::{self, Xml, once};

pub(crate) async fn put<O: Objects>(
    gateway: &Gateway<O>,
    mut request: Request,
) -> S3Result<Response<Body>> {
    let document = request.take_document().await?;
    request.check_owner()?;
    let rules = read(&document)?;
    gateway.store.set_cors(&request.bucket, Some(rules)).await.map_err(from_store)?;
    Ok(Response::new(Body::empty()))
}

pub(crate) fn get<O: Objects>(gateway: &Gateway<O>, request: &Request) -> S3Result<Response<Body>> {
    request.check_owner()?;
    let record = gateway.store.bucket(&request.bucket).map_err(from_store)?;
    let rules = record.cors.ok_or_else(|| absent("cors"))?;
    let cors_rules = Some(rules.as_slice().iter().map(to_xml).collect());
    answer::document(&GetBucketCorsOutput { cors_rules })
}

pub(crate) async fn delete<O: Objects>(
    gateway: &Gateway<O>,
    request: Request,
) -> S3Result<Response<Body>> {
    request.check_owner()?;
    gateway.store.set_cors(&request.bucket, None).await.map_err(from_store)?;
    Ok(answer::no_content())
}

fn read(document: &[u8]) -> S3Result<CorsRules> {
    // Rules that are stored fit the limit; what stands between them in a document is to do so, too.
    if document.len() > CORS_BYTES_MAX {
        return Err(refused(CorsError::TooLong));
    }
    let mut rules = Vec::new();
    xml::read(document, "CORSConfiguration", |xml| {
        xml.children(|xml, name| match name {
            "CORSRule" => {
                rules.push(rule(xml)?);
                Ok(())
            }
            _ => Err(xml::malformed()),
        })
    })?;
    CorsRules::new(rules).map_err(refused)
}

fn rule(xml: &mut Xml<'_>) -> S3Result<CorsRule> {
    let (mut id, mut max_age) = (None, None);
    let (mut methods, mut origins) = (Vec::new(), Vec::new());
    let (mut headers, mut exposed) = (Vec::new(), Vec::new());
    xml.children(|xml, name| {
        match name {
            "AllowedHeader" => headers.push(xml.word()?),
            "AllowedMethod" => methods.push(method(&xml.word()?)?),
            "AllowedOrigin" => origins.push(xml.word()?),
            "ExposeHeader" => exposed.push(xml.word()?),
            "ID" => once(&mut id, xml.text()?)?,
            "MaxAgeSeconds" => once(&mut max_age, xml.number::<i64>()?)?,
            _ => return Err(xml::malformed()),
        }
        Ok(())
    })?;
    let max_age_s = max_age.map(u32::try_from).transpose();
    let max_age_s = max_age_s.map_err(|_| refused(CorsError::MaxAge))?;
    Ok(CorsRule { id, methods, origins, headers, exposed, max_age_s })
}

fn method(name: &str) -> S3Result<CorsMethod> {
    name.parse::<CorsMethod>().map_err(|_| {
        let message =
            format!("Found unsupported HTTP method in CORS config. Unsupported method is {name}");
        error(S3ErrorCode::InvalidRequest, message)
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
