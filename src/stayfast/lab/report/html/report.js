"use strict";
/* Names the values under the pointer. All text goes in by textContent; nothing here makes markup of data. */
(() => {
  const tip = document.querySelector(".tip");
  const SVG = "http://www.w3.org/2000/svg";

  const line = (words, swatch) => {
    const row = document.createElement("div");
    if (swatch) {
      const svg = document.createElementNS(SVG, "svg"), stroke = document.createElementNS(SVG, "line");
      svg.setAttribute("viewBox", "0 0 20 10");
      svg.setAttribute("class", "key");
      for (const [key, value] of [["x1", 0], ["x2", 20], ["y1", 5], ["y2", 5], ["class", swatch]]) stroke.setAttribute(key, value);
      svg.append(stroke);
      row.append(svg);
    }
    row.append(words);
    return row;
  };
  const nearest = (xs, x) => {
    let low = 0, high = xs.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (xs[middle] < x) low = middle; else high = middle;
    }
    return Math.abs(xs[low] - x) <= Math.abs(xs[high] - x) ? low : high;
  };
  const ofLines = (chart, x) => {
    const rows = [];
    for (const series of chart.series) {
      if (!series.x.length) continue;
      const at = nearest(series.x, x);
      if (!rows.length) rows.push(line(series.heads[at]));
      rows.push(line(series.name + "  " + series.words[at], series.style));
    }
    return rows;
  };
  const ofHeat = (chart, x, y) => {
    const [left, top, right, bottom] = chart.box;
    const column = Math.min(chart.heads.length - 1, Math.floor((x - left) / (right - left) * chart.heads.length));
    const row = y < top ? -1 : Math.floor((bottom - y) / (bottom - top) * chart.rows.length);
    const cell = chart.cells[column].find((found) => found[0] === row);
    return [line(chart.heads[column]), line(row < 0 ? "failed" : chart.rows[row]),
            line((cell ? cell[1].toLocaleString("en") : "no") + " " + chart.what + (cell && cell[1] === 1 ? "" : "s"))];
  };

  for (const figure of document.querySelectorAll("figure")) {
    const holder = figure.querySelector(":scope > script"), svg = figure.querySelector(":scope > svg.chart");
    if (!holder || !svg) continue;
    const chart = JSON.parse(holder.textContent);
    const [left, top, right, bottom] = chart.box;
    const rule = document.createElementNS(SVG, "line");
    rule.setAttribute("class", "rule");
    rule.setAttribute("y1", top);
    rule.setAttribute("y2", bottom);
    svg.append(rule);
    const leave = () => { tip.classList.remove("on"); rule.classList.remove("on"); };
    svg.addEventListener("pointermove", (event) => {
      const frame = svg.getBoundingClientRect(), scale = chart.width / frame.width;
      const x = (event.clientX - frame.left) * scale, y = (event.clientY - frame.top) * scale;
      if (x < left || x > right || y > bottom || y < top - 16) return leave();
      tip.replaceChildren(...(chart.kind === "heat" ? ofHeat(chart, x, y) : ofLines(chart, x)));
      rule.setAttribute("x1", x);
      rule.setAttribute("x2", x);
      rule.classList.add("on");
      tip.classList.add("on");
      const wide = tip.offsetWidth;
      const place = event.clientX + 16 + wide > window.innerWidth ? event.clientX - wide - 16 : event.clientX + 16;
      tip.style.transform = `translate(${Math.max(4, place)}px, ${event.clientY + 14}px)`;
    });
    svg.addEventListener("pointerleave", leave);
  }
})();
