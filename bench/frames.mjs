// One direction of the PRP record layer as a Node program writes it: JSON,
// hex, node:crypto. Arguments: key (hex), session id, plaintext size, seconds.
// Prints one JSON line: the first frame and frames per second.
import { createCipheriv, createDecipheriv } from "node:crypto";

const [keyHex, session, size, seconds] = process.argv.slice(2);
const key = Buffer.from(keyHex, "hex");
const schema = "paperclip.runner.secure-frame.v1";
const plain = Buffer.alloc(Number(size));
for (let i = 0; i < plain.length; i++) plain[i] = 32 + (i % 95);

function nonce(counter) {
  const n = Buffer.alloc(12);
  n.write("P3C1", 0, "latin1");
  n.writeBigUInt64BE(BigInt(counter), 4);
  return n;
}

const aad = (counter) => Buffer.from([schema, session, "client_to_core", String(counter)].join("\0"), "utf8");

function seal(counter) {
  const c = createCipheriv("aes-256-gcm", key, nonce(counter));
  c.setAAD(aad(counter));
  const sealed = Buffer.concat([c.update(plain), c.final(), c.getAuthTag()]);
  return JSON.stringify({ schema, counter, ciphertext: sealed.toString("hex") });
}

function open(text, counter) {
  const frame = JSON.parse(text);
  if (frame.schema !== schema || frame.counter !== counter) throw new Error("not the expected frame");
  const sealed = Buffer.from(frame.ciphertext, "hex");
  const d = createDecipheriv("aes-256-gcm", key, nonce(counter));
  d.setAAD(aad(counter));
  d.setAuthTag(sealed.subarray(sealed.length - 16));
  return Buffer.concat([d.update(sealed.subarray(0, sealed.length - 16)), d.final()]);
}

function loop(seconds, counter) {
  const start = process.hrtime.bigint();
  const end = start + BigInt(Math.round(seconds * 1e9));
  let frames = 0;
  let now = start;
  while (now < end) {
    for (let i = 0; i < 16; i++) {
      if (open(seal(counter), counter).length !== plain.length) throw new Error("wrong length");
      counter++;
      frames++;
    }
    now = process.hrtime.bigint();
  }
  return [frames / (Number(now - start) / 1e9), counter];
}

const first = seal(0);
let [, counter] = loop(Number(seconds) / 2, 1); // warm-up
const [perSecond] = loop(Number(seconds), counter);
console.log(JSON.stringify({ first, perSecond }));
