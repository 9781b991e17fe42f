/* The script of the page of `fulcrum serve`: it holds the federation and the settings, asks the server, and shows the answers. */
(() => {
  const { byId, data, drawCharts, fillTable, followTheme, buildTable } = fulcrum;
  const PAUSE = 500; // milliseconds without another answer, before one is told
  const REST = 250; // milliseconds without another answer, before what takes longer is asked for
  const PATIENCE = 300; // milliseconds after which a question that a slider has overtaken is given up
  const controls = [...document.querySelectorAll("[data-setting]")];
  let federation; // its roster, as JSON text, and its columns for the table
  let charts = {};
  const undone = []; // federations before each edit
  let waiting = []; // questions not yet sent
  let running = null; // the one under way
  let answers = 0;
  let telling; // the timer of what is told to those who listen
  let late; // the timer of what takes longer, and its request
  let rested = 0;

  function hold(roster) {
    const places = [...roster.tiers, ...(roster.group ? [roster.group] : [])];
    federation = {
      roster,
      text: JSON.stringify(roster),
      columns: [
        { heading: "silo", kind: "text", values: roster.silos },
        ...places.map(({ name, nodes, codes }, at) => ({ heading: name, kind: "text", values: nodes, codes, last: at > 0 })),
        { heading: "records", kind: "number", values: roster.records, sizes: true },
      ],
    };
  }

  /* A number as it is written: 1,000, 1 000 and 1,000.5 have thousands, 2,5 and 0,125 a decimal comma; else NaN. */
  function parsed(text) {
    const written = text.trim();
    if (/^[1-9]\d{0,2}(,\d{3})+(\.\d+)?$/.test(written)) return Number(written.replaceAll(",", ""));
    if (/^[1-9]\d{0,2}([ \u00a0\u202f]\d{3})+$/.test(written)) return Number(written.replace(/\s/g, ""));
    if (/^\d+,\d+$/.test(written)) return Number(written.replace(",", "."));
    return written ? Number(written) : NaN;
  }

  /* Settings, and sliders beside their numbers; far-reaching ones go by ratios. */
  const number = (control) => parsed(control.querySelector("input[type=text]").value);
  function limits(control) {
    const { low, high, steps } = control.dataset;
    return [...("log" in control.dataset ? [Math.log(low), Math.log(high)] : [Number(low), Number(high)]), Number(steps)];
  }
  function placed(control) {
    const [low, high, steps] = limits(control);
    const value = "log" in control.dataset ? Math.log(number(control)) : number(control);
    const slider = control.querySelector("input[type=range]");
    slider.value = Math.round((steps * (value - low)) / (high - low));
    slider.setAttribute("aria-valuetext", control.querySelector("input[type=text]").value);
  }
  function slid(control) {
    const [low, high, steps] = limits(control);
    const slider = control.querySelector("input[type=range]");
    let value = low + ((high - low) * slider.value) / steps;
    if ("log" in control.dataset) value = Number(Math.exp(value).toPrecision(2));
    else value = Number(value.toFixed(4));
    if ("whole" in control.dataset) value = Math.round(value);
    control.querySelector("input[type=text]").value = value < 1e-3 && value > 0 ? value.toExponential() : String(value);
    slider.setAttribute("aria-valuetext", String(value));
  }
  /* A key moves a slider to the next number that reads otherwise: a single step may be less than its digits. */
  const STEPS = { ArrowUp: 1, ArrowRight: 1, ArrowDown: -1, ArrowLeft: -1 };
  function stepped(control, step) {
    const [field, slider] = ["text", "range"].map((type) => control.querySelector(`input[type=${type}]`));
    const [before, end] = [number(control), step > 0 ? slider.max : slider.min];
    do {
      slider.value = Number(slider.value) + step;
      slid(control);
    } while (parsed(field.value) === before && slider.value !== end);
  }
  function wrong(setting, must, written) {
    return Object.assign(new Error(`this must be ${must}, got '${written}'`), { place: `${setting}-error` });
  }
  function entered(control) {
    const { setting, entry } = control.dataset;
    const written = control.querySelector("input").value.trim();
    if (entry === "word") return written || undefined;
    if (!written || (entry === "number or auto" && written === "auto")) return written || undefined;
    const value = parsed(written);
    if (!(entry === "whole" ? Number.isInteger : Number.isFinite)(value)) {
      throw wrong(setting, { whole: "a whole number", number: "a number" }[entry] ?? "a number or auto", written);
    }
    return value;
  }
  const ofPersons = () => byId("unit").value !== "silo"; // the controls that belong to a unit within silos
  function settings() {
    const found = {};
    for (const control of controls) {
      const { setting } = control.dataset;
      if (control.closest("#of-persons") && !ofPersons()) continue;
      const choice = control.querySelector("select");
      if (setting === "epsilon_inside" && !byId("inside-on").checked) continue;
      if (setting === "weights_share" && byId("weights").value !== "between") continue;
      if (choice || "entry" in control.dataset) {
        const value = choice ? choice.value || undefined : entered(control);
        if (value !== undefined) found[setting] = value;
        continue;
      }
      const value = number(control);
      const whole = "whole" in control.dataset;
      if (!(whole ? Number.isInteger : Number.isFinite)(value)) {
        throw wrong(setting, whole ? "a whole number" : "a number", control.querySelector("input[type=text]").value);
      }
      found[setting === "weights_share" ? "weights" : setting] = value;
    }
    return found;
  }

  function tell(place, reason) {
    for (const shown of document.querySelectorAll(".error")) shown.textContent = "";
    if (!reason) return;
    byId(place).textContent = reason;
    byId(place).scrollIntoView({ block: "nearest", behavior: "instant" }); // the card of settings has a scroll of its own
    byId("edited").textContent = "";
  }

  async function posted(path, body, { signal, kind = "application/json" } = {}) {
    let response;
    try {
      response = await fetch(path, { method: "POST", body, signal, headers: { "Content-Type": kind }, credentials: "omit" });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Error("the server does not answer. Start it again: fulcrum serve");
    }
    if (response.ok) return response;
    const told = await response.json().catch(() => ({}));
    throw new Error(told.error ?? `the server answers ${response.status}`);
  }
  const question = (held, more = {}) =>
    `{"federation":${held.text},"settings":${JSON.stringify(settings())}${Object.entries(more)
      .map(([key, value]) => `,${JSON.stringify(key)}:${JSON.stringify(value)}`)
      .join("")}}`;

  /* One question at a time. A slider's next value waits for the answer to the last and then goes alone. */
  function ask(asked) {
    clearTimeout(late?.timer);
    late?.controller.abort();
    if (asked.moved) {
      waiting = waiting.filter(({ moved }) => !moved);
      if (running?.asked.moved && performance.now() - running.since > PATIENCE) running.controller.abort();
    } else if (asked.fresh) {
      waiting = [];
      running?.controller.abort();
    }
    waiting.push(asked);
    if (!running) send();
  }
  async function send() {
    const asked = waiting.shift();
    if (!asked) return;
    running = { asked, controller: new AbortController(), since: performance.now() };
    try {
      const held = asked.held ?? federation;
      const more = { ...(asked.edit && { edit: asked.edit }), ...(asked.held && { whole: true }) };
      const response = await posted("/plan", question(held, more), { signal: running.controller.signal });
      await show(asked, await response.json());
    } catch (error) {
      if (error.name !== "AbortError") {
        tell(error.place ?? asked.place, error.message);
        asked.refused?.();
      }
    }
    running = null;
    send();
  }

  async function show(asked, answer) {
    const [before, budget] = ["saving", "budget"].map((id) => byId(id).textContent);
    if (asked.edit) undone.push(federation);
    if (asked.held) federation = asked.held;
    if (asked.fresh) undone.length = 0;
    if (answer.federation) hold(answer.federation);
    tell();
    if (asked.reading) tellReading(asked.reading);
    byId("head").innerHTML = answer.head; // rendered and escaped by the server
    document.title = `${federation.roster.name}: what if`;
    if (answer.regions !== undefined) {
      const focused = document.activeElement?.id;
      byId("regions").innerHTML = answer.regions;
      if (focused) byId(focused)?.focus();
      chosen();
    }
    byId("undo").disabled = !undone.length;
    const note = [asked.note, answer.note].filter(Boolean).join(" ");
    byId("edited").textContent = note ? `${note} Saving ${before} → ${answer.saving}, noise ${budget} → ${answer.budget} C².` : "";
    document.querySelectorAll(".regions tbody tr").forEach((row, at) => {
      [row.querySelector(".noise").textContent, row.querySelector(".influence").textContent] = answer.figures[at];
    });
    federation.columns = federation.columns.map((column) => (column.sizes ? { ...column, heading: answer.size_word } : column));
    for (const word of document.querySelectorAll("[data-size-word]")) word.textContent = answer.size_word;
    for (const cell of document.querySelectorAll(".regions td.mean")) {
      cell.dataset.label = `mean ${answer.size_word}`;
      cell.querySelector("input").setAttribute("aria-label", `Mean ${answer.size_word} of ${cell.closest("tr").dataset.region}`);
    }
    charts = { ...answer.charts, ...(charts.weights && { weights: charts.weights }) };
    document.querySelector("figure[data-chart=weights]").classList.add("waiting");
    describe();
    await drawCharts(answer.charts);
    const [first, last] = [false, true].map((last) => federation.columns.filter((column) => Boolean(column.last) === last));
    fillTable(federation.roster.silos.length, [...first, ...answer.columns, ...last]); // epsilons in sight, as in the report
    document.documentElement.dataset.answers = answers += 1;
    askLater();
    clearTimeout(telling);
    telling = setTimeout(() => {
      const [above, inside, saving] = [...document.querySelectorAll("#headline dd")].map((figure) => figure.textContent);
      byId("told").textContent = `worst epsilon ${above} above, ${inside} inside, saving ${saving}`;
    }, PAUSE);
  }

  function describe() {
    for (const part of document.querySelectorAll("[data-with]")) part.hidden = !charts[part.dataset.with];
    for (const part of document.querySelectorAll("[data-without]")) part.hidden = part.dataset.without in charts;
    for (const figure of document.querySelectorAll("figure[data-chart]")) {
      figure.querySelector(".described").textContent = charts[figure.dataset.chart]?.description ?? "";
    }
  }

  /* Noise against influence, and some advice, are too slow for a moving slider: the page asks for them once all controls rest. */
  function askLater() {
    const controller = new AbortController();
    const timer = setTimeout(async () => {
      try {
        const response = await posted("/later", question(federation), { signal: controller.signal });
        const { weights, advice } = await response.json();
        if (controller.signal.aborted) return;
        charts = { ...charts, weights };
        describe();
        if (weights) await drawCharts({ weights });
        byId("hints").insertAdjacentHTML("afterbegin", advice); // rendered and escaped by the server
        document.documentElement.dataset.rested = rested += 1;
      } catch (error) {
        // A control that is wrong by now is told of beside it, by the question that it is part of.
        if (error.name !== "AbortError" && !error.place) console.error("later", error);
      }
    }, REST);
    late = { controller, timer };
  }

  /* Advice that is followed by a button: a control changed, or regions merged. */
  byId("head").addEventListener("click", ({ target }) => {
    const { offer, value } = target.closest("button")?.dataset ?? {};
    if (!offer) return;
    const wanted = JSON.parse(value);
    if (offer === "merge") return merge(wanted);
    const control = controls.find(({ dataset }) => dataset.setting === offer);
    const place = `${offer}-error`;
    const choice = control.querySelector("select");
    if (choice) {
      choice.value = wanted;
      return choice.dispatchEvent(new Event("change", { bubbles: true })); // further controls follow, and the question
    } else {
      if (offer === "epsilon_inside") byId("inside-on").checked = true;
      allow();
      control.querySelector("input[type=text]").value = String(wanted);
      placed(control);
    }
    ask({ place, moved: true });
  });

  /* Regions by hand. */
  const chosenRegions = () =>
    [...document.querySelectorAll(".regions input:checked")].map((box) => box.closest("tr").dataset.region);
  function chosen() {
    const rows = [...document.querySelectorAll(".regions tr:has(input:checked)")].map(({ dataset }) => dataset);
    byId("merge").disabled = rows.length < 2;
    const moved = rows.filter(({ outer }) => outer !== rows[0].outer);
    const told = moved.map(({ region, outer }) => `${region} from ${outer} to ${rows[0].outer}`);
    byId("crossing").textContent = told.length ? `Merging moves ${told.join(", and ")}.` : "";
  }
  function edit(change, note, refused) {
    ask({ place: "edit-error", edit: change, note, refused });
  }
  const merge = (regions) => edit({ kind: "merge", regions }, `Merged ${regions.join(" and ")}.`);
  byId("merge").addEventListener("click", () => merge(chosenRegions()));
  byId("add").addEventListener("click", () => edit({ kind: "add" }, "Added a region."));
  byId("design").addEventListener("click", () => {
    const { value } = byId("design-most");
    if (!Number.isInteger(parsed(value))) return tell("edit-error", `this must be a whole number of silos, got '${value}'`);
    edit({ kind: "design", number: parsed(value) }, "Chose the regions.");
  });
  byId("undo").addEventListener("click", () => {
    const held = undone.pop();
    if (held) ask({ place: "edit-error", held, note: "Undone.", refused: () => undone.push(held) });
  });
  byId("regions").addEventListener("click", ({ target }) => {
    const kind = target.closest("button")?.dataset.edit;
    if (!kind) return;
    const { region } = target.closest("tr").dataset;
    edit({ kind, regions: [region] }, `${kind === "split" ? "Split" : "Removed"} ${region}.`);
  });
  byId("regions").addEventListener("change", ({ target }) => {
    const kind = target.dataset.edit;
    if (!kind) return chosen();
    const { region } = target.closest("tr").dataset;
    const refused = () => (target.value = target.defaultValue);
    if (kind === "rename") return edit({ kind, regions: [region], name: target.value }, `Renamed ${region}.`, refused);
    const value = parsed(target.value);
    if (!Number.isFinite(value)) {
      tell("edit-error", `${region}: this must be a number, got '${target.value}'`);
      return refused();
    }
    edit({ kind, regions: [region], number: value }, `Changed ${region}.`, refused);
  });

  /* Files: chosen, or dropped anywhere on the page. What can be said of a column is a button in the line that says so. */
  const SAYING = /--column (\w+)=((?:'[^']*'|"[^"]*"|[^\s;'"])+)/g;
  function withButtons(place, text, say) {
    place.replaceChildren();
    let from = 0;
    for (const found of say ? text.matchAll(SAYING) : []) {
      const [meaning, name] = [found[1], found[2].replace(/(['"])(.*?)\1/g, "$2")];
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = meaning === "ignore" ? `Ignore ${name}` : `${name} is ${meaning}`;
      button.addEventListener("click", () => say(`${meaning}=${name}`));
      place.append(text.slice(from, found.index), button);
      from = found.index + found[0].length;
    }
    place.append(text.slice(from));
  }
  async function read(file, columns = []) {
    const say = (column) => read(file, [...columns, column]);
    try {
      if (file.size > data.largest) {
        throw new Error(`${file.name} is larger than the ${data.largest / 1e6} MB that the page takes. Use: fulcrum plan`);
      }
      const said = columns.map((column) => `&column=${encodeURIComponent(column)}`).join("");
      const path = `/read?name=${encodeURIComponent(file.name)}${said}`;
      const response = await posted(path, file, { kind: "application/octet-stream" });
      const { federation: roster, notes } = await response.json();
      const before = federation;
      hold(roster);
      const held = federation;
      federation = before;
      ask({ place: "file-error", held, fresh: true, reading: { name: file.name, notes, say } });
    } catch (error) {
      tell("file-error", error.message);
      withButtons(byId("file-error"), error.message, say);
    }
  }
  function tellReading({ name, notes, say }) {
    byId("reading").hidden = !notes.length;
    byId("reading-name").textContent = name;
    byId("notes").replaceChildren(
      ...notes.map((note) => {
        const item = document.createElement("li");
        withButtons(item, note, say);
        return item;
      }),
    );
  }
  byId("file").addEventListener("change", ({ target }) => {
    if (target.files.length) read(target.files[0]);
    target.value = ""; // the same file can be chosen again once it is mended
  });
  const dropping = (on) => document.querySelector(".drop").classList.toggle("over", on);
  addEventListener("dragover", (event) => {
    event.preventDefault();
    dropping(true);
  });
  addEventListener("dragleave", () => dropping(false));
  addEventListener("drop", (event) => {
    event.preventDefault();
    dropping(false);
    if (event.dataTransfer.files.length) read(event.dataTransfer.files[0]);
  });

  /* Downloads: made anew from what the page holds. */
  for (const button of document.querySelectorAll("[data-download]")) {
    button.addEventListener("click", async () => {
      const { download } = button.dataset;
      button.disabled = true;
      try {
        const response = await posted(`/download/${download}`, question(federation));
        const link = document.createElement("a");
        link.href = URL.createObjectURL(await response.blob());
        link.download = download;
        link.click();
        setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
        tell();
      } catch (error) {
        tell(button.dataset.error ?? "download-error", error.message);
      }
      button.disabled = false;
    });
  }

  for (const control of controls) {
    const place = `${control.dataset.setting}-error`;
    const follow = () => ask({ place, moved: true });
    if (control.querySelector("select") || "entry" in control.dataset) {
      control.addEventListener("change", follow);
      continue;
    }
    placed(control);
    const slider = control.querySelector("input[type=range]");
    slider.addEventListener("input", () => {
      slid(control);
      follow();
    });
    slider.addEventListener("keydown", (event) => {
      if (!(event.key in STEPS) || event.altKey || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      stepped(control, STEPS[event.key]);
      follow();
    });
    control.querySelector("input[type=text]").addEventListener("change", () => {
      placed(control);
      follow();
    });
  }
  for (const help of document.querySelectorAll(".help")) {
    help.addEventListener("click", () => {
      const about = byId(help.getAttribute("aria-controls"));
      about.hidden = !about.hidden;
      help.setAttribute("aria-expanded", String(!about.hidden));
    });
  }
  byId("unit").addEventListener("change", () => (byId("of-persons").hidden = !ofPersons()));
  byId("weights").addEventListener("change", ({ target }) => (byId("between").hidden = target.value !== "between"));
  const inside = document.querySelector("[data-setting=epsilon_inside]");
  function allow() {
    for (const input of inside.querySelectorAll("input")) input.disabled = !byId("inside-on").checked;
  }
  byId("inside-on").addEventListener("change", () => {
    allow();
    ask({ place: "epsilon_inside-error", moved: true });
  });
  allow();

  hold(data.federation);
  tellReading({ name: data.federation.name, notes: data.notes });
  buildTable(0);
  followTheme(() => drawCharts(charts));
  ask({ place: "file-error", moved: true });
})();
