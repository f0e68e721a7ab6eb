// Routes: the part of the address after `#/`, a path and, for lists, the filter.

const SECTIONS = [
  ["", "Definitions"],
  ["workloads", "Workloads"],
  ["captures", "Captures"],
  ["solutions", "Solutions"],
  ["results", "Results"],
];
const LISTS = {
  "": frontPage,
  workloads: workloadList,
  captures: captureList,
  solutions: solutionList,
  results: resultList,
};
const PAGES = { definition: definitionPage, workload: workloadPage, solution: solutionPage };
const OWNER = { definition: "", workload: "workloads", solution: "solutions" };

const main = document.getElementById("main");
const status = document.getElementById("status");
// Where the reader was on pages left behind, by address: {top, href of the link that was followed}.
const left = new Map();
let refresh = null;
// The path on screen; null before the first.
let current = null;
let followed = null;

function say(text) {
  status.textContent = text;
}

function missing(kind, name) {
  return [
    h("h1", { tabindex: "-1" }, `No such ${kind}`),
    h("p", { class: "lead" }, `This dataset has no ${kind} `, code(name), "."),
    h("p", {}, link([""], "All definitions")),
  ];
}

function trail(...steps) {
  return h(
    "nav",
    { class: "trail", "aria-label": "Breadcrumb" },
    h(
      "ol",
      {},
      steps.map(([parts, text]) =>
        h(
          "li",
          {},
          parts[0].startsWith("?") ? h("a", { href: "#/" + parts[0] }, text) : link(parts, breakable(text)),
        ),
      ),
    ),
  );
}

function parse(hash) {
  const [path, query = ""] = hash.replace(/^#?\/?/, "").split(/\?(.*)/s);
  return { path, query };
}

// decodeURIComponent throws on a broken escape, which an address from elsewhere may hold.
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch (error) {
    if (error instanceof URIError) return text;
    throw error;
  }
}

function content(path, query) {
  if (Object.hasOwn(LISTS, path)) return LISTS[path](stateOf(query));
  const [kind, ...rest] = path.split("/");
  return Object.hasOwn(PAGES, kind) ? PAGES[kind](decoded(rest.join("/"))) : missing("page", path);
}

function render() {
  const { path, query } = parse(location.hash);
  const same = path === current;
  if (same && refresh) refresh(stateOf(query));
  else {
    refresh = null;
    say("");
    main.replaceChildren(...[content(path, query)].flat(Infinity).filter(Boolean));
    const title = main.querySelector("h1").textContent;
    document.title = path ? `${title} · inference-kernels` : "inference-kernels";
    if (current !== null) settle();
  }
  markSection(path);
  current = path;
  followed = null;
}

function markSection(path) {
  const [kind] = path.split("/");
  const owner = OWNER[kind] ?? path;
  const query = Object.hasOwn(LISTS, path)
    ? queryOf({ ...stateOf(parse(location.hash).query), sort: "" })
    : "";
  document
    .getElementById("sections")
    .replaceChildren(
      ...SECTIONS.map(([route, label]) =>
        h(
          "li",
          {},
          h("a", { href: "#/" + route + query, "aria-current": route === owner ? "page" : null }, label),
        ),
      ),
    );
}

// A followed link leads to the heading; going back leads to where the reader was.
function settle() {
  const before = followed ? null : left.get(location.hash);
  window.scrollTo(0, before?.top ?? 0);
  const links = before ? [...main.querySelectorAll("a")] : [];
  const place = links.find((node) => node.getAttribute("href") === before.href) ?? main.querySelector("h1");
  place.focus({ preventScroll: true });
}

history.scrollRestoration = "manual";
document.addEventListener("click", (event) => {
  const target = event.target.closest("a");
  if (!target || event.ctrlKey || event.metaKey || target.hash === location.hash) return;
  if (target.classList.contains("skip")) {
    event.preventDefault();
    main.focus();
    return;
  }
  followed = target.getAttribute("href");
  left.set(location.hash, { top: window.scrollY, href: followed });
});
window.addEventListener("hashchange", render);
render();
