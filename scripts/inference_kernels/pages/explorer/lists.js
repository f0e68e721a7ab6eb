// The lists with a filter: definitions (the front page), workloads, solutions.

const FIRST_ROWS = 100;
const SORTS = { used: "tolerance used", error: "largest error", size: "size of the inputs" };

function frontPage(state) {
  const counts = classCounts(data.workloads);
  return [
    h(
      "div",
      { class: "hero" },
      h("h1", { tabindex: "-1" }, "GPU operators with the tensors of real engine runs"),
      h(
        "p",
        { class: "lead" },
        "Each definition is a kernel to write: a contract, a PyTorch reference, a tolerance, ",
        "and captured calls with a record that says where every byte came from.",
      ),
      h(
        "ul",
        { class: "classes" },
        data.classes.map((name) => classCard(name, counts[name])),
      ),
      h(
        "p",
        { class: "totals" },
        [
          [data.definitions.length, "definition"],
          [data.workloads.length, "workload"],
          [storedTensors(), "tensor file"],
          [data.solutions.length, "solution"],
        ].map(([value, noun]) =>
          h("span", {}, h("b", {}, number(value)), ` ${noun}${value === 1 ? "" : "s"}`),
        ),
      ),
    ),
    listOf("definitions", state, null, data.definitions, (items) =>
      h("ul", { class: "cards" }, items.map(definitionCard)),
    ),
  ];
}

function classCard(name, count) {
  const target = data.targets[name];
  const aim = target
    ? `of ${number(target)}${name === "published" ? ", contest included" : ""}`
    : "no target";
  const reached = name === "published" ? count + classCounts(data.workloads).contest : count;
  return h(
    "li",
    { class: name },
    h("h2", {}, chip(name)),
    h("p", { class: "figure" }, h("b", {}, number(count)), " ", h("span", {}, aim)),
    target ? bar(reached / target, name) : h("span", { class: "bar none", "aria-hidden": "true" }),
    h("p", {}, CLASS_MEANING[name]),
  );
}

function definitionCard(item) {
  const counts = classCounts(item.workloads);
  const present = data.classes.filter((name) => counts[name]);
  return h(
    "li",
    {},
    h("p", { class: "eyebrow" }, item.op_type.replaceAll("_", " ")),
    h("h2", {}, link(["definition", item.name], breakable(item.name))),
    h("p", { class: "about" }, item.description),
    h(
      "p",
      { class: "tallies" },
      present.length
        ? present.map((name) => chip(name, `${number(counts[name])} ${name}`))
        : chip("empty", "no workloads yet"),
      h("span", {}, counted(item.solutions.length, "solution")),
    ),
    item.worst !== null &&
      h("p", { class: "used" }, bar(item.worst), h("span", {}, `≤ ${percent(item.worst)} of the tolerance`)),
  );
}

// A filter and what it leaves; `draw` makes the list of the items that fit.
function listOf(noun, state, sorts, every, draw) {
  const route = noun === "definitions" ? "" : noun;
  const summary = h("p", { class: "summary" });
  const place = h("div", { class: "list" });
  const form = filterForm(route, state, sorts);
  const update = (next) => {
    const items = sorted(
      every.filter((item) => fits(item, next)),
      next.sort,
    );
    const text = `${number(items.length)} of ${counted(every.length, noun.slice(0, -1))}`;
    summary.textContent = text;
    say(text);
    fill(form, next);
    place.replaceChildren(
      items.length
        ? draw(items)
        : h(
            "p",
            { class: "nothing" },
            every.length ? `No ${noun} fit this filter.` : `No ${noun} in this dataset yet.`,
          ),
    );
  };
  update(state);
  refresh = update;
  return h("section", { class: "results", "aria-label": `List of ${noun}` }, form, summary, place);
}

function sorted(items, by) {
  const value = { used: (item) => item.worst ?? -1, error: largestError, size: inputBytes }[by];
  if (!value) return items;
  return items
    .map((item) => [value(item), item])
    .sort((a, b) => b[0] - a[0])
    .map(([, item]) => item);
}

