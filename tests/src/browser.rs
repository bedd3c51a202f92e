//! A page in a browser without a screen: Chromium, told what to do by the DevTools protocol
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

/// How it is started: no sandbox, as tests are root; nothing that talks to anybody by itself.
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
/// For how long it may end by itself.
const GRACE: Duration = Duration::from_secs(5);

/// One page. Ends with this.
pub struct Page {
    process: Process,
    orders: ChildStdin,
    told: Receiver<Value>,
    last: u64,
    session: Option<String>,
    problems: Vec<String>,
    requests: Vec<String>,
    _folder: TempDir,
}

impl Page {
    /// A browser on this machine that opens that address, as wide and high as a phone or a screen.
    ///
    /// # Panics
    /// When it is not installed, or does not start.
    pub fn open(host: &Host, address: &str, (width, height): (u32, u32)) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        // It reads orders from descriptor 3, and answers to 4.
        let mut command = host.command("sh");
        command.args(["-c", "exec \"$@\" 3<&0 4>&1 </dev/null >/dev/null", "sh"]);
        command.arg(program("chromium")).args(OPTIONS);
        command.arg(format!("--user-data-dir={}", folder.path().display()));
        let errors = File::create(folder.path().join("errors")).expect("it is ours");
        command.env("HOME", folder.path()).stderr(errors);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Process::spawn(&mut command).expect("a shell");
        let child = process.pipes();
        let orders = child.stdin.take().expect("a pipe was asked for");
        let answers = child.stdout.take().expect("a pipe was asked for");
        let (tell, told) = channel();
        thread::spawn(move || {
            let mut parts = BufReader::new(answers).split(0).map_while(Result::ok);
            parts
                .all(|part| serde_json::from_slice(&part).is_ok_and(|part| tell.send(part).is_ok()))
        });
        let mut page = Self {
            process,
            orders,
            told,
            last: 0,
            session: None,
            problems: Vec::new(),
            requests: Vec::new(),
            _folder: folder,
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

    /// Has it do something; the answer.
    fn call(&mut self, method: &str, params: &Value) -> Value {
        self.last += 1;
        let mut order = json!({"id": self.last, "method": method, "params": params});
        if let Some(session) = &self.session {
            order["sessionId"] = session.as_str().into();
        }
        let sent = write!(self.orders, "{order}\0").and_then(|()| self.orders.flush());
        sent.expect("the browser runs");
        loop {
            let told = self.told.recv_timeout(PATIENCE);
            let mut told = told.unwrap_or_else(|err| panic!("no answer to {method}: {err}"));
            if told["id"] == self.last {
                assert!(told["error"].is_null(), "{method}: {told}");
                return told["result"].take();
            }
            self.note(&told);
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

    /// The value of an expression (JavaScript), or what it promises.
    ///
    /// # Panics
    /// When that throws.
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
    /// When it never is, with the text of the page.
    pub fn wait(&mut self, expression: &str) {
        let holds = || self.value(expression).as_bool().filter(|holds| *holds);
        if wait_within(PATIENCE, holds).is_none() {
            let text = self.value("document.body.innerText");
            let text = text.as_str().unwrap_or_default();
            panic!("never: {expression}\n{text}\n{:?}", self.problems);
        }
    }

    /// Waits until what is chosen (by CSS) has this in its text.
    ///
    /// # Panics
    /// When it never has.
    pub fn wait_text(&mut self, choice: &str, text: &str) {
        let [choice, text] = [choice, text].map(|text| json!(text).to_string());
        self.wait(&format!(
            "document.querySelector({choice})?.innerText.replaceAll('\\u00a0', ' ').includes({text}) ?? false"
        ));
    }

    /// As wide and high.
    pub fn resize(&mut self, width: u32, height: u32) {
        let params = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500});
        self.call("Emulation.setDeviceMetricsOverride", &params);
    }

    /// As somebody sees it who prefers dark, or light.
    pub fn set_dark(&mut self, dark: bool) {
        let scheme = if dark { "dark" } else { "light" };
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        self.call(
            "Emulation.setEmulatedMedia",
            &json!({ "features": features }),
        );
    }

    /// What has gone wrong so far: exceptions, and whatever is in the console.
    pub fn problems(&mut self) -> &[String] {
        self.value("0");
        &self.problems
    }

    /// All that it has asked for so far.
    pub fn requests(&mut self) -> &[String] {
        self.value("0");
        &self.requests
    }

    /// A picture (PNG) of it from the top, as wide as it is, down to `height` or its end.
    pub fn picture(&mut self, height: u32) -> Vec<u8> {
        let size = self.value("[innerWidth, document.documentElement.scrollHeight]");
        let number = |place: usize| size[place].as_u64().expect("a number") as u32;
        let (width, height) = (number(0), number(1).min(height));
        self.resize(width, height);
        // Until it is drawn like that.
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
