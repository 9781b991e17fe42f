"use strict";
/* What all pages share: light and dark, charts, and the table by silo. */
const fulcrum = (() => {
  const ROW = 34; // pixels, as in the style sheet
  const SPARE = 12; // rows drawn beyond what is seen
  const root = document.documentElement;
  const byId = (id) => document.getElementById(id);
  const data = JSON.parse(byId("data").textContent);

  /* Light and dark: the system's wish until the reader chooses. */
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  function followTheme(changed) {
    const toggle = byId("theme");
    const follow = () => {
      toggle.textContent = isDark() ? "Light" : "Dark";
      toggle.setAttribute("aria-label", isDark() ? "Use light colours" : "Use dark colours");
      changed();
    };
    toggle.hidden = false;
    toggle.addEventListener("click", () => {
      root.dataset.theme = isDark() ? "light" : "dark";
      follow();
    });
    system.addEventListener("change", follow);
    follow();
  }

  /* A specification without its data, and the data by name: where the first stays, the second is swapped alone. */
  function parted(spec) {
    const datasets = {};
    const walk = (part) => {
      if (Array.isArray(part)) return part.map(walk);
      if (part === null || typeof part !== "object") return part;
      if (Array.isArray(part.values) && Object.keys(part).length === 1) {
        const name = `data-${Object.keys(datasets).length}`;
        datasets[name] = part.values;
        return { name };
      }
      return Object.fromEntries(Object.entries(part).map(([key, value]) => [key, walk(value)]));
    };
    const { description, ...rest } = spec;
    const layer = walk(rest.layer);
    return { description, datasets, frame: { ...rest, layer } };
  }

  /* Charts: drawn once, then fed; if that fails, what was there stays. */
  const shown = new Map();
  async function drawChart(figure, spec) {
    const key = figure.dataset.chart;
    const live = figure.querySelector(".live");
    const { description, datasets, frame } = parted(spec);
    const look = JSON.stringify([isDark(), frame.width === "container" ? live.clientWidth : 0, frame]);
    const before = shown.get(key);
    try {
      if (before?.look === look) {
        for (const [name, values] of Object.entries(datasets)) before.view.data(name, values);
        await before.view.description(description).runAsync();
      } else {
        const theme = data.themes[isDark() ? "dark" : "light"];
        const width = live.clientWidth;
        const made = await vegaEmbed(live, { ...frame, description, datasets }, {
          ast: true, // expressions are interpreted: the page's policy forbids eval
          actions: false,
          renderer: "svg",
          mode: "vega-lite",
          defaultStyle: false,
          tooltip: { disableDefaultStyle: true },
          config: {
            ...theme,
            axis: { ...theme.axis, labelLimit: Math.min(theme.axis.labelLimit, 0.4 * width) },
            legend: { ...theme.legend, ...(width < 480 && { columns: 1, labelLimit: width - 40 }) },
          },
        });
        before?.finalize();
        shown.set(key, { look, view: made.view, finalize: made.finalize });
        figure.classList.add("drawn");
        figure.classList.toggle("wider", live.scrollWidth > live.clientWidth + 1);
      }
    } catch (error) {
      console.error(key, error);
    }
    figure.classList.remove("waiting");
  }
  async function drawCharts(charts) {
    const figures = [...document.querySelectorAll("figure[data-chart]")].filter((figure) => charts[figure.dataset.chart]);
    for (const figure of figures) {
      const key = figure.dataset.chart;
      const narrow = charts[`${key}-narrow`];
      const room = figure.querySelector(".live").clientWidth;
      await drawChart(figure, narrow && room < charts[key].usermeta.least_width ? narrow : charts[key]);
    }
    root.dataset.drawn = isDark() ? "dark" : "light";
  }

  /* The table: rows in view alone are in the page, so that 100,000 silos scroll as 100 do. */
  let columns = [];
  let given = []; // the columns in the order of a wide screen
  let printed = 0;
  let sorted = null; // the heading by which rows are sorted, and whether downwards
  const box = byId("rows");
  const table = document.createElement("table");
  const body = document.createElement("tbody");
  const numbers = new Intl.NumberFormat("en", { maximumSignificantDigits: 6 });
  const code = (column, row) => (column.codes ? column.codes[row] : row);
  let order = new Uint32Array();
  let seen = order;

  /* Blanks as wide as a digit and as a point fill figures up, so that points stand below each other. */
  const DIGIT = "\u2007";
  const POINT = "\u2008";
  function aligned(figure, places) {
    const [, decimals] = figure.split(".");
    if (!places || decimals?.length >= places) return figure;
    return figure + (decimals ? "" : POINT) + DIGIT.repeat(places - (decimals?.length ?? 0));
  }
  function shownValue(column, value) {
    if (column.kind === "text") return value;
    if (value === null) return column.kind === "epsilon" ? "none" : "";
    return aligned(numbers.format(value), column.places);
  }
  const text = (column, row) => shownValue(column, column.values[code(column, row)]);

  /* Columns as wide as their longest text: rows come and go with the scrolling, so widths cannot be left to them. */
  const LONGEST = 12; // texts that are measured, those with most letters
  const ONE_LINE = 170; // pixels: longer names stand in two lines
  const SMALL = 480; // pixels: in a narrower table both epsilons stand right after the name
  const SMALL_LINE = 130; // pixels, of a name in such a table
  const TWO_LINES = 0.6; // of the longest name, so that it has room in two lines wherever it breaks
  const PADDING = 24; // pixels, as in the style sheet
  const SMALL_PADDING = 13;
  const ARROW = 18; // pixels of the sign behind a heading
  const pen = document.createElement("canvas").getContext("2d");
  const group = document.createElement("colgroup");
  function measured(texts, weight) {
    const { fontSize, fontFamily } = getComputedStyle(table);
    pen.font = `${weight} ${fontSize} ${fontFamily}`;
    return Math.max(0, ...texts.map((text) => pen.measureText(text).width));
  }
  const isSmall = () => box.clientWidth > 0 && box.clientWidth < SMALL;
  function arranged(made) {
    const [name, ...others] = made;
    const epsilons = others.filter(({ kind }) => kind === "epsilon");
    return isSmall() ? [name, ...epsilons, ...others.filter(({ kind }) => kind !== "epsilon")] : made;
  }
  function setWidths() {
    const small = isSmall();
    box.classList.toggle("small-screen", small);
    const line = small ? SMALL_LINE : ONE_LINE;
    const wide = columns.map((column) => {
      const longest =
        column.kind === "text"
          ? column.values.toSorted((a, b) => b.length - a.length).slice(0, LONGEST)
          : ["none", shownValue(column, column.values.reduce((most, value) => Math.max(most, value ?? 0), 0))];
      const head = measured(column.heading.split(" "), 600) + ARROW;
      const whole = measured(longest, 400);
      const wanted = column.kind === "text" && whole > line ? Math.max(line, TWO_LINES * whole) : whole;
      return Math.ceil(Math.max(wanted, head)) + (small ? SMALL_PADDING : PADDING);
    });
    group.replaceChildren(
      ...wide.map((width) => {
        const col = document.createElement("col");
        col.style.width = `${width}px`;
        return col;
      }),
    );
    table.style.setProperty("--wide", `${wide.reduce((sum, width) => sum + width, 0)}px`);
    tellWidth();
  }
  const tellWidth = () => (byId("sideways").hidden = box.scrollWidth <= box.clientWidth + 1);

  /* By value, each column's place in the order; names in natural order, no guarantee last. */
  function ranks(column) {
    if (!column.ranks) {
      const keys = column.values.map((value) =>
        column.kind === "text"
          ? value.toLowerCase().replace(/\d+/g, (digits) => digits.padStart(12, "0"))
          : (value ?? Infinity),
      );
      const sorted = Uint32Array.from(keys.keys()).sort((a, b) => (keys[a] < keys[b] ? -1 : keys[a] > keys[b] ? 1 : a - b));
      column.ranks = new Uint32Array(keys.length);
      let rank = 0;
      sorted.forEach((at, place) => {
        if (place && keys[at] !== keys[sorted[place - 1]]) rank += 1;
        column.ranks[at] = rank;
      });
    }
    return column.ranks;
  }

  function line(index) {
    const row = document.createElement("tr");
    row.setAttribute("aria-rowindex", index + 2);
    for (const column of columns) {
      const cell = row.insertCell();
      cell.textContent = text(column, seen[index]);
      cell.className = column.kind === "text" ? "t" : "n";
    }
    return row;
  }
  function gap(height) {
    const row = document.createElement("tr");
    row.className = "gap";
    row.setAttribute("aria-hidden", "true");
    const cell = row.insertCell();
    cell.colSpan = columns.length;
    cell.style.height = `${height}px`;
    return row;
  }
  function fill(from, to, around) {
    const lines = [];
    for (let index = from; index < to; index += 1) lines.push(line(index));
    if (around && from > 0) lines.unshift(gap(from * ROW));
    if (around && to < seen.length) lines.push(gap((seen.length - to) * ROW));
    body.replaceChildren(...lines);
  }
  function draw() {
    const first = Math.floor(box.scrollTop / ROW) - SPARE;
    const last = first + Math.ceil(box.clientHeight / ROW) + 2 * SPARE;
    fill(Math.max(0, first), Math.min(seen.length, last), true);
  }

  function search() {
    const wanted = byId("search").value.trim().toLowerCase();
    if (wanted) {
      const places = columns
        .filter((column) => column.kind === "text")
        .map((column) => ({
          column,
          hits: (column.lower ??= column.values.map((value) => value.toLowerCase())).map((value) => value.includes(wanted)),
        }));
      seen = order.filter((row) => places.some(({ column, hits }) => hits[code(column, row)]));
    } else {
      seen = order;
    }
    table.setAttribute("aria-rowcount", seen.length + 1);
    byId("count").textContent = `${numbers.format(seen.length)} of ${numbers.format(order.length)} silos`;
  }
  function searchAnew() {
    search();
    box.scrollTop = 0;
    draw();
  }

  function sort() {
    const column = columns.find(({ heading }) => heading === sorted?.heading);
    if (!column) return;
    const rank = ranks(column);
    const sign = sorted.descending ? -1 : 1;
    order = order.slice().sort((a, b) => sign * (rank[code(column, a)] - rank[code(column, b)]) || a - b);
  }
  function sortBy(heading) {
    sorted = { heading, descending: sorted?.heading === heading && !sorted.descending };
    nameHeads();
    sort();
    searchAnew();
  }

  const heads = table.createTHead();
  function nameHeads() {
    const row = document.createElement("tr");
    row.setAttribute("aria-rowindex", 1);
    for (const { heading, kind } of columns) {
      const head = document.createElement("th");
      head.scope = "col";
      head.className = kind;
      if (sorted?.heading === heading) head.setAttribute("aria-sort", sorted.descending ? "descending" : "ascending");
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = heading;
      button.addEventListener("click", () => sortBy(heading));
      head.append(button);
      row.append(head);
    }
    const at = [...heads.querySelectorAll("button")].indexOf(document.activeElement);
    heads.replaceChildren(row);
    if (at >= 0) heads.querySelectorAll("button")[at]?.focus();
  }

  /* Fills the table with other columns; order, search and place stay as the reader has them. */
  function fillTable(count, table) {
    given = table;
    const made = arranged(given);
    const same = columns.length === made.length && columns.every(({ heading }, index) => heading === made[index].heading);
    columns = made;
    if (!same || !heads.rows.length) nameHeads();
    setWidths();
    if (order.length !== count || sorted) order = Uint32Array.from({ length: count }, (_, row) => row);
    sort();
    search();
    draw();
  }

  function buildTable(limit) {
    printed = limit;
    table.className = "silo";
    table.prepend(group);
    table.append(body);
    box.append(table);
    box.hidden = false;
    document.querySelector(".tools").hidden = false;
    byId("search").addEventListener("input", searchAnew);
    let waiting = false;
    box.addEventListener("scroll", () => {
      if (waiting) return;
      waiting = true;
      requestAnimationFrame(() => {
        waiting = false;
        draw();
      });
    });
    addEventListener("resize", () => {
      if (isSmall() !== box.classList.contains("small-screen")) fillTable(order.length, given);
      else draw();
      tellWidth();
    });
    addEventListener("beforeprint", () => {
      fill(0, Math.min(seen.length, printed), false);
      byId("printed").textContent =
        seen.length > printed
          ? `The first ${numbers.format(printed)} of ${numbers.format(seen.length)} silos, in the order chosen. The plan file has them all.`
          : "";
    });
    addEventListener("afterprint", draw);
  }

  return { byId, data, drawCharts, fillTable, followTheme, buildTable };
})();
