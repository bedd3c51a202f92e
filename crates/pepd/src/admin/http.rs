//! What can only be read, by TCP, for Prometheus and the like: of this machine only.

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

/// What may be asked by TCP, where nothing says who asks.
const OPEN: [&str; 7] = [
    "/metrics",
    "/v1/custody",
    "/v1/flows",
    "/v1/history",
    "/v1/link",
    "/v1/status",
    "/v1/stream",
];
/// What the kernel keeps for somebody who does not read; enough for any rate on loopback.
const SEND_BUFFER: usize = 64 * 1024;

/// Answers there for as long as it is polled, where the configuration wants it, with what of `router` can only be read.
pub(super) async fn run(config: &Config, router: Router) {
    let Some(address) = config.admin.http else {
        return;
    };
    let listener = match TcpListener::bind(address).await {
        Ok(listener) => listener,
        Err(err) => {
            tracing::warn!(
                "nothing answers at http://{address}, metrics are at the admin socket only: {err}; choose another address \
                 (`admin.http`)"
            );
            return;
        }
    };
    let router = router.layer(from_fn(guard));
    let accept = || async {
        let (stream, _) = listener.accept().await?;
        // That is told sooner then: `server` cuts those that take nothing.
        SockRef::from(&stream).set_send_buffer_size(SEND_BUFFER)?;
        Ok(stream)
    };
    serve(accept, &router).await;
}

/// Lets through what only reads, and comes from no page of another site.
async fn guard(request: Request, next: Next) -> Response {
    let refuse = |status: StatusCode, why: &str| (status, format!("{why}\n")).into_response();
    let host = request.headers().get(header::HOST);
    let host = host.and_then(|host| host.to_str().ok());
    // A name that leads here for a moment would let any page in a browser on this machine read along (DNS rebinding).
    if !host.is_some_and(is_loopback) {
        let why = "the Host header names neither localhost nor a loopback address; should this be a proxy's request, let it send one";
        return refuse(StatusCode::FORBIDDEN, why);
    }
    if is_of_another_page(&request) {
        return refuse(StatusCode::FORBIDDEN, OTHER_PAGE);
    }
    if request.method() != Method::GET {
        let why = "GET only: what changes something goes by the admin socket";
        return refuse(StatusCode::METHOD_NOT_ALLOWED, why);
    }
    let path = request.uri().path();
    // Traces in detail have a price, and show more than who talks to whom.
    let of_flow = path.starts_with("/v1/flows/") && !path.ends_with("/qlog");
    if !OPEN.contains(&path) && !of_flow && page::FILES.iter().all(|file| file.path != path) {
        let why = format!(
            "there are {}, /v1/flows/FLOW, /v1/flows/FLOW/trace, and a page at /",
            OPEN.join(", ")
        );
        return refuse(StatusCode::NOT_FOUND, &why);
    }
    next.run(request).await
}

/// Lets no page in a browser change anything, and pages of other sites not even ask: where somebody has led a port to the admin
/// socket, any site might try. Browsers say so of themselves (`Origin`, Fetch standard, 3.2).
pub(super) async fn not_from_pages(request: Request, next: Next) -> Response {
    let headers = request.headers();
    let why = if request.method() != Method::GET && headers.contains_key(header::ORIGIN) {
        "pages may only read: use the commands of pepd"
    } else if is_of_another_page(&request) {
        OTHER_PAGE
    } else if headers
        .get(header::HOST)
        .is_some_and(|host| !may_be_socket(host))
    {
        "the Host header names another machine: localhost will do"
    } else {
        return next.run(request).await;
    };
    (StatusCode::FORBIDDEN, format!("{why}\n")).into_response()
}

const OTHER_PAGE: &str = "pages of other sites may not ask";

/// Whether a page that is not ours makes a browser ask, but for our page itself, which anybody may link to. Browsers say so
/// (`Sec-Fetch-Site`, Fetch Metadata Request Headers, 2); what is no browser says nothing.
fn is_of_another_page(request: &Request) -> bool {
    let says = |name: &str, value: &str| {
        let said = request.headers().get(name);
        said.is_some_and(|said| said.as_bytes() == value.as_bytes())
    };
    let is_link = request.uri().path() == "/"
        && says("sec-fetch-mode", "navigate")
        && says("sec-fetch-dest", "document");
    let elsewhere = ["cross-site", "same-site"];
    let elsewhere = elsewhere.iter().any(|site| says("sec-fetch-site", site));
    elsewhere && !is_link
}

/// Whether somebody who asks at the socket may call it so: as they like, but not by a name of the internet, as a page would
/// that leads such a name here (DNS rebinding).
fn may_be_socket(host: &HeaderValue) -> bool {
    let host = host.to_str().ok();
    host.is_some_and(|host| !host.contains('.') || is_loopback(host))
}

/// Whether a Host header names this machine to itself, with a port or without.
fn is_loopback(host: &str) -> bool {
    let Ok(authority) = host.parse::<axum::http::uri::Authority>() else {
        return false;
    };
    let name = authority.host();
    let address = name.trim_start_matches('[').trim_end_matches(']');
    let address = address.parse::<std::net::IpAddr>();
    // With a user's name it is no Host header.
    !host.contains('@')
        && address.map_or_else(
            |_| name.eq_ignore_ascii_case("localhost"),
            |address| address.is_loopback(),
        )
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
