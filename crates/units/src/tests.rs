use std::time::Duration;

use proptest::prelude::*;

use crate::{ByteSize, Rate, Ratio, duration};

fn rate(text: &str) -> Option<u64> {
    text.parse().ok().map(Rate::bits_per_second)
}

#[test]
fn rates_are_read_in_every_common_spelling() {
    for text in [
        "10Mbit/s",
        "10mbit",
        "10 Mbps",
        "10M",
        "10000kbit/s",
        "10_000_000",
        "0.01Gbit/s",
    ] {
        assert_eq!(rate(text), Some(10_000_000), "{text}");
    }
    for text in [
        "",
        "0",
        "fast",
        "-1Mbit/s",
        "10MB/h",
        "10 parsec",
        "1e30",
        "nan",
        "inf",
    ] {
        assert_eq!(rate(text), None, "{text}");
    }
}

#[test]
fn a_rate_in_bytes_is_refused_with_the_same_in_bits() {
    for (text, bits) in [
        ("20MB/s", "160Mbit/s"),
        ("20MBps", "160Mbit/s"),
        ("20MBPS", "160Mbit/s"),
        ("20 MB", "160Mbit/s"),
        ("20MiB/s", "167772.16kbit/s"),
        ("1.25kB/s", "10kbit/s"),
        ("1200B/s", "9.6kbit/s"),
        ("20Mbyte/s", "160Mbit/s"),
    ] {
        let message = text.parse::<Rate>().expect_err(text).to_string();
        let expected = format!("`{text}` is in bytes, and rates are in bits: write \"{bits}\"");
        assert_eq!(message, expected);
        assert!(bits.parse::<Rate>().is_ok(), "{bits}");
    }
    for text in [
        "20mb/s", "20mbps", "20Mb/s", "20Mbps", "20MBIT/S", "20mBit/s",
    ] {
        assert_eq!(rate(text), Some(20_000_000), "{text}");
    }
}

#[test]
fn sizes_keep_decimal_and_binary_prefixes_apart() {
    let size = |text: &str| text.parse().ok().map(ByteSize::bytes);
    assert_eq!(size("660kB"), Some(660_000));
    assert_eq!(size("64KiB"), Some(65_536));
    assert_eq!(size("1 GiB"), Some(1 << 30));
    assert_eq!(size("0"), Some(0));
    assert_eq!(size("12 apples"), None);
}

#[test]
fn ratios_are_shares_of_one() {
    let ratio = |text: &str| text.parse().ok().map(Ratio::get);
    assert_eq!(ratio("1%"), Some(0.01));
    assert_eq!(ratio("1e-6"), Some(1e-6));
    assert_eq!(ratio("100%"), Some(1.0));
    assert_eq!(ratio("101%"), None);
    assert_eq!(ratio("-0.1"), None);
}

#[test]
fn durations_need_a_unit() {
    assert_eq!(duration::parse("264ms"), Ok(Duration::from_millis(264)));
    assert_eq!(duration::parse("1.5s"), Ok(Duration::from_millis(1500)));
    assert_eq!(duration::parse("0"), Ok(Duration::ZERO));
    let error = duration::parse("264").expect_err("no unit");
    assert!(error.to_string().contains("264ms"), "{error}");
}

#[test]
fn a_quantity_out_of_bounds_is_not_called_something_else() {
    let message = |text: &str| text.parse::<ByteSize>().expect_err(text).to_string();
    assert_eq!(message("99999999TiB"), "`99999999TiB` is too large");
    assert_eq!(message("-1"), "`-1` is negative");
    assert!(message("-lots").starts_with("`-lots` is not a size"));
    let message = duration::parse("-1s").expect_err("negative").to_string();
    assert_eq!(message, "`-1s` is negative");
    let message = duration::parse("600y").expect_err("no unit").to_string();
    assert!(message.starts_with("`600y` is not a duration"), "{message}");
    let message = duration::parse("300000d")
        .expect_err("584 years")
        .to_string();
    assert_eq!(message, "`300000d` is too large");
}

#[test]
fn bandwidth_delay_product_of_a_geo_link() {
    let rate: Rate = "10Mbit/s".parse().expect("valid");
    assert_eq!(
        rate.bandwidth_delay_product(Duration::from_millis(600)),
        750_000
    );
}

#[test]
fn configuration_files_may_write_bare_numbers() {
    #[derive(serde::Deserialize)]
    struct File {
        rate: Rate,
        loss: Ratio,
        #[serde(with = "duration")]
        rtt: Duration,
    }
    let file: File =
        serde_json::from_str(r#"{"rate": 9600, "loss": 0.5, "rtt": "600ms"}"#).expect("valid");
    assert_eq!((file.rate.bits_per_second(), file.loss.get()), (9600, 0.5));
    assert_eq!(file.rtt, Duration::from_millis(600));
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(bits in 1u64..1 << 50, bytes in 0u64..1 << 50, ns in 0u64..1 << 52) {
        let rate = Rate::from_bits_per_second(bits).expect("not zero");
        prop_assert_eq!(rate.to_string().parse::<Rate>(), Ok(rate));
        prop_assert_eq!(ByteSize(bytes).to_string().parse::<ByteSize>(), Ok(ByteSize(bytes)));
        let span = Duration::from_nanos(ns);
        prop_assert_eq!(duration::parse(&duration::format(span)), Ok(span));
    }

    #[test]
    fn no_text_makes_it_panic(text in ".{0,40}") {
        let _ = (text.parse::<Rate>(), text.parse::<ByteSize>(), text.parse::<Ratio>(), duration::parse(&text));
    }
}
