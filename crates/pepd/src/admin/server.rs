//! HTTP server of the admin API.

use std::{
    io,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use axum::{
    Json, Router,
    extract::{DefaultBodyLimit, State},
    http::{HeaderValue, StatusCode, header},
    middleware::{from_fn, map_response},
    response::{IntoResponse, Response},
    routing::get,
};
use hyper::{
    Request,
    body::Incoming,
    server::conn::http1,
    service::{Service as _, service_fn},
};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use pep_core::{config::Config, outage::Order};
use pepd_api::link::{LinkOrder, LinkReport, ORDER_MAX, OrderedState};
use pepd_relay::{flow::FlowContext, outage::LinkWatch};
use pepd_sys::admin_socket::{self, BindError, SocketFile};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::UnixListener,
    time::sleep,
};
use tokio_io_timeout::TimeoutStream;

use super::{
    client::{Client, Clients, Watched, WatchedBody},
    http,
    place::Places,
};

/// Limits of a request: header bytes, body bytes and time.
const HEAD_MAX: usize = 16 * 1024;
const BODY_MAX: usize = 4 * 1024;
const HEAD_TIME: Duration = Duration::from_secs(5);
const CONNECTION_TIME: Duration = Duration::from_secs(30);
/// Time after which a client that does not read is disconnected.
const WRITE_TIME: Duration = Duration::from_secs(10);
/// Pause before the next accept after an error.
const PAUSE: Duration = Duration::from_millis(100);

/// Objects that requests refer to.
#[derive(Debug)]
struct Subject {
    context: Arc<FlowContext>,
}

impl Subject {
    fn link(&self) -> &Arc<LinkWatch> {
        &self.context.outage
    }
}

/// Admin API and its listeners, not served yet.
#[derive(Debug)]
pub struct Admin {
    config: Arc<Config>,
    /// Socket, removed at the end.
    socket: Option<(UnixListener, SocketFile)>,
    router: Router,
}

impl Admin {
    /// Returns the API of a pepd, extended by `more`.
    pub fn new(config: &Arc<Config>, context: &Arc<FlowContext>, more: Router) -> Self {
        let subject = Subject {
            context: Arc::clone(context),
        };
        Self {
            config: Arc::clone(config),
            socket: None,
            router: router(subject)
                .merge(more)
                .layer(from_fn(http::not_from_pages))
                .layer(map_response(secured)),
        }
    }

    /// Creates the socket, if configured. Must be called in an event loop.
    ///
    /// # Errors
    /// When the system rejects it, or another process uses it.
    pub fn bind(&mut self) -> Result<(), BindError> {
        let Some(path) = admin_socket::path(&self.config) else {
            return Ok(());
        };
        let (listener, file) = admin_socket::bind(&path, self.config.admin.mode.bits())?;
        let listener = UnixListener::from_std(listener);
        let listener = listener.map_err(|err| BindError::System(path, err))?;
        self.socket = Some((listener, file));
        Ok(())
    }

    /// Serves requests for as long as it is polled.
    pub async fn run(self) {
        let socket = async {
            if let Some((listener, _file)) = &self.socket {
                let accept = || async { listener.accept().await.map(|(stream, _)| stream) };
                serve(accept, &self.router).await;
            }
        };
        let tcp = http::run(&self.config, self.router.clone());
        tokio::join!(socket, tcp);
    }
}

/// Serves accepted connections for as long as it is polled.
pub(super) async fn serve<S, A>(accept: impl Fn() -> A, router: &Router)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    A: Future<Output = io::Result<S>>,
{
    let places = Arc::new(Places::default());
    let mut clients = Clients::default();
    loop {
        let stream = match accept().await {
            Ok(stream) => stream,
            Err(err) => {
                tracing::debug!(error = %err, "cannot accept an operator's connection");
                sleep(PAUSE).await;
                continue;
            }
        };
        let place = tokio::select! {
            biased;
            place = places.take() => place,
            () = clients.shed_oldest() => places.take().await,
        };
        let client = clients.add(place);
        tokio::spawn(answer(stream, router.clone(), client));
    }
}

