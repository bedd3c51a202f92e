//! Sites: which policy a flow gets. The first site whose matcher takes the flow decides.

mod answers;
pub mod boost;
mod cover;
pub mod custody;
pub(crate) mod headers;
pub mod link;
mod martian;
mod matcher;
pub mod names;
mod packet;
mod policy;
mod protocol;
mod table;
pub mod timeouts;

pub use answers::Answers;
pub use martian::{is_martian, may_be_host};
pub use matcher::{FlowKey, Matcher, PortRange};
pub use packet::{PacketPolicy, WithoutPeer};
pub use policy::{
    Buffer, Buffers, Class, Close, DscpPolicy, InterceptionLoss, IpVersion, KeepWhen, LinkLeg,
    Lowat, Mode, Pacing, RTT0_DEFAULT, ReceiveBuffer, Sharing, Site, Source, SynHandling,
    WhileDown,
};
pub use protocol::{Protocol, ProtocolError};
pub use table::{SiteId, SiteTable};
