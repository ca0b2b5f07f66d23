// Shows the values of `overview`, again every two seconds while the page is visible. Values become
// text and attributes of elements only: the policy of the page forbids to make HTML from strings.
"use strict";

const POLL_MS = 2000, MOST_SAMPLES = 61, SVG = "http://www.w3.org/2000/svg";
const byId = (id) => document.getElementById(id);

// -- elements ---------------------------------------------------------------------------------

function make(tag, attributes = {}, ...below) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...below);
  return node;
}

function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function setClass(node, name) {
  if (node.className !== name) node.className = name;
}

/** Makes the children of `parent` show `items`. The element of an item stays the same, so that focus,
    selection and what a screen reader reads are not lost. */
function keep(parent, items, begin) {
  const before = parent.parts || new Map(), now = new Map();
  let place = parent.firstElementChild;
  for (const item of items) {
    const part = before.get(item.id) || begin(item);
    part.update(item);
    now.set(item.id, part);
    if (part.node === place) place = place.nextElementSibling;
    else parent.insertBefore(part.node, place);
  }
  for (const [id, part] of before) if (!now.has(id)) part.node.remove();
  parent.parts = now;
}

/** A row of a section's table: the first cell is its header. Returns its cells by the index of the column. */
function row(section, classes = []) {
  const titles = [...section.querySelectorAll("thead th")].map((one) => one.textContent);
  const node = make("tr", {role: "row"});
  const cells = titles.map((title, index) => {
    const cell = index
      ? make("td", {role: "cell", "data-label": title, class: classes[index] || ""})
      : make("th", {role: "rowheader", scope: "row"});
    // One element in each cell: on a phone the label stands beside it.
    const inside = make("span");
    cell.append(inside);
    node.append(cell);
    return inside;
  });
  return {node, cells};
}

function badge() {
  const node = make("span", {class: "badge"});
  return {node, show(text, kind) { setText(node, text); setClass(node, `badge ${kind}`); }};
}

/** What is wrong, and what to do: a command, or a sentence with commands between backquotes. */
function problem() {
  const what = make("span"), hint = make("span", {class: "line"});
  const node = make("span", {class: "problem"}, what, hint);
  let written = "";
  return {node, show(one) {
    node.hidden = !one.problem;
    setText(what, one.problem || "");
    if (written === one.hint) return;
    written = one.hint || "";
    const words = written.startsWith("penstock ") ? ["", written] : written.split("`");
    hint.replaceChildren(...(written ? ["hint: "] : []),
      ...words.map((word, index) => index % 2 ? make("code", {}, word) : word));
  }};
}

function meter(label) {
  const fill = make("span");
  const bar = make("span", {class: "meter", role: "meter", "aria-label": label, "aria-valuemin": 0, "aria-valuemax": 100}, fill);
  const text = make("small");
  return {bar, text, show(part, whole, words) {
    const percent = whole ? Math.min(100, 100 * part / whole) : part ? 100 : 0;
    fill.style.width = `${percent}%`;
    bar.setAttribute("aria-valuenow", percent.toFixed(1));
    bar.setAttribute("aria-valuetext", words);
    setText(text, words);
  }};
}

// -- numbers ----------------------------------------------------------------------------------

function size(bytes) {
  let value = bytes;
  for (const unit of ["B", "KiB", "MiB", "GiB", "TiB"]) {
    if (Math.abs(value) < 1024) return unit === "B" ? `${Math.round(value)} B` : `${value.toFixed(1)} ${unit}`;
    value /= 1024;
  }
  return `${value.toFixed(1)} PiB`;
}

/** Never 100% of what is not whole, and never 0% of what is there. */
function share(part, whole) {
  if (!whole || part >= whole) return "100%";
  const percent = Math.min(99.9, 100 * part / whole);
  return part && percent < 0.1 ? "less than 0.1%" : `${percent.toFixed(1)}%`;
}

