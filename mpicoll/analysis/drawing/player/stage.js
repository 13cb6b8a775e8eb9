// One algorithm on the page: what it does in a round, its predicted time, the drawing, and its messages as sentences.
"use strict";

// An element of the page.
function made(name, properties = {}, ...children) {
  const node = Object.assign(document.createElement(name), properties);
  node.append(...children);
  return node;
}

class Stage {
  constructor(collective, { name, ranks, picture }) {
    Object.assign(this, { collective, name, picture, rounds: picture.rounds.length });
    this.drawing = new Drawing(picture, ranks);
    this.state = made("span");
    this.time = made("span");
    this.bar = made("div", { className: "bar" });
    this.box = made("div", { className: "box" });
    this.summary = made("summary");
    this.messages = made("ul");
    this.root = made("figure", {},
      made("figcaption", {}, made("strong", { textContent: name }), " ", this.state, made("div", { className: "time" }, this.time, this.bar)),
      this.box,
      made("details", {}, this.summary, this.messages),
    );
    this.root.style.flexBasis = `min(100%, max(22rem, ${this.drawing.least}px))`;  // two that have no room stand one below the other
    if (picture.fault) this.root.prepend(made("pre", { className: "fault", textContent: picture.fault.text }));
  }

  // The round of this number, or the last one for those that come after it.
  show(number, share) {
    this.ended = number > this.rounds;
    const round = Math.min(number, this.rounds);
    if (round !== this.round) {
      this.round = round;
      const says = summed(this.picture, round);
      this.svg = this.drawing.draw(round);
      this.svg.setAttribute("aria-label", `${this.collective} ${this.name}, round ${round}: ${says}`);
      this.box.replaceChildren(this.svg);
      const arrows = round ? this.picture.rounds[round - 1].arrows : [];
      this.summary.textContent = `Round ${round} in words`;
      this.messages.replaceChildren(
        ...arrows.map((arrow) => made("li", { textContent: told(this.picture, this.collective, arrow) })),
      );
    }
    const rounds = counted(this.rounds, "round");
    this.state.textContent = this.ended ? `done after ${rounds}` : `round ${round} of ${this.rounds}: ${summed(this.picture, round)}`;
    this.drawing.move(this.ended ? 1 : share);
  }

  // The predicted time for the vector of this number, and a bar that shows it as a part of the longest one.
  predict(number, size, machine, longest) {
    if (!this.picture.times) return;
    const [seconds, text] = this.picture.times[number];
    this.time.textContent = `predicted for ${size} bytes on ${machine}: ${text}`;
    this.bar.style.width = `${(100 * seconds) / longest}%`;
  }
}
