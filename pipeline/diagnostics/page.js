"use strict";
(() => {
  const content = JSON.parse(document.getElementById("content").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const PAGE = 50;  // pairs listed at once

  // Colours come as names of CSS variables, so that one figure serves light and dark.
  const resolved = (value, style) => {
    if (typeof value === "string" && value.startsWith("var(--")) {
      return style.getPropertyValue(value.slice(4, -1)).trim();
    }
    if (Array.isArray(value)) return value.map((item) => resolved(item, style));
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([name, item]) =>
        [name, resolved(item, style)]));
    }
    return value;
  };

  // Plotly reads <b> and &amp; in hover texts: a sentence must not be read as markup.
  const escaped = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;")
    .replace(/>/g, "&gt;");
  const wrapped = (text, width) => {
    const lines = [];
    let line = "";
    for (const word of text.split(" ")) {
      for (let part = word; part; part = part.slice(width)) {
        const piece = part.slice(0, width);
        if (line && line.length + 1 + piece.length > width) { lines.push(line); line = piece; }
        else line = line ? `${line} ${piece}` : piece;
      }
    }
    return [...lines, line].map(escaped).join("<br>");
  };
  const hover = (pair) => {
    const width = innerWidth < 640 ? 18 : 36;
    const scores = pair.predictions.map((value, place) => content.runs.length > 1
      ? `${content.runs[place]} ${value.toFixed(2)}` : `prediction ${value.toFixed(2)}`);
    return [wrapped(`1. ${pair.sentence_1}`, width), wrapped(`2. ${pair.sentence_2}`, width),
            `label ${pair.label.toFixed(1)}`, ...scores].join("<br>");
  };

  const draw = (box) => {
    const style = getComputedStyle(document.documentElement);
    const figure = resolved(content.charts[box.dataset.chart], style);
    const colour = (name) => style.getPropertyValue(name).trim();
    for (const trace of figure.data) {
      if (trace.meta && trace.meta.pairs) {
        trace.text = trace.meta.pairs.map((place) => hover(content.pairs[place]));
      }
    }
    const axis = { gridcolor: colour("--line"), zerolinecolor: colour("--line"),
                   linecolor: colour("--line"), fixedrange: true, automargin: true };
    const layout = {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", dragmode: false,
      hovermode: "closest", margin: { l: 48, r: 12, t: 10, b: 44 },
      legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 }, ...figure.layout,
      font: { color: colour("--ink"), size: 12.5, family: getComputedStyle(document.body).fontFamily },
      hoverlabel: { bgcolor: colour("--card"), bordercolor: colour("--line"), align: "left",
                    font: { color: colour("--ink"), size: 13,
                            family: getComputedStyle(document.body).fontFamily } },
    };
    for (const name of Object.keys(layout)) {
      if (!/^[xy]axis/.test(name)) continue;
      const title = { font: { size: 12.5, color: colour("--muted") }, ...layout[name].title };
      layout[name] = { ...axis, ...layout[name], title };
    }
    return Plotly.react(box, figure.data, layout, { displayModeBar: false, responsive: true });
  };

  const cell = (name, text) => {
    const made = document.createElement(name);
    made.textContent = text;
    return made;
  };
  const row = (pair) => {
    const made = document.createElement("tr");
    const sentences = document.createElement("td");
    for (const text of [pair.sentence_1, pair.sentence_2]) {
      const line = cell("div", text);
      line.lang = "ko";
      sentences.append(line);
    }
    sentences.append(cell("small", [pair.id, pair.source].filter(Boolean).join(" · ")));
    made.append(sentences);
    for (const value of [pair.label.toFixed(1), ...pair.predictions.map((one) => one.toFixed(2))]) {
      const number = cell("td", value);
      number.className = "number";
      made.append(number);
    }
    return made;
  };

  const miss = (pair) => pair.predictions.reduce(
    (sum, value) => sum + Math.abs(value - pair.label), 0);
  const list = (low, high) => {
    const inside = content.pairs.filter((pair) => pair.label >= low
      && (pair.label < high || (high === 5 && pair.label <= 5)));
    inside.sort((one, other) => miss(other) - miss(one));
    const target = document.getElementById("range-pairs");
    target.replaceChildren(cell("p", `Labels ${low}–${high}: ${inside.length} pairs, the largest `
      + "error first."));
    if (!inside.length) return;
    const box = document.createElement("div");
    box.className = "scroll";
    box.tabIndex = 0;
    const table = document.createElement("table");
    const head = document.createElement("tr");
    const names = content.runs.length > 1 ? content.runs : ["prediction"];
    for (const [place, name] of ["pair", "label", ...names].entries()) {
      const title = cell("th", name);
      if (place) title.className = "number";
      head.append(title);
    }
    table.append(document.createElement("thead"), document.createElement("tbody"));
    table.tHead.append(head);
    box.append(table);
    target.append(box);
    const more = cell("button", "");
    more.type = "button";
    let shown = 0;
    const show = () => {
      table.tBodies[0].append(...inside.slice(shown, shown + PAGE).map(row));
      shown = Math.min(shown + PAGE, inside.length);
      more.textContent = `Show more (${inside.length - shown} left)`;
      more.hidden = shown === inside.length;
    };
    more.addEventListener("click", show);
    target.append(more);
    show();
  };
  const choose = (low, high) => {
    for (const button of document.querySelectorAll("[data-range]")) {
      button.setAttribute("aria-pressed", button.dataset.range === `${low},${high}`);
    }
    list(low, high);
  };
  for (const button of document.querySelectorAll("[data-range]")) {
    button.addEventListener("click", () => choose(...button.dataset.range.split(",").map(Number)));
  }

  const boxes = [...document.querySelectorAll(".chart")];
  const all = () => Promise.all(boxes.map(draw));
  all().then(() => {
    for (const box of boxes.filter((one) => ["ranges", "bias"].includes(one.dataset.chart))) {
      box.on("plotly_click", (event) => choose(...event.points[0].x.split("–").map(Number)));
    }
    document.body.dataset.ready = "true";
  });
  dark.addEventListener("change", all);
  if (innerWidth < 1024) document.querySelector("nav details").open = false;
})();
