// Plays schedules in each element of the class schedule-player. With data-linked the address of the page says what is
// shown, and with data-plays it plays at once.
"use strict";

const SECONDS = 2;  // of a round, at the usual speed
const SPEEDS = { "0.5×": 0.5, "1×": 1, "2×": 2, "4×": 4 };

class Player {
  constructor(root, schedules) {
    Object.assign(this, { root, schedules, stages: [], round: 0, share: 1, rounds: 0, request: null, rate: 1 });
    this.linked = "linked" in root.dataset && location.protocol !== "about:";  // a frame in a notebook has no address
    this.still = matchMedia("(prefers-reduced-motion: reduce)");
    this.build();
    root.addEventListener("keydown", (event) => this.press(event));
    this.follow();
    if (this.linked) window.addEventListener("hashchange", () => this.follow());
    if ("plays" in root.dataset && !this.still.matches) this.play(this.rounds);
  }

  build() {
    const choice = (name, changed) => {
      const select = made("select", { onchange: () => changed(select.value) });
      return [made("label", {}, `${name} `, select), select];
    };
    const button = (textContent, says, onclick) => {
      const it = made("button", { type: "button", textContent, onclick });
      it.setAttribute("aria-label", says);
      return it;
    };
    const all = () => this.choose(this.picked());
    const labels = [
      ["collective", "Collective", (collective) => this.choose({ ...this.picked(), collective, algorithms: undefined })],
      ["algorithm", "Algorithm", all],
      ["beside", "Compare with", all],
      ["ranks", "Ranks", all],
      ["size", "Bytes", (size) => this.resize(size)],
      ["speed", "Speed", (speed) => (this.rate = SPEEDS[speed])],
    ].map(([key, name, changed]) => {
      const [label, select] = choice(name, changed);
      label.className = key;
      this[key] = select;
      return label;
    });
    this.fillSelect(this.speed, Object.keys(SPEEDS), "1×");
    this.playButton = button("Play", "Play", () => this.toggle());
    this.slider = made("input", { type: "range", min: 1, oninput: () => this.jump(Number(this.slider.value)) });
    this.slider.setAttribute("aria-label", "Round");
    this.refusal = made("p", { className: "refusal" });
    this.refusal.setAttribute("role", "alert");
    this.figures = made("div", { className: "stages" });
    const speed = labels.pop();
    this.controls = made("div", { className: "controls" },
      button("◀", "Previous round", () => this.jump(this.round - 1)),
      this.playButton,
      button("▶", "Next round", () => this.step()),
      this.slider,
      speed,
    );
    this.root.replaceChildren(made("div", { className: "choices" }, ...labels), this.refusal, this.controls, this.figures);
  }

  // -- What is shown ------------------------------------------------------------------------------------------------

  follow() {
    const hash = this.linked ? location.hash.slice(1) : "";
    const elsewhere = hash !== "" && document.getElementById(hash) !== null;  // the address of a part of the page
    if (elsewhere && this.stages.length) return;
    this.choose((!elsewhere && hash) || this.root.dataset.shows || "");
  }

  // Show what an address or the choices ask for, or refuse it.
  choose(wish) {
    this.pause();
    this.stages = [];
    this.rounds = 0;
    let text = "";
    try {
      const asked = typeof wish === "string" ? wished(decodeURI(wish)) : wish;
      this.fill(asked);
      this.now = chosen(this.schedules, asked);
      this.fill({ ...this.now, ranks: `${this.now.ranks}` });
      this.stages = this.now.shown.map((one) => new Stage(this.now.collective, one));
      this.rounds = this.now.rounds;
    } catch (error) {
      if (!(error instanceof Refusal || error instanceof URIError)) throw error;
      text = error.message;
    }
    this.refusal.textContent = text;
    this.controls.hidden = this.rounds === 0;
    this.figures.replaceChildren(...this.stages.map(({ root }) => root));
    if (text) return;
    this.slider.max = this.rounds;
    this.size.parentElement.hidden = this.stages.every(({ picture }) => !picture.times);
    this.resize(this.now.size);
    this.go(this.now.round, 1);
  }

  // What the choices say.
  picked() {
    const algorithms = [this.algorithm.value, this.beside.value].filter(Boolean);
    return {
      collective: this.collective.value || undefined,
      algorithms: algorithms.length ? algorithms : undefined,
      ranks: this.ranks.value || undefined,
      size: this.size.value || undefined,
    };
  }

