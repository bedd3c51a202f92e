//! Recipes of docs/interception.md for other programs' rules, applied literally. Without them
//! connections through pepd fail and `pepd check` names the chain; with them they work.
//!
//! ufw, firewalld and wg-quick run themselves, with separate files, bus and processes. The rules of
//! the others are written like those that these programs install.

mod rule_sets;

use std::{
    fs,
    io::{Read as _, Write as _},
    net::SocketAddr,
    path::Path as File,
    time::Duration,
};

use pepd_tests::{
    bed::{self, Bed, Family, LAN, Path, Place, join},
    echo::EchoServer,
    host::{Dial, Host},
    matrix::shared,
    pep::Pep,
    programs::install,
    wait::wait_until,
};
use tempfile::TempDir;
use winkemu::netns::Process;

use crate::support::{PORT, findings};

const DOCUMENT: &str = include_str!("../../docs/interception.md");
const FAMILIES: [Family; 2] = [Family::V4, Family::V6];
const PATHS: [Path; 2] = [Path::Spoof, Path::Defer];
/// The time for an answer: a dropped packet never gets one, others do at once on an idle machine.
const SOON: Duration = Duration::from_millis(1500);

/// Returns the code blocks beneath a heading, and the text around them.
fn recipe(heading: &str) -> (Vec<String>, String) {
    let begin = format!("\n### {heading}\n");
    let (_, rest) = DOCUMENT.split_once(&begin).expect("the heading is there");
    let end = rest.find("\n#").unwrap_or(rest.len());
    let mut blocks: Vec<String> = Vec::new();
    let mut is_within = false;
    for line in rest[..end].lines() {
        let Some(line) = line.strip_prefix("    ") else {
            is_within = false;
            continue;
        };
        if !is_within {
            blocks.push(String::new());
        }
        is_within = true;
        let block = blocks.last_mut().expect("a block has begun");
        block.push_str(line);
        block.push('\n');
    }
    (blocks, rest[..end].to_owned())
}

/// Returns the only block beneath a heading.
fn only(heading: &str) -> String {
    let (mut blocks, _) = recipe(heading);
    assert_eq!(blocks.len(), 1, "{blocks:#?}");
    blocks.remove(0)
}

/// A gateway before and after its operator applies the recipe.
struct Case<'a> {
    /// The LAN interface.
    lan: &'a str,
    families: &'a [Family],
    /// Paths whose connections fail without the recipe.
    fails: &'a [Path],
    /// Words of `pepd check` about the firewall then; none if it cannot see the fault.
    named: &'a [&'a str],
    /// The server's address, and the hosts' if it is not their first.
    dial: &'a dyn Fn(Family) -> Dial,
}

/// Dials an echo server of the bed by its own address.
fn dial(family: Family) -> Dial {
    Dial::to((Place::Server.address(family), PORT).into())
}

const EVERYWHERE: Case<'_> = Case {
    lan: LAN,
    families: &FAMILIES,
    fails: &PATHS,
    named: &[],
    dial: &dial,
};

