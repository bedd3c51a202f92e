//! The web page, in a browser, beside a pepd with flows.

use std::{env, ffi::OsString, fs, path::Path, thread, time::Duration};

use pepd_tests::{
    browser::Page,
    tunnel::{End, TunnelBed},
};

use crate::{
    survive::crash,
    tunnel::{LINK, Running, SITE, traffic},
};

const ADDRESS: &str = "http://127.0.0.1:9180/";
const ADMIN: &str = "[admin]\nsocket = \"admin.sock\"\nhttp = \"127.0.0.1:9180\"\n";
const OTHERS: &str = "[[site]]\nname = \"mail\"\nmatch = { dport = [7001] }\n\
                      [[site]]\nname = \"voice\"\nmode = \"bypass\"\nmatch = { dport = [7999] }\n";
const SCREEN: (u32, u32) = (1280, 900);
const PHONE: (u32, u32) = (360, 760);

/// Checks that there were no errors, and no requests to other hosts.
fn assert_clean(page: &mut Page) {
    assert_eq!(page.problems(), [""; 0]);
    let requests = page.requests();
    assert!(requests.len() > 5, "{requests:?}");
    assert!(
        requests.iter().all(|address| address.starts_with(ADDRESS)),
        "{requests:?}"
    );
}

/// Returns an expression for a table cell with this text.
fn cell(table: &str, text: &str) -> String {
    format!(
        "[...document.querySelectorAll('#{table} td')].some((cell) => cell.textContent === '{text}')"
    )
}

#[test]
fn the_page_shows_link_outages_rates_sites_peers_and_flows() {
    let bed = TunnelBed::new(&format!("{LINK},loss=2%"));
    let running = Running::start(&bed, "", &format!("{OTHERS}{SITE}{ADMIN}"));
    let (busy, other, _echo) = traffic(&bed);
    let mut page = Page::open(&bed.host("boat"), ADDRESS, SCREEN);
    page.wait_text("#link-state", "up for ");
    page.wait_text("#link-facts", "by tunnel · hub · 20.0 Mbit/s · 40 ms");
    for (table, text) in [
        ("sites", "mail"),
        ("sites", "accelerated"),
        ("sites", "bypassed: mode bypass"),
        ("sites", "tunnel, via hub"),
        ("peers", "hub"),
        ("peers", "up"),
    ] {
        page.wait(&cell(table, text));
    }
    page.wait("/[1-9].* [kM]bit/.test(document.querySelector('.tile .value').textContent.replace('\\u00a0', ' '))");
    for (chart, line) in [
        ("throughput", "down"),
        ("loss", "fec_overhead"),
        ("custody", "memory"),
        ("open", "flows"),
    ] {
        page.wait(&format!(
            "/L/.test(document.querySelector('#{chart} .chart path.line.{line}[d*=L]')?.getAttribute('d'))"
        ));
    }
    page.wait_text("#passes", "Not accelerated: voice (bypassed: mode bypass)");
    let client = other.local_addr().expect("connected");
    page.wait_text("#flows", &client.to_string());
    page.wait("document.querySelectorAll('#flows tbody tr').length === 2");
    choose(&mut page, "flow-site", "mail");
    page.wait("document.querySelectorAll('#flows tbody tr').length === 1");
    choose(&mut page, "flow-site", "");
    page.wait("document.querySelectorAll('#flows tbody tr').length === 2");
    if pictures().is_some() {
        thread::sleep(Duration::from_secs(200));
    }
    // On a busy machine the tunnel may report an outage at this moment, which the page would show
    // instead.
    running.boat.ask(&["link", "up"]);
    running.boat.ask(&["link", "down"]);
    page.wait_text("#link-state", "down for ");
    page.wait("document.querySelector('#link-line rect.outage') !== null");
    page.wait("document.title === 'LINK DOWN · pepd'");
    if pictures().is_some() {
        thread::sleep(Duration::from_secs(25));
    }
    running.boat.ask(&["link", "auto"]);
    page.wait_text("#link-state", "up for ");
    // Another outage, on a busy machine, does no harm.
    page.wait_text("#link-outages", " in 10 min, ");
    page.value("document.querySelector('#outages').open = true");
    page.wait_text("#outage-list", "by operator");
    page.value("document.querySelector('#outages').open = false");
    for seconds in [0, 1, 2] {
        page.value(&format!(
            "document.querySelectorAll('#range button')[{seconds}].click()"
        ));
        page.wait(
            "document.querySelector('#throughput .chart path.line.down').getAttribute('d') !== ''",
        );
    }
    page.value("document.querySelector('#range button').click()");
    assert_clean(&mut page);
    looks(&mut page);
    drop((busy, other));

    // The page continues with the next process.
    crash(&running.boat);
    page.wait_text("#process", "1 restart");
    page.wait("document.querySelector('#silence').hidden");
    running.stop_after_errors();
    page.wait_text("#silence", "pepd does not answer since ");
    let thrown = page
        .problems()
        .iter()
        .filter(|problem| problem.contains("exception"));
    assert_eq!(thrown.count(), 0);
}

#[test]
fn the_page_says_what_there_is_not_without_a_tunnel_and_a_probe() {
    let bed = TunnelBed::new(LINK);
    let config = format!("[intercept]\nlan = [\"client\"]\n[log]\nformat = \"json\"\n{ADMIN}");
    let pep = bed.start(End::Boat, &config);
    let mut page = Page::open(&bed.host("boat"), ADDRESS, PHONE);
    page.wait_text("#link-state", "assumed up");
    page.wait_text("#link-facts", "no source reports its state");
    page.wait_text("#loss .empty", "No tunnel is configured");
    page.wait_text("#no-peers", "No tunnel is configured");
    page.wait_text("#no-flows", "No flows are open.");
    page.wait_text("#tiles", "custody.directory is not set");
    page.wait("document.querySelector('#throughput .chart path.line.down') !== null");
    assert_eq!(
        page.value(
            "document.querySelectorAll('#link-line rect.outage, #link-line rect.up').length"
        ),
        0
    );
    assert_eq!(page.value("document.documentElement.scrollWidth"), PHONE.0);
    assert_clean(&mut page);
    pep.stop();
}

fn choose(page: &mut Page, id: &str, value: &str) {
    page.value(&format!(
        "{{ const choice = document.getElementById('{id}'); choice.value = '{value}'; choice.dispatchEvent(new Event('change')); }}"
    ));
}

/// Checks the layout: light, dark and on a phone, with pictures if requested.
fn looks(page: &mut Page) {
    let ground = "getComputedStyle(document.body).backgroundColor";
    let light = page.value(ground);
    take_picture(page, "page.png", 1500);
    page.set_dark(true);
    assert_ne!(page.value(ground), light);
    take_picture(page, "page-dark.png", 1500);
    page.set_dark(false);
    page.resize(PHONE.0, PHONE.1);
    // No overflow, and tables are cards.
    page.wait(&format!(
        "document.documentElement.scrollWidth === {}",
        PHONE.0
    ));
    assert_eq!(
        page.value("getComputedStyle(document.querySelector('#sites thead')).display"),
        "none"
    );
    take_picture(page, "page-phone.png", 1500);
}

/// Returns the directory for pictures, if they are requested.
fn pictures() -> Option<OsString> {
    env::var_os("PEPD_TEST_PICTURES")
}

fn take_picture(page: &mut Page, name: &str, height: u32) {
    if let Some(directory) = pictures() {
        let picture = page.picture(height);
        fs::write(Path::new(&directory).join(name), picture).expect("the directory exists");
    }
}
