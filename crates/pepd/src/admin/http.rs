//! Read-only API over TCP for Prometheus and the like, restricted to this machine.

use std::net::{Ipv4Addr, Ipv6Addr};

use axum::{
    Router,
    extract::Request,
    http::{HeaderValue, Method, StatusCode, header},
    middleware::{Next, from_fn},
    response::{IntoResponse as _, Response},
};
use pep_core::config::Config;
use socket2::SockRef;
use tokio::net::TcpListener;

use super::server::serve;
use crate::page;

/// Paths open over TCP, where clients are not authenticated.
const OPEN: [&str; 7] = [
    "/metrics",
    "/v1/custody",
    "/v1/flows",
    "/v1/history",
    "/v1/link",
    "/v1/status",
    "/v1/stream",
];
/// Send buffer for a client that does not read; enough for any rate on loopback.
const SEND_BUFFER: usize = 64 * 1024;

/// Serves the read-only part of `router` for as long as it is polled, if configured.
pub(super) async fn run(config: &Config, router: Router) {
    let Some(address) = config.admin.http else {
        return;
    };
    let listener = match TcpListener::bind(address).await {
        Ok(listener) => listener,
        Err(err) => {
            tracing::warn!(
                "cannot serve http://{address}: {err}; metrics are available at the admin socket only; choose another address \
                 (`admin.http`)"
            );
            return;
        }
    };
    let router = router.layer(from_fn(guard));
    let accept = || async {
        let (stream, _) = listener.accept().await?;
        // A slow client is noticed sooner: `server` disconnects clients that do not read.
        SockRef::from(&stream).set_send_buffer_size(SEND_BUFFER)?;
        Ok(stream)
    };
    serve(accept, &router).await;
}

/// Admits requests that only read, and come from no page of another site.
async fn guard(request: Request, next: Next) -> Response {
    let refuse = |status: StatusCode, why: &str| (status, format!("{why}\n")).into_response();
    let host = request.headers().get(header::HOST);
    let host = host.and_then(|host| host.to_str().ok());
    // A name that resolves to this machine for a moment would let any page in a local browser read
    // along (DNS rebinding).
    if !host.is_some_and(is_loopback) {
        let why = "the Host header is neither localhost nor a loopback address; have a proxy send one of these";
        return refuse(StatusCode::FORBIDDEN, why);
    }
    if is_of_another_page(&request) {
        return refuse(StatusCode::FORBIDDEN, OTHER_PAGE);
    }
    if request.method() != Method::GET {
        let why = "only GET is allowed; changes require the admin socket";
        return refuse(StatusCode::METHOD_NOT_ALLOWED, why);
    }
    let path = request.uri().path();
    // Detailed traces are costly, and reveal more than the ends of flows.
    let of_flow = path.starts_with("/v1/flows/") && !path.ends_with("/qlog");
    if !OPEN.contains(&path) && !of_flow && page::FILES.iter().all(|file| file.path != path) {
        let why = format!(
            "available: {}, /v1/flows/FLOW, /v1/flows/FLOW/trace, and a page at /",
            OPEN.join(", ")
        );
        return refuse(StatusCode::NOT_FOUND, &why);
    }
    next.run(request).await
}

/// Prevents pages in a browser from changing anything, and pages of other sites from any request: a
/// port may be forwarded to the admin socket. Browsers identify themselves (`Origin`, Fetch
/// standard, 3.2).
pub(super) async fn not_from_pages(request: Request, next: Next) -> Response {
    let headers = request.headers();
    let why = if request.method() != Method::GET && headers.contains_key(header::ORIGIN) {
        "web pages may only read: use the commands of pepd"
    } else if is_of_another_page(&request) {
        OTHER_PAGE
    } else if headers
        .get(header::HOST)
        .is_some_and(|host| !may_be_socket(host))
    {
        "the Host header names another machine: use localhost"
    } else {
        return next.run(request).await;
    };
    (StatusCode::FORBIDDEN, format!("{why}\n")).into_response()
}

const OTHER_PAGE: &str = "requests from pages of other sites are rejected";

/// Returns true if the page of another site made a browser send the request, except for a link to
/// the page of pepd itself. Browsers report it (`Sec-Fetch-Site`, Fetch Metadata Request Headers,
/// 2); other clients send no such header.
fn is_of_another_page(request: &Request) -> bool {
    let header_is = |name: &str, value: &str| {
        let header = request.headers().get(name);
        header.is_some_and(|header| header.as_bytes() == value.as_bytes())
    };
    let is_link = request.uri().path() == "/"
        && header_is("sec-fetch-mode", "navigate")
        && header_is("sec-fetch-dest", "document");
    let other_sites = ["cross-site", "same-site"];
    let is_other_site = other_sites
        .iter()
        .any(|site| header_is("sec-fetch-site", site));
    is_other_site && !is_link
}

