// Draws one round as SVG: above what the ranks hold before it, below what they hold after it, between them its
// messages, whose blocks move along their arrows.
"use strict";

const TALL = 20, STRIPS = 4, LEFT = 16, HEAD = 38, FOOT = 20, ARROWS = 98;
const LEAST_GAP = 14, MOST_GAP = 56, ROOM = 600;
const TRAVELS = 0.75;  // the share of a round in which blocks move; then the result is shown
const SVG = "http://www.w3.org/2000/svg";

function element(name, attributes = {}, text = "") {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text) made.textContent = text;
  return made;
}

// Where a picture's cells and arrows lie, without a page.
class Layout {
  constructor(picture, ranks) {
    Object.assign(this, { picture, ranks });
    const longest = Math.max(...picture.kinds.map(([label]) => label.length));
    const strips = picture.strips.length;
    this.wide = Math.min(60, Math.max(36, 7 * longest + 6));
    const column = strips * this.wide + (strips - 1) * STRIPS;
    this.gap = Math.max(LEAST_GAP, Math.min(MOST_GAP, ROOM / ranks - column));
    this.pitch = column + this.gap;
    this.stack = picture.blocks * TALL;
    this.width = LEFT + ranks * this.pitch;
    this.below = HEAD + this.stack + ARROWS;
    this.height = (picture.rounds.length ? this.below + this.stack : HEAD + this.stack) + FOOT;
    [this.top, this.bottom] = [HEAD + this.stack + 2, this.below - 2];
  }

  x(rank, strip) {
    return LEFT + rank * this.pitch + strip * (this.wide + STRIPS);
  }

  // A cell's upper left corner, in the row that begins at this height.
  corner(cell, row) {
    const { rank, strip, block } = place(this.picture, cell);
    return [this.x(rank, strip), row + block * TALL];
  }

  // The arrows of a round with their ends. Several that begin or end at a column share its edge, in the order of their
  // other ends.
  ways(arrows) {
    const ways = arrows.map(([read, written, does, wrong]) => ({
      from: place(this.picture, read[0]), to: place(this.picture, written[0]), read, does, wrong: wrong || "",
    }));
    const spread = (mine, other, set) => {
      const columns = new Map();
      for (const way of ways) {
        const key = `${way[mine].rank} ${way[mine].strip}`;
        columns.set(key, [...(columns.get(key) || []), way]);
      }
      for (const column of columns.values()) {
        column.sort((a, b) => a[other].rank - b[other].rank);
        column.forEach((way, i) => {
          set(way, this.x(way[mine].rank, way[mine].strip) + (this.wide * (i + 1)) / (column.length + 1));
        });
      }
    };
    spread("from", "to", (way, x) => (way.x0 = x));
    spread("to", "from", (way, x) => (way.x1 = x));
    return ways;
  }

  // The numbers of the blocks that arrows carry, each where it is in no other's way. What a rank sends to several
  // ranks is named once. Those for which there is no room are left out: the list of messages has them.
  labels(ways) {
    if (this.picture.blocks === 1) return [];
    const named = new Map();
    for (const way of ways) {
      if (way.does !== "copies" && !named.has(way.read.join())) named.set(way.read.join(), way);
    }
    const taken = [];
    for (const way of named.values()) {
      const text = blocksOf(this.picture, way.read);
      const half = 3 * text.length + 2;
      const free = (at) => taken.every((t) => Math.abs(t.x - at.x) >= t.half + half || Math.abs(t.y - at.y) >= 11);
      for (let share = 0.12; share < 0.85; share += 0.04) {
        const x = Math.max(half, Math.min(this.width - half, way.x0 + (way.x1 - way.x0) * share));
        const at = { text, half, x, y: this.top + 4 + (this.bottom - this.top) * share };
        if (!free(at)) continue;
        taken.push(at);
        break;
      }
    }
    return taken;
  }
}

class Drawing {
  constructor(picture, ranks) {
    this.picture = picture;
    this.layout = new Layout(picture, ranks);
    this.least = 0.68 * this.layout.width;  // narrower, its text would be too small
  }

  // The round of this number, from 1 on, or what the ranks begin with if there is none. Frames are drawn last: no cell
  // and no arrow covers them.
  draw(number) {
    const { picture, layout } = this;
    const { rounds, fault } = picture;
    const svg = element("svg", { viewBox: `0 0 ${layout.width} ${layout.height}`, role: "img" });
    svg.style.minWidth = `${this.least}px`;
    svg.style.maxWidth = `${1.25 * layout.width}px`;
    const title = (y, text) => svg.append(element("text", { x: 2, y, class: "title" }, text));
    title(11, number > 1 ? `after round ${number - 1}` : "before");
    this.names(svg);
    const before = stateAfter(picture, Math.max(0, number - 1));
    svg.append(this.cells(HEAD, before));
    if (number === 0) return svg;
    const { arrows } = rounds[number - 1];
    const last = number === rounds.length;
    title(layout.height - 5, `after round ${number}` + (last && !fault ? ": the result" : ""));
    [this.until, this.after] = [this.cells(layout.below, before), this.cells(layout.below, stateAfter(picture, number))];
    svg.append(this.until, this.after);
    const ways = layout.ways(arrows);
    for (const way of ways) this.arrow(svg, way);
    for (const { text, x, y } of layout.labels(ways)) svg.append(element("text", { x, y, class: "blocks" }, text));
    this.moving = ways.filter(({ wrong }) => wrong !== "no sender").map((way) => ({ way, group: this.blocks(way, before, ways.length) }));
    for (const { group } of this.moving) svg.append(group);
    const right = arrows.filter(([, , , wrong]) => !wrong);
    svg.append(this.frames(HEAD, right.flatMap(([read]) => read), "frame"));
    this.arrived = this.frames(layout.below, right.flatMap(([, written]) => written), "frame");
    svg.append(this.arrived);
    if (fault && last) svg.append(this.frames(layout.below, fault.cells, "frame fault"));
    this.move(1);
    return svg;
  }

