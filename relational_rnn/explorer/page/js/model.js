/* The Relational Memory Core and its head, as relational_rnn/kernels/reference.py computes them.
   Shapes: T time, N slots, one input row, F slot size = H heads x V head size, K key size, rows = N + 1. */
(function (E) {
  "use strict";
  const EPSILON = 1e-5; // of every LayerNorm

  /** The value of a float16 with these bits; the weights have no infinities. */
  function half(bits) {
    const [exponent, fraction] = [(bits >> 10) & 31, bits & 1023];
    const size = exponent ? (1 + fraction / 1024) * 2 ** (exponent - 15) : fraction * 2 ** -24;
    return bits >> 15 ? -size : size;
  }

  /** float16, or 16-bit integers with a scale for every row -> Float32Array */
  function unpack({ shape, half: halves, scale, data }) {
    if (halves) {
      const bits = new DataView(E.bytes(halves).buffer);
      return { values: Float32Array.from({ length: bits.byteLength / 2 }, (_, i) => half(bits.getUint16(2 * i, true))), shape };
    }
    const integers = new DataView(E.bytes(data).buffer);
    const scales = new DataView(E.bytes(scale).buffer);
    const rows = scales.byteLength / 4;
    const width = integers.byteLength / 2 / rows;
    const values = new Float32Array(rows * width);
    for (let r = 0, i = 0; r < rows; r++) {
      const unit = scales.getFloat32(4 * r, true);
      for (let c = 0; c < width; c++, i++) values[i] = integers.getInt16(2 * i, true) * unit;
    }
    return { values, shape };
  }

  /** rows x [in] -> rows x [out]; the weight is [out, in]. Four outputs at a time read each input once. */
  function linear(input, rows, weight, bias) {
    const [outs, ins] = weight.shape;
    const w = weight.values;
    const result = new Float32Array(rows * outs);
    for (let r = 0; r < rows; r++) {
      const from = r * ins;
      let o = 0;
      for (; o + 4 <= outs; o += 4) {
        let [a, b, c, d] = [0, 0, 0, 0];
        const [row0, row1, row2, row3] = [o * ins, (o + 1) * ins, (o + 2) * ins, (o + 3) * ins];
        for (let i = 0; i < ins; i++) {
          const x = input[from + i];
          a += x * w[row0 + i];
          b += x * w[row1 + i];
          c += x * w[row2 + i];
          d += x * w[row3 + i];
        }
        result.set([a, b, c, d], r * outs + o);
      }
      for (; o < outs; o++) {
        let sum = 0;
        for (let i = 0; i < ins; i++) sum += input[from + i] * w[o * ins + i];
        result[r * outs + o] = sum;
      }
      for (o = 0; o < outs; o++) result[r * outs + o] += bias.values[o];
    }
    return result;
  }

  function layerNorm(x, width, weight, bias) {
    const result = new Float32Array(x.length);
    for (let start = 0; start < x.length; start += width) {
      let mean = 0;
      for (let i = 0; i < width; i++) mean += x[start + i];
      mean /= width;
      let variance = 0;
      for (let i = 0; i < width; i++) variance += (x[start + i] - mean) ** 2;
      const factor = 1 / Math.sqrt(variance / width + EPSILON);
      for (let i = 0; i < width; i++) {
        result[start + i] = (x[start + i] - mean) * factor * weight.values[i] + bias.values[i];
      }
    }
    return result;
  }

  const sigmoid = (x) => 1 / (1 + Math.exp(-x));
  const relu = (x) => x.map((value) => (value > 0 ? value : 0));
  const plus = (a, b) => a.map((value, i) => value + b[i]);

  function softmax(logits) {
    const highest = Math.max(...logits);
    const exponentials = Array.from(logits, (value) => Math.exp(value - highest));
    const sum = exponentials.reduce((a, b) => a + b, 0);
    return exponentials.map((value) => value / sum);
  }

  class Model {
    constructor(packed) {
      Object.assign(this, packed);
      this.slotSize = this.heads * this.headSize;
      this.weights = Object.fromEntries(Object.entries(packed.weights).map(([name, part]) => [name, unpack(part)]));
    }

    part(name) {
      return [this.weights[`${name}.weight`], this.weights[`${name}.bias`]];
    }

    /** Rows of the identity matrix, cut or padded to F columns. */
    initialMemory() {
      const memory = new Float32Array(this.slots * this.slotSize);
      for (let n = 0; n < Math.min(this.slots, this.slotSize); n++) memory[n * this.slotSize + n] = 1;
      return memory;
    }

    /** One block's softmax(Q K^T) of all rows, written to `shares` for the slots; returns what is read. */
    attend(qkv, rows, shares, offset) {
      const { heads, keySize, headSize, slotSize, slots } = this;
      const width = 2 * keySize + headSize;
      const read = new Float32Array(rows * slotSize);
      for (let h = 0; h < heads; h++) {
        for (let q = 0; q < rows; q++) {
          const query = (q * heads + h) * width;
          const logits = [];
          for (let k = 0; k < rows; k++) {
            const key = (k * heads + h) * width + keySize;
            let dot = 0;
            for (let i = 0; i < keySize; i++) dot += qkv[query + i] * qkv[key + i];
            logits.push(dot * this.scale);
          }
          const share = softmax(logits);
          for (let k = 0; k < rows; k++) {
            if (q < slots) shares[offset + (h * slots + q) * rows + k] = share[k];
            const value = (k * heads + h) * width + 2 * keySize;
            const to = q * slotSize + h * headSize;
            for (let i = 0; i < headSize; i++) read[to + i] += share[k] * qkv[value + i];
          }
        }
      }
      return read;
    }

    /** Equations 1-2 and the MLP, block after block: the candidate memory. */
    candidate(memory, inputRow, shares, offset) {
      const { slots, slotSize } = this;
      let rows = new Float32Array((slots + 1) * slotSize);
      rows.set(memory);
      rows.set(inputRow, slots * slotSize);
      for (let b = 0; b < this.blocks; b++) {
        const name = `core.blocks.${b}`;
        const features = this.heads * (2 * this.keySize + this.headSize);
        const projected = linear(rows, slots + 1, ...this.part(`${name}.qkv`));
        const qkv = layerNorm(projected, features, ...this.part(`${name}.qkv_norm`));
        const read = this.attend(qkv, slots + 1, shares, offset + b * this.heads * slots * (slots + 1));
        rows = layerNorm(plus(rows, read), slotSize, ...this.part(`${name}.attention_norm`));
        let hidden = rows;
        for (let layer = 0; layer < this.mlpLayers; layer++) {
          hidden = linear(layer ? relu(hidden) : hidden, slots + 1, ...this.part(`core.mlp.${layer}`));
        }
        rows = layerNorm(plus(rows, hidden), slotSize, ...this.part(`${name}.mlp_norm`));
      }
      return rows.subarray(0, slots * slotSize);
    }

    /** -> [next memory, mean input gate and mean forget gate of every slot, or null] */
    gated(memory, candidate, inputRow) {
      if (this.gateStyle === null) return [candidate.slice(), null, null];
      const { slots, slotSize } = this;
      const size = this.gateStyle === "unit" ? slotSize : 1;
      const [weight, bias] = this.part("core.gate_from_memory");
      const fromInput = linear(inputRow, 1, ...this.part("core.gate_from_input"));
      const fromMemory = linear(memory.map(Math.tanh), slots, weight, bias);
      const next = new Float32Array(memory.length);
      const means = [new Array(slots).fill(0), new Array(slots).fill(0)];
      for (let n = 0; n < slots; n++) {
        const gate = (which, unit, constant) => {
          const at = which * size + (size === 1 ? 0 : unit);
          return sigmoid(fromInput[at] + fromMemory[n * 2 * size + at] + constant);
        };
        for (let i = 0; i < slotSize; i++) {
          const input = gate(0, i, this.inputBias);
          const forget = gate(1, i, this.forgetBias);
          const at = n * slotSize + i;
          next[at] = input * Math.tanh(candidate[at]) + forget * memory[at];
          means[0][n] += input / slotSize;
          means[1][n] += forget / slotSize;
        }
      }
      return [next, ...means];
    }

    /** What the head makes of a memory: a probability for every class. */
    answer(memory) {
      let values = memory;
      for (let i = 0; i < this.headLayers; i++) {
        values = linear(values, 1, ...this.part(`head.${i}`));
        if (i === this.headLayers - 1) break;
        values = this.headOfProducts ? this.product(values, i) : relu(values);
      }
      return softmax(values);
    }

    /** The first half of the values times the second, and the layer's norm (tasks/heads.py). */
    product(values, layer) {
      const units = values.length / 2;
      const products = values.slice(0, units).map((value, i) => value * values[units + i]);
      return layerNorm(products, units, ...this.part(`head.norm.${layer}`));
    }

    /** Inputs [T][I] -> {trace, memories, answers}; the answer after every step. */
    run(inputs) {
      const { slots, slotSize, heads, blocks } = this;
      const size = blocks * heads * slots * (slots + 1);
      const attention = new Float32Array(inputs.length * size);
      const [inputGate, forgetGate, change, memories, answers] = [[], [], [], [], []];
      let memory = this.initialMemory();
      inputs.forEach((x, t) => {
        const inputRow = linear(x, 1, ...this.part("core.input_projection"));
        const candidate = this.candidate(memory, inputRow, attention, t * size);
        const [next, inputMeans, forgetMeans] = this.gated(memory, candidate, inputRow);
        inputGate.push(inputMeans);
        forgetGate.push(forgetMeans);
        change.push(Array.from({ length: slots }, (_, n) => {
          let sum = 0;
          for (let i = n * slotSize; i < (n + 1) * slotSize; i++) sum += (next[i] - memory[i]) ** 2;
          return Math.sqrt(sum / slotSize);
        }));
        memory = next;
        memories.push(memory);
        answers.push(this.answer(memory));
      });
      const gates = this.gateStyle === null ? [null, null] : [inputGate, forgetGate];
      const trace = new E.Trace({
        steps: inputs.length, blocks, heads, slots, inputs: 1, attention,
        inputGate: gates[0], forgetGate: gates[1], change,
      });
      return { trace, memories, answers };
    }
  }

  E.Model = Model;
})((window.Explorer ||= {}));
