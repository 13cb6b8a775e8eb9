// Steps through a schedule: above what the ranks hold before a round, below what they hold after it, between them its
// messages. docs/step_through.py says what the pictures in SCHEDULES are.
"use strict";

// -- What a picture says, without a page ----------------------------------------------------------------------------

// What the cells hold after so many rounds: a Map from cell to kind.
function stateAfter(picture, rounds) {
  const held = new Map();
  const write = (pairs) => {
    for (let i = 0; i < pairs.length; i += 2) held.set(pairs[i], pairs[i + 1]);
  };
  write(picture.start);
  for (const round of picture.rounds.slice(0, rounds)) {
    for (const cell of round.gone) held.delete(cell);
    write(round.writes);
  }
  return held;
}

function place(picture, cell) {
  const column = Math.floor(cell / picture.blocks);
  const strips = picture.strips.length;
  return { rank: Math.floor(column / strips), strip: column % strips, block: cell % picture.blocks };
}

// Numbers as "0-2, 5".
function ranges(numbers) {
  const runs = [];
  for (const n of [...new Set(numbers)].sort((a, b) => a - b)) {
    const last = runs[runs.length - 1];
    if (last && last[1] === n - 1) last[1] = n;
    else runs.push([n, n]);
  }
  return runs.map(([a, b]) => (a === b ? `${a}` : `${a}-${b}`)).join(", ");
}

function blocksOf(picture, cells) {
  return ranges(cells.map((cell) => place(picture, cell).block));
}

// What an arrow says, as a sentence.
function told(picture, collective, [read, written, reduces, local]) {
  const from = place(picture, read[0]).rank;
  const to = place(picture, written[0]).rank;
  const several = read.length > 1;
  const what = picture.blocks === 1 ? "its vector" : `block${several ? "s" : ""} ${blocksOf(picture, read)}`;
  if (collective === "barrier") return `Rank ${from} tells rank ${to} which ranks it has heard of.`;
  if (local) return `Rank ${from} copies ${what} to ${blocksOf(picture, written)}.`;
  const added = several ? "them with its own" : "it with its own";
  return `Rank ${from} sends ${what} to rank ${to}` + (reduces ? `, which combines ${added}.` : ".");
}

// Of these names, the one that is wanted, or another one; and what the page says if the wanted one is not there.
function picked(names, wanted, otherwise, what) {
  if (names.includes(wanted)) return [wanted, ""];
  const shown = names.includes(otherwise) ? otherwise : names[0];
  if (!wanted) return [shown, ""];
  const there = what === "ranks" ? `${names.join(", ")} ranks` : names.join(", ");
  return [shown, `${wanted}${what === "ranks" ? " ranks" : ""} cannot be shown here. There are ${there}. This is ${shown}.`];
}

// Each arrow's label with a place on the arrow: near its begin, or further on where another label is in the way.
function withoutCollision(labels, top, bottom) {
  const taken = [];
  return labels.map((label) => {
    const wide = 6 * label.blocks.length + 4;
    const at = (share) => [label.x0 + (label.x1 - label.x0) * share, top + 4 + (bottom - top) * share];
    const free = ([x, y]) => taken.every((t) => Math.abs(t.x - x) > (t.wide + wide) / 2 || Math.abs(t.y - y) > 10);
    const [x, y] = [0.14, 0.26, 0.38, 0.5, 0.62, 0.74].map(at).find(free) || at(0.14);
    taken.push({ x, y, wide });
    return [label, [x, y]];
  });
}

// -- The drawing ----------------------------------------------------------------------------------------------------

const TALL = 20, GAP = 14, STRIPS = 4, LEFT = 16, HEAD = 38, FOOT = 20, ARROWS = 104;
const SVG = "http://www.w3.org/2000/svg";

function element(name, attributes = {}, text = "") {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text) made.textContent = text;
  return made;
}

class Drawing {
  constructor(picture, ranks, colours) {
    Object.assign(this, { picture, ranks, colours });
    const longest = Math.max(...picture.kinds.map(([label]) => label.length));
    this.wide = Math.min(60, Math.max(36, 7 * longest + 6));
    const strips = picture.strips.length;
    this.pitch = strips * this.wide + (strips - 1) * STRIPS + GAP;
    this.stack = picture.blocks * TALL;
    this.width = LEFT + ranks * this.pitch;
    this.below = HEAD + this.stack + ARROWS;
    this.height = this.below + this.stack + FOOT;
  }