impl Case<'_> {
    fn echoes(&self, bed: &Bed, family: Family) -> bool {
        let Ok(mut stream) = bed.client.dial(&(self.dial)(family).limit(SOON)) else {
            return false;
        };
        stream.set_read_timeout(Some(SOON)).expect("a socket");
        let mut answer = [0; 5];
        stream.write_all(b"hello").is_ok()
            && stream.read_exact(&mut answer).is_ok()
            && &answer == b"hello"
    }

    fn start(&self, bed: &Bed, path: Path) -> Pep {
        let (lan, syn) = (self.lan, path.name());
        let config = format!(
            "[intercept]\nlan = [\"{lan}\"]\nsyn = \"{syn}\"\n[log]\nformat = \"json\"\n\
             [admin]\nsocket = \"admin.sock\"\n"
        );
        Pep::start(&bed.gateway, &config)
    }

    /// Runs without the recipe and with it.
    fn holds(&self, bed: &Bed, apply: impl FnOnce()) {
        let families = self.families;
        for family in families {
            assert!(self.echoes(bed, *family), "{family:?} without pepd");
        }
        for path in PATHS {
            let mut pep = self.start(bed, path);
            if self.fails.contains(&path) {
                let failing = findings(bed, &pep, "firewall", "fail");
                for words in self.named {
                    assert!(
                        failing.contains(words),
                        "{path:?}: no `{words}` in {failing}"
                    );
                }
            }
            for family in families {
                let echoes = self.echoes(bed, *family);
                let fails = self.fails.contains(&path);
                assert!(echoes || fails, "{path:?} {family:?} without");
                // It may have passed, unaccelerated, with its second SYN.
                let accepted = pep.counter("flows_accepted");
                let is_accelerated = echoes && accepted > 0;
                assert!(!fails || !is_accelerated, "{path:?} {family:?} without");
            }
            pep.terminate_at_once();
        }
        apply();
        for path in PATHS {
            let mut pep = self.start(bed, path);
            let failing = findings(bed, &pep, "firewall", "fail");
            assert_eq!(failing, "", "{path:?} with the recipe");
            for family in families {
                assert!(
                    self.echoes(bed, *family),
                    "{path:?} {family:?} with the recipe"
                );
            }
            let all = families.len() as u64;
            pep.wait_counter("flows_accepted", |flows| flows == all);
            let warnings = findings(bed, &pep, "firewall", "warn");
            assert_eq!(warnings, "", "{path:?} while connections are accepted");
            pep.terminate_at_once();
        }
    }
}

fn machines() -> (Bed, Vec<EchoServer>) {
    let bed = Bed::new(Path::Direct, Family::V4);
    let listen = |family: Family| {
        bed.server
            .listen((Place::Server.address(family), PORT).into())
    };
    let echoes = FAMILIES.map(|family| EchoServer::start(listen(family)));
    (bed, echoes.into())
}

/// Programs on a machine with a private configuration, `/run` and processes, which end with the
/// script.
struct Private<'a> {
    host: &'a Host,
    /// Directories of the machine, each with its private replacement.
    directories: Vec<(&'static str, TempDir)>,
}

impl<'a> Private<'a> {
    fn new(host: &'a Host, directories: &[&'static str]) -> Self {
        let copy = |directory: &&'static str| {
            let own = tempfile::tempdir().expect("a temporary directory can be made");
            let source = format!("{directory}/.");
            if File::new(directory).exists() {
                host.run("cp", &["-a", &source, own.path().to_str().expect("a path")]);
            }
            (*directory, own)
        };
        let directories = directories.iter().map(copy).collect();
        Self { host, directories }
    }

    /// Returns the command line that runs a script there.
    fn words(&self, script: &str) -> Vec<String> {
        let mut all = "mount -t tmpfs none /run; mount -t tmpfs none /var/log\n".to_owned();
        for (directory, own) in &self.directories {
            all += &format!("mount --bind {} {directory}\n", own.path().display());
        }
        all += script;
        let own = "--mount --pid --fork --kill-child --mount-proc sh -ec";
        own.split(' ').map(str::to_owned).chain([all]).collect()
    }

    fn run(&self, script: &str) -> String {
        let words = self.words(script);
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        self.host.run("unshare", &words)
    }

    /// Changes a file of the first directory.
    fn edit(&self, name: &str, change: impl FnOnce(String) -> String) {
        let path = self.directories[0].1.path().join(name);
        let text = fs::read_to_string(&path).unwrap_or_default();
        fs::write(path, change(text)).expect("a temporary file can be written");
    }
}

