//! A page in a headless browser: Chromium, controlled by the DevTools protocol
//! (<https://chromedevtools.github.io/devtools-protocol>) over two pipes.

use std::{
    fs::File,
    io::{BufRead as _, BufReader, Write as _},
    process::{ChildStdin, Stdio},
    sync::mpsc::{Receiver, channel},
    thread,
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};
use tempfile::TempDir;
use winkemu::netns::Process;

use crate::{
    host::Host,
    programs::program,
    wait::{PATIENCE, wait_within},
};

/// Options: no sandbox, as tests run as root; no background network traffic.
const OPTIONS: [&str; 13] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-breakpad",
    "--disable-component-update",
    "--disable-extensions",
    "--disable-sync",
    "--hide-scrollbars",
    "--no-first-run",
    "--remote-debugging-pipe",
    "about:blank",
];
/// The time for the browser to end by itself.
const GRACE: Duration = Duration::from_secs(5);

/// A page; dropping it ends the browser.
pub struct Page {
    process: Process,
    orders: ChildStdin,
    received: Receiver<Value>,
    last: u64,
    session: Option<String>,
    problems: Vec<String>,
    requests: Vec<String>,
    _directory: TempDir,
}

impl Page {
    /// Starts a browser on this machine and opens the address, in a window of this size.
    ///
    /// # Panics
    /// When the browser is not installed, or does not start.
    pub fn open(host: &Host, address: &str, (width, height): (u32, u32)) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        // Chromium reads commands from descriptor 3, and answers on 4.
        let mut command = host.command("sh");
        command.args(["-c", "exec \"$@\" 3<&0 4>&1 </dev/null >/dev/null", "sh"]);
        command.arg(program("chromium")).args(OPTIONS);
        command.arg(format!("--user-data-dir={}", directory.path().display()));
        let errors = File::create(directory.path().join("errors")).expect("a new file");
        command.env("HOME", directory.path()).stderr(errors);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Process::spawn(&mut command).expect("a shell");
        let child = process.pipes();
        let orders = child.stdin.take().expect("a pipe was asked for");
        let answers = child.stdout.take().expect("a pipe was asked for");
        let (tell, received) = channel();
        thread::spawn(move || {
            let mut parts = BufReader::new(answers).split(0).map_while(Result::ok);
            parts
                .all(|part| serde_json::from_slice(&part).is_ok_and(|part| tell.send(part).is_ok()))
        });
        let mut page = Self {
            process,
            orders,
            received,
            last: 0,
            session: None,
            problems: Vec::new(),
            requests: Vec::new(),
            _directory: directory,
        };
        let target = page.call("Target.createTarget", &json!({"url": "about:blank"}));
        let target = json!({"targetId": target["targetId"], "flatten": true});
        let session = page.call("Target.attachToTarget", &target);
        page.session = session["sessionId"].as_str().map(ToOwned::to_owned);
        for domain in ["Runtime", "Log", "Network", "Page"] {
            page.call(&format!("{domain}.enable"), &json!({}));
        }
        page.resize(width, height);
        page.call("Page.navigate", &json!({ "url": address }));
        page
    }

    /// Sends a command and returns its result.
    fn call(&mut self, method: &str, params: &Value) -> Value {
        self.last += 1;
        let mut order = json!({"id": self.last, "method": method, "params": params});
        if let Some(session) = &self.session {
            order["sessionId"] = session.as_str().into();
        }
        let sent = write!(self.orders, "{order}\0").and_then(|()| self.orders.flush());
        sent.expect("the browser runs");
        loop {
            let received = self.received.recv_timeout(PATIENCE);
            let mut received =
                received.unwrap_or_else(|err| panic!("no answer to {method}: {err}"));
            if received["id"] == self.last {
                assert!(received["error"].is_null(), "{method}: {received}");
                return received["result"].take();
            }
            self.note(&received);
        }
    }

    fn note(&mut self, event: &Value) {
        let params = &event["params"];
        match event["method"].as_str() {
            Some("Runtime.exceptionThrown" | "Runtime.consoleAPICalled" | "Log.entryAdded") => {
                self.problems.push(params.to_string());
            }
            Some("Network.requestWillBeSent") => {
                let address = params["request"]["url"].as_str();
                self.requests.push(address.unwrap_or_default().to_owned());
            }
            _ => {}
        }
    }

    /// Evaluates a JavaScript expression and returns its value, or the value of its promise.
    ///
    /// # Panics
    /// When the expression throws.
    pub fn value(&mut self, expression: &str) -> Value {
        let params = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let mut answer = self.call("Runtime.evaluate", &params);
        let exception = &answer["exceptionDetails"];
        assert!(exception.is_null(), "{expression}: {exception}");
        answer["result"]["value"].take()
    }

    /// Waits until an expression is true.
    ///
    /// # Panics
    /// On a timeout, with the text of the page.
    pub fn wait(&mut self, expression: &str) {
        let holds = || self.value(expression).as_bool().filter(|holds| *holds);
        if wait_within(PATIENCE, holds).is_none() {
            let text = self.value("document.body.innerText");
            let text = text.as_str().unwrap_or_default();
            panic!("never: {expression}\n{text}\n{:?}", self.problems);
        }
    }

    /// Waits until the element of a CSS selector contains this text.
    ///
    /// # Panics
    /// On a timeout.
    pub fn wait_text(&mut self, choice: &str, text: &str) {
        let [choice, text] = [choice, text].map(|text| json!(text).to_string());
        self.wait(&format!(
            "document.querySelector({choice})?.innerText.replaceAll('\\u00a0', ' ').includes({text}) ?? false"
        ));
    }

    /// Resizes the window.
    pub fn resize(&mut self, width: u32, height: u32) {
        let params = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500});
        self.call("Emulation.setDeviceMetricsOverride", &params);
    }

    /// Sets the preferred colour scheme to dark or light.
    pub fn set_dark(&mut self, dark: bool) {
        let scheme = if dark { "dark" } else { "light" };
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        self.call(
            "Emulation.setEmulatedMedia",
            &json!({ "features": features }),
        );
    }

    /// Returns the errors so far: exceptions, and all console messages.
    pub fn problems(&mut self) -> &[String] {
        self.value("0");
        &self.problems
    }

    /// Returns the requests so far.
    pub fn requests(&mut self) -> &[String] {
        self.value("0");
        &self.requests
    }

    /// Returns a screenshot (PNG) from the top, of full width, down to `height` or the end of the
    /// page.
    pub fn picture(&mut self, height: u32) -> Vec<u8> {
        let size = self.value("[innerWidth, document.documentElement.scrollHeight]");
        let number = |place: usize| size[place].as_u64().expect("a number") as u32;
        let (width, height) = (number(0), number(1).min(height));
        self.resize(width, height);
        // Waits until the page is drawn.
        self.value("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(0))))");
        let picture = self.call(
            "Page.captureScreenshot",
            &json!({"format": "png", "optimizeForSpeed": false}),
        );
        let picture = picture["data"].as_str().expect("a picture");
        STANDARD.decode(picture).expect("base64")
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        let end = json!({"id": 0, "method": "Browser.close"});
        if write!(self.orders, "{end}\0").is_ok() {
            let _ = self.process.wait(GRACE);
        }
    }
}