function duration(seconds) {
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  const whole = Math.floor(seconds), two = (number) => String(number).padStart(2, "0");
  if (whole >= 86400) return `${Math.floor(whole / 86400)}d${two(Math.floor(whole % 86400 / 3600))}h`;
  if (whole >= 3600) return `${Math.floor(whole / 3600)}h${two(Math.floor(whole % 3600 / 60))}m`;
  return whole >= 60 ? `${Math.floor(whole / 60)}m${two(whole % 60)}s` : `${whole} s`;
}

const count = (number) => number.toLocaleString("en-US");
const counted = (number, noun, many = `${noun}s`) => `${count(number)} ${number === 1 ? noun : many}`;
const title = (one) => one.namespace === "default" ? one.name : `${one.namespace}/${one.name}`;

// -- data sets --------------------------------------------------------------------------------

const KINDS = {
  Bound: "good", Ready: "good", Complete: "good", SUCCEEDED: "good", done: "good", serving: "good",
  RUNNING: "busy", Executing: "busy", running: "busy", restarting: "busy", waiting: "busy",
  Failed: "bad", FAILED: "bad", failed: "bad", silent: "bad", interrupted: "bad", NotBound: "bad",
};
const kind = (phase) => KINDS[phase] || "";

function dataset() {
  const {node, cells} = row(byId("datasets"), ["", "whole", "", "number", "path"]);
  const name = make("span"), wrong = problem(), phase = badge(), cached = meter("Cached");
  cells[0].append(name, wrong.node);
  cells[1].append(phase.node);
  cells[2].append(cached.bar, cached.text);
  return {node, update(one) {
    setText(name, title(one));
    wrong.show(one);
    phase.show(one.phase, kind(one.phase));
    cached.show(one.cached_bytes, one.bytes,
      one.bytes ? `${size(one.cached_bytes)} of ${size(one.bytes)}, ${share(one.cached_bytes, one.bytes)}` : "nothing listed yet");
    setText(cells[3], count(one.files));
    setText(cells[4], one.mountpoint || "–");
  }};
}

// -- mounts -----------------------------------------------------------------------------------

const LINES = [
  {name: "From store", bytes: "store_bytes", requests: "store_requests"},
  {name: "From tiers", bytes: "hit_bytes"},
  {name: "To page cache", bytes: "pushed_bytes"},
  {name: "To readers", bytes: "read_bytes", requests: "reads"},
];

function curve(label) {
  const line = document.createElementNS(SVG, "polyline"), area = document.createElementNS(SVG, "polygon");
  const node = document.createElementNS(SVG, "svg");
  node.setAttribute("viewBox", `0 0 ${MOST_SAMPLES - 2} 26`);
  node.setAttribute("preserveAspectRatio", "none");
  node.setAttribute("role", "img");
  node.append(area, line);
  return {node, show(rates, highest) {
    const last = MOST_SAMPLES - 2, first = last - rates.length + 1;
    const points = rates.map((rate, index) => `${first + index},${(25 - 23 * (highest ? rate / highest : 0)).toFixed(2)}`);
    line.setAttribute("points", points.join(" "));
    area.setAttribute("points", points.length ? `${first},26 ${points.join(" ")} ${last},26` : "");
    node.setAttribute("aria-label", `${label}: at most ${size(Math.max(0, ...rates))} a second in the last two minutes`);
  }};
}

