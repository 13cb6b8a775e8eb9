// What a picture says, without a page. mpicoll/analysis/drawing/page.py says what a picture is.
"use strict";

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

function counted(number, noun) {
  return `${number} ${noun}${number === 1 ? "" : "s"}`;
}

// What an arrow says, as a sentence.
function told(picture, collective, [read, written, does, wrong]) {
  const from = place(picture, read[0]).rank;
  const to = place(picture, written[0]).rank;
  const several = read.length > 1;
  const what = picture.blocks === 1 ? "its vector" : `block${several ? "s" : ""} ${blocksOf(picture, read)}`;
  if (wrong === "no receiver") return `Rank ${from} sends ${what} to rank ${to}, which does not receive it.`;
  if (wrong === "no sender") return `Rank ${to} receives ${what} from rank ${from}, which does not send it.`;
  const end = wrong ? " This is wrong." : "";
  if (collective === "barrier") return `Rank ${from} tells rank ${to} which ranks it has heard of.${end}`;
  if (does === "copies") return `Rank ${from} copies ${what} to ${blocksOf(picture, written)}.${end}`;
  const added = several ? "them with its own" : "it with its own";
  return `Rank ${from} sends ${what} to rank ${to}${does === "combines" ? `, which combines ${added}` : ""}.${end}`;
}

// What happens in a round, as half a sentence.
function summed(picture, number) {
  const round = picture.rounds[number - 1];
  if (!round) return "nothing can run";
  if (picture.fault && number === picture.rounds.length) return "the fault";
  const messages = round.arrows.filter(([, , does]) => does !== "copies").length;
  return messages ? counted(messages, "message") : "copies within ranks";
}