#[test]
fn ufw() {
    shared(|| {
        let (bed, _echoes) = machines();
        install(&["ufw"]);
        let ufw = Private::new(&bed.gateway, &["/etc/ufw", "/etc/default"]);
        ufw.run(
            "ufw default deny incoming; ufw default deny outgoing; ufw default deny routed
             ufw route allow in on lan0 out on wan0; ufw allow 22/tcp; ufw --force enable",
        );
        let (blocks, text) = recipe("ufw");
        let case = Case {
            named: &[
                "chain INPUT: a rule of chain ufw-not-local drops hosts' SYNs",
                "\"ufw\"",
            ],
            ..EVERYWHERE
        };
        case.holds(&bed, || {
            for (name, block) in ["before.rules", "before6.rules"].iter().zip(&blocks) {
                assert!(text.contains(&format!("`/etc/ufw/{name}`")));
                ufw.edit(name, |rules| {
                    let line = "# End required lines\n";
                    rules.replacen(line, &format!("{line}{block}"), 1)
                });
            }
            ufw.run("ufw reload");
        });
    });
}

#[test]
fn firewalld() {
    const BUS: &str = r#"<busconfig><listen>unix:path=/run/dbus/system_bus_socket</listen>
        <policy context="default"><allow user="*"/><allow own="*"/><allow send_type="method_call"/>
        <allow send_type="signal"/><allow send_type="method_return"/><allow send_type="error"/>
        <allow receive_type="method_call"/><allow receive_type="signal"/>
        <allow receive_type="method_return"/><allow receive_type="error"/></policy></busconfig>"#;
    shared(|| {
        let (bed, _echoes) = machines();
        install(&["firewalld", "dbus-daemon"]);
        let private = Private::new(&bed.gateway, &["/etc/firewalld"]);
        private.edit("bus.conf", |_| BUS.to_owned());
        // The rules outlive firewalld, which ends with the script.
        private.edit("firewalld.conf", |text| {
            text.replace("CleanupOnExit=yes", "CleanupOnExit=no")
        });
        let run = |script: &str| {
            private.run(&format!(
                "mkdir /run/dbus
                 dbus-daemon --config-file=/etc/firewalld/bus.conf --nofork --nopidfile &
                 timeout 30 sh -c 'until [ -S /run/dbus/system_bus_socket ]; do sleep 0.05; done'
                 firewalld --nofork --nopid &
                 timeout 30 sh -c 'until firewall-cmd --state; do sleep 0.1; done'
                 {script}"
            ))
        };
        run(
            "firewall-cmd --permanent --zone=internal --add-interface=lan0
            firewall-cmd --permanent --zone=external --add-interface=wan0
            firewall-cmd --permanent --zone=external --remove-masquerade
            firewall-cmd --permanent --new-policy=out
            firewall-cmd --permanent --policy=out --add-ingress-zone=internal
            firewall-cmd --permanent --policy=out --add-egress-zone=external
            firewall-cmd --permanent --policy=out --set-target=ACCEPT
            firewall-cmd --reload",
        );
        let case = Case {
            named: &["inet firewalld, chain filter_INPUT", "\"firewalld\""],
            ..EVERYWHERE
        };
        case.holds(&bed, || {
            run(&only("firewalld"));
        });
    });
}

