/* A question of N-th farthest: vectors in the order they come, each with a label; n and m. */
(function (E) {
  "use strict";

  function shuffled(count) {
    const order = Array.from({ length: count }, (_, i) => i);
    for (let i = count - 1; i > 0; i--) {
      const j = Math.floor(Math.random() * (i + 1));
      [order[i], order[j]] = [order[j], order[i]];
    }
    return order;
  }

  class Question {
    /** `rank` counts from 1, the farthest; `m` is a label. */
    constructor(task, vectors, labels, rank, m) {
      Object.assign(this, { task, vectors, labels, rank, m });
    }

    static random(task) {
      const { vectors, dims } = task;
      const drawn = Array.from({ length: vectors }, () =>
        Array.from({ length: dims }, () => Math.round((2 * Math.random() - 1) * 1000) / 1000));
      const pick = () => Math.floor(Math.random() * vectors);
      // The last rank is m itself, which needs no comparing: not a question to begin with.
      const rank = 1 + Math.floor(Math.random() * Math.max(1, vectors - 1));
      return new Question(task, drawn, shuffled(vectors), rank, pick());
    }

    /** The same vectors with the same labels in another order. */
    reorder() {
      const order = shuffled(this.vectors.length);
      this.vectors = order.map((i) => this.vectors[i]);
      this.labels = order.map((i) => this.labels[i]);
    }

    stepOf(label) {
      return this.labels.indexOf(label);
    }

    /** Distance from m by label. */
    distances() {
      const reference = this.vectors[this.stepOf(this.m)];
      return this.labels.map((_, label) => {
        const vector = this.vectors[this.stepOf(label)];
        return Math.hypot(...vector.map((value, d) => value - reference[d]));
      });
    }

    /** The label asked for. */
    answer() {
      const distances = this.distances();
      const farthestFirst = distances.map((_, label) => label)
        .sort((a, b) => distances[b] - distances[a] || (b === this.m ? -1 : a === this.m ? 1 : a - b));
      return farthestFirst[this.rank - 1];
    }

    /** What the network reads: (x; label; n; m) a step, or Sonnet's order with m before n. */
    features() {
      const { vectors: count, dims, convention, order } = this.task;
      const n = convention === "farthest" ? this.rank - 1 : count - this.rank;
      const [third, fourth] = order === "sonnet" ? [this.m, n] : [n, this.m];
      return this.vectors.map((vector, t) => {
        const row = new Float32Array(dims + 3 * count);
        row.set(vector);
        row[dims + this.labels[t]] = 1;
        row[dims + count + third] = 1;
        row[dims + 2 * count + fourth] = 1;
        return row;
      });
    }
  }

  E.Question = Question;
})((window.Explorer ||= {}));
