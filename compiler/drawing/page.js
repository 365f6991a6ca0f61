"use strict";
(() => {
  const told = document.getElementById("told");
  const inside = told.querySelector("div");
  const things = [...document.querySelectorAll(".thing")];
  const narrow = matchMedia("(max-width: 40rem)");
  let pinned = null;
  let shown = null;
  let closed = null; // where the pointer was when details were closed: what lies below there keeps quiet

  const edges = [...document.querySelectorAll(".edge")];
  const title = (card) => document.querySelector(`#${card} h3 span`).textContent;

  // What is shown stands out everywhere; of a node also the edges that begin or end there.
  function mark(card) {
    for (const t of [...things, ...edges]) t.classList.toggle("on", card !== null && t.dataset.card === card);
    const touching = edges.filter((e) => card !== null && (e.dataset.from === card || e.dataset.to === card));
    for (const e of touching) e.classList.add("on");
    document.body.classList.toggle("dimmed", touching.length > 0);
  }

  // Beside the thing, on the side with more room, inside the window.
  function place(thing) {
    if (narrow.matches) return;
    const at = thing.getBoundingClientRect();
    const { width, height } = told.getBoundingClientRect();
    const [w, h] = [document.documentElement.clientWidth, window.innerHeight];
    const right = at.right + 10 + width <= w;
    const left = right ? at.right + 10 : Math.max(8, at.left - width - 10);
    const overlaps = !right && at.left - width - 10 < 8;
    const below = at.bottom + 10 + height <= h ? at.bottom + 10 : Math.max(8, at.top - height - 10);
    told.style.left = `${Math.max(8, overlaps ? Math.min(at.left, w - width - 8) : left)}px`;
    told.style.top = `${overlaps ? below : Math.max(8, Math.min(at.top, h - height - 8))}px`;
  }

  function show(thing) {
    const card = thing.dataset.card;
    if (shown !== card) {
      const copy = document.getElementById(card).cloneNode(true);
      copy.removeAttribute("id");
      inside.replaceChildren(copy);
      told.setAttribute("aria-label", title(card));
      shown = card;
    }
    told.hidden = false;
    told.scrollTop = 0;
    place(thing);
    mark(card);
  }

  function hide() {
    told.hidden = true;
    told.classList.remove("pinned");
    pinned = shown = null;
    mark(null);
  }

  function pin(thing) {
    if (pinned === thing) return hide();
    pinned = thing;
    told.classList.add("pinned");
    show(thing);
  }

  for (const thing of things) {
    thing.addEventListener("pointerenter", (e) => {
      if (closed && Math.abs(e.clientX - closed.x) + Math.abs(e.clientY - closed.y) < 4) return;
      closed = null;
      if (e.pointerType !== "touch" && !pinned) show(thing);
    });
    thing.addEventListener("pointerleave", () => !pinned && hide());
    thing.addEventListener("focus", () => !pinned && thing.matches(":focus-visible") && show(thing));
    thing.addEventListener("blur", () => !pinned && hide());
    thing.addEventListener("click", (e) => (e.stopPropagation(), pin(thing)));
    thing.addEventListener("keydown", (e) => {
      if (e.key !== "Enter" && e.key !== " ") return;
      e.preventDefault();
      pin(thing);
    });
  }
  document.addEventListener("keydown", (e) => {
    if (e.key !== "Escape" || told.hidden) return;
    const back = pinned;
    hide();
    if (back && back.hasAttribute("tabindex")) back.focus({ preventScroll: true });
  });
  document.addEventListener("click", (e) => !told.contains(e.target) && hide());
  told.querySelector("button").addEventListener("click", (e) => {
    closed = { x: e.clientX, y: e.clientY };
    hide();
  });

  // Names of lanes stay in sight when a figure is moved sideways.
  function hold(box) {
    const svg = [...box.querySelectorAll("svg")].find((s) => s.getBoundingClientRect().width > 0);
    const scale = svg.viewBox.baseVal.width / svg.getBoundingClientRect().width;
    for (const g of svg.querySelectorAll(".headings")) g.setAttribute("transform", `translate(${box.scrollLeft * scale} 0)`);
    box.classList.toggle("moved", box.scrollLeft > 4);
  }

  // A figure is as wide as a small window, until it is asked for in its actual size; the style knows which is first.
  function sized(figure) {
    const box = figure.querySelector(".scroll");
    const svg = box.querySelector("svg");
    const button = figure.querySelector(".size");
    const fits = () => parseFloat(getComputedStyle(svg).minWidth) === 0;
    const least = parseFloat(svg.style.getPropertyValue("--natural")) * 0.86;
    function tell() {
      button.hidden = least <= box.clientWidth;
      button.textContent = fits() ? "Actual size" : "Fit to window";
      button.setAttribute("aria-label", `${button.textContent}, ${button.dataset.name}`);
      hold(box);
    }
    button.addEventListener("click", () => {
      const actual = fits();
      figure.classList.toggle("actual", actual);
      figure.classList.toggle("fit", !actual);
      tell();
    });
    box.addEventListener("scroll", () => hold(box), { passive: true });
    new ResizeObserver(tell).observe(box);
  }
  for (const figure of document.querySelectorAll("figure")) sized(figure);
})();
