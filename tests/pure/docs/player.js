// Runs the player's scripts without a browser, on the schedules of the file that is named, and prints what they say as
// JSON: node player.js FOLDER SCHEDULES. The scripts share their names, as those of a page do.
"use strict";

const fs = require("fs");
const vm = require("vm");

const [folder, schedules] = process.argv.slice(2);

// As much of a page as a drawing needs.
class Node {
  constructor(name) {
    Object.assign(this, { name, attributes: {}, children: [], style: {}, textContent: "" });
  }
  setAttribute(key, value) {
    this.attributes[key] = `${value}`;
  }
  append(...children) {
    this.children.push(...children);
  }
}
const page = vm.createContext({ document: { createElementNS: (_, name) => new Node(name) } });
const run = (text) => vm.runInContext(text, page);
run(fs.readFileSync(schedules, "utf8"));
for (const file of ["picture.js", "address.js", "drawing.js"]) run(fs.readFileSync(`${folder}/${file}`, "utf8"));
const { SCHEDULES, stateAfter, ranges, told, chosen, wished, addressOf, Refusal, Drawing } = run(
  "({ SCHEDULES, stateAfter, ranges, told, chosen, wished, addressOf, Refusal, Drawing })",
);

function* everything() {
  for (const [collective, algorithms] of Object.entries(SCHEDULES.pictures))
    for (const [name, pictures] of Object.entries(algorithms))
      for (const [ranks, picture] of Object.entries(pictures)) yield [`${collective} ${name} ${ranks}`, Number(ranks), picture];
}

// What the page says to an address: what is shown, or why nothing is.
function answer(address) {
  try {
    return addressOf(chosen(SCHEDULES, wished(address)));
  } catch (error) {
    if (!(error instanceof Refusal)) throw error;
    return error.message;
  }
}

// The least width that any drawing needs, in pixels.
const widest = Math.max(...[...everything()].map(([, ranks, picture]) => new Drawing(picture, ranks).least));

const ends = {};
for (const [name, , picture] of everything()) ends[name] = [...stateAfter(picture, picture.rounds.length)];
const ring = SCHEDULES.pictures.allreduce.ring[4];
const said = [ranges([5, 1, 2, 3]), told(ring, "allreduce", ring.rounds[0].arrows[0])];
const addresses = [
  "", "bcast", "allreduce/ring/8", "allreduce/ring,rabenseifner/8/14/64K", "allreduce/ring/9", "allreduce/ring/64", "allreduce/rign/4", "alreduce",
  "allreduce/ring/4/7", "allreduce/ring/4/x", "allreduce/ring,ring/4", "allreduce/ring,linear,swing/4", "allreduce/ring/4/1/3K", "a/b/c/d/e/f",
];
console.log(JSON.stringify({ ends, said, widest, answers: addresses.map(answer) }));