const largestError = (item) =>
  Math.max(-1, ...Object.values(item.replay.errors).map((one) => one?.max_abs_error ?? -1));
const inputBytes = (item) =>
  tensorsOf(item).reduce((sum, one) => sum + (one.role === "input" ? (one.bytes ?? 0) : 0), 0);

// Long lists start with FIRST_ROWS rows; a button adds the others.
function longTable(caption, columns, rows) {
  const place = h("div", {}, table(caption, columns, rows.slice(0, FIRST_ROWS)));
  if (rows.length > FIRST_ROWS) {
    place.append(
      h(
        "button",
        {
          type: "button",
          class: "more",
          onclick: () => {
            place.replaceChildren(table(caption, columns, rows));
            place.querySelectorAll("tbody th a")[FIRST_ROWS]?.focus();
            say(`All ${number(rows.length)} shown`);
          },
        },
        `Show all ${number(rows.length)}`,
      ),
    );
  }
  return place;
}

const workloadColumns = (withDefinition) =>
  [
    {
      label: "Workload",
      cell: (item) =>
        link(["workload", item.workload], h("code", {}, item.workload.slice(0, 8)), { title: item.workload }),
    },
    withDefinition && {
      label: "Definition",
      cell: (item) => link(["definition", item.definition], breakable(item.definition)),
    },
    { label: "Class", cell: (item) => chip(item.class) },
    { label: "Axes", cell: (item) => h("span", { class: "axes" }, axisText(item.axes) || "none") },
    {
      label: "Request",
      cell: (item) => [
        breakable(pooled(item.request).case),
        h("span", { class: "dim" }, ` ${item.operation.phase}`),
      ],
    },
    { label: "Captured on", cell: (item) => capturedOn(pooled(item.hardware)) },
    { label: "Inputs", numeric: true, cell: (item) => size(inputBytes(item)) },
    {
      label: "Tolerance used",
      cell: (item) =>
        item.worst === null
          ? "not compared"
          : h("span", { class: "used" }, bar(item.worst), percent(item.worst)),
    },
  ].filter(Boolean);

const workloadList = (state) => [
  h("h1", { tabindex: "-1" }, "Workloads"),
  h(
    "p",
    { class: "lead" },
    "Each is one captured call of an engine: its inputs, the engine's outputs, and the capture record.",
  ),
  listOf("workloads", state, SORTS, data.workloads, (items) =>
    longTable("Workloads", workloadColumns(true), items),
  ),
];

// `passed` is a count, or a verdict on all workloads.
function resultText(row) {
  if (!row) return "not measured";
  if (typeof row.passed === "boolean") return row.passed ? "passed" : "failed";
  return `${row.passed} of ${row.workloads} passed`;
}

const solutionColumns = (withDefinition) =>
  [
    { label: "Solution", cell: (item) => link(["solution", item.name], breakable(item.name)) },
    withDefinition && {
      label: "Definition",
      cell: (item) => link(["definition", item.definition], breakable(item.definition)),
    },
    { label: "Language", cell: (item) => item.spec.language },
    { label: "Written for", cell: (item) => item.architectures.map((name) => chip("arch", name)) },
    { label: "Result on H200", cell: (item) => resultText(item.result) },
    {
      label: "Time, geomean",
      numeric: true,
      cell: (item) =>
        typeof item.result?.geomean_us === "number" ? `${short(item.result.geomean_us)} µs` : "–",
    },
  ].filter(Boolean);

const solutionList = (state) => [
  h("h1", { tabindex: "-1" }, "Solutions"),
  h(
    "p",
    { class: "lead" },
    "Kernels in the repository: starting points, and baselines that candidates are judged against. ",
    "“Written for” is what a solution declares, not where it ran.",
  ),
  listOf("solutions", state, null, data.solutions, (items) =>
    longTable("Solutions", solutionColumns(true), items),
  ),
];