  // The round of this number, from 1 on.
  draw(number) {
    const { picture } = this;
    const svg = element("svg", { viewBox: `0 0 ${this.width} ${this.height}`, role: "img" });
    svg.style.minWidth = `${0.85 * this.width}px`;
    svg.style.maxWidth = `${1.6 * this.width}px`;
    const { arrows } = picture.rounds[number - 1];
    const read = new Set(arrows.flatMap(([cells]) => cells));
    const written = new Set(arrows.flatMap(([, cells]) => cells));
    const title = (y, text) => svg.append(element("text", { x: 2, y, class: "title" }, text));
    title(11, number > 1 ? `after round ${number - 1}` : "before");
    this.names(svg);
    this.cells(svg, HEAD, stateAfter(picture, number - 1), read);
    this.arrows(svg, arrows);
    this.cells(svg, this.below, stateAfter(picture, number), written);
    title(this.height - 5, `after round ${number}` + (number === picture.rounds.length ? ": the result" : ""));
    return svg;
  }

  x(rank, strip) {
    return LEFT + rank * this.pitch + strip * (this.wide + STRIPS);
  }

  names(svg) {
    for (let rank = 0; rank < this.ranks; rank++) {
      const middle = this.x(rank, 0) + (this.pitch - GAP) / 2;
      svg.append(element("text", { x: middle, y: 25, class: "name" }, `rank ${rank}`));
      this.picture.strips.forEach((name, strip) => {
        const x = this.x(rank, strip) + this.wide / 2;
        if (name) svg.append(element("text", { x, y: 35, class: "small" }, name));
      });
    }
  }

  cells(svg, top, held, marked) {
    const { blocks, strips, kinds } = this.picture;
    for (let cell = 0; cell < this.ranks * strips.length * blocks; cell++) {
      const { rank, strip, block } = place(this.picture, cell);
      this.cell(svg, this.x(rank, strip), top + block * TALL, kinds[held.get(cell)]);
    }
    for (const cell of marked) {  // after all cells, whose edges would cover the frames
      const { rank, strip, block } = place(this.picture, cell);
      const [x, y] = [this.x(rank, strip), top + block * TALL];
      svg.append(element("rect", { x, y, width: this.wide, height: TALL, class: "frame" }));
    }
    for (let block = 0; blocks > 1 && block < blocks; block++) {
      const y = top + (block + 0.5) * TALL + 3;
      svg.append(element("text", { x: LEFT - 4, y, class: "number" }, `${block}`));
    }
  }

  cell(svg, x, y, kind) {
    const [label, colours] = kind || ["", []];
    const share = this.wide / colours.length;
    colours.forEach((colour, i) => {
      const fill = this.colours[colour % this.colours.length];
      svg.append(element("rect", { x: x + i * share, y, width: share, height: TALL, fill }));
    });
    svg.append(element("rect", { x, y, width: this.wide, height: TALL, class: kind ? "held" : "empty" }));
    const size = Math.min(11, (this.wide - 4) / (0.7 * label.length));
    const style = `font-size: ${size}px`;
    svg.append(element("text", { x: x + this.wide / 2, y: y + TALL / 2 + 0.36 * size, class: "label", style }, label));
  }

