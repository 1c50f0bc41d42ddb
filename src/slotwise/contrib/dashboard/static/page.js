"use strict";
// Live updates, zoom and keys. Without this file every page still works.
(() => {
  const main = document.getElementById("main");
  const stale = document.getElementById("stale");
  const live = document.body.dataset.live;
  const POLL = 5000, STALE = 30000;
  let etag = null, read = Date.now(), busy = false, stream = null, from = null, isPressed = false;

  // What is pressed, dragged or typed into is not replaced.
  document.addEventListener("pointerdown", () => { isPressed = true; });
  for (const end of ["pointerup", "pointercancel"]) document.addEventListener(end, () => setTimeout(() => { isPressed = false; }));
  const isInUse = () => {
    const at = document.activeElement;
    const isFilled = [...main.querySelectorAll("input")].some((one) => one.value !== one.defaultValue || one.checked !== one.defaultChecked);
    return isFilled || isPressed || from !== null || (main.contains(at) && /^(INPUT|SELECT|TEXTAREA|BUTTON)$/.test(at.tagName));
  };

  function swap(page) {
    const fresh = new DOMParser().parseFromString(page, "text/html");
    const came = fresh.getElementById("main");
    if (!came) return;
    const open = [...main.querySelectorAll("details")].map((one) => one.open);
    const focus = main.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    const scrolled = [...main.querySelectorAll(".scroll")].map((one) => one.scrollLeft);
    main.replaceChildren(...came.childNodes);
    main.querySelectorAll("details").forEach((one, n) => { one.open = Boolean(open[n]); });
    main.querySelectorAll(".scroll").forEach((one, n) => { one.scrollLeft = scrolled[n] || 0; });
    if (focus) [...main.querySelectorAll("a")].find((one) => one.getAttribute("href") === focus)?.focus({ preventScroll: true });
    const said = fresh.querySelector(".asof");
    if (said) document.querySelector(".asof").replaceChildren(...said.childNodes);
  }

  async function refresh() {
    if (busy || document.hidden || isInUse()) return;
    busy = true;
    try {
      const answer = await fetch(location.href, { headers: etag ? { "If-None-Match": etag } : {}, cache: "no-store" });
      const page = answer.status === 200 ? await answer.text() : null;
      // Race: a key may have gone to the filter while the page came.
      if (page !== null && !isInUse()) { swap(page); etag = answer.headers.get("ETag"); }
      const asOf = document.querySelector("#asof time"), said = answer.headers.get("Slotwise-As-Of");
      if (asOf && said && answer.status === 304) asOf.textContent = said;
      if (answer.ok || answer.status === 304) read = Date.now();
      if (answer.status === 403) stop();
    } catch { /* the server is away: the banner says so */ } finally { busy = false; }
    tellAge();
  }

  function tellAge() { stale.hidden = Date.now() - read < STALE; }

  function follow() {
    if (!live || stream || document.hidden) return;
    stream = new EventSource(live);
    stream.addEventListener("tick", refresh);
    stream.onerror = () => { if (stream && stream.readyState === EventSource.CLOSED) stop(); };
  }
  function stop() { if (stream) { stream.close(); stream = null; } }

  if (live !== undefined) {
    follow();
    setInterval(() => { if (!stream || stream.readyState !== EventSource.OPEN) refresh(); tellAge(); }, POLL);
    document.addEventListener("visibilitychange", () => {
      if (document.hidden) stop(); else { refresh(); follow(); }
    });
  }

  // A long operation continues by itself, a batch at a time.
  const next = main.querySelector("form[data-continue]");
  if (next) setTimeout(() => next.requestSubmit(), 300);

  // Zoom: a drag over the timeline shows what it covers.
  const instantAt = (lane, x) => {
    const box = lane.getBoundingClientRect();
    const line = lane.closest(".timeline");
    const [a, b] = [Date.parse(line.dataset.from), Date.parse(line.dataset.to)];
    return a + (b - a) * Math.min(Math.max((x - box.left) / box.width, 0), 1);
  };
  main.addEventListener("pointerdown", (event) => {
    const lane = event.target.closest(".timeline .lane");
    from = lane && event.button === 0 ? { lane, x: event.clientX } : null;
  });
  main.addEventListener("pointerup", (event) => {
    if (!from || Math.abs(event.clientX - from.x) < 8) { from = null; return; }
    const [a, b] = [instantAt(from.lane, from.x), instantAt(from.lane, event.clientX)].sort((x, y) => x - y);
    from = null;
    if (b - a < 60000) return;
    const address = new URL(location.href);
    address.searchParams.set("from", new Date(a).toISOString());
    address.searchParams.set("to", new Date(b).toISOString());
    location.href = address;
  });
  main.addEventListener("dragstart", (event) => { if (event.target.closest(".timeline")) event.preventDefault(); });

  // Keys: a letter opens a page, / goes to the filter, ? lists them.
  const ZOOM = { "+": "closer", "-": "wider", ArrowLeft: "earlier", ArrowRight: "later" };
  function help() {
    const there = document.querySelector(".keys");
    if (there) { there.remove(); return; }
    const box = document.createElement("aside");
    box.className = "keys";
    box.setAttribute("aria-label", "Keys");
    const list = document.createElement("dl");
    const add = (key, what) => {
      const term = document.createElement("dt"), text = document.createElement("dd"), mark = document.createElement("kbd");
      mark.textContent = key; term.append(mark); text.textContent = what; list.append(term, text);
    };
    document.querySelectorAll("nav a").forEach((one) => add(one.dataset.key, one.textContent));
    add("/", "the filter"); add("+ − ← →", "zoom and move the timeline"); add("?", "these keys");
    box.append(list);
    document.body.append(box);
  }
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
    if (event.key === "?") { help(); return; }
    if (event.key === "Escape") { document.querySelector(".keys")?.remove(); return; }
    const field = event.key === "/" && main.querySelector("form[role=search] input, form.filter input");
    if (field) { event.preventDefault(); field.focus(); return; }
    const scrolls = event.target.closest(".scroll");
    const zoom = ZOOM[event.key] && !scrolls && main.querySelector(`[data-zoom=${ZOOM[event.key]}]`);
    if (zoom) { event.preventDefault(); zoom.click(); return; }
    const page = /^[a-z]$/.test(event.key) && document.querySelector(`nav a[data-key=${event.key}]`);
    if (page) page.click();
  });
})();
