//! Running `nft`.

use std::{
    io,
    process::{Output, Stdio},
    time::Duration,
};

use serde_json::Value;
use tokio::{
    io::AsyncWriteExt,
    process::{Child, Command},
    time::timeout,
};

/// Where `nft` may be when it is not on the path (`PATH` often lacks the sbin directories).
const PLACES: [&str; 3] = ["nft", "/usr/sbin/nft", "/sbin/nft"];

/// nft takes some milliseconds, and seconds where others change large tables; the daemon waits for
/// it, but not forever for one that hangs.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why nft did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum NftError {
    /// Install nftables.
    #[error(
        "there is no `nft` command: install the package nftables (Debian: apt install nftables)"
    )]
    Missing,
    /// The machine is out of processes, memory or descriptors.
    #[error("cannot run nft")]
    Run(#[source] io::Error),
    /// nft, or the kernel behind it, hangs; it was killed.
    #[error("nft did not end within {} s and was killed; does `nft list tables` end?", .0.as_secs())]
    Hangs(Duration),
    /// nft, or the kernel behind it, refused.
    #[error("nft refused: {0}")]
    Refused(String),
    /// nft answered something else than its documentation says.
    #[error("cannot read nft's answer: {0}")]
    Answer(String),
}

/// The `nft` command.
#[derive(Debug, Clone)]
pub struct Nft {
    path: &'static str,
}

impl Nft {
    /// Looks for nft.
    ///
    /// # Errors
    /// [`NftError::Missing`] when it is nowhere.
    pub async fn find() -> Result<Self, NftError> {
        for path in PLACES {
            match run(path, &["--version"], None).await {
                Err(NftError::Missing) => {}
                Err(err) => return Err(err),
                Ok(_) => return Ok(Self { path }),
            }
        }
        Err(NftError::Missing)
    }

    /// Carries out a transaction: all of it, or nothing.
    ///
    /// # Errors
    /// When nft cannot be run or refuses.
    pub async fn apply(&self, transaction: &Value) -> Result<(), NftError> {
        run(self.path, &["-j", "-f", "-"], Some(transaction)).await?;
        Ok(())
    }

    /// Whether nft and the kernel would take the transaction; nothing is changed.
    ///
    /// # Errors
    /// When nft cannot be run.
    pub async fn check(&self, transaction: &Value) -> Result<bool, NftError> {
        match run(self.path, &["-j", "-c", "-f", "-"], Some(transaction)).await {
            Ok(_) => Ok(true),
            Err(NftError::Refused(_)) => Ok(false),
            Err(err) => Err(err),
        }
    }

    /// What there is, as JSON: of a table without the elements of its sets, such as `["table", "inet", "pepd"]`.
    ///
    /// # Errors
    /// When nft cannot be run, there is no such thing or the answer makes no sense.
    pub async fn list(&self, what: &[&str]) -> Result<Value, NftError> {
        let is_table = what.first() == Some(&"table");
        let mut args = vec!["-j"];
        args.extend(is_table.then_some("-t"));
        args.push("list");
        args.extend(what);
        let text = run(self.path, &args, None).await?;
        serde_json::from_str(&text).map_err(|err| NftError::Answer(err.to_string()))
    }

    /// Packets that a named counter of a table has seen.
    ///
    /// # Errors
    /// When nft cannot be run, there is no such counter or the answer makes no sense.
    pub async fn counter(&self, table: &str, counter: &str) -> Result<u64, NftError> {
        let args = ["-j", "list", "counter", "inet", table, counter];
        let text = run(self.path, &args, None).await?;
        packets(&text).ok_or(NftError::Answer(text))
    }
}

fn packets(text: &str) -> Option<u64> {
    let answer: Value = serde_json::from_str(text).ok()?;
    let objects = answer.get("nftables")?.as_array()?;
    let counter = objects.iter().find_map(|object| object.get("counter"))?;
    counter.get("packets")?.as_u64()
}

async fn run(path: &str, args: &[&str], input: Option<&Value>) -> Result<String, NftError> {
    let child = spawn(path, args)?;
    let output = output(child, input, PATIENCE).await?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(NftError::Refused(complaint(&output.stderr)))
    }
}

fn spawn(path: &str, args: &[&str]) -> Result<Child, NftError> {
    Command::new(path)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(spawn_error)
}

/// What the child says until it ends. One that takes longer than `limit` is killed (when dropped).
async fn output(
    mut child: Child,
    input: Option<&Value>,
    limit: Duration,
) -> Result<Output, NftError> {
    let ended = async {
        let mut stdin = child.stdin.take().expect("piped");
        if let Some(input) = input {
            // An nft that stops reading has something to say on its standard error.
            let _ = stdin.write_all(input.to_string().as_bytes()).await;
        }
        drop(stdin);
        child.wait_with_output().await
    };
    match timeout(limit, ended).await {
        Ok(output) => output.map_err(NftError::Run),
        Err(_elapsed) => Err(NftError::Hangs(limit)),
    }
}

fn spawn_error(err: io::Error) -> NftError {
    if err.kind() == io::ErrorKind::NotFound {
        NftError::Missing
    } else {
        NftError::Run(err)
    }
}

/// The first lines of what nft says; for a JSON transaction it repeats all of it after that.
fn complaint(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let lines = text.lines().filter(|line| line.contains("rror"));
    let lines: Vec<&str> = lines.take(3).map(str::trim).collect();
    let message = if lines.is_empty() {
        text.trim().to_owned()
    } else {
        lines.join("; ")
    };
    message.chars().take(400).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counter_is_read_from_a_listing() {
        let text = r#"{"nftables": [{"metainfo": {"json_schema_version": 1}},
            {"counter": {"family": "inet", "name": "passed", "table": "pepd", "handle": 7,
             "packets": 42, "bytes": 2520}}]}"#;
        assert_eq!(packets(text), Some(42));
        assert_eq!(packets("{}"), None);
        assert_eq!(packets("nonsense"), None);
    }

    #[tokio::test]
    async fn one_that_hangs_is_killed() {
        let child = spawn("sleep", &["1000"]).unwrap();
        let stat = format!("/proc/{}/stat", child.id().unwrap());
        let limit = Duration::from_millis(20);
        let answer = timeout(PATIENCE, output(child, None, limit)).await;
        assert!(matches!(answer, Ok(Err(NftError::Hangs(_)))), "{answer:?}");
        let gone = async {
            // A zombie waits to be reaped.
            while std::fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z ")) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(PATIENCE, gone).await.expect("it was killed");
    }

    #[test]
    fn complaint_is_short() {
        let stderr = b"internal:0:0-0: Error: Could not process rule: No such file or directory\n\n{\"nftables\": ...";
        assert_eq!(
            complaint(stderr),
            "internal:0:0-0: Error: Could not process rule: No such file or directory"
        );
        assert_eq!(complaint(&vec![b'x'; 5000]).len(), 400);
    }
}
