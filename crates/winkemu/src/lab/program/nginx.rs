//! nginx with a configuration of its own, for downloads and for uploads by `PUT`.

use std::{
    fs,
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use super::{Lines, ProgramError, READY_TIMEOUT, error::write_file, wait_until};
use crate::{lab::Node, netns::Process};

/// Configuration: one process as root of its user namespace, no files outside its directory, no
/// caching of earlier content. The workload's time limit ends a transfer: over a link that winks,
/// TCP may be silent for longer than nginx's minute.
const CONFIG: &str = "\
daemon off;
master_process off;
user root;
pid nginx.pid;
error_log stderr warn;
events { worker_connections 512; }
http {
    access_log off;
    default_type application/octet-stream;
    client_max_body_size 0;
    client_body_timeout 1d; send_timeout 1d;
    client_body_temp_path upload;
    proxy_temp_path tmp; fastcgi_temp_path tmp; uwsgi_temp_path tmp; scgi_temp_path tmp;
    sendfile on;
    tcp_nopush on;
    server {
        listen 80 reuseport;
        listen [::]:80 reuseport;
        root files;
        SLOTS
    }
}
";
/// Place of one transfer, whose unfinished upload is in a directory of its own.
const SLOT: &str = "location /SLOT/ { client_body_temp_path upload/SLOT; dav_methods PUT; }\n";

/// Running nginx that listens on port 80 of its node.
#[derive(Debug)]
pub struct Nginx {
    process: Process,
    log: Lines,
    directory: PathBuf,
}

impl Nginx {
    /// Starts nginx on a node, with its files in an existing directory of its own. Transfers of
    /// curl each have a slot, 0 to `slots` - 1.
    ///
    /// # Errors
    /// [`ProgramError::NotInstalled`], or the end of its output if it does not listen in time.
    pub fn start(node: &Node, directory: &Path, slots: usize) -> Result<Self, ProgramError> {
        let mut locations = String::new();
        let mut paths = vec![directory.join("upload"), directory.join("tmp")];
        for slot in 0..slots {
            locations += &SLOT.replace("SLOT", &slot.to_string());
            paths.push(directory.join(format!("files/{slot}")));
        }
        for path in paths {
            fs::create_dir_all(&path).map_err(|source| ProgramError::File { path, source })?;
        }
        let config = CONFIG.replace("SLOTS", &locations);
        write_file(directory.join("nginx.conf"), &config)?;
        let mut command = node.netns().command("nginx");
        command
            .arg("-p")
            .arg(directory)
            .args(["-c", "nginx.conf", "-e", "stderr"]);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let process = Process::spawn(&mut command);
        let mut process = process.map_err(|err| ProgramError::start("nginx", "nginx", err))?;
        let log = Lines::collect(process.pipes().stderr.take().expect("piped above"));
        let mut nginx = Self {
            process,
            log,
            directory: directory.to_owned(),
        };
        nginx.wait_ready(node)?;
        Ok(nginx)
    }

    fn wait_ready(&mut self, node: &Node) -> Result<(), ProgramError> {
        let address = SocketAddr::new(node.ipv4().into(), 80);
        let mut ended = None;
        let probe = || {
            ended = self.process.wait(Duration::ZERO).ok().flatten();
            ended.is_some() || TcpStream::connect_timeout(&address, READY_TIMEOUT).is_ok()
        };
        let ready = node.netns().enter(|| wait_until(READY_TIMEOUT, probe))?;
        let program = "nginx".to_owned();
        match ended {
            Some(status) => {
                self.log.wait_end(READY_TIMEOUT);
                Err(ProgramError::Ended {
                    program,
                    status,
                    log: self.log.tail(5),
                })
            }
            None if ready => Ok(()),
            None => Err(ProgramError::Timeout {
                program,
                what: "listen",
                after: READY_TIMEOUT,
            }),
        }
    }

    /// Creates a file of `bytes` to serve under this name.
    ///
    /// # Errors
    /// [`ProgramError::File`] on a full disk.
    pub fn add_file(&self, name: &str, bytes: u64) -> Result<PathBuf, ProgramError> {
        make_file(self.directory.join("files").join(name), bytes)
    }

    /// Size of a file; `None` if there is none.
    pub fn file_size(&self, name: &str) -> Option<u64> {
        size(&self.directory.join("files").join(name))
    }

    /// Bytes of the unfinished upload in a slot that nginx has written; `None` without one.
    pub(super) fn unfinished(&self, slot: usize) -> Option<u64> {
        let place = self.directory.join(format!("upload/{slot}"));
        let files = fs::read_dir(place).ok()?.flatten();
        files.filter_map(|file| size(&file.path())).max()
    }
}

/// Size of a file; `None` if there is none.
pub(super) fn size(path: &Path) -> Option<u64> {
    fs::metadata(path).ok().map(|metadata| metadata.len())
}

/// Creates a sparse file. Its content is zeros; nothing on the path compresses it.
pub(super) fn make_file(path: PathBuf, bytes: u64) -> Result<PathBuf, ProgramError> {
    let made = fs::File::create(&path).and_then(|file| file.set_len(bytes));
    match made {
        Ok(()) => Ok(path),
        Err(source) => Err(ProgramError::File { path, source }),
    }
}