/// Serves a connection.
async fn answer<S: AsyncRead + AsyncWrite + Unpin>(stream: S, router: Router, client: Arc<Client>) {
    let service = TowerToHyperService::new(router);
    let with_place = service_fn(|mut request: Request<Incoming>| {
        client.has_asked.store(true, Relaxed);
        request.extensions_mut().insert(client.place.clone());
        service.call(request.map(|body| WatchedBody::new(body, Arc::clone(&client))))
    });
    let mut stream = TimeoutStream::new(Watched::new(stream, Arc::clone(&client)));
    stream.set_write_timeout(Some(WRITE_TIME));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME)
        .max_buf_size(HEAD_MAX)
        .keep_alive(false)
        .serve_connection(TokioIo::new(Box::pin(stream)), with_place);
    tokio::select! {
        result = connection => if let Err(err) = result {
            tracing::debug!(error = %err, "an operator's request");
        },
        () = client.place.overstayed(CONNECTION_TIME) => {
            tracing::debug!("an operator's request took too long");
        }
        () = client.shed.notified() => {
            tracing::debug!("an operator's connection closed for another: its client was slow");
        }
    }
}

/// Restricts browsers: no other resource is loaded, and no other page may embed or read the answer.
async fn secured(mut answer: Response) -> Response {
    const CONTENT: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                           base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, CONTENT),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
    ] {
        answer
            .headers_mut()
            .insert(name, HeaderValue::from_static(value));
    }
    answer
}

fn router(subject: Subject) -> Router {
    Router::new()
        .route("/v1/link", get(show_link).put(order_link))
        .layer(DefaultBodyLimit::max(BODY_MAX))
        .with_state(Arc::new(subject))
}

type Shared = State<Arc<Subject>>;

async fn show_link(State(subject): Shared) -> Json<LinkReport> {
    Json(subject.link().report())
}

async fn order_link(State(subject): Shared, Json(order): Json<LinkOrder>) -> Response {
    let lasting = match order.for_s {
        None => None,
        Some(seconds) if seconds > 0.0 && seconds <= ORDER_MAX.as_secs_f64() => {
            Some(Duration::from_secs_f64(seconds))
        }
        Some(_) => return refuse("`for_s` must be above 0 and not above a year"),
    };
    let up = match order.state {
        OrderedState::Up => Some(true),
        OrderedState::Down => Some(false),
        OrderedState::Auto if lasting.is_some() => {
            return refuse("`for_s` is valid with \"up\" and \"down\" only");
        }
        OrderedState::Auto => None,
    };
    let order = subject.link().order(up, lasting);
    let word = order.map_or(0, Order::to_word);
    subject.context.arena.set_order(word);
    Json(subject.link().report()).into_response()
}