  fill({ collective, algorithms, ranks, size }) {
    const { pictures, sizes } = this.schedules;
    const known = pictures[collective] || {};
    const [first, second] = algorithms || [];
    this.fillSelect(this.collective, Object.keys(pictures), collective);
    this.fillSelect(this.algorithm, Object.keys(known), first);
    this.fillSelect(this.beside, ["", ...Object.keys(known).filter((name) => name !== first)], second || "");
    this.fillSelect(this.ranks, Object.keys(known[first] || {}), ranks);
    this.fillSelect(this.size, sizes, size);
    const only = Object.values(pictures).every((named) => Object.keys(named).length === 1) && Object.keys(pictures).length === 1;
    for (const select of [this.collective, this.algorithm, this.beside, this.ranks]) select.parentElement.hidden = only;
  }

  // A select with these names. Nothing is selected if the wanted one is not among them.
  fillSelect(select, names, wanted) {
    select.replaceChildren(...names.map((name) => new Option(name || "(none)", name)));
    select.selectedIndex = names.indexOf(wanted);
  }

  resize(size) {
    if (!this.stages.length) return;
    this.now.size = size;
    const number = this.schedules.sizes.indexOf(size);
    const longest = Math.max(...this.stages.map(({ picture }) => (picture.times ? picture.times[number][0] : 0)));
    for (const stage of this.stages) stage.predict(number, size, this.schedules.machine, longest);
    this.write();
  }

  write() {
    if (this.linked) history.replaceState(null, "", `#${addressOf(this.now)}`);
  }

  // -- Time ---------------------------------------------------------------------------------------------------------

  // A round, and which share of it has passed. Who wants no motion sees the end of each round.
  go(round, share) {
    if (round !== this.round || round !== this.now.round) {
      this.now.round = round;
      this.write();
    }
    [this.round, this.share] = [round, share];
    this.slider.value = round;
    this.slider.setAttribute("aria-valuetext", `round ${round} of ${this.rounds}`);
    for (const stage of this.stages) stage.show(round, this.still.matches ? 1 : share);
  }

  // The end of a round, without motion.
  jump(round) {
    this.pause();
    this.go(Math.max(1, Math.min(this.rounds, round)), 1);
  }

  step() {
    if (this.round === this.rounds) return this.jump(this.rounds);
    if (this.still.matches) return this.jump(this.round + 1);
    this.pause();
    this.go(this.round + 1, 0);
    this.play(this.round);
  }

  toggle() {
    if (this.request) this.pause();
    else this.play(this.rounds);
  }

  pause() {
    cancelAnimationFrame(this.request);
    this.request = null;
    this.label("Play");
  }

  label(text) {
    this.playButton.textContent = text;
    this.playButton.setAttribute("aria-label", text);
  }

  // Play on, to the end of the round ``until``. A round that is over begins again, and after the last one the first.
  play(until) {
    if (!this.rounds) return;
    if (this.share >= 1) this.go(this.round === this.rounds ? 1 : this.round, 0);
    this.label("Pause");
    let before = null;
    const tick = (now) => {
      const passed = before === null ? 0 : (now - before) / 1000;
      before = now;
      this.share += (passed * this.rate) / SECONDS;
      if (this.share < 1) this.go(this.round, this.share);
      else if (this.round < until) this.go(this.round + 1, 0);
      else {
        this.go(this.round, 1);
        return this.pause();
      }
      this.request = requestAnimationFrame(tick);
    };
    this.request = requestAnimationFrame(tick);
  }

  // The keys of the player, unless they mean something to what has the focus.
  press(event) {
    const { key, target } = event;
    if (event.ctrlKey || event.altKey || event.metaKey || !this.rounds) return;
    if (["SELECT", "INPUT"].includes(target.tagName)) return;
    if (key === " " && ["BUTTON", "SUMMARY"].includes(target.tagName)) return;
    const does = {
      " ": () => this.toggle(),
      ArrowLeft: () => this.jump(this.round - 1),
      ArrowRight: () => this.step(),
      Home: () => this.jump(1),
      End: () => this.jump(this.rounds),
    }[key];
    if (!does) return;
    event.preventDefault();
    does();
  }
}

window.addEventListener("DOMContentLoaded", () => {
  for (const root of document.querySelectorAll(".schedule-player")) new Player(root, SCHEDULES);
});
