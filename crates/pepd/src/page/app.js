// The page: live data of /v1/stream, and the past of /v1/history.

import { Chart, drawStrip } from "./chart.js";
import { bits, bytes, clock, count, day, milliseconds, percent, span } from "./format.js";
import { Table, flowBytes, flowColumns, flowKey, passes, peerColumns, siteColumns } from "./tables.js";

const AGAIN = 2000; // ms between two attempts
const LATE = 5000; // ms after which a status counts as missing
const FLOWS_EVERY = 3000;
const HISTORY_EVERY = 10000;
const KEPT = 4 * 3600; // s for which the past is kept
const LOSS_OVER = 10; // s over which losses after FEC are counted: they are few and bursty
const RANGES = [["10 min", 600], ["1 h", 3600], ["4 h", 4 * 3600]];

const $ = (id) => document.getElementById(id);

const seen = {
  status: null, // the last one
  heard: null, // time of its arrival, by the local clock
  since: performance.now(), // time since which there is none
  pid: null,
  began: null,
  columns: [],
  series: [1, 10].map((step) => ({ step, kept: step === 1 ? 600 : KEPT, rows: new Map() })),
  outages: new Map(), // by begin
};
let range = RANGES[0][1];

// ---- history

function takeRow(series, [at, values]) {
  series.rows.set(at, values);
  const first = at - series.kept;
  for (const old of series.rows.keys()) {
    if (old > first) break;
    series.rows.delete(old);
  }
}

function takeHistory(report) {
  // The data of an earlier process is kept. If the clock was set, all times are wrong.
  if (report.pid === seen.pid && report.began !== seen.began) {
    for (const series of seen.series) series.rows.clear();
    seen.outages.clear();
  }
  Object.assign(seen, { pid: report.pid, began: report.began, columns: report.columns });
  for (const { step_s: step, rows } of report.series) {
    const series = seen.series.find((series) => series.step === step);
    if (series) rows.forEach((row) => takeRow(series, row));
  }
  for (const outage of report.outages) seen.outages.set(outage.began.toFixed(2), outage);
}

async function ask(target) {
  const answer = await fetch(target, { cache: "no-store", signal: AbortSignal.timeout(8000) });
  if (!answer.ok) throw new Error((await answer.text()).trim());
  return answer.json();
}

async function askHistory() {
  const last = [...seen.series[1].rows.keys()].at(-1);
  takeHistory(await ask(last ? `/v1/history?since=${last}` : "/v1/history"));
}

// Returns rows in the order of time, each with the derived share lost in spite of FEC.
function rowsOf(series, begin) {
  const place = (name) => seen.columns.indexOf(name);
  const [packets, retransmitted] = [place("packets"), place("retransmitted")];
  const sorted = [...series.rows].sort((a, b) => a[0] - b[0]);
  const lossOf = (index) => {
    let [sent, again] = [0, 0];
    for (let i = index; i >= 0 && sorted[index][0] - sorted[i][0] < LOSS_OVER; i -= 1) {
      sent += sorted[i][1][packets] ?? 0;
      again += sorted[i][1][retransmitted] ?? 0;
    }
    return sent > 0 ? Math.min(1, again / sent) : null;
  };
  const rows = sorted.map(([at, values], index) => [at, [...values, lossOf(index)]]);
  return rows.filter(([at]) => at >= begin);
}

const column = (name) => ([, values]) => {
  const place = name === "after" ? seen.columns.length : seen.columns.indexOf(name);
  return values[place] ?? null;
};

const line = (look, name, of) => ({ look, name, value: column(of) });
const charts = {
  throughput: new Chart($("throughput"), {
    title: "Throughput",
    lines: [line("down", "down", "down_rate"), line("up", "up", "up_rate")],
    minimum: 1000,
    write: bits,
  }),
  loss: new Chart($("loss"), {
    title: "Loss and FEC",
    lines: [
      line("fec_overhead", "FEC", "fec_overhead"),
      line("loss", "loss", "loss"),
      line("after", "unrepaired", "after"),
    ],
    unit: 0.01,
    minimum: 0.01,
    write: percent,
  }),
  custody: new Chart($("custody"), {
    title: "Custody",
    lines: [line("disk", "disk", "custody_disk"), line("memory", "memory", "custody_memory")],
    base: 1024,
    minimum: 4096,
    write: bytes,
  }),
  open: new Chart($("open"), {
    title: "Open flows",
    lines: [line("flows", "flows", "flows")],
    minimum: 4,
    write: count,
  }),
};