function mount() {
  const name = make("h3"), state = badge(), source = make("span", {class: "under"}), wrong = problem();
  const cached = meter("Cached"), body = make("tbody"), plans = make("div");
  const lines = LINES.map((line) => {
    const cells = [make("td", {class: "number"}), make("td", {class: "number"}), make("td", {class: "number total"})];
    const drawn = curve(line.name);
    body.append(make("tr", {}, make("th", {scope: "row"}, line.name), ...cells, make("td", {class: "curve"}, drawn.node)));
    return {...line, cells, drawn};
  });
  const titles = [["", ""], ["Bytes/s", "number"], ["Requests/s", "number"], ["Total", "number total"], ["", "curve"]];
  const head = make("tr", {}, ...titles.map(([text, name]) =>
    text ? make("th", {scope: "col", class: name}, text) : make("td", {class: name})));
  const table = make("table", {}, make("thead", {}, head), body);
  const node = make("article", {class: "card"}, make("div", {class: "head"}, name, state.node), source, wrong.node,
    cached.bar, cached.text, plans, table);
  let samples = [];
  return {node, update(one) {
    const served = one.state === "serving";
    setText(name, one.mountpoint);
    table.setAttribute("aria-label", `Rates of ${one.mountpoint}`);
    state.show(served ? one.mode === "passthrough" ? "passthrough" : "page cache" : one.state, kind(one.state));
    setText(source, served ? `${one.source}, ${counted(one.files, "file")}, up ${duration(one.uptime_s)}` +
      (one.restarts ? `, ${counted(one.restarts, "restart")}` : "") : one.source || "");
    wrong.show(one);
    table.hidden = cached.bar.hidden = cached.text.hidden = plans.hidden = !served;
    if (!served) return;
    cached.show(one.cached_bytes, one.bytes, `${size(one.cached_bytes)} of ${size(one.bytes)} cached, ${share(one.cached_bytes, one.bytes)}`);
    keep(plans, one.plans.map((plan, index) => ({...plan, id: index})), () => {
      const node = make("small", {class: "under"});
      return {node, update(plan) { setText(node, `${plan.label}: ${count(plan.done)} of ${count(plan.total)} planned reads handed out`); }};
    });
    const latest = samples[samples.length - 1];
    if (latest && (latest.pid !== one.pid || latest.uptime_s > one.uptime_s)) samples = [];  // another server counts from zero
    else if (latest && latest.uptime_s === one.uptime_s) samples.pop();
    samples = [...samples, one].slice(-MOST_SAMPLES);
    const rates = lines.map((line) => ratesOf(samples, line.bytes));
    const highest = Math.max(0, ...rates.flat());
    lines.forEach((line, index) => {
      setText(line.cells[0], rates[index].length ? `${size(rates[index].at(-1))}/s` : "…");
      const asked = line.requests ? ratesOf(samples.slice(-2), line.requests) : null;
      setText(line.cells[1], asked === null ? "–" : asked.length ? count(Math.round(asked[0])) : "…");
      setText(line.cells[2], size(one[line.bytes]));
      line.drawn.show(rates[index], highest);
    });
  }};
}

function ratesOf(samples, name) {
  return samples.slice(1).map((now, index) => {
    const before = samples[index];
    return Math.max(0, (now[name] - before[name]) / (now.uptime_s - before.uptime_s));
  });
}

// -- jobs and their logs ----------------------------------------------------------------------

function job() {
  const {node, cells} = row(byId("jobs"), ["", "whole", "", "", "whole", "whole"]);
  const name = make("span"), trainer = make("span", {class: "under"}), status = badge(), why = problem();
  const before = make("span", {class: "line"}), loops = make("span", {class: "line"}), note = make("span", {class: "under"});
  const button = make("button", {type: "button", "aria-expanded": "false", "aria-controls": "log"}, "Show");
  cells[0].append(name, trainer, why.node);
  cells[1].append(status.node);
  cells[3].append(before, loops, note);
  cells[5].append(button);
  let shown = null;
  button.addEventListener("click", () => log.toggle(shown, button));
  return {node, update(one) {
    shown = one;
    setText(name, title(one));
    setText(trainer, one.trainer + (one.gpus ? `, ${counted(one.gpus, "GPU")}` : ""));
    why.show(one);
    why.node.classList.toggle("soft", one.phase !== "FAILED");
    status.show(one.phase, kind(one.phase));
    setText(cells[2], one.data.join(", ") || "–");
    const [first, second, third] = waited(one);
    setText(before, first);
    setText(loops, second);
    setText(note, third);
    before.hidden = !first; loops.hidden = !second; note.hidden = !third;
    setText(cells[4], one.duration || "–");
    button.hidden = !one.instances.length;
    cells[5].parentNode.classList.toggle("none", button.hidden);
    button.setAttribute("aria-label", `Show the log of ${title(one)}`);
    log.refresh(one);
  }};
}

