// Tables of sites, peers and flows. Data is set as text only, so that no name becomes markup.

import { bits, bytes, count, milliseconds, percent, span } from "./format.js";

const NONE = "–";

// Table that updates in place: rows and cells stay, only their text changes.
export class Table {
  // columns: [{name, text: (item) => string, look?: (item) => class, wide?: no number}]
  constructor(table, label, columns) {
    Object.assign(this, { table, columns });
    table.setAttribute("aria-label", label);
    const head = document.createElement("tr");
    for (const column of columns) {
      const cell = document.createElement("th");
      cell.scope = "col";
      cell.textContent = column.name;
      if (column.title) cell.title = column.title;
      if (!column.wide) cell.className = "number";
      head.append(cell);
    }
    const top = document.createElement("thead");
    top.append(head);
    this.body = document.createElement("tbody");
    table.replaceChildren(top, this.body);
  }

  show(items) {
    this.table.hidden = items.length === 0;
    while (this.body.rows.length > items.length) this.body.lastElementChild.remove();
    items.forEach((item, index) => {
      const row = this.body.rows[index] ?? this.row();
      this.columns.forEach((column, place) => {
        const cell = row.cells[place];
        const text = column.text(item);
        if (cell.textContent !== text) cell.textContent = text;
        const look = `${column.wide ? "" : "number"} ${column.look?.(item) ?? ""}`.trim();
        if (cell.className !== look) cell.className = look;
      });
    });
  }

  row() {
    const row = this.body.insertRow();
    for (const column of this.columns) row.insertCell().dataset.name = column.name;
    return row;
  }
}

const or = (value, write) => (value === null || value === undefined ? NONE : write(value));

const held = (traffic) => traffic.held.memory + traffic.held.disk + traffic.held.kernel;

const WHY = {
  mode: "bypassed: mode bypass",
  link: "bypassed: link down",
  peer: "bypassed: peer down",
  operator: "switched off by an operator",
  interception: "bypassed: redirected packets are dropped on this machine",
  silence: "IPv6 bypassed: no server answers over IPv6",
};

function siteState(site) {
  const lost = (site.interception_lost ?? []).join(", ");
  if (lost && site.on_interception_loss === "block" && !site.bypassed)
    return `blocked, ${lost}: redirected packets are dropped on this machine`;
  if (site.bypassed === "interception") return `${WHY.interception} (${lost})`;
  if (site.bypassed) return WHY[site.bypassed] ?? `bypassed (${site.bypassed})`;
  return "accelerated";
}

// Also names what may not leave outside of the tunnel.
function siteStateAndClear(site) {
  return site.clear_never ? `${siteState(site)}; never in the clear` : siteState(site);
}

export const siteColumns = [
  { name: "site", wide: true, text: (site) => site.name, look: () => "name" },
  { name: "state", wide: true, text: siteStateAndClear, look: (site) => (site.bypassed || site.interception_lost?.length ? "warn" : "") },
  {
    name: "mode",
    wide: true,
    text: (site) => (site.peer ? `${site.mode}, via ${site.peer}` : [site.mode, site.congestion?.[0]].filter(Boolean).join(", ")),
  },
  { name: "open", text: (site) => count(site.flows_open) },
  { name: "accepted", text: (site) => count(site.flows_accepted) },
  { name: "rate up", text: (site) => bits(site.up_rate) },
  { name: "rate down", text: (site) => bits(site.down_rate) },
  { name: "bytes up", text: (site) => bytes(site.up_bytes) },
  { name: "bytes down", text: (site) => bytes(site.down_bytes) },
  { name: "held", text: (site) => bytes(held(site)) },
];

const TROUBLE = {
  unanswered: "does not answer handshakes",
  answers_rejected: "rejects handshake responses (psk_file?)",
  keys: "sends responses that do not verify (psk_file?)",
  counter: "claims that the handshake counter is used up",
};

function peerState(peer) {
  if (peer.no_session === "version") return `down: speaks tunnel protocol version ${peer.other_version ?? "other"}`;
  if (peer.no_session) return `down: ${TROUBLE[peer.no_session] ?? peer.no_session}`;
  if (peer.session) return peer.session.path;
  return peer.up ? "up" : "down";
}

// Configured limits of what a peer may do; many items as their number.
function peerReach(peer) {
  const list = (verb, items) => {
    if (!items) return null;
    const shown = items.length > 4 ? [...items.slice(0, 3), `${count(items.length - 3)} more`] : items;
    return `${verb} ${shown.join(", ") || "nothing"}`;
  };
  const none = peer.may_open_flows === false ? "opens no flows" : null;
  const unreached = peer.unreached?.length ? `has no route to ${peer.unreached.join(" and ")} hosts` : null;
  return [list("speaks for", peer.from), list("reaches", peer.to), none, unreached].filter(Boolean).join("; ") || NONE;
}

const ofSession = (write) => (peer) => or(peer.session, write);

