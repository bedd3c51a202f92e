//! The server.

use std::{io, sync::Arc, time::Duration};

use axum::{
    Json, Router,
    extract::{DefaultBodyLimit, Query, State},
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::get,
};
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use pep_core::{config::Config, outage::Order};
use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::UnixListener,
    sync::Semaphore,
    time::{sleep, timeout},
};

use super::{
    BindError, SocketFile,
    custody::{self, CustodyReport},
    http, socket_path,
};
use crate::{
    flow::FlowContext,
    outage::{LinkReport, LinkWatch},
};

/// Connections at one time; others wait.
const CONNECTIONS_MAX: usize = 16;
/// Head, body and time of a request.
const HEAD_MAX: usize = 16 * 1024;
const BODY_MAX: usize = 4 * 1024;
const HEAD_TIME: Duration = Duration::from_secs(5);
const CONNECTION_TIME: Duration = Duration::from_secs(30);
/// Before another connection is accepted after an error.
const PAUSE: Duration = Duration::from_millis(100);

/// How an operator wants the link to be seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OrderedState {
    /// It is there.
    Up,
    /// It is away.
    Down,
    /// As others know it.
    Auto,
}

/// The body of `PUT /v1/link`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkOrder {
    /// How.
    pub state: OrderedState,
    /// For so many seconds; without, until further notice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub for_s: Option<f64>,
}

/// The longest that an operator's word may last by itself: a year.
pub const ORDER_MAX: Duration = Duration::from_secs(365 * 86_400);

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CustodyQuery {
    site: Option<String>,
}

/// What requests are about.
#[derive(Debug)]
struct Subject {
    config: Arc<Config>,
    context: Arc<FlowContext>,
}

impl Subject {
    fn link(&self) -> &Arc<LinkWatch> {
        &self.context.outage
    }
}

/// What is asked and told, and by which ways; not served yet.
#[derive(Debug)]
pub struct Admin {
    config: Arc<Config>,
    /// Removed at the end.
    socket: Option<(UnixListener, SocketFile)>,
    router: Router,
}

impl Admin {
    /// What may be asked of a pepd, `more` included.
    pub fn new(config: &Arc<Config>, context: &Arc<FlowContext>, more: Router) -> Self {
        let subject = Subject {
            config: Arc::clone(config),
            context: Arc::clone(context),
        };
        Self {
            config: Arc::clone(config),
            socket: None,
            router: router(subject).merge(more),
        }
    }

    /// Makes the socket, where the configuration wants one. To be called in an event loop.
    ///
    /// # Errors
    /// As the system, or who is there already, has it.
    pub fn bind(&mut self) -> Result<(), BindError> {
        let Some(path) = socket_path(&self.config) else {
            return Ok(());
        };
        let (listener, file) = super::bind(&path, self.config.admin.mode.bits())?;
        let listener = UnixListener::from_std(listener);
        let listener = listener.map_err(|err| BindError::System(path, err))?;
        self.socket = Some((listener, file));
        Ok(())
    }

    /// Answers for as long as it is polled.
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

/// Answers those that are accepted, for as long as it is polled.
pub(super) async fn serve<S, A>(accept: impl Fn() -> A, router: &Router)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    A: Future<Output = io::Result<S>>,
{
    let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(permit) = Arc::clone(&permits).acquire_owned().await else {
            return;
        };
        let stream = match accept().await {
            Ok(stream) => stream,
            Err(err) => {
                tracing::debug!(error = %err, "cannot accept an operator's connection");
                sleep(PAUSE).await;
                continue;
            }
        };
        let service = TowerToHyperService::new(router.clone());
        tokio::spawn(async move {
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_TIME)
                .max_buf_size(HEAD_MAX)
                .keep_alive(false)
                .serve_connection(TokioIo::new(stream), service);
            match timeout(CONNECTION_TIME, connection).await {
                Ok(Err(err)) => tracing::debug!(error = %err, "an operator's request"),
                Err(_elapsed) => tracing::debug!("an operator's request took too long"),
                Ok(Ok(())) => {}
            }
            drop(permit);
        });
    }
}

fn router(subject: Subject) -> Router {
    Router::new()
        .route("/v1/link", get(show_link).put(order_link))
        .route("/v1/custody", get(show_custody))
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
        Some(_) => return refuse("`for_s` is to be above 0, and at most a year"),
    };
    let up = match order.state {
        OrderedState::Up => Some(true),
        OrderedState::Down => Some(false),
        OrderedState::Auto if lasting.is_some() => {
            return refuse("`for_s` goes with \"up\" and \"down\" only");
        }
        OrderedState::Auto => None,
    };
    let order = subject.link().order(up, lasting);
    let word = order.map_or(0, Order::to_word);
    subject.context.arena.set_order(word);
    Json(subject.link().report()).into_response()
}

async fn show_custody(State(subject): Shared, Query(query): Query<CustodyQuery>) -> Response {
    if let Some(site) = &query.site
        && !subject
            .config
            .sites
            .iter()
            .any(|(_, known)| known.name == *site)
    {
        return refuse(&format!("there is no site `{site}`"));
    }
    // It asks the kernel for each socket: others are not to wait for that.
    let report = tokio::task::spawn_blocking(move || {
        let mut report = CustodyReport::of(
            &subject.context.arena,
            &subject.config,
            query.site.as_deref(),
        );
        report.flows.truncate(custody::LISTED_MAX);
        report
    });
    match report.await {
        Ok(report) => Json(report).into_response(),
        Err(err) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{err}\n")).into_response(),
    }
}

fn refuse(why: &str) -> Response {
    (StatusCode::BAD_REQUEST, format!("{why}\n")).into_response()
}
