// Sites, peers and flows. Whatever is shown is text: no name can become a part of the page.

import { bits, bytes, count, milliseconds, percent, span } from "./format.js";

const NONE = "–";

// A table whose cells change while it is read: rows and cells stay, only their text is another.
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
  mode: "bypassed, by its mode",
  link: "bypassed, the link is away",
  peer: "bypassed, its peer is away",
  operator: "off, by an operator",
  interception: "bypassed, what pepd redirects is dropped on this machine",
  silence: "IPv6 bypassed, no server answers over it",
};

function siteState(site) {
  const lost = (site.interception_lost ?? []).join(", ");
  if (lost && site.on_interception_loss === "block" && !site.bypassed)
    return `blocked, ${lost}: what pepd redirects is dropped on this machine`;
  if (site.bypassed === "interception") return `${WHY.interception} (${lost})`;
  if (site.bypassed) return WHY[site.bypassed] ?? `bypassed (${site.bypassed})`;
  return "accelerated";
}

export const siteColumns = [
  { name: "site", wide: true, text: (site) => site.name, look: () => "name" },
  { name: "state", wide: true, text: siteState, look: (site) => (site.bypassed || site.interception_lost?.length ? "warn" : "") },
  {
    name: "carried",
    wide: true,
    text: (site) => (site.peer ? `${site.mode}, by ${site.peer}` : [site.mode, site.congestion?.[0]].filter(Boolean).join(", ")),
  },
  { name: "open", text: (site) => count(site.flows_open) },
  { name: "accepted", text: (site) => count(site.flows_accepted) },
  { name: "rate up", text: (site) => bits(site.up_rate) },
  { name: "rate down", text: (site) => bits(site.down_rate) },
  { name: "sent up", text: (site) => bytes(site.up_bytes) },
  { name: "sent down", text: (site) => bytes(site.down_bytes) },
  { name: "held", text: (site) => bytes(held(site)) },
];

const TROUBLE = {
  unanswered: "does not answer",
  untaken: "takes none of our answers: do its keys and psk_file fit?",
  keys: "its answers do not fit: compare the keys of both ends",
  version: "one of the two is too old",
};

function peerState(peer) {
  if (peer.no_session) return `away: ${TROUBLE[peer.no_session] ?? peer.no_session}`;
  if (peer.session) return peer.session.path;
  return peer.up ? "up" : "down";
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
  { name: "by", wide: true, text: (peer) => [peer.session?.carrier, peer.endpoint].filter(Boolean).join(", ") || NONE },
  { name: "flows", text: (peer) => count(peer.flows) },
  { name: "round trip", text: ofSession((session) => milliseconds(session.rtt_s)) },
  {
    name: "queue",
    title: "the round trip beyond the least one of late",
    text: ofSession((session) => milliseconds(Math.max(0, session.rtt_s - session.rtt_min_s))),
  },
  { name: "rate", text: ofSession((session) => bits(session.rate)) },
  {
    name: "link",
    title: "what the link is thought to carry for us, of what is stated",
    text: ofSession((session) => [session.link_rate, session.stated_rate].filter(Boolean).map(bits).join(" of ")),
    look: (peer) => (peer.session?.stated === "less" ? "warn" : ""),
  },
  { name: "loss", title: "before FEC", text: ofSession((session) => percent(session.loss)) },
  { name: "FEC", title: "repair packets per packet", text: ofSession((session) => percent(session.fec_overhead)) },
  { name: "resent", title: "segments that were lost in spite of it", text: ofSession((session) => count(session.segments_retransmitted)) },
  {
    name: "lost by link / queue / outage",
    text: ofSession(({ lost }) => [lost.link, lost.congestion, lost.outage].map(count).join(" / ")),
  },
];

// The leg that crosses the link, or the only one that is here: the slower one.
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

// `rates` has bit/s, both ways together, by key.
export const flowColumns = (rates) => [
  {
    name: "client and server",
    wide: true,
    text: (flow) => `${flow.client}\n→ ${flow.destination}`,
    look: () => "address",
  },
  { name: "site", wide: true, text: (flow) => flow.site ?? "from a peer" },
  { name: "carried", wide: true, text: (flow) => (flow.peer ? `by ${flow.peer}` : flow.kind) },
  { name: "state", wide: true, text: (flow) => flow.state },
  { name: "age", text: (flow) => span(flow.age_s) },
  { name: "rate", text: (flow) => or(rates.get(flowKey(flow)), bits) },
  { name: "up", text: (flow) => bytes(flow.up_bytes) },
  { name: "down", text: (flow) => bytes(flow.down_bytes) },
  { name: "held", text: (flow) => bytes(sum(flow.memory) + sum(flow.disk) + sum(flow.kernel)) },
  { name: "round trip", text: ofLeg((leg) => or(leg.rtt_s, milliseconds)) },
  { name: "control", wide: true, text: ofLeg((leg) => leg.congestion) },
  { name: "resent", title: "segments", text: ofLeg((leg) => count(leg.retransmitted)) },
  { name: "held up by", wide: true, text: ofLeg(limit) },
];

const REASON = {
  gate_closed: "gate closed",
  descriptors_short: "descriptors short",
  memory_short: "memory short",
  syns_passed_held: "no room for a held handshake",
};

// What the kernel forwards, unaccelerated.
export function passes(left) {
  const told = ({ site, why, families }) => `${site} (${[...(families ?? []), WHY[why] ?? why].join(", ")})`;
  const now = left.sites.map(told);
  if (left.gate_closed) now.push(`all new connections: flows ${count(left.flows.used)} of ${count(left.flows.most)}`);
  const past = Object.entries(left.reasons).filter(([, times]) => times > 0);
  const counted = past.map(([name, times]) => `${REASON[name] ?? name} ${count(times)}×`);
  const so = counted.length > 0 ? `; so far: ${counted.join(", ")}` : "";
  const lost = (left.blocked ?? []).map(({ site, families }) => `${site} (${families.join(", ")})`);
  const blocked = lost.length > 0 ? `; blocked, as what pepd redirects is dropped on this machine: ${lost.join(", ")}` : "";
  return `Not accelerated: ${now.length > 0 ? now.join(", ") : "nothing now"}${blocked}${so}.`;
}
