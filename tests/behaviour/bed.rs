//! The bed itself, without pepd: the places fail as they should.

use nix::errno::Errno;
use pepd_tests::{
    bed::{Bed, Family, Path, Place},
    matrix::shared,
    outcome::Connected,
    serve::Server,
};

/// What connecting to a place comes to on the plain network.
fn expected(family: Family) -> [(Place, Connected); 8] {
    let (unreachable, prohibited) = match family {
        Family::V4 => (Errno::EHOSTUNREACH, Errno::EHOSTUNREACH),
        Family::V6 => (Errno::ENETUNREACH, Errno::EACCES),
    };
    let no_route = match family {
        Family::V4 => Errno::ENETUNREACH,
        Family::V6 => Errno::ENETUNREACH,
    };
    [
        (Place::Server, Connected::Yes),
        (Place::Second, Connected::No(Errno::ECONNREFUSED)),
        (Place::BlackHole, Connected::No(Errno::ETIMEDOUT)),
        (Place::Unreachable, Connected::No(unreachable)),
        (Place::Prohibited, Connected::No(prohibited)),
        (Place::Rejected, Connected::No(Errno::ECONNREFUSED)),
        (Place::NoRoute, Connected::No(no_route)),
        (Place::NoNeighbour, Connected::No(Errno::EHOSTUNREACH)),
    ]
}

#[test]
fn places_fail_as_they_should_on_the_plain_network() {
    shared(|| {
        for family in [Family::V4, Family::V6] {
            let bed = Bed::new(Path::Direct, family);
            let listener = bed.server.listen(bed.at(Place::Server, 7000));
            let _server = Server::start(listener, |_, _| {});
            for (place, outcome) in expected(family) {
                let connect = bed.client.connect(bed.at(place, 7000));
                assert_eq!(Connected::of(&connect), outcome, "{family:?} {place:?}");
            }
        }
    });
}
