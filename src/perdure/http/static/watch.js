// The heat map of the watcher: draws what /api/watch/NAME/heat has, and says what is under the pointer or the cursor.
"use strict";

(() => {
  const box = document.getElementById("heat");
  if (!box) return;
  const EVERY_MS = 2000;
  const ONE = 128, OCTAVE = 48;
  const FULL = Math.log2(1.3); // a ratio at which the colour is at its strongest
  const TOP = 8; // where incidents are drawn, in pixels
  const canvas = box.querySelector("canvas");
  const said = document.getElementById("heat-said");
  const legend = box.querySelector(".legend");
  const [begins, ends] = box.querySelectorAll(".ends span");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  // Colours that people who see red and green alike can tell apart (Okabe and Ito); the gravest are those of the ink.
  const DOING = {
    unknown: null, finished: [150, 160, 160], waits: [86, 180, 233], works: [0, 158, 115], starts: [240, 228, 66],
    evaluates: [204, 121, 167], saves: [0, 114, 178], loads: [230, 159, 0], in_kernel: [213, 94, 0],
  };
  let stamp = "", record = null, cells = null, at = null;

  const chosen = (name) => document.querySelector(`input[name="${name}"]:checked`)?.value;
  const map = () => record[chosen("span") || "recent"];
  const mix = (one, other, share) => one.map((value, i) => Math.round(value + (other[i] - value) * share));
  const ink = () => (dark.matches ? [255, 255, 255] : [0, 0, 0]);
  const plain = () => (dark.matches ? [43, 54, 52] : [226, 231, 229]);
  const css = (rgb) => `rgb(${rgb.join(" ")})`;

  function doingColour(word) {
    const grave = { silent: 0.5, stopped: 0.88, gone: 1 }[word];
    return grave ? mix(plain(), ink(), grave) : DOING[word];
  }

  function ratioColour(ratio) {
    const share = Math.max(-1, Math.min(1, Math.log2(ratio) / FULL));
    const strong = share > 0 ? [213, 94, 0] : [0, 114, 178];
    return mix(plain(), strong, Math.abs(share) ** 0.8);
  }

  const waitsColour = (share) => mix(plain(), [0, 114, 178], share);
  const ratioOf = (byte) => 2 ** ((byte - ONE) / OCTAVE);

  async function unpacked(text) {
    const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  }

  function cell(kind, row, column) {
    return cells[chosen("span") || "recent"][(kind * record.rows.length + row) * map().columns + column];
  }

  const GRAVE = ["silent", "stopped", "gone"];
  function colour(row, column) {
    const doing = record.doings[cell(1, row, column)];
    const measure = chosen("measure") || "ratio";
    if (measure === "doing") return doingColour(doing);
    if (GRAVE.includes(doing)) return doingColour(doing);
    const byte = cell(measure === "ratio" ? 0 : 2, row, column);
    if (byte === 0) return doing === "unknown" ? null : plain();
    return measure === "ratio" ? ratioColour(ratioOf(byte)) : waitsColour((byte - 1) / 100);
  }

  const wall = (s) => (record.wall_s - record.now_s + s) * 1000;
  const clock = (s) => new Date(wall(s)).toLocaleTimeString([], { hour12: false });
  const margin = () => (record.rows.length <= 40 ? 64 : 0);

  function size() {
    const rows = Math.max(1, record.rows.length);
    return { rows, columns: Math.max(1, map().columns), high: Math.max(1, Math.min(22, Math.floor(420 / rows))) };
  }

  function draw() {
    if (!record) return;
    const { rows, columns, high } = size();
    const scale = devicePixelRatio || 1, width = Math.max(200, box.clientWidth), height = TOP + rows * high;
    canvas.width = width * scale;
    canvas.height = height * scale;
    canvas.style.height = `${height}px`;
    const pen = canvas.getContext("2d");
    pen.scale(scale, scale);
    const image = new ImageData(columns, rows);
    for (let row = 0; row < record.rows.length; row++) {
      for (let column = 0; column < map().columns; column++) {
        const rgb = colour(row, column);
        if (rgb) image.data.set([...rgb, 255], 4 * (row * columns + column));
      }
    }
    const whole = new OffscreenCanvas(columns, rows);
    whole.getContext("2d").putImageData(image, 0, 0);
    pen.imageSmoothingEnabled = false;
    pen.drawImage(whole, margin(), TOP, width - margin(), rows * high);
    incidents(pen, width);
    if (margin()) names(pen, high, width);
    if (at) {
      const wide = (width - margin()) / columns;
      pen.strokeStyle = css(ink());
      pen.lineWidth = 2;
      pen.strokeRect(margin() + at.column * wide - 1, TOP + at.row * high - 1, Math.max(wide, 2) + 2, high + 2);
    }
    begins.textContent = clock(map().first_s);
    ends.textContent = clock(map().first_s + map().columns * map().every_s);
    keys();
  }

  function names(pen, high, width) {
    pen.fillStyle = getComputedStyle(document.body).color;
    pen.font = `${Math.min(12, high)}px system-ui, sans-serif`;
    pen.textBaseline = "middle";
    for (let row = 0; row < record.rows.length; row++) {
      if (high >= 9) pen.fillText(record.rows[row].name, 0, TOP + (row + 0.5) * high, margin() - 6);
      if (row && record.rows_are === "rank" && record.rows[row].node !== record.rows[row - 1].node) {
        pen.fillRect(0, TOP + row * high - 0.5, width, 1); // another node
      }
    }
  }

  function incidents(pen, width) {
    const span = map().columns * map().every_s * 1000;
    for (const each of document.querySelectorAll("details[data-began]")) {
      const place = (ms) => margin() + ((width - margin()) * (ms - wall(map().first_s))) / span;
      const from = Math.max(margin(), place(each.dataset.began * 1000));
      const until = Math.min(width, place(each.dataset.until * 1000));
      pen.fillStyle = getComputedStyle(document.body).getPropertyValue("--verify");
      if (until >= margin() && from <= width) pen.fillRect(from, 1, Math.max(3, until - from), TOP - 3);
    }
  }

  function keys() {
    const measure = chosen("measure") || "ratio";
    const shown = {
      ratio: [["1.3 times as slow or more", ratioColour(1.3)], ["1.1", ratioColour(1.1)], ["as its peers", ratioColour(1)],
        ["faster", ratioColour(1 / 1.3)], ["stopped, silent or gone", ink()]],
      doing: [...record.doings.filter((word) => word !== "unknown").map((word) => [word.replace("_", " "), doingColour(word)])],
      waits: [["waits for nobody", waitsColour(0)], ["half the time", waitsColour(0.5)], ["all the time", waitsColour(1)]],
    }[measure];
    const key = `${measure} ${dark.matches} ${shown.length}`;
    if (legend.dataset.key === key) return;
    legend.dataset.key = key;
    legend.replaceChildren(...shown.map(([text, rgb]) => {
      const item = document.createElement("li"), patch = document.createElement("span");
      patch.className = "key";
      patch.style.background = css(rgb);
      item.append(patch, text);
      return item;
    }));
  }

  function say() {
    if (!at || !record.rows.length || !map().columns) return;
    at.row = Math.max(0, Math.min(record.rows.length - 1, at.row));
    at.column = Math.max(0, Math.min(map().columns - 1, at.column));
    const row = record.rows[at.row], from = map().first_s + at.column * map().every_s;
    const who = record.rows_are === "rank" ? `${row.name} on ${row.node}` : row.name;
    const parts = [];
    const [ratio, doing, waits] = [0, 1, 2].map((kind) => cell(kind, at.row, at.column));
    if (ratio) parts.push(`own time ${ratioOf(ratio).toFixed(2)} times that of its peers`);
    if (doing) parts.push(record.doings[doing].replace("_", " "));
    if (waits) parts.push(`waits ${waits - 1} % of a step`);
    said.textContent = `${who}, ${clock(from)} to ${clock(from + map().every_s)}: ${parts.join(", ") || "nothing is known"}`;
  }

  canvas.addEventListener("pointermove", (event) => {
    if (!record) return;
    const { columns, high } = size(), edge = canvas.getBoundingClientRect();
    const x = event.clientX - edge.x - margin(), y = event.clientY - edge.y - TOP;
    if (x < 0 || y < 0) return;
    at = { row: Math.floor(y / high), column: Math.floor((x * columns) / (edge.width - margin())) };
    say();
    draw();
  });
  canvas.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!by || !record) return;
    event.preventDefault();
    at = at ? { row: at.row + by[0], column: at.column + by[1] } : { row: 0, column: map().columns - 1 };
    say();
    draw();
  });
  for (const each of document.querySelectorAll(".chooser input")) {
    each.addEventListener("change", () => {
      if (each.name === "span") at = null;
      draw();
      if (at) say();
    });
  }
  dark.addEventListener("change", draw);
  addEventListener("resize", draw);

  async function refresh() {
    if (document.hidden && record) return;
    try {
      const answer = await fetch(`${box.dataset.url}?since=${encodeURIComponent(stamp)}`, { headers: { "X-Perdure-Console": "1" } });
      if (answer.status !== 200) return; // nothing new; that it cannot be read, the page says
      const found = await answer.json();
      const next = { recent: await unpacked(found.record.recent.cells), whole: await unpacked(found.record.whole.cells) };
      [stamp, record, cells] = [found.stamp, found.record, next];
      draw();
      if (at) say();
      box.dataset.drawn = stamp;
    } catch {
      // the console does not answer, which the page itself says
    }
  }
  const again = async () => {
    await refresh();
    setTimeout(again, EVERY_MS);
  };
  again();
})();
