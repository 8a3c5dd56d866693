//! CORS: the rules of a bucket, preflights, and answers to pages of other origins.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use larder_s3::{GatewayOptions, ServerOptions};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::client::{Answer, Ask, Form, Server, Sign};

/// Two rules: of pages of one company, and of all others, which may only read.
const RULES: &str = "<CORSConfiguration xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">\
    <CORSRule><ID>own</ID><AllowedOrigin>https://*.example.org</AllowedOrigin>\
    <AllowedMethod>PUT</AllowedMethod><AllowedMethod>POST</AllowedMethod>\
    <AllowedHeader>x-amz-*</AllowedHeader><ExposeHeader>ETag</ExposeHeader>\
    <MaxAgeSeconds>600</MaxAgeSeconds></CORSRule>\
    <CORSRule><AllowedOrigin>*</AllowedOrigin><AllowedMethod>GET</AllowedMethod></CORSRule>\
    </CORSConfiguration>";
const OWN: &str = "https://a.example.org";
const ALLOWED_ORIGIN: &str = "access-control-allow-origin";

async fn server() -> Server {
    let server = Server::bucket().await;
    server.put("/bkt?cors", RULES).await.expect(200);
    server
}

/// A preflight, as a browser sends it.
fn preflight(server: &Server, path: &str, headers: &[(&str, &str)]) -> Ask {
    let ask = server.ask("OPTIONS", path).sign(Sign::Not);
    headers.iter().fold(ask, |ask, (name, value)| ask.header(name, *value))
}

async fn asked(server: &Server, path: &str, origin: &str, method: &str) -> Answer {
    let headers = [("origin", origin), ("access-control-request-method", method)];
    preflight(server, path, &headers).send().await
}

fn rule(inside: &str) -> String {
    format!("<CORSConfiguration><CORSRule>{inside}</CORSRule></CORSConfiguration>")
}

#[tokio::test]
async fn rules_are_kept_shown_and_removed() {
    let server = Server::bucket().await;
    server.get("/bkt?cors").await.refused(404, "NoSuchCORSConfiguration");
    server.put("/none?cors", RULES).await.refused(404, "NoSuchBucket");
    server.put("/bkt?cors", RULES).await.expect(200);
    let got = server.get("/bkt?cors").await.expect(200);
    assert_eq!(got.tags("AllowedMethod"), ["PUT", "POST", "GET"]);
    assert_eq!(got.tags("AllowedOrigin"), ["https://*.example.org", "*"]);
    assert_eq!(got.tags("AllowedHeader"), ["x-amz-*"]);
    assert_eq!(got.tags("ExposeHeader"), ["ETag"]);
    assert_eq!(
        (got.tags("ID"), got.tags("MaxAgeSeconds")),
        (vec!["own".into()], vec!["600".into()])
    );
    server.put("/bkt?cors", got.text()).await.expect(200);
    assert_eq!(server.get("/bkt?cors").await.expect(200).text(), got.text());
    server.delete("/bkt?cors").await.expect(204);
    server.get("/bkt?cors").await.refused(404, "NoSuchCORSConfiguration");
    server.delete("/bkt?cors").await.expect(204);
    server.delete("/none?cors").await.refused(404, "NoSuchBucket");
}

