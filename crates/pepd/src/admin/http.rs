//! What can only be read, by TCP, for Prometheus and the like: of this machine only.

use axum::{
    Router,
    extract::Request,
    http::{Method, StatusCode, header},
    middleware::{Next, from_fn},
    response::{IntoResponse as _, Response},
};
use pep_core::config::Config;
use socket2::SockRef;
use tokio::net::TcpListener;

use super::server::serve;
use crate::observe::page;

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
    if request.method() != Method::GET {
        let why = "GET only: what changes something goes by the admin socket";
        return refuse(StatusCode::METHOD_NOT_ALLOWED, why);
    }
    let path = request.uri().path();
    let of_flow = path.starts_with("/v1/flows/");
    if !OPEN.contains(&path) && !of_flow && page::FILES.iter().all(|file| file.path != path) {
        let why = format!(
            "there are {}, /v1/flows/FLOW, /v1/flows/FLOW/trace, and a page at /",
            OPEN.join(", ")
        );
        return refuse(StatusCode::NOT_FOUND, &why);
    }
    next.run(request).await
}

/// Lets no page in a browser change anything: where somebody has led a port to the admin socket, any site might try. Browsers
/// say so of themselves (`Origin`, Fetch standard, 3.2).
pub(super) async fn not_from_pages(request: Request, next: Next) -> Response {
    if request.method() != Method::GET && request.headers().contains_key(header::ORIGIN) {
        let why = "pages may only read: use the commands of pepd\n";
        return (StatusCode::FORBIDDEN, why).into_response();
    }
    next.run(request).await
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
}
