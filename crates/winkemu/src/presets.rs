//! Presets: named links, with the sources of their figures.

use std::{fmt, str::FromStr};

use crate::link::LinkOptions;

/// Named link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preset {
    /// Name on the command line.
    pub name: &'static str,
    /// Summary in one line.
    pub summary: &'static str,
    /// Source of its figures.
    pub source: &'static str,
    both: &'static str,
    ab: &'static str,
    ba: &'static str,
}

/// All presets. A is the user's end, B the network's. `winkemu run --help` prints the sources, and
/// docs/winkemu.md lists them.
pub const PRESETS: [Preset; 5] = [
    Preset {
        name: "geo",
        summary: "geostationary satellite: 10 Mbit/s, 300 ms each way, a queue of 750 kB",
        source: "rate and round trip of Caini, Firrincieli and Lacamera, ICC 2009, as in Urke 2011, \
                 section 3.3 (figure 3.2); a queue of one bandwidth-delay product as in Urke's section 5.3.1",
        both: "rate=10mbit,delay=300ms,queue=100%bdp",
        ab: "",
        ba: "",
    },
    Preset {
        name: "leo",
        summary: "low-orbit constellation: 178 Mbit/s down, 17 up, 40 to 60 ms round trip, a gap \
                  of 100 ms every 15 s",
        source: "median rates and the quartiles of the round trip of Michel et al., A First Look at \
                 Starlink Performance, IMC 2022; the 15 s \
                 interval of Mohan et al., A Multifaceted Look at Starlink Performance, WWW 2024; \
                 the gap's length is a round figure for the losses at handovers of Kassem et al., \
                 A Browser-side View of Starlink Connectivity, IMC 2022",
        both: "delay=20ms,jitter=10ms,queue=200%bdp,periodic=up=14900ms,down=100ms",
        ab: "rate=17mbit",
        ba: "rate=178mbit",
    },
    Preset {
        name: "wifi",
        summary: "wireless LAN at the edge of its range: 20 Mbit/s, 5 ms, 5.5 % loss in bursts",
        source: "Gilbert channel of Paul 2006, section 6.1 (good stays good 0.9913, bad stays bad \
                 0.8509), and delay of section 6.2.1; the rate is not its 1 Mbit/s but what \
                 802.11g achieves at range",
        both: "rate=20mbit,delay=5ms,jitter=2ms,queue=128p,gilbert=p=0.0087,q=0.1491",
        ab: "",
        ba: "",
    },
    Preset {
        name: "hf",
        summary: "short-wave radio: 2400 bit/s, 4.8 s each way, bit errors of 1e-5",
        source: "the fastest coded serial-tone waveform of MIL-STD-188-110A, at the error rate it is \
                 specified for; the delay is one block of its long interleaver, the minimum wait of \
                 a packet: deinterleaving may add another",
        both: "rate=2400bit/s,delay=4.8s,ber=1e-5,queue=6kB",
        ab: "",
        ba: "",
    },
    Preset {
        name: "field",
        summary: "deployed network over a satellite and a radio: 500 kbit/s, 264 ms each way, 33 kB \
                  of queue, 1 % loss",
        source: "Urke 2011: delay and loss, the same each way, section 5.2.2; rate and queue, section 5.3.1",
        both: "rate=500kbit,delay=264ms,queue=100%bdp,loss=1%",
        ab: "",
        ba: "",
    },
];

impl Preset {
    /// Options of the preset, to be put under the user's by [`LinkOptions::over`].
    pub fn options(&self) -> LinkOptions {
        let path = |text: &str| text.parse().expect("presets are valid, as a test checks");
        LinkOptions {
            both: path(self.both),
            ab: Some(path(self.ab)),
            ba: Some(path(self.ba)),
        }
    }

    /// Names, summaries and sources, for a help text.
    pub fn list() -> String {
        let line = |preset: &Self| {
            let Self {
                name,
                summary,
                source,
                ..
            } = preset;
            format!("  {name:<6} {summary}\n         ({source})\n")
        };
        PRESETS.iter().map(line).collect()
    }
}

/// Unknown preset.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown preset `{0}`; presets are geo, leo, wifi, hf and field")]
pub struct UnknownPreset(String);

impl FromStr for Preset {
    type Err = UnknownPreset;

    fn from_str(name: &str) -> Result<Self, UnknownPreset> {
        let found = PRESETS.iter().find(|preset| preset.name == name);
        found.copied().ok_or_else(|| UnknownPreset(name.to_owned()))
    }
}

impl fmt::Display for Preset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::Direction;

    #[test]
    fn every_preset_is_a_valid_link_and_named_in_the_error() {
        let error = UnknownPreset(String::new()).to_string();
        for preset in PRESETS {
            let config = preset.options().resolve_without_files();
            assert!(config.unwrap().ab.rate.mean().is_some());
            assert!(error.contains(preset.name));
        }
    }

    #[test]
    fn what_the_user_says_goes_over_a_preset_in_both_directions() {
        let user: LinkOptions = "rate=1mbit,loss=1%".parse().unwrap();
        let preset: Preset = "leo".parse().unwrap();
        let config = user.over(preset.options()).resolve_without_files().unwrap();
        for direction in Direction::BOTH {
            let path = config.path(direction);
            assert_eq!(path.rate.mean().unwrap().bits_per_second(), 1_000_000);
            assert_eq!(path.loss.packet.get(), 0.01);
        }
        assert_eq!(config.round_trip().as_millis(), 40);
    }
}
