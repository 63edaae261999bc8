/* What happened inside a memory, step by step: the same interface for recorded and for computed sequences. */
(function (E) {
  "use strict";

  E.bytes = (base64) => Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));

  /** {steps, blocks, heads, slots, inputs, attention, inputGate, forgetGate, change}, gates and change [step][slot]
   *  and attention flat over [step, block, head, slot, slots then inputs]. */
  class Trace {
    constructor(parts) {
      Object.assign(this, parts);
      this.keys = this.slots + this.inputs;
    }

    attend(step, block, head, slot, key) {
      const { blocks, heads, slots, keys, attention } = this;
      return attention[(((step * blocks + block) * heads + head) * slots + slot) * keys + key];
    }

    /** How much a slot reads of the input, all input rows together. */
    readsInput(step, block, head, slot) {
      let sum = 0;
      for (let k = this.slots; k < this.keys; k++) sum += this.attend(step, block, head, slot, k);
      return sum;
    }

    /** The mean over heads, in the last block. */
    meanInput(step, slot) {
      let sum = 0;
      for (let h = 0; h < this.heads; h++) sum += this.readsInput(step, this.blocks - 1, h, slot);
      return sum / this.heads;
    }

    /** The mean over heads and slots of the attention to one input row, in the last block. */
    meanOnInput(step, row) {
      let sum = 0;
      for (let h = 0; h < this.heads; h++) {
        for (let n = 0; n < this.slots; n++) sum += this.attend(step, this.blocks - 1, h, n, this.slots + row);
      }
      return sum / this.heads / this.slots;
    }
  }

  E.Trace = Trace;
  E.recordedTrace = (recorded) => {
    const raw = new DataView(E.bytes(recorded.attention).buffer);
    const attention = new Float32Array(raw.byteLength / 2);
    for (let i = 0; i < attention.length; i++) attention[i] = raw.getUint16(2 * i, true) / 65535;
    return new Trace({ ...recorded, attention });
  };
})((window.Explorer ||= {}));