/** How long a job waited for its data: until it was ready, in its loops, and what is not known. */
function waited(one) {
  if (!one.data.length) return ["", "", "it reads no data set"];
  const before = one.waits_for_data ? `${duration(one.data_wait_s)}, and waits` : one.data_wait_s >= 1 ? `${duration(one.data_wait_s)} before it began` : "";
  const loops = one.loops ? `${(100 * one.loops.share).toFixed(1)}% of its loops’ time` : "";
  if (one.loops) return [before, loops, `${duration(one.loops.waited_s)} for ${counted(one.loops.batches, "batch", "batches")}`];
  if (one.waits_for_data) return [before, "", ""];
  return [before || "none before it began", "", one.planned ? "no batch yet" : "--plan also measures its loops"];
}

const log = {
  job: null, button: null, end: null, timer: 0, asks: 0,

  toggle(job, button) {
    const again = this.job && this.job.id === job.id;
    this.close(again);
    if (again) return;
    Object.assign(this, {job, button});
    button.setAttribute("aria-expanded", "true");
    setText(byId("log-title"), `Log of ${title(job)}`);
    keepOptions(job);
    byId("log-instance").value = job.chief || job.instances[0];
    byId("log").hidden = false;
    byId("log-title").focus();
    byId("log").scrollIntoView({block: "nearest"});
    this.restart();
  },

  close(focus) {
    if (!this.job) return;
    clearTimeout(this.timer);
    this.asks += 1;
    this.button.setAttribute("aria-expanded", "false");
    if (focus) this.button.focus();
    byId("log").hidden = true;
    this.job = null;
  },

  restart() {
    this.end = null;
    this.asks += 1;
    byId("log-text").replaceChildren();
    this.poll(this.asks);
  },

  refresh(job) {
    if (this.job && this.job.id === job.id) keepOptions(this.job = job);
  },

  async poll(number) {
    clearTimeout(this.timer);
    const words = new URLSearchParams({uid: this.job.id, instance: byId("log-instance").value});
    if (this.end !== null) words.set("from", this.end);
    let part = null;
    try {
      const answer = await fetch(`log?${words}`);
      if (answer.ok) part = await answer.json();
    } catch { /* the overview says that the server is gone */ }
    if (number !== this.asks) return;  // another log is shown by now
    if (part) this.show(part);
    const ended = part && ["SUCCEEDED", "FAILED"].includes(part.phase) && !part.text;
    if (!ended) this.timer = setTimeout(() => this.poll(number), part && part.text.length > 60000 ? 0 : POLL_MS);
  },

  /** Whole lines are added; the last one, which is not whole yet, is replaced each time. */
  show(part) {
    const node = byId("log-text");
    const atEnd = node.scrollHeight - node.scrollTop - node.clientHeight < 30;
    if (part.begins_anew || !node.firstChild) node.replaceChildren(document.createTextNode(""), make("span"));
    node.firstChild.appendData(part.text);
    if (node.firstChild.length > 2e6) node.firstChild.deleteData(0, 1e6);
    setText(node.lastChild, part.rest || (node.firstChild.length ? "" : "It has printed nothing."));
    this.end = part.end;
    if (atEnd || part.begins_anew) node.scrollTop = node.scrollHeight;
  },
};

function keepOptions(job) {
  const select = byId("log-instance"), chosen = select.value;
  if ([...select.options].map((one) => one.value).join() === job.instances.join()) return;
  select.replaceChildren(...job.instances.map((name) => make("option", {value: name}, name)));
  if (job.instances.includes(chosen)) select.value = chosen;
}

// -- data operations and benchmark runs -------------------------------------------------------

