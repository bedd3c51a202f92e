//! The bed itself, without pepd: destinations fail as they should.

use nix::errno::Errno;
use pepd_tests::{
    bed::{Bed, Family, Path, Place},
    matrix::shared,
    outcome::Connected,
    serve::Server,
};

/// Returns the result of connecting to a destination on the plain network.
pub fn expected(family: Family, place: Place) -> Connected {
    let errno = match (place, family) {
        (Place::Server, _) => return Connected::Yes,
        // No service listens on the second address unless a test starts one.
        (Place::Second | Place::Rejected, _) => Errno::ECONNREFUSED,
        (Place::BlackHole, _) => Errno::ETIMEDOUT,
        (Place::NoNeighbour, _) => Errno::EHOSTUNREACH,
        (Place::Unreachable | Place::Prohibited, Family::V4) => Errno::EHOSTUNREACH,
        (Place::Unreachable, Family::V6) => Errno::ENETUNREACH,
        (Place::Prohibited, Family::V6) => Errno::EACCES,
        (Place::NoRoute, _) => Errno::ENETUNREACH,
    };
    Connected::No(errno)
}

const PLACES: [Place; 8] = [
    Place::Server,
    Place::Second,
    Place::BlackHole,
    Place::Unreachable,
    Place::Prohibited,
    Place::Rejected,
    Place::NoRoute,
    Place::NoNeighbour,
];

#[test]
fn places_fail_as_they_should_on_the_plain_network() {
    shared(|| {
        for family in [Family::V4, Family::V6] {
            let bed = Bed::new(Path::Direct, family);
            let listener = bed.server.listen(bed.at(Place::Server, 7000));
            let _server = Server::start(listener, |_, _| {});
            for place in PLACES {
                let connect = bed.client.connect(bed.at(place, 7000));
                let outcome = Connected::from_result(&connect);
                assert_eq!(outcome, expected(family, place), "{family:?} {place:?}");
            }
        }
    });
}