  arrows(svg, arrows) {
    const { picture } = this;
    const ends = arrows.map(([read, written, reduces, local]) => {
      const [from, to] = [place(picture, read[0]), place(picture, written[0])];
      return { from, to, reduces, local, blocks: picture.blocks > 1 && !local ? blocksOf(picture, read) : "" };
    });
    // Where several arrows begin or end at a column they share its edge, in the order of their other ends.
    const spread = (mine, other, set) => {
      const columns = new Map();
      for (const end of ends) {
        const key = `${end[mine].rank} ${end[mine].strip}`;
        columns.set(key, [...(columns.get(key) || []), end]);
      }
      for (const column of columns.values()) {
        column.sort((a, b) => a[other].rank - b[other].rank);
        column.forEach((end, i) => {
          set(end, this.x(end[mine].rank, end[mine].strip) + (this.wide * (i + 1)) / (column.length + 1));
        });
      }
    };
    spread("from", "to", (end, x) => (end.x0 = x));
    spread("to", "from", (end, x) => (end.x1 = x));
    const [top, bottom] = [HEAD + this.stack + 2, this.below - 2];
    for (const end of ends) this.arrow(svg, end, top, end.reduces ? bottom - 12 : bottom);
    const labels = ends.filter(({ blocks }) => blocks);
    for (const [{ blocks }, [x, y]] of withoutCollision(labels, top, bottom)) {
      svg.append(element("text", { x, y, class: "blocks" }, blocks));
    }
    this.ways = ends.map(({ x0, x1 }, i) => ({ way: `M${x0} ${top}L${x1} ${bottom}`, cell: arrows[i][0][0] }));
  }

  // Let a block of each arrow's colour move along it, in so many seconds.
  move(svg, number, seconds) {
    const held = stateAfter(this.picture, number - 1);
    for (const { way, cell } of this.ways) {
      const [, colours] = this.picture.kinds[held.get(cell)] || ["", []];
      const [wide, tall] = [this.wide / 2, TALL / 2];
      const group = element("g", { class: "moving" });
      colours.forEach((colour, i) => {
        const [width, fill] = [wide / colours.length, this.colours[colour % this.colours.length]];
        group.append(element("rect", { x: i * width - wide / 2, y: -tall / 2, width, height: tall, fill }));
      });
      const motion = element("animateMotion", { path: way, dur: `${seconds}s`, fill: "freeze", begin: "indefinite" });
      group.append(motion);
      svg.append(group);
      motion.beginElement();
    }
  }

  arrow(svg, { x0, x1, reduces, local }, top, bottom) {
    const length = Math.hypot(x1 - x0, bottom - top);
    const [dx, dy] = [(x1 - x0) / length, (bottom - top) / length];
    const [x, y] = reduces ? [x1, bottom] : [x1 - 7 * dx, bottom - 7 * dy];
    svg.append(element("line", { x1: x0, y1: top, x2: x, y2: y, class: local ? "shaft local" : "shaft" }));
    if (reduces) {
      const [cx, cy] = [x1, bottom + 5];
      svg.append(element("circle", { cx, cy, r: 5, class: "plus" }));
      svg.append(element("path", { d: `M${cx - 3} ${cy}h6M${cx} ${cy - 3}v6`, class: "plus" }));
    } else {
      const points = [[x1, bottom], [x - 3 * dy, y + 3 * dx], [x + 3 * dy, y - 3 * dx]];
      svg.append(element("polygon", { points: points.map((p) => p.join()).join(" "), class: "head" }));
    }
  }
}

// -- The page -------------------------------------------------------------------------------------------------------

const SECONDS = 1.5;  // of a round

class Player {
  constructor(root, { colours, pictures }) {
    Object.assign(this, { root, colours, pictures, timer: null, number: 1 });
    const make = (name, text) => Object.assign(document.createElement(name), text ? { textContent: text } : {});
    const choice = (name) => {
      const [label, select] = [make("label", `${name} `), make("select")];
      label.append(select);
      return [label, select];
    };
    const button = (text, says, does) => {
      const made = make("button", text);
      Object.assign(made, { type: "button", onclick: does });
      made.setAttribute("aria-label", says);
      return made;
    };
    const [ofCollective, ofAlgorithm, ofRanks] = ["Collective", "Algorithm", "Ranks"].map(choice);
    [this.collective, this.algorithm, this.ranks] = [ofCollective[1], ofAlgorithm[1], ofRanks[1]];
    this.playButton = button("Play", "Play", () => this.play(!this.timer));
    this.slider = Object.assign(make("input"), { type: "range", min: 1 });
    this.slider.setAttribute("aria-label", "Round");
    this.stage = Object.assign(make("div"), { className: "stage", tabIndex: 0 });
    this.note = make("p");
    this.note.setAttribute("role", "status");
    this.caption = make("p");
    this.caption.setAttribute("aria-live", "polite");
    this.messages = make("ul");
    const choices = Object.assign(make("div"), { className: "controls" });
    choices.append(ofCollective[0], ofAlgorithm[0], ofRanks[0]);
    const controls = Object.assign(make("div"), { className: "controls" });
    controls.append(
      button("◀", "Previous round", () => this.go(this.number - 1)),
      this.playButton,
      button("▶", "Next round", () => this.go(this.number + 1)),
      this.slider,
    );
    root.replaceChildren(choices, controls, this.note, this.caption, this.stage, this.messages);
    this.collective.onchange = () => this.choose(this.collective.value);
    this.algorithm.onchange = () => this.choose(this.collective.value, this.algorithm.value, this.ranks.value);
    this.ranks.onchange = () => this.choose(this.collective.value, this.algorithm.value, this.ranks.value);
    this.slider.oninput = () => this.go(Number(this.slider.value));
    this.follow();
    window.addEventListener("hashchange", () => this.follow());
  }

