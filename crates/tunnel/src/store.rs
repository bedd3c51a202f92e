//! Where the streams' bytes are: with the caller, who keeps them anyway.
//!
//! A session knows positions only. What its caller has said is [written](crate::session::Session::written)
//! it reads when it sends and when it sends again, until
//! [`Acked`](crate::session::Event::Acked) gives it back; what arrives it places at once where it
//! belongs, also when earlier bytes are missing, as far as the caller has
//! [allowed](crate::session::Session::allow).

use crate::wire::StreamId;

/// The bytes of all streams of a session.
pub trait Store {
    /// Copies the bytes to be sent of a stream, from position `from` on, until `into` is full.
    ///
    /// Asked only for bytes that are written and not yet acknowledged, neither [in order](crate::session::Event::Acked) nor
    /// [beyond](crate::session::Session::acked_beyond) others that are missing; the same bytes every time.
    fn read(&self, stream: StreamId, from: u64, into: &mut [u8]);

    /// Takes bytes of a stream that have arrived, the first of which has position `from`.
    ///
    /// Called only below what was allowed, and never for bytes that were reported
    /// [readable](crate::session::Event::Readable); but it may come twice, with the same bytes.
    fn place(&mut self, stream: StreamId, from: u64, bytes: &[u8]);

    /// A new session with the peer begins, whose streams are numbered anew: those of before are no more. Called by an
    /// [endpoint](crate::endpoint::Endpoint) before anything else of the new session, and before the events that tell of
    /// it. Of no concern to whoever serves one session alone.
    fn renew(&mut self) {}
}