function latest() {
  const last = seen.series.map((series) => Math.max(0, ...series.rows.keys()));
  return Math.max(last[0] + 1, last[1] + 1);
}

function drawPast() {
  if (seen.columns.length === 0) return;
  const end = latest();
  const begin = end - range;
  const series = seen.series[range > 600 ? 1 : 0];
  const rows = rowsOf(series, begin);
  const hasPeers = (seen.status?.peers.length ?? 1) > 0;
  for (const [name, chart] of Object.entries(charts)) {
    if (name === "loss" && !hasPeers) {
      chart.explain("No tunnel is configured. Only tunnels measure and correct losses of the link.");
    } else {
      chart.draw(rows, begin, end, series.step);
    }
  }
  drawLink(end);
}

function drawLink(end) {
  const outages = [...seen.outages.values()].sort((a, b) => a.began - b.began);
  // The range grows with the history, so that the first minutes stay visible.
  const first = Math.min(...seen.series[1].rows.keys(), ...outages.map((outage) => outage.began));
  const [name, length] = RANGES.find(([, seconds]) => end - first <= seconds) ?? RANGES.at(-1);
  const begin = end - length;
  const up = column("link_up");
  // Times with a reported state; adjacent ones are joined.
  const known = [];
  for (const row of rowsOf(seen.series[1], begin)) {
    if (up(row) === null) continue;
    const last = known.at(-1);
    if (last && row[0] - last[1] <= 15) last[1] = row[0] + 10;
    else known.push([row[0], row[0] + 10]);
  }
  const all = outages.map(({ began, lasted_s: lasted }) => ({
    from: began,
    to: lasted === null ? end : began + lasted,
    text: `${day(began)}: down ${lasted === null ? "since then" : `for ${span(lasted)}`}`,
  }));
  const within = all.filter((outage) => outage.to > begin);
  drawStrip($("link-line"), { begin, end, known, outages: within });
  const sum = within.reduce((sum, { from, to }) => sum + to - Math.max(from, begin), 0);
  const many = within.length === 1 ? "1 outage" : `${within.length} outages`;
  $("link-outages").textContent = within.length > 0 ? `${many} in ${name}, ${span(sum)} in total` : `no outage in ${name}`;
}

// ---- current state

// Source of the link's state, as in `pepd status`.
function reporter(by) {
  return by === "operator" ? "set by operator" : `reported by ${by === "carrier" ? "interface" : by}`;
}

function showLink({ link }) {
  const known = link.by !== "assumed";
  const state = link.up ? (known ? "up" : "assumed up") : "down";
  const box = $("link-state");
  box.textContent = known ? `${state} for ${span(link.for_s)}` : state;
  box.className = `state ${known ? state : "unknown"}`;
  $("dot").className = `dot ${known ? state : "unknown"}`;
  const facts = [
    known ? reporter(link.by) : "no source reports its state: set link.gateway or link.contacts, or use a tunnel",
    link.interface,
    link.rate && bits(link.rate),
    link.rtt_s && milliseconds(link.rtt_s),
    link.ordered_for_s !== null && `operator's override: ${span(link.ordered_for_s)} left`,
    link.next_planned_in_s !== null && `next planned change in ${span(link.next_planned_in_s)}`,
    link.gateway_never_answered && `gateway ${link.gateway} has never answered`,
  ];
  $("link-facts").textContent = facts.filter(Boolean).join(" · ");
  $("outages").hidden = link.history.length === 0;
  const items = link.history.map((outage) => {
    const item = document.createElement("li");
    const lasted = outage.lasted_s === null ? "ongoing" : `lasted ${span(outage.lasted_s)}`;
    item.textContent = `${day(outage.began)}: ${lasted}, ${reporter(outage.by)}`;
    return item;
  });
  $("outage-list").replaceChildren(...items);
}