export const peerColumns = [
  { name: "peer", wide: true, text: (peer) => peer.name, look: () => "name" },
  {
    name: "state",
    wide: true,
    text: peerState,
    look: (peer) => (peerState(peer) === "up" ? "" : "warn"),
  },
  { name: "transport", wide: true, text: (peer) => [peer.session?.carrier, peer.endpoint].filter(Boolean).join(", ") || NONE },
  { name: "limits", title: "hosts that it may speak for, and destinations that it may reach", wide: true, text: peerReach },
  { name: "flows", text: (peer) => count(peer.flows) },
  { name: "round trip", text: ofSession((session) => milliseconds(session.rtt_s)) },
  {
    name: "queue",
    title: "round trip minus its recent minimum",
    text: ofSession((session) => milliseconds(Math.max(0, session.rtt_s - session.rtt_min_s))),
  },
  { name: "rate", text: ofSession((session) => bits(session.rate)) },
  {
    name: "link",
    title: "estimated rate of the link, of the stated rate",
    text: ofSession((session) => [session.link_rate, session.stated_rate].filter(Boolean).map(bits).join(" of ")),
    look: (peer) => (peer.session?.stated === "less" ? "warn" : ""),
  },
  { name: "loss", title: "share of packets lost on the link, before FEC", text: ofSession((session) => percent(session.loss)) },
  { name: "FEC", title: "repair packets per packet", text: ofSession((session) => percent(session.fec_overhead)) },
  { name: "retransmitted", title: "segments lost in spite of FEC", text: ofSession((session) => count(session.segments_retransmitted)) },
  {
    name: "lost by link / queue / outage",
    text: ofSession(({ lost }) => [lost.link, lost.congestion, lost.outage].map(count).join(" / ")),
  },
];

// Returns the slower leg: the one over the link, or the only local one.
export function slowLeg(flow) {
  const legs = [flow.client_leg, flow.server_leg].filter(Boolean);
  return legs.reduce((slow, leg) => ((leg.rtt_s ?? 0) > (slow?.rtt_s ?? -1) ? leg : slow), null);
}

function limit(leg) {
  if (leg.receive_limit) return "receive window";
  const limits = [[leg.rwnd_limited_s, "receiver's window"], [leg.sndbuf_limited_s, "send buffer"]];
  const [seconds, by] = limits[0][0] >= limits[1][0] ? limits[0] : limits[1];
  const share = leg.busy_s > 0 ? seconds / leg.busy_s : 0;
  return share >= 0.05 ? `${by}, ${percent(share)}` : NONE;
}

const sum = (pair) => pair[0] + pair[1];
export const flowKey = (flow) => `${flow.kind} ${flow.client} ${flow.destination}`;
export const flowBytes = (flow) => flow.up_bytes + flow.down_bytes;
const ofLeg = (write) => (flow) => or(slowLeg(flow), write);

// `rates`: bit/s of both directions together, by key.
export const flowColumns = (rates) => [
  {
    name: "client and server",
    wide: true,
    text: (flow) => `${flow.client}\n→ ${flow.destination}`,
    look: () => "address",
  },
  { name: "site", wide: true, text: (flow) => flow.site ?? "(from peers)" },
  { name: "kind", wide: true, text: (flow) => (flow.peer ? `${flow.kind}, via ${flow.peer}` : flow.kind) },
  { name: "state", wide: true, text: (flow) => flow.state },
  { name: "age", text: (flow) => span(flow.age_s) },
  { name: "rate", text: (flow) => or(rates.get(flowKey(flow)), bits) },
  { name: "up", text: (flow) => bytes(flow.up_bytes) },
  { name: "down", text: (flow) => bytes(flow.down_bytes) },
  { name: "held", text: (flow) => bytes(sum(flow.memory) + sum(flow.disk) + sum(flow.kernel)) },
  { name: "round trip", text: ofLeg((leg) => or(leg.rtt_s, milliseconds)) },
  { name: "control", wide: true, text: ofLeg((leg) => leg.congestion) },
  { name: "retransmitted", title: "segments", text: ofLeg((leg) => count(leg.retransmitted)) },
  { name: "limited by", wide: true, text: ofLeg(limit) },
];

const REASON = {
  gate_closed: "gate closed",
  descriptors_short: "descriptors short",
  memory_short: "memory short",
  syns_passed_held: "no room for a held SYN",
};

// Describes connections that the kernel forwards unaccelerated.
export function passes(left) {
  const describe = ({ site, why, families }) => `${site} (${[...(families ?? []), WHY[why] ?? why].join(", ")})`;
  const now = left.sites.map(describe);
  if (left.gate_closed) now.push(`all new connections: flows ${count(left.flows.used)} of ${count(left.flows.most)}`);
  const past = Object.entries(left.reasons).filter(([, times]) => times > 0);
  const counted = past.map(([name, times]) => `${REASON[name] ?? name} ${count(times)}×`);
  const so = counted.length > 0 ? `; so far: ${counted.join(", ")}` : "";
  const lost = (left.blocked ?? []).map(({ site, families }) => `${site} (${families.join(", ")})`);
  const blocked = lost.length > 0 ? `; blocked because redirected packets are dropped on this machine: ${lost.join(", ")}` : "";
  return `Not accelerated: ${now.length > 0 ? now.join(", ") : "none now"}${blocked}${so}.`;
}