#[test]
fn wg_quick() {
    const KILL_SWITCH: &str = "PostUp = iptables -I OUTPUT ! -o %i -m mark ! --mark $(wg show %i fwmark) \
        -m addrtype ! --dst-type LOCAL -j REJECT\n";
    shared(|| {
        let (bed, _echoes) = machines();
        // An address beyond the tunnel.
        bed.server.ip("address add 10.8.0.2/32 dev lo");
        let far = SocketAddr::from(([10, 8, 0, 2], PORT));
        let _echo = EchoServer::start(bed.server.listen(far));
        let key = |host: &Host| host.run("wg", &["genkey"]).trim().to_owned();
        let keys = [key(&bed.gateway), key(&bed.server)];
        let public = |key: &String| {
            let script = format!("echo {key} | wg pubkey");
            bed.gateway.run("sh", &["-c", &script]).trim().to_owned()
        };
        let near = format!(
            "[Interface]\nPrivateKey = {}\nAddress = 10.9.0.1/24\n{KILL_SWITCH}",
            keys[0]
        );
        let peer = format!(
            "[Peer]\nPublicKey = {}\nEndpoint = 10.2.0.2:51820\nAllowedIPs = 0.0.0.0/0\n",
            public(&keys[1])
        );
        let hub = format!(
            "[Interface]\nPrivateKey = {}\nListenPort = 51820\nAddress = 10.9.0.2/24\n\
             [Peer]\nPublicKey = {}\nAllowedIPs = 10.9.0.1/32, 10.1.0.0/24\n",
            keys[1],
            public(&keys[0])
        );
        install(&["wg-quick", "wireguard-go", "iptables"]);
        let ends = [&bed.gateway, &bed.server].map(|host| Private::new(host, &["/etc/wireguard"]));
        ends[0].edit("wg0.conf", |_| format!("{near}{peer}"));
        ends[1].edit("wg0.conf", |_| hub);
        let _hub = up(&ends[1]);
        let mut tunnel = Some(up(&ends[0]));
        bed.gateway.sysctl("net.ipv4.ip_forward", "1");
        let case = Case {
            families: &[Family::V4],
            named: &["chain OUTPUT", "drops pepd's SYN-ACKs to hosts"],
            dial: &|_| Dial::to(far),
            ..EVERYWHERE
        };
        case.holds(&bed, || {
            down(&bed.gateway, tunnel.take());
            ends[0].edit("wg0.conf", |_| format!("{near}{}{peer}", only("wg-quick")));
            tunnel = Some(up(&ends[0]));
        });
    });
}

/// Runs the tunnel until it is dropped.
fn up(end: &Private<'_>) -> Process {
    let ready = end.directories[0].1.path().join("ready");
    let _ = fs::remove_file(&ready);
    let script = "wg-quick up wg0; touch /etc/wireguard/ready; exec sleep infinity";
    let words = end.words(script);
    let mut command = end.host.command("unshare");
    let process = Process::spawn(command.args(words)).expect("an installed program can be started");
    wait_until("the tunnel", || ready.exists());
    process
}

/// Takes down a killed tunnel: removes the rest like `wg-quick down`.
fn down(host: &Host, tunnel: Option<Process>) {
    drop(tunnel);
    wait_until("its device to go", || !host.ip("-o link").contains("wg0"));
    host.run("iptables", &["-F", "OUTPUT"]);
    for rule in [
        "not fwmark 51820 table 51820",
        "table main suppress_prefixlength 0",
    ] {
        host.ip(&format!("rule delete {rule}"));
    }
    host.run("nft", &["delete", "table", "ip", "wg-quick-wg0"]);
}

#[test]
fn fw4() {
    shared(|| {
        let (bed, _echoes) = machines();
        let (blocks, text) = recipe("OpenWrt (fw4)");
        let load = |includes: &[(&str, &str)]| {
            let mut rules = rule_sets::FW4.to_owned();
            for (hook, include) in includes {
                assert!(text.contains(&format!(
                    "`/usr/share/nftables.d/chain-pre/{hook}/pepd.nft`"
                )));
                let place = format!("# chain-pre/{hook}\n");
                assert!(rules.contains(&place));
                rules = rules.replace(&place, include);
            }
            bed.gateway.nft(&rules);
        };
        load(&[]);
        let case = Case {
            named: &[
                "inet fw4, chain input: a rule of chain handle_reject drops",
                "\"OpenWrt (fw4)\"",
            ],
            ..EVERYWHERE
        };
        case.holds(&bed, || {
            let hooks = ["input", "forward", "output"];
            let blocks = blocks.iter().map(String::as_str);
            load(&hooks.into_iter().zip(blocks).collect::<Vec<_>>());
        });
    });
}

