//! Real servers and clients.

use std::{
    fs,
    io::Read as _,
    os::unix::fs::{PermissionsExt as _, chown},
    path::{Path, PathBuf},
};

use pepd_tests::{
    bed::{Bed, Family, Place},
    host::Host,
    matrix::{matrix, matrix_in_turn},
    payload::{Payload, Sum, receive},
    pep::Pep,
    programs::{Daemon, program, url_host},
};
use tempfile::TempDir;

/// A directory for a server and its client.
pub struct Files(TempDir);

impl Files {
    pub fn new() -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        // Servers drop their privileges.
        let open = fs::Permissions::from_mode(0o755);
        fs::set_permissions(directory.path(), open).expect("the directory is writable");
        Self(directory)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn text(&self, name: &str) -> String {
        let path = self.path(name);
        path.to_str()
            .expect("a path that can be printed")
            .to_owned()
    }

    pub fn directory(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(&path).expect("a temporary directory can be made");
        path
    }

    pub fn write(&self, name: &str, content: &str) {
        fs::write(self.path(name), content).expect("a temporary file can be written");
    }

    /// Writes a file of random bytes; returns its checksum.
    pub fn random(&self, name: &str, seed: u64, len: u64) -> Sum {
        let mut file = fs::File::create(self.path(name)).expect("a temporary file can be made");
        let mut payload = Payload::new(seed, len);
        payload
            .send(&mut file)
            .expect("a temporary file can be written");
        Payload::new(seed, len).sum()
    }
}

