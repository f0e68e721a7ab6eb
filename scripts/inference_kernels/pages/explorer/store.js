// The data of the page and what is looked up in it.

const data = JSON.parse(document.getElementById("data").textContent);

const definitionOf = new Map(data.definitions.map((item) => [item.name, item]));
const solutionOf = new Map(data.solutions.map((item) => [item.name, item]));
const workloadOf = new Map(data.workloads.map((item) => [item.workload, item]));
const pooled = (place) => data.pool[place];

const CLASS_MEANING = {
  published: "Runs of the full pinned checkpoints on the GPUs they were published for.",
  contest: "Tensors of the MLSys 2026 FlashInfer contest, without engine outputs.",
  seeded:
    "Runs of the real engine on an untrained model of the same architecture; weights come from a fixed seed.",
};

for (const item of data.definitions) Object.assign(item, { workloads: [], solutions: [], worst: null });
for (const item of data.workloads) {
  item.worst = worstUse(item);
  const owner = definitionOf.get(item.definition);
  owner.workloads.push(item);
  if (item.worst !== null) owner.worst = Math.max(owner.worst ?? 0, item.worst);
}
for (const item of data.solutions) {
  item.result = data.results.find((row) => row.solution === item.name && row.definition === item.definition);
  definitionOf.get(item.definition).solutions.push(item);
}
for (const item of data.definitions) {
  item.models = item.tags.filter((tag) => tag.startsWith("model:")).map((tag) => tag.slice(6));
  item.sizes = Object.fromEntries(
    item.axes.filter((axis) => axis.type === "const").map((axis) => [axis.name, axis.value]),
  );
}

// The share of the tolerance that a workload's replay used; null where no engine output was compared.
function worstUse(workload) {
  if (!Object.keys(workload.outputs).length) return null;
  const used = Object.values(workload.replay.errors)
    .map((item) => item?.tolerance_used)
    .filter((value) => typeof value === "number");
  return used.length ? Math.max(...used) : null;
}

const classCounts = (workloads) =>
  Object.fromEntries(
    data.classes.map((name) => [name, workloads.filter((item) => item.class === name).length]),
  );

// With no-break spaces, so that a name stays with its size.
const axisText = (axes) =>
  Object.entries(axes)
    .map(([name, value]) => `${name}\u00a0=\u00a0${number(value)}`)
    .join(", ");

const shapeOf = (definition, spec, axes) =>
  spec.shape === null
    ? null
    : spec.shape.map((axis) => (axis in definition.sizes ? definition.sizes[axis] : axes[axis]));

// Bits of an element, from the number in the dtype's name.
const bitsOf = (dtype) => (dtype === "bool" ? 8 : Number(/\d+/.exec(dtype)?.[0] ?? 0));

// Every tensor or scalar of a workload: {name, role, spec, shape, bytes, path, value, recipe, statistics}.
function tensorsOf(workload) {
  const definition = definitionOf.get(workload.definition);
  const row = (role, spec, item) => {
    const shape = spec.dtype && spec.shape ? shapeOf(definition, spec, workload.axes) : null;
    return {
      name: spec.name,
      role,
      spec,
      shape,
      path: item?.path,
      value: item?.value,
      recipe: workload.generated?.[spec.name],
      bytes: shape && (shape.reduce((product, length) => product * length, 1) * bitsOf(spec.dtype)) / 8,
      statistics: workload.statistics[spec.name],
    };
  };
  return [
    ...definition.inputs.map((spec) => row("input", spec, workload.inputs[spec.name])),
    ...definition.outputs
      .filter((spec) => spec.name in workload.outputs)
      .map((spec) => row("output", spec, workload.outputs[spec.name])),
    ...Object.entries(workload.auxiliary).map(([name, item]) => row("auxiliary", { name }, item)),
  ];
}

function storedTensors() {
  const paths = new Set();
  for (const workload of data.workloads) {
    for (const group of [workload.inputs, workload.outputs, workload.auxiliary]) {
      for (const item of Object.values(group)) if (item.path) paths.add(item.path);
    }
  }
  return paths.size;
}

// "sm_90" from a capability of "9.0"; else the kind of device.
const capturedOn = (hardware) =>
  hardware.compute_capability
    ? `sm_${String(hardware.compute_capability).replace(".", "")}`
    : hardware.device;
