// The pages over everything: captures and results.

// Workloads by class, model, engine and machine.
function captureGroups() {
  const groups = new Map();
  for (const item of data.workloads) {
    const [model, engine, hardware] = [pooled(item.model), pooled(item.engine), pooled(item.hardware)];
    const machine = String(hardware.name ?? hardware.device);
    const key = JSON.stringify([item.class, model.id, model.revision, engine.name, engine.version, machine]);
    if (!groups.has(key)) groups.set(key, { kind: item.class, model, engine, hardware, machine, items: [] });
    groups.get(key).items.push(item);
  }
  return [...groups.values()];
}

const among = (group, value) => new Set(group.items.flatMap(value)).size;
const captured = (group) => {
  const query = queryOf({ ...stateOf(""), model: "id:" + group.model.id, class: group.kind });
  return [
    h("a", { href: "#/workloads" + query }, breakable(group.model.id)),
    group.model.title && h("div", { class: "dim" }, String(group.model.title)),
  ];
};

const CAPTURE_COLUMNS = [
  { label: "Model", cell: captured },
  { label: "Class", cell: (group) => chip(group.kind) },
  { label: "Engine", cell: ({ engine }) => `${engine.name} ${engine.version}` },
  { label: "Captured on", cell: (group) => [group.machine, " ", chip("arch", capturedOn(group.hardware))] },
  { label: "Requests", numeric: true, cell: (group) => among(group, (item) => pooled(item.request).case) },
  { label: "Definitions", numeric: true, cell: (group) => among(group, (item) => item.definition) },
  { label: "Workloads", numeric: true, cell: (group) => number(group.items.length) },
  {
    label: "Substitutions",
    numeric: true,
    cell: (group) => among(group, (item) => pooled(item.engine).substitutions),
  },
  {
    label: "Replays passed",
    numeric: true,
    cell: (group) => `${group.items.filter((item) => item.replay.passed).length} of ${group.items.length}`,
  },
];

const captureList = () => [
  h("h1", { tabindex: "-1" }, "Captures"),
  h(
    "p",
    { class: "lead" },
    "Where the workloads come from: runs of an engine, by class, model and machine. ",
    "A substitution is a part of the engine that was replaced for the run; each workload names its own.",
  ),
  section(
    "Runs",
    data.workloads.length
      ? table("Captures", CAPTURE_COLUMNS, captureGroups())
      : h("p", { class: "nothing" }, "No captures in this dataset yet."),
  ),
];

const times = (value) => (typeof value === "number" ? `${value.toFixed(2)}×` : "–");
const RESULT_COLUMNS = [
  {
    label: "Solution",
    cell: (row) =>
      solutionOf.has(row.solution)
        ? link(["solution", row.solution], breakable(row.solution))
        : breakable(row.solution),
  },
  { label: "Definition", cell: (row) => link(["definition", row.definition], breakable(row.definition)) },
  { label: "Data", cell: (row) => row.data },
  { label: "Workloads", cell: resultText },
  {
    label: "Time, geomean",
    numeric: true,
    cell: (row) => (row.geomean_us === null ? "–" : `${short(row.geomean_us)} µs${row.unsteady ? " ~" : ""}`),
  },
  { label: "Time over floor", numeric: true, cell: (row) => times(row.floor_ratio) },
  { label: "Speed over SGLang", numeric: true, cell: (row) => times(row.speed_vs_sglang) },
  { label: "Tolerance used", numeric: true, cell: (row) => percent(row.worst_error) },
];

const resultList = () => [
  h("h1", { tabindex: "-1" }, "Results"),
  section(
    "Baselines on one H200",
    data.results.length
      ? table("Baselines on one H200", RESULT_COLUMNS, data.results)
      : h(
          "p",
          { class: "nothing" },
          "Not measured yet: results/summaries/h200_baselines.jsonl is not in this dataset.",
        ),
  ),
  data.figures.map((item) => section(item.title, figure(item.svg, item.title))),
];
