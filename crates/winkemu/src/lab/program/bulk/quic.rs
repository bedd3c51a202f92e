//! Bulk transfer over end-to-end QUIC (quinn).

use std::{
    error::Error,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    sync::Arc,
    time::Instant,
};

use quinn::{
    Connection, Endpoint, EndpointConfig, TokioRuntime, TransportConfig, VarInt,
    congestion::{BbrConfig, ControllerFactory, CubicConfig, NewRenoConfig},
};
use serde::Deserialize;
use tokio::time::timeout_at;

use super::{Bulk, BulkResult, CHUNK, Meter};
use crate::lab::{
    Node,
    program::{ProgramError, Transfer},
    topology::Family,
};

mod identity;

/// Receive window: four bandwidth-delay products of 100 Mbit/s and 600 ms.
const WINDOW: u32 = 32 << 20;

/// Congestion controls of quinn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum QuicControl {
    /// BBR, version 1.
    Bbr,
    /// CUBIC, quinn's default.
    Cubic,
    /// New Reno.
    Reno,
}

impl QuicControl {
    /// Name in scenarios.
    fn name(self) -> &'static str {
        match self {
            Self::Bbr => "bbr",
            Self::Cubic => "cubic",
            Self::Reno => "reno",
        }
    }

    fn factory(self) -> Arc<dyn ControllerFactory + Send + Sync> {
        match self {
            Self::Bbr => Arc::new(BbrConfig::default()),
            Self::Cubic => Arc::new(CubicConfig::default()),
            Self::Reno => Arc::new(NewRenoConfig::default()),
        }
    }

    /// Transport configuration without any limit that a window or an outage would hit.
    fn transport(self) -> Arc<TransportConfig> {
        let mut transport = TransportConfig::default();
        transport
            .congestion_controller_factory(self.factory())
            .stream_receive_window(VarInt::from_u32(WINDOW))
            .receive_window(VarInt::from_u32(WINDOW))
            .send_window(u64::from(WINDOW))
            .max_idle_timeout(None);
        Arc::new(transport)
    }
}

/// Runs the transfer between two nodes; both ends live in this thread.
pub(super) fn run(
    bulk: &Bulk,
    control: QuicControl,
    client: &Node,
    server: &Node,
) -> Result<BulkResult, ProgramError> {
    let address = SocketAddr::new(server.ip(bulk.family), bulk.port);
    let bind = |address: SocketAddr| {
        UdpSocket::bind(address).map_err(ProgramError::socket(format!("bind {address}")))
    };
    let called = server.netns().enter(|| bind(address))??;
    let calling = client.netns().enter(|| bind(anywhere(bulk.family)))??;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(ProgramError::socket("start a runtime for QUIC"))?;
    let start = Instant::now();
    let meter = runtime.block_on(async {
        let ends = QuicEndpoints::new(control, calling, called)?;
        ends.transfer(bulk, start, address).await
    })?;
    Ok(BulkResult {
        began: start,
        goodput_bps: meter.goodput(),
        bytes: meter.total,
        first_byte_s: meter.first.map(|first| first.as_secs_f64()),
        congestion: format!("{} of quinn", control.name()),
        retransmitted_bytes: None,
        retransmitted_early_bytes: None,
        series: meter.series(),
        tcp: Vec::new(),
    })
}

fn anywhere(family: Family) -> SocketAddr {
    let ip = match family {
        Family::Ipv4 => IpAddr::from(Ipv4Addr::UNSPECIFIED),
        Family::Ipv6 => IpAddr::from(Ipv6Addr::UNSPECIFIED),
    };
    SocketAddr::new(ip, 0)
}

struct QuicEndpoints {
    client: Endpoint,
    server: Endpoint,
}

impl QuicEndpoints {
    fn new(
        control: QuicControl,
        calling: UdpSocket,
        called: UdpSocket,
    ) -> Result<Self, ProgramError> {
        let (mut client_config, mut server_config) = identity::configs().map_err(failed)?;
        client_config.transport_config(control.transport());
        server_config.transport_config(control.transport());
        let endpoint = |config, socket| {
            let settings = EndpointConfig::default();
            Endpoint::new(settings, config, socket, Arc::new(TokioRuntime))
                .map_err(ProgramError::socket("create a QUIC endpoint"))
        };
        let mut client = endpoint(None, calling)?;
        client.set_default_client_config(client_config);
        let server = endpoint(Some(server_config), called)?;
        Ok(Self { client, server })
    }

    async fn transfer(
        &self,
        bulk: &Bulk,
        start: Instant,
        address: SocketAddr,
    ) -> Result<Meter, ProgramError> {
        let end = start + bulk.duration;
        let (calling, called) = timeout_at(end.into(), self.connect(address))
            .await
            .map_err(|_| failed("no connection within the duration"))??;
        let (sender, receiver) = match bulk.transfer {
            Transfer::Upload => (&calling, &called),
            Transfer::Download => (&called, &calling),
        };
        let mut meter = Meter::new(bulk, start);
        let both = async { tokio::try_join!(send(sender), receive(receiver, &mut meter)) };
        // Both ends run until the deadline, unless one of them fails.
        let ended = timeout_at(end.into(), both).await;
        calling.close(VarInt::default(), b"");
        called.close(VarInt::default(), b"");
        match ended {
            Ok(Err(broken)) => Err(broken),
            _ => Ok(meter),
        }
    }

    async fn connect(&self, address: SocketAddr) -> Result<(Connection, Connection), ProgramError> {
        let calling = self.client.connect(address, identity::NAME);
        let calling = async { calling.map_err(failed)?.await.map_err(failed) };
        let called = async {
            let incoming = self.server.accept().await;
            let incoming = incoming.ok_or_else(|| failed("endpoint closed"))?;
            incoming.await.map_err(failed)
        };
        tokio::try_join!(calling, called)
    }
}

async fn send(connection: &Connection) -> Result<(), ProgramError> {
    let mut stream = connection.open_uni().await.map_err(failed)?;
    let chunk = vec![0x5a; CHUNK];
    loop {
        stream.write_all(&chunk).await.map_err(failed)?;
    }
}

async fn receive(connection: &Connection, meter: &mut Meter) -> Result<(), ProgramError> {
    let mut stream = connection.accept_uni().await.map_err(failed)?;
    let mut buffer = vec![0; CHUNK];
    while let Some(count) = stream.read(&mut buffer).await.map_err(failed)? {
        meter.count(count as u64, Instant::now());
    }
    Err(failed("stream closed early"))
}

/// Joins all causes into one message: quinn's errors name only the outermost.
fn failed(error: impl Into<Box<dyn Error>>) -> ProgramError {
    let error = error.into();
    let mut what = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        what = format!("{what}: {inner}");
        cause = inner.source();
    }
    ProgramError::output("quic", what)
}
