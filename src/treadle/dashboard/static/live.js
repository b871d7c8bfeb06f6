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
  let paused = false;
  let slow = 5; // seconds between two looks where no events come

  const state = (name, text) => {
    button.dataset.state = name;
    button.textContent = text;
  };

  const keeps = (node) =>
    node.nodeType === 1 && (node.hasAttribute("data-touched") || node.hasAttribute("data-keep"));

  function show(html) {
    const fresh = new DOMParser().parseFromString(html, "text/html").getElementById("main");
    if (!fresh) return false;
    Idiomorph.morph(main(), fresh, {
      morphStyle: "outerHTML",
      // Of an element with the focus no child is changed. That is for fields: a focused region follows too.
      ignoreActiveValue: document.activeElement.matches("input, textarea, select"),
      callbacks: {
        beforeNodeMorphed: (old) => !keeps(old),
        beforeAttributeUpdated: (name, node) =>
          !(name === "open" && node.tagName === "DETAILS") && name !== "data-current" && name !== "data-touched",
      },
    });
    times();
    chosen();
    return true;
  }

  async function refresh() {
    if (paused || document.hidden || !main().hasAttribute("data-live")) return;
    if (busy || acting) { again = true; return; }
    busy = true;
    const before = sent;
    const began = performance.now();
    try {
      const url = new URL(location.href);
      if (performance.now() > 8000) url.searchParams.delete("done"); // until then it is read
      const headers = { "X-Fragment": "main", Accept: "text/html" };
      if (tag) headers["If-None-Match"] = tag;
      const answer = await fetch(url, { headers, credentials: "same-origin" });
      const text = answer.status === 200 ? await answer.text() : null;
      if (text !== null && before === sent) {
        tag = answer.headers.get("ETag");
        show(text);
      }
      if (answer.ok || answer.status === 304) state("live", "live");
      else state("off", answer.status === 403 ? "signed out" : `not live: ${answer.status}`);
    } catch {
      state("off", "not live: no answer");
    }
    slow = performance.now() - began > 1000 ? Math.min(60, slow * 2) : 5;
    busy = false;
    ifAsked();
  }
  function ifAsked() {
    if (again) { again = false; setTimeout(refresh, 500); }
  }

  // Events where they can pass, else a look every few seconds. A hidden tab does nothing.
  let source = null;
  let heard = 0;
  function listen() {
    if (source || document.hidden || paused || !main().hasAttribute("data-live")) return;
    source = new EventSource(`${root}/live`);
    source.addEventListener("changed", () => { heard = Date.now(); refresh(); });
  }
  function hush() {
    if (source) source.close();
    source = null;
  }
  (function look() {
    setTimeout(() => {
      if (main().hasAttribute("data-live") && Date.now() - heard > slow * 1000) refresh();
      look();
    }, slow * 1000);
  })();
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) hush();
    else { listen(); if (main().hasAttribute("data-live")) refresh(); }
  });
  addEventListener("pagehide", hush);
  addEventListener("pageshow", (event) => { if (event.persisted) listen(); });

  function pause() {
    paused = !paused;
    button.setAttribute("aria-pressed", String(!paused));
    if (paused) { hush(); state("late", "paused"); say("updates are paused"); }
    else { state("live", "live"); say("updates go on"); listen(); refresh(); }
  }
  button.hidden = !main().hasAttribute("data-live");
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
      for (const field of form.querySelectorAll("[data-touched]")) field.removeAttribute("data-touched");
      show(await answer.text());
      const said = main().querySelector("[role=status], [role=alert]");
      say(said ? said.textContent : "done");
      if (!answer.ok) main().querySelector("[role=alert]")?.scrollIntoView({ block: "nearest" });
    } catch {
      say("no answer: it may or may not have happened");
      state("off", "not live: no answer");
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

  // The server writes instants in UTC. Whoever wants local time sees local time.
  function times() {
    if (document.documentElement.dataset.zone !== "local") return;
    for (const time of main().querySelectorAll("time[datetime]")) {
      const local = new Date(time.dateTime).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" });
      if (time.classList.contains("exact")) time.textContent = local;
      time.title = `${local} · ${time.dateTime}`;
    }
  }

  times();
  chosen();
  listen();
  if (main().hasAttribute("data-live")) state("live", "live");
})();
