// Small pictures: bars, an interval, and a curve. Each says in words what it shows.

import { el, svg, svgText, theirs } from "./dom.js";
import { figure, percent } from "./words.js";

export function bar(share, className = "") {
  const fill = el("span", { class: "fill" });
  fill.style.width = `${100 * share}%`;
  return el("span", { class: `track ${className}`, "aria-hidden": "true" }, fill);
}

const Z = 1.959964; // of a normal distribution, 95 % lie within so many standard deviations

/** Wilson's 95 % interval of a share. */
export function interval(right, judged) {
  const z2 = Z ** 2;
  const middle = (right + z2 / 2) / (judged + z2);
  const half = (Z / (judged + z2)) * Math.sqrt((right * (judged - right)) / judged + z2 / 4);
  return [Math.max(0, middle - half), Math.min(1, middle + half)];
}

/** A share on a scale of 0 to 1, with its interval and the share that guessing gets. */
export function intervalChart(share, [low, high], chance) {
  const x = (value) => 8 + 284 * value;
  return svg("svg", { viewBox: "0 0 300 34", class: "interval", "aria-hidden": "true" },
    svg("line", { x1: x(0), x2: x(1), y1: 12, y2: 12, class: "axis" }),
    svg("rect", { x: x(low), width: x(high) - x(low), y: 7, height: 10, rx: 5, class: "range" }),
    svg("line", { x1: x(chance), x2: x(chance), y1: 4, y2: 20, class: "chance" }),
    svg("circle", { cx: x(share), cy: 12, r: 6, class: "point" }),
    ...[0, 0.5, 1].map((value) =>
      svgText(percent(value), { x: x(value), y: 32, "text-anchor": value === 0 ? "start" : value === 1 ? "end" : "middle" })),
  );
}

/** Lines of a name, a bar and a figure: [{name, share, text}]. */
export function bars(lines) {
  return el("ul", { class: "bars" }, lines.map(({ name, share, text, picture }) =>
    el("li", {}, el("span", { class: "name", title: name }, picture && el("span", { class: "frame" }, picture), theirs(name)), bar(share), el("span", { class: "value" }, text))));
}

/** Accuracy of the held-out images by horizon T, on a logarithmic axis; the chosen T is marked. */
export function horizonChart(candidates, chosen, learned) {
  const [width, height, left, bottom] = [560, 220, 52, 36];
  const logs = candidates.map(({ horizon }) => Math.log10(horizon));
  const [least, most] = [Math.min(...logs), Math.max(...logs)];
  const lowest = Math.max(0, Math.floor(10 * Math.min(...candidates.map(({ accuracy }) => accuracy)) - 0.5) / 10);
  const x = (horizon) => left + ((width - left - 16) * (Math.log10(horizon) - least)) / (most - least || 1);
  const y = (accuracy) => 14 + ((height - bottom - 14) * (1 - accuracy)) / (1 - lowest || 1);
  const nearest = candidates.reduce((a, b) =>
    Math.abs(Math.log(b.horizon / chosen)) < Math.abs(Math.log(a.horizon / chosen)) ? b : a);
  const best = candidates.reduce((a, b) => (b.accuracy > a.accuracy ? b : a));
  const label =
    `Held-out accuracy by T. At the chosen T of ${figure(chosen)} it is ${percent(nearest.accuracy)}; ` +
    `the highest, at ${figure(best.horizon)}, is ${percent(best.accuracy)}. The learned T is ${figure(learned)}.`;
  const points = candidates.map(({ horizon, accuracy }) => `${x(horizon)},${y(accuracy)}`).join(" ");
  const decades = [];
  for (let power = Math.ceil(least); power <= most; power += 1) decades.push(10 ** power);
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "curve", role: "img", "aria-label": label },
    ...[lowest, (1 + lowest) / 2, 1].flatMap((value) => [
      svg("line", { x1: left, x2: width - 16, y1: y(value), y2: y(value), class: "axis" }),
      svgText(percent(value), { x: left - 8, y: y(value) + 4, "text-anchor": "end" }),
    ]),
    ...decades.map((value) => svgText(figure(value), { x: x(value), y: height - 18, "text-anchor": "middle" })),
    svgText("T", { x: width - 20, y: height - 4, "text-anchor": "end" }),
    svg("line", { x1: x(learned), x2: x(learned), y1: 14, y2: height - bottom, class: "learned" }),
    svg("line", { x1: x(chosen), x2: x(chosen), y1: 14, y2: height - bottom, class: "chosen" }),
    svg("polyline", { points, class: "line" }),
    ...candidates.map(({ horizon, accuracy }) => svg("circle", { cx: x(horizon), cy: y(accuracy), r: 3, class: "dot" })),
    svg("circle", { cx: x(chosen), cy: y(nearest.accuracy), r: 7, class: "point" }),
  );
}