#[tokio::test]
async fn rules_that_s3_would_not_take_are_refused() {
    let server = server().await;
    let origin = "<AllowedOrigin>*</AllowedOrigin>";
    let get = "<AllowedMethod>GET</AllowedMethod>";
    let many = rule(&vec![format!("{origin}{get}"); 101].join("</CORSRule><CORSRule>"));
    for (body, code) in [
        (String::from("<CORSConfiguration>"), "MalformedXML"),
        (String::from("<CORSConfiguration></CORSConfiguration>"), "MalformedXML"),
        (rule(""), "MalformedXML"),
        (rule(origin), "MalformedXML"),
        (rule(get), "MalformedXML"),
        (rule(&format!("{origin}{get}<MaxAgeSeconds>long</MaxAgeSeconds>")), "MalformedXML"),
        (rule(&format!("{origin}{get}<AllowedHeaders>a</AllowedHeaders>")), "MalformedXML"),
        (rule(&format!("{origin}{get}<MaxAgeSeconds>-1</MaxAgeSeconds>")), "InvalidRequest"),
        (rule(&format!("{origin}<AllowedMethod>PATCH</AllowedMethod>")), "InvalidRequest"),
        (rule(&format!("<AllowedOrigin>*.*</AllowedOrigin>{get}")), "InvalidRequest"),
        (rule(&format!("{origin}{get}<AllowedHeader>**</AllowedHeader>")), "InvalidRequest"),
        (rule(&format!("{origin}{get}<ExposeHeader>x-*</ExposeHeader>")), "InvalidRequest"),
        (rule(&format!("{origin}{get}<ExposeHeader>a&#10;b: c</ExposeHeader>")), "InvalidRequest"),
        (rule(&format!("{origin}{get}<ID>{}</ID>", "i".repeat(256))), "InvalidRequest"),
        (many, "InvalidRequest"),
        (rule(&format!("{origin}{get}{}", " ".repeat(64 * 1024))), "MaxMessageLengthExceeded"),
    ] {
        server.put("/bkt?cors", body).await.refused(400, code);
    }
    let refused = rule(&format!("{origin}<AllowedMethod>PATCH</AllowedMethod>"));
    assert!(server.put("/bkt?cors", refused).await.text().contains("Unsupported method is PATCH"));
    let md5 = |body: &str| {
        base64_simd::STANDARD.encode_to_string(<md5::Md5 as sha2::Digest>::digest(body))
    };
    let put = |md5| server.ask("PUT", "/bkt?cors").header("content-md5", md5).body(RULES).send();
    put(md5("another")).await.refused(400, "BadDigest");
    put(md5(RULES)).await.expect(200);
    server.store.no_cors.store(true, Ordering::Relaxed);
    server.put("/bkt?cors", RULES).await.refused(501, "NotImplemented");
    assert_eq!(server.get("/bkt?cors").await.expect(200).tags("ID"), ["own"], "all were refused");
}

#[tokio::test]
async fn a_preflight_is_answered_by_the_first_rule_that_allows_it() {
    let server = server().await;
    let headers = [
        ("origin", OWN),
        ("access-control-request-method", "PUT"),
        ("access-control-request-headers", "X-Amz-Date, x-amz-acl"),
    ];
    let own = preflight(&server, "/bkt/no/such%20key?partNumber=1", &headers).send().await;
    let own = own.expect(200);
    assert_eq!(own.header(ALLOWED_ORIGIN), OWN);
    assert_eq!(own.header("access-control-allow-credentials"), "true");
    assert_eq!(own.header("access-control-allow-methods"), "PUT, POST");
    assert_eq!(own.header("access-control-allow-headers"), "x-amz-date, x-amz-acl");
    assert_eq!(own.header("access-control-expose-headers"), "ETag");
    assert_eq!(own.header("access-control-max-age"), "600");
    let varies = "Origin, Access-Control-Request-Headers, Access-Control-Request-Method";
    assert_eq!((own.header("vary"), own.text()), (varies, String::new()));
    let any = asked(&server, "/bkt", "null", "GET").await.expect(200);
    assert_eq!(
        (any.header(ALLOWED_ORIGIN), any.header("access-control-allow-methods")),
        ("*", "GET")
    );
    for name in ["credentials", "headers"] {
        assert_eq!(any.header(&format!("access-control-allow-{name}")), "");
    }
    let refused = asked(&server, "/bkt/k", "null", "PUT").await.refused(403, "AccessForbidden");
    assert!(refused.text().contains("CORSResponse: This CORS request is not allowed."));
    assert_eq!(refused.header(ALLOWED_ORIGIN), "");
}

