// What an address asks for: #collective/algorithm/ranks/round/size, any of which may be missing at the end. Two
// algorithms with a comma between them are shown side by side. What cannot be shown is refused by its name.
"use strict";

class Refusal extends Error {}

function wished(hash) {
  const [collective, algorithms, ranks, round, size, ...more] = hash.split("/");
  if (more.length) throw new Refusal(`#${hash} has too many parts. An address has at most 5 parts.`);
  return { collective, algorithms: algorithms && algorithms.split(","), ranks, round, size };
}

// The address of what was chosen.
function addressOf({ collective, algorithms, ranks, round, size }) {
  return [collective, algorithms.join(","), ranks, round, size].join("/");
}

// One of the names: the one that is wanted, or the usual one if none is.
function oneOf(names, wanted, usual, otherwise) {
  if (wanted && !names.includes(wanted)) throw new Refusal(otherwise(names.join(", ")));
  return wanted || (names.includes(usual) ? usual : names[0]);
}

// What is to be shown, with its pictures. Raises Refusal.
function chosen(schedules, wish) {
  const { pictures, sizes, mostRanks } = schedules;
  const collective = oneOf(Object.keys(pictures), wish.collective, "allreduce", (known) =>
    `There is no collective ${wish.collective} here. There are: ${known}.`);
  const known = pictures[collective];
  const algorithms = (wish.algorithms || [""]).map((name) => oneOf(Object.keys(known), name, "ring", (all) =>
    `${collective} has no algorithm ${name} here. It has: ${all}.`));
  if (algorithms.length > 2) throw new Refusal(`${algorithms.join(", ")} are ${algorithms.length} algorithms. At most 2 are shown side by side.`);
  if (algorithms[0] === algorithms[1]) throw new Refusal(`${algorithms[0]} is named twice. Two algorithms are shown side by side.`);
  const shown = algorithms.map((name) => {
    const ranks = oneOf(Object.keys(known[name]), wish.ranks, "4", (all) => {
      const beyond = Number(wish.ranks) > Math.max(...Object.keys(known[name])) && Number(wish.ranks) <= mostRanks;
      const instead = ` This command makes a page of it: mpicoll draw ${collective} ${name} -n ${wish.ranks} -o page.html`;
      return `${collective} ${name} is not shown here among ${wish.ranks} ranks. It is shown among these numbers of ranks: ${all}.${beyond ? instead : ""}`;
    });
    return { name, ranks: Number(ranks), picture: known[name][ranks] };
  });
  const rounds = Math.max(...shown.map(({ picture }) => picture.rounds.length));
  const first = shown.some(({ picture }) => picture.fault) ? rounds : Math.min(1, rounds);
  const numbers = Array.from({ length: rounds }, (_, i) => `${i + 1}`);
  const round = Number(oneOf(numbers.length ? numbers : ["0"], wish.round, `${first}`, () =>
    `There is no round ${wish.round} in ${collective} ${algorithms.join(", ")} among ${shown[0].ranks} ranks. The last round is ${rounds}.`));
  const size = oneOf(sizes, wish.size, "1M", (all) => `There is no time for vectors of ${wish.size} bytes here. There are times for: ${all}.`);
  return { collective, algorithms, ranks: shown[0].ranks, round, size, rounds, shown };
}