/// Returns true if a request at the socket may use this Host header: any but a name of the
/// Internet, which a page could resolve to this machine (DNS rebinding).
fn may_be_socket(host: &HeaderValue) -> bool {
    let host = host.to_str().ok();
    host.is_some_and(|host| !host.contains('.') || is_loopback(host))
}

/// Returns true if a Host header names this machine by loopback, with or without a port from 1 to
/// 65535. Nothing else may be in it, such as a user's name or the rest of a longer name.
fn is_loopback(host: &str) -> bool {
    let in_brackets = host.strip_prefix('[').and_then(|host| host.split_once(']'));
    let (is_ours, rest) = match in_brackets {
        Some((address, rest)) => {
            let address = address.parse::<Ipv6Addr>();
            (address.is_ok_and(|address| address.is_loopback()), rest)
        }
        None => {
            let (name, rest) = host.split_at(host.find(':').unwrap_or(host.len()));
            let address = name.parse::<Ipv4Addr>();
            let is_ours = address.map_or_else(
                |_| name.eq_ignore_ascii_case("localhost"),
                |address| address.is_loopback(),
            );
            (is_ours, rest)
        }
    };
    is_ours && (rest.is_empty() || rest.strip_prefix(':').is_some_and(is_port))
}

fn is_port(text: &str) -> bool {
    // `parse` also takes a sign.
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    is_number && text.parse::<u16>().is_ok_and(|port| port > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_names_are_ours() {
        for host in [
            "localhost",
            "LOCALHOST:9180",
            "127.0.0.1",
            "127.0.0.1:9180",
            "127.8.9.10",
            "[::1]",
            "[::1]:9180",
            "localhost:1",
            "localhost:65535",
        ] {
            assert!(is_loopback(host), "{host}");
        }
        for host in [
            "",
            "example.com",
            "localhost.example.com:9180",
            "127.0.0.1.example.com",
            "192.0.2.1:9180",
            "[2001:db8::1]",
            "0.0.0.0",
            "user@localhost",
            "localhost:x y",
            "[::1].example.com",
            "[::1]example.com",
            "[::1]:80.example.com",
            "[::1",
            "[[::1]]",
            "::1",
            "[127.0.0.1]",
            "[localhost]",
            "[::1%lo]",
            "127.0.0.1:9181.example.com",
            "127.0.0.1:9181:9181",
            "127.1",
            "localhost.",
            "localhost:example",
            "localhost:",
            "localhost:0",
            "localhost:65536",
            "localhost:+80",
            "localhost:80@example.com",
            "localhost:80/",
            " localhost",
            "localhost ",
        ] {
            assert!(!is_loopback(host), "{host}");
        }
    }

    #[test]
    fn at_the_socket_any_name_is_good_that_no_site_can_have() {
        for (host, good) in [
            ("pepd", true),
            ("localhost:9180", true),
            ("", true),
            ("127.0.0.1:80", true),
            ("[::1]:80", true),
            ("example.com", false),
            ("127.0.0.1.example.com:9180", false),
            ("[::1].example.com", false),
            ("127.0.0.1:9180.example.com", false),
        ] {
            let header = HeaderValue::from_str(host).unwrap();
            assert_eq!(may_be_socket(&header), good, "{host}");
        }
    }

    #[test]
    fn another_page_may_link_to_ours_and_no_more() {
        let asks = |path: &str, site: &str, mode: &str, dest: &str| {
            let request = Request::get(path).header("sec-fetch-site", site);
            let request = request.header("sec-fetch-mode", mode);
            let request = request.header("sec-fetch-dest", dest);
            !is_of_another_page(&request.body(axum::body::Body::empty()).unwrap())
        };
        assert!(asks("/", "cross-site", "navigate", "document"));
        assert!(asks("/v1/status", "same-origin", "cors", "empty"));
        assert!(
            asks("/v1/status", "none", "navigate", "document"),
            "typed in"
        );
        assert!(!asks("/", "cross-site", "navigate", "iframe"));
        assert!(!asks("/v1/stream", "cross-site", "no-cors", "empty"));
        assert!(
            !asks("/v1/status", "same-site", "cors", "empty"),
            "another port"
        );
        assert!(!asks("/v1/status", "cross-site", "navigate", "document"));
        let plain = Request::get("/metrics").body(axum::body::Body::empty());
        assert!(!is_of_another_page(&plain.unwrap()), "no browser");
    }
}