  // Let the blocks be where they are in this share of the round.
  move(share) {
    if (!this.moving) return;
    const { top, bottom } = this.layout;
    const part = Math.min(1, share / TRAVELS);
    const along = part * part * (3 - 2 * part);
    for (const { way, group } of this.moving) {
      const [x, y] = [way.x0 + (way.x1 - way.x0) * along, top + (bottom - top) * along];
      group.setAttribute("transform", `translate(${x.toFixed(1)} ${y.toFixed(1)})`);
      group.style.display = part < 1 ? "" : "none";
    }
    this.until.style.display = part < 1 ? "" : "none";
    for (const shown of [this.after, this.arrived]) shown.style.display = part < 1 ? "none" : "";
  }

  names(svg) {
    const { layout, picture } = this;
    for (let rank = 0; rank < layout.ranks; rank++) {
      const middle = layout.x(rank, 0) + (layout.pitch - layout.gap) / 2;
      const wrong = picture.fault && picture.fault.rank === rank;
      svg.append(element("text", { x: middle, y: 25, class: wrong ? "name fault" : "name" }, `rank ${rank}`));
      picture.strips.forEach((name, strip) => {
        const x = layout.x(rank, strip) + layout.wide / 2;
        if (name) svg.append(element("text", { x, y: 35, class: "small" }, name));
      });
    }
  }

  cells(row, held) {
    const { layout, picture } = this;
    const group = element("g");
    for (let cell = 0; cell < layout.ranks * picture.strips.length * picture.blocks; cell++) {
      this.cell(group, ...layout.corner(cell, row), layout.wide, TALL, picture.kinds[held.get(cell)]);
    }
    for (let block = 0; picture.blocks > 1 && block < picture.blocks; block++) {
      const y = row + (block + 0.5) * TALL + 3;
      group.append(element("text", { x: LEFT - 4, y, class: "number" }, `${block}`));
    }
    return group;
  }

  cell(group, x, y, width, height, kind, most = 11) {
    const [label, colours] = kind || ["", []];
    const share = width / colours.length;
    colours.forEach((colour, i) => {
      group.append(element("rect", { x: x + i * share, y, width: share, height, fill: this.picture.colours[colour] }));
    });
    group.append(element("rect", { x, y, width, height, class: kind ? "held" : "empty" }));
    const size = Math.min(most, (width - 7) / (0.72 * label.length));
    if (size < 5) return;
    const style = `font-size: ${size}px`;
    group.append(element("text", { x: x + width / 2, y: y + height / 2 + 0.36 * size, class: "label", style }, label));
  }

  frames(row, cells, name) {
    const group = element("g");
    for (const cell of cells) {
      const [x, y] = this.layout.corner(cell, row);
      group.append(element("rect", { x: x + 1, y: y + 1, width: this.layout.wide - 2, height: TALL - 2, class: name }));
    }
    return group;
  }

  // The blocks of a message, one below the other.
  blocks({ read }, held, messages) {
    const { layout, picture } = this;
    const group = element("g", { class: "moving" });
    const tall = Math.min(14, 42 / read.length);
    const wide = Math.min(0.8 * layout.wide, Math.max(12, layout.width / messages));
    read.forEach((cell, i) => {
      this.cell(group, -wide / 2, (i - read.length / 2) * tall, wide, tall, picture.kinds[held.get(cell)], tall - 5);
    });
    return group;
  }

  arrow(svg, { x0, x1, does, wrong }) {
    const { top, bottom } = this.layout;
    const combines = does === "combines" && wrong !== "no receiver";
    const end = combines || wrong === "no receiver" ? bottom - 12 : bottom;
    const begin = wrong === "no sender" ? top + 12 : top;
    const length = Math.hypot(x1 - x0, end - begin);
    const [dx, dy] = [(x1 - x0) / length, (end - begin) / length];
    const headless = end !== bottom;
    const [x, y] = headless ? [x1, end] : [x1 - 7 * dx, end - 7 * dy];
    const looks = `shaft${does === "copies" ? " local" : ""}${wrong ? " fault" : ""}`;
    svg.append(element("line", { x1: x0, y1: begin, x2: x, y2: y, class: looks }));
    const cross = (cx, cy) => svg.append(element("path", { d: `M${cx - 4} ${cy - 4}l8 8m0 -8l-8 8`, class: "cross" }));
    if (wrong === "no sender") cross(x0, top + 5);
    if (wrong === "no receiver") cross(x1, bottom - 5);
    if (combines) {
      const cy = bottom - 7;
      svg.append(element("circle", { cx: x1, cy, r: 5, class: "plus" }));
      svg.append(element("path", { d: `M${x1 - 3} ${cy}h6M${x1} ${cy - 3}v6`, class: "plus" }));
    } else if (!headless) {
      const points = [[x1, end], [x - 3 * dy, y + 3 * dx], [x + 3 * dy, y - 3 * dx]];
      svg.append(element("polygon", { points: points.map((p) => p.join()).join(" "), class: `head${wrong ? " fault" : ""}` }));
    }
  }
}