pub fn sum_of_file(path: &Path) -> Sum {
    let mut file = fs::File::open(path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    receive(&mut file).expect("a file can be read").1
}

fn server_host(bed: &Bed) -> String {
    url_host(bed.at(Place::Server, 0))
}

/// Checks at the end that the flows went through pepd, that all closed in order, and that nothing
/// was logged.
fn finish(pep: Option<Pep>, flows_at_least: u64) {
    let Some(mut pep) = pep else { return };
    pep.wait_idle();
    let accepted = pep.counter("flows_accepted");
    assert!(
        accepted >= flows_at_least,
        "only {accepted} flows were accelerated"
    );
    pep.assert_healthy();
    pep.stop();
}

/// Starts a web server with this directory's `root`.
pub fn nginx(host: &Host, files: &Files) -> Daemon {
    let (root, base) = (files.text("root"), files.text(""));
    let config = format!(
        "daemon off; master_process off; user root; pid {base}/nginx.pid; error_log stderr warn;
        events {{ worker_connections 4096; }}
        http {{
            access_log off;
            client_body_temp_path {base}/body;
            client_max_body_size 0;
            # Outages in tests are longer than its default of a minute.
            send_timeout 10m; client_body_timeout 10m; client_header_timeout 10m;
            proxy_temp_path {base}/proxy; fastcgi_temp_path {base}/fastcgi;
            uwsgi_temp_path {base}/uwsgi; scgi_temp_path {base}/scgi;
            server {{
                listen 80; listen [::]:80;
                root {root};
                dav_methods PUT;
            }}
        }}"
    );
    files.write("nginx.conf", &config);
    let (conf, log) = (files.text("nginx.conf"), files.path("nginx.log"));
    Daemon::start(host, "nginx", 80, &log, &["-p", &base, "-c", &conf])
}

const CURL: [&str; 6] = [
    "--silent",
    "--show-error",
    "--fail",
    "--globoff",
    "--max-time",
    "60",
];

fn curl(bed: &Bed, arguments: &[&str]) -> String {
    let all = [&CURL, arguments].concat();
    bed.client.run(&program("curl"), &all)
}

#[test]
fn curl_and_nginx_get_and_put() {
    const SIZES: [u64; 4] = [0, 1, 100_000, 20_000_000];
    matrix(|bed| {
        let files = Files::new();
        files.directory("root");
        let _nginx = nginx(&bed.server, &files);
        let pep = bed.start();
        let host = server_host(bed);
        for len in SIZES {
            let sum = files.random(&format!("root/{len}"), len + 1, len);
            let (url, got) = (format!("http://{host}/{len}"), files.text("got"));
            curl(bed, &["--output", &got, &url]);
            assert_eq!(sum_of_file(Path::new(&got)), sum, "GET of {len} bytes");
            let put = format!("http://{host}/put-{len}");
            curl(bed, &["--upload-file", &got, &put]);
            let stored = files.path(&format!("root/put-{len}"));
            assert_eq!(sum_of_file(&stored), sum, "PUT of {len} bytes");
        }
        finish(pep, 8);
    });
}

/// Many objects over few connections that are kept open, as in browsers.
#[test]
fn curl_fetches_a_page_of_many_objects() {
    const OBJECTS: u64 = 60;
    matrix(|bed| {
        let files = Files::new();
        files.directory("root");
        let got = files.directory("got");
        let sums: Vec<_> = (0..OBJECTS)
            .map(|number| files.random(&format!("root/{number}"), number, number * 3000))
            .collect();
        let _nginx = nginx(&bed.server, &files);
        let pep = bed.start();
        let url = format!("http://{}/[0-{}]", server_host(bed), OBJECTS - 1);
        let output = format!("{}/#1", got.display());
        let globbing = [
            "--silent",
            "--show-error",
            "--fail",
            "--parallel",
            "--parallel-max",
            "6",
        ];
        // Brackets in the URL are a range here, so an IPv6 address needs a name.
        let name = format!("server:80:{}", Place::Server.address(bed.family));
        let url = url.replace(&server_host(bed), "server");
        let arguments = [
            &globbing[..],
            &["--resolve", &name, "--output", &output, &url],
        ]
        .concat();
        bed.client.run(&program("curl"), &arguments);
        for (number, sum) in (0..).zip(sums) {
            let path = got.join(number.to_string());
            assert_eq!(sum_of_file(&path), sum, "object {number}");
            let _: u64 = number;
        }
        finish(pep, 1);
    });
}

#[test]
fn git_clones_over_http() {
    matrix(|bed| {
        let files = Files::new();
        files.directory("root");
        let head = repository(bed, &files);
        let _nginx = nginx(&bed.server, &files);
        let pep = bed.start();
        let url = format!("http://{}/repository.git", server_host(bed));
        let clone = files.text("clone");
        git(bed, &["clone", "--quiet", &url, &clone]);
        assert_eq!(git(bed, &["-C", &clone, "rev-parse", "HEAD"]), head);
        git(bed, &["-C", &clone, "fsck", "--strict"]);
        finish(pep, 1);
    });
}

fn git(bed: &Bed, arguments: &[&str]) -> String {
    // Git settings of the user who runs the tests do not apply.
    let neutral = [
        "GIT_CONFIG_GLOBAL=/dev/null",
        "GIT_CONFIG_SYSTEM=/dev/null",
        "GIT_TERMINAL_PROMPT=0",
    ];
    let git = program("git");
    let identity = ["-c", "user.name=test", "-c", "user.email=test@example.com"];
    let all = [&neutral[..], &[&git], &identity, arguments].concat();
    bed.client.run("env", &all)
}

/// Creates a repository of a few commits and some megabytes; returns the commit at its head.
fn repository(bed: &Bed, files: &Files) -> String {
    let work = files.text("work");
    git(bed, &["init", "--quiet", &work]);
    for number in 0..5 {
        for file in 0..20 {
            let seed = number * 100 + file;
            files.random(&format!("work/{file}"), seed, 20_000 + 1000 * file);
        }
        git(bed, &["-C", &work, "add", "."]);
        let message = format!("change {number}");
        git(
            bed,
            &["-C", &work, "commit", "--quiet", "--message", &message],
        );
    }
    let bare = files.text("root/repository.git");
    git(bed, &["clone", "--quiet", "--bare", &work, &bare]);
    git(bed, &["-C", &bare, "update-server-info"]);
    git(bed, &["-C", &work, "rev-parse", "HEAD"])
}

/// Starts an ssh server for root with a separate key.
fn sshd(bed: &Bed, files: &Files) -> Daemon {
    for key in ["host_key", "client_key"] {
        let path = files.text(key);
        let arguments = ["-q", "-t", "ed25519", "-N", "", "-f", &path];
        bed.server.run(&program("ssh-keygen"), &arguments);
    }
    // The directory for privilege separation, which the package creates at boot.
    fs::create_dir_all("/run/sshd").expect("root may make it");
    let config = format!(
        "Port 2222\nHostKey {}\nAuthorizedKeysFile {}\nPidFile none\nUsePAM no\nStrictModes no\n\
         PermitRootLogin yes\nSubsystem sftp internal-sftp\n",
        files.text("host_key"),
        files.text("client_key.pub"),
    );
    files.write("sshd_config", &config);
    let (conf, log) = (files.text("sshd_config"), files.path("sshd.log"));
    Daemon::start(&bed.server, "sshd", 2222, &log, &["-D", "-e", "-f", &conf])
}

fn ssh_options(files: &Files) -> Vec<String> {
    let key = files.text("client_key");
    let options = format!(
        "-q -F none -i {key} -o BatchMode=yes -o IdentitiesOnly=yes -o StrictHostKeyChecking=no \
         -o UserKnownHostsFile=/dev/null"
    );
    options.split_whitespace().map(str::to_owned).collect()
}

fn ssh_program(bed: &Bed, files: &Files, name: &str, arguments: &[&str]) -> String {
    let options = ssh_options(files);
    let options: Vec<_> = options.iter().map(String::as_str).collect();
    bed.client
        .run(&program(name), &[&options, arguments].concat())
}

#[test]
fn ssh_runs_commands_and_scp_copies_a_hundred_megabytes() {
    matrix_in_turn(|bed| {
        let files = Files::new();
        let _sshd = sshd(bed, &files);
        let pep = bed.start();
        let host = server_host(bed);
        let login = format!("root@{}", Place::Server.address(bed.family));
        let command = ["-p", "2222", &login, "echo from the other side"];
        assert_eq!(
            ssh_program(bed, &files, "ssh", &command),
            "from the other side\n"
        );
        let sum = files.random("original", 5, 100_000_000);
        let (original, copy) = (files.text("original"), files.text("copy"));
        let there = format!("root@{host}:{copy}");
        ssh_program(bed, &files, "scp", &["-P", "2222", &original, &there]);
        assert_eq!(sum_of_file(Path::new(&copy)), sum, "copied there");
        let back = files.text("back");
        ssh_program(bed, &files, "scp", &["-P", "2222", &there, &back]);
        assert_eq!(sum_of_file(Path::new(&back)), sum, "copied back");
        finish(pep, 3);
    });
}

/// Keys typed one by one are echoed one by one.
#[test]
fn ssh_carries_a_dialogue() {
    use std::{io::Write as _, process::Stdio};
    matrix(|bed| {
        let files = Files::new();
        let _sshd = sshd(bed, &files);
        let pep = bed.start();
        let login = format!("root@{}", Place::Server.address(bed.family));
        let mut command = bed.client.command(&program("ssh"));
        command
            .args(ssh_options(&files))
            .args(["-p", "2222", &login, "cat"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut ssh = winkemu::netns::Process::spawn(&mut command).expect("ssh can be started");
        let pipes = ssh.pipes();
        let mut keys = pipes.stdin.take().expect("a pipe was asked for");
        let mut screen = pipes.stdout.take().expect("a pipe was asked for");
        for key in b"a dialogue, key by key" {
            keys.write_all(&[*key]).expect("ssh runs");
            let mut shown = [0];
            screen.read_exact(&mut shown).expect("cat answers");
            assert_eq!(shown[0], *key);
        }
        drop(keys);
        let status = ssh
            .wait(pepd_tests::wait::PATIENCE)
            .expect("a child of this process");
        assert!(status.is_some_and(|status| status.success()), "{status:?}");
        finish(pep, 1);
    });
}

#[test]
fn a_redis_session() {
    matrix(|bed| {
        let files = Files::new();
        let address = Place::Server.address(bed.family).to_string();
        let base = files.text("");
        let arguments = [
            "--bind",
            &address,
            "--port",
            "6379",
            "--protected-mode",
            "no",
        ];
        let storage = ["--save", "", "--appendonly", "no", "--dir", &base];
        let all = [&arguments[..], &storage].concat();
        let log = files.path("redis.log");
        let _redis = Daemon::start(&bed.server, "redis-server", 6379, &log, &all);
        let pep = bed.start();
        let cli = |words: &[&str]| {
            let all = [&["-h", &address, "--raw"], words].concat();
            bed.client.run(&program("redis-cli"), &all)
        };
        assert_eq!(cli(&["PING"]), "PONG\n");
        let large = "x".repeat(100_000);
        assert_eq!(cli(&["SET", "large", &large]), "OK\n");
        assert_eq!(cli(&["GET", "large"]).trim_end(), large);
        // One connection, five hundred requests that each wait for their answer.
        assert_eq!(cli(&["-r", "500", "INCR", "count"]).lines().count(), 500);
        assert_eq!(cli(&["GET", "count"]), "500\n");
        finish(pep, 5);
    });
}

/// Starts an ftp server for anonymous users, who may also write into `upload`.
fn vsftpd(bed: &Bed, files: &Files) -> Daemon {
    let root = files.directory("ftp");
    let upload = files.directory("ftp/upload");
    fs::set_permissions(&upload, fs::Permissions::from_mode(0o777))
        .expect("the directory is writable");
    // An anonymous user's root must not be writable, nor belong to that user.
    chown(&root, Some(0), Some(0)).expect("root may");
    let empty = files.directory("empty");
    let listen = match bed.family {
        Family::V4 => "listen=YES\nlisten_ipv6=NO",
        Family::V6 => "listen=NO\nlisten_ipv6=YES",
    };
    let config = format!(
        "{listen}\nbackground=NO\nanonymous_enable=YES\nno_anon_password=YES\nlocal_enable=NO\n\
         anon_root={}\nwrite_enable=YES\nanon_upload_enable=YES\nanon_umask=022\n\
         secure_chroot_dir={}\npasv_enable=YES\npasv_min_port=50000\npasv_max_port=50100\n\
         port_enable=NO\nxferlog_enable=NO\n",
        root.display(),
        empty.display(),
    );
    files.write("vsftpd.conf", &config);
    let (conf, log) = (files.text("vsftpd.conf"), files.path("vsftpd.log"));
    Daemon::start(&bed.server, "vsftpd", 21, &log, &[&conf])
}

#[test]
fn ftp_in_passive_mode() {
    matrix(|bed| {
        let files = Files::new();
        let _vsftpd = vsftpd(bed, &files);
        let sum = files.random("ftp/file", 8, 5_000_000);
        let pep = bed.start();
        let host = server_host(bed);
        let (url, got) = (format!("ftp://{host}/file"), files.text("got"));
        // PASV returns an address, of IPv4 only; EPSV only a port.
        let modes = match bed.family {
            Family::V4 => &["--ftp-pasv", "--disable-epsv"][..],
            Family::V6 => &["--ftp-pasv"],
        };
        for mode in modes {
            curl(bed, &[mode, "--output", &got, &url]);
            assert_eq!(sum_of_file(Path::new(&got)), sum, "{mode}");
        }
        let there = format!("ftp://{host}/upload/copy");
        curl(bed, &["--upload-file", &got, &there]);
        assert_eq!(sum_of_file(&files.path("ftp/upload/copy")), sum);
        finish(pep, 4);
    });
}

#[test]
fn iperf3_in_both_directions() {
    matrix(|bed| {
        let files = Files::new();
        let log = files.path("iperf3.log");
        let _iperf3 = Daemon::start(&bed.server, "iperf3", 5201, &log, &["-s"]);
        let pep = bed.start();
        for more in [&[][..], &["--reverse"], &["--parallel", "4"]] {
            let before = delivered(pep.as_ref());
            let [sent, received] = iperf3(bed, more);
            // The run ends when the client has counted enough, wherever the rest is.
            let up = !more.contains(&"--reverse");
            let counted = if up { sent } else { received };
            assert!(counted >= IPERF3_BYTES, "{more:?}: {counted} bytes");
            assert!((1..=sent).contains(&received), "{more:?}: {received}");
            if pep.is_none() {
                continue;
            }
            let direction = usize::from(!up);
            let carried = delivered(pep.as_ref())[direction] - before[direction];
            let possible = received..=sent + IPERF3_CONTROL_BYTES;
            assert!(possible.contains(&carried), "{more:?}: {carried}");
        }
        finish(pep, 9);
    });
}

const IPERF3_BYTES: u64 = 30_000_000;

/// More than iperf3's control connection carries in a run.
const IPERF3_CONTROL_BYTES: u64 = 100_000;

/// Returns bytes sent and received, each counted at that end.
fn iperf3(bed: &Bed, more: &[&str]) -> [u64; 2] {
    let address = Place::Server.address(bed.family).to_string();
    let bytes = IPERF3_BYTES.to_string();
    let arguments = ["--client", &address, "--json", "--bytes", &bytes];
    let all = [&arguments[..], more].concat();
    let report = bed.client.run(&program("iperf3"), &all);
    let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
    ["sum_sent", "sum_received"].map(|sum| {
        let bytes = &report["end"][sum]["bytes"];
        bytes.as_u64().expect("a number of bytes")
    })
}

/// Returns bytes up and down of all flows so far, once they have ended.
fn delivered(pep: Option<&Pep>) -> [u64; 2] {
    let Some(pep) = pep else { return [0; 2] };
    pep.wait_idle();
    let ends = pep.flow_ends();
    [
        ends.iter().map(|end| end.up_bytes).sum(),
        ends.iter().map(|end| end.down_bytes).sum(),
    ]
}
