//! Sites: which policy a flow gets. The first site whose matcher takes the flow decides.

mod answers;
pub mod boost;
pub(crate) mod choices;
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

pub use answers::{Answers, PacketEnds};
pub use choices::{
    Buffer, Class, Clear, Close, DscpPolicy, InterceptionLoss, KeepWhen, LinkLeg, Lowat, Mode,
    Pacing, Sharing, Source, SynHandling, WhileDown,
};
pub use martian::{is_martian, may_be_host};
pub use matcher::{FlowKey, Matcher, PortRange};
pub use packet::{PacketPolicy, WithoutPeer};
pub(crate) use policy::Given;
pub use policy::{Buffers, IpVersion, RTT0_DEFAULT, ReceiveBuffer, Site};
pub use protocol::{Protocol, ProtocolError};
pub use table::{SiteId, SiteTable};
