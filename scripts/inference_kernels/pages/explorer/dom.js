// Elements. Text always goes through text nodes, never through markup.

const h = (tag, attributes = {}, ...children) => {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(
    ...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false),
  );
  return node;
};

const hidden = (text) => h("span", { class: "hidden" }, text);
const code = (text) => h("code", {}, breakable(String(text)));

// Long names may break after an underscore, a dot or a slash.
const breakable = (text) =>
  text.split(/(?<=[_./,-])/).flatMap((part, place) => (place ? [h("wbr"), part] : [part]));

const link = (parts, content, attributes = {}) => h("a", { href: address(parts), ...attributes }, content);
const address = (parts) => "#/" + parts.map(encodeURIComponent).join("/");

const number = (value) => (value === null || value === undefined ? "–" : value.toLocaleString("en-US"));
const counted = (value, noun) => `${number(value)} ${noun}${value === 1 ? "" : "s"}`;
const percent = (value) => {
  if (typeof value !== "number") return "–";
  if (value > 0 && value < 0.0005) return "<0.1 %";
  return `${(100 * value).toFixed(value && value < 0.1 ? 1 : 0)} %`;
};
const short = (value) => {
  if (typeof value !== "number") return "–";
  if (Number.isInteger(value) && Math.abs(value) < 1e7) return number(value);
  return String(Number(value.toPrecision(4)));
};
const size = (bytes) => {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let step = 0;
  while (bytes >= 1024 && step < units.length - 1) {
    bytes /= 1024;
    step += 1;
  }
  return `${step && bytes < 100 ? bytes.toFixed(1) : Math.round(bytes)} ${units[step]}`;
};

// A bar that only repeats what a text beside it says.
const bar = (share, kind = "") => {
  const node = h("span", { class: `bar ${kind}`, "aria-hidden": "true" }, h("span"));
  node.firstChild.style.width = `${100 * Math.min(1, Math.max(0, share))}%`;
  return node;
};

const chip = (kind, text = kind) => h("span", { class: `chip ${kind}` }, text);

// A table that becomes cards on a narrow screen; the roles keep it a table for assistive technology.
// columns: {label, cell(row), numeric, wide}; the first cell of a row is its header.
const table = (caption, columns, rows) => {
  const head = h(
    "tr",
    { role: "row" },
    columns.map((column) =>
      h("th", { role: "columnheader", scope: "col", class: column.numeric && "numeric" }, column.label),
    ),
  );
  const line = (row) =>
    h(
      "tr",
      { role: "row" },
      columns.map((column, place) =>
        h(
          place ? "td" : "th",
          {
            role: place ? "cell" : "rowheader",
            scope: place ? null : "row",
            "data-label": column.label,
            class: column.numeric ? "numeric" : column.wide ? "prose" : null,
          },
          h("div", {}, column.cell(row)),
        ),
      ),
    );
  return h(
    "table",
    { role: "table" },
    h("caption", { class: "hidden" }, caption),
    h("thead", { role: "rowgroup" }, head),
    h("tbody", { role: "rowgroup" }, rows.map(line)),
  );
};

// Any JSON value, in full.
const shown = (value) => {
  if (value === null) return "none";
  if (Array.isArray(value)) {
    if (!value.length) return "none";
    return value.every((item) => typeof item !== "object" || item === null) &&
      value.every((item) => String(item).length < 24)
      ? value.join(", ")
      : h(
          "ul",
          {},
          value.map((item) => h("li", {}, shown(item))),
        );
  }
  if (typeof value === "object") return facts(Object.entries(value));
  return typeof value === "string" ? breakable(value) : String(value);
};

const facts = (entries) =>
  entries.length
    ? h(
        "dl",
        { class: "facts" },
        entries.map(([name, value]) =>
          h(
            "div",
            {},
            h("dt", {}, breakable(name)),
            h("dd", {}, value instanceof Node ? value : shown(value)),
          ),
        ),
      )
    : "none";

// Where a description turns to the call that it bounds, a new paragraph starts.
const described = (text) =>
  text.split(/(?=Call boundary: )/).map((part) => h("p", { class: "described" }, part));

const section = (title, ...children) => h("section", {}, h("h2", { tabindex: "-1" }, title), ...children);

// Sections behind a row of buttons that lead to them; the address stays that of the page.
const sections = (...parts) => {
  const button = (part) =>
    h("button", { type: "button", onclick: () => part.firstChild.focus() }, part.firstChild.textContent);
  return [h("nav", { class: "jumps", "aria-label": "On this page" }, parts.map(button)), parts];
};
const scrolled = (label, ...children) =>
  h("div", { class: "scrolled", role: "region", "aria-label": label, tabindex: "0" }, ...children);

const figure = (svg, label, note) =>
  h(
    "figure",
    {},
    scrolled(label, h("img", { src: "data:image/svg+xml," + encodeURIComponent(svg), alt: label })),
    note && h("figcaption", {}, note),
  );

// marks: runs of a length and a letter, as pages/explorer/code.py writes them.
const source = ({ path, text, marks }) => {
  const pre = h("pre", {});
  let place = 0;
  for (const [, length, letter] of marks.matchAll(/(\d+)(\D)/g)) {
    const part = text.slice(place, (place += Number(length)));
    pre.append(letter === "." ? part : h("span", { class: `k-${letter}` }, part));
  }
  return h(
    "div",
    { class: "source" },
    h("p", { class: "path" }, code(path)),
    scrolled(`Source of ${path}`, pre),
  );
};