  // What the address asks for: #collective/algorithm/ranks/round, any of which may be missing.
  follow() {
    const [collective, algorithm, ranks, number] = decodeURIComponent(location.hash.slice(1)).split("/");
    this.choose(collective, algorithm, ranks, Number(number) || 1);
  }

  choose(collective, algorithm, ranks, number = 1) {
    const notes = [];
    const pick = (select, names, wanted, otherwise, what) => {
      const [chosen, note] = picked(names, wanted, otherwise, what);
      select.replaceChildren(...names.map((name) => new Option(name, name, false, name === chosen)));
      notes.push(note);
      return chosen;
    };
    this.play(false);
    const named = pick(this.collective, Object.keys(this.pictures), collective, "allreduce");
    const algorithms = this.pictures[named];
    const pictures = algorithms[pick(this.algorithm, Object.keys(algorithms), algorithm, "ring")];
    this.size = Number(pick(this.ranks, Object.keys(pictures), ranks, "4", "ranks"));
    this.note.textContent = notes.filter(Boolean).join(" ");
    this.picture = pictures[this.size];
    this.drawing = new Drawing(this.picture, this.size, this.colours);
    this.slider.max = this.picture.rounds.length;
    this.show(number);
  }

  go(number) {
    this.play(false);
    this.show(number);
  }

  show(number, moves = false) {
    const rounds = this.picture.rounds.length;
    this.number = Math.max(1, Math.min(rounds, number));
    this.slider.value = this.number;
    const { arrows } = this.picture.rounds[this.number - 1];
    const messages = arrows.filter(([, , , local]) => !local).length;
    const counted = messages ? `${messages} message${messages > 1 ? "s" : ""}` : "copies within ranks";
    this.caption.textContent = `Round ${this.number} of ${rounds}: ${counted}.`;
    const svg = this.drawing.draw(this.number);
    svg.setAttribute("aria-label", this.caption.textContent);
    this.stage.replaceChildren(svg);
    if (moves && !matchMedia("(prefers-reduced-motion: reduce)").matches) this.drawing.move(svg, this.number, SECONDS * 0.8);
    const sentences = arrows.map((arrow) => told(this.picture, this.collective.value, arrow));
    this.messages.replaceChildren(
      ...sentences.map((text) => Object.assign(document.createElement("li"), { textContent: text })),
    );
    const address = [this.collective.value, this.algorithm.value, this.size, this.number].join("/");
    history.replaceState(null, "", `#${address}`);
  }

  play(on) {
    clearInterval(this.timer);
    this.timer = null;
    this.playButton.textContent = on ? "Pause" : "Play";
    this.playButton.setAttribute("aria-label", this.playButton.textContent);
    if (!on) return;
    const atEnd = () => this.number === this.picture.rounds.length;
    this.show(atEnd() ? 1 : this.number, true);
    this.timer = setInterval(() => {
      if (atEnd()) this.play(false);
      else this.show(this.number + 1, true);
    }, 1000 * SECONDS);
  }
}

if (typeof module !== "undefined") {
  module.exports = { stateAfter, place, ranges, told, picked, Drawing, withoutCollision };
} else {
  window.addEventListener("DOMContentLoaded", () => {
    new Player(document.getElementById("step-through"), SCHEDULES);
  });
}