function operation() {
  const {node, cells} = row(byId("operations"), ["", "whole", "", "whole", "", "whole"]);
  const name = make("span"), wrong = problem(), phase = badge(), done = meter("Progress");
  cells[0].append(name, wrong.node);
  cells[3].append(phase.node);
  cells[4].append(done.bar, done.text);
  return {node, update(one) {
    setText(name, title(one));
    wrong.show(one);
    setText(cells[1], one.kind);
    setText(cells[2], one.dataset || "–");
    phase.show(one.phase, kind(one.phase));
    const known = one.total_bytes !== null && one.done_bytes !== null;
    done.bar.hidden = !known;
    if (known) done.show(one.done_bytes, one.total_bytes, `${size(one.done_bytes)} of ${size(one.total_bytes)}`);
    else setText(done.text, "–");
    setText(cells[5], one.duration || "–");
  }};
}

function run() {
  const {node, cells} = row(byId("runs"), ["", "whole", "", "number", "whole"]);
  const link = make("a"), name = make("span"), folder = make("span", {class: "under"}), state = badge(), wrong = problem();
  cells[0].append(link, name, folder);
  cells[1].append(state.node);
  const verdict = make("span");
  cells[2].append(verdict, wrong.node);
  return {node, update(one) {
    link.hidden = !one.has_report;
    name.hidden = one.has_report;
    setText(link, one.name);
    setText(name, one.name);
    link.setAttribute("href", `runs/${one.id}/report.html`);
    setText(folder, one.folder);
    state.show(one.state, kind(one.state));
    setText(verdict, one.verdict || (one.problem ? "" : "–"));
    wrong.show(one);
    setText(cells[3], one.experiments ? `${one.done} of ${one.experiments}` : "–");
    setText(cells[4], one.started ? new Date(one.started).toLocaleString([], {dateStyle: "medium", timeStyle: "short"}) : "–");
  }};
}

// -- the page ---------------------------------------------------------------------------------

const SECTIONS = {datasets: dataset, mounts: mount, jobs: job, operations: operation, runs: run};

function show(overview) {
  setText(byId("machine"), overview.machine);
  setText(byId("version"), overview.version);
  document.title = `Penstock on ${overview.machine}`;
  for (const [name, begin] of Object.entries(SECTIONS)) {
    const section = byId(name), {items, error, hint} = overview[name];
    const table = section.querySelector(":scope > table"), failure = section.querySelector(".failure");
    keep(table ? table.tBodies[0] : section.querySelector(".cards"), items, begin);
    if (table) table.hidden = !items.length;
    else section.querySelector(".note").hidden = !items.length;
    section.querySelector(".empty").hidden = Boolean(items.length || error);
    failure.hidden = !error;
    setText(failure, error ? `${error}${hint ? `; hint: ${hint}` : ""}` : "");
    setText(byId(`${name}-count`), String(items.length));
  }
  if (log.job && !overview.jobs.items.some((one) => one.id === log.job.id)) log.close(false);
}

function setState(text, lost) {
  setText(byId("state"), text);
  byId("state").classList.toggle("lost", lost);
}

let pollTimer = 0, polls = 0;

async function poll() {
  clearTimeout(pollTimer);
  const number = ++polls;
  try {
    const answer = await fetch("overview");
    if (number !== polls) return;  // the page was hidden and shown again: a later one goes on
    if (answer.status === 403) {
      setState("This page is no longer valid: open the address that penstock ui printed", true);
      return;
    }
    if (!answer.ok) throw new Error(await answer.text());
    show(await answer.json());
    setState("Live", false);
  } catch (error) {
    if (number !== polls) return;
    const gone = error instanceof TypeError;
    setState(gone ? "The server does not answer: is penstock ui still running?" : error.message, true);
  }
  if (!document.hidden) pollTimer = setTimeout(poll, POLL_MS);
}

byId("log-close").addEventListener("click", () => log.close(true));
byId("log-instance").addEventListener("change", () => log.restart());
document.addEventListener("keydown", (event) => { if (event.key === "Escape") log.close(true); });
document.addEventListener("visibilitychange", () => { if (!document.hidden) poll(); });
poll();
