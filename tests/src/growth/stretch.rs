//! Window growth when one acknowledgement covers many segments.

use std::time::Duration;

use super::{
    Figure, Result,
    bed::{Acknowledging, Bed, Look},
};

/// The time for which the receiver merges segments: about eighty at the higher rate.
const GATHERED: Duration = Duration::from_millis(10);
/// A link with a rho of 4. Its rate rises tenfold later, so that the window, settled by then, grows
/// for long.
const LINK: &str = "delay=50ms,rate=@rise,queue=100kB";
const RISE: &str = "0,10mbit\n4,100mbit\n";
/// The start of the sampling: after the rise. It ends at half of the link's new capacity.
const FROM: Duration = Duration::from_secs(5);
const UNTIL: u32 = 400;
const TIME_MAX: Duration = Duration::from_secs(30);

/// Measures the slope of the window in congestion avoidance with stretched acknowledgements, as a
/// share of the slope with one acknowledgement per segment. With `must_keep` 0.8 is required.
///
/// # Errors
/// When the link or the namespaces cannot be made, or the kernel has no such control.
pub fn stretch(congestion: &str, must_keep: bool) -> Result<Figure> {
    let each = slope(congestion, Acknowledging::EachSegment)?;
    let stretched = slope(congestion, Acknowledging::Stretched(GATHERED))?;
    let name = format!(
        "{congestion}: segments per window and round trip, {:.0} segments per acknowledgement against {:.0}",
        stretched.stretch, each.stretch
    );
    Ok(if must_keep {
        Figure::at_least(name, stretched.slope, each.slope, 0.8)
    } else {
        Figure::shown(name, stretched.slope, each.slope)
    })
}

struct Slope {
    slope: f64,
    /// Segments per acknowledgement.
    stretch: f64,
}

fn slope(congestion: &str, acknowledging: Acknowledging) -> Result<Slope> {
    let bed = Bed::with_files(LINK, |_| Ok(RISE.to_owned()), acknowledging)?;
    let looks = bed.watch(congestion, |look| {
        look.at > TIME_MAX || (look.at > FROM && look.tcp.snd_cwnd >= UNTIL)
    })?;
    let rising: Vec<_> = looks.iter().filter(|look| look.at > FROM).collect();
    let (Some(first), Some(last)) = (rising.first(), rising.last()) else {
        return Err(format!("{congestion}: no acknowledgement after the rise").into());
    };
    let squared = |look: &Look| f64::from(look.tcp.snd_cwnd).powi(2);
    let segments = f64::from(last.tcp.delivered - first.tcp.delivered);
    let acks = f64::from(last.tcp.segs_in - first.tcp.segs_in);
    Ok(Slope {
        // As in the formulas, but per delivered segment.
        slope: (squared(last) - squared(first)) / (2.0 * segments),
        stretch: segments / acks,
    })
}