const tiles = new Map();
// Shows a number with its name, a note, and the use of its limit, if any.
function tile(name, value, note, share) {
  let parts = tiles.get(name);
  if (!parts) {
    parts = Object.fromEntries(["box", "name", "value", "note"].map((part) => [part, document.createElement(part === "box" ? "div" : "p")]));
    parts.full = document.createElement("span");
    parts.meter = document.createElement("div");
    parts.meter.append(parts.full);
    for (const part of ["name", "value", "note", "meter"]) parts[part].className = part;
    parts.box.className = "tile";
    parts.name.textContent = name;
    parts.box.append(parts.name, parts.value, parts.meter, parts.note);
    $("tiles").append(parts.box);
    tiles.set(name, parts);
  }
  parts.value.textContent = value;
  parts.note.textContent = note;
  parts.meter.hidden = share === undefined;
  parts.full.style.width = `${100 * Math.min(1, share ?? 0)}%`;
  parts.box.classList.toggle("warn", share >= 0.9);
}

const used = ({ used, most }) => (most > 0 ? used / most : 0);

function showTiles(status) {
  const { total, custody, limits } = status;
  tile("down", bits(total.down_rate), `${bytes(total.down_bytes)} in total`);
  tile("up", bits(total.up_rate), `${bytes(total.up_bytes)} in total`);
  tile("flows", count(limits.flows.used), `of ${count(limits.flows.most)}`, used(limits.flows));
  tile("custody, memory", bytes(custody.memory.used), `of ${bytes(custody.memory.most)}`, used(custody.memory));
  const disk = custody.disk;
  tile("custody, disk", disk.most > 0 ? bytes(disk.used) : "none", disk.most > 0 ? `of ${bytes(disk.most)}` : "custody.directory is not set", disk.most > 0 ? used(disk) : undefined);
  const { memory, descriptors } = limits;
  tile("memory of flows", bytes(memory.used), `of ${bytes(memory.most)}`, used(memory));
  tile("descriptors", count(descriptors.used), `of ${count(descriptors.most)}`, used(descriptors));
}

const tables = {
  sites: new Table($("sites"), "Sites", siteColumns),
  peers: new Table($("peers"), "Peers", peerColumns),
};

function showSites(status) {
  const sites = [...status.sites];
  if (status.from_peers && status.from_peers.flows_accepted > 0) {
    sites.push({ name: "(from peers)", mode: "tunnel", congestion: [], ...status.from_peers });
  }
  tables.sites.show(sites);
  tables.peers.show(status.peers);
  $("no-peers").hidden = status.peers.length > 0;
  const names = status.sites.map((site) => site.name);
  const select = $("flow-site");
  const known = [...select.options].slice(1).map((option) => option.value);
  if (names.join("\n") !== known.join("\n")) {
    const chosen = select.value;
    select.length = 1;
    for (const name of names) select.add(new Option(name, name));
    select.value = names.includes(chosen) ? chosen : "";
  }
}

function showStatus(status) {
  const before = seen.status;
  Object.assign(seen, { status, heard: Date.now() / 1000, since: null, late: performance.now() + LATE });
  document.body.classList.remove("silent");
  $("silence").hidden = true;
  const process = [
    status.draining && "draining: accepts no new flows, ends after the open ones",
    `version ${status.version}`,
    `process ${status.pid}`,
    `up ${span(status.uptime_s)}`,
    status.restarts > 0 && `${status.restarts} restart${status.restarts > 1 ? "s" : ""}`,
  ];
  $("process").textContent = process.filter(Boolean).join(" · ");
  $("process").classList.toggle("warn", status.draining);
  document.title = `${status.link.up ? "link up" : "LINK DOWN"} · pepd`;
  showLink(status);
  showTiles(status);
  showSites(status);
  const changed = before && (before.link.up !== status.link.up || before.link.outages !== status.link.outages);
  if (changed || (before && before.pid !== status.pid)) refresh();
}