#[test]
fn nftables() {
    shared(|| {
        let (bed, _echoes) = machines();
        bed.gateway.nft(rule_sets::NFTABLES);
        let case = Case {
            named: &[
                "inet filter, chain input: its policy drops hosts' SYNs",
                "nft insert rule inet filter input",
            ],
            ..EVERYWHERE
        };
        // Accepting rules in a separate table have no effect: another chain still drops.
        let own = rule_sets::NFTABLES
            .replace("filter {", "other {")
            .replace("policy drop", "policy accept");
        bed.gateway.nft(&own);
        bed.gateway
            .nft(&only("nftables").replace("inet filter", "inet other"));
        case.holds(&bed, || bed.gateway.nft(&only("nftables")));
    });
}

#[test]
fn iptables() {
    shared(|| {
        let (bed, _echoes) = machines();
        install(&["iptables"]);
        for program in ["iptables", "ip6tables"] {
            bed.gateway.run(
                "sh",
                &["-ec", &rule_sets::IPTABLES.replace("iptables", program)],
            );
        }
        let case = Case {
            named: &[
                "iptables filter, chain INPUT: its policy drops",
                "iptables -t filter -I INPUT -m mark",
            ],
            ..EVERYWHERE
        };
        case.holds(&bed, || {
            bed.gateway.run("sh", &["-ec", &only("iptables")]);
        });
    });
}

/// iptables with the kernel's older tables, which nft does not list.
#[test]
fn iptables_of_the_legacy_backend() {
    shared(|| {
        install(&["iptables"]);
        let (bed, _echoes) = machines();
        let legacy = |script: &str| {
            let script = script
                .replace("iptables", "iptables-legacy")
                .replace("ip6tables", "ip6tables-legacy");
            bed.gateway
                .run("sh", &["-ec", &script.replace("-legacy-legacy", "-legacy")]);
        };
        legacy(rule_sets::IPTABLES);
        let case = Case {
            families: &[Family::V4],
            named: &["iptables-legacy filter, chain INPUT: its policy drops"],
            ..EVERYWHERE
        };
        case.holds(&bed, || legacy(&only("iptables")));
    });
}

#[test]
fn docker() {
    shared(|| {
        let (bed, _echoes) = machines();
        install(&["iptables"]);
        for program in ["iptables", "ip6tables"] {
            bed.gateway.run(
                "sh",
                &["-ec", &rule_sets::DOCKER.replace("iptables", program)],
            );
        }
        let case = Case {
            fails: &[Path::Defer],
            named: &["chain FORWARD: its policy drops held SYNs", "\"Docker\""],
            ..EVERYWHERE
        };
        case.holds(&bed, || {
            let block = only("Docker");
            let commands = block
                .lines()
                .filter_map(|line| line.strip_prefix("ExecStartPost="));
            let commands: Vec<_> = commands.collect();
            assert_eq!(commands.len(), 2, "{block}");
            for command in commands {
                bed.gateway.run("sh", &["-ec", command]);
            }
        });
    });
}

#[test]
fn tailscale() {
    shared(|| {
        let (bed, _echoes) = machines();
        // Hosts of the tailnet, to which the servers' network has no route.
        bed.gateway.ip("link set lan0 down");
        bed.gateway.ip("link set lan0 name tailscale0");
        bed.gateway.ip("link set tailscale0 up");
        bed.gateway.ip("address add 100.64.0.1/10 dev tailscale0");
        bed.client.ip("address add 100.64.0.2/10 dev eth0");
        bed.client
            .ip("route replace default via 100.64.0.1 src 100.64.0.2");
        bed.server.ip("route add blackhole 100.64.0.0/10");
        bed.gateway.run("sh", &["-ec", rule_sets::TAILSCALE]);
        let case = Case {
            lan: "tailscale0",
            families: &[Family::V4],
            fails: &PATHS,
            ..EVERYWHERE
        };
        case.holds(&bed, || {
            // Rules that `nodivert` removes.
            bed.gateway
                .run("sh", &["-ec", rule_sets::TAILSCALE_DIVERTS_NO_MORE]);
            bed.gateway.run("sh", &["-ec", &only("Tailscale")]);
        });
    });
}

