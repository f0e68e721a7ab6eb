// Filters: kept in the address, so that a filtered list can be shared.

const FIELDS = ["q", "model", "operator", "class", "arch", "sort"];

const distinct = (values) => [...new Set(values)].sort();
const CHOICES = {
  operator: distinct(data.definitions.map((item) => item.op_type)),
  class: data.classes,
  arch: [...new Set([...data.architectures, ...data.solutions.flatMap((item) => item.architectures)])],
};
const MODELS = {
  "Model family": distinct(data.definitions.flatMap((item) => item.models)).map((name) => [
    "family:" + name,
    name,
  ]),
  "Checkpoint captured": distinct(data.workloads.map((item) => pooled(item.model).id)).map((name) => [
    "id:" + name,
    name,
  ]),
};

// What a text search looks through, made once for each item.
const words = new WeakMap();
function haystack(item) {
  if (!words.has(item)) words.set(item, wordsOf(item).join(" ").toLowerCase());
  return words.get(item);
}

function wordsOf(item) {
  if (item.workload) {
    const { model, request, operation, axes } = item;
    return [
      item.workload,
      item.definition,
      item.class,
      pooled(model).id,
      pooled(request).case,
      operation.call_path,
      operation.layer,
      operation.phase,
      capturedOn(pooled(item.hardware)),
      ...axisWords(axes),
    ];
  }
  if (item.spec)
    return [
      item.name,
      item.definition,
      item.author,
      item.description,
      item.spec.language,
      ...item.architectures,
    ];
  return [item.name, item.op_type, item.description, ...item.tags];
}

// Sizes as shown and as typed: "N8 = 1,024", "N8 = 1024" and "N8=1024".
const axisWords = (axes) =>
  Object.entries(axes).flatMap(([name, value]) => [
    `${name} = ${number(value)}`,
    `${name} = ${value}`,
    `${name}=${value}`,
  ]);

const hasModel = (definition, workloads, choice) =>
  choice.startsWith("family:")
    ? definition.models.includes(choice.slice(7))
    : workloads.some((item) => pooled(item.model).id === choice.slice(3));

// item: a definition, a workload or a solution.
function fits(item, state) {
  const definition = item.definition ? definitionOf.get(item.definition) : item;
  const workloads = item.workload ? [item] : definition.workloads;
  const solutions = item.spec ? [item] : definition.solutions;
  return (
    (!state.operator || definition.op_type === state.operator) &&
    (!state.class || workloads.some((one) => one.class === state.class)) &&
    (!state.arch || solutions.some((one) => one.architectures.includes(state.arch))) &&
    (!state.model || hasModel(definition, workloads, state.model)) &&
    state.q
      .toLowerCase()
      .split(/\s+/)
      .every((word) => haystack(item).includes(word))
  );
}

function stateOf(query) {
  const given = new URLSearchParams(query);
  return Object.fromEntries(FIELDS.map((name) => [name, given.get(name) ?? ""]));
}

function queryOf(state) {
  const kept = Object.entries(state).filter(([, value]) => value);
  return kept.length ? "?" + new URLSearchParams(kept) : "";
}

// The form; `sorts` are {value: label}. The list follows every key, the address every complete change.
function filterForm(route, state, sorts) {
  const field = (name, label, control) =>
    h("label", { class: `field ${name}` }, h("span", {}, label), control);
  const option = ([value, label]) => h("option", { value }, label);
  const select = (name, label, first, options) =>
    field(name, label, h("select", { name }, h("option", { value: "" }, first), options));
  const plain = (names) => names.map((name) => option([name, name]));
  const groups = Object.entries(MODELS)
    .filter(([, items]) => items.length)
    .map(([label, items]) => h("optgroup", { label }, items.map(option)));
  const form = h(
    "form",
    { role: "search", "aria-label": "Filter", class: "filters", onsubmit: (event) => event.preventDefault() },
    field(
      "q",
      "Search",
      h("input", {
        type: "search",
        name: "q",
        placeholder: "name, axis, layer, UUID …",
        autocomplete: "off",
      }),
    ),
    select("model", "Model", "all models", groups),
    select("operator", "Operator", "all operators", plain(CHOICES.operator)),
    select("class", "Data class", "all classes", plain(CHOICES.class)),
    select("arch", "Solutions for", "any", plain(CHOICES.arch)),
    sorts && select("sort", "Sort by", "definition", Object.entries(sorts).map(option)),
    h(
      "button",
      {
        type: "button",
        class: "reset",
        onclick: () => {
          refresh(stateOf(""));
          keep(route, stateOf(""));
          form.elements.q.focus();
        },
      },
      "Reset",
    ),
  );
  const chosen = () => stateOf(new URLSearchParams(new FormData(form)));
  form.addEventListener("input", () => refresh(chosen()));
  form.addEventListener("change", () => {
    refresh(chosen());
    keep(route, chosen());
  });
  fill(form, state);
  return form;
}

// An unknown value of the address is shown as "all", and finds nothing.
function fill(form, state) {
  for (const name of FIELDS) {
    const control = form.elements[name];
    if (control && control.value !== state[name]) control.value = state[name];
  }
}

function keep(route, state) {
  history.replaceState(null, "", "#/" + route + queryOf(state));
  markSection(route);
}