function showSilence() {
  seen.since ??= performance.now();
  const lasts = (performance.now() - seen.since) / 1000;
  // A restart is faster.
  if (lasts < 3) return;
  document.body.classList.add("silent");
  const since = seen.heard === null ? `for ${span(lasts)}` : `since ${clock(seen.heard, true)} (${span(Date.now() / 1000 - seen.heard)})`;
  const below = seen.heard === null ? "" : " The data below is the last received.";
  $("silence").textContent = `pepd does not answer ${since}: it is restarting, has ended, or is unreachable.${below} Retrying.`;
  $("silence").hidden = false;
  document.title = "no answer · pepd";
}

// ---- flows

const rates = new Map();
const flowTable = new Table($("flows"), "Flows", flowColumns(rates));
let flowsBefore = null;

async function showFlows() {
  const query = new URLSearchParams({ limit: $("flow-limit").value, sort: $("flow-sort").value });
  if ($("flow-site").value) query.set("site", $("flow-site").value);
  const report = await ask(`/v1/flows?${query}`);
  const at = performance.now();
  const sums = new Map(report.flows.map((flow) => [flowKey(flow), flowBytes(flow)]));
  rates.clear();
  for (const [key, sum] of sums) {
    const before = flowsBefore?.sums.get(key);
    if (before !== undefined && sum >= before) rates.set(key, (8000 * (sum - before)) / (at - flowsBefore.at));
  }
  flowsBefore = { at, sums };
  flowTable.show(report.flows);
  $("flow-count").textContent = report.total > report.flows.length ? `${count(report.flows.length)} of ${count(report.total)}` : count(report.total);
  $("no-flows").textContent = "No flows are open.";
  $("no-flows").hidden = report.total > 0;
  $("passes").textContent = passes(report.not_accelerated);
}

// ---- updates

// Repeats an action while the page is visible. Returns a function that runs it at once.
function often(every, what) {
  let timer = null;
  const run = async () => {
    clearTimeout(timer);
    if (document.visibilityState === "visible" && seen.since === null) await what().catch(() => {});
    clearTimeout(timer);
    timer = setTimeout(run, every);
  };
  timer = setTimeout(run, every);
  return run;
}

const refresh = often(HISTORY_EVERY, async () => {
  await askHistory();
  drawPast();
});
const refreshFlows = often(FLOWS_EVERY, showFlows);

let stream = null;
let again = null;
let tried = 0;

function disconnect() {
  stream?.close();
  stream = null;
  clearTimeout(again);
}

function listen() {
  disconnect();
  tried = performance.now();
  stream = new EventSource("/v1/stream");
  stream.addEventListener("status", (event) => {
    const first = seen.since !== null;
    showStatus(JSON.parse(event.data));
    if (first) {
      refresh();
      refreshFlows();
    }
  });
  stream.addEventListener("row", (event) => {
    takeRow(seen.series[0], JSON.parse(event.data));
    drawPast();
  });
  stream.addEventListener("error", () => {
    disconnect();
    again = setTimeout(listen, AGAIN);
    askOnce();
  });
}

// Polls, in case the limit of stream clients is reached.
async function askOnce() {
  try {
    const status = await ask("/v1/status");
    await askHistory();
    showStatus(status);
    drawPast();
    if (flowsBefore === null) refreshFlows();
  } catch {
    showSilence();
  }
}

setInterval(() => {
  if (document.visibilityState !== "visible") return;
  if (seen.since !== null || performance.now() > seen.late) showSilence();
  // Connected without data: a middlebox may have dropped the connection.
  if (stream && seen.since !== null && performance.now() - tried > 3 * LATE) listen();
}, 1000);

document.addEventListener("visibilitychange", () => {
  // A hidden page leaves its stream to others.
  clearTimeout(again);
  if (document.visibilityState === "hidden") again = setTimeout(disconnect, 60000);
  else if (!stream) listen();
});

for (const id of ["flow-site", "flow-sort", "flow-limit"]) $(id).addEventListener("change", () => refreshFlows());
$("flow-choice").addEventListener("submit", (event) => event.preventDefault());
for (const [name, seconds] of RANGES) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = name;
  button.setAttribute("aria-pressed", seconds === range);
  button.addEventListener("click", () => {
    range = seconds;
    for (const other of $("range").children) other.setAttribute("aria-pressed", other === button);
    drawPast();
  });
  $("range").append(button);
}
new ResizeObserver(() => drawPast()).observe(document.querySelector("main"));
listen();
