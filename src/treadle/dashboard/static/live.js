// Three behaviours on top of pages that work without them: the page follows the store, forms are sent without
// a reload, and keys. What a visitor has typed, chosen, opened or scrolled to stays.
"use strict";
(() => {
  const root = document.documentElement.dataset.root;
  const main = () => document.getElementById("main");
  const say = (text) => { document.getElementById("say").textContent = text; };
  const button = document.getElementById("live");

  // ---------------------------------------------------------------------------------------------- refresh

  let tag = null; // of what is shown
  let busy = false;
  let again = false;
  let sent = 0; // forms: what was asked for before the last one may be out of date
  let acting = 0; // forms without an answer yet: theirs is shown first
  let done = new URL(location.href).searchParams.get("done"); // what the page says was done
  let doneUntil = 8000; // until then it is read
  let paused = false;
  let slow = 5; // seconds between two looks where no events come

  let shownAt = Date.now(); // when what is shown was new
  const banner = document.getElementById("banner");
  const clock = (at) => at.toLocaleTimeString(undefined, { hour: "2-digit", minute: "2-digit", timeZone: zone(), timeZoneName: "short" });
  const isLive = () => main().hasAttribute("data-live");

  const state = (name, text) => {
    button.dataset.state = name;
    button.textContent = text;
    button.hidden = !isLive();
    if (name !== "off") banner.hidden = true;
  };
  const WHY = { 403: "you are signed out", 404: "this page is not there any more", 503: "the store does not answer" };
  function off(text, why) {
    state("off", `not live: ${text}`);
    const old = main().hasAttribute("data-error") ? "" : ` What is shown is as of ${clock(new Date(shownAt))}.`;
    const said = `Not live: ${why}.${old}${text === 404 ? "" : " This page goes on by itself."}`;
    if (banner.textContent !== said) banner.textContent = said;
    banner.hidden = false;
  }

  // Something that the visitor must know about. It stays until it is closed.
  function warn(text) {
    const box = document.createElement("div");
    box.className = "problem bad";
    box.setAttribute("role", "alert");
    const close = document.createElement("button");
    close.type = "button";
    close.className = "plain";
    close.textContent = "Close";
    close.addEventListener("click", () => box.remove());
    box.append(`${text} `, close);
    document.getElementById("alerts").replaceChildren(box);
  }

  const keeps = (node) =>
    node.nodeType === 1 && (node.hasAttribute("data-touched") || node.hasAttribute("data-keep"));

  const broken = main().hasAttribute("data-error"); // the page was opened in an outage: all of it is to come

  const mainOf = (html) => new DOMParser().parseFromString(html, "text/html").getElementById("main");

  // Who may not see the page any more sees nothing of it. Later looks may show it again.
  function signedOut() {
    const said = document.createElement("p");
    said.className = "problem bad";
    said.textContent = "You have no access to this page any more. ";
    const link = document.createElement("a");
    link.href = location.href;
    link.textContent = "Open it again";
    said.append(link);
    main().replaceChildren(said);
    main().setAttribute("data-error", "");
    tag = null;
    off("signed out", WHY[403]);
  }

  function show(fresh) {
    document.dispatchEvent(new Event("showing"));
    Idiomorph.morph(main(), fresh, {
      morphStyle: "outerHTML",
      // Of an element with the focus no child is changed. That is for fields: a focused region follows too.
      ignoreActiveValue: document.activeElement.matches("input, textarea, select"),
      callbacks: {
        // Large pictures are seldom new: to compare them takes a fifteenth of the time.
        beforeNodeMorphed: (old, next) => !keeps(old) && !(old instanceof SVGElement && old.isEqualNode(next)),
        beforeAttributeUpdated: (name, node) =>
          !(name === "open" && node.tagName === "DETAILS") && !["data-current", "data-touched", "style"].includes(name),
      },
    });
    shownAt = Date.now();
    times();
    chosen();
    document.dispatchEvent(new Event("shown"));
  }

  async function refresh() {
    if (paused || document.hidden || !isLive()) return;
    if (busy || acting) { again = true; return; }
    busy = true;
    const before = sent;
    const began = performance.now();
    try {
      const url = new URL(location.href);
      url.searchParams.delete("done");
      if (done && performance.now() < doneUntil) url.searchParams.set("done", done);
      const headers = { "X-Fragment": "main", Accept: "text/html" };
      if (tag) headers["If-None-Match"] = tag;
      const answer = await fetch(url, { headers, credentials: "same-origin", signal: AbortSignal.timeout(30000) });
      const fresh = answer.status === 200 ? mainOf(await answer.text()) : null;
      if (paused) { /* it shows nothing new */ }
      else if ([401, 403].includes(answer.status) || (answer.status === 200 && !fresh)) signedOut(); // or a page to sign in
      else if (answer.ok || answer.status === 304) {
        if (broken) { location.reload(); return; }
        shownAt = Date.now();
        if (fresh && before === sent) {
          tag = answer.headers.get("ETag");
          show(fresh);
        }
        state("live", "live");
      } else off(answer.status, WHY[answer.status] ?? `the dashboard answers ${answer.status}`);
    } catch {
      if (!paused) off("no answer", "the dashboard does not answer");
    }
    slow = performance.now() - began > 1000 ? Math.min(60, slow * 2) : 5;
    busy = false;
    ifAsked();
  }
  function ifAsked() {
    if (again) { again = false; setTimeout(refresh, 500); }
  }

  // Events where they can pass, else a look every few seconds. A hidden tab does nothing.
  // A browser has six connections to a host, and a stream of events keeps one. So one tab has a stream, and
  // tells the others what it hears. Of two that have one, the tab with the lower number keeps it. A tab that
  // has heard of no other for a while opens its own: also where tabs cannot talk to each other.
  const number = Math.random();
  const tabs = "BroadcastChannel" in window ? new BroadcastChannel(`treadle ${root}`) : null;
  const tell = (what) => tabs?.postMessage({ what, number });
  let source = null;
  let heard = 0; // when something last changed
  let led = 0; // when another tab last said that it has a stream
  const follows = () => !document.hidden && !paused && isLive();
  function listen() {
    if (source?.readyState === EventSource.CLOSED) source = null; // it was refused, and does not try again
    if (source || !follows() || Date.now() - led < 6000) return;
    source = new EventSource(`${root}/live`);
    source.addEventListener("changed", () => { heard = Date.now(); tell("changed"); refresh(); });
    tell("leads");
  }
  function hush() {
    source?.close();
    source = null;
  }
  function leave() {
    if (source) { hush(); tell("left"); }
  }
  tabs?.addEventListener("message", ({ data: { what, number: other } }) => {
    if (what === "asks") { if (source) tell("leads"); }
    else if (what === "left") { led = 0; setTimeout(listen, 200 * Math.random()); }
    else if (source && number < other) tell("leads");
    else {
      hush();
      led = Date.now();
      if (what === "changed") { heard = led; refresh(); }
    }
  });
  function enter() {
    tell("asks");
    setTimeout(listen, tabs ? 100 : 0);
  }
  // On a narrow screen the menu is a line that scrolls: to the entry of this page.
  const showEntry = () => {
    const menu = document.querySelector(".menu"), entry = menu?.querySelector("[aria-current]");
    if (entry) menu.scrollLeft = entry.offsetLeft + entry.offsetWidth / 2 - menu.clientWidth / 2;
  };
  showEntry();
  // How many problems and dead items there are, beside the entries of the menu.
  let counted = 0, shown = false;
  async function count() {
    if (document.hidden || paused || Date.now() - counted < 20000) return;
    counted = Date.now();
    try {
      const answer = await fetch(document.documentElement.dataset.menu, { headers: { Accept: "application/json" } });
      const counts = answer.ok ? await answer.json() : {};
      for (const link of document.querySelectorAll(".menu a")) {
        const found = counts[link.dataset.section];
        if (found) { link.dataset.count = found; link.setAttribute("aria-description", `${found} to look at`); }
        else { delete link.dataset.count; link.removeAttribute("aria-description"); }
      }
      if (!shown) showEntry();  // with these it is elsewhere
      shown = true;
    } catch { /* the page itself says that nothing answers */ }
  }
  (function look() {
    setTimeout(() => {
      listen();
      count();
      if (isLive() && Date.now() - heard > slow * 1000) refresh();
      look();
    }, slow * 1000);
  })();
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) leave();
    else { enter(); refresh(); }
  });
  addEventListener("pagehide", leave);
  addEventListener("pageshow", (event) => { if (event.persisted) enter(); });

  function pause() {
    paused = !paused;
    button.setAttribute("aria-pressed", String(!paused));
    if (paused) { leave(); state("late", "paused"); say("updates are paused"); }
    else { state("live", "live"); say("updates go on"); enter(); refresh(); }
  }
  button.hidden = !isLive();
  button.addEventListener("click", pause);

  // ------------------------------------------------------------------------------------------------ forms

  document.addEventListener("input", (event) => event.target.setAttribute("data-touched", ""));

  document.addEventListener("submit", async (event) => {
    const form = event.target;
    if (!form.matches("form[data-inline]")) return;
    event.preventDefault();
    const sender = event.submitter;
    if (sender) sender.disabled = true;
    const fields = new URLSearchParams(new FormData(form, sender));
    sent += 1;
    acting += 1;
    try {
      const answer = await fetch(form.action, {
        method: "POST", body: fields, headers: { "X-Fragment": "main", Accept: "text/html" }, credentials: "same-origin",
      });
      const here = new URL(answer.url);
      if (answer.redirected && here.pathname !== location.pathname) { location.assign(answer.url); return; }
      tag = null;
      const fresh = mainOf(await answer.text());
      const said = fresh?.querySelector("[role=status], [role=alert]")?.textContent;
      if (!fresh || fresh.hasAttribute("data-error")) {
        warn(said ?? "You are signed out: nothing was done."); // the page stays, with what was typed
        again = true;
      } else {
        document.getElementById("alerts").replaceChildren();
        for (const field of form.querySelectorAll("[data-touched]")) field.removeAttribute("data-touched");
        show(fresh);
        [done, doneUntil] = [here.searchParams.get("done"), performance.now() + 8000];
        state("live", "live");
        say(said ?? "done");
        if (!answer.ok) main().querySelector("[role=alert]")?.scrollIntoView({ block: "nearest" });
      }
    } catch {
      warn("No answer: it may or may not have happened. Look before you do it again.");
      off("no answer", "the dashboard does not answer");
    }
    if (sender) sender.disabled = false;
    acting -= 1;
    ifAsked();
  });

  // ------------------------------------------------------------------------------------------------- rows

  const rows = () => [...main().querySelectorAll("tbody tr[data-row]")];
  const current = () => main().querySelector("tr[data-current]");
  function move(step) {
    const all = rows();
    if (!all.length) return;
    const old = current();
    const at = Math.max(0, Math.min(all.length - 1, old ? all.indexOf(old) + step : 0));
    old?.removeAttribute("data-current");
    all[at].setAttribute("data-current", "");
    (all[at].querySelector("a") ?? all[at]).focus({ preventScroll: true });
    all[at].scrollIntoView({ block: "nearest" });
  }
  const boxes = () => [...main().querySelectorAll("input[data-choose]")];
  function chosen() {
    const count = boxes().filter((box) => box.checked).length;
    for (const bar of main().querySelectorAll("[data-chosen]")) bar.hidden = count === 0;
    for (const text of main().querySelectorAll("[data-chosen-count]")) text.textContent = `${count} selected`;
  }
  document.addEventListener("change", (event) => {
    if (event.target.matches("input[data-choose-all]")) {
      for (const box of boxes()) { box.checked = event.target.checked; box.setAttribute("data-touched", ""); }
    }
    if (event.target.matches("select[data-go]")) event.target.form.requestSubmit();
    chosen();
  });

  async function copy(text) {
    try {
      await navigator.clipboard.writeText(text);
    } catch { // plain HTTP has no clipboard
      const area = document.createElement("textarea");
      area.value = text;
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    say(`copied ${text}`);
  }
  document.addEventListener("click", (event) => {
    const from = event.target.closest("[data-copy]");
    if (from) copy(from.dataset.copy);
  });

  // A click anywhere in a row opens what the row is about, unless it was on something else or selected text.
  document.addEventListener("click", (event) => {
    const link = event.target.closest("tr[data-row]")?.querySelector("th[scope=row] a");
    if (!link || event.target.closest("a, button, input, label, summary, select") || String(getSelection())) return;
    if (event.ctrlKey || event.metaKey) open(link.href);
    else link.click();
  });

  // ------------------------------------------------------------------------------------------------- keys

  const keys = document.getElementById("keys");
  const keysButton = document.getElementById("keys-button");
  keysButton.hidden = false;
  keysButton.addEventListener("click", () => keys.showModal());
  let going = 0;
  const press = (selector) => {
    const found = main().querySelector(selector);
    if (found) found.click();
    return Boolean(found);
  };
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest?.("input:not([type=checkbox]), textarea, select, dialog");
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (typing) {
      if (event.key === "Escape" && !event.target.closest("dialog")) event.target.blur();
      return;
    }
    const key = event.key;
    if (going && Date.now() - going < 1500) {
      going = 0;
      const link = document.querySelector(`.menu a[data-key="${CSS.escape(key)}"]`);
      if (link) { event.preventDefault(); link.click(); }
      return;
    }
    const actions = {
      "/": () => { const box = main().querySelector("input[type=search]"); box?.focus(); box?.select(); },
      "?": () => keys.showModal(),
      g: () => { going = Date.now(); },
      j: () => move(1),
      k: () => move(-1),
      x: () => { const box = current()?.querySelector("input[data-choose]"); if (box) box.click(); },
      r: () => press("[data-key-action=requeue]"),
      c: () => press("[data-key-action=cancel]"),
      p: pause,
      y: () => { const id = (current() ?? main()).querySelector("[data-id]")?.dataset.id; if (id) copy(id); },
    };
    if (key in actions) { event.preventDefault(); actions[key](); }
  });

  // ------------------------------------------------------------------------------------------------ times

  // The server writes instants in UTC. They are shown in local time, unless the visitor has chosen UTC.
  function zone() { return document.documentElement.dataset.zone === "local" ? undefined : "UTC"; }
  const FORMS = {
    exact: { year: "numeric", month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit", timeZoneName: "short" },
    clock: { hour: "2-digit", minute: "2-digit", hourCycle: "h23" },
    both: { month: "short", day: "2-digit", hour: "2-digit", minute: "2-digit", hourCycle: "h23" },
    day: { month: "short", day: "2-digit" },
  };
  function local(iso, form, named) {
    return new Date(iso).toLocaleString(undefined, { ...FORMS[form], ...(named ? { timeZoneName: "short" } : {}) });
  }
  function times() {
    if (zone()) return;
    for (const time of main().querySelectorAll("time[datetime]")) {
      const form = time.dataset.form;
      if (form) time.textContent = local(time.dateTime, form, "named" in time.dataset);
      time.title = `${local(time.dateTime, "exact")} · ${time.dateTime}`;
    }
    for (const title of main().querySelectorAll("svg title[data-at]")) {
      const rest = title.textContent.slice(title.textContent.indexOf(": "));
      title.textContent = local(title.dataset.at, title.dataset.form, true) + rest;
    }
  }

  times();
  chosen();
  enter();
  count();
  if (main().hasAttribute("data-error")) refresh();
  else if (isLive()) state("live", "live");
})();