#[test]
fn mwan3() {
    shared(|| {
        let (bed, _echoes) = machines();
        bed.server.ip("address add 10.8.0.2/32 dev lo");
        let far = SocketAddr::from(([10, 8, 0, 2], PORT));
        let _echo = EchoServer::start(bed.server.listen(far));
        // The other WAN, with the default route, forwards no answers.
        let other = Host::new();
        join(&bed.gateway, "wan1", &other, "eth0");
        bed::add_addresses(&bed.gateway, "wan1", Family::V4, &[(6, 1)]);
        bed::add_addresses(&other, "eth0", Family::V4, &[(6, 2)]);
        bed.gateway.ip("route add default via 10.6.0.2 dev wan1");
        bed.gateway.run("sh", &["-ec", rule_sets::MWAN3]);
        bed.gateway.run("sh", &["-ec", rule_sets::MWAN3_ROUTES]);
        let case = Case {
            families: &[Family::V4],
            fails: &[],
            dial: &|_| Dial::to(far),
            ..EVERYWHERE
        };
        // Server legs carry the marks: no change is needed.
        case.holds(&bed, || ());
    });
}

/// A link with an MTU below its interface's, which drops silently.
#[test]
fn a_clamped_mss() {
    const CLAMP: &str =
        "table inet clamp { chain forward { type filter hook forward priority mangle
        tcp flags syn tcp option maxseg size set 1360
 }
 }";
    const NARROW: &str =
        "table inet narrow { chain prerouting { type filter hook prerouting priority raw
        meta length > 1400 drop
 }
 }";
    shared(|| {
        let (bed, _echoes) = machines();
        bed.server.ip("address add 10.8.0.2/32 dev lo");
        bed.gateway.ip("route add default via 10.2.0.2 dev wan0");
        // Merged packets of a virtual cable are longer than those on a link.
        for (host, interface) in [
            (&bed.server, "eth0"),
            (&bed.gateway, "wan0"),
            (&bed.gateway, "lan0"),
            (&bed.client, "eth0"),
        ] {
            let offloads = ["-K", interface, "tso", "off", "gso", "off", "gro", "off"];
            host.run("ethtool", &offloads);
        }
        bed.server.nft(NARROW);
        bed.gateway.nft(CLAMP);
        let far = SocketAddr::from(([10, 8, 0, 2], PORT));
        let _echo = EchoServer::start(bed.server.listen(far));
        let arrives = || {
            let mut stream = bed.client.dial(&Dial::to(far)).expect("small packets pass");
            stream.set_read_timeout(Some(SOON)).expect("a socket");
            let mut answer = [0; 5000];
            stream.write_all(&[7; 5000]).expect("connected");
            stream.read_exact(&mut answer).is_ok()
        };
        assert!(arrives(), "without pepd the clamp does its work");
        let mut pep = EVERYWHERE.start(&bed, Path::Spoof);
        pep.log()
            .expect("clamps the MSS of hosts' SYNs over the link to 1360 bytes");
        assert!(arrives(), "pepd's own connections have the MSS of the rule");
        let found = findings(&bed, &pep, "MSS clamp", "ok");
        assert!(found.contains("to 1360 bytes"), "{found}");
        bed.gateway
            .run("nft", &["delete", "table", "inet", "clamp"]);
        pep.log()
            .expect("no program clamps the MSS of hosts' SYNs any more");
        assert!(!arrives(), "without the rule, as without pepd");
        bed.gateway.run("sh", &["-ec", &only("A clamped MSS")]);
        assert!(arrives(), "with the recipe");
        pep.terminate_at_once();
    });
}
