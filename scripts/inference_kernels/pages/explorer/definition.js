// One definition, and one solution.

function definitionPage(name) {
  const item = definitionOf.get(name);
  if (!item) return missing("definition", name);
  const counts = classCounts(item.workloads);
  return [
    trail([[""], "Definitions"], [["?operator=" + item.op_type], item.op_type]),
    h("h1", { tabindex: "-1" }, breakable(name)),
    h(
      "p",
      { class: "tallies" },
      data.classes.map((kind) => chip(kind, `${number(counts[kind])} ${kind}`)),
      h("span", {}, counted(item.solutions.length, "solution")),
    ),
    described(item.description),
    h(
      "ul",
      { class: "tags", "aria-label": "Tags" },
      item.tags.map((tag) => h("li", {}, tag)),
    ),
    sections(
      section("Contract", contract(item)),
      section("Acceptance", acceptance(item.task)),
      section("Workloads", workloadsOf(item, counts)),
      section(
        "Solutions",
        item.solutions.length
          ? table(`Solutions of ${name}`, solutionColumns(false), item.solutions)
          : h("p", { class: "nothing" }, "None in this dataset yet."),
        measured(item),
      ),
      section("Reference", source(item.reference)),
    ),
  ];
}

// Short shapes stay on one line.
function symbolicShape({ shape }) {
  const text = shape === null ? "scalar" : `[${shape.join(", ")}]`;
  return h("code", { class: text.length < 24 && "whole" }, text);
}

function contract(item) {
  const tensors = [
    ...item.inputs.map((spec) => ({ ...spec, role: "input" })),
    ...item.outputs.map((spec) => ({ ...spec, role: "output" })),
  ];
  return [
    h("h3", {}, "Tensors"),
    table(
      "Inputs and outputs",
      [
        { label: "Tensor", cell: (spec) => code(spec.name) },
        { label: "Role", cell: (spec) => chip(spec.role) },
        {
          label: "Shape",
          cell: symbolicShape,
        },
        { label: "Type", cell: (spec) => h("span", { class: "whole" }, spec.dtype) },
        { label: "Meaning", wide: true, cell: (spec) => spec.description ?? "–" },
      ],
      tensors,
    ),
    h("h3", {}, "Axes"),
    table(
      "Axes",
      [
        { label: "Axis", cell: (axis) => code(axis.name) },
        {
          label: "Size",
          numeric: true,
          cell: (axis) => (axis.type === "const" ? number(axis.value) : "variable"),
        },
        { label: "Meaning", wide: true, cell: (axis) => axis.description ?? "–" },
      ],
      item.axes,
    ),
    h("h3", {}, "Constraints"),
    item.constraints.length
      ? h(
          "ul",
          { class: "rules" },
          item.constraints.map((rule) => h("li", {}, h("code", {}, rule))),
        )
      : h("p", { class: "dim" }, "None."),
  ];
}

function acceptance({ tolerance, timing, baseline, group_axis: group, dev }) {
  const ratio = tolerance.required_matched_ratio;
  const rule =
    tolerance.comparison === "absolute_or_relative"
      ? "error ≤ atol or error ≤ rtol · |reference|"
      : "error ≤ atol + rtol · |reference|";
  return facts([
    ["Rule", h("code", {}, rule)],
    ["atol", tolerance.atol],
    ["rtol", tolerance.rtol],
    ["Elements that must match", ratio === null ? "all" : percentExact(ratio)],
    ["Integer outputs", "exactly equal"],
    [
      "Timed",
      `${timing.timed}; ${timing.warmup} warm-up, ${timing.iters} iterations, ${timing.trials} trials`,
    ],
    [
      "Baseline",
      solutionOf.has(baseline)
        ? link(["solution", baseline], breakable(baseline))
        : h("span", {}, breakable(baseline), " (not in this dataset)"),
    ],
    ["Grouped by", group],
    ["Dev subset", counted(dev.length, "workload")],
  ]);
}

const percentExact = (value) => `${Number((100 * value).toPrecision(12))} %`;

function workloadsOf(item, counts) {
  const byClass = data.classes.map((kind) => `${counts[kind]} ${kind}`).join(", ");
  const label = `Workloads of ${item.name} by exact shape: ${item.summary}; ${byClass}`;
  return [
    item.shapes
      ? figure(item.shapes, label)
      : h("p", { class: "nothing" }, "No histogram: run scripts/plot_shape_distributions.py."),
    item.workloads.length > 0 &&
      longTable(`Workloads of ${item.name}`, workloadColumns(false), item.workloads),
  ];
}

// Results of solutions that are not in this dataset would be lost in the table of solutions.
function measured(item) {
  const rows = data.results.filter((row) => row.definition === item.name);
  return (
    rows.length > 0 && [
      h("h3", {}, "Measured on one H200"),
      table(
        `Results of ${item.name}`,
        RESULT_COLUMNS.filter((column) => column.label !== "Definition"),
        rows,
      ),
    ]
  );
}

function solutionPage(name) {
  const item = solutionOf.get(name);
  if (!item) return missing("solution", name);
  const { spec } = item;
  return [
    trail([["solutions"], "Solutions"], [["definition", item.definition], item.definition]),
    h("h1", { tabindex: "-1" }, breakable(name)),
    h(
      "p",
      { class: "tallies" },
      chip("language", spec.language),
      item.architectures.map((one) => chip("arch", one)),
    ),
    item.description && h("p", { class: "lead" }, item.description),
    facts([
      ["Solves", link(["definition", item.definition], breakable(item.definition))],
      ["Author", item.author],
      ["Target hardware", spec.target_hardware],
      ["Dependencies", spec.dependencies ?? []],
      ["Entry point", code(spec.entry_point)],
      ["Outputs", spec.destination_passing_style === false ? "returned" : "written into given buffers"],
      ["Baseline of its task", definitionOf.get(item.definition).task.baseline === name ? "yes" : "no"],
    ]),
    section(
      "Result on one H200",
      item.result
        ? table(`Result of ${name}`, RESULT_COLUMNS.slice(1), [item.result])
        : h("p", { class: "nothing" }, "Not measured yet."),
    ),
    section("Sources", item.sources.map(source)),
  ];
}
