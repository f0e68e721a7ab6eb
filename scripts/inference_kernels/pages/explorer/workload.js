// One workload: the chain from model to replay, and its tensors.

function workloadPage(uuid) {
  const item = workloadOf.get(uuid);
  if (!item) return missing("workload", uuid);
  const definition = definitionOf.get(item.definition);
  const dev = definition.task.dev.includes(uuid);
  return [
    trail([["workloads"], "Workloads"], [["definition", item.definition], item.definition]),
    h("h1", { tabindex: "-1" }, "Workload ", h("code", {}, breakable(uuid))),
    h(
      "p",
      { class: "tallies" },
      chip(item.class),
      verdict(item),
      dev && chip("dev", "dev subset"),
      chip("arch", `captured on ${capturedOn(pooled(item.hardware))}`),
    ),
    h("p", { class: "lead" }, CLASS_MEANING[item.class]),
    h(
      "ul",
      { class: "axis-list", "aria-label": "Variable axes" },
      Object.entries(item.axes).map(([name, value]) =>
        h("li", {}, h("span", {}, name), " ", h("b", {}, number(value))),
      ),
    ),
    sections(
      section("Where it comes from", chain(item)),
      section("Tensors", tensorTable(item)),
      section("Replay of the reference", replay(item)),
    ),
    neighbours(definition.workloads, item),
  ];
}

const verdict = (item) =>
  item.replay.passed ? chip("good", "✓ replay passed") : chip("bad", "✗ replay failed");

function chain(item) {
  const { flags, environment, substitutions, ...engine } = pooled(item.engine);
  const adaptations = pooled(item.adaptations);
  const folded = (label, value) =>
    Object.keys(value).length > 0 &&
    h("details", {}, h("summary", {}, counted(Object.keys(value).length, label)), shown(value));
  const steps = [
    ["Model", shown(pooled(item.model))],
    ["Engine", [shown(engine), folded("flag", flags), folded("environment variable", environment)]],
    ["Substitutions in the engine", bullets(substitutions, "None: the engine ran as it is.")],
    ["Hardware", shown(pooled(item.hardware))],
    ["Request", shown(pooled(item.request))],
    ["Operation", shown(item.operation)],
    ["Adaptations to the contract", bullets(adaptations, "None: the call's own tensors.")],
  ];
  return h(
    "ol",
    { class: "chain" },
    steps.map(([title, content]) => h("li", {}, h("h3", {}, title), content)),
  );
}

const bullets = (items, none) =>
  items.length
    ? h(
        "ul",
        {},
        items.map((text) => h("li", {}, breakable(text))),
      )
    : h("p", { class: "dim" }, none);

function tensorTable(item) {
  const rows = tensorsOf(item);
  const value =
    (key, format = short) =>
    (row) =>
      row.statistics ? format(row.statistics[key]) : "–";
  return table(
    `Tensors of ${item.workload}`,
    [
      { label: "Tensor", cell: (row) => code(row.name) },
      { label: "Role", cell: (row) => row.role },
      {
        label: "Shape",
        cell: (row) =>
          row.shape ? `[${row.shape.map(number).join(", ")}]` : row.value === undefined ? "–" : "scalar",
      },
      { label: "Type", cell: (row) => h("span", { class: "whole" }, row.spec.dtype ?? "–") },
      { label: "Size", numeric: true, cell: (row) => (row.bytes ? size(row.bytes) : "–") },
      { label: "Minimum", numeric: true, cell: value("min") },
      { label: "Maximum", numeric: true, cell: value("max") },
      { label: "Zeros", numeric: true, cell: value("zero_share", percent) },
      { label: "Non-finite", numeric: true, cell: value("non_finite") },
      { label: "File or value", wide: true, cell: (row) => file(row) },
    ],
    rows,
  );
}

function file(row) {
  if (!row.path) return h("span", {}, "value ", code(row.value));
  const [store, hash] = [row.path.split("/")[1], row.path.split("/").pop().replace(".safetensors", "")];
  return h(
    "details",
    {},
    h("summary", {}, `${store} · `, h("code", {}, `${hash.slice(0, 10)}…`)),
    code(row.path),
    row.recipe && [h("p", {}, "Rewritten from its seed:"), shown(row.recipe)],
  );
}

function replay(item) {
  const rows = Object.entries(item.replay.errors).map(([name, errors]) => ({ name, ...errors }));
  const criterion = pooled(item.replay.criterion);
  return [
    h(
      "p",
      {},
      "The definition's reference, run on the captured inputs",
      Object.keys(item.outputs).length
        ? " and compared with every element that the engine returned."
        : "; there is no engine output to compare with.",
    ),
    rows.length > 0 &&
      table(
        "Errors by output",
        [
          { label: "Output", cell: (row) => code(row.name) },
          { label: "Verdict", cell: (row) => String(row.status ?? "–") },
          { label: "Elements", numeric: true, cell: (row) => short(row.elements) },
          { label: "Mismatched", numeric: true, cell: (row) => short(row.mismatched) },
          { label: "Non-finite", numeric: true, cell: (row) => short(row.non_finite) },
          { label: "Largest error", numeric: true, cell: (row) => short(row.max_abs_error) },
          { label: "Relative RMS", numeric: true, cell: (row) => short(row.relative_rms) },
          {
            label: "Tolerance used",
            cell: (row) =>
              typeof row.tolerance_used === "number"
                ? h("span", { class: "used" }, bar(row.tolerance_used), percent(row.tolerance_used))
                : "–",
          },
        ],
        rows,
      ),
    facts(
      Object.entries({
        ...criterion,
        device: item.replay.device,
        ...(item.replay.torch ? { torch: item.replay.torch } : {}),
      }),
    ),
  ];
}

function neighbours(workloads, item) {
  const place = workloads.indexOf(item);
  const step = (other, label, rel) =>
    other &&
    link(["workload", other.workload], [label, h("span", { class: "dim" }, ` ${axisText(other.axes)}`)], {
      rel,
    });
  return h(
    "nav",
    { class: "neighbours", "aria-label": "Other workloads of this definition" },
    step(workloads[place - 1], "← Previous", "prev"),
    h("span", { class: "dim" }, `${place + 1} of ${workloads.length}`),
    step(workloads[place + 1], "Next →", "next"),
  );
}