#[tokio::test]
async fn an_invalid_preflight_is_refused_and_one_without_a_bucket_reveals_nothing() {
    let server = server().await;
    server.put("/plain", "").await.expect(200);
    let none = preflight(&server, "/bkt/k", &[("access-control-request-method", "GET")]);
    assert!(none.send().await.refused(400, "BadRequest").text().contains("Origin request header"));
    preflight(&server, "/bkt/k", &[("origin", OWN)]).send().await.refused(400, "BadRequest");
    asked(&server, "/bkt/k", OWN, "PATCH").await.refused(400, "BadRequest");
    for path in ["/plain/k", "/none/k", "/", "/NO_NAME/k"] {
        let refused = asked(&server, path, OWN, "GET").await.refused(403, "AccessForbidden");
        let message = refused.tag("Message").unwrap();
        assert_eq!(message, "CORSResponse: CORS is not enabled for this bucket.", "{path}");
        preflight(&server, path, &[("origin", OWN)]).send().await.refused(400, "BadRequest");
        let odd = [("origin", OWN), ("access-control-request-method", "FOO")];
        preflight(&server, path, &odd).send().await.refused(400, "BadRequest");
    }
}

#[tokio::test]
async fn a_host_names_the_bucket_of_a_preflight() {
    let face = GatewayOptions { domains: vec!["s3.example".into()], ..GatewayOptions::default() };
    let server = Server::with(ServerOptions::default(), Arc::new(()), face).await;
    server.put("/bkt", "").await.expect(200);
    server.put("/bkt?cors", RULES).await.expect(200);
    for (host, status) in [("bkt.s3.example", 200), ("none.s3.example", 403)] {
        let headers = [("origin", OWN), ("access-control-request-method", "GET"), ("host", host)];
        preflight(&server, "/k", &headers).send().await.expect(status);
    }
}

#[tokio::test]
async fn answers_to_pages_of_other_origins_are_shown_to_them_also_if_they_are_errors() {
    let server = server().await;
    let of = |method: &str, path: &str, origin: &str| {
        server.ask(method, path).header("origin", origin).body("").send()
    };
    let put = of("PUT", "/bkt/k", OWN).await.expect(200);
    assert_eq!(put.header(ALLOWED_ORIGIN), OWN);
    assert_eq!(put.header("access-control-allow-methods"), "PUT, POST");
    assert_eq!(put.header("access-control-expose-headers"), "ETag");
    assert!(put.header("vary").contains("Origin"));
    let got = of("GET", "/bkt/k", "null").await.expect(200);
    assert_eq!(
        (got.header(ALLOWED_ORIGIN), got.header("access-control-allow-credentials")),
        ("*", "")
    );
    assert_eq!(
        of("GET", "/bkt/none", OWN).await.refused(404, "NoSuchKey").header(ALLOWED_ORIGIN),
        "*"
    );
    let stranger = server.ask("GET", "/bkt/k").sign(Sign::Not).unsigned("origin", OWN).send();
    assert_eq!(stranger.await.refused(403, "AccessDenied").header(ALLOWED_ORIGIN), "*");
    let signed = server.ask("GET", "/bkt/k").sign(Sign::Query { expires_s: 60 });
    assert_eq!(signed.unsigned("origin", OWN).send().await.expect(200).header(ALLOWED_ORIGIN), "*");
    for (method, path, origin) in
        [("PUT", "/bkt/k", "null"), ("DELETE", "/bkt/k", OWN), ("GET", "/", OWN)]
    {
        let answer = of(method, path, origin).await;
        assert_eq!(
            (answer.header(ALLOWED_ORIGIN), answer.header("vary")),
            ("", ""),
            "{method} {path}"
        );
    }
    assert_eq!(server.get("/bkt?cors").await.expect(200).header(ALLOWED_ORIGIN), "", "no origin");
}

#[tokio::test]
async fn the_answer_to_a_form_is_shown_to_its_page() {
    let server = server().await;
    let body = Form::of(&server, "bkt", "k").file(b"abc").bytes();
    let head = Form::head("/bkt", body.len()).replacen(
        "\r\n\r\n",
        &format!("\r\norigin: {OWN}\r\n\r\n"),
        1,
    );
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(&[head.as_bytes(), &body].concat()).await.unwrap();
    let answer = crate::wire::read_answer(&mut stream).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 204"), "{answer}");
    assert!(answer.contains(&format!("{ALLOWED_ORIGIN}: {OWN}\r\n")), "{answer}");
}