fn refuse(why: &str) -> Response {
    (StatusCode::BAD_REQUEST, format!("{why}\n")).into_response()
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use axum::{Extension, body::Body, routing::put};
    use futures_util::stream;
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex},
        sync::mpsc,
        time::Instant,
    };

    use super::*;
    use crate::admin::{
        Lasting, STREAMS_MAX,
        place::{CONNECTIONS_MAX, Place},
    };

    /// Time after which `/late` answers.
    const LATE: Duration = Duration::from_secs(2);

    fn server() -> mpsc::Sender<DuplexStream> {
        serving(handlers())
    }

    fn handlers() -> Router {
        let lasting = |Extension(place): Extension<Place>| async move {
            place.leave();
            Body::from_stream(stream::unfold((), |()| async {
                sleep(Duration::from_secs(1)).await;
                Some((Ok::<_, Infallible>([b'x'; 100].to_vec()), ()))
            }))
        };
        let stream = |Extension(place): Extension<Place>| async move {
            let Some(permit) = place.last(Lasting::Stream) else {
                return StatusCode::SERVICE_UNAVAILABLE.into_response();
            };
            Body::from_stream(stream::unfold(permit, |permit| async {
                sleep(Duration::from_secs(1)).await;
                Some((Ok::<_, Infallible>([b'x'; 100].to_vec()), permit))
            }))
            .into_response()
        };
        let never = || std::future::pending::<()>();
        let late = || async {
            sleep(LATE).await;
            "x".repeat(100_000)
        };
        Router::new()
            .route("/lasting", get(lasting))
            .route("/stream", get(stream))
            .route("/never", get(never))
            .route("/late", get(late))
            .route("/body", put(|body: String| async { body }))
            .route("/short", get(|| async { "short" }))
            .route("/long", get(|| async { "x".repeat(100_000) }))
    }

    /// Returns the channel by which clients connect to a server.
    fn serving(router: Router) -> mpsc::Sender<DuplexStream> {
        let (connect, connections) = mpsc::channel(1);
        let connections = Arc::new(tokio::sync::Mutex::new(connections));
        tokio::spawn(async move {
            let accept = || async {
                connections
                    .lock()
                    .await
                    .recv()
                    .await
                    .ok_or(io::ErrorKind::Other.into())
            };
            serve(accept, &router).await;
        });
        connect
    }

    async fn request(server: &mpsc::Sender<DuplexStream>, path: &str) -> DuplexStream {
        let head = format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n");
        send(server, &head).await
    }

    async fn send(server: &mpsc::Sender<DuplexStream>, request: &str) -> DuplexStream {
        let (mut ours, theirs) = duplex(1000);
        server.send(theirs).await.expect("it accepts");
        ours.write_all(request.as_bytes()).await.expect("it reads");
        ours
    }

    async fn whole(mut stream: DuplexStream) -> String {
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("text");
        answer
    }

    #[tokio::test(start_paused = true)]
    async fn what_lasts_takes_no_place_of_others_and_is_not_ended() {
        let server = server();
        let mut lasting = Vec::new();
        for _ in 0..2 * CONNECTIONS_MAX {
            let mut stream = request(&server, "/lasting").await;
            let mut begin = [0; 300];
            stream.read_exact(&mut begin).await.expect("it begins");
            lasting.push(stream);
        }
        let begin = Instant::now();
        assert!(
            whole(request(&server, "/short").await)
                .await
                .ends_with("short")
        );
        assert!(begin.elapsed() < Duration::from_secs(1));
        let mut last = lasting.pop().expect("there are some");
        while begin.elapsed() < 10 * CONNECTION_TIME {
            last.read_exact(&mut [0; 100]).await.expect("it goes on");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_not_read_is_cut() {
        let server = server();
        let begin = Instant::now();
        let lasting = request(&server, "/lasting").await;
        sleep(Duration::from_secs(60)).await;
        let answer = whole(lasting).await;
        assert!(
            begin.elapsed() == Duration::from_secs(60),
            "it was cut before"
        );
        assert!(
            answer.starts_with("HTTP/1.1 200") && answer.len() <= 1000,
            "{answer}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn clients_without_a_complete_request_head_make_no_other_wait() {
        let server = server();
        let mut slow = Vec::new();
        let begin = Instant::now();
        for _ in 0..3 * CONNECTIONS_MAX {
            let (mut ours, theirs) = duplex(1000);
            server.send(theirs).await.expect("it accepts");
            ours.write_all(b"GET /short HT").await.expect("it reads");
            slow.push(ours);
        }
        let answer = whole(request(&server, "/short").await).await;
        assert!(answer.ends_with("short"), "{answer}");
        assert!(begin.elapsed() < Duration::from_secs(1));
        let last = slow.pop().expect("there are some");
        drop(slow);
        let answer = whole(last).await;
        assert_eq!(begin.elapsed().as_secs(), HEAD_TIME.as_secs(), "{answer}");
    }

    #[tokio::test(start_paused = true)]
    async fn clients_that_do_not_read_an_answer_make_no_other_wait() {
        let server = server();
        let begin = Instant::now();
        let mut slow = Vec::new();
        for _ in 0..3 * CONNECTIONS_MAX {
            let mut stream = request(&server, "/long").await;
            // Its answer has begun, and no more fits into its pipe.
            stream.read_exact(&mut [0; 10]).await.expect("it begins");
            slow.push(stream);
        }
        let answer = whole(request(&server, "/short").await).await;
        assert!(answer.ends_with("short"), "{answer}");
        assert!(begin.elapsed() < Duration::from_secs(1));
        let kept = slow.pop().expect("there are some");
        let answer = whole(kept).await;
        assert!(
            answer.len() > 100_000,
            "the last one reads: {}",
            answer.len()
        );
    }

    #[tokio::test(start_paused = true)]
    async fn clients_that_read_no_answer_of_later_make_no_other_wait() {
        let server = server();
        let begin = Instant::now();
        let mut slow = Vec::new();
        for _ in 0..CONNECTIONS_MAX {
            slow.push(request(&server, "/late").await);
        }
        // None of them is slow yet when it arrives.
        let answer = whole(request(&server, "/short").await).await;
        assert!(answer.ends_with("short"), "{answer}");
        let waited = begin.elapsed();
        assert!(waited < LATE + Duration::from_secs(1), "{waited:?}");
        let mut complete = 0;
        for stream in slow {
            complete += usize::from(whole(stream).await.len() > 100_000);
        }
        assert_eq!(complete, CONNECTIONS_MAX - 1, "only one was closed");
    }

    #[tokio::test(start_paused = true)]
    async fn clients_without_a_complete_request_body_make_no_other_wait() {
        let server = server();
        for head in ["", "expect: 100-continue\r\n"] {
            let begin = Instant::now();
            let mut slow = Vec::new();
            for _ in 0..3 * CONNECTIONS_MAX {
                let request =
                    format!("PUT /body HTTP/1.1\r\nhost: x\r\n{head}content-length: 6\r\n\r\nbody");
                slow.push(send(&server, &request).await);
                // It has read the head.
                sleep(Duration::from_millis(1)).await;
            }
            let answer = whole(request(&server, "/short").await).await;
            assert!(answer.ends_with("short"), "{answer}");
            assert!(begin.elapsed() < Duration::from_secs(1));
            let mut kept = slow.pop().expect("there are some");
            kept.write_all(b"xy").await.expect("it is still open");
            let answer = whole(kept).await;
            assert!(answer.ends_with("bodyxy"), "{answer}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn streams_of_one_listener_take_no_places_of_another() {
        let router = handlers();
        let [port, socket] = [router.clone(), router].map(serving);
        let mut streams = Vec::new();
        for server in [&port, &socket] {
            for _ in 0..STREAMS_MAX {
                let mut stream = request(server, "/stream").await;
                let mut begin = [0; 12];
                stream.read_exact(&mut begin).await.expect("an answer");
                assert_eq!(&begin, b"HTTP/1.1 200");
                streams.push(stream);
            }
            let answer = whole(request(server, "/stream").await).await;
            assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
        }
        streams.clear();
        // The server notices it when it sends next.
        sleep(Duration::from_secs(2)).await;
        let mut stream = request(&port, "/stream").await;
        let mut begin = [0; 12];
        stream.read_exact(&mut begin).await.expect("an answer");
        assert_eq!(&begin, b"HTTP/1.1 200");
    }

    #[tokio::test(start_paused = true)]
    async fn unanswered_connections_free_their_place_in_the_end() {
        let server = server();
        let mut never = Vec::new();
        for _ in 0..CONNECTIONS_MAX {
            never.push(request(&server, "/never").await);
        }
        let begin = Instant::now();
        assert!(
            whole(request(&server, "/short").await)
                .await
                .ends_with("short")
        );
        let waited = begin.elapsed().as_secs();
        assert!((29..=31).contains(&waited), "{waited}");
    }
}
